"""What the checks of stores are made of.

Rules of the room: a check takes an open store and a prefix for its thread ids, and returns what to look at now and
once more after reopening.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import Record, ThreadSnapshot
from roder_trio.testing._sample import Sample

Verify: TypeAlias = Callable[[ThreadStore], Awaitable[None]]
Check: TypeAlias = Callable[[ThreadStore, str], Awaitable[Verify]]


def expect(found: object, wanted: object, what: str) -> None:
    """Raise AssertionError if `found` isn't `wanted`."""
    if found != wanted:
        raise AssertionError(f"{what}: found {short(found)}, expected {short(wanted)}")


def short(value: object) -> str:
    """The value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"  # noqa: PLR2004


async def refused(error: type[Exception], call: Awaitable[object], what: str) -> None:
    """Raise AssertionError if `call` doesn't raise `error`."""
    try:
        await call
    except error:
        return
    except Exception as other:  # told as what it is
        raise AssertionError(f"{what}: raised {type(other).__name__}, expected {error.__name__}") from other
    raise AssertionError(f"{what}: was not refused with {error.__name__}")


async def loaded(store: ThreadStore, thread_id: ThreadId) -> ThreadSnapshot:
    """The snapshot of a thread that must be there."""
    snapshot = await store.load_thread(thread_id)
    if snapshot is None:
        raise AssertionError(f"thread {thread_id!r} is gone")
    return snapshot


async def new_thread(store: ThreadStore, thread_id: ThreadId, **fields: Any) -> Sample:
    """Create a thread and return what makes its records."""
    sample = Sample(thread_id)
    await store.create_thread(sample.metadata(**fields))
    return sample


async def append_each(store: ThreadStore, sample: Sample, records: Iterable[Record]) -> None:
    """Append records one by one, so that nothing depends on how a batch is treated."""
    for record in records:
        await store.append(sample.thread_id, [record])


async def ids(store: ThreadStore, thread_id: ThreadId) -> list[str]:
    """The ids of a thread's envelopes, in log order."""
    return [envelope.event_id for envelope in (await loaded(store, thread_id)).events]


def holds(thread_id: ThreadId, wanted: list[str]) -> Verify:
    """What to look at if a log must hold just these envelopes."""

    async def verify(store: ThreadStore) -> None:
        expect(await ids(store, thread_id), wanted, "the log")

    return verify


def told(error: BaseException) -> str:
    """What went wrong, in words."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(told(part) for part in error.exceptions)
    text = str(error) or "no message"
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
