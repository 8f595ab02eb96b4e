"""Thread directories of Roder, brought into a store."""

from roder_trio.stores.roder.load import ImportReport, import_roder

__all__ = ["ImportReport", "import_roder"]
