"""Three agents at once: a turn of each runs in one nursery, each on a thread of its own.

A turn that fails is an outcome and leaves the others alone; cancelling the nursery would interrupt them all.
`ScriptedEngine` plays the model. With a real one, name a provider of the catalog and have its key in the environment:
`OPENAI_API_KEY=... python side_by_side.py openai`.
"""

import sys
from typing import Any

import trio

import roder_trio as rt
from roder_trio import inference, items, providers

AGENTS = {
    "optimist": "You see what could go well. One sentence.",
    "sceptic": "You see what could go wrong. One sentence.",
    "clerk": "You only count costs. One sentence.",
}
SAID = {
    "optimist": "We would swim before work.",
    "sceptic": "Sand gets into every keyboard.",
    "clerk": "Twice the rent, half the desks.",
}


def speak(request: inference.InferenceRequest) -> list[Any]:
    """What the scripted model says to an agent's request, word by word, with pauses between them."""
    name = next(name for name, text in AGENTS.items() if text == request.instructions.developer)
    words = [part for word in SAID[name].split() for part in (0.01, inference.MessageDelta(f"{word} "))]
    return [*words, inference.Usage(rt.TokenUsage(20, 6, 26)), inference.Completed("stop")]


async def ask(runtime: rt.Runtime, name: str, outcomes: dict[str, rt.TurnOutcome]) -> None:
    thread = await runtime.create_thread(title=name, developer_instructions=AGENTS[name])
    async with runtime.turn(thread.thread_id, "Should we move the office to the seaside?") as turn:
        async for envelope in turn:
            match envelope.event:
                case items.ThreadItemEvent(event=items.ItemDelta(delta=items.AgentMessageText(delta=text))):
                    print(f"{name:>10}: {text}")
    outcomes[name] = turn.outcome


async def main() -> None:
    engine = providers.ChatCompletions(sys.argv[1]) if sys.argv[1:] else providers.ScriptedEngine([speak] * 3)
    outcomes: dict[str, rt.TurnOutcome] = {}
    async with rt.open_runtime(engines=[engine]) as runtime:
        async with trio.open_nursery() as nursery:
            for name in AGENTS:
                nursery.start_soon(ask, runtime, name, outcomes)
        total = rt.TokenUsage(0, 0, 0)
        for name in AGENTS:
            outcome = outcomes[name]
            print(f"{name} ({outcome.status}): {outcome.text or outcome.error}")
            total += outcome.usage or rt.TokenUsage(0, 0, 0)
        print(f"{len(outcomes)} agents, {total.total_tokens} tokens")


trio.run(main)
