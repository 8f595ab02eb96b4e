"""Thread directories of Roder become threads: every event, item, state and token once, and the same the next time."""

import json
from datetime import UTC, datetime

import pytest

import roder_trio as rt
from roder_trio import items, stores, testing, transcript
from roder_trio.errors import StorageError
from roder_trio.goals import GoalCause, GoalStatus
from roder_trio.logic.item import fold_items
from roder_trio.schema import event as e
from roder_trio.schema.policy import ApprovalOutcome
from roder_trio.schema.usage import Purpose, TokenUsage
from roder_trio.stores import import_roder
from roder_trio.stores.transfer import check_store
from tests.roder_support import START, RoderThread, at, usage
from tests.transfer_support import jsonl


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


def moment(text):
    return datetime.fromisoformat(text).astimezone(UTC)


def events_of(snapshot):
    return [envelope.event for envelope in snapshot.events]


# -- metadata


async def test_metadata_are_those_of_roder(roder, load):
    roder().metadata().turn().write()
    report, snapshot = await load()
    assert report == stores.ImportReport(imported=("thread-1",))
    assert snapshot.metadata == rt.ThreadMetadata(
        thread_id="thread-1",
        title="A title",
        workspace="/srv/project",
        provider="openai",
        model="gpt",
        tool_allowlist=("read",),
        developer_instructions="be brief",
        created_at=moment(at(0)),
        updated_at=moment(at(500)),
        message_count=2,
    )


async def test_missing_metadata_are_derived_of_the_first_and_the_last_event(roder, load):
    roder().turn().item(40, {"type": "itemStarted", "item": {"type": "error", "id": "i", "message": "m"}}).write()
    report, snapshot = await load()
    metadata = snapshot.metadata
    assert (metadata.workspace, metadata.title, metadata.message_count) == (None, "question", 2)
    assert (metadata.created_at, metadata.updated_at) == (moment(at(1)), moment(at(40)))
    assert report.warnings == ()


async def test_garbage_after_the_metadata_is_ignored(roder, load):
    thread = roder().metadata().turn().write()
    thread.file("metadata.json", (thread.folder / "metadata.json").read_text() + '}\n{"title": "half')
    report, snapshot = await load()
    assert (snapshot.metadata.title, report.failed) == ("A title", {})


async def test_a_relative_workspace_is_left_out_with_a_warning(roder, load):
    roder().metadata(workspace="project").write()
    report, snapshot = await load()
    assert snapshot.metadata.workspace is None
    assert report.warnings == ("thread-1: the workspace 'project' is no absolute path and was left out",)


async def test_a_count_of_messages_beyond_those_in_the_log_is_kept(roder, load):
    roder().metadata(message_count=5).turn().write()
    assert (await load())[1].metadata.message_count == 5


@pytest.mark.parametrize("file", ["metadata.json", "events.jsonl", "item_events.jsonl"])
async def test_the_id_comes_from_what_names_it(tmp_path, roder, file):
    thread = roder().metadata().turn()
    thread.item(1, {"type": "itemStarted", "item": {"type": "error", "id": "i", "message": "m"}}).write()
    for other in ("metadata.json", "events.jsonl", "item_events.jsonl"):
        if other != file:
            (thread.folder / other).unlink()
    thread.folder.rename(thread.folder.with_name("odd name"))
    store = stores.MemoryThreadStore()
    assert (await import_roder(tmp_path / "threads", store)).imported == ("thread-1",)


async def test_a_folder_that_says_nothing_of_its_thread_gives_it_its_name_but_no_dates(roder, load):
    roder("named").file("metadata.json", {"created_at": at(0), "updated_at": at(1)})
    roder("dateless").file("metadata.json", {"created_at": at(0)})
    report, _ = await load()
    assert report.imported == ("named",)
    assert "'updated_at' is missing" in report.failed["dateless"]


# -- events


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


async def test_metadata_that_count_less_than_the_turns_are_a_warning(roder, load):
    roder().metadata(usage=usage(100, 1)).turn(told=usage(10, 2)).write()
    report, snapshot = await load()
    assert snapshot.metadata.usage == TokenUsage(10, 2, 12)
    assert report.warnings == ("thread-1: the metadata count fewer tokens than the turns; what the turns say was kept",)


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


# -- items


def started(item):
    return {"type": "itemStarted", "item": item}


def completed(item):
    return {"type": "itemCompleted", "item": item}


def delta(item_id, type_, **fields):
    return {"type": "itemDelta", "itemId": item_id, "delta": {"type": type_, **fields}}


async def test_items_are_folded_to_one_completion_each_at_their_last_number(roder, load):
    thread = roder().metadata().turn()
    message = {"type": "agentMessage", "id": "m", "text": "", "phase": None, "status": "inProgress"}
    tool = {
        "type": "toolExecution",
        "id": "t",
        "toolCallId": "c",
        "toolName": "n",
        "input": "{}",
        "status": "inProgress",
    }
    thread.item(1, started({"type": "userMessage", "id": "u", "text": "hi", "images": [{"imageUrl": "x"}]}))
    thread.item(2, completed({"type": "userMessage", "id": "u", "text": "hi", "images": [{"imageUrl": "x"}]}))
    thread.item(3, started(message)).item(4, delta("m", "agentMessageText", delta="an", phase=None))
    thread.item(5, started(tool)).item(6, delta("m", "agentMessageText", delta="swer"))
    thread.item(7, completed({**message, "text": "answer", "status": "completed"}))
    thread.item(8, completed({**tool, "input": None, "error": "no", "status": "failed"}))
    thread.item(9, delta("r", "reasoningSummaryText", delta="so", summaryIndex=1))
    thread.item(10, delta("m2", "agentMessageText", delta="cut"))
    thread.write()
    _, snapshot = await load()
    assert [(event.seq, event.event) for event in snapshot.item_events] == [
        (2, items.ItemCompleted(items.UserMessage("u", "hi", [transcript.Image("x")], items.ItemStatus.COMPLETED))),
        (7, items.ItemCompleted(items.AgentMessage("m", "answer", None, items.ItemStatus.COMPLETED))),
        (8, items.ItemCompleted(items.ToolExecution("t", "c", "n", "{}", None, "no", items.ItemStatus.FAILED))),
        (9, items.ItemCompleted(items.Reasoning("r", ("", "so"), (), items.ItemStatus.FAILED))),
        (10, items.ItemCompleted(items.AgentMessage("m2", "cut", None, items.ItemStatus.FAILED))),
    ]
    assert snapshot.item_events[1].event_id == "thread-1-item-6"
    assert snapshot.item_events[1].timestamp == moment(at(7))
    assert [item.id for item in fold_items((), snapshot.item_events)] == ["u", "m", "t", "r", "m2"]


async def test_items_of_unknown_kinds_are_raw_and_unknown_events_and_repeats_are_skipped(roder, load):
    thread = roder().metadata()
    plan = {"type": "planUpdate", "id": "p", "steps": [1], "status": "completed"}
    thread.item(1, completed(plan)).item(2, completed({"type": "planUpdate", "id": "q"}))
    thread.item(3, completed({"type": "contextCompaction", "id": "c", "summary": "s"}))
    thread.item(4, delta("m", "agentMessageText", delta="x"), eventId="twice")
    thread.item(5, delta("m", "agentMessageText", delta="x"), eventId="twice")
    thread.item(6, {"type": "itemMoved"}).item(7, delta("m", "hologram")).item(8, {"type": "itemDelta", "itemId": "m"})
    thread.write()
    report, snapshot = await load()
    done = items.ItemStatus.COMPLETED
    assert [event.event.item for event in snapshot.item_events] == [
        items.Raw("p", plan, done),
        items.Raw("q", {"type": "planUpdate", "id": "q"}, done),
        items.Compaction("c", "s", done),
        items.AgentMessage("m", "x", None, items.ItemStatus.FAILED),
    ]
    assert report.warnings == ("thread-1: 3 events of item_events.jsonl are of unknown kinds and were skipped",)


async def test_numbers_that_were_given_twice_are_raised(roder, load):
    thread = roder().metadata()
    for name in ("a", "b", "c"):
        thread.item(1, completed({"type": "error", "id": name, "message": "m"}))
    thread.item(2, completed({"type": "error", "id": "d", "message": "m"})).write()
    _, snapshot = await load()
    assert [(event.seq, event.event.item_id) for event in snapshot.item_events] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
        (4, "d"),
    ]


# -- goals


GOAL = {
    "threadId": "thread-1",
    "objective": "finish it",
    "status": "budgetLimited",
    "tokenBudget": 50,
    "tokensUsed": 60,
    "timeUsedSeconds": 7.5,
    "createdAt": at(3),
    "updatedAt": at(9),
}


async def test_the_goal_comes_with_what_it_had_used(roder, load):
    roder().metadata().turn(told=usage(10, 2)).file("goal.json", GOAL).write()
    store = stores.MemoryThreadStore()
    _, snapshot = await load(store=store)
    updated = snapshot.events[-1]
    assert (updated.event.cause, updated.event.opening_tokens, updated.event.opening_time) == (
        GoalCause.IMPORT,
        60,
        7.5,
    )
    assert (updated.seq, updated.timestamp) == (5, moment(at(9)))
    async with rt.open_runtime(store=store) as runtime:
        goal = await runtime.thread_goal_get("thread-1")
    assert goal == rt.goals.Goal(
        goal_id=goal.goal_id,
        thread_id="thread-1",
        objective="finish it",
        status=GoalStatus.BUDGET_LIMITED,
        token_budget=50,
        tokens_used=60,
        time_used=7.5,
        created_at=moment(at(3)),
        updated_at=moment(at(9)),
    )


@pytest.mark.parametrize("factor", [1, 1000])
async def test_a_goal_may_count_its_dates_and_may_lack_them(roder, load, factor):
    told = {"objective": "x", "status": "active", "createdAt": int(START.timestamp()) * factor}
    roder().metadata().file("goal.json", told)
    goal = (await load())[1].events[-1].event.goal
    assert (goal.created_at, goal.updated_at, goal.token_budget) == (START, moment(at(500)), None)


async def test_goal_events_are_mapped_and_the_goal_beside_the_log_has_the_last_word(roder, load):
    thread = roder().metadata()
    snake = {"objective": "first", "status": "active", "tokens_used": 3, "created_at": at(1), "updated_at": at(1)}
    thread.event("ThreadGoalUpdated", {"goal": snake}, None).event("ThreadGoalCleared", {}, None)
    thread.event("GoalUpdated", {**snake, "objective": "second"}, None)
    thread.file("goal.json", GOAL).write()
    _, snapshot = await load()
    first, cleared, second, last = events_of(snapshot)
    assert (first.goal.objective, first.opening_tokens, first.cause) == ("first", 3, GoalCause.IMPORT)
    assert cleared == e.GoalCleared(first.goal.goal_id, GoalCause.IMPORT)
    assert [event.goal.objective for event in (second, last)] == ["second", "finish it"]
    assert len({event.goal.goal_id for event in (first, second, last)}) == 3


async def test_a_goal_that_can_not_be_read_is_damage_and_not_no_goal(roder, load):
    roder().metadata().file("goal.json", {"objective": "x", "status": "dreaming"})
    report, snapshot = await load()
    assert snapshot is None
    assert "goal.json line 1: " in report.failed["thread-1"]


@pytest.mark.parametrize("number", [10**300, float("1e30")])
async def test_a_date_that_is_none_is_damage(roder, load, number):
    roder().metadata().file("goal.json", {**GOAL, "createdAt": number})
    report, _ = await load()
    assert "goal.json" in report.failed["thread-1"]


# -- states of extensions


async def test_states_keep_their_scope_and_get_an_id_of_their_line(roder, load):
    thread = roder().metadata().state("a", 1).state("b", {"x": []}, {"Workspace": {"workspace": "/srv"}})
    thread.state("c", None, {"Thread": {"thread_id": "thread-1"}})
    thread.state("d", 4, {"Turn": {"thread_id": "thread-1", "turn_id": "turn-1"}})
    thread.lines["extension_state"][-1] += thread.lines["extension_state"][0]
    thread.write()
    _, snapshot = await load()
    found = snapshot.extension_states
    assert [(state.key, state.value, type(state.scope).__name__, state.schema_version) for state in found] == [
        ("a", 1, "GlobalScope", 2),
        ("b", {"x": []}, "WorkspaceScope", 2),
        ("c", None, "ThreadScope", 2),
        ("d", 4, "TurnScope", 2),
        ("a", 1, "GlobalScope", 2),
    ]
    assert len({state.record_id for state in found}) == 5


async def test_bad_states_are_skipped_and_counted(roder, load):
    thread = roder().metadata().state("good", 1).state("other", 1, {"Thread": {"thread_id": "thread-2"}})
    thread.state("odd", 1, {"Galaxy": {}}).state("odd", 1, 5)
    thread.lines["extension_state"][1:1] = ["{garbage", '{"extension_id":', "[1]"]
    thread.lines["extension_state"].append('{"extension_id": "x", "value": NaN}')
    thread.write()
    report, snapshot = await load()
    assert [state.key for state in snapshot.extension_states] == ["good"]
    assert report.warnings == (
        "thread-1: 4 lines of extension_state.jsonl can't be read and were skipped",
        "thread-1: 3 values of extension_state.jsonl don't fit and were skipped",
    )


# -- files


async def test_several_values_on_a_line_are_read_in_turn_and_a_torn_last_one_is_dropped(roder, load):
    thread = roder().metadata().turn()
    lines = thread.lines["events"]
    thread.write().file("events.jsonl", f"{lines[0]} {lines[1]}\n\n{lines[2]}{lines[3][:40]}")
    report, snapshot = await load()
    assert len(snapshot.events) == 3
    assert report.warnings == ("thread-1: events.jsonl line 3 is cut off and was dropped",)


def appended(item):
    return json.dumps({"event_id": "x", "timestamp": at(1), "event": {"TranscriptItemAppended": {"item": item}}})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{garbage", "events.jsonl line 2"),
        ("[1]", "events.jsonl line 2: a value is no JSON object"),
        ('{"event_id": 5}', "an event has no event_id"),
        ('{"event_id": "x", "event": {"A": 1, "B": 2}}', "tagged by one key"),
        ('{"event_id": "x", "thread_id": "other", "event": "A"}', "names thread 'other'"),
        ('{"event_id": "x", "event": "A", "timestamp": "2026-01-01T00:00:00"}', "events.jsonl line 2"),
        (appended({"UserMessage": {}}), "events.jsonl line 2"),
        (appended({"UserMessage": {"text": "", "images": [5]}}), "events.jsonl line 2"),
        (appended({"UserMessage": {"text": "", "images": 5}}), "events.jsonl line 2"),
        (appended({"UserMessage": {"text": ""}, "Two": {}}), "events.jsonl line 2"),
    ],
)
async def test_inner_damage_fails_its_thread_alone(roder, load, line, told):
    bad, good = roder("bad").metadata().turn(), roder("good").metadata().turn()
    bad.lines["events"].insert(1, line)
    bad.write()
    good.write()
    report, snapshot = await load("bad")
    assert snapshot is None
    assert report.imported == ("good",)
    assert told in report.failed["bad"]


@pytest.mark.parametrize(
    "fields",
    [
        {"event": 5},
        {"threadId": "other"},
        {"timestamp": None},
        {"event": {"type": "itemStarted", "item": None}},
        {"event": {"type": "itemStarted", "item": {"type": "agentMessage", "id": "m", "status": "dreaming"}}},
    ],
)
async def test_damage_among_item_events_fails_the_thread(roder, load, fields):
    roder().metadata().item(1, started({"type": "error", "id": "i", "message": "m"}), **fields).write()
    report, snapshot = await load()
    assert snapshot is None
    assert "item_events.jsonl line 1" in report.failed["thread-1"]


@pytest.mark.parametrize("text", ["", "{garbage", "[]", '{"created_at": 5, "updated_at": "x"}', '{"title": 5}'])
async def test_metadata_that_can_not_be_read_fail_the_thread(roder, load, text):
    roder().turn().write().file("metadata.json", text)
    report, snapshot = await load()
    assert snapshot is None
    assert "metadata.json line 1" in report.failed["thread-1"]


async def test_the_source_is_only_read(roder, load):
    thread = roder().metadata().turn().state("a", 1).file("goal.json", GOAL).write()
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in thread.folder.iterdir()}
    await load()
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in thread.folder.iterdir()} == before


# -- whole folders


def whole(thread):
    message = {"type": "agentMessage", "id": "m", "text": "answer", "status": "completed"}
    thread.metadata(usage=usage(50, 9)).turn(told=usage(10, 2)).item(1, completed(message)).state("a", 1)
    return thread.file("goal.json", {**GOAL, "threadId": thread.thread_id}).write()


async def test_archived_threads_beside_the_folder_are_imported_as_archived(roder, tmp_path):
    whole(roder("active"))
    whole(roder("gone", "archived_threads"))
    (tmp_path / "threads" / "notes").mkdir()
    (tmp_path / "threads" / "file").write_text("")
    store = stores.MemoryThreadStore()
    report = await import_roder(tmp_path / "threads", store)
    assert report.imported == ("active", "gone")
    assert [row.thread_id for row in (await store.list_threads()).threads] == ["active"]
    assert [row.thread_id for row in (await store.list_archived()).threads] == ["gone"]
    report = await import_roder(tmp_path / "threads", store)
    assert (report.imported, report.skipped) == ((), ("active", "gone"))


async def test_the_folder_that_holds_the_threads_will_do(roder, tmp_path):
    whole(roder("active"))
    assert (await import_roder(str(tmp_path), stores.MemoryThreadStore())).imported == ("active",)


async def test_importing_twice_adds_nothing(roder, tmp_path):
    thread = whole(roder())
    async with jsonl(tmp_path / "store") as store:
        assert (await import_roder(tmp_path / "threads", store)).imported == ("thread-1",)
        before = (tmp_path / "store" / "threads" / "thread-1.jsonl").read_bytes()
        report = await import_roder(tmp_path / "threads", store)
        assert (report.imported, report.skipped) == ((), ("thread-1",))
        assert (tmp_path / "store" / "threads" / "thread-1.jsonl").read_bytes() == before
        assert (await check_store(store)).failures == {}
        # what Roder added since is what is new
        thread.event("TurnStarted", {"provider": "p", "model": "m"}, "turn-9").write()
        assert (await import_roder(tmp_path / "threads", store)).imported == ("thread-1",)
        assert (await store.load_thread("thread-1")).turns[-1].turn_id == "turn-9"


async def test_an_import_that_fails_at_any_append_is_completed_by_the_next(roder, tmp_path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores._batch.CHUNK_RECORDS", 2)
    whole(roder())
    whole(roder("gone", "archived_threads"))
    wanted = stores.MemoryThreadStore()
    await import_roder(tmp_path / "threads", wanted)
    for number in range(1, 11):
        for fault in ("fail", "fail_after"):
            store = testing.FaultyStore(stores.MemoryThreadStore(), **{fault: {number: StorageError("now")}})
            assert list((await import_roder(tmp_path / "threads", store)).failed.values()) == ["now"]
            await import_roder(tmp_path / "threads", store)
            for thread_id in ("thread-1", "gone"):
                await wanted.unarchive_thread(thread_id)
                assert await store.unarchive_thread(thread_id) is (thread_id == "gone")
                assert await store.load_thread(thread_id) == await wanted.load_thread(thread_id)
    assert store.appends >= 10


async def test_another_thread_under_the_id_is_not_touched(roder, tmp_path):
    whole(roder())
    store = stores.MemoryThreadStore()
    now = datetime.now(UTC)
    await store.create_thread(rt.ThreadMetadata(thread_id="thread-1", created_at=now, updated_at=now))
    report = await import_roder(tmp_path / "threads", store)
    assert "'thread-1' is taken" in report.failed["thread-1"]
    assert (await store.load_thread("thread-1")).events == ()


async def test_a_thread_that_was_archived_since_stays_so(roder, tmp_path):
    whole(roder())
    store = stores.MemoryThreadStore()
    await import_roder(tmp_path / "threads", store)
    await store.archive_thread("thread-1")
    assert (await import_roder(tmp_path / "threads", store)).skipped == ("thread-1",)
    assert await store.load_thread("thread-1") is None


async def test_no_folder_is_an_error_and_an_empty_one_is_nothing(tmp_path):
    with pytest.raises(StorageError, match=r"missing' can't be imported: .*No such file"):
        await import_roder(tmp_path / "missing", stores.MemoryThreadStore())
    report = await import_roder(tmp_path, stores.MemoryThreadStore())
    assert report == stores.ImportReport(warnings=(f"there is no thread directory in '{tmp_path}'",))


async def test_an_imported_thread_goes_on(roder, tmp_path):
    """Its open turn is closed, its next numbers follow, its history is told to the model."""
    thread = whole(roder()).metadata(workspace=None)
    thread.event("TurnStarted", {"provider": "p", "model": "m"}, "turn-2")
    thread.append("UserMessage", {"text": "open"}, "turn-2").write()
    store = stores.MemoryThreadStore()
    await import_roder(tmp_path / "threads", store)
    before = await store.load_thread("thread-1")
    async with rt.open_runtime(store=store, config=rt.RuntimeConfig(default_provider="offline")) as runtime:
        await runtime.update_thread("thread-1", provider="offline", model="offline")
        outcome = await runtime.run_turn("thread-1", "go on")
        snapshot = await runtime.load_thread("thread-1")
    assert outcome.status == "completed"
    assert [turn.status.value for turn in snapshot.turns] == ["completed", "interrupted", "completed"]
    seqs = [envelope.seq for envelope in snapshot.events if envelope.seq]
    assert seqs == list(range(1, len(seqs) + 1))
    assert snapshot.events[: len(before.events)] == before.events
    assert min(event.seq for event in snapshot.item_events[1:]) == 2


async def test_what_is_imported_survives_a_journal_as_it_was(roder, tmp_path):
    thread = whole(roder())
    for (tag, content), _ in ITEMS:
        thread.append(tag, content)
    for tag, content in [*(given for given, _ in MAPPED), *(given for given, _ in UNKNOWN)]:
        thread.event(tag, content)
    thread.write()
    store = stores.MemoryThreadStore()
    await import_roder(tmp_path / "threads", store)
    async with jsonl(tmp_path / "store") as journal:
        await import_roder(tmp_path / "threads", journal)
        assert await journal.load_thread("thread-1") == await store.load_thread("thread-1")
