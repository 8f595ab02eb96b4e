"""When a failed attempt is made again, and how long to wait before it.

Pure: the clock's reading, the jitter and the response come as arguments. Times are seconds. One series is one budget;
what an engine retried inside itself is spent from it too.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from roder_trio.errors import ProviderFailure
from roder_trio.schema.config import ReliabilityConfig

MAX_JITTER = 0.25

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS = (3600.0, 60.0, 1.0, 0.001)
_RESET = re.compile(r"(?:x-ratelimit-reset-(?P<dimension>.+)|anthropic-ratelimit-(?P<anthropic>.+)-reset)")


def delay(failed: int, config: ReliabilityConfig, *, jitter: float = 0.0, advice: float | None = None) -> float:
    """Return the seconds to wait after `failed` attempts: the back-off, or the server's advice if that is later.

    `jitter` is a share of 0 to 0.25 that is added to the back-off.
    """
    try:
        wait = config.provider_retry_initial_backoff * config.provider_retry_backoff_factor ** (failed - 1)
    except OverflowError:
        wait = config.provider_retry_max_backoff if config.provider_retry_initial_backoff else 0.0
    wait = min(config.provider_retry_max_backoff, wait) * (1 + min(max(jitter, 0.0), MAX_JITTER))
    return max(wait, advice or 0.0)


class RetrySeries:
    """The attempts at one request. The budget counts the first one; it is at least 1."""

    def __init__(self, config: ReliabilityConfig) -> None:
        self._config = config
        self.max_attempts = max(1, config.provider_retry_max_attempts)
        self.attempts = 1
        """Made or spent so far, the running one included."""

    @property
    def left(self) -> int:
        """Attempts that may still be made, the running one included."""
        return max(1, self.max_attempts - self.attempts + 1)

    def spend(self, count: int = 1) -> None:
        """Count attempts that an engine made inside its stream."""
        self.attempts += count

    def next(
        self,
        failure: ProviderFailure,
        jitter: float,
        now: float,
        deadline_remaining: float | None = None,
        *,
        read_at: float | None = None,
    ) -> float | None:
        """Return the seconds until the next attempt, which counts as begun; None if the failure stands.

        The server's advice is an instant, fixed at `read_at` (default `now`). Advice that is longer than
        `provider_retry_max_wait`, or ends past the deadline, is not waited for.
        """
        if not failure.retryable or self.attempts >= self.max_attempts:
            return None
        advice = None
        if failure.retry_after is not None:
            advice = max(0.0, (now if read_at is None else read_at) + failure.retry_after - now)
            if failure.retry_after > self._config.provider_retry_max_wait:
                return None
            if deadline_remaining is not None and advice > deadline_remaining:
                return None
        wait = delay(self.attempts, self._config, jitter=jitter, advice=advice)
        self.attempts += 1
        return wait


# -- what a response says ----------------------------------------------------------------------------------------------


def advice(headers: Mapping[str, str], body: object = None, *, now: datetime) -> float | None:
    """Return the seconds that a failed response asks to wait; None if it says nothing that can be used.

    `headers` has lower-case names, `body` is the parsed JSON, `now` an aware time. A number that isn't positive and
    finite, and a text that can't be read, count as not said.
    """
    sources = (_retry_after_ms, _retry_after, _retry_info, _exhausted_reset)
    moment = _date(headers.get("date")) or now
    return next((value for source in sources if (value := source(headers, body, moment)) is not None), None)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return the server's word on whether to try again; None if it gave none."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def usable(value: object) -> float | None:
    """Return `value` as seconds if it is a positive, finite number or the text of one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < math.inf else None


def duration(text: object) -> float | None:
    """Return the seconds of a text such as `6m0s`, `20ms` or `37s`."""
    found = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    return usable(sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS, strict=True) if part))


def _retry_after_ms(headers: Mapping[str, str], body: object, moment: datetime) -> float | None:
    value = usable(headers.get("retry-after-ms"))
    return None if value is None else value / 1000


def _retry_after(headers: Mapping[str, str], body: object, moment: datetime) -> float | None:
    text = headers.get("retry-after")
    return usable(text) or _until(_date(text), moment)


def _retry_info(headers: Mapping[str, str], body: object, moment: datetime) -> float | None:
    return next(filter(None, (duration(detail.get("retryDelay")) for detail in _details(body))), None)


def _details(body: object) -> Iterator[Mapping[str, Any]]:
    error = body.get("error", body) if isinstance(body, Mapping) else None
    details = error.get("details") if isinstance(error, Mapping) else None
    if isinstance(details, Sequence):
        yield from (detail for detail in details if isinstance(detail, Mapping))


def _exhausted_reset(headers: Mapping[str, str], body: object, moment: datetime) -> float | None:
    waits = []
    for name, text in headers.items():
        found = _RESET.fullmatch(name)
        if found is None or headers.get(name.replace("reset", "remaining"), "").strip() != "0":
            continue
        stamp = _until(_timestamp(text), moment)
        waits.append(stamp if found["anthropic"] else duration(text) or usable(text) or stamp)
    return max(filter(None, waits), default=None)


def _until(then: datetime | None, moment: datetime) -> float | None:
    return None if then is None else usable((then - moment).total_seconds())


def _date(text: str | None) -> datetime | None:
    try:
        return None if text is None else _aware(parsedate_to_datetime(text))
    except (ValueError, TypeError):
        return None


def _timestamp(text: str) -> datetime | None:
    try:
        return _aware(datetime.fromisoformat(text.strip()))
    except ValueError:
        return None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
