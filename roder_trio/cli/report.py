"""What the command line says about threads and usage, in words."""

from collections.abc import Iterator

import roder_trio as rt
from roder_trio import goals, transcript
from roder_trio.cli.cost import cost_words, with_cost

THREAD_HEADINGS = ("thread", "used", "messages", "tokens", "title")
USAGE_HEADINGS = ("prompt", "cached", "completion", "reasoning", "total", "cost")


def usage_words(usage: rt.TokenUsage | None) -> str:
    """Say what was counted, in one line."""
    if usage is None:
        return "no tokens counted"
    details = [
        f"{count} {name}"
        for name, count in (
            ("cached", usage.cached_prompt_tokens),
            ("cache creation", usage.cache_creation_prompt_tokens),
            ("reasoning", usage.reasoning_tokens),
        )
        if count
    ]
    of_these = f" ({', '.join(details)})" if details else ""
    return (
        f"{usage.prompt_tokens} prompt + {usage.completion_tokens} completion = {usage.total_tokens} tokens{of_these}"
    )


def usage_cells(usage: rt.TokenUsage | None, cost: rt.Cost | None) -> tuple[str, ...]:
    """Return the counters, and what they cost, as the cells of a table."""
    counted = usage or rt.TokenUsage(0, 0, 0)
    return (
        str(counted.prompt_tokens),
        str(counted.cached_prompt_tokens),
        str(counted.completion_tokens),
        str(counted.reasoning_tokens),
        str(counted.total_tokens),
        "" if cost is None else cost_words(cost),
    )


def thread_cells(metadata: rt.ThreadMetadata) -> tuple[str, ...]:
    """Return a thread as the cells of a table; times are those of this machine."""
    used = metadata.updated_at.astimezone().strftime("%Y-%m-%d %H:%M")
    tokens = metadata.usage.total_tokens if metadata.usage else 0
    return (metadata.thread_id, used, str(metadata.message_count), str(tokens), metadata.title or "")


def item_words(item: transcript.TranscriptItem) -> str | None:
    """Say what an item of the history holds; None for what only a provider can read."""
    match item:
        case transcript.UserMessage(text=text, images=images):
            shown = f" [{len(images)} images]" if images else ""
            return f"> {text}{shown}"
        case transcript.AssistantMessage(text=text, interrupted=interrupted):
            return f"{text} [cut off]" if interrupted else text
        case transcript.ReasoningSummary(text=text):
            return f"(reasoning) {text}"
        case transcript.ToolCall(name=name, arguments=arguments):
            return f"(call) {name} {arguments}"
        case transcript.ToolResult(result=result, is_error=is_error):
            return f"({'error' if is_error else 'result'}) {result}"
        case transcript.ContextCompaction(summary=summary):
            return f"(compacted) {summary}"
        case transcript.ErrorNote(message=message):
            return f"(failed) {message}"
        case _:
            return None


def turn_words(turn: rt.TurnRecord, cost: rt.Cost | None) -> Iterator[str]:
    """Yield the lines of one turn."""
    yield from filter(None, map(item_words, turn.items))
    yield f"  [{turn.status.value}, {with_cost(usage_words(turn.usage), cost)}]"


def goal_words(goal: goals.Goal) -> str:
    """Say what was used of a goal's budget, and the time that was worked on it."""
    budget = "" if goal.token_budget is None else f" of {goal.token_budget}"
    minutes, seconds = divmod(int(goal.time_used), 60)
    return f"{goal.tokens_used}{budget} tokens, {minutes}:{seconds:02}"
