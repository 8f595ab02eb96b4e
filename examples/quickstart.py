"""Ask one question and read the answer as it comes. Without an engine of your own, the offline one answers."""

import trio

import roder_trio as rt
from roder_trio import items


async def main() -> None:
    async with rt.open_runtime() as runtime:
        thread = await runtime.create_thread(title="Quickstart")
        async with runtime.turn(thread.thread_id, "What is structured concurrency?") as turn:
            async for envelope in turn:
                match envelope.event:
                    case items.ThreadItemEvent(event=items.ItemDelta(delta=items.AgentMessageText(delta=text))):
                        print(text, end="", flush=True)
        print()
        print(turn.outcome.status, turn.outcome.usage)


trio.run(main)
