"""Questions for consent to what a tool would do, asked one at a time, the oldest first.

Anything but `y` or `yes`, typed after the question was shown, is a no. What the model wrote is shown whole, in one
line, with the characters that a terminal may not show as escapes.
"""

from collections.abc import Callable

import trio

import roder_trio as rt
from roder_trio import events
from roder_trio.cli.keyboard import Keyboard
from roder_trio.cli.terminal import Terminal, escape_json

YES = frozenset({"y", "yes"})


class Questions:
    """The requests for consent that wait. `forget` drops what was typed before a question is shown."""

    def __init__(self, terminal: Terminal, runtime: rt.Runtime, forget: Callable[[], None]) -> None:
        self._terminal = terminal
        self._runtime = runtime
        self._forget = forget
        self._pending: dict[str, events.ApprovalRequested] = {}
        self._shown: str | None = None
        self._asked = trio.Event()

    @property
    def is_open(self) -> bool:
        """Whether a question is shown and not answered."""
        return self._shown is not None

    def hear(self, event: object) -> None:
        """Take note of a request, or that one is resolved."""
        match event:
            case events.ApprovalRequested():
                self._pending[event.approval_id] = event
            case events.ApprovalResolved(approval_id=approval_id):
                self._pending.pop(approval_id, None)
            case events.Lagged():
                waiting = [envelope.event for envelope in self._runtime.pending_approvals()]
                self._pending = {e.approval_id: e for e in waiting if isinstance(e, events.ApprovalRequested)}
            case _:
                return
        self._ask()

    async def answer(self, line: str | None) -> None:
        """Answer the question that is shown, None being a no. Raises StorageError."""
        approval_id, self._shown = self._shown, None
        if approval_id is None:
            await trio.lowlevel.checkpoint()
            return
        self._pending.pop(approval_id, None)
        approved = line is not None and line.strip().lower() in YES
        await self._runtime.resolve_approval(approval_id, approved)
        self._ask()

    async def attend(self, keyboard: Keyboard | None) -> None:
        """Have each question answered by a line of the keyboard; without one by a no. Never returns."""
        while True:
            await self._asked.wait()
            line = await keyboard.line() if keyboard else None
            if line is not None:
                self._terminal.answered()
            await self.answer(line)

    def _ask(self) -> None:
        """Show the oldest question, if none is shown that still waits."""
        if self._shown in self._pending:
            return
        self._shown = next(iter(self._pending), None)
        if self._shown is None:
            if self._asked.is_set():  # else someone may wait for it
                self._asked = trio.Event()
            return
        request = self._pending[self._shown]
        self._forget()
        reason = f": {request.reason}" if request.reason else ""
        self._terminal.note(f"{request.name} needs your consent{reason}", style="bold")
        self._terminal.exact(f"  {escape_json(request.arguments)}")
        self._terminal.ask("run it? [y/N] ")
        self._asked.set()
