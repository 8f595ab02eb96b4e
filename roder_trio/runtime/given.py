"""What a host hands to `open_runtime`, looked at before anything opens: a wrong kind is told with what to give."""

from collections.abc import Collection, Sequence

from roder_trio.ports import EventSink, Fallback, Hook, InferenceEngine, Policy, ThreadStore, Tool
from roder_trio.schema.config import RuntimeConfig

_ADVICE = {
    "engines": "such as providers.Anthropic()",
    "tools": "such as a function under @rt.tool",
    "policies": "a subclass of rt.Policy",
    "hooks": "a subclass of rt.Hook",
    "sinks": "a subclass of rt.EventSink",
    "store": 'such as stores.SqliteThreadStore("agent.db")',
    "config": "made by rt.RuntimeConfig(...)",
}
_NAMED = {"engines": "id", "sinks": "id", "store": "id", "tools": "spec"}
"""The attribute without which one can't be used."""


def check_given(
    *,
    engines: Sequence[InferenceEngine | Fallback],
    store: ThreadStore | None,
    tools: Sequence[Tool],
    policies: Sequence[Policy],
    hooks: Sequence[Hook],
    sinks: Sequence[EventSink],
    config: RuntimeConfig | None,
) -> None:
    """Raise TypeError for the first thing that isn't what its argument takes."""
    _check_all("engines", engines, (InferenceEngine, Fallback))
    _check_all("tools", tools, Tool)
    _check_all("policies", policies, Policy)
    _check_all("hooks", hooks, Hook)
    _check_all("sinks", sinks, EventSink)
    if store is not None:
        _check("store", store, ThreadStore)
    if config is not None:
        _check("config", config, RuntimeConfig)


def _check_all(name: str, values: Collection[object], kind: type | tuple[type, ...]) -> None:
    if not isinstance(values, Collection) or isinstance(values, str):
        raise TypeError(f"{name} must be a list, not {_described(values)}")
    for value in values:
        _check(name, value, kind, "each of ")


def _check(name: str, value: object, kind: type | tuple[type, ...], each: str = "") -> None:
    if not isinstance(value, kind):
        kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise TypeError(f"{each}{name} must be {kinds}, {_ADVICE[name]}, not {_described(value)}")
    needed = _NAMED.get(name)
    if needed is not None and not hasattr(value, needed):
        raise TypeError(f"{type(value).__name__} among {name} has no `{needed}`; give its class one")


def _described(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return type(value).__name__
