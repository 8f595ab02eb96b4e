"""The settings, goals, labels and options refuse what can't work, and say which one it is."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roder_trio.schema import goal as goals
from roder_trio.schema.config import Deadlines, ReliabilityConfig, RuntimeConfig
from roder_trio.schema.ids import MAX_ID_LENGTH, UNSET, is_valid_id
from roder_trio.schema.inference import InferenceCapabilities
from roder_trio.schema.policy import Verdict
from roder_trio.schema.thread import MAX_LABELS, ThreadMetadata, frozen_labels
from roder_trio.schema.transcript import is_final_phase
from roder_trio.schema.turn import OutputOptions

NOW = datetime(2026, 1, 2, tzinfo=UTC)

REFUSED = [
    (RuntimeConfig, "default_provider", 3),
    (RuntimeConfig, "default_model", b"m"),
    (RuntimeConfig, "workspace", "relative/path"),
    (RuntimeConfig, "workspace", 3),
    (RuntimeConfig, "auto_compact_token_limit", -1),
    (RuntimeConfig, "auto_compact_token_limit", 1.0),
    (RuntimeConfig, "max_pending_steers", 0),
    (RuntimeConfig, "max_pending_steers", True),
    (RuntimeConfig, "max_resident_threads", None),
    (RuntimeConfig, "delta_checkpoint_interval", 0),
    (RuntimeConfig, "usage_checkpoint_interval", -0.1),
    (RuntimeConfig, "usage_checkpoint_interval", math.inf),
    (RuntimeConfig, "reliability", None),
    (RuntimeConfig, "deadlines", {}),
    (ReliabilityConfig, "provider_retry_max_attempts", "3"),
    (ReliabilityConfig, "provider_retry_initial_backoff", math.nan),
    (ReliabilityConfig, "provider_retry_backoff_factor", 0.5),
    (ReliabilityConfig, "provider_retry_max_wait", True),
    (ReliabilityConfig, "retry_empty_provider_body", 1),
    (ReliabilityConfig, "turn_deadline", 0),
    (ReliabilityConfig, "stream_idle_timeout", "5"),
    (ReliabilityConfig, "max_model_calls_per_turn", 0),
    (OutputOptions, "max_tokens", 0),
    (OutputOptions, "max_tokens", True),
    (OutputOptions, "temperature", 2.1),
    (OutputOptions, "temperature", False),
    (OutputOptions, "top_p", "1"),
    *((Deadlines, field.name, 0) for field in attrs.fields(Deadlines)),
]

ACCEPTED = [
    (RuntimeConfig, "workspace", "/absolute"),
    (RuntimeConfig, "auto_compact_token_limit", 0),
    (RuntimeConfig, "usage_checkpoint_interval", 0),
    (ReliabilityConfig, "provider_retry_max_attempts", -5),
    (ReliabilityConfig, "turn_deadline", 0.001),
    (ReliabilityConfig, "stream_idle_timeout", None),
    (OutputOptions, "max_tokens", 1),
    (OutputOptions, "temperature", 0),
    (OutputOptions, "top_p", None),
]


@pytest.mark.parametrize(("kind", "name", "value"), REFUSED)
def test_a_setting_out_of_range_is_refused_by_name(kind: Any, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name", "value"), ACCEPTED)
def test_a_setting_at_the_edge_of_its_range_is_taken(kind: Any, name: str, value: object) -> None:
    assert getattr(kind(**{name: value}), name) == value


@pytest.mark.parametrize("kind", [RuntimeConfig, ReliabilityConfig, Deadlines])
def test_settings_have_names_only_and_never_change(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind("positional")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        kind().anything = 1


@pytest.mark.parametrize(
    "labels",
    [{"": "x"}, {"k" * 129: "x"}, {"k": "x" * 513}, {3: "x"}, {"k": 3}, {str(n): "" for n in range(MAX_LABELS + 1)}],
)
def test_labels_that_no_store_would_take_are_refused(labels: Any) -> None:
    with pytest.raises(ValueError, match="label"):
        frozen_labels(labels)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RuntimeConfig(policy_mode="ask"), "a PolicyMode is one of 'default', 'accept_all', 'plan', 'bypass'"),
        (lambda: Verdict("no"), "a PolicyDecision is one of 'allowed', 'auto', 'ask', 'denied', not 'no'"),
        (lambda: goals.GoalPatch(status="done"), "a GoalStatus is one of 'active', .*'complete', not 'done'"),
    ],
)
def test_a_text_that_is_none_of_a_few_is_told_with_those_that_are(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_labels_are_a_copy_that_nobody_changes() -> None:
    mine = {"k" * 128: "x" * 512}
    frozen: Any = frozen_labels(mine)
    mine.clear()
    assert dict(frozen) == {"k" * 128: "x" * 512}
    with pytest.raises(TypeError):
        frozen["a"] = "b"


def test_a_workspace_is_absolute_and_has_no_space_around_it() -> None:
    times = {"created_at": NOW, "updated_at": NOW}
    assert ThreadMetadata(thread_id="t", workspace=" /here \n", **times).workspace == "/here"
    assert ThreadMetadata(thread_id="t", **times).workspace is None
    with pytest.raises(ValueError, match="workspace"):
        ThreadMetadata(thread_id="t", workspace="here", **times)


@given(st.text(st.characters() | st.sampled_from("\0\ud800\udfff"), max_size=20))
def test_an_id_is_valid_unless_it_is_empty_or_holds_nul_or_a_lone_surrogate(value: str) -> None:
    surrogates = any("\ud800" <= letter <= "\udfff" for letter in value)
    assert is_valid_id(value) == (value != "" and "\0" not in value and not surrogates)


def test_an_id_has_a_longest_length_and_is_text() -> None:
    assert is_valid_id("x" * MAX_ID_LENGTH)
    assert not is_valid_id("x" * (MAX_ID_LENGTH + 1))
    assert not is_valid_id(b"x")


def test_a_patch_of_a_goal_keeps_what_it_does_not_name() -> None:
    patch = goals.GoalPatch()
    assert (patch.objective, patch.status, patch.token_budget) == (None, None, UNSET)


def test_a_patch_of_a_goal_takes_texts_for_words_and_trims_the_objective() -> None:
    patch = goals.GoalPatch(objective="  ship it ", status="paused", token_budget=5)
    assert (patch.objective, patch.status, patch.token_budget) == ("ship it", goals.GoalStatus.PAUSED, 5)
    assert goals.GoalPatch(token_budget=None).token_budget is None


@pytest.mark.parametrize(
    "fields",
    [
        {"objective": "  "},
        {"objective": "x" * (goals.MAX_OBJECTIVE + 1)},
        {"objective": 3},
        {"status": "no such status"},
        {"status": goals.GoalStatus.BUDGET_LIMITED},
        {"token_budget": 0},
        {"token_budget": True},
        {"token_budget": "5"},
    ],
)
def test_a_patch_of_a_goal_is_refused_as_a_whole(fields: Any) -> None:
    with pytest.raises(ValueError):
        goals.GoalPatch(**fields)


@pytest.mark.parametrize(("budget", "used", "left"), [(None, 7, None), (10, 4, 6), (10, 10, 0), (10, 12, 0)])
def test_what_remains_of_a_budget_is_never_below_zero(budget: int | None, used: int, left: int | None) -> None:
    goal = goals.Goal(
        goal_id="g",
        thread_id="t",
        objective="o",
        status=goals.GoalStatus.ACTIVE,
        token_budget=budget,
        tokens_used=used,
        created_at=NOW,
        updated_at=NOW,
    )
    assert goal.remaining_tokens == left


def test_an_agent_can_do_everything_and_a_text_engine_streams() -> None:
    assert all(attrs.astuple(InferenceCapabilities.agent()))
    text = InferenceCapabilities.text_only()
    assert {name for name, can in attrs.asdict(text).items() if can} == {"streaming", "provider_metadata"}


@pytest.mark.parametrize(
    ("phase", "final"), [(None, True), ("", True), ("final_answer", True), ("commentary", False), ("analysis", False)]
)
def test_a_phase_is_the_answer_or_commentary(phase: str | None, final: bool) -> None:
    assert is_final_phase(phase) is final
