"""Consent and calls that wait: answering approvals and external tools, and changing the policy mode."""

import trio

from roder_trio.actors._resident import ResidentThread
from roder_trio.errors import ActorCrashed, CommandRefused, RuntimeClosed, StorageError
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
        found = [entry for thread in threads for entry in thread.desk.approvals]
        return tuple(envelope for _, envelope in sorted(found, key=lambda entry: entry[0]))

    async def set_policy_mode(self, mode: PolicyMode | str, thread_id: str | None = None) -> None:
        """Change a thread's own policy mode, or the runtime's, and decide again what waits for consent.

        A thread with a mode of its own keeps it when the runtime's changes. After a restart the configured mode holds.
        Cancelling leaves a thread's mode as it was or changed, the runtime's changed; requests that were not decided
        again wait for the next change.

        Raises ValueError for an unknown mode, ThreadNotFound, ThreadFailed, and StorageError: then a thread's mode is
        as it was, the runtime's is changed, and what could not be stored waits on.
        """
        self._check_open()
        wanted, services = PolicyMode(mode), self._core.services
        if thread_id is not None:
            await self._ask(thread_id, c.ChangePolicy(wanted))
            return
        changed = PolicyModeChanged(wanted, services.policy_modes.runtime)
        services.policy_modes.runtime = wanted
        services.publish_live(changed, None, None, "runtime")
        failures: list[StorageError] = []
        async with trio.open_nursery() as nursery:
            for thread in self._core.directory:
                if thread.job is not None:
                    nursery.start_soon(self._decide_again, thread, failures)
        if failures:
            raise failures[0]

    async def _decide_again(self, thread: ResidentThread, failures: list[StorageError]) -> None:
        """Have a thread decide again what waits for consent, also what is being stored at this moment."""
        try:
            await thread.mailbox.ask(c.ChangePolicy())
        except (CommandRefused, ActorCrashed, RuntimeClosed):
            pass  # its turn is gone, and all that waited with it
        except StorageError as error:
            failures.append(error)

    async def _answer(self, request_id: str, command: c.ResolveApproval | c.ResolveExternal) -> bool:
        self._check_open()
        for thread in list(self._core.directory):
            if request_id in thread.desk.requests:
                answered: bool = await self._ask(thread.thread_id, command)
                return answered
        await trio.lowlevel.checkpoint()
        return False
