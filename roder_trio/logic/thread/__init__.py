"""The decisions about one thread, and the folds of its log."""

from roder_trio.logic.thread.metadata import MetadataFold, fold_metadata
from roder_trio.logic.thread.record import turns_of

__all__ = ["MetadataFold", "fold_metadata", "turns_of"]
