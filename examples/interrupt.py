"""Interrupt a turn that would go on for ever: what was said stays, what was used is counted, the thread goes on.

`ScriptedEngine` plays the model here, so the example needs no network and always goes the same way. An event that is
never set stands for a model that says nothing for a long time.
"""

import trio

import roder_trio as rt
from roder_trio import inference, items, providers, transcript

ENDLESS = [
    inference.MessageDelta("One sheep. "),
    inference.Usage(rt.TokenUsage(prompt_tokens=12, completion_tokens=6, total_tokens=18)),
    inference.MessageDelta("Two sheep. "),
    trio.Event(),
]
SECOND = [
    inference.MessageDelta("I had counted two sheep."),
    inference.Usage(rt.TokenUsage(prompt_tokens=30, completion_tokens=5, total_tokens=35)),
    inference.Completed("stop"),
]


async def main() -> None:
    engine = providers.ScriptedEngine([ENDLESS, SECOND])
    async with rt.open_runtime(engines=[engine]) as runtime:
        thread = await runtime.create_thread()
        async with runtime.turn(thread.thread_id, "Count sheep until I sleep.") as turn:
            async for envelope in turn:
                match envelope.event:
                    case items.ThreadItemEvent(event=items.ItemDelta(delta=items.AgentMessageText(delta=text))):
                        print(text, end="", flush=True)
                        if "Two" in text:
                            await runtime.interrupt_turn(thread.thread_id, turn.turn_id)
        print(f"\n{turn.outcome.status}: {turn.outcome.usage}")

        outcome = await runtime.run_turn(thread.thread_id, "How far did you come?")
        print(f"{outcome.text}\n{outcome.status}: {outcome.usage}")

        told = engine.calls[-1].request.transcript
        assert transcript.AssistantMessage("One sheep. Two sheep. ", interrupted=True) in told
        total = await runtime.load_metadata(thread.thread_id)
        print(f"the thread: {total.usage.total_tokens} tokens" if total and total.usage else "nothing counted")


trio.run(main)
