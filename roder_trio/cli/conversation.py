"""Turns on a thread on disk, shown while they run, with the tools of the workspace and questions for consent."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

import roder_trio as rt
from roder_trio.cli.answer import Answer, JsonLines, View
from roder_trio.cli.choice import Choice, configured, fallback, make_engine
from roder_trio.cli.consent import Questions
from roder_trio.cli.cost import with_cost
from roder_trio.cli.discovery import find_local_server
from roder_trio.cli.keyboard import Keyboard
from roder_trio.cli.location import password_in, store_at
from roder_trio.cli.options import Options, store_place
from roder_trio.cli.report import usage_words
from roder_trio.cli.signals import Interrupts
from roder_trio.cli.terminal import Terminal


@attrs.define(eq=False, kw_only=True)
class Conversation:
    """A thread that turns are run on, one at a time; `turn_id` is that of the running one."""

    terminal: Terminal
    view: View
    interrupts: Interrupts
    runtime: rt.Runtime
    questions: Questions
    choice: Choice
    workspace: str
    thread_id: str | None
    turn_id: str | None = None

    async def open_thread(self) -> str:
        """Return the thread; a new one if there is none yet. Raises StorageError."""
        if self.thread_id is None:
            self.thread_id = (await self.runtime.create_thread()).thread_id
        else:
            await trio.lowlevel.checkpoint()
        return self.thread_id

    async def say(self, message: str) -> bool:
        """Run one turn, on a new thread if there is none yet, and tell how it ended; True if it completed.

        Cancelling it interrupts the turn, and what was said by then stays in the thread. Raises RoderTrioError.
        """
        thread_id, choice = await self.open_thread(), self.choice
        async with self.runtime.turn(
            thread_id, message, provider=choice.provider, model=choice.model, workspace=self.workspace
        ) as turn:
            try:
                self.turn_id = turn.turn_id
                with self.interrupts.calling(partial(self.interrupt, thread_id, turn.turn_id)):
                    await self._follow(turn)
            finally:
                self.turn_id = None
        await self.report(thread_id, turn.outcome)
        return turn.outcome.status == "completed"

    async def start(self, thread_id: str, message: str) -> str:
        """Begin a turn and return its id, without waiting for its end. Raises as `Runtime.start_turn`."""
        choice = self.choice
        return await self.runtime.start_turn(
            thread_id, message, provider=choice.provider, model=choice.model, workspace=self.workspace
        )

    @asynccontextmanager
    async def answering(self, keyboard: Keyboard) -> AsyncIterator[None]:
        """Have questions for consent answered at the keyboard, while the block is open."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.questions.attend, keyboard)
            yield
            nursery.cancel_scope.cancel()

    def show(self, envelope: rt.EventEnvelope) -> None:
        """Show one event, and take note of what it asks."""
        self.view.show(envelope)
        self.questions.hear(envelope.event)

    async def interrupt(self, thread_id: str, turn_id: str) -> None:
        """Interrupt a turn; that it can't be is told."""
        try:
            await self.runtime.interrupt_turn(thread_id, turn_id)
        except rt.RoderTrioError as error:
            self.terminal.error(f"can't interrupt the turn, Ctrl-C again ends the program: {error}")
            await trio.lowlevel.checkpoint()

    async def report(self, thread_id: str, outcome: rt.TurnOutcome) -> None:
        """Tell how a turn ended, and what it and the thread used. Raises RoderTrioError."""
        self._tell(outcome)
        metadata = await self.runtime.load_metadata(thread_id)
        total = None if metadata is None else metadata.usage
        used = with_cost(usage_words(outcome.usage), rt.Cost(outcome.cost, outcome.known_cost))
        of_all = with_cost(usage_words(total), await self.runtime.thread_cost(thread_id))
        self.terminal.note(f"usage: {used}; the thread: {of_all}")

    async def _follow(self, turn: rt.Turn) -> None:
        async for envelope in turn:
            self.show(envelope)
        self.view.close()

    def _tell(self, outcome: rt.TurnOutcome) -> None:
        for steer in outcome.undelivered_steers:
            self.terminal.note(f"the model was not told: {steer.message.text}")
        if outcome.status == "failed":
            self.terminal.error(f"the turn failed ({outcome.error_kind}): {outcome.error}")
        elif outcome.status == "interrupted":
            self.terminal.note(f"interrupted ({outcome.reason}); what was said is kept in the thread")
        elif outcome.finish_reason not in {None, "stop"}:
            self.terminal.note(f"the model stopped early: {outcome.finish_reason}")


@asynccontextmanager
async def open_conversation(
    terminal: Terminal, interrupts: Interrupts, options: Options, keyboard: Keyboard, *, attended: bool
) -> AsyncIterator[Conversation]:
    """Open a runtime as the options say. If it is not `attended`, what needs consent is refused.

    Raises UsageError, RoderTrioError.
    """
    workspace = options.folder()
    choice = configured(options.flags, os.environ) or fallback(options.flags, await find_local_server())
    place = store_place(options.store)
    for secret in (*choice.secrets, password_in(place)):
        terminal.hide(secret)
    terminal.note(f"{choice.provider}: {choice.because}")
    engine = make_engine(choice)
    async with rt.open_runtime(
        engines=[engine],
        store=store_at(place),
        tools=options.tools_for(engine),
        config=rt.RuntimeConfig(
            default_model=choice.model,
            workspace=workspace,
            policy_mode=options.policy,
            interactive=attended,
            goals=rt.GoalConfig(auto_continue=False, model_tools=not options.no_tools),
        ),
    ) as runtime:
        yield Conversation(
            terminal=terminal,
            view=JsonLines(terminal) if options.json else Answer(terminal),
            interrupts=interrupts,
            runtime=runtime,
            questions=Questions(terminal, runtime, keyboard.forget),
            choice=choice,
            workspace=workspace,
            thread_id=options.thread,
        )
