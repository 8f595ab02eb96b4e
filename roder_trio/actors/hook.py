"""Asking hooks and policies, each within its time; what they fail at is told, and never stops more than it may."""

import copy
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import attrs
import trio

from roder_trio.actors._supervisor import cancel_alone
from roder_trio.actors.cost import CostOf, EndedTurn
from roder_trio.codec.text import REFUSALS, dump, plain_object
from roder_trio.ports import Hook, Policy
from roder_trio.schema.config import Deadlines
from roder_trio.schema.event import Event, HookFailed
from roder_trio.schema.policy import Deny, PolicyDecision, Rewrite, Verdict
from roder_trio.schema.tool import ToolContext, ToolOutput, ToolSpec
from roder_trio.schema.transcript import UserMessage

log = logging.getLogger(__name__)

MAX_MESSAGE = 300
TURN_ENDED_BACKLOG = 4096

Tell = Callable[[Event], None]
Point = Literal["compaction_starting", "compaction_finished"]


@attrs.frozen
class Called:
    """What the hooks made of a call: denied, or rewritten, or left as it was."""

    denied: Deny | None = None
    flaw: str | None = None
    """Why a rewrite can't be arguments."""
    rewritten: tuple[tuple[str, str], ...] = ()
    """The hooks that rewrote the arguments, in order, each with its JSON text."""


class Hooks:
    """All hooks of a runtime, in the order of registration.

    A cancel passes through; all else that a hook raises, or an overrun, is told as `HookFailed` and raised nowhere.
    """

    def __init__(self, hooks: Sequence[Hook], deadlines: Deadlines, cost_of: CostOf) -> None:
        self._hooks = tuple(hooks)
        self._seconds = deadlines.hook_timeout
        self._cost_of = cost_of
        self._send, self._receive = trio.open_memory_channel[tuple[EndedTurn, Tell]](TURN_ENDED_BACKLOG)
        self._done = trio.Event()

    async def turn_starting(self, thread_id: str, turn_id: str, message: UserMessage, tell: Tell) -> str | None:
        """Return the context that the hooks add to a turn's requests; None if they add none."""
        texts = []
        for hook in self._hooks:
            asked = partial(hook.turn_starting, thread_id, turn_id, message)
            text = await self._ask(hook, "turn_starting", asked, tell)
            if isinstance(text, str) and text:
                texts.append(text)
            elif text is not None and not isinstance(text, str):
                tell(_nonsense(hook, "turn_starting", text))
        return "\n\n".join(texts) or None

    async def tool_calling(self, context: ToolContext, name: str, arguments: Mapping[str, Any], tell: Tell) -> Called:
        """Ask the hooks about a call, each seeing the rewrite of the one before."""
        rewritten: list[tuple[str, str]] = []
        for hook in self._hooks:
            asked = partial(hook.tool_calling, context, name, copy.deepcopy(arguments))
            answer = await self._ask(hook, "tool_calling", asked, tell)
            match answer:
                case Deny():
                    return Called(answer)
                case Rewrite(changed) if isinstance(changed, Mapping):
                    try:
                        arguments = plain_object(changed)
                    except REFUSALS as error:
                        return Called(flaw=f"{type(hook).__name__} rewrote them to what isn't JSON: {error}")
                    rewritten.append((type(hook).__name__, dump(arguments).decode()))
                case None:
                    pass
                case _:
                    tell(_nonsense(hook, "tool_calling", answer))
        return Called(rewritten=tuple(rewritten))

    async def tool_called(
        self, context: ToolContext, name: str, arguments: Mapping[str, Any], output: ToolOutput, tell: Tell
    ) -> None:
        """Tell the hooks how a call ended."""
        for hook in self._hooks:
            shown = copy.deepcopy((arguments, output))
            await self._ask(hook, "tool_called", partial(hook.tool_called, context, name, *shown), tell)

    async def compaction(self, point: Point, event: Event, tell: Tell) -> None:
        """Tell the hooks that a compaction begins or has ended."""
        for hook in self._hooks:
            await self._ask(hook, point, partial(getattr(hook, point), event), tell)

    # -- after a turn ------------------------------------------------------------------------------------------------

    def turn_ended(self, ended: EndedTurn, tell: Tell) -> None:
        """Have the hooks told that a turn ended, from a task of the runtime, without waiting."""
        if not self._hooks:
            return
        try:
            self._send.send_nowait((ended, tell))
        except (trio.WouldBlock, trio.ClosedResourceError):
            tell(HookFailed("hooks", "turn_ended", "too many ended turns wait for their hooks"))

    async def run(self) -> None:
        """Tell of ended turns, in order, until the runtime is left and all was told."""
        async with self._receive:
            async for ended, tell in self._receive:
                outcome = ended.priced(await self._cost_of(ended.bills or ()))
                for hook in self._hooks:
                    await self._ask(hook, "turn_ended", partial(hook.turn_ended, outcome), tell)
        self._done.set()

    async def flushed(self) -> None:
        """No further turn ends; wait until all was told."""
        self._send.close()
        await self._done.wait()

    async def _ask(self, hook: Hook, point: str, ask: Callable[[], Awaitable[Any]], tell: Tell) -> Any:
        message = f"it took longer than {self._seconds:g} s"
        try:
            with cancel_alone(), trio.move_on_after(self._seconds):
                return await ask()
        except Exception as error:  # what a nursery raises may come with a Cancelled that the scope takes out
            log.warning("a hook failed at %s", point, exc_info=error)
            message = f"{type(error).__name__}: {error}"
        tell(HookFailed(type(hook).__name__, point, message[:MAX_MESSAGE]))
        return None


class Policies:
    """All policies of a runtime, in the order of registration. A cancel passes through, and nothing else is raised."""

    def __init__(self, policies: Sequence[Policy], deadlines: Deadlines) -> None:
        self._policies = tuple(policies)
        self._seconds = deadlines.policy_timeout

    async def verdicts(self, context: ToolContext, spec: ToolSpec, arguments: Mapping[str, Any]) -> tuple[Verdict, ...]:
        """Ask every policy about a call, once. One that fails or overruns denies it."""
        found = []
        for policy in self._policies:
            verdict = await self._ask(policy, context, spec, arguments)
            if verdict is not None:
                found.append(verdict)
        return tuple(found)

    async def _ask(
        self, policy: Policy, context: ToolContext, spec: ToolSpec, arguments: Mapping[str, Any]
    ) -> Verdict | None:
        name = type(policy).__name__
        try:
            with cancel_alone(), trio.move_on_after(self._seconds):
                verdict = await policy.decide(context, spec, copy.deepcopy(arguments))
                if verdict is None or isinstance(verdict, Verdict):
                    return verdict
                return Verdict(PolicyDecision.DENIED, f"the policy {name} answered nonsense")
        except Exception as error:
            log.warning("a policy failed", exc_info=error)
            return Verdict(PolicyDecision.DENIED, f"the policy {name} failed: {type(error).__name__}")
        return Verdict(PolicyDecision.DENIED, f"the policy {name} took longer than {self._seconds:g} s")


def _nonsense(hook: Hook, point: str, answer: object) -> HookFailed:
    return HookFailed(type(hook).__name__, point, f"it answered with {type(answer).__name__}")
