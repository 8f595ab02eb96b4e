"""The stores of threads; each is imported when it is first asked for."""

from typing import TYPE_CHECKING, Any

from roder_trio.schema.thread import StoreRepair

if TYPE_CHECKING:
    from roder_trio.stores.jsonl import JsonlThreadStore
    from roder_trio.stores.memory import MemoryThreadStore
    from roder_trio.stores.postgres import PostgresThreadStore
    from roder_trio.stores.roder import ImportReport, import_roder
    from roder_trio.stores.sqlite import SqliteThreadStore
    from roder_trio.stores.transfer import (
        CopyReport,
        SalvageReport,
        copy_store,
        export_thread,
        import_thread,
        salvage_thread,
    )

__all__ = [
    "CopyReport",
    "ImportReport",
    "JsonlThreadStore",
    "MemoryThreadStore",
    "PostgresThreadStore",
    "SalvageReport",
    "SqliteThreadStore",
    "StoreRepair",
    "copy_store",
    "export_thread",
    "import_roder",
    "import_thread",
    "salvage_thread",
]

_HOMES = {
    "CopyReport": "roder_trio.stores.transfer",
    "SalvageReport": "roder_trio.stores.transfer",
    "ImportReport": "roder_trio.stores.roder",
    "JsonlThreadStore": "roder_trio.stores.jsonl",
    "MemoryThreadStore": "roder_trio.stores.memory",
    "SqliteThreadStore": "roder_trio.stores.sqlite",
    "PostgresThreadStore": "roder_trio.stores.postgres",
    "copy_store": "roder_trio.stores.transfer",
    "export_thread": "roder_trio.stores.transfer",
    "import_roder": "roder_trio.stores.roder",
    "import_thread": "roder_trio.stores.transfer",
    "salvage_thread": "roder_trio.stores.transfer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # not every program that uses one store should pay for all
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
