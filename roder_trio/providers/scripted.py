"""An engine that plays scripts: for tests of what uses an engine, and for measuring the runtime without a network.

A script is a sequence of steps, one a stream. A step is one part or a list of parts, lists inside lists included:

    an event of `schema.inference`    delivered
    an exception                      raised; from the iterator, or, if it is the whole step, on entering the block
    a `trio.Event`                    waited for
    a number                          a delay in seconds of trio's clock
    a callable                        called with the request when it is reached; gives further parts, or None
    `NEVER_ENDS`                      waits for ever

In the script of `compact_turn` a step of None says that this call has no compaction. A checkpoint is taken before an
event, none between taking and delivering it, so a cancel can land between any two events and loses none. Scripts may
break the grammar of streams on purpose; nothing here checks it.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
import trio

from roder_trio.ports import InferenceEngine, InferenceStream
from roder_trio.schema.inference import (
    Completed,
    EngineTarget,
    InferenceCapabilities,
    InferenceEvent,
    InferenceRequest,
    ModelDescriptor,
    TurnContext,
    Usage,
)
from roder_trio.schema.usage import TokenUsage


class _Never(Enum):
    NEVER_ENDS = "never ends"


NEVER_ENDS: Final = _Never.NEVER_ENDS
"""The part of a step at which the stream hangs for ever."""

Part: TypeAlias = InferenceEvent | Exception | trio.Event | float | Callable[[InferenceRequest], Any] | _Never
Step: TypeAlias = Part | Sequence[Any]

Closed: TypeAlias = Literal["exhausted", "cancelled", "error", "left"]

_PAST_THE_END: Final = AssertionError("past the end")
_EVENT_TYPES = frozenset(get_args(InferenceEvent))


@attrs.define(eq=False)
class Call:
    """One stream that was asked for."""

    kind: Literal["stream", "compact"]
    context: TurnContext
    request: InferenceRequest
    delivered: int = 0
    """Events given to the reader."""
    closed: Closed | None = None
    """How the stream ended: read to its end, cancelled, by an error, or left before its end; None while it is open."""


class ScriptedEngine(InferenceEngine):
    """An engine that plays one step of its script per stream, and records what it was asked.

    A step is a list of events of `inference`, such as `[MessageDelta("Hi"), Usage(...), Completed("stop")]`, or a part
    alone; the module's docstring tells what else may stand in it. A call past the end of a script raises AssertionError
    on entering the block. Without a script for `compact_turn` there is no compaction. An iterator as a script may be
    endless.
    """

    def __init__(
        self,
        steps: Iterable[Step] = (),
        *,
        id: str = "scripted",
        compact: Iterable[Step | None] = (),
        capabilities: InferenceCapabilities | None = None,
        requires_native_compaction: bool = False,
        models: Sequence[ModelDescriptor] = (),
        target: EngineTarget | None = None,
    ) -> None:
        self.id = id
        self.capabilities = InferenceCapabilities.agent() if capabilities is None else capabilities
        self.requires_native_compaction = requires_native_compaction
        self.target = target
        self.known_models = tuple(models)
        self.models = self.known_models or (ModelDescriptor(provider=id, id="scripted"),)
        self.calls: list[Call] = []
        """Every call, in order; those of `compact_turn` that had no compaction too."""
        self.active = 0
        """Streams that are open now."""
        self.most_active = 0
        """The most streams that were open at once."""
        self._steps = iter(steps)
        self._compact_steps = iter(compact)
        self._compacts = not isinstance(compact, Sized) or len(compact) > 0

    @property
    def requests(self) -> list[InferenceRequest]:
        """The requests of `stream_turn`, in order, as sent."""
        return [call.request for call in self.calls if call.kind == "stream"]

    @property
    def compact_requests(self) -> list[InferenceRequest]:
        """The requests of `compact_turn`, in order, as sent."""
        return [call.request for call in self.calls if call.kind == "compact"]

    def stream_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[InferenceStream]:
        """Play the next step."""
        call = Call("stream", context, request)
        self.calls.append(call)
        return self._play(call, next(self._steps, _PAST_THE_END))

    def compact_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[InferenceStream] | None:
        """Play the next step of the script for compactions; None without one, or if the step is None."""
        call = Call("compact", context, request)
        self.calls.append(call)
        if not self._compacts:
            return None
        step = next(self._compact_steps, _PAST_THE_END)
        return None if step is None else self._play(call, step)

    async def list_models(self) -> Sequence[ModelDescriptor]:
        """Return the models it was made with."""
        await trio.lowlevel.checkpoint()
        return self.models

    @asynccontextmanager
    async def _play(self, call: Call, step: Step) -> AsyncIterator[InferenceStream]:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        stream = _ScriptedStream(call, step)
        try:
            await trio.lowlevel.checkpoint()
            self._refuse(call, step)
            yield stream
        except BaseException as error:
            stream.ended = stream.ended or ("cancelled" if isinstance(error, trio.Cancelled) else "error")
            raise
        finally:
            call.closed = stream.ended or "left"
            self.active -= 1

    def _refuse(self, call: Call, step: Step) -> None:
        """Raise what is raised on entering the block."""
        if step is _PAST_THE_END:
            number = sum(other.kind == call.kind for other in self.calls)
            raise AssertionError(
                f"The script of {call.kind}_turn ends before its call {number}, of turn {call.context.turn_id!r}; "
                "give it one step more."
            )
        if isinstance(step, Exception):
            raise step


class _ScriptedStream:
    """Plays the parts of one step; a list inside is a level of its own on the stack."""

    __slots__ = ("_call", "_levels", "_usage", "ended")

    def __init__(self, call: Call, step: Step) -> None:
        self._call = call
        self._levels: list[Iterator[Any]] = [_parts(step)]
        self._usage: TokenUsage | None = None
        self.ended: Closed | None = None

    def __aiter__(self) -> "_ScriptedStream":
        return self

    async def __anext__(self) -> InferenceEvent:
        try:
            await trio.lowlevel.checkpoint()
            while True:
                part = self._take()
                if part.__class__ in _EVENT_TYPES:
                    return self._deliver(part)
                await self._perform(part)
        except StopAsyncIteration:
            self.ended = "exhausted"
            raise
        except trio.Cancelled:
            self.ended = "cancelled"
            raise
        except Exception:
            self.ended = "error"
            self._levels.clear()
            raise

    def settle(self) -> TokenUsage | None:
        """Return the newest usage that was delivered; what lies further on in the script was not received."""
        return self._usage

    def _take(self) -> Any:
        while self._levels:
            for part in self._levels[-1]:
                return part
            self._levels.pop()
        raise StopAsyncIteration

    def _deliver(self, event: InferenceEvent) -> InferenceEvent:
        self._call.delivered += 1
        if event.__class__ is Usage:
            self._usage = event.usage
        elif event.__class__ is Completed:
            self.ended = "exhausted"
        return event

    async def _perform(self, part: Any) -> None:
        """Do what a part that is no event says; only waits are checkpoints."""
        match part:
            case Exception():
                raise part
            case trio.Event():
                await part.wait()
            case _Never():
                await trio.sleep_forever()
            case int() | float():
                await trio.sleep(part)
            case list() | tuple():
                self._levels.append(iter(part))
            case _ if callable(part):
                self._levels.append(_parts(part(self._call.request)))
            case _:
                raise TypeError(f"A scripted step holds {part!r}, which is no event and nothing that can be played.")


def _parts(step: Any) -> Iterator[Any]:
    """Iterate over a step; a generator that a callable returned counts as a list."""
    if step is None:
        return iter(())
    return iter(step) if isinstance(step, list | tuple | Iterator) else iter((step,))
