"""Threads in one SQLite database."""

from roder_trio.stores.sqlite.store import SqliteThreadStore

__all__ = ["SqliteThreadStore"]
