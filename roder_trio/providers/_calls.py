"""Calls of one answer, where each has an id from its start.

Pure. Completions leave in the order of the starts. A call that closes without arguments waits for the stop reason:
they mean `{}` unless the answer may have been cut off.
"""

import itertools
from collections.abc import Callable

import attrs

from roder_trio.logic.stop import MAY_BE_CUT
from roder_trio.schema.inference import InferenceEvent, ToolCallCompleted, ToolCallDelta, ToolCallStarted


@attrs.define
class _Call:
    id: str
    name: str
    parts: list[str] = attrs.field(factory=list)
    closed: bool = False


class CallQueue:
    """The calls of one answer, by their ids."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        self._told = 0
        """How many completions have left."""

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, id: str) -> bool:
        return id in self._calls

    def start(self, id: str, name: str) -> list[InferenceEvent]:
        """Begin a call; its id is new."""
        self._calls[id] = _Call(id, name)
        return [ToolCallStarted(id, name)]

    def grow(self, id: str, text: str, *, silent: bool = False) -> list[InferenceEvent]:
        """Take more of a call's arguments; nothing once it is closed. `silent` gives no delta."""
        call = self._calls[id]
        if not text or call.closed:
            return []
        call.parts.append(text)
        return [] if silent else [ToolCallDelta(id, text)]

    def close(self, id: str, arguments: str | None = None) -> list[InferenceEvent]:
        """End a call, with what came of it unless `arguments` say otherwise; return the completions that may leave."""
        call = self._calls[id]
        if not call.closed:
            call.closed = True
            call.parts = call.parts if arguments is None else [arguments]
        return self._leave(lambda call: call.closed and any(call.parts))

    def finish(self, stop_reason: str | None) -> list[InferenceEvent]:
        """End all calls with the answer; return the completions that are left."""
        nothing = "" if stop_reason in MAY_BE_CUT else "{}"
        for call in self._calls.values():
            call.parts = call.parts if any(call.parts) else [nothing]
        return self._leave(lambda _: True)

    def _leave(self, may_leave: Callable[[_Call], bool]) -> list[InferenceEvent]:
        left = itertools.takewhile(may_leave, list(self._calls.values())[self._told :])
        out: list[InferenceEvent] = [ToolCallCompleted(call.id, call.name, "".join(call.parts)) for call in left]
        self._told += len(out)
        return out
