"""Decisions: what is stored, done and answered for each request in each phase, and what is refused."""

from typing import Any

import attrs
import pytest

from roder_trio.errors import (
    BadWorkspace,
    CommandRefused,
    EmptyMessage,
    NoActiveTurn,
    RuntimeDraining,
    StaleWindow,
    SteerQueueFull,
    ThreadBusy,
    ThreadNotFound,
    UnknownProvider,
    UnknownTurn,
    UnsupportedOption,
)
from roder_trio.logic.estimate import estimate
from roder_trio.logic.thread.admission import ModelUnknown, WorkspaceUnchecked
from roder_trio.logic.thread.decide import answer_of_no_thread, decide
from roder_trio.logic.thread.draft import AppendItem, DiscardOpen, Emit, RecordItem
from roder_trio.logic.thread.facts import DEFERRED, VIEW, Decision, Phase, Slot
from roder_trio.logic.thread.recovery import close_open_work
from roder_trio.logic.thread.state import TurnEntry
from roder_trio.logic.thread.turns import end_open_turn, outcome_of
from roder_trio.logic.usage import Ledger
from roder_trio.schema import command as c
from roder_trio.schema import inference
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.event import (
    TERMINAL_EVENTS,
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextCompactionStarted,
    GoalCleared,
    GoalTimeRecorded,
    GoalUpdated,
    SteerAccepted,
    ThreadMetadataChanged,
    TranscriptItemAppended,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnInterruptRequested,
    TurnStarted,
)
from roder_trio.schema.goal import GoalCause, GoalPatch, GoalStatus
from roder_trio.schema.item import AgentMessage, ItemDelta, ItemDiscarded, ItemStarted, ItemStatus
from roder_trio.schema.thread import ExtensionStateRecord, ThreadScope
from roder_trio.schema.transcript import (
    AssistantMessage,
    ErrorNote,
    Image,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)
from roder_trio.schema.turn import TurnOutcome
from roder_trio.schema.usage import TokenUsage
from tests.thread_support import AT, THREAD, Desk, hydrated

USER, ANSWER = UserMessage("hello"), AssistantMessage("hi")
CALL, RESULT = ToolCall("c1", "look", "{}"), ToolResult("c1", "look", "seen")
BOUNDARY = ProviderMetadata({"output": [{"type": "compaction", "id": "k", "encrypted_content": "x"}]})
BEGUN = ContextCompactionStarted("k", "auto", 1, 1)


def start(turn_id: str = "u", text: str = "hello", images: tuple[Image, ...] = (), **options: Any) -> c.StartTurn:
    return c.StartTurn(turn_id=turn_id, message=UserMessage(text, images), options=c.TurnOptions(**options))


def commit(desk: Desk, id: str = "k", base: int | None = None) -> c.CommitCompaction:
    return c.CommitCompaction(
        turn_id="u", compaction_id=id, base=len(desk.state.history) if base is None else base, item=BOUNDARY,
        strategy="native", duration=2.0,
    )  # fmt: skip


def in_phase(name: str) -> Desk:
    """A thread whose slot is in a phase; apart from idle and compacting it has turn u."""
    desk = Desk()
    if name == "compacting":
        desk.do(c.Compact("k", None))
    elif name != "idle":
        desk.start()
    match name:
        case "finishing":
            desk.slot = attrs.evolve(desk.slot, phase=Phase.FINISHING)
        case "told to stop":
            desk.cause = "user"
        case "interrupted":
            desk.do(c.Interrupt("u", "user"))
        case "ended":
            desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    return desk


PHASES = ("idle", "running", "told to stop", "finishing", "interrupted", "ended", "compacting")


def answer(desk: Desk, payload: Any) -> Any:
    """The class of a refusal, or what was decided."""
    try:
        return decide(desk.state, payload, desk.facts())
    except CommandRefused as refusal:
        return type(refusal)


# -- admission ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("running", ThreadBusy),
        ("finishing", ThreadBusy),
        ("told to stop", DEFERRED),
        ("interrupted", DEFERRED),
        ("ended", DEFERRED),
        ("compacting", DEFERRED),
    ],
)
def test_a_turn_or_compaction_is_refused_while_a_turn_runs_and_waits_while_the_slot_closes(phase, expected):
    desk = in_phase(phase)
    assert answer(desk, start("v")) == expected
    assert answer(desk, c.Compact("k2", None)) == expected


def test_a_busy_thread_names_its_turn():
    desk = in_phase("running")
    with pytest.raises(ThreadBusy) as raised:
        desk.decide(start("v"))
    assert (raised.value.turn_id, raised.value.automatic) == ("u", False)
    assert desk.state.open_turn is not None
    desk.state.open_turn.automatic = True
    with pytest.raises(ThreadBusy) as raised:
        desk.decide(start("v"))
    assert raised.value.automatic


def test_a_turn_opens_with_its_start_and_its_message_in_one_append():
    desk = Desk()
    decision = desk.decide(start(reasoning="low", instructions="be brief"))
    plan = c.TurnPlan(
        turn_id="u", provider="one", model="m", reasoning="low",
        options=c.TurnOptions(reasoning="low", instructions="be brief"),
    )  # fmt: skip
    assert decision == Decision(
        (Emit(TurnStarted("one", "m", "low"), "u"), AppendItem("u", USER)), (c.StartJob(plan),), "u"
    )


def test_another_model_than_before_is_noted_behind_the_message():
    desk = Desk()
    desk.start()
    desk.do(c.FinalStep("u", (), None))
    desk.do(c.JobEnded("u", c.Finished()))
    assert len(desk.decide(start("v")).drafts) == 2
    switch = {
        "kind": "model_switch", "provider": "two", "model": "n", "previous_provider": "one", "previous_model": "m",
    }  # fmt: skip
    drafts = desk.decide(start("v", provider="two", model="n")).drafts
    assert drafts[1:] == (AppendItem("v", USER), AppendItem("v", ProviderMetadata(switch)))


def test_the_first_check_that_fails_is_told_and_changes_nothing():
    """Every request here fails all checks from some number on; the earliest wins."""
    config = RuntimeConfig(workspace="/there")
    desk = Desk(config=config, draining=True)
    everything: dict[str, Any] = {"text": " ", "provider": "none", "reasoning": "low"}
    desk.slot = Slot(Phase.RUNNING, "v")
    steps: list[tuple[dict[str, Any], type[CommandRefused]]] = [
        ({}, RuntimeDraining),
        ({"draining": False}, EmptyMessage),
        ({"text": "hello"}, WorkspaceUnchecked),
        ({"existing": "/there"}, UnknownProvider),
        ({"provider": "two", "images": (Image("x"),)}, ModelUnknown),
        ({"model": "n"}, UnsupportedOption),
        ({"provider": "one", "model": "m", "reasoning": "max"}, UnsupportedOption),
        ({"reasoning": "low"}, ThreadBusy),
    ]
    for change, expected in steps:
        everything |= change
        desk.given["draining"] = everything.get("draining", True)
        command = attrs.evolve(
            start(**{name: everything[name] for name in everything if name not in ("draining", "existing")}),
            existing_directory=everything.get("existing"),
        )
        assert answer(desk, command) is expected
    assert (desk.records, desk.state.next_seq) == ([], 1)


def test_a_message_of_images_only_is_one_for_an_engine_that_takes_them():
    image = (Image("data:x"),)
    assert isinstance(Desk().decide(start(text=" ", images=image)), Decision)
    with pytest.raises(UnsupportedOption) as raised:
        Desk().decide(start(images=image, provider="two", model="n"))
    assert raised.value.name == "images"


@pytest.mark.parametrize(
    ("of_turn", "of_thread", "of_config", "chosen"),
    [("/a", "/b", "/c", "/a"), (None, "/b", "/c", "/b"), (None, None, "/c", "/c")],
)
def test_the_workspace_that_counts_must_have_been_looked_at(of_turn, of_thread, of_config, chosen):
    desk = Desk(config=RuntimeConfig(workspace=of_config))
    desk.state.metadata = attrs.evolve(desk.state.metadata, workspace=of_thread)
    command = start(workspace=of_turn)
    with pytest.raises(WorkspaceUnchecked) as raised:
        desk.decide(command)
    assert isinstance(raised.value, BadWorkspace)
    assert raised.value.workspace == chosen
    with pytest.raises(WorkspaceUnchecked):
        desk.decide(attrs.evolve(command, existing_directory="/other"))
    assert desk.decide(attrs.evolve(command, existing_directory=chosen)).reply == "u"


@pytest.mark.parametrize(
    ("of_turn", "of_thread", "of_config", "chosen"),
    [
        ({}, {}, {}, ("one", "m", None)),
        ({}, {}, {"default_provider": "two", "default_model": "n"}, ("two", "n", None)),
        ({}, {"provider": "two", "model": "n"}, {"default_provider": "one", "default_model": "x"}, ("two", "n", None)),
        ({"provider": "one"}, {"provider": "two", "model": "n", "reasoning": "low"}, {}, ("one", "n", "low")),
        ({"model": "x", "reasoning": "high"}, {"model": "n", "reasoning": "low"}, {}, ("one", "x", "high")),
        ({}, {}, {"default_reasoning": "high"}, ("one", "m", "high")),
    ],
)
def test_provider_model_and_reasoning_are_chosen_each_by_itself(of_turn, of_thread, of_config, chosen):
    desk = Desk(config=RuntimeConfig(**of_config))
    desk.state.metadata = attrs.evolve(desk.state.metadata, developer_instructions="be kind", **of_thread)
    [effect] = desk.decide(start(**of_turn)).effects
    assert isinstance(effect, c.StartJob)
    plan = effect.plan
    assert (plan.provider, plan.model, plan.reasoning, plan.developer_instructions) == (*chosen, "be kind")


def test_what_an_engine_does_not_know_is_refused():
    with pytest.raises(UnknownProvider, match="one, two") as unknown:
        Desk().decide(start(provider="three"))
    assert unknown.value.provider == "three"
    with pytest.raises(ModelUnknown) as no_model:
        Desk().decide(start(provider="two"))
    assert (no_model.value.name, no_model.value.provider) == ("model", "two")
    with pytest.raises(UnsupportedOption, match="low, high"):
        Desk().decide(start(reasoning="max"))
    assert Desk().decide(start(model="unlisted", reasoning="max")).reply == "u"


def test_a_manual_compaction_takes_the_slot_and_stores_nothing():
    desk = Desk()
    [effect] = desk.decide(c.Compact("k", "names")).effects
    assert effect == c.StartCompaction(c.TurnPlan(turn_id="compact-k", provider="one", model="m"), "k", "names")
    assert desk.do(c.Compact("k", "names")) == "compact-k"
    assert (desk.records, desk.slot.phase) == ([], Phase.COMPACTING)
    with pytest.raises(RuntimeDraining):
        Desk().decide(c.Compact("k", None), draining=True)
    with pytest.raises(UnknownProvider):
        Desk(config=RuntimeConfig(default_provider="gone")).decide(c.Compact("k", None))


# -- steers and interrupts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "running"])
def test_only_a_running_turn_takes_a_steer(phase):
    assert answer(in_phase(phase), c.Steer("u", "s", USER)) is NoActiveTurn


def test_a_steer_is_durable_before_it_preempts():
    desk = in_phase("running")
    decision = desk.decide(c.Steer("u", "s", USER))
    assert decision == Decision((Emit(SteerAccepted("s", USER), "u"),), (c.PreemptStep(),))
    assert answer(desk, c.Steer("v", "s", USER)) is NoActiveTurn


def test_no_more_steers_wait_than_may():
    desk = Desk(config=RuntimeConfig(max_pending_steers=2))
    desk.start()
    for id in ("s1", "s2"):
        desk.do(c.Steer("u", id, USER))
    with pytest.raises(SteerQueueFull) as raised:
        desk.decide(c.Steer("u", "s3", USER))
    assert raised.value.limit == 2
    desk.do(c.TakeSteers("u"))
    assert isinstance(desk.decide(c.Steer("u", "s3", USER)), Decision)


@pytest.mark.parametrize("phase", PHASES)
def test_an_interrupt_cancels_a_running_turn_and_is_silent_else(phase):
    decision = in_phase(phase).decide(c.Interrupt("u", "drain"))
    requested = {"running": "drain", "told to stop": "user"}.get(phase)
    if requested is None:
        assert decision == Decision()
    else:
        published = c.Publish(TurnInterruptRequested(requested), "u")
        assert decision == Decision(effects=(c.CancelJob("drain"), published))
    assert in_phase(phase).decide(c.Interrupt("v", "user")) == Decision()


def test_a_manual_compaction_is_cancelled_by_its_own_id_only():
    decision = in_phase("compacting").decide(c.Interrupt("compact-k", "caller_left"))
    assert decision == Decision(effects=(c.CancelJob("caller_left"),))


# -- reports -----------------------------------------------------------------------------------------------------------


def live(*items: Any) -> tuple[AppendItem, ...]:
    return tuple(AppendItem("u", item, live=True) for item in items)


def steered(*ids: str) -> tuple[AppendItem, ...]:
    return tuple(AppendItem("u", UserMessage(id), steer_id=id) for id in ids)


def with_steers(*ids: str) -> Desk:
    desk = in_phase("running")
    for id in ids:
        desk.do(c.Steer("u", id, UserMessage(id)))
    return desk


REPORTS = [
    (c.ItemsDone("u", (ANSWER,)), live(ANSWER), None, False),
    (c.TakeSteers("u"), (), VIEW, True),
    (c.StepEnded("u"), (DiscardOpen("u"),), VIEW, True),
    (c.StepEnded("u", (ANSWER, CALL)), (*live(ANSWER, CALL), DiscardOpen("u")), VIEW, True),
    (c.ToolResultsDone("u", (RESULT,)), live(RESULT), VIEW, True),
]


@pytest.mark.parametrize(("report", "drafts", "reply", "delivers"), REPORTS)
def test_a_report_is_stored_and_steers_that_wait_follow_it(report, drafts, reply, delivers):
    assert in_phase("running").decide(report) == Decision(drafts, reply=reply)
    desk = with_steers("a", "b")
    taken = steered("a", "b") if delivers else ()
    assert desk.decide(report) == Decision((*drafts, *taken), reply=reply)
    desk.do(report)
    assert desk.state.open_turn is not None
    assert len(desk.state.open_turn.steers) == (0 if delivers else 2)


@pytest.mark.parametrize(("report", "drafts", "reply", "delivers"), REPORTS)
def test_a_turn_that_was_told_to_stop_takes_no_steers(report, drafts, reply, delivers):
    desk = with_steers("a")
    desk.cause = "user"
    assert desk.decide(report) == Decision(drafts, reply=reply)


@pytest.mark.parametrize("phase", ["idle", "ended", "compacting"])
@pytest.mark.parametrize("report", [*(row[0] for row in REPORTS), c.FinalStep("u", (ANSWER,), "stop")])
def test_a_late_word_of_an_old_turn_is_dropped(phase, report):
    assert in_phase(phase).decide(report) == Decision()
    assert in_phase("running").decide(attrs.evolve(report, turn_id="old")) == Decision()


def test_a_final_step_ends_the_turn_in_its_own_commit():
    desk = in_phase("running")
    desk.use(7)
    completed = TurnCompleted(TokenUsage(7, 0, 7), "stop")
    decision = desk.decide(c.FinalStep("u", (ANSWER,), "stop"))
    assert decision == Decision(
        (*live(ANSWER), DiscardOpen("u", hosted=True), Emit(completed, "u")), (c.EndTurn("u"),), finishing=True
    )
    desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    assert (desk.state.open_turn, desk.slot.phase) == (None, Phase.CLOSING)


@pytest.mark.parametrize(("steers", "cause"), [(("a", "b"), None), (("a",), "user"), ((), "user")])
def test_a_step_is_not_final_if_a_steer_or_an_interrupt_came_first(steers, cause):
    desk = with_steers(*steers)
    desk.cause = cause
    taken = steered(*steers) if cause is None else ()
    expected = Decision((*live(ANSWER), DiscardOpen("u"), *taken), reply=VIEW)
    assert desk.decide(c.FinalStep("u", (ANSWER,), "stop")) == expected


# -- compaction --------------------------------------------------------------------------------------------------------


def test_a_boundary_and_its_record_are_one_append():
    desk = in_phase("running")
    assert desk.do(c.RecordCompaction("u", BEGUN)) is VIEW
    recorded = ContextCompactionRecorded("k", "native", 1, estimate([BOUNDARY]), 2.0)
    assert desk.decide(commit(desk)) == Decision((AppendItem("u", BOUNDARY), Emit(recorded, "u")), reply=VIEW)
    desk.do(commit(desk))
    assert desk.state.compactions == {}
    assert list(desk.state.history.window()) == [BOUNDARY]


@pytest.mark.parametrize("why", ["the log grew", "a call is open", "it ended", "it never began"])
def test_a_boundary_is_refused_if_the_window_is_stale(why):
    desk = in_phase("running")
    if why != "it never began":
        desk.do(c.RecordCompaction("u", BEGUN))
    base = len(desk.state.history)
    match why:
        case "the log grew":
            desk.do(c.PersistItem("v", USER))
        case "a call is open":
            desk.do(c.StepEnded("u", (CALL,)))
            base += 1
        case "it ended":
            desk.do(c.RecordCompaction("u", ContextCompactionCancelled("k", "new_input")))
    assert answer(desk, commit(desk, base=base)) is StaleWindow


def test_a_compaction_without_a_turn_is_committed_too():
    desk = Desk()
    desk.do(c.PersistItem("v", USER))
    desk.do(c.RecordCompaction("u", BEGUN))
    assert isinstance(desk.decide(commit(desk)), Decision)


@pytest.mark.parametrize(
    "end", [ContextCompactionFailed("k", "x", "protocol"), ContextCompactionCancelled("k", "new_input")]
)
def test_a_compaction_has_one_end(end):
    desk = in_phase("running")
    desk.do(c.RecordCompaction("u", BEGUN))
    assert desk.decide(c.RecordCompaction("u", end)) == Decision((Emit(end, "u"),), reply=VIEW)
    desk.do(c.RecordCompaction("u", end))
    assert desk.decide(c.RecordCompaction("u", end)) == Decision(reply=VIEW)


# -- how a job ends ----------------------------------------------------------------------------------------------------


def test_an_old_jobs_end_is_dropped():
    assert in_phase("idle").decide(c.JobEnded("u", c.Finished())) == Decision()
    assert in_phase("running").decide(c.JobEnded("old", c.Interrupted("user"))) == Decision()


@pytest.mark.parametrize(
    "outcome", [c.Finished(), c.Failed("x", "storage", (ANSWER,)), c.Interrupted("user", (ANSWER,))]
)
def test_a_job_whose_turn_has_its_end_only_frees_the_slot(outcome):
    assert in_phase("ended").decide(c.JobEnded("u", outcome)) == Decision(effects=(c.FreeSlot(),))


def test_a_manual_compaction_that_ends_frees_the_slot_and_leaves_no_compaction_open():
    desk = in_phase("compacting")
    ended = c.JobEnded("compact-k", c.CompactionEnded("k"))
    assert desk.decide(ended) == Decision(effects=(c.FreeSlot(),))
    desk.do(c.RecordCompaction("compact-k", BEGUN))
    desk.do(c.RecordCompaction("v", ContextCompactionStarted("other", "direct", 1, 1)))
    cancelled = Emit(ContextCompactionCancelled("k", "interrupted"), "compact-k")
    assert desk.decide(ended) == Decision((cancelled,), (c.FreeSlot(),))


def laden() -> Desk:
    """A turn with an open call, an open compaction, open live items, a steer and a goal it has worked on for 3 s."""
    desk = Desk()
    desk.do(c.SetGoal("g", GoalPatch("x")))
    desk.start()
    desk.do(c.StepEnded("u", (ToolCall("c0", "look", "{}"),)))
    desk.do(c.RecordCompaction("u", BEGUN))
    desk.do(c.Steer("u", "s", UserMessage("more")))
    desk.show(inference.MessageDelta("so far"), inference.HostedToolCallStarted("h", "search"))
    desk.do(c.Checkpoint())
    desk.use(9)
    desk.time += 3
    return desk


LEFT = (ReasoningSummary("r"), CALL, AssistantMessage("so far", interrupted=True))
STEER = SteerAccepted("s", UserMessage("more"))
USED = TokenUsage(9, 0, 9)


@pytest.mark.parametrize(
    ("outcome", "end", "call_error", "status", "notes"),
    [
        (c.Interrupted("user", LEFT), TurnInterrupted("user", USED, (STEER,)), "interrupted", GoalStatus.PAUSED, []),
        (
            c.Failed("it broke", "protocol", LEFT, "not run: protocol"),
            TurnFailed("it broke", "protocol", USED, (STEER,)), "not run: protocol", GoalStatus.BLOCKED,
            [ErrorNote("it broke")],
        ),
        (
            c.Failed("no more", "usage_limit", LEFT),
            TurnFailed("no more", "usage_limit", USED, (STEER,)), "not run: the turn failed",
            GoalStatus.USAGE_LIMITED, [ErrorNote("no more")],
        ),
    ],
)  # fmt: skip
def test_an_early_end_closes_all_that_is_open_in_order(outcome, end, call_error, status, notes):
    desk = laden()
    before = len(desk.records)
    desk.do(c.JobEnded("u", outcome))
    stored = desk.since(before)
    appended = [event.item for event in stored if isinstance(event, TranscriptItemAppended)]
    assert appended == [
        *LEFT,
        ToolResult("c0", "look", call_error, is_error=True),
        ToolResult("c1", "look", call_error, is_error=True),
        *notes,
    ]
    rest = [event for event in stored if not isinstance(event, TranscriptItemAppended)]
    assert [type(event) for event in rest] == [
        ContextCompactionCancelled, GoalTimeRecorded, GoalUpdated, type(end),
    ]  # fmt: skip
    cancelled, time, updated, terminal = rest
    assert cancelled == ContextCompactionCancelled("k", "interrupted")
    assert time == GoalTimeRecorded("g", "u", 3.0)
    assert (updated.goal.status, updated.cause) == (status, GoalCause.TURN_OUTCOME)
    assert terminal == end
    if notes:
        assert stored.index(cancelled) < [getattr(event, "item", None) for event in stored].index(notes[0])
        assert [getattr(event, "item", None) for event in stored].index(notes[0]) < stored.index(time)
    assert desk.performed[-2:] == [c.EndTurn("u"), c.FreeSlot()]
    assert (list(desk.live), desk.state.compactions, desk.state.checkpoints) == ([], {}, {})
    assert desk.do(c.WaitTurn("u")).undelivered_steers == (STEER,)


def test_discards_stand_between_the_results_and_the_note():
    desk = laden()
    before = len(desk.records)
    desk.do(c.JobEnded("u", c.Failed("it broke", "protocol")))
    assert [type(event) for event in desk.since(before)] == [
        TranscriptItemAppended, ContextCompactionCancelled, ItemDiscarded, TranscriptItemAppended, GoalTimeRecorded,
        GoalUpdated, TurnFailed,
    ]  # fmt: skip


def test_finished_tools_keep_their_results():
    desk = in_phase("running")
    first, second = ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")
    desk.do(c.StepEnded("u", (first, second)))
    desk.do(c.JobEnded("u", c.Interrupted("user", (RESULT,))))
    failed = ToolResult("c2", "look", "interrupted", is_error=True)
    assert desk.state.history.items == [USER, first, second, RESULT, failed]


@pytest.mark.parametrize("outcome", [c.Finished(), c.CompactionEnded("k")])
def test_a_job_without_an_outcome_is_a_bug_that_the_turn_tells(outcome):
    desk = in_phase("running")
    desk.do(c.StepEnded("u", (CALL,)))
    desk.do(c.JobEnded("u", outcome))
    message = "The job ended without an outcome."
    assert desk.events[-1] == TurnFailed(message, "internal")
    assert desk.state.history.items[-2:] == [
        ToolResult("c1", "look", "not run: internal", is_error=True),
        ErrorNote(message),
    ]


@pytest.mark.parametrize(
    "outcome", [c.Finished(), c.Interrupted("user"), c.Failed("x", "internal"), c.CompactionEnded("k")]
)
def test_whatever_a_job_says_its_turn_has_one_terminal_event(outcome):
    for phase in ("running", "told to stop", "interrupted", "ended"):
        desk = in_phase(phase)
        desk.do(c.JobEnded("u", outcome))
        desk.do(c.JobEnded("u", outcome))
        assert sum(isinstance(event, TERMINAL_EVENTS) for event in desk.events) == 1
        assert desk.slot == Slot()


def test_without_an_open_turn_there_is_nothing_to_end():
    desk = Desk()
    assert end_open_turn(desk.state, desk.facts(), TurnInterrupted("user"), (ANSWER,), call_error="x") == ()


# -- waiting for a turn ------------------------------------------------------------------------------------------------


def test_a_turn_is_waited_for_until_it_has_its_end():
    desk = in_phase("running")
    assert answer(desk, c.WaitTurn("u")) is DEFERRED
    assert answer(desk, c.WaitTurn("v")) is UnknownTurn
    desk.do(c.PersistItem("bare", USER))
    assert answer(desk, c.WaitTurn("bare")) is UnknownTurn
    desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    expected = TurnOutcome("u", "completed", "hi", None, finish_reason="stop", cost=0)
    assert desk.do(c.WaitTurn("u")) == expected


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (TurnCompleted(USED, "length"), TurnOutcome("u", "completed", "hi", USED, finish_reason="length")),
        (
            TurnFailed("x", "protocol", USED, (STEER,)),
            TurnOutcome("u", "failed", "hi", USED, error="x", error_kind="protocol", undelivered_steers=(STEER,)),
        ),
        (
            TurnInterrupted("drain", None, (STEER,)),
            TurnOutcome("u", "interrupted", "hi", None, reason="drain", undelivered_steers=(STEER,), cost=0),
        ),
    ],
)
def test_an_outcome_is_read_from_the_terminal_event(event, outcome):
    assert outcome_of("u", TurnEntry(2, "hi", started=True, terminal=event), event) == outcome


# -- goals -------------------------------------------------------------------------------------------------------------


def with_goal(**patch: Any) -> Desk:
    desk = Desk()
    desk.do(c.SetGoal("g", GoalPatch("x", **patch)))
    return desk


def test_a_goal_reads_with_what_its_attempts_used_and_its_turns_took():
    desk = with_goal(token_budget=20)
    assert (desk.goal.tokens_used, desk.goal.time_used, desk.goal.status) == (0, 0.0, GoalStatus.ACTIVE)
    desk.start()
    desk.use(9)
    desk.time += 4
    assert (desk.goal.tokens_used, desk.goal.time_used) == (9, 4.0)
    desk.use(25, report=2)
    assert desk.do(c.GetGoal()) == desk.goal
    assert (desk.goal.tokens_used, desk.goal.status) == (25, GoalStatus.BUDGET_LIMITED)
    assert Desk().do(c.GetGoal()) is None


def test_without_a_goal_there_is_nothing_to_change_or_clear():
    desk = Desk()
    assert desk.decide(c.SetGoal("g", GoalPatch(status="paused"))) == Decision()
    assert desk.decide(c.ClearGoal()) == Decision(reply=False)


def test_each_accepted_change_is_one_event():
    desk = with_goal()
    desk.do(c.SetGoal("h", GoalPatch()))
    desk.do(c.SetGoal("h", GoalPatch(status="paused")))
    updates = [event for event in desk.events if isinstance(event, GoalUpdated)]
    assert len(desk.events) == len(updates) == 3
    assert {(update.goal.goal_id, update.cause) for update in updates} == {("g", GoalCause.HOST)}


def test_a_complete_goal_is_replaced_with_counters_of_its_own():
    desk = with_goal()
    desk.start()
    desk.use(9)
    desk.do(c.SetGoal("h", GoalPatch(status="complete")))
    desk.do(c.SetGoal("h", GoalPatch("y")))
    assert (desk.goal.goal_id, desk.goal.tokens_used, desk.goal.objective) == ("h", 0, "y")


def test_opening_balances_stay_with_their_goal():
    desk = with_goal()
    desk.state.opening_tokens, desk.state.opening_time = 5, 6.0
    assert (desk.goal.tokens_used, desk.goal.time_used) == (5, 6.0)
    [update] = desk.decide(c.SetGoal("h", GoalPatch("y"))).drafts
    assert isinstance(update, Emit)
    assert isinstance(update.event, GoalUpdated)
    assert (update.event.opening_tokens, update.event.opening_time) == (5, 6.0)


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        (c.SetGoal("h", GoalPatch(status="paused")), True),
        (c.SetGoal("h", GoalPatch(status="complete")), True),
        (c.ClearGoal(), True),
        (c.SetGoal("h", GoalPatch("y")), False),
        (c.SetGoal("h", GoalPatch(token_budget=1)), False),
    ],
)
def test_time_is_recorded_when_the_turn_leaves_the_goal(command, ends):
    desk = with_goal()
    desk.start()
    desk.use(9)
    desk.time += 3
    before = len(desk.records)
    desk.do(command)
    kinds = [type(event) for event in desk.since(before)]
    change = GoalCleared if isinstance(command, c.ClearGoal) else GoalUpdated
    assert kinds == ([GoalTimeRecorded, change] if ends else [change])
    assert (desk.attached is None) == ends
    desk.time += 2
    desk.do(c.FinalStep("u", (), None))
    times = [event.seconds for event in desk.events if isinstance(event, GoalTimeRecorded)]
    assert times == ([3.0] if ends else [5.0])


def test_no_time_is_recorded_where_none_passed_or_the_clock_went_back():
    desk = with_goal()
    desk.start()
    desk.time -= 1
    desk.do(c.ClearGoal())
    assert not any(isinstance(event, GoalTimeRecorded) for event in desk.events)


@pytest.mark.parametrize(
    "payload",
    [
        c.ItemsDone("u", (ANSWER,)),
        c.StepEnded("u"),
        c.Checkpoint(),
        c.PersistItem("v", USER),
        c.Steer("u", "s", USER),
        c.SetState("r", "x", "k", 1, 1),
    ],
)
def test_an_exhausted_goal_is_stored_as_limited_by_the_next_commit(payload):
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(10)
    update, *rest = desk.decide(payload).drafts
    assert rest != []
    assert isinstance(update, Emit)
    assert isinstance(update.event, GoalUpdated)
    assert (update.event.goal.status, update.event.cause) == (GoalStatus.BUDGET_LIMITED, GoalCause.BUDGET)
    desk.do(payload)
    assert desk.attached == "g"
    assert not any(isinstance(getattr(draft, "event", None), GoalUpdated) for draft in desk.decide(payload).drafts)


def test_a_read_stores_no_budget_and_a_change_of_the_goal_stores_it_itself():
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(10)
    assert desk.decide(c.LatestIndex("u")).drafts == ()
    for command in (c.SetGoal("h", GoalPatch("y")), c.ClearGoal()):
        changes = [draft for draft in desk.decide(command).drafts if isinstance(draft, Emit)]
        assert len([draft for draft in changes if isinstance(draft.event, GoalUpdated | GoalCleared)]) == 1
    assert desk.do(c.SetGoal("h", GoalPatch("y"))).status is GoalStatus.BUDGET_LIMITED


def test_a_budget_with_room_is_not_limited():
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(9)
    assert desk.decide(c.ItemsDone("u", (ANSWER,))).drafts == live(ANSWER)


def test_a_turn_that_starts_on_an_exhausted_goal_is_not_attached():
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(10)
    desk.do(c.FinalStep("u", (), None))
    desk.do(c.JobEnded("u", c.Finished()))
    desk.start("v")
    assert desk.attached is None


def test_the_commit_that_completes_a_turn_limits_an_exhausted_goal():
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(12)
    desk.time += 1
    before = len(desk.records)
    desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    assert [type(event) for event in desk.since(before)] == [
        TranscriptItemAppended, GoalTimeRecorded, GoalUpdated, TurnCompleted,
    ]  # fmt: skip
    assert desk.state.goal is not None
    assert desk.state.goal.status is GoalStatus.BUDGET_LIMITED


@pytest.mark.parametrize(
    ("budget", "outcome", "status"),
    [
        (None, None, GoalStatus.ACTIVE),
        (None, c.Interrupted("runtime_restart"), GoalStatus.PAUSED),
        (None, c.Failed("x", "deadline_timeout"), GoalStatus.BLOCKED),
        (None, c.Failed("x", "quota_exceeded"), GoalStatus.USAGE_LIMITED),
        (5, c.Interrupted("user"), GoalStatus.BUDGET_LIMITED),
        (5, c.Failed("x", "protocol"), GoalStatus.BUDGET_LIMITED),
        (5, c.Failed("x", "usage_limit"), GoalStatus.USAGE_LIMITED),
    ],
)
def test_a_turns_end_decides_the_status_of_its_goal(budget, outcome, status):
    desk = with_goal(token_budget=budget)
    desk.start()
    desk.use(5)
    desk.do(c.FinalStep("u", (), None) if outcome is None else c.JobEnded("u", outcome))
    assert desk.state.goal is not None
    assert desk.state.goal.status is status
    assert desk.goal.tokens_used == 5


def test_a_turn_changes_no_goal_that_it_is_not_attached_to():
    desk = with_goal(status="paused")
    desk.start()
    desk.do(c.SetGoal("g", GoalPatch(status="active")))
    assert desk.state.open_turn is not None
    desk.state.open_turn.goal_id = "other"
    before = len(desk.records)
    desk.do(c.JobEnded("u", c.Interrupted("user")))
    assert [type(event) for event in desk.since(before)] == [TurnInterrupted]
    assert desk.goal.status is GoalStatus.ACTIVE


# -- hosts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_reads_and_records_of_hosts_pass_in_every_phase(phase):
    desk = in_phase(phase)
    stored = len(desk.records)
    assert desk.do(c.Touch()) is True
    assert desk.do(c.LatestIndex("v")) is None
    assert [desk.do(c.PersistItem("v", item)) for item in (USER, ANSWER)] == [0, 1]
    assert desk.do(c.LatestIndex("v")) == 1
    assert desk.do(c.ItemExists("v", "v-user")) is True
    assert desk.do(c.ItemExists("u", "v-user")) is False
    assert desk.do(c.GetState("x", "k")) is None
    desk.do(c.SetState("r", "x", "k", {"a": 1}, 2))
    assert desk.do(c.GetState("x", "k")) == {"a": 1}
    assert len(desk.records) == stored + 3
    assert desk.slot.phase is in_phase(phase).slot.phase


def test_a_turn_that_only_began_has_no_index():
    desk = Desk()
    desk.commit([Emit(TurnStarted("one", "m"), "u")])
    assert desk.do(c.LatestIndex("u")) is None


def test_a_hosts_item_event_is_stored_as_given():
    event = ItemStarted(AgentMessage("own", ""))
    assert Desk().decide(c.RecordItemEvent("v", AT, event)) == Decision((RecordItem("v", event, AT),))


def test_a_hosts_value_is_of_the_thread():
    desk = Desk()
    desk.do(c.SetState("r", "x", "k", 1, 3))
    [record] = desk.records
    assert record == ExtensionStateRecord(
        record_id="r", extension_id="x", key="k", scope=ThreadScope(THREAD), schema_version=3, value=1
    )


def test_metadata_changes_in_one_event_if_anything_is_named():
    desk = Desk()
    change = ThreadMetadataChanged(provider="two", title="t", reasoning=None)
    assert desk.decide(c.UpdateThread(change)) == Decision((Emit(change),))
    assert desk.decide(c.UpdateThread(ThreadMetadataChanged())) == Decision()
    cleared = ThreadMetadataChanged(provider=None)
    assert desk.decide(c.UpdateThread(cleared)) == Decision((Emit(cleared),))
    with pytest.raises(UnknownProvider):
        desk.decide(c.UpdateThread(ThreadMetadataChanged(provider="gone")))


def test_a_checkpoint_stores_the_open_text():
    desk = in_phase("running")
    desk.show(inference.MessageDelta("so far"))
    before = len(desk.records)
    desk.do(c.Checkpoint())
    assert [type(event) for event in desk.since(before)] == [ItemStarted, ItemDelta]
    desk.do(c.Checkpoint())
    assert len(desk.records) == before + 2


# -- no such thread ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (c.Archive(), False),
        (c.Checkpoint(), None),
        (c.ClearGoal(), False),
        (c.GetGoal(), None),
        (c.Interrupt("u", "user"), None),
        (c.ItemExists("u", "x"), False),
        (c.LatestIndex("u"), None),
        (c.Touch(), None),
    ],
)
def test_reads_of_no_thread_are_empty(payload, expected):
    assert answer_of_no_thread("gone", payload) is expected


@pytest.mark.parametrize(
    "payload",
    [
        start(),
        c.Compact("k", None),
        c.WaitTurn("u"),
        c.SetGoal("g", GoalPatch("x")),
        c.PersistItem("u", USER),
        c.RecordItemEvent("u", AT, ItemDiscarded("x")),
        c.UpdateThread(ThreadMetadataChanged()),
        c.GetState("x", "k"),
        c.SetState("r", "x", "k", 1, 1),
        c.RecordCompaction("u", BEGUN),
    ],
)
def test_writes_to_no_thread_are_refused(payload):
    with pytest.raises(ThreadNotFound, match="gone"):
        answer_of_no_thread("gone", payload)


def test_no_thread_takes_a_steer():
    with pytest.raises(NoActiveTurn):
        answer_of_no_thread("gone", c.Steer("u", "s", USER))


# -- recovery ----------------------------------------------------------------------------------------------------------


def recovered(desk: Desk) -> tuple[Desk, list[Any]]:
    """The thread as its log is read again, and what that stored."""
    state, ledger = hydrated(desk.records)
    again = Desk(desk.records)
    again.commit(close_open_work(state, ledger, again.facts()))
    return again, again.since(len(desk.records))


def test_a_restart_closes_all_that_was_open_in_order():
    again, stored = recovered(laden())
    assert [type(event) for event in stored] == [
        TranscriptItemAppended, TranscriptItemAppended, ContextCompactionCancelled, GoalUpdated, TurnInterrupted,
    ]  # fmt: skip
    message, result, cancelled, updated, end = stored
    assert (message.item, message.item_id) == (AssistantMessage("so far", interrupted=True), "u-message")
    assert result.item == ToolResult("c0", "look", "runtime restarted", is_error=True)
    assert cancelled == ContextCompactionCancelled("k", "runtime_restart")
    assert updated.goal.status is GoalStatus.PAUSED
    assert end == TurnInterrupted("runtime_restart", USED, (STEER,))
    assert (again.state.open_turn, again.state.checkpoints, again.goal.tokens_used) == (None, {}, 9)
    assert recovered(again)[1] == []


def test_a_restart_of_a_turn_that_used_nothing_tells_no_usage():
    _, stored = recovered(in_phase("running"))
    assert stored == [TurnInterrupted("runtime_restart", None)]


@pytest.mark.parametrize("phase", ["idle", "ended", "compacting"])
def test_a_restart_without_open_work_stores_nothing(phase):
    desk = in_phase(phase)
    assert close_open_work(desk.state, Ledger(), desk.facts()) == ()


def test_a_restart_ends_compactions_of_no_turn():
    desk = Desk()
    desk.do(c.RecordCompaction("compact-k", BEGUN))
    again, stored = recovered(desk)
    assert stored == [ContextCompactionCancelled("k", "runtime_restart")]
    assert recovered(again)[1] == []
    desk.start()
    _, stored = recovered(desk)
    assert stored == [
        ContextCompactionCancelled("k", "runtime_restart"),
        TurnInterrupted("runtime_restart"),
    ]


def test_a_restart_leaves_open_items_of_hosts_alone():
    desk = in_phase("running")
    desk.do(c.RecordItemEvent("u", AT, ItemStarted(AgentMessage("own", "a", status=ItemStatus.IN_PROGRESS))))
    desk.do(c.RecordItemEvent("bare", AT, ItemStarted(AgentMessage("other", "b", status=ItemStatus.IN_PROGRESS))))
    again, stored = recovered(desk)
    assert [type(event) for event in stored] == [TurnInterrupted]
    assert [item.status for item in again.state.items.items()][1:] == [ItemStatus.IN_PROGRESS] * 2


def test_a_restart_drops_open_text_of_white_space():
    desk = in_phase("running")
    desk.show(inference.MessageDelta(" \n"), inference.MessageDelta("a", "plan"))
    desk.do(c.Checkpoint())
    again, stored = recovered(desk)
    assert stored[0] == ItemDiscarded("u-message")
    assert stored[1].item == AssistantMessage("a", "plan", interrupted=True)
    assert [item.id for item in again.state.items.items()] == ["u-user", "u-message-plan"]
