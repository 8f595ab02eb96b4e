"""A store of one journal file per thread, for people who want to read their threads."""

from roder_trio.stores.jsonl.store import JsonlThreadStore

__all__ = ["JsonlThreadStore"]
