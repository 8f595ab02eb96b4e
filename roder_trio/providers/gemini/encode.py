"""A request as the body of a Gemini call.

Pure. Key order is fixed and what never changes stands in front, so that two rounds of one thread share their bytes.
"""

from collections.abc import Mapping
from typing import Any

from roder_trio.logic.naming import ToolNames
from roder_trio.providers._dialect import unsupported
from roder_trio.providers.gemini.contents import contents
from roder_trio.providers.gemini.profile import Profile
from roder_trio.providers.gemini.schema import translated
from roder_trio.schema.inference import EngineTarget, InferenceRequest

_DIALECT = "Gemini"
_MODES = {"auto": "AUTO", "any": "ANY", "none": "NONE", "specific": "ANY"}


def encode(request: InferenceRequest, profile: Profile, *, target: EngineTarget) -> dict[str, Any]:
    """Return the body of `request`. Raises ProviderFailure."""
    names = ToolNames((tool.name for tool in request.tools), profile.tool_name_limit)
    said = request.instructions
    system = [{"text": text} for text in (said.system, said.developer, said.developer_context) if text]
    body: dict[str, Any] = {
        "tools": _tools(request, names),
        "toolConfig": _tool_config(request, profile, names),
        "generationConfig": _generation(request, profile),
        "systemInstruction": {"parts": system} if system else {},
    }
    filled = {name: value for name, value in body.items() if value}
    return {**filled, "contents": contents(request, profile, target, names)}


def _tools(request: InferenceRequest, names: ToolNames) -> list[dict[str, Any]]:
    functions = [
        {"name": names.wire(tool.name), "description": tool.description, "parameters": translated(tool.parameters)}
        for tool in request.tools
    ]
    out: list[dict[str, Any]] = [{"functionDeclarations": functions}] if functions else []
    match request.runtime.hosted_web_search:
        case "live":
            out.append({"googleSearch": {}})
        case "cached":
            raise unsupported(_DIALECT, "cached web search")
    return out


def _tool_config(request: InferenceRequest, profile: Profile, names: ToolNames) -> dict[str, Any]:
    out: dict[str, Any] = {}
    choice = request.tool_choice
    if request.tools:
        out["functionCallingConfig"] = {"mode": _MODES[choice.mode]}
        if choice.mode == "specific":
            out["functionCallingConfig"]["allowedFunctionNames"] = [names.wire(choice.name or "")]
    if request.runtime.hosted_web_search == "live" and (profile.show_hosted_calls or request.tools):
        # functions beside a tool of the provider are taken in this form only
        out["includeServerSideToolInvocations"] = True
    return out


def _generation(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    wanted = request.output
    out: dict[str, Any] = {}
    if wanted.max_tokens is not None:
        out["maxOutputTokens"] = wanted.max_tokens
    if profile.sampling and wanted.temperature is not None:
        out["temperature"] = wanted.temperature
    if profile.sampling and wanted.top_p is not None:
        out["topP"] = wanted.top_p
    if wanted.response_format is not None:
        out |= _response_format(wanted.response_format, profile)
    return out | _thinking(request, profile)


def _response_format(schema: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    if not profile.structured_output:
        raise unsupported(_DIALECT, "structured output")
    return {"responseMimeType": "application/json", "responseSchema": translated(schema)}


def _thinking(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    wanted = request.reasoning
    if profile.thinking_style == "none" or not wanted.enabled or wanted.level == "none":
        return {}
    level = profile.effort(wanted.level)
    config: dict[str, Any] = {}
    if profile.thinking_style == "level" and level is not None:
        config["thinkingLevel"] = level
    elif level is not None and level in profile.thinking_budgets:
        config["thinkingBudget"] = profile.thinking_budgets[level]
    return {"thinkingConfig": {**config, "includeThoughts": True}}
