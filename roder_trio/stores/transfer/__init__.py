"""Threads on their way: exports, imports, copies from store to store, and what can be saved of a damaged journal."""

from roder_trio.stores.transfer.check import StoreCheck, check_store
from roder_trio.stores.transfer.copy import CopyReport, copy_store
from roder_trio.stores.transfer.salvage import Gap, SalvageReport, salvage_thread
from roder_trio.stores.transfer.thread import export_thread, import_thread

__all__ = [
    "CopyReport",
    "Gap",
    "SalvageReport",
    "StoreCheck",
    "check_store",
    "copy_store",
    "export_thread",
    "import_thread",
    "salvage_thread",
]
