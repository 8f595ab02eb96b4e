from typing import Any

import pytest

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.boundary import (
    compaction_items,
    counts_for,
    in_band_boundary,
    is_boundary,
    same_boundary,
    without_stored,
)
from roder_trio.logic.compaction import (
    Commit,
    Compact,
    Declined,
    Ending,
    Fail,
    Limits,
    Nothing,
    Proceed,
    Retried,
    Skip,
    Staging,
    decide,
    limits,
    may_preempt,
    step,
    threshold,
)
from roder_trio.schema import inference, transcript
from roder_trio.schema.compaction import Compacted, CompactionResult, Preempted, Unsupported
from roder_trio.schema.inference import EngineTarget, ModelDescriptor
from roder_trio.schema.usage import TokenUsage

# -- when --------------------------------------------------------------------------------------------------------------


def model(**facts: Any) -> ModelDescriptor:
    return ModelDescriptor(provider="p", id="m", **facts)


@pytest.mark.parametrize(
    ("config_limit", "descriptor", "expected"),
    [
        (1_000, model(context_window=128_000), 1_000),
        (0, model(context_window=128_000), 0),
        (None, model(context_window=128_000), 115_200),
        (None, model(context_window=128_000, auto_compact_token_limit=50_000), 50_000),
        (None, model(context_window=128_000, auto_compact_token_limit=0), 0),
        (None, model(), 0),
        (None, None, 0),
        (7, None, 7),
    ],
)
def test_the_threshold_is_the_configs_else_the_catalogs_else_never(config_limit, descriptor, expected):
    assert threshold(config_limit, descriptor) == expected
    assert limits(config_limit, descriptor, requires_native=True) == Limits(expected, None)


@pytest.mark.parametrize(
    ("config_limit", "descriptor", "requires_native", "expected"),
    [
        (None, model(context_window=128_000, supports={"compaction"}), False, Limits(128_000, 115_200)),
        (1_000, model(context_window=128_000, supports={"compaction"}), False, Limits(128_000, 1_000)),
        (None, model(context_window=128_000, supports={"compaction"}), True, Limits(115_200, None)),
        (None, model(context_window=128_000, supports={"images"}), False, Limits(115_200, None)),
        (0, model(context_window=128_000, supports={"compaction"}), False, Limits(0, None)),
        (500, model(supports={"compaction"}), False, Limits(500, 500)),
        (500, None, False, Limits(500, None)),
    ],
)
def test_a_model_that_compacts_in_its_stream_gets_the_threshold(config_limit, descriptor, requires_native, expected):
    assert limits(config_limit, descriptor, requires_native) == expected


@pytest.mark.parametrize(
    ("limit", "window", "baseline", "expected"),
    [
        (1_000, 5, None, Nothing()),
        (1_000, 1_000, None, Compact()),
        (0, 10_000_000, None, Nothing()),
        (1_000, 4_520, None, Compact()),
        (1_000, 5, 5, Nothing()),
        (115_200, 118_499, 113_500, Skip("hysteresis")),
        (115_200, 118_500, 113_500, Compact()),
        (8_000, 8_050, 7_300, Skip("hysteresis")),
        (8_000, 8_100, 7_300, Compact()),
        (128_000, 127_999, None, Nothing()),
        (128_000, 128_000, None, Compact()),
    ],
)
def test_the_table_of_decisions(limit, window, baseline, expected):
    assert decide("auto", threshold=limit, size=window, estimate=window, baseline=baseline) == expected


@pytest.mark.parametrize("trigger", ["overflow", "manual", "direct"])
def test_only_an_automatic_compaction_is_weighed(trigger):
    assert decide(trigger, threshold=0, size=0, estimate=0, baseline=0, failed_before=True) == Compact()


def test_one_failure_skips_the_rest_of_the_turn_before_hysteresis_is_asked():
    due = {"threshold": 1_000, "size": 1_000, "estimate": 1_000, "baseline": 1_000}
    assert decide("auto", **due, failed_before=True) == Skip("failed_before")
    assert decide("auto", **due) == Skip("hysteresis")
    assert decide("auto", **{**due, "size": 999}, failed_before=True) == Nothing()


def test_hysteresis_asks_the_estimate_and_never_the_size():
    assert decide("auto", threshold=1_000, size=9_000, estimate=99, baseline=0) == Skip("hysteresis")
    assert decide("auto", threshold=1_000, size=1_000, estimate=100, baseline=0) == Compact()


@pytest.mark.parametrize(
    ("preempted", "limit", "size", "expected"),
    [
        (0, 1_000, 5_000, True),
        (2, 1_000, 5_000, True),
        (3, 1_000, 999, True),
        (3, 1_000, 1_000, False),
        (9, 0, 9, True),
    ],
)
def test_steers_cannot_preempt_for_ever_while_the_window_is_too_large(preempted, limit, size, expected):
    assert may_preempt(preempted, threshold=limit, size=size) is expected


# -- boundaries --------------------------------------------------------------------------------------------------------


def test_compaction_items_are_those_of_the_two_types_in_a_list():
    one, other = {"type": "compaction"}, {"type": "compaction_summary"}
    assert compaction_items({"output": [one, {"type": "compaction_trigger"}, "x", other]}) == [one, other]
    assert compaction_items({"output": "compaction"}) == compaction_items({}) == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"id": "a", "encrypted_content": "x"}, {"id": "a", "encrypted_content": "x", "more": 1}, True),
        ({"id": "a", "encrypted_content": "x"}, {"id": "a", "encrypted_content": "y"}, False),
        ({"id": "a", "encrypted_content": "x"}, {"id": "b", "encrypted_content": "x"}, False),
        ({"encrypted_content": "x"}, {"encrypted_content": "x"}, True),
        ({"encrypted_content": "x"}, {"encrypted_content": "x", "more": 1}, False),
        ({"id": "a", "encrypted_content": "x"}, {"encrypted_content": "x"}, False),
    ],
)
def test_boundaries_are_the_same_by_id_and_content_or_as_a_whole(one, other, expected):
    assert same_boundary(one, other) is expected
    assert same_boundary(other, one) is expected


def test_an_in_band_boundary_is_stored_with_its_provider():
    item = in_band_boundary({"type": "compaction", "id": "c"}, "openai")
    assert item.payload["output"] == [{"type": "compaction", "id": "c"}]
    assert is_boundary(item)
    assert counts_for(item, EngineTarget("d", "openai", "u"))
    assert not counts_for(item, EngineTarget("d", "other", "u"))


def test_replay_metadata_loses_the_stored_boundary_and_all_before_it():
    stored = {"type": "compaction", "id": "c", "encrypted_content": "x"}
    before, after = {"type": "reasoning", "id": "r"}, {"type": "message", "id": "m"}
    replay = {"output": [before, stored, after], "usage": {}}
    assert without_stored(replay, [stored]) == {"output": [after], "usage": {}}
    assert replay["output"][0] is before
    other = {"type": "compaction", "id": "d", "encrypted_content": "x"}
    assert without_stored({"output": [stored, "x", other]}, [stored]) == {"output": ["x", other]}
    assert without_stored({"output": [other]}, [stored]) == {"output": [other]}
    assert without_stored({"output": None}, [stored]) == {"output": None}
    assert without_stored(replay, []) is replay


# -- native compaction -------------------------------------------------------------------------------------------------


def boundary(id: str | None, **payload: Any) -> inference.ProviderMetadata:
    item = {"type": "compaction", "encrypted_content": id or "sealed", **({"id": id} if id else {})}
    return inference.ProviderMetadata({"output": [item], "compacted_input": [item], **payload})


A, B = boundary("a"), boundary("b")
STAGED = Staging(candidate=transcript.ProviderMetadata(A.payload))
USAGE = inference.Usage(TokenUsage(30, 10, 40))
RETRY = inference.ProviderMetadata({"kind": "reliability_retry_attempt", "attempt": 2})
LOST = ProviderFailure(ProviderFailureKind.STREAM_INTERRUPTED, "disconnected")
DECLINES = ProviderFailure(ProviderFailureKind.INVALID_REQUEST, "no such path", cause="compaction_unsupported")
COMPLETED = inference.Completed()


EMPTY = Staging()


def run(*events: Any, staging: Staging = EMPTY) -> Any:
    verdict = None
    for event in events:
        staging, verdict = step(staging, event)
        if not isinstance(verdict, Proceed | Retried):
            return verdict
    return verdict


@pytest.mark.parametrize(
    "event",
    [
        inference.ProviderMetadata({"note": "other"}),
        inference.ProviderMetadata({"output": "compaction"}),
        inference.ProviderMetadata({"output": [{"type": "compaction_trigger"}]}),
        inference.MessageDelta("text"),
        inference.ReasoningDelta("why"),
        inference.Compaction("started"),
        inference.Compaction("completed", "c", {"type": "compaction"}),
        USAGE,
        boundary("a", more=1),
    ],
)
def test_what_is_no_boundary_leaves_the_staging_untouched(event):
    assert step(STAGED, event) == (STAGED, Proceed())


def test_a_candidate_is_staged_and_then_committed_as_it_came():
    staging, verdict = step(Staging(), A)
    assert (staging, verdict) == (STAGED, Proceed())
    assert step(staging, COMPLETED) == (STAGED, Commit(transcript.ProviderMetadata(A.payload)))


def test_a_retry_inside_the_engine_empties_the_staging():
    assert step(STAGED, RETRY) == (Staging(), Retried())
    native = Staging(requires_native=True, candidate=STAGED.candidate)
    assert step(native, RETRY) == (Staging(requires_native=True), Retried())


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([A, USAGE, LOST], ProviderFailureKind.STREAM_INTERRUPTED),
        ([A, USAGE, inference.Failed("failed")], ProviderFailureKind.PROTOCOL),
        ([A, USAGE, B, COMPLETED], ProviderFailureKind.PROTOCOL),
        ([A, USAGE, inference.ToolCallCompleted("x", "write", "{}")], ProviderFailureKind.PROTOCOL),
        ([inference.ToolCallStarted("x", "write")], ProviderFailureKind.PROTOCOL),
        ([inference.ToolCallDelta("x", "{")], ProviderFailureKind.PROTOCOL),
        ([inference.HostedToolCallStarted("x", "search")], ProviderFailureKind.PROTOCOL),
        ([inference.HostedToolCallCompleted("x", "search", "{}")], ProviderFailureKind.PROTOCOL),
        ([USAGE, COMPLETED], ProviderFailureKind.PROTOCOL),
        ([A, RETRY, COMPLETED], ProviderFailureKind.PROTOCOL),
        ([A, USAGE, Ending.EXHAUSTED], ProviderFailureKind.STREAM_INTERRUPTED),
        ([USAGE, RETRY, A, USAGE, LOST], ProviderFailureKind.STREAM_INTERRUPTED),
        (
            [inference.ProviderMetadata({"output": [*A.payload["output"], *B.payload["output"]]}), USAGE, COMPLETED],
            ProviderFailureKind.PROTOCOL,
        ),
    ],
)
def test_the_table_of_endings_that_commit_nothing(events, kind):
    verdict = run(*events)
    assert isinstance(verdict, Fail)
    assert verdict.failure.kind is kind


@pytest.mark.parametrize("events", [[A, A, USAGE], [USAGE, A], [A, RETRY, USAGE, A], [B, RETRY, A]])
def test_the_same_boundary_again_and_one_after_a_retry_are_committed(events):
    assert run(*events, COMPLETED) == Commit(transcript.ProviderMetadata(A.payload))


def test_a_failure_is_passed_on_as_it_is_and_a_failed_event_gives_its_message():
    assert run(A, LOST).failure is LOST
    assert run(A, inference.Failed("failed")).failure.message == "failed"
    assert step(STAGED, LOST)[0] == Staging()


@pytest.mark.parametrize("ending", [Ending.DECLINED, DECLINES])
def test_a_provider_without_compaction_declines_or_fails_if_it_is_required(ending):
    assert run(ending) == Declined()
    verdict = run(ending, staging=Staging(requires_native=True))
    assert verdict.failure.kind is ProviderFailureKind.INVALID_REQUEST
    assert verdict.failure.cause == "compaction_unsupported"


def test_another_invalid_request_is_a_failure():
    failure = ProviderFailure(ProviderFailureKind.INVALID_REQUEST, "bad", cause="bad_request")
    assert run(failure) == Fail(failure)


ITEM = {"type": "compaction", "id": "a", "encrypted_content": "x"}


@pytest.mark.parametrize(
    ("payload", "valid"),
    [
        ({"output": [ITEM]}, True),
        ({"output": [ITEM, dict(ITEM), {"type": "message"}]}, True),
        ({"output": [{**ITEM, "type": "compaction_summary"}]}, True),
        ({"output": [ITEM], "compacted_input": ["x", {"type": "message"}, ITEM]}, True),
        ({"output": [ITEM, {"type": "compaction_trigger"}]}, True),
        ({"output": [ITEM, {**ITEM, "encrypted_content": "y"}]}, False),
        ({"output": [{"type": "compaction"}]}, False),
        ({"output": [{**ITEM, "encrypted_content": ""}]}, False),
        ({"output": [{**ITEM, "encrypted_content": 7}]}, False),
        ({"output": [ITEM], "compacted_input": []}, False),
        ({"output": [ITEM], "compacted_input": None}, False),
        ({"output": [ITEM], "compacted_input": ITEM}, False),
        ({"output": [ITEM], "compacted_input": [{**ITEM, "id": "b"}]}, False),
    ],
)
def test_a_candidate_is_one_sealed_item_that_its_compacted_input_holds(payload, valid):
    verdict = run(inference.ProviderMetadata(payload))
    assert isinstance(verdict, Proceed if valid else Fail)
    assert valid or verdict.failure.kind is ProviderFailureKind.PROTOCOL


def test_outcomes_are_plain_frozen_values():
    window = [transcript.ProviderMetadata(A.payload)]
    assert Compacted(window) == Compacted(window) != Preempted(window)
    assert Unsupported() == Unsupported()
    result = CompactionResult(False, "nothing_to_compact", None, 5, 5, None)
    assert (result.compacted, result.reason, result.usage) == (False, "nothing_to_compact", None)
