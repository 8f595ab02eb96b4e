"""The command that compacts a thread's history now."""

from typing import Annotated

from cyclopts import Parameter

import roder_trio as rt
from roder_trio.cli.conversation import open_conversation
from roder_trio.cli.failure import DONE, explained
from roder_trio.cli.keyboard import Keyboard
from roder_trio.cli.options import MODEL_DEFAULTS, ModelOptions
from roder_trio.cli.report import usage_words
from roder_trio.cli.signals import open_interrupts
from roder_trio.cli.terminal import Terminal


async def compact(
    thread: str,
    /,
    *,
    hint: Annotated[str | None, Parameter(help="What must not get lost.")] = None,
    options: ModelOptions = MODEL_DEFAULTS,
) -> int:
    """Compact the history of THREAD now, so that later turns send less of it.

    Ctrl-C cancels it, and the thread is as before.
    """
    terminal = Terminal.standard()
    async with open_interrupts() as interrupts:
        with explained(terminal, "compact the thread") as result:
            chosen = options.on(thread)
            async with open_conversation(terminal, interrupts, chosen, Keyboard(), attended=False) as conversation:
                done = await conversation.runtime.compact_thread(thread, hint)
            terminal.line(compaction_words(done))
            if done.usage is not None:
                terminal.note(f"usage: {usage_words(done.usage)}")
            result.code = DONE
    return result.code


def compaction_words(done: rt.compaction.CompactionResult) -> str:
    """Say what a compaction did; its counts are estimates."""
    if not done.compacted:
        return f"not compacted ({done.reason}): about {done.tokens_before} tokens"
    return f"compacted ({done.strategy}): about {done.tokens_before} tokens before, {done.tokens_after} after"
