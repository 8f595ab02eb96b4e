"""Who owns a thread, as the database tells it: one row per thread with its owner, an epoch and an end.

Rules of the room: statements of a transaction that the caller opened; times are those of the database, read after the
row was locked, so that no wait for the lock makes them old. A row is never deleted and its epoch never falls. Who
changes a thread holds its row's lock until the commit, so no claim falls between the check and what is written.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from roder_trio.errors import LeaseLost, ThreadOwnedElsewhere
from roder_trio.stores.postgres.database import Link

# the outer select runs row by row, after the lock was given
_LOCK = """
WITH locked AS MATERIALIZED (
    SELECT owner, epoch, expires_at FROM lease WHERE tenant = %s AND thread_id = %s FOR UPDATE
)
SELECT owner, epoch, extract(epoch FROM expires_at - clock_timestamp())::float8 FROM locked"""

_ADD = """
INSERT INTO lease (tenant, thread_id, owner, epoch, expires_at) VALUES (%s, %s, '', 0, clock_timestamp())
ON CONFLICT DO NOTHING"""

_TAKE = """
UPDATE lease SET owner = %s, epoch = epoch + 1, expires_at = clock_timestamp() + make_interval(secs => %s)
WHERE tenant = %s AND thread_id = %s RETURNING epoch"""

# one look at the key per lease, whatever the planner thinks of the owner
_HELD = """
SELECT held.thread_id FROM unnest(%(ids)s::text[], %(epochs)s::bigint[]) AS mine (thread_id, epoch)
CROSS JOIN LATERAL (
    SELECT lease.thread_id FROM lease
    WHERE lease.tenant = %(tenant)s AND lease.thread_id = mine.thread_id AND lease.epoch = mine.epoch
        AND lease.owner = %(owner)s AND lease.expires_at > clock_timestamp()
    {locking}
) AS held"""

_STILL_MINE = _HELD.format(locking="OFFSET 0")

_CHANGE = """
WITH free AS MATERIALIZED ({held})
UPDATE lease SET expires_at = {ends}
WHERE lease.tenant = %(tenant)s AND lease.thread_id = ANY (ARRAY (SELECT thread_id FROM free))
    AND lease.expires_at > clock_timestamp()
RETURNING lease.thread_id"""

_RENEW = _CHANGE.format(
    held=_HELD.format(locking="FOR UPDATE SKIP LOCKED"),
    ends="greatest(lease.expires_at, clock_timestamp() + make_interval(secs => %(ttl)s))",
)

_RELEASE = _CHANGE.format(held=_HELD.format(locking="FOR UPDATE"), ends="clock_timestamp()")

_END = "UPDATE lease SET expires_at = clock_timestamp() WHERE tenant = %s AND thread_id = %s"


@attrs.frozen
class Key:
    """One thread of one tenant."""

    tenant: str
    thread_id: str

    @property
    def values(self) -> tuple[str, str]:
        """The columns that lead every key."""
        return (self.tenant, self.thread_id)


@attrs.frozen
class Fence:
    """What a change must find: this owner with this epoch. No epoch: it claims the thread for itself alone."""

    owner: str
    epoch: int | None


@attrs.frozen
class _Lease:
    owner: str
    epoch: int
    left: float
    """Seconds until it ends, by the database's clock."""


@attrs.frozen
class Renewal:
    """What became of leases that were to be renewed; those in neither are lost."""

    renewed: frozenset[str]
    busy: frozenset[str]
    """Still owned, but locked at that moment by a change that is under way."""


def claim(link: Link, key: Key, owner: str, ttl: float) -> int:
    """Make `owner` the owner of a thread for `ttl` seconds and return the new epoch.

    Raises ThreadOwnedElsewhere while the lease of another owner lasts.
    """
    lease = _locked(link, key)
    if lease is None:
        link.execute(_ADD, key.values)
        lease = _locked(link, key)
        assert lease is not None
    if lease.left > 0 and lease.owner != owner:
        raise ThreadOwnedElsewhere(lease.owner, lease.left)
    row = link.execute(_TAKE, (owner, ttl, *key.values)).fetchone()
    assert row is not None
    return _number(row[0])


def enter(link: Link, key: Key, fence: Fence) -> None:
    """Lock the lease for a change. Raises LeaseLost if it isn't as the fence says, ThreadOwnedElsewhere."""
    lease = _locked(link, key)
    if fence.epoch is None:
        # one that the same owner took meanwhile covers the change as well, and must outlive it
        if lease is None or lease.owner != fence.owner or lease.left <= 0:
            claim(link, key, fence.owner, 0)
        return
    if lease is None or (lease.owner, lease.epoch) != (fence.owner, fence.epoch) or lease.left <= 0:
        raise LeaseLost(key.thread_id)


def lock(link: Link, key: Key) -> None:
    """Lock the lease, whoever owns it, so that what an earlier change did is done."""
    _locked(link, key)


def end(link: Link, key: Key) -> None:
    """End a lease now that this transaction has locked."""
    link.execute(_END, key.values)


def renew(link: Link, tenant: str, owner: str, epochs: Mapping[str, int], ttl: float) -> Renewal:
    """Renew leases that are live still, in one statement; none gets shorter, and an ended one stays ended."""
    values = {**_arrays(tenant, owner, epochs), "ttl": ttl}
    renewed = frozenset(str(row[0]) for row in link.execute(_RENEW.encode(), values))
    rest = {thread_id: epoch for thread_id, epoch in epochs.items() if thread_id not in renewed}
    busy = link.execute(_STILL_MINE.encode(), _arrays(tenant, owner, rest)) if rest else ()
    return Renewal(renewed, frozenset(str(row[0]) for row in busy))


def release(link: Link, tenant: str, owner: str, epochs: Mapping[str, int]) -> None:
    """End leases now, those that are this owner's with these epochs."""
    link.execute(_RELEASE.encode(), _arrays(tenant, owner, epochs))


def _arrays(tenant: str, owner: str, epochs: Mapping[str, int]) -> dict[str, Any]:
    return {"tenant": tenant, "owner": owner, "ids": list(epochs), "epochs": list(epochs.values())}


def _locked(link: Link, key: Key) -> _Lease | None:
    row = link.execute(_LOCK, key.values).fetchone()
    return None if row is None else _Lease(str(row[0]), _number(row[1]), float(str(row[2])))


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
