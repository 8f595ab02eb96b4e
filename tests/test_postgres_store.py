"""The store on PostgreSQL against its contract, on a real server.

No lease ends by itself while a check runs, but in the one that waits for that.
"""

import pytest

import roder_trio as rt
from roder_trio import stores, testing
from roder_trio.testing import _owners
from roder_trio.testing._sample import Sample
from roder_trio.testing.store import _run_all
from tests.postgres_support import ENDLESS, TTL


async def test_the_store_keeps_the_contract(database: str, tenant: str) -> None:
    await testing.check_thread_store(lambda: stores.PostgresThreadStore(database, tenant, lease_ttl=ENDLESS))


async def test_the_store_keeps_the_contract_of_owners(database: str, tenant: str) -> None:
    def make() -> rt.ThreadStore:
        return stores.PostgresThreadStore(database, tenant, lease_ttl=TTL)

    assert await _run_all(make, _owners.checks(make), reopen=True) == []


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
