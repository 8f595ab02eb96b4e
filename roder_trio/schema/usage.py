"""Token counts, and the names of what produces them."""

import enum

import attrs

MAX_TOKENS = 2**63 - 1

_COUNTERS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cached_prompt_tokens",
    "cache_creation_prompt_tokens",
    "reasoning_tokens",
)


@attrs.frozen
class TokenUsage:
    """What a provider counted. Cached and cache-creation tokens are parts of the prompt, reasoning of the completion.

    `total_tokens` is the provider's number, never derived here. Parts are clamped to their whole, and an empty
    usage has no service tier, so `TokenUsage(0, 0, 0)` is the one zero.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_prompt_tokens: int = 0
    cache_creation_prompt_tokens: int = 0
    reasoning_tokens: int = 0
    service_tier: str | None = None

    def __attrs_post_init__(self) -> None:
        self._check_counters()
        if self.cached_prompt_tokens + self.cache_creation_prompt_tokens > self.prompt_tokens:
            cached = min(self.cached_prompt_tokens, self.prompt_tokens)
            object.__setattr__(self, "cached_prompt_tokens", cached)
            created = min(self.cache_creation_prompt_tokens, self.prompt_tokens - cached)
            object.__setattr__(self, "cache_creation_prompt_tokens", created)
        if self.reasoning_tokens > self.completion_tokens:
            object.__setattr__(self, "reasoning_tokens", self.completion_tokens)
        if self.service_tier is not None and self.is_empty:
            object.__setattr__(self, "service_tier", None)

    def _check_counters(self) -> None:
        # all at once: a validator per field costs more than all the rest, and a log holds thousands of these
        counters = (
            self.prompt_tokens,
            self.completion_tokens,
            self.total_tokens,
            self.cached_prompt_tokens,
            self.cache_creation_prompt_tokens,
            self.reasoning_tokens,
        )
        for index, value in enumerate(counters):
            if type(value) is not int or not 0 <= value <= MAX_TOKENS:
                raise ValueError(f"{_COUNTERS[index]} must be an integer from 0 to 2**63-1, not {value!r}")

    @property
    def is_empty(self) -> bool:
        """True if all six counters are 0."""
        return not (self.prompt_tokens or self.completion_tokens or self.total_tokens)

    @property
    def cache_hit_rate(self) -> float | None:
        """Cached prompt tokens over prompt tokens; None if there was no prompt."""
        return self.cached_prompt_tokens / self.prompt_tokens if self.prompt_tokens else None

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        """Add the counters, saturating at 2**63-1; the tier stays if every non-empty side has it."""
        if not isinstance(other, TokenUsage):
            return NotImplemented
        if self.is_empty:
            return other
        if other.is_empty:
            return self
        return TokenUsage(
            min(self.prompt_tokens + other.prompt_tokens, MAX_TOKENS),
            min(self.completion_tokens + other.completion_tokens, MAX_TOKENS),
            min(self.total_tokens + other.total_tokens, MAX_TOKENS),
            min(self.cached_prompt_tokens + other.cached_prompt_tokens, MAX_TOKENS),
            min(self.cache_creation_prompt_tokens + other.cache_creation_prompt_tokens, MAX_TOKENS),
            min(self.reasoning_tokens + other.reasoning_tokens, MAX_TOKENS),
            self.service_tier if self.service_tier == other.service_tier else None,
        )


ZERO_USAGE = TokenUsage(0, 0, 0)


class Purpose(enum.Enum):
    """What an attempt was made for."""

    SAMPLING = "sampling"
    NATIVE_COMPACTION = "native_compaction"
    SUMMARY = "summary"


@attrs.frozen
class Ancestor:
    """A goal of a thread above that an attempt is charged to."""

    thread_id: str
    goal_id: str


@attrs.frozen(kw_only=True)
class Attempt:
    """One engine stream, named before its request is sent; all of it is fixed then."""

    attempt_id: str
    thread_id: str
    turn_id: str
    purpose: Purpose
    provider: str
    model: str
    goal_id: str | None = None
    ancestors: tuple[Ancestor, ...] = ()
