"""Locks of stores as a child process holds them that was forked and has not become its program yet."""

import os
from contextlib import contextmanager

from roder_trio.stores._lock import take_lock


@contextmanager
def lock_copies(monkeypatch, module):
    """Keep a copy of each lock that the store of `module` takes, until the block is left."""
    copies = []

    def copied(path):
        descriptor = take_lock(path)
        copies.append(os.dup(descriptor))
        return descriptor

    monkeypatch.setattr(f"{module}.take_lock", copied)
    try:
        yield
    finally:
        for copy in copies:
            os.close(copy)
