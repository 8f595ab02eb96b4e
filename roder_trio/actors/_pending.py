"""What the calls of a thread's running turn wait for: consent, or a result from the host."""

from collections.abc import Iterable
from typing import Any

import attrs

from roder_trio.logic.thread.draft import Stamped
from roder_trio.logic.thread.facts import ApprovalTerms
from roder_trio.schema.event import (
    ApprovalRequested,
    ApprovalResolved,
    EventEnvelope,
    ExternalToolRequested,
    ExternalToolResolved,
)


@attrs.define(eq=False)
class PendingRequests:
    """Requests that were published and have no answer, and answers that their call hasn't taken."""

    requests: dict[str, EventEnvelope] = attrs.field(factory=dict)
    """The published requests by id, oldest first."""
    terms: dict[str, ApprovalTerms] = attrs.field(factory=dict)
    """By what requests for consent are decided again when the mode changes."""
    answers: dict[str, Any] = attrs.field(factory=dict)

    def note(self, stored: Iterable[Stamped]) -> None:
        """Take what a commit stored."""
        for entry in stored:
            if not isinstance(entry.record, EventEnvelope):
                continue
            match entry.record.event:
                case ApprovalRequested(approval_id=id) | ExternalToolRequested(request_id=id):
                    self.requests[id] = entry.record
                case ApprovalResolved(approval_id=id) | ExternalToolResolved(request_id=id):
                    self.requests.pop(id, None)
                    self.terms.pop(id, None)

    def clear(self) -> None:
        """The job is gone, and so is all that its calls waited for."""
        self.requests.clear()
        self.terms.clear()
        self.answers.clear()

    @property
    def approvals(self) -> tuple[EventEnvelope, ...]:
        """The requests for consent, oldest first."""
        return tuple(entry for entry in self.requests.values() if isinstance(entry.event, ApprovalRequested))
