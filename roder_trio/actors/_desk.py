"""Answers that aren't stored: what calls, callers and hosts of one thread wait for.

Requests for consent and to the host are stored events; what is kept here is who may still answer them, by what they
are decided again, and what came. All of it goes with the job, or with the incarnation.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, Final, TypeVar, assert_never

import attrs

from roder_trio.actors._answer import Accepted
from roder_trio.actors._cell import Request
from roder_trio.actors.cost import EndedTurn
from roder_trio.errors import ActorCrashed
from roder_trio.logic.cost import Bill, Note, bills, notes_of
from roder_trio.logic.thread.draft import Stamped
from roder_trio.logic.thread.facts import ApprovalTerms
from roder_trio.schema.command import Answer, CompactionEnded, Remember
from roder_trio.schema.event import (
    ApprovalRequested,
    ApprovalResolved,
    EventEnvelope,
    ExternalToolRequested,
    ExternalToolResolved,
    TranscriptItemAppended,
)
from roder_trio.schema.turn import TurnOutcome

_ARRIVALS: Final = count()
"""Numbers requests in the order in which they are stored, over all threads; the wall clock is no order."""

MAX_ENDED = 64
"""Ended turns whose charges and structured answers are kept in memory; of older ones only the log tells."""

T = TypeVar("T")

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
"""What the tables of a desk are while nothing is in them: most threads need none."""


def without(table: Mapping[str, T], key: str) -> Mapping[str, T]:
    """Return a table without one of its entries."""
    return {name: value for name, value in table.items() if name != key} or _NONE


def newest(table: Mapping[str, T]) -> Mapping[str, T]:
    """Return a table to which one was added, without the oldest if it has one too many."""
    return table if len(table) <= MAX_ENDED else without(table, next(iter(table)))


@attrs.define(eq=False)
class Desk:
    """What waits on one thread, and what it waits for. Tables that are mostly empty are replaced when they change."""

    requests: Mapping[str, tuple[int, EventEnvelope]] = _NONE
    """The stored requests that have no answer, by id, each with its place among those of all threads."""
    terms: Mapping[str, ApprovalTerms] = _NONE
    """By what requests for consent are decided again when the mode changes."""
    outputs: Mapping[str, Accepted] = _NONE
    """The structured answers of the newest turns that ended while the thread is in memory, by turn."""
    bills: Mapping[str, tuple[Bill, ...]] = _NONE
    """How the attempts of the newest of those turns are charged, by turn."""
    _notes: Mapping[str, Note] = _NONE
    """What is stored of the costs of the running turn's attempts."""
    _answers: Mapping[str, Any] = _NONE
    _compacted: CompactionEnded | None = None

    def note(self, stored: Iterable[Stamped]) -> None:
        """Take what a commit stored."""
        for entry in stored:
            if not isinstance(entry.record, EventEnvelope):
                continue
            match entry.record.event:
                case ApprovalRequested(approval_id=id) | ExternalToolRequested(request_id=id):
                    self.requests = {**self.requests, id: (next(_ARRIVALS), entry.record)}
                case ApprovalResolved(approval_id=id) | ExternalToolResolved(request_id=id):
                    self.requests, self.terms = without(self.requests, id), without(self.terms, id)
                case TranscriptItemAppended(item=item):
                    if notes := notes_of([item]):
                        self._notes = {**self._notes, **notes}

    def take(self, effect: Answer | Remember) -> None:
        """Keep an answer, or the terms of a request."""
        match effect:
            case Answer(request_id, value):
                self._answers = {**self._answers, request_id: value}
            case Remember(approval_id, terms):
                self.terms = {**self.terms, approval_id: terms}
            case _:
                assert_never(effect)

    def free(self, ended: CompactionEnded | None) -> None:
        """The job is gone, and so is all that its calls waited for; a compaction's result waits for its caller."""
        self.requests = self.terms = self._answers = _NONE
        self._compacted = ended or self._compacted

    def answer_call(self, request: Request, request_id: str) -> bool:
        """Give a call what it waits for; False if it isn't there yet.

        The answer is kept until the job is gone: who waits may be cancelled just as it comes, and then asks again.
        """
        if request_id not in self._answers:
            return False
        request.resolve(self._answers[request_id])
        return True

    def answer_compaction(self, request: Request, compaction_id: str, *, running: bool) -> bool:
        """Give the caller of a manual compaction its result; False if it is still running."""
        ended = self._compacted
        if ended is not None and ended.compaction_id == compaction_id:
            if ended.error is not None:
                request.reject(ended.error)
            else:
                request.resolve(ended.result)
            return True
        if not running:
            request.reject(ActorCrashed("The compaction ended without a result: the thread's actor failed."))
        return not running

    def charge(self, turn_id: str, records: Iterable[EventEnvelope]) -> None:
        """A turn has ended, with these records of its attempts."""
        self.bills = newest({**self.bills, turn_id: bills(records, self._notes)})
        self._notes = _NONE

    def accept(self, turn_id: str, answer: Accepted) -> None:
        """A turn has ended with this structured answer."""
        self.outputs = newest({**self.outputs, turn_id: answer})

    def ended(self, told: TurnOutcome | EndedTurn) -> EndedTurn:
        """Return how a turn ended, with its structured answer if there is one, and how it is charged if that is known.

        One that ended before this incarnation, or long ago, is charged by the log.
        """
        outcome, charged = (told.outcome, told.bills) if isinstance(told, EndedTurn) else (told, None)
        accepted = self.outputs.get(outcome.turn_id)
        if accepted is not None:
            outcome = attrs.evolve(outcome, output=accepted.value, text=accepted.text)
        return EndedTurn(outcome, self.bills.get(outcome.turn_id, charged))

    @property
    def approvals(self) -> tuple[tuple[int, EventEnvelope], ...]:
        """The requests for consent, each with its place among those of all threads."""
        return tuple(entry for entry in self.requests.values() if isinstance(entry[1].event, ApprovalRequested))
