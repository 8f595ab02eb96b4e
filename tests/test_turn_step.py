"""One sampling step: its runs, what it holds back, and the requests of a turn."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.stop import finish_reason
from roder_trio.logic.turn import Step, compaction_request, next_request
from roder_trio.logic.window import History
from roder_trio.schema import inference
from roder_trio.schema.command import TurnOptions, TurnPlan
from roder_trio.schema.config import ReliabilityConfig, RuntimeConfig
from roder_trio.schema.transcript import (
    AssistantMessage,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    TranscriptItem,
    UserMessage,
    is_final_phase,
)
from roder_trio.schema.turn import OutputOptions
from roder_trio.schema.usage import TokenUsage

SAY, THINK, DONE = inference.MessageDelta, inference.ReasoningDelta, inference.Completed()
BEGIN, CALL = inference.ToolCallStarted("c1", "look"), inference.ToolCallCompleted("c1", "look", '{"a": 1}')
COMPACTED = {"type": "compaction", "id": "k1", "encrypted_content": "x"}
BOUNDARY = inference.Compaction("completed", "k1", COMPACTED)
STORED_BOUNDARY = ProviderMetadata({"provider": "one", "output": [COMPACTED]})


def note(**payload: Any) -> inference.ProviderMetadata:
    return inference.ProviderMetadata(payload)


def fed(*events: inference.InferenceEvent) -> tuple[Step, list[TranscriptItem]]:
    """A step that took these events, and what was complete on the way."""
    step = Step("one")
    return step, [item for event in events for item in step.absorb(event)]


def told(*events: inference.InferenceEvent) -> list[TranscriptItem]:
    """All that a step leaves which ends with these events."""
    step, done = fed(*events)
    return [*done, *step.final_items()]


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "at_once", "at_the_end"),
    [
        ([SAY("a"), SAY("b"), DONE], [], [AssistantMessage("ab")]),
        ([THINK("r"), SAY("a"), DONE], [ReasoningSummary("r")], [AssistantMessage("a")]),
        ([SAY("a"), THINK("r"), DONE], [AssistantMessage("a")], [ReasoningSummary("r")]),
        ([SAY("a", "commentary"), SAY("b"), DONE], [AssistantMessage("a", "commentary")], [AssistantMessage("b")]),
        ([SAY("a"), SAY("b", ""), SAY("c", "final_answer"), DONE], [], [AssistantMessage("abc")]),
        ([SAY("a", "final_answer"), SAY("b"), DONE], [], [AssistantMessage("ab", "final_answer")]),
        ([SAY("a", "x"), SAY("b", "y")], [AssistantMessage("a", "x")], [AssistantMessage("b", "y")]),
        ([SAY("a"), BEGIN], [AssistantMessage("a")], []),
        ([SAY("a"), CALL], [AssistantMessage("a")], [ToolCall("c1", "look", '{"a": 1}')]),
        ([THINK("r"), BEGIN, inference.ToolCallDelta("c1", "{")], [ReasoningSummary("r")], []),
        ([SAY("a"), BOUNDARY, SAY("b")], [AssistantMessage("a"), STORED_BOUNDARY], [AssistantMessage("b")]),
        ([SAY(" \n"), THINK("r")], [], [ReasoningSummary("r")]),
        ([THINK("\t"), SAY(" a ")], [], [AssistantMessage(" a ")]),
        ([SAY(""), THINK(""), SAY("", "commentary")], [], []),
        ([SAY("a"), THINK(""), SAY("b")], [], [AssistantMessage("ab")]),
    ],
)
def test_a_run_is_complete_when_the_stream_moves_on(events, at_once, at_the_end):
    step, done = fed(*events)
    assert done == at_once
    assert list(step.final_items()) == at_the_end


@pytest.mark.parametrize(
    "between",
    [
        inference.Usage(TokenUsage(1, 1, 2)),
        note(kind="state"),
        inference.ToolCallDelta("c1", "{"),
        inference.HostedToolCallStarted("h", "search"),
        inference.HostedToolCallCompleted("h", "search", "{}"),
        inference.Compaction("started"),
        inference.Compaction("failed", "k1"),
        inference.Compaction("completed"),
    ],
)
def test_what_is_no_text_and_no_call_ends_no_run(between):
    _, done = fed(SAY("a"), between, SAY("b"))
    assert done == []
    assert AssistantMessage("ab") in told(SAY("a"), between, SAY("b"), DONE)


def test_a_step_ends_with_its_last_run_then_metadata_then_calls_in_call_order():
    second = inference.ToolCallCompleted("c2", "look", "{}")
    assert told(THINK("r"), CALL, note(output=[1]), second, SAY("a"), DONE) == [
        ReasoningSummary("r"),
        AssistantMessage("a"),
        ProviderMetadata({"output": [1]}),
        ToolCall("c1", "look", '{"a": 1}'),
        ToolCall("c2", "look", "{}"),
    ]


def test_a_repeated_call_is_one_call():
    assert told(CALL, inference.ToolCallCompleted("c1", "look", "{}"), DONE) == [ToolCall("c1", "look", '{"a": 1}')]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (inference.ToolCallStarted("", "look"), "without an id"),
        (inference.ToolCallCompleted("", "look", "{}"), "without an id"),
        (inference.Failed("no more"), "no more"),
        ("hello", "sent str, which is no stream event"),
        (None, "sent NoneType, which"),
        (inference.ProviderMetadata([1]), "no JSON object"),
    ],
)
def test_what_no_engine_may_send_is_a_protocol_failure(event, message):
    step = Step("one")
    step.absorb(SAY("a"))
    with pytest.raises(ProviderFailure, match=message) as raised:
        step.absorb(event)
    assert raised.value.kind is ProviderFailureKind.PROTOCOL
    assert step.unfinished() == (AssistantMessage("a", interrupted=True),)


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([SAY("a", "commentary"), SAY("b", "commentary")], (AssistantMessage("ab", "commentary", interrupted=True),)),
        ([SAY("a"), THINK("r")], ()),
        ([SAY(" ")], ()),
        ([SAY("a"), BEGIN, inference.ToolCallDelta("c1", "{")], ()),
        ([CALL, note(output=[1])], ()),
        ([], ()),
    ],
)
def test_a_step_that_is_cut_leaves_only_the_message_that_was_growing(events, left):
    step, _ = fed(*events)
    assert step.unfinished() == left


texts = st.sampled_from(["a", "b ", " ", "\n", "", "é"])
phases = st.sampled_from([None, "", "final_answer", "commentary", "plan"])
calls = st.sampled_from(["c1", "c2", "c3"])
stream_events = st.one_of(
    st.builds(SAY, texts, phases),
    st.builds(THINK, texts),
    st.builds(inference.ToolCallStarted, calls, st.just("look")),
    st.builds(inference.ToolCallDelta, calls, texts),
    st.builds(inference.ToolCallCompleted, calls, st.just("look"), texts),
    st.builds(inference.HostedToolCallStarted, calls, st.just("search")),
    st.builds(inference.HostedToolCallCompleted, calls, st.just("search"), texts),
    st.just(inference.Usage(TokenUsage(1, 1, 2))),
    st.sampled_from([note(end_turn=False), note(output=[{"type": "reasoning"}]), note(kind="request_repair")]),
)


def runs_of(events: list[inference.InferenceEvent]) -> list[tuple[str, str]]:
    """The runs of a stream, (sort, text), the slow way."""
    runs: list[tuple[str, str]] = []
    moved_on = True
    for event in events:
        match event:
            case inference.MessageDelta(text, phase) if text:
                sort = "final" if is_final_phase(phase) else str(phase)
            case inference.ReasoningDelta(text) if text:
                sort = "reasoning"
            case inference.ToolCallStarted() | inference.ToolCallCompleted():
                moved_on = True
                continue
            case _:
                continue
        if moved_on or runs[-1][0] != sort:
            runs.append((sort, text))
        else:
            runs[-1] = (sort, runs[-1][1] + text)
        moved_on = False
    return runs


def as_runs(items: list[TranscriptItem]) -> list[tuple[str, str]]:
    runs = []
    for item in items:
        match item:
            case AssistantMessage(text, phase):
                runs.append(("final" if is_final_phase(phase) else str(phase), text))
            case ReasoningSummary(text):
                runs.append(("reasoning", text))
    return runs


@given(st.lists(stream_events, max_size=20))
@settings(max_examples=200)
def test_no_text_of_a_stream_is_lost_or_said_twice(events):
    expected = [run for run in runs_of(events) if run[1].strip()]
    assert as_runs(told(*events, DONE)) == expected

    step, done = fed(*events)
    growing = bool(step.unfinished()) or not done or as_runs(done) == expected
    left = as_runs([*done, *step.unfinished()])
    assert growing or expected[-1][0] == "reasoning"
    assert left in (expected, expected[:-1])
    assert all(item.interrupted for item in step.unfinished() if isinstance(item, AssistantMessage))


# -- metadata ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "forces", "retries", "stored"),
    [
        ({"end_turn": False}, True, 0, False),
        ({"end_turn": True}, False, 0, False),
        ({"end_turn": None}, False, 0, False),
        ({"end_turn": False, "output": []}, True, 0, True),
        ({"kind": "reliability_retry_attempt", "attempt": 2}, False, 1, False),
        ({"kind": "request_repair"}, False, 0, False),
        ({"kind": "other"}, False, 0, True),
        ({"output": [{"type": "reasoning"}]}, False, 0, True),
    ],
)
def test_signals_are_heard_and_not_stored(payload, forces, retries, stored):
    step, done = fed(inference.ProviderMetadata(payload), DONE)
    assert (step.forces_round, step.retries_inside, done) == (forces, retries, [])
    assert list(step.final_items()) == ([ProviderMetadata(payload)] if stored else [])


def test_held_metadata_is_dropped_if_the_step_is_cut():
    step, done = fed(note(output=[1]), SAY("a"))
    assert (done, step.unfinished()) == ([], (AssistantMessage("a", interrupted=True),))


def test_a_boundary_in_metadata_is_stored_at_once_and_taken_out_of_it():
    reasoning = {"type": "reasoning", "id": "r1"}
    step, done = fed(SAY("a"), note(response_id="x", output=[{"type": "message"}, COMPACTED, reasoning]))
    assert done == [AssistantMessage("a"), STORED_BOUNDARY]
    assert step.final_items() == (ProviderMetadata({"response_id": "x", "output": [reasoning]}),)


def test_metadata_that_is_but_a_boundary_is_stored_once():
    step, done = fed(note(output=[COMPACTED, dict(COMPACTED)]))
    assert (done, step.final_items()) == ([STORED_BOUNDARY], ())


def test_a_boundary_that_is_stored_is_taken_out_of_later_metadata():
    step, done = fed(BOUNDARY, note(model="m", output=[COMPACTED, {"type": "reasoning"}]))
    assert done == [STORED_BOUNDARY]
    assert step.final_items() == (ProviderMetadata({"model": "m", "output": [{"type": "reasoning"}]}),)


def test_the_same_boundary_again_is_none_and_another_is_a_further_one():
    other = {**COMPACTED, "id": "k2"}
    step, done = fed(BOUNDARY, SAY("a"), BOUNDARY, inference.Compaction("completed", "k2", other), note(output=[other]))
    assert done == [
        STORED_BOUNDARY,
        AssistantMessage("a"),
        ProviderMetadata({"provider": "one", "output": [other]}),
    ]
    assert step.final_items() == (ProviderMetadata({"output": []}),)


@pytest.mark.parametrize(
    ("events", "counted"),
    [
        ([SAY("a"), DONE], 7),
        ([SAY("a")], None),
        ([note(context_tokens=5), DONE], 5),
        ([note(context_tokens=None), note(context_tokens=True), note(context_tokens=4), DONE], 4),
        ([inference.HostedToolCallStarted("h", "search"), DONE], None),
        ([inference.HostedToolCallStarted("h", "search"), note(context_tokens=5), DONE], 5),
        ([BOUNDARY, note(context_tokens=5), DONE], None),
    ],
)
def test_a_step_tells_how_many_tokens_its_request_had_if_it_can(events, counted):
    step, _ = fed(*events)
    assert step.context_tokens(7) == counted


# -- finish reasons ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        *((raw, "stop") for raw in ("end_turn", "stop", "stop_sequence", "eos", "completed")),
        *((raw, "length") for raw in ("max_tokens", "length", "max_output_tokens")),
        *((raw, "tool_use") for raw in ("tool_use", "tool_calls", "function_call")),
        ("content_filter", "content_filter"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        (None, None),
    ],
)
def test_finish_reasons_are_the_same_whatever_the_engine(raw, reason):
    assert finish_reason(raw) == reason
    assert fed(inference.Completed(raw))[0].finish_reason == reason
    with_calls = "tool_use" if reason == "stop" else reason
    assert finish_reason(raw, has_calls=True) == with_calls
    assert fed(CALL, inference.Completed(raw))[0].finish_reason == with_calls


def test_a_step_without_an_end_has_no_finish_reason():
    assert fed(SAY("a"))[0].finish_reason is None


# -- requests ----------------------------------------------------------------------------------------------------------

PLAN = TurnPlan(turn_id="u", provider="one", model="m", developer_instructions="thread's")


def test_a_request_holds_the_plan_and_the_settings():
    options = TurnOptions(
        instructions="turn's", developer_context="now", service_tier="flex", output=OutputOptions(9, 0.5, 0.9)
    )
    plan = TurnPlan(turn_id="u", provider="one", model="m", reasoning="high", options=options)
    config = RuntimeConfig(
        instructions="config's", default_service_tier="auto", reliability=ReliabilityConfig(stream_idle_timeout=1)
    )
    transcript = [UserMessage("hello")]
    request = next_request(plan, transcript, config, thread_id="t", compact_limit=100, deadline_remaining=2.5)
    assert request.model == inference.ModelChoice("one", "m")
    assert request.instructions == inference.Instructions("turn's", None, "now")
    assert request.transcript is transcript
    assert request.reasoning == inference.ReasoningOptions(True, "high")
    assert request.output == inference.OutputRequest(9, 0.5, 0.9)
    assert request.runtime == inference.RequestRuntime(
        prompt_cache_key="t",
        auto_compact_token_limit=100,
        deadline_remaining=2.5,
        service_tier="flex",
        reliability=config.reliability,
    )


def test_what_a_turn_leaves_open_is_taken_from_the_config():
    config = RuntimeConfig(instructions="config's", default_service_tier="auto")
    request = next_request(PLAN, [], config, thread_id="t")
    assert request.instructions == inference.Instructions("config's", "thread's", None)
    assert (request.runtime.service_tier, request.output) == ("auto", inference.OutputRequest())


@pytest.mark.parametrize(("reasoning", "enabled"), [(None, False), ("none", False), ("low", True)])
def test_reasoning_is_on_if_a_level_but_none_is_chosen(reasoning, enabled):
    plan = TurnPlan(turn_id="u", provider="one", model="m", reasoning=reasoning)
    options = next_request(plan, [], RuntimeConfig(), thread_id="t").reasoning
    assert options == inference.ReasoningOptions(enabled, reasoning)


@pytest.mark.parametrize(
    ("developer", "hint", "text"),
    [
        ("thread's", None, "thread's"),
        ("thread's", "  ", "thread's"),
        ("thread's", " keep names ", "thread's\n\nkeep names"),
        (None, "keep names", "keep names"),
        ("", "keep names", "keep names"),
    ],
)
def test_the_hint_of_a_compaction_stands_at_the_end_of_the_developer_text(developer, hint, text):
    history = History([UserMessage("hello"), STORED_BOUNDARY, UserMessage("more")])
    plan = TurnPlan(turn_id="u", provider="one", model="m", developer_instructions=developer)
    window = history.window()
    request = compaction_request(plan, window, RuntimeConfig(), thread_id="t", attempts_left=2, hint=hint)
    assert request.instructions.developer == text
    assert request.runtime.reliability == ReliabilityConfig(provider_retry_max_attempts=2)
    assert request.transcript == [STORED_BOUNDARY, UserMessage("more")]


def test_a_request_says_whether_the_provider_may_search_the_web() -> None:
    for choice in ("disabled", "cached", "live"):
        request = next_request(PLAN, (), RuntimeConfig(hosted_web_search=choice), thread_id="t")
        assert request.runtime.hosted_web_search == choice
    with pytest.raises(ValueError, match="hosted_web_search must be one of disabled, cached, live, not 'sometimes'"):
        RuntimeConfig(hosted_web_search="sometimes")  # type: ignore[arg-type]
