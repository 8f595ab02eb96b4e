"""Consent and calls that wait: answering approvals and external tools, and changing the policy mode."""

from roder_trio.runtime.base import Base
from roder_trio.schema import command as c
from roder_trio.schema.event import EventEnvelope, PolicyModeChanged
from roder_trio.schema.policy import ApprovalOutcome, PolicyMode
from roder_trio.schema.tool import ToolOutput


class ConsentMethods(Base):
    """What a host decides while turns run."""

    async def resolve_approval(self, approval_id: str, approved: bool) -> bool:
        """Answer a request for consent; True for the first answer to a pending one, on whatever thread.

        The answer is durable before the tool starts. Raises StorageError; the request is pending still then.
        """
        outcome = ApprovalOutcome.APPROVED if approved else ApprovalOutcome.DENIED
        return await self._answer(approval_id, c.ResolveApproval(approval_id, outcome))

    async def resolve_external_tool(self, request_id: str, text: str, is_error: bool = False) -> bool:
        """Give the result of a call that the host was asked to run; True for the first answer to a pending one.

        Raises StorageError; the request is pending still then.
        """
        output = ToolOutput(text, is_error=is_error)
        return await self._answer(request_id, c.ResolveExternal(request_id, output=output))

    def pending_approvals(self, thread_id: str | None = None) -> tuple[EventEnvelope, ...]:
        """Return the requests for consent that wait, oldest first, of one thread or of all."""
        self._check_open()
        threads = [t for t in self._core.directory if thread_id is None or t.thread_id == thread_id]
        found = [envelope for thread in threads for envelope in thread.desk.approvals]
        return tuple(sorted(found, key=lambda envelope: envelope.timestamp))

    async def set_policy_mode(self, mode: PolicyMode | str, thread_id: str | None = None) -> None:
        """Change a thread's own policy mode, or the runtime's, and decide again what waits for consent.

        A thread with a mode of its own keeps it when the runtime's changes. After a restart the configured mode holds.
        Raises ValueError for an unknown mode, ThreadNotFound, StorageError.
        """
        self._check_open()
        wanted, modes = PolicyMode(mode), self._core.services.policy_modes
        if thread_id is not None:
            before = modes.of(thread_id)
            await self._ask(thread_id, c.ChangePolicy(wanted, PolicyModeChanged(wanted, before)))
            return
        changed = PolicyModeChanged(wanted, modes.runtime)
        modes.runtime = wanted
        self._core.services.publish_live(changed, None, None, "runtime")
        for thread in list(self._core.directory):
            if thread.desk.approvals:
                await self._ask(thread.thread_id, c.ChangePolicy())

    async def _answer(self, request_id: str, command: c.ResolveApproval | c.ResolveExternal) -> bool:
        self._check_open()
        for thread in list(self._core.directory):
            if request_id in thread.desk.requests:
                answered: bool = await self._ask(thread.thread_id, command)
                return answered
        return False
