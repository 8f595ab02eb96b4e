"""Events of the runtime itself, and of those who follow it."""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from roder_trio.schema.item import ThreadItem


@attrs.frozen
class StorageRepaired:
    """The store set aside a torn tail; `repairs` are its `StoreRepair`s."""

    kind: ClassVar[str] = "storage.repaired"
    durable: ClassVar[bool] = False
    repairs: tuple[Any, ...]


@attrs.frozen
class SinkFailed:
    """A sink raised or overran."""

    kind: ClassVar[str] = "sink.failed"
    durable: ClassVar[bool] = False
    sink_id: str
    message: str
    missed: int = 0


@attrs.frozen
class Lagged:
    """The subscriber was too slow: `missed` events were dropped before the next one."""

    kind: ClassVar[str] = "subscription.lagged"
    durable: ClassVar[bool] = False
    missed: int


@attrs.frozen
class ItemsReset:
    """The view starts anew from `items`."""

    kind: ClassVar[str] = "items.reset"
    durable: ClassVar[bool] = False
    items: tuple[ThreadItem, ...]


@attrs.frozen
class Unknown:
    """An event of a newer version, kept as it was read."""

    durable: ClassVar[bool] = True
    kind: str
    payload: Mapping[str, Any]
