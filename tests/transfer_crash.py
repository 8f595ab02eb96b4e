"""What the processes do that are killed in an export, an import or a copy."""

import trio

from roder_trio import stores
from roder_trio.stores import _batch
from roder_trio.stores.transfer import file
from tests.jsonl_support import KillingDisk
from tests.transfer_support import jsonl


def export(crash, base, path):
    """Overwrite an export, with points at the steps of the disk."""
    disk = KillingDisk(crash)
    disk.armed = True
    file.Disk = lambda power: disk

    async def main():
        async with jsonl(base, read_only=True) as store:
            await stores.export_thread(store, "t", path, overwrite=True)

    trio.run(main)


def fill(crash, base, work):
    """Bring threads into a store, one record at a time, with points in its appends."""
    file.CHUNK_RECORDS = _batch.CHUNK_RECORDS = 1

    async def main():
        store = stores.JsonlThreadStore(base, durability="process")
        async with store.open():
            await work(crash.around(store))

    trio.run(main)


def import_file(crash, base, path):
    fill(crash, base, lambda store: stores.import_thread(store, path, "new"))


def import_roder(crash, base, path):
    fill(crash, base, lambda store: stores.import_roder(path, store))


def copy(crash, base, path):
    async def work(store):
        async with jsonl(path, read_only=True) as source:
            await stores.copy_store(source, store)

    fill(crash, base, work)


def sqlite(base, name):
    return stores.SqliteThreadStore(base / f"{name}.db", durability="process")
