"""The check of a store against its contract, for those who write one.

Rules of the room: each check works on threads of its own and needs as few of the other rules as can be, so that a
store that breaks one rule fails that check alone. What a check expects is looked at once more after the store was
closed and opened again.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias
from uuid import uuid4

import trio

from roder_trio.errors import StoreUnsupported
from roder_trio.ports import ThreadStore
from roder_trio.testing import _appends, _folds, _model, _owners, _reads, _threads
from roder_trio.testing._appends import Fault
from roder_trio.testing._check import Check, told

Factory: TypeAlias = Callable[[], ThreadStore]

OPTIONAL = frozenset({"A0 delete_thread", "A1 unarchive_thread", "read_log"})
"""Checks of what a store may leave out."""
CHECK_SECONDS = 120.0
"""A check that takes longer has failed: the store hangs."""


async def check_thread_store(
    factory: Factory, *, reopen: bool = True, shared: bool = False, fault: Fault | None = None
) -> None:
    """Check a store. Raises one AssertionError that lists every failed check by name.

    `factory` makes a store that isn't open, on the same storage each time. `reopen` says that what is stored is still
    there when another one is opened on it; a store that only memory holds hands in itself each time. `shared` says that
    several stores, open at once on that storage, are owners of their own; one of its checks waits until a lease would
    have ended. `fault`, called with an open store and "before", "in" or "after", makes its next append fail there:
    before the write, in the middle, or when all is written. Cancelled, it leaves the threads that it made.
    """
    checks: dict[str, Check] = {**_threads.CHECKS, **_appends.CHECKS, **_folds.CHECKS, **_reads.CHECKS}
    if shared:
        checks |= _owners.checks(factory)
    if fault is not None:
        checks["C12 failed append"] = _appends.failed_append(fault)
    # a difference to the model doesn't tell which rule was broken, so it is looked for last
    failures = await _run_all(factory, checks, reopen) or await _run_all(factory, _model.CHECKS, reopen)
    if failures:
        raise AssertionError(f"{len(failures)} checks of the store failed:\n" + "\n".join(failures))


async def _run_all(factory: Factory, checks: Mapping[str, Check], reopen: bool) -> list[str]:
    outcomes = [await _run(factory, name, check, reopen) for name, check in checks.items()]
    return [outcome for outcome in outcomes if outcome is not None]


async def _run(factory: Factory, name: str, check: Check, reopen: bool) -> str | None:
    """Run one check; a line that says how it failed."""
    verify: Callable[[ThreadStore], Awaitable[None]] | None = None
    try:
        with trio.fail_after(CHECK_SECONDS):
            store = factory()
            async with store.open():
                verify = await check(store, f"{name.partition(' ')[0].lower()}-{uuid4()}")
                await verify(store)
            if reopen:
                store = factory()
                async with store.open():
                    await verify(store)
    except Exception as error:  # whatever a store raises is its failure
        if isinstance(error, StoreUnsupported) and name in OPTIONAL:
            return None
        after = "" if verify is None else " (what was stored)"
        return f"- {name}{after}: {told(error)}"
    return None
