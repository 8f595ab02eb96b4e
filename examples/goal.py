"""Give a thread a goal with a budget, raise the budget while the goal runs, and see it through, turn after turn.

With a real model: OPENAI_API_KEY=... python goal.py openai
"""

import os
import sys
from typing import Any

import trio

import roder_trio as rt
from roder_trio import events, goals, inference, providers, transcript

OBJECTIVE = "Write a haiku about nurseries, one line a turn, and then set the goal to complete."
DONE = '{"status": "complete"}'


def step(text: str, *calls: inference.InferenceEvent) -> list[inference.InferenceEvent]:
    used = inference.Usage(rt.TokenUsage(prompt_tokens=30, completion_tokens=10, total_tokens=40))
    return [used, inference.MessageDelta(text), *calls, inference.Completed("tool_calls" if calls else "stop")]


RAISED = trio.Event()
SCRIPT: list[list[Any]] = [
    [RAISED, *step("Many tasks set out; ")],  # it says nothing until the budget is raised
    step("one door, and it stays open "),
    step("till the last comes home. ", inference.ToolCallCompleted("call-1", "update_goal", DONE)),
    step("That is the haiku."),
]


def make_engine(name: str) -> rt.InferenceEngine:
    if name == "scripted":
        return providers.ScriptedEngine(SCRIPT)
    key = os.environ["OPENAI_API_KEY"]
    return providers.OpenAIResponses("openai", base_url="https://api.openai.com/v1", api_key=key)


async def main(name: str = "scripted") -> None:
    model = None if name == "scripted" else "gpt-5-mini"
    config = rt.RuntimeConfig(default_model=model)
    async with rt.open_runtime(engines=[make_engine(name)], config=config) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        goal = await runtime.thread_goal_set(thread_id, goals.GoalPatch(objective=OBJECTIVE, token_budget=100))
        async with runtime.subscribe_events(thread_id=thread_id, kinds=("turn", "goal")) as told:
            first = await runtime.continue_goal(thread_id)
            async for envelope in told:
                match envelope.event:
                    case events.TurnStarted():
                        print("a turn begins by itself")
                        if envelope.turn_id == first:
                            await runtime.thread_goal_set(thread_id, goals.GoalPatch(token_budget=50_000))
                            RAISED.set()
                    case events.GoalUpdated(goal=goal, cause=cause):
                        used = f"{goal.tokens_used} of {goal.token_budget} tokens used"
                        print(f"  the {cause.value} says: {goal.status.value}, {used}")
                    case events.TurnCompleted() | events.TurnFailed() | events.TurnInterrupted() as end:
                        print(f"  it used {end.usage.total_tokens if end.usage else 0} tokens")
                        if goal and goal.status is not goals.GoalStatus.ACTIVE:
                            break
        snapshot = await runtime.load_thread(thread_id)
        assert snapshot is not None
        for turn in snapshot.turns:
            print(*(item.text for item in turn.items if isinstance(item, transcript.AssistantMessage)))


trio.run(main, sys.argv[1] if sys.argv[1:] else "scripted")
