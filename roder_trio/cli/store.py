"""The commands that look after a store as a whole: migrate, check, export, import, copy.

Exit codes as everywhere: 0 done, 1 something failed or doesn't fit, 2 called wrongly. Results go to stdout.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from json import dumps
from typing import Annotated, Any

import attrs
from cyclopts import App, Parameter

import roder_trio as rt
from roder_trio import stores
from roder_trio.cli.failure import DONE, FAILED, Result, UsageError, explained
from roder_trio.cli.location import password_in, store_at
from roder_trio.cli.options import Store, store_place
from roder_trio.cli.terminal import Terminal, escape_json
from roder_trio.stores.transfer import check_store

store = App(name="store", help="Look after a store: check, move and copy what is in it.")

Json = Annotated[bool, Parameter(negative="", help="Print the result as one line of JSON.")]
Place = Annotated[str, Parameter(help="A folder of journals, a database file, or a URL postgresql://...")]


@store.command
async def migrate(*, store: Store = None) -> int:
    """Bring the store's schema up to date. Stores in files do so by themselves when they are used."""
    with _command("migrate the store") as (terminal, result):
        async with _opened(terminal, store_place(store), migrate=True):
            terminal.line("the store is up to date")
        result.code = DONE
    return result.code


@store.command
async def check(*, store: Store = None, json: Json = False) -> int:
    """Check that metadata, turns, goals and kept states follow from the logs, thread by thread, changing nothing."""
    with _command("check the store") as (terminal, result):
        async with _opened(terminal, store_place(store), read_only=True) as opened:
            found = await check_store(opened)
        if json:
            _print_json(terminal, attrs.asdict(found))
        else:
            _print_failures(terminal, found.failures)
            wrong = f"{len(found.failures)} are wrong" if found.failures else "all are as their logs say"
            terminal.line(
                f"{found.threads} threads and {found.archived} archived ones with {found.turns} turns "
                f"and {found.records} records: {wrong}"
            )
        result.code = FAILED if found.failures else DONE
    return result.code


@store.command
async def export(
    thread: str,
    file: str,
    /,
    *,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace FILE if there is one.")] = False,
    store: Store = None,
) -> int:
    """Write THREAD, active or archived, to FILE, from which any store can import it."""
    with _command("export the thread") as (terminal, result):
        async with _opened(terminal, store_place(store), read_only=True) as opened:
            await stores.export_thread(opened, thread, file, overwrite=overwrite)
        terminal.note(f"thread {thread} was written to {file}")
        result.code = DONE
    return result.code


@store.command(name="import")
async def import_(
    file: str,
    /,
    *,
    new_id: Annotated[str | None, Parameter(help="Give the thread this id instead of its own.")] = None,
    store: Store = None,
) -> int:
    """Bring the thread in FILE into the store, and print its id. Again, it adds nothing."""
    with _command("import the thread") as (terminal, result):
        async with _opened(terminal, store_place(store)) as opened:
            try:
                imported = await stores.import_thread(opened, file, new_id)
            except ValueError as error:
                raise UsageError(f"The thread can't be imported: {error}.") from error
        terminal.line(imported.thread_id)
        result.code = DONE
    return result.code


@store.command
async def import_roder(directory: str, /, *, store: Store = None, json: Json = False) -> int:
    """Bring the thread directories of Roder in DIRECTORY, and those archived beside it, into the store."""
    with _command("import the threads of Roder") as (terminal, result):
        async with _opened(terminal, store_place(store)) as opened:
            report = await stores.import_roder(directory, opened)
        if json:
            _print_json(terminal, attrs.asdict(report))
        else:
            for warning in report.warnings:
                terminal.note(f"warning: {warning}")
            _print_failures(terminal, report.failed)
            terminal.line(
                f"{len(report.imported)} threads imported, {len(report.skipped)} there already, "
                f"{len(report.failed)} failed"
            )
        result.code = FAILED if report.failed else DONE
    return result.code


@store.command
async def copy(source: Place, target: Place, /, *, json: Json = False) -> int:
    """Copy all threads, archived ones too, from the store SOURCE into the store TARGET. Again, it adds what is new."""
    with _command("copy the store") as (terminal, result):
        async with (
            _opened(terminal, source, read_only=True) as one,
            _opened(terminal, target) as other,
        ):
            report = await stores.copy_store(one, other)
        if json:
            _print_json(terminal, attrs.asdict(report))
        else:
            _print_failures(terminal, report.failed)
            terminal.line(f"{len(report.copied)} threads copied, {len(report.failed)} failed")
        result.code = FAILED if report.failed else DONE
    return result.code


@contextmanager
def _command(what: str) -> Iterator[tuple[Terminal, Result]]:
    terminal = Terminal.standard()
    with explained(terminal, what) as result:
        yield terminal, result


@asynccontextmanager
async def _opened(terminal: Terminal, name: str, **options: bool) -> AsyncIterator[rt.ThreadStore]:
    """Open the store at `name`, whose password is shown nowhere."""
    terminal.hide(password_in(name))
    opened = store_at(name, **options)
    async with opened.open():
        yield opened


def _print_failures(terminal: Terminal, failures: Mapping[str, str]) -> None:
    for name, reason in failures.items():
        terminal.line(f"{name}: {reason}")


def _print_json(terminal: Terminal, fields: Mapping[str, Any]) -> None:
    terminal.line(escape_json(dumps(fields, ensure_ascii=False)))
