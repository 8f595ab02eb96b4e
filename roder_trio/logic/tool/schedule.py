"""In which order the calls of a step run: neighbours that may run side by side form a group, the others stand alone."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

Call = TypeVar("Call")


def schedule(
    calls: Iterable[Call], is_exclusive: Callable[[Call], bool], *, parallel: bool = True
) -> tuple[tuple[Call, ...], ...]:
    """Split calls, in model order, into groups; each starts when all of the one before have ended.

    Without `parallel` every call is exclusive.
    """
    groups: list[tuple[Call, ...]] = []
    for exclusive, run in groupby(calls, lambda call: not parallel or is_exclusive(call)):
        together = tuple(run)
        groups.extend([(call,) for call in together] if exclusive else [together])
    return tuple(groups)
