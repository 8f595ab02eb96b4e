"""What a job reports is reported once, also if its fate isn't known in time."""

from collections.abc import Sequence

import pytest
import trio

from roder_trio import stores, transcript
from roder_trio.schema.thread import Record
from roder_trio.testing.faulty import FaultyStore
from tests.turn_support import DONE, call, one_thread, say, settings


@pytest.mark.parametrize("steps", [[[*call("c1"), say("looking"), DONE]], [[say("hi"), DONE]]])
async def test_what_is_stored_after_the_grace_is_not_stored_again(steps, autojump_clock):
    held = 0

    async def hold(number: int, thread_id: str, records: Sequence[Record]) -> None:
        nonlocal held
        items = [getattr(getattr(record, "event", None), "item", None) for record in records]
        if any(isinstance(item, transcript.AssistantMessage) for item in items):
            held += 1
            await trio.sleep(3)

    store = FaultyStore(stores.MemoryThreadStore(), before=hold)
    async with one_thread(*steps, store=store, config=settings(append_grace=1.0)) as scene:
        outcome = await scene.run()
        history = await scene.history()
    assert held == 1
    texts = [item for item in history if isinstance(item, transcript.AssistantMessage)]
    calls = [item.id for item in history if isinstance(item, transcript.ToolCall)]
    results = [item.id for item in history if isinstance(item, transcript.ToolResult)]
    assert len(texts) == 1
    assert calls == results
    assert len(calls) == len(steps[0]) // 4
    assert (outcome.status, outcome.error_kind) == (("failed", "storage") if calls else ("completed", None))
