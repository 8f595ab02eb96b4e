"""A request as the body of a Chat Completions call.

Pure. Key order is fixed and depends on the request alone, so that two rounds of one thread share their bytes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from roder_trio.logic.naming import ToolNames
from roder_trio.providers._dialect import is_strict, sorted_schema, unsupported
from roder_trio.providers.chat_completions.messages import messages
from roder_trio.providers.chat_completions.profile import Profile
from roder_trio.schema.inference import EngineTarget, InferenceRequest, ToolDefinition

_DIALECT = "Chat Completions"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

OPTIONAL = (
    "stream_options",
    "parallel_tool_calls",
    "reasoning_effort",
    "thinking",
    "reasoning",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "service_tier",
    "prompt_cache_key",
)
"""Parameters that a request may go without."""


def encode(
    request: InferenceRequest,
    profile: Profile,
    *,
    target: EngineTarget,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Return the body of `request`; the parameters `without` are left out. Raises ProviderFailure."""
    names = ToolNames((tool.name for tool in request.tools), profile.tool_name_limit)
    if request.runtime.hosted_web_search != "disabled":
        raise unsupported(_DIALECT, "hosted web search")
    body: dict[str, Any] = {
        "model": request.model.model,
        "messages": messages(request, profile, target, names),
        "stream": True,
    }
    if profile.include_stream_usage:
        body["stream_options"] = {"include_usage": True}
    body |= _tools(request, profile, names)
    body |= _reasoning(request, profile)
    body |= _output(request, profile)
    if profile.service_tier and request.runtime.service_tier:
        body["service_tier"] = request.runtime.service_tier
    if profile.prompt_cache_key and request.runtime.prompt_cache_key:
        body["prompt_cache_key"] = request.runtime.prompt_cache_key
    return {name: value for name, value in body.items() if name not in without}


def _tools(request: InferenceRequest, profile: Profile, names: ToolNames) -> dict[str, Any]:
    if not request.tools:
        return {}
    choice = request.tool_choice
    out: dict[str, Any] = {"tools": [_tool(tool, profile, names) for tool in request.tools]}
    if choice.mode == "specific":
        out["tool_choice"] = {"type": "function", "function": {"name": names.wire(choice.name or "")}}
    else:
        out["tool_choice"] = _CHOICES[choice.mode]
    if profile.include_parallel_tool_calls and not request.runtime.parallel_tool_calls:
        out["parallel_tool_calls"] = False
    return out


def _tool(tool: ToolDefinition, profile: Profile, names: ToolNames) -> dict[str, Any]:
    function = {
        "name": names.wire(tool.name),
        "description": tool.description,
        "parameters": sorted_schema(tool.parameters),
    }
    if profile.strict_schemas and is_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}


def _reasoning(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    wanted = request.reasoning
    off = wanted.level == "none"
    effort = None if off else profile.effort(wanted.level)
    if profile.thinking_style == "none" or not (wanted.enabled or off):
        return {}
    if profile.thinking_style == "toggle":
        kind = {"thinking": {"type": "disabled" if off else "enabled"}}
        return {**kind, "reasoning_effort": effort} if effort else kind
    if off:
        return {}
    if profile.thinking_style == "object":
        return {"reasoning": {"effort": effort} if effort else {"enabled": True}}
    return {"reasoning_effort": effort} if effort else {}


def _output(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    wanted = request.output
    out: dict[str, Any] = {}
    if wanted.max_tokens is not None:
        out[profile.max_tokens_field] = wanted.max_tokens
    if profile.sampling and wanted.temperature is not None:
        out["temperature"] = wanted.temperature
    if profile.sampling and wanted.top_p is not None:
        out["top_p"] = wanted.top_p
    if wanted.response_format is not None:
        out["response_format"] = _response_format(wanted.response_format, profile)
    return out


def _response_format(schema: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    if profile.structured_output == "json_object":
        return {"type": "json_object"}
    if profile.structured_output == "none":
        raise unsupported(_DIALECT, "structured output")
    named: dict[str, Any] = {"name": "output", "schema": sorted_schema(schema)}
    if profile.strict_schemas and is_strict(schema):
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}


def named_parameters(message: str, parameter: str | None, sent: Sequence[str]) -> list[str]:
    """Return the optional parameters of `sent` that an error names, by its field or in its text."""
    head = (parameter or "").partition(".")[0]
    return [name for name in OPTIONAL if name in sent and (name == head or _names(message, name))]


def _names(message: str, name: str) -> bool:
    # words of plain English count only in quotes
    pattern = rf"\b{name}\b" if "_" in name else rf"['\"`]{name}\b"
    return re.search(pattern, message) is not None
