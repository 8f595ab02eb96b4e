"""What those need who test their own stores, engines and programs; each is imported when it is first asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roder_trio.testing.crash import Crash, CrashPoint, Victims, check_crashes, open_victims
    from roder_trio.testing.faulty import FaultyStore
    from roder_trio.testing.grammar import check_grammar
    from roder_trio.testing.server import FakeProviderServer, Received, Reply, Reset, Stall
    from roder_trio.testing.store import check_thread_store

__all__ = [
    "Crash",
    "CrashPoint",
    "FakeProviderServer",
    "FaultyStore",
    "Received",
    "Reply",
    "Reset",
    "Stall",
    "Victims",
    "check_crashes",
    "check_grammar",
    "check_thread_store",
    "open_victims",
]

_HOMES = {
    "Crash": "roder_trio.testing.crash",
    "CrashPoint": "roder_trio.testing.crash",
    "FakeProviderServer": "roder_trio.testing.server",
    "FaultyStore": "roder_trio.testing.faulty",
    "Received": "roder_trio.testing.server",
    "Reply": "roder_trio.testing.server",
    "Reset": "roder_trio.testing.server",
    "Stall": "roder_trio.testing.server",
    "Victims": "roder_trio.testing.crash",
    "check_crashes": "roder_trio.testing.crash",
    "check_grammar": "roder_trio.testing.grammar",
    "check_thread_store": "roder_trio.testing.store",
    "open_victims": "roder_trio.testing.crash",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  # a program that uses one helper should not pay for all

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
