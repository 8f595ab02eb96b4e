"""`check_thread_store` with several owners: it passes a store that keeps the rules, and names what another breaks."""

import re
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
import trio.testing

import roder_trio as rt
from roder_trio.stores import MemoryThreadStore
from roder_trio.testing import FaultyStore, check_thread_store

TTL = 30.0


class Hub:
    """What several owners share: the threads, and who owns which until when."""

    def __init__(self):
        self.inner = MemoryThreadStore()
        self.leases = {}


class Owner(FaultyStore):
    """A store that keeps the rules; its leases are renewed while it is open."""

    def __init__(self, hub):
        super().__init__(hub.inner)
        self.hub = hub
        self.owner = str(uuid4())
        self.live = False

    @asynccontextmanager
    async def open(self):
        self.live = True
        yield
        self.live = False
        for thread_id in [key for key, (owner, _) in self.hub.leases.items() if owner is self]:
            self.give_up(thread_id)

    def ends_at(self, taken_at):
        return trio.current_time() + TTL if self.live else taken_at + TTL

    def give_up(self, thread_id):
        self.hub.leases.pop(thread_id, None)

    def check(self, thread_id):
        owner, taken_at = self.hub.leases.get(thread_id, (self, 0.0))
        left = owner.ends_at(taken_at) - trio.current_time()
        if owner is not self and left > 0:
            raise rt.ThreadOwnedElsewhere(owner.owner, left)

    def take(self, thread_id):
        self.check(thread_id)
        self.hub.leases[thread_id] = (self, trio.current_time())

    async def create_thread(self, metadata):
        known = await self.inner.load_metadata(metadata.thread_id)
        created = await super().create_thread(metadata)
        if known is None:
            self.take(metadata.thread_id)
        return created

    async def claim_thread(self, thread_id):
        await trio.lowlevel.checkpoint()
        self.take(thread_id)

    async def release_thread(self, thread_id):
        await trio.lowlevel.checkpoint()
        if self.hub.leases.get(thread_id, (None, 0.0))[0] is self:
            self.give_up(thread_id)

    async def append(self, thread_id, records):
        self.check(thread_id)
        await super().append(thread_id, records)

    async def archive_thread(self, thread_id):
        self.check(thread_id)
        return await super().archive_thread(thread_id)

    async def delete_thread(self, thread_id):
        self.check(thread_id)
        self.give_up(thread_id)
        return await super().delete_thread(thread_id)


class CreatesWithoutClaim(Owner):
    async def create_thread(self, metadata):
        return await self.inner.create_thread(metadata)


class ClaimsInSecret(Owner):
    """Lets a thread be claimed that another only created and didn't claim."""

    def check(self, thread_id):
        try:
            super().check(thread_id)
        except rt.ThreadOwnedElsewhere as error:
            raise rt.ThreadOwnedElsewhere(error.owner, 0.0) from None


class AppendsUnfenced(Owner):
    async def append(self, thread_id, records):
        await self.inner.append(thread_id, records)


class ArchivesUnfenced(Owner):
    async def archive_thread(self, thread_id):
        return await self.inner.archive_thread(thread_id)


class NeverRenews(Owner):
    def ends_at(self, taken_at):
        return taken_at + TTL


class ReleasesLate(Owner):
    async def release_thread(self, thread_id):
        await trio.lowlevel.checkpoint()
        if thread_id.startswith("9.5"):
            return
        await super().release_thread(thread_id)


class ClosesSilently(Owner):
    def give_up(self, thread_id):
        if self.live or not thread_id.startswith("9.5"):
            super().give_up(thread_id)
        else:
            self.hub.leases[thread_id] = (self, trio.current_time())


def failed(message):
    return set(re.findall(r"^- (\S+)", str(message), re.MULTILINE))


async def test_a_store_that_keeps_the_rules_passes(autojump_clock: trio.testing.MockClock) -> None:
    hub = Hub()
    await check_thread_store(lambda: Owner(hub), shared=True)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (CreatesWithoutClaim, "9.2"),
        (ClaimsInSecret, "9.2"),
        (AppendsUnfenced, "9.3"),
        (ArchivesUnfenced, "9.3"),
        (NeverRenews, "9.4"),
        (ReleasesLate, "9.5"),
        (ClosesSilently, "9.5"),
    ],
)
async def test_a_store_that_breaks_a_rule_fails_that_check(
    broken: type[Owner], rule: str, autojump_clock: trio.testing.MockClock
) -> None:
    hub = Hub()
    with pytest.raises(AssertionError) as caught:
        await check_thread_store(lambda: broken(hub), shared=True)
    assert rule in failed(caught.value), caught.value
    assert len(failed(caught.value)) == 1, caught.value


async def test_a_store_without_owners_is_none_for_several(autojump_clock: trio.testing.MockClock) -> None:
    store = MemoryThreadStore()
    with pytest.raises(AssertionError, match="that another owns was claimed"):
        await check_thread_store(lambda: store, shared=True)
