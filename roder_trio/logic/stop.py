"""Why a model stopped, in one vocabulary for all dialects.

Pure. `stop`, `length`, `tool_use`, `content_filter` and `refusal`; a reason that isn't known stays as it came.
"""

_STOP_REASONS = {
    **dict.fromkeys(("end_turn", "stop", "stop_sequence", "eos", "completed"), "stop"),
    **dict.fromkeys(("max_tokens", "length", "max_output_tokens"), "length"),
    **dict.fromkeys(("tool_use", "tool_calls", "function_call"), "tool_use"),
}

MAY_BE_CUT = ("length", "content_filter")
"""Stop reasons under which a call without arguments may have been cut off."""


def finish_reason(stop_reason: str | None, *, has_calls: bool = False) -> str | None:
    """Return the normalised stop reason; a "stop" with calls is "tool_use", unknown ones stay as they are."""
    if stop_reason is None:
        return None
    reason = _STOP_REASONS.get(stop_reason, stop_reason)
    return "tool_use" if reason == "stop" and has_calls else reason
