"""Keeping leases: renewed in time, watched, and given back at the end.

Rules of the room: renewal has a worker of its own, so that no call holds it up; one that failed is tried again soon,
since the lease ends here whether or not anybody could say so.
"""

import logging

import trio

from roder_trio.errors import StorageError
from roder_trio.stores.postgres import lease
from roder_trio.stores.postgres.database import Database
from roder_trio.stores.postgres.tenure import Tenure

log = logging.getLogger(__name__)

RENEWALS = 3
"""How often a lease is renewed before it would end."""
SOON = 0.1
"""The part of that interval after which what failed, or was busy, is tried again."""


class Keeper:
    """Renews what the tenure says is held."""

    def __init__(self, database: Database, tenure: Tenure, *, tenant: str, ttl: float) -> None:
        self._database = database
        self._tenure = tenure
        self._tenant = tenant
        self._ttl = ttl
        self._owner = ""
        self._limiter = trio.CapacityLimiter(1)

    async def run(self, owner: str) -> None:
        """Renew the leases of `owner`, until cancelled."""
        self._owner = owner
        interval = self._ttl / RENEWALS
        delay = interval
        while True:
            await trio.sleep(delay)
            delay = interval if await self._renew_once() else interval * SOON

    async def _renew_once(self) -> bool:
        """Renew everything once; False if something is to be tried again soon."""
        epochs = self._tenure.to_renew()
        if not epochs:
            await trio.lowlevel.checkpoint()
            return True
        began = trio.current_time()
        try:
            renewal = await trio.to_thread.run_sync(self._renewed, epochs, limiter=self._limiter)
        except StorageError as error:
            log.warning("leases could not be renewed, trying again: %s", error)
            return False  # noqa: ASYNC910 - the call that failed was a checkpoint
        self._tenure.extend(epochs, renewal.renewed, began)
        for thread_id in epochs.keys() - renewal.renewed - renewal.busy:
            self._tenure.end(thread_id, epochs[thread_id])
        return not renewal.busy

    def _renewed(self, epochs: dict[str, int]) -> lease.Renewal:
        return self._database.change(
            lambda link, doubt: lease.renew(link, self._tenant, self._owner, epochs, self._ttl)
        )

    def release_all(self) -> None:
        """Give all leases back; to be called in a worker, when nothing changes threads any more."""
        epochs = self._tenure.drop_all()
        if not epochs:
            return
        try:
            self._database.change(lambda link, doubt: lease.release(link, self._tenant, self._owner, epochs))
        except StorageError as error:
            log.warning("the release of %d threads is not confirmed, their leases run out: %s", len(epochs), error)
