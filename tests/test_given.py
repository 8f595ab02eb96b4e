"""What `open_runtime` is given of a wrong kind is told before anything opens."""

from typing import Any

import pytest

import roder_trio as rt
from roder_trio import providers, stores


def greet(name: str) -> str:
    """Greet."""
    return name


class Nameless(rt.EventSink):
    async def emit(self, envelope: rt.EventEnvelope) -> None:
        raise NotImplementedError


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one engine": ({"engines": providers.Offline()}, "engines must be a list, not Offline"),
    "a name as engines": ({"engines": "openai"}, "engines must be a list, not str"),
    "the name of an engine": (
        {"engines": ["openai"]},
        "each of engines must be InferenceEngine or Fallback, such as providers.Anthropic(), not str",
    ),
    "an engine's class": ({"engines": [providers.Offline]}, "not the class Offline itself"),
    "a plain function": (
        {"tools": [greet]},
        "each of tools must be Tool, such as a function under @rt.tool, not the function greet",
    ),
    "a function as policy": ({"policies": [greet]}, "a subclass of rt.Policy, not the function greet"),
    "an object as hook": ({"hooks": [object()]}, "a subclass of rt.Hook, not object"),
    "an object as sink": ({"sinks": [object()]}, "a subclass of rt.EventSink, not object"),
    "a sink without an id": ({"sinks": [Nameless()]}, "Nameless among sinks has no `id`; give its class one"),
    "a path as store": ({"store": "agent.db"}, 'such as stores.SqliteThreadStore("agent.db"), not str'),
    "a store's class": ({"store": stores.MemoryThreadStore}, "not the class MemoryThreadStore itself"),
    "a dictionary as config": ({"config": {}}, "config must be RuntimeConfig, made by rt.RuntimeConfig(...), not dict"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_is_of_a_wrong_kind_is_told_with_what_to_give(case: str) -> None:
    given, told = WRONG[case]
    with pytest.raises(TypeError) as caught:
        async with rt.open_runtime(**given):
            raise AssertionError
    assert told in str(caught.value)


async def test_any_collection_of_the_right_kinds_will_do() -> None:
    tools = {"greet": rt.tool(greet)}
    async with rt.open_runtime(engines=(providers.Offline(),), tools=tools.values()) as runtime:  # type: ignore[arg-type]
        assert await runtime.list_models()
