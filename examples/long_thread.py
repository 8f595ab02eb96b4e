"""A thread of 2,000 turns whose window stays small: the log keeps all of them, the model sees a summary and the newest.

No key is needed. The engine of this example has no compaction of its own, so the runtime asks it for summaries.
"""

import sys

import trio

import roder_trio as rt
from roder_trio import events, inference, providers

TURNS = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
LIMIT = 4_000


def answer(request: inference.InferenceRequest) -> list[inference.InferenceEvent]:
    """Answer a turn, or write the summary that is asked for."""
    if request.metadata.get("compaction_summary"):
        text = "goal: count the days\nprogress: all is well so far\nnext_steps: go on"
    else:
        text = "Nothing happened. " * 20
    return [inference.MessageDelta(text), inference.Completed("stop")]


async def main() -> None:
    engine = providers.ScriptedEngine(iter(lambda: answer, None))
    config = rt.RuntimeConfig(auto_compact_token_limit=LIMIT)
    compactions, largest = 0, 0
    async with rt.open_runtime(engines=[engine], config=config) as runtime:
        thread = (await runtime.create_thread()).thread_id
        async with runtime.subscribe_events(thread_id=thread, kinds=["compaction"]) as seen:
            for day in range(1, TURNS + 1):
                await runtime.run_turn(thread, f"What happened on day {day}?")
                while seen.buffered:
                    match seen.take().event:
                        case events.ContextCompactionStarted(estimated_tokens=tokens):
                            largest = max(largest, tokens)
                        case events.ContextCompactionRecorded() as recorded:
                            compactions += 1
        snapshot = await runtime.load_thread(thread)
        assert snapshot is not None
        log = [item for turn in snapshot.turns for item in turn.items]
        print(f"{TURNS} turns, {len(log)} items in the log, from {log[0]!r}")
        print(f"{compactions} summaries, the last of which left {recorded.estimated_tokens} tokens")
        print(f"the window never held more than {largest} tokens; its limit is {LIMIT}")
        asked = [call.request for call in engine.calls if not call.request.metadata]
        window = asked[-1].transcript
        print(f"the newest request held {len(window)} items, the last of them {window[-1]!r}")


trio.run(main)
