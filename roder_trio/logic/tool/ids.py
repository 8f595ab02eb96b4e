"""Which of a step's calls are new, and under which ids; decided over the whole step, before any of them runs.

An id of this turn, with the same name and arguments, is a replay and is dropped; with others the turn fails. An id of
an earlier turn is given to a new call often enough, so that call gets a fresh id.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import attrs

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic import strict_json
from roder_trio.logic.replay import call_id, with_call_id
from roder_trio.schema.transcript import ProviderMetadata, ToolCall


@attrs.frozen
class SortedCalls:
    """A step's calls as they are stored, and what became of the others."""

    calls: tuple[ToolCall, ...] = ()
    replayed: tuple[str, ...] = ()
    """Ids that this turn answered already; one more round is forced if there are any."""
    duplicates: tuple[str, ...] = ()
    """Ids that came once more in this step; to be logged."""
    renamed: Mapping[str, str] = attrs.field(factory=dict)
    """The fresh id of each call whose id an earlier turn had."""

    def rewritten(self, metadata: ProviderMetadata) -> ProviderMetadata:
        """Return the step's replay metadata with the fresh ids, without the calls that were dropped."""
        output = metadata.payload.get("output")
        if not isinstance(output, list | tuple) or not (self.renamed or self.replayed or self.duplicates):
            return metadata
        return ProviderMetadata({**metadata.payload, "output": self._rewritten_parts(output)})

    def _rewritten_parts(self, output: Iterable[Any]) -> list[Any]:
        parts: list[Any] = []
        seen = set(self.replayed)
        for part in output:
            id = call_id(part) if isinstance(part, Mapping) else None
            if id is None:
                parts.append(part)
            elif id not in seen:
                seen.add(id)
                parts.append(with_call_id(part, self.renamed[id]) if id in self.renamed else part)
        return parts


def sort_calls(
    calls: Iterable[ToolCall],
    answered: Mapping[str, ToolCall],
    earlier: Container[str],
    fresh: Callable[[], str],
) -> SortedCalls:
    """Sort the calls of a step by their ids.

    `answered` are this turn's calls that have results, by id; `earlier` has the ids of all earlier turns, those that
    a compaction cut off included; `fresh` mints an id. Raises ProviderFailure, and then no call of the step may run.
    """
    kept: dict[str, ToolCall] = {}
    replayed: dict[str, None] = {}
    duplicates: list[str] = []
    for call in calls:
        if not call.id:
            raise ProviderFailure(ProviderFailureKind.PROTOCOL, "The engine sent a tool call without an id.")
        if call.id in kept or call.id in replayed:
            duplicates.append(call.id)
        elif call.id in answered:
            _check_replay(call, answered[call.id])
            replayed[call.id] = None
        else:
            kept[call.id] = call
    renamed = {id: fresh() for id in kept if id in earlier}
    stored = [attrs.evolve(call, id=renamed.get(id, id)) for id, call in kept.items()]
    return SortedCalls(tuple(stored), tuple(replayed), tuple(duplicates), renamed)


def _check_replay(call: ToolCall, former: ToolCall) -> None:
    if call.name != former.name or not _same_arguments(call.arguments, former.arguments):
        raise ProviderFailure(
            ProviderFailureKind.PROTOCOL,
            f"The engine sent the call id {call.id!r} of this turn again, with another name or other arguments.",
        )


def _same_arguments(left: str, right: str) -> bool:
    if left == right:
        return True
    try:
        return strict_json.same(strict_json.parse(left.strip() or "{}"), strict_json.parse(right.strip() or "{}"))
    except strict_json.JsonFlaw:
        return False
