"""Events of Roder, its transcript and its usage, in the log of a thread."""

import pytest

from roder_trio import stores, transcript
from roder_trio.schema import event as e
from roder_trio.schema.policy import ApprovalOutcome
from roder_trio.schema.usage import Purpose, TokenUsage
from roder_trio.stores import import_roder
from roder_trio.stores.transfer import check_store
from tests.roder_support import RoderThread, at, events_of, moment, usage


@pytest.fixture
def roder(tmp_path):
    """Makes thread directories below a folder `threads`."""
    return lambda thread_id="thread-1", folder="threads": RoderThread(tmp_path / folder, thread_id)


@pytest.fixture
def load(tmp_path):
    """Imports the folder `threads` into a store in memory; gives the report and a snapshot."""

    async def import_one(thread_id="thread-1", store=None):
        store = store or stores.MemoryThreadStore()
        report = await import_roder(tmp_path / "threads", store)
        assert (await check_store(store)).failures == {}
        return report, await store.load_thread(thread_id)

    return import_one


async def test_turns_items_and_ends_are_mapped_and_keep_their_ids(roder, load):
    thread = roder().metadata()
    thread.turn("turn-1", usage(10, 2), finish_reason="stop").restart()
    thread.turn("turn-2", usage(5, 1), end="TurnFailed", error="broken")
    thread.turn("turn-3", None, end="TurnInterrupted", reason="user")
    thread.write()
    _, snapshot = await load()
    stored = [envelope for envelope in snapshot.events if envelope.seq]
    assert [envelope.event_id for envelope in stored] == [f"thread-1-{n}" for n in range(1, 13)]
    assert [envelope.seq for envelope in stored] == list(range(1, 13)), "the order of the file is the order"
    assert {envelope.source for envelope in stored} == {"engine"}
    assert stored[0].timestamp == moment(at(1))
    assert [type(event).__name__ for event in events_of(snapshot)[:5]] == [
        "TurnStarted",
        "TranscriptItemAppended",
        "TranscriptItemAppended",
        "UsageRecorded",
        "TurnCompleted",
    ]
    assert stored[0].event == e.TurnStarted("openai", "gpt")
    ends = [envelope.event for envelope in stored if isinstance(envelope.event, e.TERMINAL_EVENTS)]
    assert ends == [
        e.TurnCompleted(TokenUsage(10, 2, 12), "stop"),
        e.TurnFailed("broken", "internal", TokenUsage(5, 1, 6)),
        e.TurnInterrupted("user"),
    ]
    assert [turn.status.value for turn in snapshot.turns] == ["completed", "failed", "interrupted"]
    assert [event.index for event in events_of(snapshot) if isinstance(event, e.TranscriptItemAppended)] == [0, 1] * 3


@pytest.mark.parametrize("end", ["TurnCompleted", "TurnFailed", "TurnInterrupted"])
async def test_a_call_that_its_turn_ended_without_a_result_gets_one(roder, load, end):
    thread = roder().metadata()
    thread.event("TurnStarted", {})
    thread.append("ToolCall", {"id": "answered", "name": "a", "arguments": "{}"})
    thread.append("ToolCall", {"id": "open", "name": "b", "arguments": "{}"})
    thread.append("ToolResult", {"id": "answered", "name": "a", "result": "out"})
    thread.event(end, {"usage": usage(1, 1), "error": "broken"})
    thread.write()
    store = stores.MemoryThreadStore()
    _, snapshot = await load(store=store)
    results = [item for item in snapshot.turns[0].items if isinstance(item, transcript.ToolResult)]
    assert [(item.id, item.name, item.is_error) for item in results] == [("answered", "a", False), ("open", "b", True)]
    assert isinstance(snapshot.events[-1].event, e.TERMINAL_EVENTS), "the result stands before its turn's end"
    assert [envelope.seq for envelope in snapshot.events if envelope.seq] == [*range(1, 7)]
    assert (await load(store=store))[1] == snapshot, "importing again adds nothing"


ITEMS = [
    (("UserMessage", {"text": "hi", "images": []}), transcript.UserMessage("hi")),
    (
        ("UserMessage", {"text": "see", "images": [{"image_url": "data:,x"}]}),
        transcript.UserMessage("see", [transcript.Image("data:,x")]),
    ),
    (("UserMessage", {"text": "hi"}), transcript.UserMessage("hi")),
    (("AssistantMessage", {"text": "a", "phase": "commentary"}), transcript.AssistantMessage("a", "commentary")),
    (("ReasoningSummary", {"text": "r"}), transcript.ReasoningSummary("r")),
    (("ToolCall", {"id": "c", "name": "n", "arguments": '{ "a":1}'}), transcript.ToolCall("c", "n", '{ "a":1}')),
    (("ToolCall", {"id": "c", "name": "n", "arguments": {"a": 1}}), transcript.ToolCall("c", "n", '{"a": 1}')),
    (
        ("ToolResult", {"id": "c", "name": None, "result": "out", "display_payload": {"a": 1}, "is_error": True}),
        transcript.ToolResult("c", None, "out", True, {"a": 1}),
    ),
    (("ToolResult", {"id": "c", "name": "n", "result": ["x"]}), transcript.ToolResult("c", "n", '["x"]')),
    (
        ("FileChange", {"path": "a.py", "change_type": "modified"}),
        transcript.OpaqueItem("file_change", {"type": "file_change", "path": "a.py", "change_type": "modified"}),
    ),
    (("ContextCompaction", {"summary": "s"}), transcript.ContextCompaction("s")),
    (("Error", {"message": "m"}), transcript.ErrorNote("m")),
    (("ProviderMetadata", {"any": [1]}), transcript.ProviderMetadata({"any": [1]})),
    (("ProviderMetadata", [1]), transcript.ProviderMetadata({"value": [1]})),
    (("Newer", {"type": 1}), transcript.OpaqueItem("roder.Newer", {"type": "roder.Newer", "value": {"type": 1}})),
    (("Newer", 3), transcript.OpaqueItem("roder.Newer", {"type": "roder.Newer", "value": 3})),
]


async def test_every_transcript_item_is_mapped_or_kept_as_it_is_and_pins_nothing(roder, load):
    thread = roder().metadata(message_count=0)
    for (tag, content), _ in ITEMS:
        thread.append(tag, content)
    thread.event("TranscriptItemAppended", {"item": None}).event("TranscriptItemAppended", {}).write()
    _, snapshot = await load()
    found = events_of(snapshot)
    assert [event.item for event in found] == [item for _, item in ITEMS]
    assert {(event.item_id, event.item_seq) for event in found} == {(None, 0)}
    assert snapshot.item_events == ()
    assert snapshot.turns[0].items == tuple(item for _, item in ITEMS)


MAPPED = [
    (("ToolCallStarted", {"tool_call_id": "c", "tool_name": "n"}), e.ToolStarted("c", "n")),
    (("ToolCallCompleted", {"call_id": "c", "is_error": False}), e.ToolFinished("c", False)),
    (("ToolCallFailed", {"id": "c"}), e.ToolFinished("c", True)),
    (
        ("ApprovalRequested", {"approval_id": "a", "id": "c", "name": "n", "arguments": {"x": 1}, "reason": "why"}),
        e.ApprovalRequested("a", "c", "n", '{"x": 1}', "why"),
    ),
    (
        ("ApprovalRequested", {"approval_id": "a", "call_id": "c", "name": "n"}),
        e.ApprovalRequested("a", "c", "n", "{}"),
    ),
    (("ApprovalResolved", {"approval_id": "a", "approved": True}), e.ApprovalResolved("a", ApprovalOutcome.APPROVED)),
    (("ApprovalResolved", {"approval_id": "a", "approved": False}), e.ApprovalResolved("a", ApprovalOutcome.DENIED)),
    (
        ("ApprovalResolved", {"approval_id": "a", "decision": "Denied"}),
        e.ApprovalResolved("a", ApprovalOutcome.DENIED),
    ),
    (("TurnFailed", {"message": {"code": 1}}), e.TurnFailed('{"code": 1}', "internal")),
    (("TurnInterrupted", {}), e.TurnInterrupted("user")),
    (("TurnStarted", {"reasoning": "high"}), e.TurnStarted("openai", "gpt", "high")),
]


async def test_tools_approvals_and_odd_ends_are_mapped(roder, load):
    thread = roder().metadata()
    for tag, content in [given for given, _ in MAPPED]:
        thread.event(tag, content)
    thread.write()
    _, snapshot = await load()
    assert events_of(snapshot) == [wanted for _, wanted in MAPPED]


def unknown(tag, **payload):
    kind = f"roder.{tag}"
    return e.Unknown(kind, {"type": kind, **payload})


MAYBE = {"approval_id": "a", "outcome": "maybe"}
UNKNOWN = [
    (("RunnerStarted", {"pid": 7}), unknown("RunnerStarted", pid=7)),
    (("RunnerStarted", None), unknown("RunnerStarted")),
    (("Odd", {"type": "x"}), unknown("Odd", value={"type": "x"})),
    (("Odd", [1, 2]), unknown("Odd", value=[1, 2])),
    (("ToolCallStarted", {"nobody": 1}), unknown("ToolCallStarted", nobody=1)),
    (("ApprovalResolved", MAYBE), unknown("ApprovalResolved", **MAYBE)),
    (("GoalCleared", {}), unknown("GoalCleared")),
]


async def test_what_is_not_known_or_has_another_shape_is_kept_under_its_name(roder, load):
    thread = roder().metadata()
    for (tag, content), _ in UNKNOWN:
        thread.event(tag, content)
    thread.event("InferenceEventReceived", {"event": {"MessageDelta": {"text": "x"}}}).write()
    _, snapshot = await load()
    assert events_of(snapshot) == [wanted for _, wanted in UNKNOWN]


async def test_an_event_that_stands_there_twice_counts_once(roder, load):
    thread = roder().metadata()
    thread.turn(told=usage(10, 2))
    thread.lines["events"] += thread.lines["events"]
    thread.write()
    _, snapshot = await load()
    assert len(snapshot.events) == 5
    assert snapshot.metadata.usage == TokenUsage(10, 2, 12)


async def test_a_steer_is_accepted_and_delivered_by_the_message_that_repeats_it(roder, load):
    thread = roder().metadata()
    thread.event("TurnStarted", {"provider": "p", "model": "m"})
    thread.event("TurnSteered", {"message": "shorter"}).event("TurnSteered", {"steer_id": "s", "text": "again"})
    thread.event("TurnSteered", {"steer_id": "i", "message": {"text": "see", "images": [{"image_url": "u"}]}})
    thread.append("AssistantMessage", {"text": "shorter"})
    for text in ("shorter", "other", "again"):
        thread.append("UserMessage", {"text": text})
    thread.event("TurnSteered", {"message": 5}).write()
    _, snapshot = await load()
    found = events_of(snapshot)
    assert found[1] == e.SteerAccepted("thread-1-2", transcript.UserMessage("shorter"))
    assert found[3].message.images == (transcript.Image("u"),)
    assert [event.steer_id for event in found[4:8]] == [None, "thread-1-2", None, "s"]
    assert found[8] == unknown("TurnSteered", message=5)


# -- usage


async def test_each_turns_usage_is_recorded_once_and_the_rest_beside_it(roder, load):
    told = {**usage(100, 20, 9, 3), "service_tier": "default"}
    thread = roder().metadata(usage=told)
    thread.turn("turn-1", usage(10, 2, 4)).turn("turn-2", usage(30, 5, 0, 1)).write()
    thread.event("TurnCompleted", {"usage": usage(99, 99)}, "turn-2").write()
    report, snapshot = await load()
    records = {e_.event_id: e_ for e_ in snapshot.events if isinstance(e_.event, e.UsageRecorded)}
    first = records["import:turn-1:1"]
    assert (first.seq, first.turn_id, first.timestamp) == (0, "turn-1", moment(at(4)))
    assert first.event == e.UsageRecorded(
        attempt_id="import:turn-1",
        report=1,
        turn_id="turn-1",
        usage=TokenUsage(10, 2, 12, 4),
        purpose=Purpose.SAMPLING,
        provider="openai",
        model="gpt",
    )
    assert records["import:rest:1"].event.usage == TokenUsage(60, 13, 73, 5, 2)
    assert len(records) == 3
    assert snapshot.metadata.usage == TokenUsage(100, 20, 120, 9, 3)
    assert [turn.usage for turn in snapshot.turns] == [TokenUsage(10, 2, 12, 4), TokenUsage(30, 5, 35, 0, 1)]
    assert report.warnings == ()


async def test_no_rest_no_record(roder, load):
    roder().metadata(usage=usage(10, 2)).turn(told=usage(10, 2)).write()
    report, snapshot = await load()
    assert len([event for event in events_of(snapshot) if isinstance(event, e.UsageRecorded)]) == 1
    assert (snapshot.metadata.usage, report.warnings) == (TokenUsage(10, 2, 12), ())


@pytest.mark.parametrize("told", [usage(100, 1), usage(0, 0)])
async def test_metadata_that_count_less_than_the_turns_are_a_warning(roder, load, told):
    roder().metadata(usage=told).turn(told=usage(10, 2)).write()
    report, snapshot = await load()
    assert snapshot.metadata.usage == TokenUsage(10, 2, 12)
    assert report.warnings == ("thread-1: the metadata count fewer tokens than the turns; what the turns say was kept",)


async def test_what_the_metadata_do_not_count_is_no_less_than_in_the_turns(roder, load):
    roder().metadata(usage=usage(15, 5)).turn(told={**usage(10, 4), "reasoning_tokens": 3}).write()
    report, snapshot = await load()
    assert (snapshot.metadata.usage, report.warnings) == (TokenUsage(15, 5, 20, reasoning_tokens=3), ())


@pytest.mark.parametrize("told", [None, {}, usage(0, 0), {"prompt_tokens": -1, "total_tokens": "x"}, "12"])
async def test_a_usage_without_tokens_is_none(roder, load, told):
    roder().metadata(usage=told).turn(told=told).write()
    _, snapshot = await load()
    assert snapshot.metadata.usage is None
    assert "UsageRecorded" not in str(events_of(snapshot))


async def test_an_end_without_a_turn_id_records_no_usage(roder, load):
    roder().metadata().event("TurnCompleted", {"usage": usage(1, 1)}, None).write()
    _, snapshot = await load()
    assert [type(event) for event in events_of(snapshot)] == [e.TurnCompleted]
