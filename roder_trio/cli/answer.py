"""How a turn is shown while it runs: its text as it comes and its calls, or each event as a line of JSON."""

from typing import Protocol

import roder_trio as rt
from roder_trio import codec, events, items
from roder_trio.cli.terminal import Terminal, escape_json, one_line

SHORT = 160
"""Characters of a call's arguments, or of why it failed, that are shown."""


class View(Protocol):
    """Shows the events of one turn."""

    def show(self, envelope: rt.EventEnvelope) -> None:
        """Show one event."""

    def close(self) -> None:
        """Leave the output ready for what is printed next."""


class JsonLines:
    """Prints each event as one line of JSON, control characters of its texts escaped."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def show(self, envelope: rt.EventEnvelope) -> None:
        """Print the event."""
        self._terminal.line(escape_json(codec.event_json(envelope).decode("utf-8").rstrip("\n")))

    def close(self) -> None:
        """Every line is complete already."""


class Answer:
    """Prints the text of the model's messages as it comes, each from the start of a line, and notes on its calls."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._shown: dict[str, str] = {}
        self._at_start = True

    def show(self, envelope: rt.EventEnvelope) -> None:
        """Print what the event adds to the answer, and tell of what holds it up."""
        match envelope.event:
            case items.ThreadItemEvent(event=items.ItemStarted(item=items.ToolExecution() as call), seq=seq) if seq:
                self._tell(f"tool {call.tool_name} {_short(call.input)}")
            case items.ThreadItemEvent(event=items.ItemCompleted(item=items.ToolExecution() as call)):
                self._tell(f"tool {call.tool_name}: {_status(call)}")
            case items.ThreadItemEvent(event=event):
                self._show_item(event)
            case events.RetryScheduled(delay=delay, error_kind=kind):
                self._tell(f"the provider failed ({kind}); trying again in {delay:.1f} s")
            case events.ContextCompactionStarted():
                self._tell("the history is long and is compacted first")
            case events.Lagged(missed=missed):
                self._tell(f"{missed} events were not shown, the output being slower than the model")

    def close(self) -> None:
        """End the line that an answer left open."""
        if not self._at_start:
            self._write("\n")

    def _show_item(self, event: object) -> None:
        match event:
            case items.ItemDelta(item_id=item_id, delta=items.AgentMessageText(delta=text)):
                self._add(item_id, text)
            case items.ItemCompleted(item=items.AgentMessage(id=item_id, text=text)):
                self._complete(item_id, text)
            case items.ItemDiscarded(item_id=item_id) if self._shown.pop(item_id, ""):
                self._tell("that answer broke off; it begins again")

    def _add(self, item_id: str, text: str) -> None:
        if item_id not in self._shown:
            self.close()
        self._shown[item_id] = self._shown.get(item_id, "") + text
        self._write(text)

    def _complete(self, item_id: str, text: str) -> None:
        shown = self._shown.get(item_id, "")
        if text.startswith(shown):
            self._add(item_id, text[len(shown) :])
        else:
            self.close()
            self._write(text)
        self.close()

    def _tell(self, text: str) -> None:
        self.close()
        self._terminal.note(text)

    def _write(self, text: str) -> None:
        if text:
            self._terminal.say(text)
            self._at_start = text.endswith("\n")


def _short(text: str | None) -> str:
    line = one_line(text or "")
    return line if len(line) <= SHORT else line[: SHORT - 1] + "…"


def _status(call: items.ToolExecution) -> str:
    if call.error is not None:
        return f"failed: {_short(call.error)}"
    lines = len((call.output or "").splitlines())
    return f"done, {lines} {'line' if lines == 1 else 'lines'}"
