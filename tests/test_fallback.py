"""Engines that take over from each other: when, with which model and history, and how the tries are counted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, providers, transcript
from roder_trio.schema.inference import EngineTarget, ModelDescriptor
from tests.turn_support import DONE, Scene, call, failure, one_thread, say, settings, used

IMAGE = transcript.Image("data:image/png;base64,AAAA")


def scripted(id: str, *steps: Any, **options: Any) -> providers.ScriptedEngine:
    return providers.ScriptedEngine(steps, id=id, **options)


@asynccontextmanager
async def relay(
    *engines: rt.InferenceEngine, config: rt.RuntimeConfig | None = None, **more: Any
) -> AsyncIterator[Scene]:
    """A thread of a runtime whose engines take over from each other."""
    config = config or settings(provider_retry_initial_backoff=0.0)
    async with one_thread(engine=providers.fallback(*engines), config=config, **more) as scene:  # type: ignore[arg-type]
        yield scene


def tried(scene: Scene) -> list[tuple[str, str]]:
    return [(event.provider, event.model) for event in scene.of(events.InferenceStarted)]


async def recorded(scene: Scene) -> list[tuple[str | None, str | None, int]]:
    snapshot = await scene.snapshot()
    records = [e.event for e in snapshot.events if isinstance(e.event, events.UsageRecorded)]
    return [(record.provider, record.model, record.usage.total_tokens) for record in records]


@pytest.mark.parametrize("kind", ["AUTHENTICATION", "QUOTA_EXCEEDED", "USAGE_LIMIT"])
async def test_the_second_engine_answers_where_the_first_may_not(kind: str) -> None:
    first, second = scripted("a", [used(3), failure(kind)]), scripted("b", [say("hi"), used(5, 1), DONE])
    async with relay(first, second) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.text, outcome.usage) == ("completed", "hi", rt.TokenUsage(8, 1, 9))
        assert tried(scene) == [("a", "scripted"), ("b", "scripted")]
        assert await recorded(scene) == [("a", "scripted", 3), ("b", "scripted", 6)]
        assert scene.of(events.RetryScheduled) == []
        assert second.requests[0].model == inference.ModelChoice("b", "scripted")


async def test_a_retryable_failure_is_tried_again_before_the_next_engine_takes_over() -> None:
    first = scripted("a", *[[failure("RATE_LIMITED")]] * 3)
    second = scripted("b", [failure("SERVER_OVERLOADED")], [failure("SERVER_OVERLOADED")], [say("hi"), DONE])
    async with relay(first, second) as scene:
        assert (await scene.run()).text == "hi"
        assert [provider for provider, _ in tried(scene)] == ["a", "a", "a", "b", "b", "b"]
        assert [(e.attempt, e.error_kind) for e in scene.of(events.RetryScheduled)] == [
            (1, "rate_limited"),
            (2, "rate_limited"),
            (1, "server_overloaded"),
            (2, "server_overloaded"),
        ]


@pytest.mark.parametrize("failed", [failure("RATE_LIMITED", retry_after=121.0), failure("AUTHENTICATION")])
async def test_the_next_engine_takes_over_at_once_where_waiting_would_not_help(failed: rt.ProviderFailure) -> None:
    first = scripted("a", [failed])
    async with relay(first, scripted("b", [say("hi"), DONE])) as scene:
        assert (await scene.run()).text == "hi"
        assert [provider for provider, _ in tried(scene)] == ["a", "b"]
        assert scene.of(events.RetryScheduled) == []


async def test_the_failure_of_the_last_engine_is_that_of_the_turn() -> None:
    engines = [scripted("a", [failure("AUTHENTICATION")]), scripted("b", [failure("QUOTA_EXCEEDED")])]
    async with relay(*engines) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "quota_exceeded")


@pytest.mark.parametrize("kind", ["INVALID_REQUEST", "CONTENT_FILTER", "PROTOCOL", "CANCELLED"])
async def test_a_failure_that_another_provider_would_share_stands(kind: str) -> None:
    async with relay(scripted("a", [failure(kind)]), scripted("b")) as scene:
        assert (await scene.run()).error_kind == kind.lower()
        assert [provider for provider, _ in tried(scene)] == ["a"]


@pytest.mark.parametrize(
    "shown", [[say("text")], [inference.ReasoningDelta("r")], call("1"), [inference.HostedToolCallStarted("1", "web")]]
)
async def test_nobody_takes_over_once_something_was_shown(shown: list[Any]) -> None:
    first = scripted("a", [*shown, failure("AUTHENTICATION")])
    async with relay(first, scripted("b")) as scene:
        assert (await scene.run()).error_kind == "authentication"


async def test_text_of_an_earlier_attempt_counts_as_shown_too() -> None:
    first = scripted("a", [say("text"), failure()], [failure()], [failure()])
    async with relay(first, scripted("b")) as scene:
        assert (await scene.run()).error_kind == "stream_interrupted"
        assert len(tried(scene)) == 3


async def test_each_step_begins_with_the_first_engine_again() -> None:
    first = scripted("a", [failure("AUTHENTICATION")], [failure("AUTHENTICATION")])
    second = scripted("b", [say("one"), inference.ProviderMetadata({"end_turn": False}), DONE], [say("two"), DONE])
    async with relay(first, second) as scene:
        assert (await scene.run()).text == "two"
        assert [provider for provider, _ in tried(scene)] == ["a", "b", "a", "b"]


async def test_a_steer_while_the_next_engine_works_begins_with_the_first_again() -> None:
    begun = trio.Event()
    first = scripted("a", [failure("AUTHENTICATION")], [say("mine"), DONE])

    def tell(request: Any) -> list[Any]:
        begun.set()
        return [trio.Event()]

    second = scripted("b", [tell])
    async with relay(first, second) as scene:
        turn_id = await scene.start()
        await begun.wait()
        await scene.steer(turn_id, "no, this")
        assert (await scene.wait(turn_id)).text == "mine"
        assert [provider for provider, _ in tried(scene)] == ["a", "b", "a"]


async def test_a_steer_during_the_change_of_engines_begins_with_the_first_again() -> None:
    first = scripted("a", [failure("AUTHENTICATION")], [say("mine"), DONE])
    listing, listed = trio.Event(), trio.Event()

    class Slow(providers.ScriptedEngine):
        async def list_models(self) -> Any:
            listing.set()
            await listed.wait()
            return await super().list_models()

    second = Slow((), id="b")
    async with relay(first, second) as scene:
        turn_id = await scene.start()
        await listing.wait()
        await scene.steer(turn_id, "no, this")
        listed.set()
        assert (await scene.wait(turn_id)).text == "mine"
        assert second.calls == []


async def test_a_model_that_a_turn_names_goes_to_the_first_engine_only() -> None:
    models = [ModelDescriptor(provider="b", id="b-1"), ModelDescriptor(provider="b", id="b-2")]
    first, second = scripted("a", [failure("AUTHENTICATION")]), scripted("b", [say("hi"), DONE], models=models)
    async with relay(first, second) as scene:
        await scene.run(model="special")
        assert tried(scene) == [("a", "special"), ("b", "b-1")]


async def test_an_engine_that_takes_over_asks_its_default_model() -> None:
    first, second = scripted("a", [failure("AUTHENTICATION")]), scripted("b", [say("hi"), DONE])
    second.default_model = "b-9"  # type: ignore[attr-defined]
    async with relay(first, second) as scene:
        await scene.run()
        assert tried(scene) == [("a", "scripted"), ("b", "b-9")]


async def test_a_level_that_the_next_model_does_not_know_is_left_out() -> None:
    models = [ModelDescriptor(provider="b", id="b-1", supported_reasoning=("low",))]
    engines = [scripted("a", *[[failure("AUTHENTICATION")]] * 2), scripted("b", [DONE], [DONE], models=models)]
    async with relay(*engines) as scene:
        await scene.run(reasoning="high")
        await scene.run(reasoning="low")
        assert [request.reasoning.level for request in engines[0].requests] == ["high", "low"]
        assert [request.reasoning.level for request in engines[1].requests] == [None, "low"]


async def test_an_engine_that_can_not_name_a_model_is_passed_over() -> None:
    class Mute(providers.ScriptedEngine):
        async def list_models(self) -> Any:
            await trio.lowlevel.checkpoint()
            if self.id == "b":
                raise failure("TRANSPORT")
            if self.id == "e":
                raise LookupError("no such region")
            return ()

    first = scripted("a", [failure("AUTHENTICATION")], [failure("AUTHENTICATION")])
    async with relay(first, *(Mute((), id=id) for id in "bce"), scripted("d", [DONE])) as scene:
        assert (await scene.run()).status == "completed"
        assert [provider for provider, _ in tried(scene)] == ["a", "d"]
    async with relay(first, Mute((), id="b")) as scene:
        assert (await scene.run()).error_kind == "authentication"


async def test_the_next_engine_gets_the_history_as_it_may_see_it() -> None:
    def target(id: str) -> EngineTarget:
        return EngineTarget("scripted", id, f"http://{id}")

    boundary = inference.Compaction("completed", "k", {"type": "compaction", "id": "k", "encrypted_content": "x"})
    first = scripted("a", [boundary, say("one"), DONE], [failure("AUTHENTICATION")], target=target("a"))
    plain = inference.InferenceCapabilities.text_only()
    second = scripted("b", [say("two"), DONE], target=target("b"), capabilities=plain)
    async with relay(first, second) as scene:
        await scene.run("look", images=[IMAGE])
        await scene.run("again")
        assert not isinstance(first.requests[1].transcript[0], transcript.UserMessage)
        sent = list(second.requests[0].transcript)
        assert isinstance(sent[0], transcript.UserMessage)
        assert (sent[0].text.startswith("look"), sent[0].images) == (True, ())
        assert second.requests[0].tools == ()


async def test_the_count_of_another_provider_is_no_anchor_for_the_first() -> None:
    config = settings(auto_compact_token_limit=1000, provider_retry_initial_backoff=0.0)
    more = inference.ProviderMetadata({"end_turn": False})
    first = scripted("a", [failure("AUTHENTICATION")], [say("two"), DONE], compact=[])
    second = scripted("b", [say("one"), used(5000), more, DONE])
    async with relay(first, second, config=config) as scene:
        assert (await scene.run()).text == "two"
        assert scene.of(events.ContextCompactionStarted) == []


def test_a_fallback_is_known_by_its_first_engine() -> None:
    plain = inference.InferenceCapabilities.text_only()
    value = providers.fallback(scripted("a", capabilities=plain), scripted("b"))
    assert (value.id, value.capabilities) == ("a", plain)


def test_engines_of_a_fallback_have_ids_of_their_own() -> None:
    with pytest.raises(ValueError, match="two engines of a fallback have the id 'a'"):
        providers.fallback(scripted("a"), scripted("a"))


async def test_a_runtime_counts_a_fallback_by_its_first_id() -> None:
    engines = [providers.fallback(scripted("a"), scripted("b")), scripted("b")]
    async with rt.open_runtime(engines=engines) as runtime:
        assert [row.provider for row in await runtime.list_models()] == ["a", "b"]
    with pytest.raises(ValueError, match="two engines have the id 'a'"):
        async with rt.open_runtime(engines=[providers.fallback(scripted("a")), scripted("a")]):
            raise AssertionError("it must not open")


async def test_every_engine_of_a_fallback_gets_the_runtimes_client() -> None:
    class Wired(providers.ScriptedEngine):
        client: Any = None

        def use_client(self, client: Any) -> None:
            self.client = client

    first, second = Wired((), id="a"), Wired((), id="b")
    async with rt.open_runtime(engines=[providers.fallback(first, second)]):
        assert first.client is second.client is not None
