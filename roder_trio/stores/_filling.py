"""A thread that is being filled from elsewhere, owned for as long as that takes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId

CLEANUP = 5.0
"""Seconds for letting go of the thread."""


@asynccontextmanager
async def filling(store: ThreadStore, thread_id: ThreadId) -> AsyncIterator[None]:
    """Own a thread that exists while the block appends to it. Raises StorageError."""
    await store.claim_thread(thread_id)
    try:
        yield
    finally:
        with trio.move_on_after(CLEANUP, shield=True):
            await store.release_thread(thread_id)
