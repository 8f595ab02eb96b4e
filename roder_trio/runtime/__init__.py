"""The runtime as its users see it; the only place that names a concrete store or engine."""

from roder_trio.runtime.handle import Turn
from roder_trio.runtime.opening import open_runtime
from roder_trio.runtime.runtime import Runtime

__all__ = ["Runtime", "Turn", "open_runtime"]
