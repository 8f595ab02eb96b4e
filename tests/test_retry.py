"""When a failed attempt is made again, and what a response says of the wait."""

from datetime import UTC, datetime
from typing import Any

import pytest

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.retry import RetrySeries, advice, delay, duration, should_retry, usable
from roder_trio.schema.config import ReliabilityConfig

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def failure(retry_after: float | None = None, kind: str = "RATE_LIMITED", **options: Any) -> ProviderFailure:
    return ProviderFailure(ProviderFailureKind[kind], "no", retry_after=retry_after, **options)


@pytest.mark.parametrize(
    ("failed", "options", "jitter", "advised", "expected"),
    [
        (1, {}, 0, None, 1.0),
        (2, {}, 0, None, 2.0),
        (3, {}, 0, None, 4.0),
        (4, {}, 0, None, 8.0),
        (9, {}, 0, None, 8.0),
        (5000, {}, 0, None, 8.0),
        (5000, {"provider_retry_initial_backoff": 0}, 0, None, 0.0),
        (1, {}, 0.25, None, 1.25),
        (1, {}, 9, None, 1.25),
        (4, {}, 0.25, None, 10.0),
        (1, {}, 0, 5.0, 5.0),
        (1, {"provider_retry_initial_backoff": 7}, 0, 5.0, 7.0),
        (2, {"provider_retry_backoff_factor": 3}, 0, None, 3.0),
        (2, {"provider_retry_max_backoff": 1.5}, 0, None, 1.5),
    ],
)
def test_the_delay_grows_to_its_cap_and_heeds_advice(
    failed: int, options: dict[str, Any], jitter: float, advised: float | None, expected: float
) -> None:
    assert delay(failed, ReliabilityConfig(**options), jitter=jitter, advice=advised) == expected


def test_a_series_has_three_attempts_by_default() -> None:
    series = RetrySeries(ReliabilityConfig())
    assert [series.next(failure(), 0, 0.0) for _ in range(3)] == [1.0, 2.0, None]


@pytest.mark.parametrize("allowed", [1, 0, -4])
def test_a_budget_of_less_than_one_is_one(allowed: int) -> None:
    series = RetrySeries(ReliabilityConfig(provider_retry_max_attempts=allowed))
    assert series.max_attempts == 1
    assert series.next(failure(), 0, 0.0) is None


def test_attempts_made_inside_an_engine_are_spent_from_the_budget() -> None:
    series = RetrySeries(ReliabilityConfig(provider_retry_max_attempts=4))
    series.spend(2)
    assert series.next(failure(), 0, 0.0) == 4.0
    assert series.next(failure(), 0, 0.0) is None


@pytest.mark.parametrize("kind", list(ProviderFailureKind))
def test_only_failures_that_may_pass_are_retried(kind: ProviderFailureKind) -> None:
    passing = {"TRANSPORT", "STREAM_INTERRUPTED", "RATE_LIMITED", "SERVER_OVERLOADED", "TIMEOUT"}
    retried = RetrySeries(ReliabilityConfig()).next(failure(kind=kind.name), 0, 0.0) is not None
    assert retried == (kind.name in passing)


def test_the_word_of_the_server_on_retrying_wins() -> None:
    series = RetrySeries(ReliabilityConfig())
    assert series.next(failure(should_retry=False), 0, 0.0) is None
    assert series.next(failure(kind="PROTOCOL", should_retry=True), 0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("advised", "remaining", "expected"),
    [(5.0, None, 5.0), (120.0, None, 120.0), (120.5, None, None), (5.0, 4.0, None), (5.0, 5.0, 5.0), (0.5, 0.6, 1.0)],
)
def test_advice_is_waited_for_within_the_limit_and_the_deadline(
    advised: float, remaining: float | None, expected: float | None
) -> None:
    failed = failure(advised)
    assert RetrySeries(ReliabilityConfig()).next(failed, 0, 0.0, remaining) == expected
    assert failed.retry_after == advised


def test_advice_is_an_instant_fixed_when_it_was_read() -> None:
    series = RetrySeries(ReliabilityConfig(provider_retry_max_attempts=9))
    assert series.next(failure(10.0), 0, 103.0, read_at=100.0) == 7.0
    assert series.next(failure(10.0), 0, 103.0, 7.0, read_at=100.0) == 7.0
    assert series.next(failure(3.0), 0, 110.0, read_at=100.0) == 4.0


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, None, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, None, 1.5),
        ({"retry-after-ms": "x", "retry-after": "9"}, None, 9.0),
        ({"retry-after": "2.5"}, None, 2.5),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:07 GMT"}, None, 7.0),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:07 GMT", "date": "Thu, 01 Jan 2026 12:00:05 GMT"}, None, 2.0),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:07 -0000", "date": "nonsense"}, None, 7.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, None, None),
        *(({"retry-after": text}, None, None) for text in ("0", "-3", "nan", "inf", "1e999", "soon", "")),
        ({}, {"error": {"details": [{"@type": "x"}, {"retryDelay": "37s"}]}}, 37.0),
        ({}, {"details": [{"retryDelay": "1m1.5s"}, 3]}, 61.5),
        ({}, {"error": "text"}, None),
        ({}, {"error": {"details": 5}}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, None, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, None, 0.02),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "12"}, None, 12.0),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "20ms"}, None, None),
        ({"x-ratelimit-reset-tokens": "20ms"}, None, None),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2026-01-01T12:00:30Z",
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-01-01T12:01:00",
            },
            None,
            60.0,
        ),
        ({"anthropic-ratelimit-x-remaining": "0", "anthropic-ratelimit-x-reset": "never"}, None, None),
    ],
)
def test_advice_is_read_from_the_first_place_that_has_some(
    headers: dict[str, str], body: Any, expected: float | None
) -> None:
    assert advice(headers, body, now=NOW) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1h2m3.5s", 3723.5),
        ("37s", 37),
        ("0s", None),
        ("", None),
        ("x", None),
        (5, None),
    ],
)
def test_durations_are_read(text: object, expected: float | None) -> None:
    assert duration(text) == (None if expected is None else pytest.approx(expected))


def test_only_positive_finite_numbers_are_usable() -> None:
    assert [usable(value) for value in (True, None, [], "x", 10**400, 0, -1, "2")] == [None] * 7 + [2.0]


def test_the_server_may_say_whether_to_retry() -> None:
    assert [should_retry({"x-should-retry": text}) for text in ("true", " FALSE ", "maybe")] == [True, False, None]
    assert should_retry({}) is None
