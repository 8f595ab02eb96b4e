"""One turn on a thread on disk, shown while it runs."""

from functools import partial

import trio

import roder_trio as rt
from roder_trio import stores
from roder_trio.cli.answer import View
from roder_trio.cli.choice import Choice, make_engine
from roder_trio.cli.report import usage_words
from roder_trio.cli.signals import Interrupts
from roder_trio.cli.terminal import Terminal


async def converse(
    terminal: Terminal,
    view: View,
    interrupts: Interrupts,
    choice: Choice,
    *,
    folder: str,
    thread: str | None,
    prompt: str,
) -> bool:
    """Run one turn on `thread`, or on a new one, and tell how it ended; True if it completed.

    Cancelling it interrupts the turn, and what was said by then stays in the thread. Raises RoderTrioError.
    """
    engine = make_engine(choice)
    async with rt.open_runtime(engines=[engine], store=stores.JsonlThreadStore(folder)) as runtime:
        thread_id = thread or (await runtime.create_thread()).thread_id
        async with runtime.turn(thread_id, prompt, provider=choice.provider, model=choice.model) as turn:
            with interrupts.calling(partial(_interrupt, terminal, runtime, thread_id, turn.turn_id)):
                async for envelope in turn:
                    view.show(envelope)
        view.close()
        metadata = await runtime.load_metadata(thread_id)
    _tell(terminal, turn.outcome)
    total = None if metadata is None else metadata.usage
    terminal.note(f"usage: {usage_words(turn.outcome.usage)}; the thread: {usage_words(total)}")
    terminal.note(f"thread: {thread_id}")
    return turn.outcome.status == "completed"


async def _interrupt(terminal: Terminal, runtime: rt.Runtime, thread_id: str, turn_id: str) -> None:
    try:
        await runtime.interrupt_turn(thread_id, turn_id)
    except rt.RoderTrioError as error:
        terminal.error(f"can't interrupt the turn, Ctrl-C again ends the program: {error}")
        await trio.lowlevel.checkpoint()


def _tell(terminal: Terminal, outcome: rt.TurnOutcome) -> None:
    if outcome.status == "failed":
        terminal.error(f"the turn failed ({outcome.error_kind}): {outcome.error}")
    elif outcome.status == "interrupted":
        terminal.note(f"interrupted ({outcome.reason}); what was said is kept in the thread")
    elif outcome.finish_reason not in {None, "stop"}:
        terminal.note(f"the model stopped early: {outcome.finish_reason}")
