"""Every setting with its default. Times are seconds; None means "no limit" unless said."""

import math
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Literal, get_args

import attrs

from roder_trio.schema.ids import as_tuple
from roder_trio.schema.policy import PolicyMode

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]
WebSearch = Literal["disabled", "cached", "live"]


def _number(minimum: float, *, above: bool = False, optional: bool = False) -> Validator:
    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if optional and value is None:
            return
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < minimum or (above and value == minimum):
            bound = "above" if above else "at least"
            raise ValueError(f"{attribute.name} must be a finite number {bound} {minimum:g}, not {value!r}")

    return check


def _integer(minimum: int | None = None, *, optional: bool = False) -> Validator:
    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if optional and value is None:
            return
        if type(value) is not int or (minimum is not None and value < minimum):
            bound = "" if minimum is None else f" of at least {minimum}"
            raise ValueError(f"{attribute.name} must be an integer{bound}, not {value!r}")

    return check


def _web_search(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value not in get_args(WebSearch):
        raise ValueError(f"{attribute.name} must be one of {', '.join(get_args(WebSearch))}, not {value!r}")


def _flag(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if type(value) is not bool:
        raise ValueError(f"{attribute.name} must be True or False, not {value!r}")


def _names(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"{attribute.name} must be names of tools, not {value!r}")


def _text(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{attribute.name} must be text or None, not {value!r}")


def _directory(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    _text(instance, attribute, value)
    if value is not None and not PurePath(value).is_absolute():
        raise ValueError(f"{attribute.name} must be an absolute path or None, not {value!r}")


def _instance(kind: type) -> Validator:
    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not isinstance(value, kind):
            raise ValueError(f"{attribute.name} must be a {kind.__name__}, not {value!r}")

    return check


@attrs.frozen(kw_only=True)
class ReliabilityConfig:
    """How a turn meets failures and limits."""

    provider_retry_max_attempts: int = attrs.field(default=3, validator=_integer())
    """The first attempt included; less than 1 counts as 1."""
    provider_retry_initial_backoff: float = attrs.field(default=1.0, validator=_number(0))
    """Seconds before the second attempt."""
    provider_retry_backoff_factor: float = attrs.field(default=2.0, validator=_number(1))
    provider_retry_max_backoff: float = attrs.field(default=8.0, validator=_number(0))
    """Seconds; the cap before jitter, which adds up to a quarter."""
    provider_retry_max_wait: float = attrs.field(default=120.0, validator=_number(0))
    """Seconds; a server's longer advice is not waited for."""
    retry_empty_provider_body: bool = attrs.field(default=True, validator=_flag)
    """Whether an answer without any frame is tried again."""
    turn_deadline: float | None = attrs.field(default=None, validator=_number(0, above=True, optional=True))
    """Seconds from the turn's start, on trio's clock."""
    stream_idle_timeout: float | None = attrs.field(default=300.0, validator=_number(0, above=True, optional=True))
    """Seconds without an event after which a stream fails."""
    max_model_calls_per_turn: int = attrs.field(default=512, validator=_integer(1))
    """Sampling attempts of one turn, retries included."""
    max_tool_failures_per_turn: int = attrs.field(default=128, validator=_integer(1))
    """Error results of one turn."""
    max_consecutive_tool_failures: int = attrs.field(default=5, validator=_integer(1))
    """Error results in a row."""
    continue_on_failure_limit: bool = attrs.field(default=True, validator=_flag)
    """Whether a row of failures is met with a nudge; False: the turn fails."""


@attrs.frozen(kw_only=True)
class Deadlines:
    """How long cleanup and guards may take, in seconds."""

    usage_deadline: float = attrs.field(default=5.0, validator=_number(0, above=True))
    """Until all observed usage is durable."""
    append_grace: float = attrs.field(default=10.0, validator=_number(0, above=True))
    """A job's shielded wait for its thread to commit."""
    stream_close_grace: float = attrs.field(default=5.0, validator=_number(0, above=True))
    """Leaving a stream's block."""
    close_step_grace: float = attrs.field(default=10.0, validator=_number(0, above=True))
    """All that ends a step: leaving its stream and storing its usage, each within its own grace as well."""
    tool_cancel_grace: float = attrs.field(default=5.0, validator=_number(0, above=True))
    """A cancelled tool's cleanup."""
    policy_timeout: float = attrs.field(default=10.0, validator=_number(0, above=True))
    """One policy, asked about one call."""
    hook_timeout: float = attrs.field(default=10.0, validator=_number(0, above=True))
    """One hook."""
    turn_exit_grace: float = attrs.field(default=10.0, validator=_number(0, above=True))
    """The wait of a cancelled `run_turn` or `turn` for the turn's end."""
    sink_timeout: float = attrs.field(default=2.0, validator=_number(0, above=True))
    """One event in one sink."""
    sink_flush_grace: float = attrs.field(default=5.0, validator=_number(0, above=True))
    """All sinks at the runtime's exit."""
    shutdown_stage_grace: float = attrs.field(default=15.0, validator=_number(0, above=True))
    """Each other stage of the runtime's exit."""


@attrs.frozen(kw_only=True)
class GoalConfig:
    """How far goals work by themselves."""

    auto_continue: bool = attrs.field(default=True, validator=_flag)
    """Whether a turn that completes while the goal is active is followed by another."""
    model_tools: bool = attrs.field(default=True, validator=_flag)
    """Whether models get `get_goal`, `create_goal` and `update_goal`."""


@attrs.frozen(kw_only=True)
class RuntimeConfig:
    """The settings of a runtime; they never change while it is open."""

    default_provider: str | None = attrs.field(default=None, validator=_text)
    """None: the first engine given."""
    default_model: str | None = attrs.field(default=None, validator=_text)
    """None: the catalog's default for the provider, else the first that it lists."""
    default_reasoning: str | None = attrs.field(default=None, validator=_text)
    default_service_tier: str | None = attrs.field(default=None, validator=_text)
    instructions: str | None = attrs.field(default=None, validator=_text)
    """The system text of a turn that brings none."""
    workspace: str | None = attrs.field(default=None, validator=_directory)
    """An absolute directory, for threads that name none."""
    catalog: str | None = attrs.field(default=None, validator=_text)
    """The path of a TOML file that is merged over the shipped catalog, read once at the start."""
    auto_compact_token_limit: int | None = attrs.field(default=None, validator=_integer(0, optional=True))
    """Tokens; None: by the catalog; 0: never."""
    policy_mode: PolicyMode = attrs.field(default=PolicyMode.ACCEPT_ALL, converter=PolicyMode)
    """Of threads without a mode of their own; may be given as its text."""
    interactive: bool = attrs.field(default=True, validator=_flag)
    """False: whatever would ask is refused."""
    tool_allowlist: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, validator=_names)
    """() allows all."""
    denied_tools: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, validator=_names)
    """Final in every mode."""
    parallel_tool_calls: bool = attrs.field(default=True, validator=_flag)
    """False: every call is exclusive."""
    max_parallel_tools: int = attrs.field(default=8, validator=_integer(1))
    """Calls of one step that run side by side."""
    tool_timeout: float | None = attrs.field(default=None, validator=_number(0, above=True, optional=True))
    """Seconds, of a tool without its own."""
    approval_timeout: float | None = attrs.field(default=None, validator=_number(0, above=True, optional=True))
    """Seconds that a call waits for consent."""
    hosted_web_search: WebSearch = attrs.field(default="disabled", validator=_web_search)
    """Whether the provider may search the web by itself, in what it has kept (`cached`) or `live`."""
    output_retries: int = attrs.field(default=2, validator=_integer(0))
    """Rounds that may repair a structured answer."""
    max_pending_steers: int = attrs.field(default=64, validator=_integer(1))
    max_resident_threads: int = attrs.field(default=256, validator=_integer(1))
    delta_checkpoint_interval: float = attrs.field(default=0.5, validator=_number(0, above=True))
    """Seconds; open text is stored at most this late."""
    usage_checkpoint_interval: float = attrs.field(default=0.25, validator=_number(0))
    """Seconds between two usage records of one running attempt."""
    reliability: ReliabilityConfig = attrs.field(default=ReliabilityConfig(), validator=_instance(ReliabilityConfig))
    deadlines: Deadlines = attrs.field(default=Deadlines(), validator=_instance(Deadlines))
    goals: GoalConfig = attrs.field(default=GoalConfig(), validator=_instance(GoalConfig))
