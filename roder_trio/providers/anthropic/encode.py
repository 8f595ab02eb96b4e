"""A request as the body of a Messages call.

Pure. Key order is fixed, and what changes least stands first, so that two rounds of one thread share their bytes and
their cached prefix. Two breakpoints are set: behind what is stable, and at the end of the conversation.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from roder_trio.logic.naming import ToolNames
from roder_trio.logic.pairing import Sent, paired
from roder_trio.providers._dialect import sorted_schema, text_of, unsupported
from roder_trio.providers.anthropic.block import COMPACTION
from roder_trio.providers.anthropic.messages import Block, Message, messages, text_blocks, wire_id
from roder_trio.providers.anthropic.profile import Profile
from roder_trio.schema.inference import EngineTarget, InferenceRequest, ToolDefinition
from roder_trio.schema.transcript import ProviderMetadata

_DIALECT = "Anthropic"
_CHOICES = {"auto": "auto", "any": "any", "none": "none", "specific": "tool"}
MIN_TRIGGER = 50_000
"""Input tokens below which the server compacts nothing."""
MIN_BUDGET = 1024
"""Tokens of thinking below which the server takes no budget."""


def encode(request: InferenceRequest, profile: Profile, *, target: EngineTarget, now: datetime) -> dict[str, Any]:
    """Return the body of `request`; `now` says which containers are still there. Raises ProviderFailure."""
    names = ToolNames((tool.name for tool in request.tools), profile.tool_name_limit)
    items = paired(request.transcript, target=target, model=request.model.model, id_form=wire_id, text_ends_calls=False)
    max_tokens = profile.max_tokens if request.output.max_tokens is None else request.output.max_tokens
    body: dict[str, Any] = {"model": request.model.model, "max_tokens": max_tokens, "stream": True}
    body |= _thinking(request, profile, max_tokens)
    body |= _output(request, profile, thinks="thinking" in body)
    body |= _runtime(request, profile)
    mark = _mark(profile)
    stable = [*text_blocks(request.instructions.system), *text_blocks(request.instructions.developer)]
    tools = _tools(request, profile, names, budgeted=body.get("thinking", {}).get("type") == "enabled")
    if stable:
        stable[-1] = {**stable[-1], **mark}
    elif tools:
        tools["tools"][-1] |= mark
    body |= tools
    body |= _conversation(messages(items, profile, names), stable, request.instructions.developer_context, profile)
    container = _container(items, now)
    return body if container is None else {**body, "container": container}


def betas(body: Mapping[str, Any], profile: Profile) -> list[str]:
    """Return the names of the unfinished features that a body uses."""
    used = list(profile.betas)
    sent = body["messages"]
    compacts = any(block["type"] == COMPACTION for message in sent for block in message["content"])
    if profile.compaction_beta and (compacts or "context_management" in body):
        used.append(profile.compaction_beta)
    if profile.mid_system_beta and any(message["role"] == "system" for message in sent):
        used.append(profile.mid_system_beta)
    return list(dict.fromkeys(used))


# -- options


def _thinking(request: InferenceRequest, profile: Profile, max_tokens: int) -> dict[str, Any]:
    wanted = request.reasoning
    if not wanted.enabled or wanted.level == "none" or profile.thinking == "none":
        return {}
    thinking: dict[str, Any] = {"type": "adaptive"}
    if profile.thinking == "budget":
        budget = min(profile.budgets.get(wanted.level or "", profile.usual_budget), max_tokens - 1)
        if budget < MIN_BUDGET:
            return {}
        thinking = {"type": "enabled", "budget_tokens": budget}
    if profile.thinking_display is not None:
        thinking["display"] = profile.thinking_display
    return {"thinking": thinking}


def _output(request: InferenceRequest, profile: Profile, *, thinks: bool) -> dict[str, Any]:
    wanted = request.output
    out: dict[str, Any] = {}
    config: dict[str, Any] = {}
    effort = profile.effort(request.reasoning.level) if request.reasoning.enabled else None
    if profile.send_effort and effort not in (None, "none"):
        config["effort"] = effort
    if wanted.response_format is not None:
        if not profile.structured_output:
            raise unsupported(_DIALECT, "structured output")
        config["format"] = {"type": "json_schema", "schema": sorted_schema(wanted.response_format)}
    if config:
        out["output_config"] = config
    samples = profile.sampling and not thinks
    if samples and wanted.temperature is not None:
        out["temperature"] = wanted.temperature
    if samples and wanted.top_p is not None:
        out["top_p"] = wanted.top_p
    return out


def _runtime(request: InferenceRequest, profile: Profile) -> dict[str, Any]:
    out: dict[str, Any] = {}
    tier = profile.service_tiers.get(request.runtime.service_tier or "")
    if tier:
        out["service_tier"] = tier
    limit = request.runtime.auto_compact_token_limit or 0
    if limit > 0 and profile.compaction_edit:
        trigger = {"type": "input_tokens", "value": max(limit, MIN_TRIGGER)}
        out["context_management"] = {"edits": [{"type": profile.compaction_edit, "trigger": trigger}]}
    return out


# -- tools


def _tools(request: InferenceRequest, profile: Profile, names: ToolNames, *, budgeted: bool) -> dict[str, Any]:
    tools = [_tool(tool, names) for tool in request.tools]
    search = request.runtime.hosted_web_search
    if search != "disabled":
        if search != "live" or not profile.web_search:
            raise unsupported(_DIALECT, f"{search} hosted web search")
        tools.append({"type": profile.web_search, "name": "web_search"})
    if not tools:
        return {}
    mode = request.tool_choice.mode
    if mode in ("any", "specific") and budgeted and not profile.forced_calls_while_thinking:
        mode = "auto"
    choice: dict[str, Any] = {"type": _CHOICES[mode]}
    if mode == "specific":
        choice["name"] = names.wire(request.tool_choice.name or "")
    if mode != "none" and request.tools and not request.runtime.parallel_tool_calls:
        choice["disable_parallel_tool_use"] = True
    return {"tool_choice": choice, "tools": tools}


def _tool(tool: ToolDefinition, names: ToolNames) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"name": names.wire(tool.name), **described, "input_schema": sorted_schema(tool.parameters)}


# -- the conversation, and where its prefix is kept


def _mark(profile: Profile) -> dict[str, Any]:
    if not profile.prompt_cache:
        return {}
    ttl = {"ttl": profile.cache_ttl} if profile.cache_ttl else {}
    return {"cache_control": {"type": "ephemeral", **ttl}}


def _conversation(sent: list[Message], stable: list[Block], context: str | None, profile: Profile) -> dict[str, Any]:
    """Return the system blocks and messages; what is told for one turn stands behind a breakpoint, unmarked."""
    mark, unstable = _mark(profile), text_blocks(context)
    if unstable and mark and profile.mid_system and sent and sent[-1]["role"] == "user":
        *before, last = sent[-1]["content"]
        marked = {**sent[-1], "content": [*before, {**last, **mark}]}
        system = {"system": stable} if stable else {}
        return {**system, "messages": [*sent[:-1], marked, {"role": "system", "content": unstable}]}
    blocks = [*stable, *unstable]
    return {**mark, **({"system": blocks} if blocks else {}), "messages": sent}


def _container(items: Sequence[Sent], now: datetime) -> str | None:
    """Return the newest container of the provider's tools, if it is still there."""
    for item in reversed(items):
        found = item.payload.get("container") if isinstance(item, ProviderMetadata) else None
        if isinstance(found, Mapping):
            ahead = _moment(text_of(found.get("expires_at"))) > now
            return text_of(found.get("id")) or None if ahead else None
    return None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
