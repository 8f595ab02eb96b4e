"""Work on a thread's goal, turn after turn, until it is complete, stopped or out of budget.

Each turn is asked for when the one before has ended, so nothing begins that nobody shows. Where the notes go to a
terminal, one line there tells how far the goal is; elsewhere a note tells it once a turn.
"""

from collections.abc import AsyncIterator

import attrs
import trio

import roder_trio as rt
from roder_trio import goals
from roder_trio.cli.conversation import Conversation
from roder_trio.cli.cost import with_cost
from roder_trio.cli.report import goal_words
from roder_trio.schema.event import TERMINAL_EVENTS

TICK = 1.0
"""Seconds after which the line that tells how far the goal is is shown anew."""

_WHY = {
    goals.GoalStatus.BUDGET_LIMITED: "raise its budget: roder-trio goal resume {} --budget TOKENS",
    goals.GoalStatus.USAGE_LIMITED: "once the provider takes requests again: roder-trio goal resume {}",
    goals.GoalStatus.PAUSED: "to go on: roder-trio goal resume {}",
    goals.GoalStatus.BLOCKED: "once what blocks it is out of the way: roder-trio goal resume {}",
    goals.GoalStatus.ACTIVE: "to go on: roder-trio goal resume {}",
}


async def pursue(conversation: Conversation, patch: goals.GoalPatch, message: str | None = None) -> bool:
    """Set the goal of the conversation's thread, on a new one if there is none yet, and work on it; True once complete.

    The first turn is `message`, if there is one. The first Ctrl-C interrupts the turn and pauses the goal. Cancelling
    leaves the turn to the runtime's end, which pauses the goal too. Raises RoderTrioError.
    """
    thread_id = await conversation.open_thread()
    goal = await conversation.runtime.thread_goal_set(thread_id, patch)
    if goal is None:
        conversation.terminal.error("the thread has no goal; give it one: roder-trio goal set THREAD OBJECTIVE")
        return False
    pursuit = _Pursuit(conversation, thread_id)
    with conversation.interrupts.calling(pursuit.stop):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pursuit.tick)
            await pursuit.work(message)
            nursery.cancel_scope.cancel()
    return await pursuit.finish()


@attrs.define(eq=False)
class _Pursuit:
    """The turns of one goal, as far as they went."""

    conversation: Conversation
    thread_id: str
    turns: int = 0
    turn_id: str | None = None
    stopped: bool = False
    """A Ctrl-C has asked for the end."""

    async def work(self, message: str | None) -> None:
        """Run turns until the goal goes on no more."""
        async with self.conversation.runtime.subscribe_events(thread_id=self.thread_id) as events:
            self.turn_id = await self._begin(message)
            while self.turn_id is not None:
                self.turns += 1
                await self._announce()
                await self._follow(events, self.turn_id)
                outcome = await self.conversation.runtime.wait_turn(self.thread_id, self.turn_id)
                await self.conversation.report(self.thread_id, outcome)
                self.turn_id = await self._begin(None) if outcome.status == "completed" else None

    async def stop(self) -> None:
        """Interrupt the turn that runs, which pauses the goal; between two turns pause it."""
        self.stopped = True
        if self.turn_id is not None:
            await self.conversation.interrupt(self.thread_id, self.turn_id)
        await trio.lowlevel.checkpoint()

    async def tick(self) -> None:
        """Show again and again how far the goal is. Never returns."""
        while True:
            if self.turns and self.conversation.terminal.is_live:
                self.conversation.terminal.progress(await self._words())
            await trio.sleep(TICK)

    async def finish(self) -> bool:
        """Tell how the goal stands now; True if it is complete."""
        terminal = self.conversation.terminal
        goal = await self.conversation.runtime.thread_goal_get(self.thread_id)
        if goal is None:
            terminal.note("the goal was cleared")
            return False
        turns = "1 turn" if self.turns == 1 else f"{self.turns} turns"
        used = with_cost(goal_words(goal), await self.conversation.runtime.thread_cost(self.thread_id, goal=True))
        terminal.note(f"goal {goal.status.value} after {turns}, {used}")
        if goal.status in _WHY:
            terminal.note(_WHY[goal.status].format(self.thread_id))
        return goal.status is goals.GoalStatus.COMPLETE

    async def _begin(self, message: str | None) -> str | None:
        conversation, runtime = self.conversation, self.conversation.runtime
        if self.stopped:
            await self._pause()
            return None
        if message is not None:
            turn_id: str | None = await conversation.start(self.thread_id, message)
        else:
            turn_id = await runtime.continue_goal(self.thread_id)
        if self.stopped and turn_id is not None:
            await conversation.interrupt(self.thread_id, turn_id)
        return turn_id

    async def _pause(self) -> None:
        goal = await self.conversation.runtime.thread_goal_get(self.thread_id)
        if goal is not None and goal.status is goals.GoalStatus.ACTIVE:
            pause = goals.GoalPatch(status=goals.GoalStatus.PAUSED)
            await self.conversation.runtime.thread_goal_set(self.thread_id, pause)

    async def _follow(self, events: AsyncIterator[rt.EventEnvelope], turn_id: str) -> None:
        """Show what happens on the thread until the turn's end."""
        async for envelope in events:
            self.conversation.show(envelope)
            if envelope.turn_id == turn_id and isinstance(envelope.event, TERMINAL_EVENTS):
                break
        self.conversation.view.close()

    async def _announce(self) -> None:
        terminal = self.conversation.terminal
        words = await self._words()
        if terminal.is_live:
            terminal.progress(words)
        else:
            terminal.note(words)

    async def _words(self) -> str:
        goal = await self.conversation.runtime.thread_goal_get(self.thread_id)
        return "no goal" if goal is None else f"turn {self.turns}, {goal_words(goal)}"
