"""A request as the body of a Responses call.

Pure. Key order is fixed and depends on the request alone, with the transcript last, so that two rounds of one thread
share their bytes.
"""

from collections.abc import Mapping
from typing import Any

from roder_trio.logic.naming import ToolNames
from roder_trio.providers._dialect import is_strict, sorted_schema, unsupported
from roder_trio.providers.openai_responses.input import input_items, text_message
from roder_trio.providers.openai_responses.profile import Profile
from roder_trio.schema.inference import EngineTarget, InferenceRequest, Instructions, ToolDefinition

_DIALECT = "Responses"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ENCRYPTED = "reasoning.encrypted_content"

DEVELOPER_HEAD = "Developer instructions:\n"
"""Stands before the developer's part of the instructions."""


def encode(request: InferenceRequest, profile: Profile, *, target: EngineTarget) -> dict[str, Any]:
    """Return the body of `request`. Raises ProviderFailure for what the dialect can't express."""
    names = _names(request, profile)
    body: dict[str, Any] = {"model": request.model.model, "store": False, "stream": True}
    body |= _instructions(request.instructions, profile)
    body |= _tools(request, profile, names)
    body |= _reasoning(request, profile)
    body |= _output(request, profile)
    body |= {**_server(request, profile), **profile.cache_options}
    limit = request.runtime.auto_compact_token_limit or 0
    if limit > 0 and profile.in_band_compaction:
        body["context_management"] = [{"type": "compaction", "compact_threshold": limit}]
    return {**body, "input": _input(request, profile, target, names, request.instructions.developer_context)}


def encode_compaction(request: InferenceRequest, profile: Profile, *, target: EngineTarget) -> dict[str, Any]:
    """Return the body of a call that compacts the transcript of `request`.

    The developer's context is left out: what the answer holds is stored.
    """
    names = _names(request, profile)
    body: dict[str, Any] = {"model": request.model.model}
    body |= _instructions(request.instructions, profile)
    body |= _server(request, profile)
    return {**body, "input": _input(request, profile, target, names, None)}


def _names(request: InferenceRequest, profile: Profile) -> ToolNames:
    return ToolNames((tool.name for tool in request.tools), profile.tool_name_limit)


# -- texts


def _system(instructions: Instructions) -> list[str]:
    developer = instructions.developer and DEVELOPER_HEAD + instructions.developer
    return [text for text in (instructions.system, developer) if text]


def _instructions(instructions: Instructions, profile: Profile) -> dict[str, Any]:
    texts = _system(instructions)
    return {"instructions": "\n\n".join(texts)} if texts and profile.instructions else {}


def _input(
    request: InferenceRequest, profile: Profile, target: EngineTarget, names: ToolNames, context: str | None
) -> list[Any]:
    head = [] if profile.instructions else [text_message("system", text) for text in _system(request.instructions)]
    return [*head, *input_items(request, profile, target, names, context)]


# -- tools


def _tools(request: InferenceRequest, profile: Profile, names: ToolNames) -> dict[str, Any]:
    tools = [_tool(tool, profile, names) for tool in request.tools]
    has_functions = any(tool["type"] == "function" for tool in tools)
    if request.runtime.hosted_web_search != "disabled":
        tools.append(_web_search(request, profile))
    if not tools:
        return {}
    out: dict[str, Any] = {"tools": tools, "tool_choice": _tool_choice(request, profile, names)}
    if has_functions and profile.include_parallel_tool_calls:
        out["parallel_tool_calls"] = request.runtime.parallel_tool_calls
    return out


def _tool(tool: ToolDefinition, profile: Profile, names: ToolNames) -> dict[str, Any]:
    head = {"type": _kind(tool, profile), "name": names.wire(tool.name), "description": tool.description}
    if head["type"] == "custom":
        return head
    strict = profile.strict_schemas and is_strict(tool.parameters)
    # a server takes a schema that says nothing for a strict one
    return {**head, "parameters": sorted_schema(tool.parameters), "strict": strict}


def _kind(tool: ToolDefinition, profile: Profile) -> str:
    return "custom" if tool.freeform_field is not None and profile.freeform else "function"


def _tool_choice(request: InferenceRequest, profile: Profile, names: ToolNames) -> Any:
    choice = request.tool_choice
    if choice.mode != "specific":
        return _CHOICES[choice.mode]
    meant = next((tool for tool in request.tools if tool.name == choice.name), None)
    kind = "function" if meant is None else _kind(meant, profile)
    return {"type": kind, "name": names.wire(choice.name or "")}


def _web_search(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    if not profile.web_search:
        raise unsupported(_DIALECT, "hosted web search")
    access = {"external_web_access": request.runtime.hosted_web_search == "live"}
    return {"type": "web_search", **(access if profile.web_access else {})}


# -- options


def _reasons(request: InferenceRequest, profile: Profile) -> bool:
    return request.reasoning.enabled and request.reasoning.level != "none" and profile.reasoning


def _reasoning(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    out: dict[str, Any] = {}
    is_on = _reasons(request, profile)
    if is_on:
        effort = profile.effort(request.reasoning.level)
        out["reasoning"] = {**({"effort": effort} if effort else {}), "summary": "auto"}
    if profile.encrypted_reasoning and (is_on or profile.reasons_unasked):
        out["include"] = [_ENCRYPTED]
    return out


def _output(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    wanted = request.output
    out: dict[str, Any] = {}
    if wanted.max_tokens is not None:
        out["max_output_tokens"] = wanted.max_tokens
    if profile.sampling and not _reasons(request, profile):
        sampling = {"temperature": wanted.temperature, "top_p": wanted.top_p}
        out |= {name: value for name, value in sampling.items() if value is not None}
    if wanted.response_format is not None:
        out["text"] = {"format": _format(wanted.response_format, profile)}
    return out


def _format(schema: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    if profile.structured_output == "json_object":
        return {"type": "json_object"}
    if profile.structured_output == "none":
        raise unsupported(_DIALECT, "structured output")
    strict = profile.strict_schemas and is_strict(schema)
    return {"type": "json_schema", "name": "output", "schema": sorted_schema(schema), "strict": strict}


def _server(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    """Return how the server is to treat a call."""
    out: dict[str, Any] = {}
    if profile.prompt_cache_key and request.runtime.prompt_cache_key:
        out["prompt_cache_key"] = request.runtime.prompt_cache_key
    if profile.service_tier and request.runtime.service_tier:
        out["service_tier"] = request.runtime.service_tier
    return out
