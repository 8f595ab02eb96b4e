"""The calls of one step: each goes through its pipeline, runs in its turn, and gets exactly one result.

Everything that can be settled before a call runs (lookup, arguments, hooks, policy, consent) is settled for all calls
side by side. Then they run in model order, neighbours that may run together as one group. Results are stored in call
order, whichever ended first. A tool's failure is data for the model; only a cancel and a failed append leave here.
"""

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from roder_trio.actors._job import JobPort
from roder_trio.actors._services import Services, new_id
from roder_trio.actors._supervisor import cancel_alone
from roder_trio.actors.goal import GoalTool
from roder_trio.codec.text import REFUSALS, dump, plain
from roder_trio.logic import policy as consent
from roder_trio.logic.tool import arguments as rules
from roder_trio.logic.tool import refusal
from roder_trio.logic.tool.caps import capped
from roder_trio.logic.tool.offer import is_permitted
from roder_trio.logic.tool.result import failure
from roder_trio.logic.tool.schedule import schedule
from roder_trio.ports import HostRunTool, Tool
from roder_trio.schema.command import (
    AwaitAnswer,
    ItemsDone,
    RecordToolEvents,
    RequestApproval,
    RequestExternal,
    ResolveApproval,
    ResolveExternal,
    TurnPlan,
)
from roder_trio.schema.event import (
    PolicyDecided,
    ToolArgumentsRewritten,
    ToolCallRepaired,
    ToolFinished,
    ToolOutputTruncated,
    ToolProgress,
    ToolStarted,
)
from roder_trio.schema.policy import ApprovalOutcome, ExternalOutcome, PolicyDecision, PolicyMode
from roder_trio.schema.tool import ToolContext, ToolOutput
from roder_trio.schema.transcript import Image, ToolCall, ToolResult

log = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Call:
    """One call on its way: either ready to run, with its tool and arguments, or answered already."""

    call: ToolCall
    tool: Tool | None = None
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    output: ToolOutput | None = None
    result: ToolResult | None = None
    asked: trio.Event = attrs.field(factory=trio.Event)
    """Set once its question, if it has one, is asked; so people are asked in call order."""
    prepared: bool = False
    finished: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False, kw_only=True)
class ToolBatch:
    """The calls of one step, from their storing to the last result."""

    services: Services
    thread_id: str
    plan: TurnPlan
    port: JobPort
    calls: Sequence[ToolCall]
    finish_reason: str | None
    deadline: float
    """In trio's time; infinite if the turn has none."""
    parallel: bool
    """Whether calls may run side by side at all."""
    cut_at: Callable[[], float]
    """When a recorded cause told the turn to end, in trio's time; infinite if none did."""
    _entries: list[_Call] = attrs.field(init=False, factory=list)
    _stored: int = attrs.field(init=False, default=0)
    _changed: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set, and made anew, when a call is prepared."""

    async def run(self) -> tuple[ToolResult, ...]:
        """Run all calls and store their results; returns them in call order. Raises StorageError.

        A cancel ends the tools first; `leftover` then has what ended and isn't stored yet.
        """
        self._entries = [_Call(call) for call in self.calls]
        async with trio.open_nursery() as nursery:
            for entry in self._entries:
                nursery.start_soon(self._prepare, entry)
            nursery.start_soon(self._store_in_order)
            for group in schedule(self._entries, self._is_exclusive, parallel=self.parallel):
                await self._run_group(group)
        return tuple(entry.result for entry in self._entries if entry.result is not None)

    def leftover(self) -> tuple[ToolResult, ...]:
        """Return results that aren't stored yet, in call order."""
        return tuple(entry.result for entry in self._entries[self._stored :] if entry.result is not None)

    # -- order -------------------------------------------------------------------------------------------------------

    def _is_exclusive(self, entry: _Call) -> bool:
        tool = self.services.toolbox.get(entry.call.name)
        return tool is not None and tool.spec.concurrency == "exclusive"

    async def _run_group(self, group: Sequence[_Call]) -> None:
        """Run neighbours side by side, as many as may; each as soon as nothing keeps it waiting, in model order."""
        waiting = list(group)
        async with trio.open_nursery() as nursery:
            for _ in range(min(len(group), self.services.config.max_parallel_tools)):
                nursery.start_soon(self._work, waiting)

    async def _work(self, waiting: list[_Call]) -> None:
        await trio.lowlevel.checkpoint()  # what is prepared without waiting, in an order of trio's, is prepared then
        while waiting:
            entry = next((entry for entry in waiting if entry.prepared), None)
            if entry is None:
                await self._changed.wait()
                continue
            waiting.remove(entry)
            if entry.output is None:
                entry.output = await self._run(entry)
            self._finish(entry, entry.output)

    async def _store_in_order(self) -> None:
        for entry in self._entries:
            await entry.finished.wait()
            assert entry.result is not None
            await self.port.report(ItemsDone(self.plan.turn_id, (entry.result,)))
            self._stored += 1

    # -- before it runs ----------------------------------------------------------------------------------------------

    async def _prepare(self, entry: _Call) -> None:
        """Settle all that comes before the running; a call that is refused has its output then."""
        refused = await self._settle(entry)
        if refused is not None:
            entry.output = ToolOutput(refused, is_error=True)
        entry.prepared = True
        entry.asked.set()
        self._changed.set()
        self._changed = trio.Event()

    async def _settle(self, entry: _Call) -> str | None:
        """Return why the call isn't run; None if it is."""
        found = self._look_up(entry)
        if found is not None:
            return found
        tool = entry.tool
        assert tool is not None
        refused = self._check_arguments(entry, tool, entry.call.arguments)
        if refused is not None:
            return refused
        refused = await self._ask_hooks(entry, tool)
        if refused is not None:
            return refused
        return await self._ask_policy(entry, tool)

    def _look_up(self, entry: _Call) -> str | None:
        name, toolbox = entry.call.name, self.services.toolbox
        allowlists = (self.services.config.tool_allowlist, self.plan.tool_allowlist)
        entry.tool = toolbox.get(name)
        if entry.tool is not None and is_permitted(name, *allowlists):
            return None
        offered = [known for known in toolbox.tools if is_permitted(known, *allowlists)]
        refuse = rules.unknown_tool if entry.tool is None else rules.forbidden_tool
        return refuse(name, offered).text

    def _check_arguments(self, entry: _Call, tool: Tool, text: str) -> str | None:
        checked = rules.check(tool.spec, text, self.finish_reason, self.services.toolbox.validator(tool.spec.name))
        if isinstance(checked, rules.Refused):
            return checked.text
        if checked.repaired:
            self.port.publish(ToolCallRepaired(entry.call.id))
        entry.arguments = checked.arguments
        return None

    async def _ask_hooks(self, entry: _Call, tool: Tool) -> str | None:
        name, context = tool.spec.name, self._context(entry)
        called = await self.services.hooks.tool_calling(context, name, entry.arguments, self.port.publish)
        if called.denied is not None:
            denied = refusal.DENIED_BY_HOOK
            return f"{denied}: {called.denied.reason}" if called.denied.reason else denied
        if called.flaw is not None:
            return f"{refusal.INVALID_ARGUMENTS}{called.flaw}"
        if not called.rewritten:
            return None
        rewritten = tuple(ToolArgumentsRewritten(entry.call.id, text, by) for by, text in called.rewritten)
        await self.port.report(RecordToolEvents(self.plan.turn_id, rewritten))
        return self._check_arguments(entry, tool, rewritten[-1].arguments)

    # -- consent -----------------------------------------------------------------------------------------------------

    async def _ask_policy(self, entry: _Call, tool: Tool) -> str | None:
        services, call = self.services, entry.call
        verdicts = await services.policies.verdicts(self._context(entry), tool.spec, entry.arguments)
        ruling = consent.decide(self._mode, tool.spec, services.config.denied_tools, verdicts)
        self.port.publish(PolicyDecided(call.id, ruling.decision, ruling.reason, ruling.rule))
        if ruling.decision is PolicyDecision.DENIED:
            return ruling.refusal
        if ruling.decision is not PolicyDecision.ASK:
            return None
        if not services.config.interactive:
            return refusal.NOBODY_CAN_APPROVE
        request = RequestApproval(
            turn_id=self.plan.turn_id,
            approval_id=new_id(),
            call_id=call.id,
            arguments=dump(dict(entry.arguments)).decode(),
            spec=tool.spec,
            verdicts=verdicts,
        )
        await self._earlier_asked(entry)
        ruling = await self.port.report(request)
        entry.asked.set()
        if ruling.decision is PolicyDecision.DENIED:
            return str(ruling.refusal)
        if ruling.decision is not PolicyDecision.ASK:
            return None
        return await self._await_consent(request)

    async def _earlier_asked(self, entry: _Call) -> None:
        for earlier in self._entries[: self._entries.index(entry)]:
            await earlier.asked.wait()

    async def _await_consent(self, request: RequestApproval) -> str | None:
        """Wait for the answer; a call that got consent is still denied if the mode of now denies it."""
        config, approval_id, turn_id = self.services.config, request.approval_id, request.turn_id
        limit = config.approval_timeout
        outcome: ApprovalOutcome | None = None
        with trio.move_on_after(math.inf if limit is None else limit):
            outcome = await self.port.wait(AwaitAnswer(turn_id, approval_id))
        if outcome is None:
            if await self.port.report(ResolveApproval(approval_id, ApprovalOutcome.TIMED_OUT)):
                return refusal.NOBODY_ANSWERED
            outcome = await self.port.wait(AwaitAnswer(turn_id, approval_id))
        if outcome is ApprovalOutcome.DENIED:
            return refusal.APPROVAL_DENIED
        ruling = consent.decide(self._mode, request.spec, config.denied_tools, request.verdicts)
        is_denied = outcome is ApprovalOutcome.POLICY_DENIED or ruling.decision is PolicyDecision.DENIED
        return ruling.refusal if is_denied else None

    # -- running -----------------------------------------------------------------------------------------------------

    async def _run(self, entry: _Call) -> ToolOutput:
        """Run a call that nothing refused; its failure is its output."""
        tool, call = entry.tool, entry.call
        assert tool is not None
        self.port.publish(ToolStarted(call.id, tool.spec.name))
        if isinstance(tool, HostRunTool):
            output = await self._ask_host(entry, tool)
        elif isinstance(tool, GoalTool):
            output = await tool.ask(self.port, self.plan.turn_id, entry.arguments)
        else:
            output = await self._run_here(entry, tool)
        await self.services.hooks.tool_called(
            self._context(entry), tool.spec.name, entry.arguments, output, self.port.publish
        )
        return output

    async def _run_here(self, entry: _Call, tool: Tool) -> ToolOutput:
        """Run a tool of this process within its time. What one returns that was cancelled is dropped."""
        limit = tool.spec.timeout or self.services.config.tool_timeout or math.inf
        began = trio.current_time()
        output: object = None
        scope = trio.CancelScope(deadline=began + limit)
        try:
            with cancel_alone(), scope:
                output = await tool.run(self._context(entry), copy.deepcopy(entry.arguments))
        except Exception as error:  # what a tool's nursery raises may come with a Cancelled that the scope takes out
            log.warning("the tool %s failed", tool.spec.name, exc_info=error)
            output = failure(error)
        finally:
            self._watch_cleanup(tool, min(began + limit, self.cut_at()))
        if trio.current_effective_deadline() == -math.inf:
            await trio.lowlevel.checkpoint()
        if scope.cancel_called:
            return ToolOutput(f"timed out after {limit:g} s", is_error=True)
        return _checked(output)

    def _watch_cleanup(self, tool: Tool, ended_by: float) -> None:
        over = trio.current_time() - ended_by
        if over > self.services.config.deadlines.tool_cancel_grace:
            log.warning("the tool %s took %.1f s to clean up after it was cancelled", tool.spec.name, over)

    async def _ask_host(self, entry: _Call, tool: HostRunTool) -> ToolOutput:
        request_id, turn_id = new_id(), self.plan.turn_id
        request = RequestExternal(
            turn_id=turn_id,
            request_id=request_id,
            call_id=entry.call.id,
            name=tool.spec.name,
            arguments=dump(dict(entry.arguments)).decode(),
        )
        await self.port.report(request)
        output: ToolOutput | None = None
        with trio.move_on_after(math.inf if tool.timeout is None else tool.timeout):
            output = await self.port.wait(AwaitAnswer(turn_id, request_id))
        if output is None:
            if await self.port.report(ResolveExternal(request_id, ExternalOutcome.TIMED_OUT)):
                return ToolOutput(f"timed out after {tool.timeout:g} s", is_error=True)
            output = await self.port.wait(AwaitAnswer(turn_id, request_id))
        return output

    def _finish(self, entry: _Call, output: ToolOutput) -> None:
        """Make the one result of a call."""
        call, cut = entry.call, capped(output.text)
        if cut.cut:
            self.port.publish(ToolOutputTruncated(call.id, cut.lines, cut.characters))
        entry.result = ToolResult(call.id, call.name, cut.text, output.is_error, output.display_payload, output.images)
        self.port.publish(ToolFinished(call.id, output.is_error))
        entry.finished.set()

    def _context(self, entry: _Call) -> ToolContext:
        workspace = self.plan.workspace
        return ToolContext(
            thread_id=self.thread_id,
            turn_id=self.plan.turn_id,
            call_id=entry.call.id,
            workspace=None if workspace is None else Path(workspace),
            policy_mode=self._mode,
            deadline=None if self.deadline == math.inf else self.deadline,
            report_progress=lambda text: self.port.publish(ToolProgress(entry.call.id, str(text))),
        )

    @property
    def _mode(self) -> PolicyMode:
        return self.services.policy_modes.of(self.thread_id)


def _checked(output: object) -> ToolOutput:
    """Return what a tool gave, if it is an output that can be stored; else the error result that says why not."""
    if not isinstance(output, ToolOutput):
        return ToolOutput(f"TypeError: the tool gave {type(output).__name__}, not ToolOutput", is_error=True)
    try:
        payload = plain(output.display_payload)
    except REFUSALS as error:
        return ToolOutput(f"TypeError: the tool gave a display_payload that is not JSON: {error}", is_error=True)
    if not all(isinstance(image, Image) for image in output.images):
        return ToolOutput("TypeError: the tool gave images that are not Image", is_error=True)
    return attrs.evolve(output, is_error=bool(output.is_error), display_payload=payload)
