"""Steer a turn while the model speaks: it stops at once, keeps what it said, and goes on with the new wish.

`ScriptedEngine` plays the model here, so the example needs no network and always goes the same way.
"""

import trio

import roder_trio as rt
from roder_trio import inference, items, providers, transcript

GERMAN = [inference.MessageDelta("Es war einmal "), trio.Event()]
ENGLISH = [inference.MessageDelta("Once upon a time there was a nursery."), inference.Completed("stop")]


async def main() -> None:
    engine = providers.ScriptedEngine([GERMAN, ENGLISH])
    async with rt.open_runtime(engines=[engine]) as runtime:
        thread = await runtime.create_thread()
        async with runtime.turn(thread.thread_id, "Tell me a story.") as turn:
            async for envelope in turn:
                match envelope.event:
                    case items.ThreadItemEvent(event=items.ItemDelta(delta=items.AgentMessageText(delta=text))):
                        print(text, flush=True)
                        if text.startswith("Es war"):
                            await runtime.steer_turn(thread.thread_id, turn.turn_id, "In English, please.")
        print(turn.outcome.status)

    first, second = (call.request.transcript for call in engine.calls)
    assert transcript.UserMessage("In English, please.") not in first
    assert transcript.UserMessage("In English, please.") in second


trio.run(main)
