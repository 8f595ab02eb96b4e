"""The program `roder-trio`: talks to a model in threads that stay on disk, and shows them.

Exit codes: 0 the turn completed, 1 it failed or was interrupted or the command could not be carried out, 2 the command
was called wrongly. Answers and results go to stdout, everything else to stderr.
"""

import os
import sys
from contextlib import AbstractAsyncContextManager
from typing import Annotated

import platformdirs
from cyclopts import App, CycloptsError, Parameter
from rich.text import Text

import roder_trio as rt
from roder_trio import stores
from roder_trio.cli.answer import Answer, JsonLines
from roder_trio.cli.choice import Flags, configured, fallback
from roder_trio.cli.conversation import converse
from roder_trio.cli.discovery import find_local_server
from roder_trio.cli.failure import DONE, FAILED, UsageError, explained
from roder_trio.cli.report import THREAD_HEADINGS, USAGE_HEADINGS, thread_cells, turn_words, usage_cells
from roder_trio.cli.signals import open_interrupts
from roder_trio.cli.terminal import Terminal, one_line

STORE_VARIABLE = "RODER_TRIO_STORE"
PAGE = 50

Store = Annotated[
    str | None, Parameter(help=f"The folder of the threads; else ${STORE_VARIABLE}, else your data folder.")
]


def _misuse(error: CycloptsError) -> Text:
    return Text(f"roder-trio: {one_line(str(error))}", style="red")


app = App(
    name="roder-trio",
    help="Talk to a language model in threads that stay on disk.",
    backend="trio",
    error_formatter=_misuse,
)
threads = App(name="threads", help="Show the threads on disk.")
app.command(threads)


@app.command
async def run(
    prompt: str,
    /,
    *,
    thread: Annotated[str | None, Parameter(help="Go on with this thread instead of a new one.")] = None,
    provider: Annotated[str | None, Parameter(help="Who answers: offline, openai, ollama, lmstudio ...")] = None,
    model: Annotated[str | None, Parameter(help="The model to ask.")] = None,
    base_url: Annotated[str | None, Parameter(help="An OpenAI-compatible server, such as http://host/v1.")] = None,
    api_key_env: Annotated[str | None, Parameter(help="The environment variable that holds the key.")] = None,
    store: Store = None,
    json: Annotated[bool, Parameter(negative="", help="Print each event as a line of JSON.")] = False,
) -> int:
    """Send PROMPT and stream the answer.

    Ctrl-C interrupts it and keeps what was said; a second one ends the program.
    """
    terminal = Terminal.standard()
    flags = Flags(provider=provider, model=model, base_url=base_url, api_key_env=api_key_env)
    view = JsonLines(terminal) if json else Answer(terminal)
    async with open_interrupts() as interrupts:
        with explained(terminal, "run the turn") as result:
            if not prompt.strip():
                raise UsageError("the prompt is empty; say what to ask")
            choice = configured(flags, os.environ) or fallback(flags, await find_local_server())
            for secret in choice.secrets:
                terminal.hide(secret)
            terminal.note(f"{choice.provider}: {choice.because}")
            completed = await converse(
                terminal, view, interrupts, choice, folder=store_folder(store), thread=thread, prompt=prompt
            )
            result.code = DONE if completed else FAILED
    return result.code


@threads.command(name="list")
async def list_threads(
    *,
    limit: Annotated[int, Parameter(help="How many at most.")] = PAGE,
    cursor: Annotated[str | None, Parameter(help="Where the page before ended.")] = None,
    store: Store = None,
) -> int:
    """List threads, the one that was used last first."""
    terminal = Terminal.standard()
    with explained(terminal, "list the threads") as result:
        async with _reader(store) as runtime:
            page = await runtime.list_threads(limit=limit, cursor=cursor)
        terminal.table(THREAD_HEADINGS, map(thread_cells, page.threads))
        for thread_id in page.damaged:
            terminal.note(f"thread {thread_id} is damaged and not listed")
        if page.next_cursor is not None:
            terminal.note(f"there are more: --cursor {page.next_cursor}")
        result.code = DONE
    return result.code


@threads.command
async def show(thread: str, /, *, store: Store = None) -> int:
    """Print what was said in THREAD."""
    terminal = Terminal.standard()
    with explained(terminal, "show the thread") as result:
        snapshot = await _load(thread, store)
        for turn in snapshot.turns:
            for line in turn_words(turn):
                terminal.line(line)
        result.code = DONE
    return result.code


@threads.command
async def usage(thread: str, /, *, store: Store = None) -> int:
    """Print the tokens that THREAD used, by turn and in total."""
    terminal = Terminal.standard()
    with explained(terminal, "show the usage") as result:
        snapshot = await _load(thread, store)
        total = snapshot.metadata.usage if snapshot.metadata else None
        rows = [(turn.turn_id, turn.status.value, *usage_cells(turn.usage)) for turn in snapshot.turns]
        terminal.table(("turn", "status", *USAGE_HEADINGS), [*rows, ("all", "", *usage_cells(total))])
        result.code = DONE
    return result.code


async def _load(thread: str, store: str | None) -> rt.ThreadSnapshot:
    async with _reader(store) as runtime:
        snapshot = await runtime.load_thread(thread)
    if snapshot is None:
        raise rt.ThreadNotFound(thread)
    return snapshot


def _reader(store: str | None) -> AbstractAsyncContextManager[rt.Runtime]:
    return rt.open_runtime(store=stores.JsonlThreadStore(store_folder(store), read_only=True))


def store_folder(store: str | None) -> str:
    """Return the folder of the threads: the flag's, else the environment's, else one in the user's data folder."""
    named = store or os.environ.get(STORE_VARIABLE)
    return named or str(platformdirs.user_data_path("roder-trio", appauthor=False) / "threads")


def main() -> None:
    """Run the program and exit with its code."""
    try:
        app(sys.argv[1:])
    except BaseExceptionGroup as group:
        # A Ctrl-C while the program leaves: the nurseries that it passed have wrapped it.
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
        sys.exit(FAILED)
