"""Items, goals and states of extensions that Roder keeps beside its events."""

import pytest

import roder_trio as rt
from roder_trio import items, stores, transcript
from roder_trio.goals import GoalCause, GoalStatus
from roder_trio.logic.item import fold_items
from roder_trio.schema import event as e
from roder_trio.stores import import_roder
from roder_trio.stores.transfer import check_store
from tests.roder_support import GOAL, START, RoderThread, at, completed, events_of, moment, started, usage


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


@pytest.mark.parametrize("kind", [[], {}, None, 3])
async def test_kinds_that_are_no_names_are_unknown_ones(roder, load, kind):
    thread = roder().metadata().item(1, {"type": kind}).item(2, delta("m", kind))
    thread.item(3, completed({"type": kind, "id": "p"})).write()
    report, snapshot = await load()
    (event,) = snapshot.item_events
    assert (event.event.item.id, event.event.item.payload) == ("p", {"type": kind, "id": "p"})
    assert report.failed == {}


async def test_what_went_into_a_tool_and_came_out_is_kept_as_text(roder, load):
    tool = {"type": "toolExecution", "id": "x", "toolCallId": "c", "toolName": "look", "input": {"a": 1}, "output": "b"}
    roder().metadata().item(1, completed(tool)).write()
    _, snapshot = await load()
    (event,) = snapshot.item_events
    assert (event.event.item.input, event.event.item.output) == ('{"a": 1}', "b")


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
