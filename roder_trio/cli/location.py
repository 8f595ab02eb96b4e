"""Which store a path or a URL means."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import roder_trio as rt
from roder_trio import stores
from roder_trio.cli.failure import UsageError
from roder_trio.cli.options import store_place
from roder_trio.cli.terminal import Terminal

DATABASE_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})
SERVER_SCHEMES = frozenset({"postgres", "postgresql"})


def store_at(name: str, *, read_only: bool = False, migrate: bool = False) -> rt.ThreadStore:
    """Make the store that lies at `name`: a URL of PostgreSQL, a database file, or a folder of journals.

    What doesn't exist yet is a database if its name ends like one. `migrate` brings a server's schema up to date; a
    file's is brought up to date whenever it is opened for writing. Raises UsageError for a URL of anything else.
    """
    try:
        if urlsplit(name).scheme in SERVER_SCHEMES:
            return stores.PostgresThreadStore(name, migrate=migrate)
    except ValueError as error:
        raise UsageError(f"The store can't be reached: {error}.") from error
    if "://" in name:
        raise UsageError("The store can't be at that URL; give postgresql://host/database, a .db file, or a folder.")
    path = Path(name)
    if path.is_file() or (path.suffix in DATABASE_SUFFIXES and not path.is_dir()):
        return stores.SqliteThreadStore(path, read_only=read_only)
    return stores.JsonlThreadStore(path, read_only=read_only)


def password_in(name: str) -> str | None:
    """The password of a URL, which is never shown."""
    try:
        return urlsplit(name).password
    except ValueError:
        return None


@asynccontextmanager
async def open_stored(terminal: Terminal, store: str | None, *, read_only: bool = False) -> AsyncIterator[rt.Runtime]:
    """Open a runtime that only looks after what is stored; the store's password is shown nowhere."""
    place = store_place(store)
    terminal.hide(password_in(place))
    async with rt.open_runtime(store=store_at(place, read_only=read_only)) as runtime:
        yield runtime
