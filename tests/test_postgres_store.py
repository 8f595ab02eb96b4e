"""The store on PostgreSQL against its contract, on a real server."""

import pytest

import roder_trio as rt
from roder_trio import stores, testing
from roder_trio.testing._sample import Sample


async def test_the_store_keeps_the_contract(database: str, tenant: str) -> None:
    await testing.check_thread_store(lambda: stores.PostgresThreadStore(database, tenant, lease_ttl=3.5), shared=True)


async def test_calls_outside_of_open_are_refused(database: str, tenant: str) -> None:
    store = stores.PostgresThreadStore(database, tenant)
    with pytest.raises(rt.StoreClosed):
        await store.load_thread("t")
    async with store.open():
        await store.create_thread(Sample("t").metadata())
        with pytest.raises(rt.StorageError, match="opened once"):
            async with store.open():
                pass
    for call in (store.load_thread, store.claim_thread, store.archive_thread):
        with pytest.raises(rt.StoreClosed):
            await call("t")
    await store.release_thread("t")
