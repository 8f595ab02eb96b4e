"""A native compaction is one transaction: the table of its endings, inside a turn, by hand, and in a caller's task."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

import roder_trio as rt
from roder_trio import compaction, events, inference, items, stores, transcript
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from roder_trio.schema.usage import Purpose
from roder_trio.testing import FaultyStore
from tests.ledger_support import (
    COMPACT_ALWAYS,
    HISTORY,
    boundary,
    cold,
    compact_calls,
    compact_directly,
    compactions,
    ends_of,
    goal_of,
    item,
    meta,
    persist,
    with_goal,
)
from tests.turn_support import DONE, Scene, failure, say, settings, used

MARKER = inference.ProviderMetadata({"kind": "reliability_retry_attempt"})
U40, U80 = used(30, 10), used(60, 20)


def output(*parts: Any, **more: Any) -> inference.ProviderMetadata:
    return inference.ProviderMetadata({"output": list(parts), **more})


@attrs.frozen
class Row:
    """One ending: the streams, how often one is opened, how it ends (None: committed), what is billed."""

    streams: tuple[Any, ...]
    calls: int
    kind: str | None
    billed: int


PROTOCOL, INTERRUPTED = "protocol", "stream_interrupted"
ROWS: dict[str, Row] = {
    "disconnect": Row(([boundary(), U40, failure()],) * 2, 2, INTERRUPTED, 80),
    "failed": Row(([boundary(), U40, inference.Failed("failed")],), 1, PROTOCOL, 40),
    "conflict": Row(([boundary(), U40, boundary("b"), DONE],), 1, PROTOCOL, 40),
    "tool call": Row(([boundary(), U40, inference.ToolCallCompleted("x", "write", "{}")],), 1, PROTOCOL, 40),
    "tool call begun": Row(([boundary(), U40, inference.ToolCallStarted("x", "write")],), 1, PROTOCOL, 40),
    "tool call delta": Row(([boundary(), U40, inference.ToolCallDelta("x", "{")],), 1, PROTOCOL, 40),
    "hosted call": Row(([boundary(), U40, inference.HostedToolCallStarted("x", "search")],), 1, PROTOCOL, 40),
    "disconnect, then well": Row(([boundary(), U40, failure()], [boundary(), U40, DONE]), 2, None, 80),
    "twice the same": Row(([boundary(), boundary(), U40, DONE],), 1, None, 40),
    "nothing": Row(([U40, DONE],), 1, PROTOCOL, 40),
    "no end": Row(([boundary(), U40],) * 2, 2, INTERRUPTED, 80),
    "marker, then disconnect": Row(([U40, MARKER, boundary(), U80, failure()],), 1, INTERRUPTED, 80),
    "marker empties": Row(([boundary(), U40, MARKER, U80, DONE],), 1, PROTOCOL, 80),
    "two in one": Row(([boundary("a", "b"), U40, DONE],), 1, PROTOCOL, 0),
    "no content": Row(([U40, output({"type": "compaction"}), DONE],), 1, PROTOCOL, 40),
    "empty content": Row(([U40, output(item() | {"encrypted_content": ""}), DONE],), 1, PROTOCOL, 40),
    "input without it": Row(([U40, output(item(), compacted_input=[item("b")]), DONE],), 1, PROTOCOL, 40),
    "input is no list": Row(([U40, output(item(), compacted_input="a"), DONE],), 1, PROTOCOL, 40),
    "trigger": Row(([U40, output({"type": "compaction_trigger", "encrypted_content": "x"}), DONE],), 1, PROTOCOL, 40),
    "no list": Row(([U40, inference.ProviderMetadata({"output": "compaction"}), DONE],), 1, PROTOCOL, 40),
    "no object": Row(([boundary(), U40, inference.ProviderMetadata(["x"]), DONE],), 1, PROTOCOL, 40),  # type: ignore[arg-type]
    "summary item": Row(([U40, output(item() | {"type": "compaction_summary"}), DONE],), 1, None, 40),
    "with other items": Row(([U40, output({"type": "message"}, item()), DONE],), 1, None, 40),
    "chatter": Row(
        (
            [
                say("x"),
                inference.ReasoningDelta("y"),
                inference.Compaction("started"),
                inference.ProviderMetadata({"z": 1}),
                boundary(),
                U40,
                DONE,
                U80,
            ],
        ),
        1,
        None,
        40,
    ),
    "authentication": Row(([boundary(), U40, failure("AUTHENTICATION")],), 1, "authentication", 40),
    "quota": Row(([U40, failure("QUOTA_EXCEEDED")],), 1, "quota_exceeded", 40),
    "refused at once": Row((failure("RATE_LIMITED"), failure("RATE_LIMITED")), 2, "rate_limited", 0),
    "refused, then well": Row((failure("SERVER_OVERLOADED"), [boundary(), U40, DONE]), 2, None, 40),
    "a group": Row(([boundary(), U40, ExceptionGroup("g", [failure()])],) * 2, 2, INTERRUPTED, 80),
    "idle": Row(([boundary(), U40, NEVER_ENDS],) * 2, 2, "timeout", 80),
    "a bug": Row(([boundary(), U40, ValueError("a bug")],), 1, "engine_error", 40),
    "no usage in a report": Row(([boundary(), U40, inference.Usage(3), DONE],), 1, PROTOCOL, 40),  # type: ignore[arg-type]
}


async def manual(scene: Scene) -> str | None:
    try:
        result = await scene.runtime.compact_thread(scene.id)
    except rt.ProviderFailure as error:
        return error.kind.value
    except ValueError:
        return "engine_error"
    assert (result.compacted, result.reason, result.strategy) == (True, None, "native")
    assert result.tokens_before == 19
    assert result.usage == await meta(scene)
    return None


async def in_turn(scene: Scene) -> str | None:
    outcome = await scene.run()
    if outcome.status == "failed":
        return outcome.error_kind
    assert outcome.status == "completed"
    failed = scene.of(events.ContextCompactionFailed)
    return failed[0].error_kind if failed else None


Way = Callable[[Scene], Awaitable[str | None]]
WAYS: dict[str, tuple[Way, str, bool]] = {
    "direct": (compact_directly, "direct", False),
    "direct, required": (compact_directly, "direct", True),
    "manual": (manual, "manual", False),
    "in a turn": (in_turn, "auto", False),
    "in a turn, required": (in_turn, "auto", True),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize(("way", "trigger", "required"), WAYS.values(), ids=WAYS)
async def test_an_ending(autojump_clock, row, way, trigger, required):
    script = {"compact": row.streams, "requires_native_compaction": required}
    async with with_goal([say("on"), DONE], config=COMPACT_ALWAYS, **script) as scene:
        await persist(scene)
        kind = await way(scene)
        assert (kind, compact_calls(scene)) == (row.kind, row.calls)
        assert getattr(await meta(scene), "total_tokens", 0) == row.billed
        assert (await goal_of(scene)).tokens_used == (row.billed if trigger == "auto" else 0)
        await log_is_whole(scene, row, trigger, required)
        the_events_tell_it(scene, row, trigger)
        again = await cold(scene.store, scene.id)
        assert (again.usage, again.fold) == (await meta(scene), await meta(scene))
        assert again.goal == await goal_of(scene)


async def log_is_whole(scene: Scene, row: Row, trigger: str, required: bool) -> None:
    """The log holds what it held, and a boundary if one was committed; each attempt got the whole window."""
    history = await scene.history()
    assert history[:3] == list(HISTORY)
    assert sum(map(compaction.is_boundary, history)) == (row.kind is None)
    given = list(HISTORY) if trigger != "auto" else [*HISTORY, transcript.UserMessage("go")]
    assert [list(request.transcript) for request in scene.engine.compact_requests] == [given] * row.calls
    assert not any(isinstance(entry, transcript.ErrorNote) for entry in history[: len(given)])
    if row.kind is not None:
        assert compaction.trim_to_last_boundary(history)[: len(given)] == given
    sampled = 0 if trigger != "auto" or (required and row.kind) else 1
    assert len(scene.engine.requests) == sampled
    if sampled and row.kind is None:
        [request] = scene.engine.requests
        boundaries = [entry for entry in history if compaction.is_boundary(entry)]
        assert list(request.transcript) == [*boundaries, transcript.UserMessage("go")]


def the_events_tell_it(scene: Scene, row: Row, trigger: str) -> None:
    """One start, one end."""
    [(compaction_id, ends)] = ends_of(scene).items()
    assert ends == ["Recorded" if row.kind is None else "Failed"]
    started, ended = compactions(scene)[:2]
    count, tokens = (3, 19) if trigger != "auto" else (4, 19)
    assert started == events.ContextCompactionStarted(compaction_id, trigger, count, tokens)
    if row.kind is None:
        assert (ended.strategy, ended.item_count) == ("native", 1)
    else:
        assert ended.error_kind == row.kind
    retries = scene.of(events.RetryScheduled)
    assert [(retry.attempt, retry.max_attempts) for retry in retries] == [(1, 2)] * (row.calls - 1)
    records = scene.of(events.UsageRecorded)
    assert {record.purpose for record in records} <= {Purpose.NATIVE_COMPACTION}


@pytest.mark.parametrize("kind", ["disconnect", "failed", "conflict", "tool call", "disconnect, then well"])
async def test_the_ending_changes_nothing_of_what_the_same_reports_bill(autojump_clock, kind):
    row = ROWS[kind]
    billed = set()
    for way, _, _ in WAYS.values():
        async with with_goal([DONE], compact=row.streams, config=COMPACT_ALWAYS) as scene:
            await persist(scene)
            await way(scene)
            billed.add(await meta(scene))
    assert billed == {rt.TokenUsage(30 * row.calls, 10 * row.calls, 40 * row.calls)}


async def test_a_failure_that_is_required_fails_the_turn_with_its_text(autojump_clock):
    async with with_goal(
        compact=[failure("AUTHENTICATION")], requires_native_compaction=True, config=COMPACT_ALWAYS
    ) as scene:
        outcome = await scene.run()
        assert (outcome.error_kind, outcome.error) == ("authentication", "the engine fails with authentication")
        assert scene.of(events.InferenceStarted) == []


# -- an engine that misbehaves -----------------------------------------------------------------------------------------


class Spiteful(ScriptedEngine):
    """Its compactions fail as they are left."""

    def compact_turn(self, context: Any, request: Any) -> Any:
        return self._spite(super().compact_turn(context, request))

    @asynccontextmanager
    async def _spite(self, block: Any) -> AsyncIterator[Any]:
        async with block as stream:
            yield stream
        raise ValueError("as it was left")


async def test_what_was_wrong_in_the_stream_counts_before_what_is_raised_as_it_is_left(autojump_clock):
    report = [U40, inference.Usage(3)]  # type: ignore[arg-type]
    async with with_goal(engine=Spiteful(compact=[report, [boundary(), U40, DONE]])) as scene:
        await persist(scene)
        assert await compact_directly(scene) == PROTOCOL
        assert await compact_directly(scene) is None


# -- back-off ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["direct", "manual", "in a turn"])
async def test_back_off_doubles_with_some_jitter_and_each_attempt_has_its_own_id(autojump_clock, way):
    compact = [[U40, failure()], [U40, failure()], [boundary(), U40, DONE]]
    config = settings(auto_compact_token_limit=1)
    async with with_goal([DONE], compact=compact, config=config) as scene:
        await persist(scene)
        began = trio.current_time()
        assert await WAYS[way][0](scene) is None
        first, second = (retry.delay for retry in scene.of(events.RetryScheduled))
        assert 1.0 <= first <= 1.25
        assert 2.0 <= second <= 2.5
        assert trio.current_time() - began == pytest.approx(first + second)
        assert [retry.max_attempts for retry in scene.of(events.RetryScheduled)] == [3, 3]
        attempts = {call.context.attempt_id for call in scene.engine.calls if call.kind == "compact"}
        assert len(attempts) == 3
        policies = [request.runtime.reliability for request in scene.engine.compact_requests]
        assert [policy.provider_retry_max_attempts for policy in policies] == [3, 2, 1]
        assert (await meta(scene)).total_tokens == 120


async def test_the_servers_advice_wins_if_it_is_later_and_counts_from_when_it_was_read(autojump_clock):
    async def slow(number: int, thread_id: str, records: Any) -> None:
        await trio.sleep(2 if records[0].kind == "usage.recorded" else 0)

    store = FaultyStore(stores.MemoryThreadStore(), before=slow)
    compact = [[U40, failure(retry_after=5.0)], [boundary(), DONE]]
    async with with_goal(compact=compact, store=store) as scene:
        await persist(scene)
        began = trio.current_time()
        await scene.runtime.compact_thread(scene.id)
        assert trio.current_time() - began == pytest.approx(5.0)
        assert scene.of(events.RetryScheduled)[0].delay == pytest.approx(3.0)


async def test_advice_that_is_too_long_is_not_waited_for(autojump_clock):
    async with with_goal(compact=[failure("RATE_LIMITED", retry_after=300.0)]) as scene:
        await persist(scene)
        began = trio.current_time()
        assert await manual(scene) == "rate_limited"
        assert trio.current_time() == began


async def test_a_deadline_that_a_wait_would_overrun_ends_the_compaction(autojump_clock):
    config = settings(auto_compact_token_limit=1, turn_deadline=10.0)
    async with with_goal(
        compact=[failure("RATE_LIMITED", retry_after=30.0)], config=config, requires_native_compaction=True
    ) as scene:
        outcome = await scene.run()
        assert (outcome.error_kind, compact_calls(scene)) == ("rate_limited", 1)
        [call] = scene.engine.calls
        assert call.context.deadline is not None
        assert call.request.runtime.deadline_remaining == pytest.approx(10.0)


@pytest.mark.parametrize("attempts", [0, -3, 1])
async def test_there_is_always_one_attempt(autojump_clock, attempts):
    config = settings(provider_retry_max_attempts=attempts)
    async with with_goal(compact=[failure()], config=config) as scene:
        await persist(scene)
        assert await manual(scene) == INTERRUPTED
        assert compact_calls(scene) == 1


# -- engines without a compaction --------------------------------------------------------------------------------------

UNSUPPORTED = failure("INVALID_REQUEST", cause="compaction_unsupported")


@pytest.mark.parametrize(
    "compact", [(), [None], [UNSUPPORTED], [[U40, UNSUPPORTED]]], ids=["never", "none", "no", "late"]
)
async def test_an_engine_without_a_compaction(autojump_clock, compact):
    script = {"compact": compact * 3, "config": COMPACT_ALWAYS}
    async with with_goal(**script) as scene:
        await persist(scene)
        history = await scene.history()
        outcome = await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", history)
        assert outcome == compaction.Unsupported()
        [failed] = scene.of(events.ContextCompactionFailed)
        assert (failed.error_kind, list(ends_of(scene).values())) == ("compaction_unsupported", [["Failed"]])
        assert (await scene.history(), scene.engine.requests) == (list(HISTORY), [])


@pytest.mark.parametrize("compact", [(), [None], [UNSUPPORTED]], ids=["never", "none", "no"])
@pytest.mark.parametrize("way", ["direct", "manual", "in a turn"])
async def test_an_engine_that_requires_a_compaction_and_has_none_fails(autojump_clock, compact, way):
    script = {"compact": compact, "requires_native_compaction": True, "config": COMPACT_ALWAYS}
    async with with_goal(**script) as scene:
        await persist(scene)
        assert await WAYS[way][0](scene) == "invalid_request"
        assert scene.engine.requests == []
        assert [event.error_kind for event in scene.of(events.ContextCompactionFailed)] == ["invalid_request"]


async def test_what_is_compacted_is_shown_as_an_item(autojump_clock):
    async with with_goal(compact=[[boundary(), DONE]]) as scene:
        await persist(scene)
        await scene.runtime.compact_thread(scene.id)
        async with scene.runtime.thread_view(scene.id) as view:
            assert any(isinstance(shown, items.Compaction) for shown in view.items)
