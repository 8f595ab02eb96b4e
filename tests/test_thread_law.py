"""Folding all that is stored gives the live state, whatever happened and whichever appends failed."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from roder_trio.errors import CommandRefused
from roder_trio.logic.item import derive
from roder_trio.logic.live import FIRST_CHECKPOINT
from roder_trio.logic.thread.facts import Phase
from roder_trio.logic.thread.recovery import close_open_work
from roder_trio.logic.turn import Step
from roder_trio.schema import command as c
from roder_trio.schema import inference, item
from roder_trio.schema.event import (
    TERMINAL_EVENTS,
    ApprovalRequested,
    ApprovalResolved,
    ContextCompactionFailed,
    ContextCompactionStarted,
    EventEnvelope,
    ExternalToolRequested,
    ExternalToolResolved,
    ThreadMetadataChanged,
    ToolArgumentsRewritten,
    TranscriptItemAppended,
    TurnInterrupted,
    UsageRecorded,
)
from roder_trio.schema.goal import GoalPatch, GoalStatus
from roder_trio.schema.item import (
    AgentMessage,
    AgentMessageText,
    ItemCompleted,
    ItemDelta,
    ItemStarted,
    ItemStatus,
    ThreadItemEvent,
)
from roder_trio.schema.policy import ApprovalOutcome, PolicyMode
from roder_trio.schema.tool import ToolOutput, ToolSpec
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    ErrorNote,
    ProviderMetadata,
    ToolCall,
    ToolResult,
    UserMessage,
)
from tests.test_turn_step import stream_events
from tests.thread_support import (
    ANSWER,
    AT,
    CALL,
    RESULT,
    USER,
    Desk,
    hydrated,
    parts,
)

# -- the law -----------------------------------------------------------------------------------------------------------

turn_ids = st.sampled_from(["bare", "u1", "u2", "u3"])
words = st.sampled_from(["a", "b c", " ", "é"])
items_of_hosts = st.one_of(
    st.builds(UserMessage, words),
    st.builds(AssistantMessage, words, st.sampled_from([None, "plan"])),
    st.sampled_from([CALL, RESULT, ErrorNote("x"), ProviderMetadata({"a": 1})]),
    st.just(ProviderMetadata({"output": [{"type": "compaction", "id": "k", "encrypted_content": "x"}]})),
    st.just(ProviderMetadata({"provider": "one", "output": [{"type": "compaction", "id": "n"}]})),
    st.builds(ContextCompaction, words, retained_count=st.integers(0, 3)),
)
kinds_of_hosts = st.one_of(
    st.builds(ItemStarted, st.builds(AgentMessage, st.sampled_from(["h1", "u1-message-2"]), words)),
    st.builds(ItemCompleted, st.builds(item.Raw, st.sampled_from(["h1", "h2"]), st.integers())),
    st.builds(ItemDelta, st.sampled_from(["h1", "h2"]), st.builds(AgentMessageText, words)),
)
patches = st.builds(
    GoalPatch,
    objective=st.sampled_from([None, "x", "y"]),
    status=st.sampled_from([None, "active", "paused", "complete"]),
    token_budget=st.sampled_from([None, 10, 30]),
)
changes = st.builds(ThreadMetadataChanged, provider=st.sampled_from(["one", None]), labels=st.just({"a": "b"}))
models = st.sampled_from(["m", "n"])
specs = st.sampled_from(
    [
        ToolSpec(name=effect, description="", parameters={"type": "object"}, effects={effect})
        for effect in ("read", "network", "write")
    ]
)
seldom = st.sampled_from([False] * 7 + [True])
of_hosts = st.one_of(
    patches,
    st.just(c.ClearGoal()),
    st.builds(c.PersistItem, turn_ids, items_of_hosts),
    st.builds(c.RecordItemEvent, turn_ids, st.just(AT), kinds_of_hosts),
    st.builds(c.UpdateThread, changes),
    st.builds(c.SetState, words, st.just("host"), st.sampled_from("ab"), st.integers(), st.just(1)),
)


class FoldIsLive(RuleBasedStateMachine):
    """Random commands and reports, some of whose appends fail; the log, read again, gives the live state."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(policy_mode=PolicyMode.DEFAULT)
        self.step = Step("one")
        self.count = 0

    def fresh(self, name: str) -> str:
        self.count += 1
        return f"{name}{self.count}"

    def do(self, payload: Any, fails: bool) -> Any:
        """Carry a request out. A failed append changes nothing that the log holds; a refusal changes nothing."""
        desk = self.desk
        before, log_before = parts(desk.state), len(desk.records)
        shown = list(desk.live)
        try:
            reply = desk.do(payload, fails=fails)
        except CommandRefused:
            fails, reply = True, None
        if fails:
            assert parts(desk.state) == before
            assert (len(desk.records), list(desk.live)) == (log_before, shown)
        self.check_one_terminal(log_before)
        return reply

    def check_one_terminal(self, since: int) -> None:
        ends = [event for event in self.desk.since(since) if isinstance(event, TERMINAL_EVENTS)]
        assert len(ends) <= 1
        assert not ends or self.desk.since(since)[-1] == ends[0]

    @property
    def turn_id(self) -> str:
        assert self.desk.slot.turn_id is not None
        return self.desk.slot.turn_id

    def is_open(self) -> bool:
        return self.desk.state.open_turn is not None

    # -- commands ------------------------------------------------------------------------------------------------------

    @initialize(patch=patches, fails=seldom)
    def begin(self, patch: GoalPatch, fails: bool) -> None:
        self.do(c.SetGoal(self.fresh("g"), patch), fails)
        self.start("turn", "hello", "m", fails)

    @precondition(lambda self: self.desk.slot.phase is Phase.IDLE)
    @rule(what=st.sampled_from(["turn", "turn", "turn", "compaction"]), text=words, model=models, fails=seldom)
    def start(self, what: str, text: str, model: str, fails: bool) -> None:
        if what == "compaction":
            self.do(c.Compact(self.fresh("k"), None), False)
            return
        message, options = UserMessage(f"{text}."), c.TurnOptions(model=model)
        self.do(c.StartTurn(turn_id=self.fresh("u"), message=message, options=options), fails)
        self.step = Step("one")

    @precondition(lambda self: self.desk.slot.phase is Phase.IDLE)
    @rule(outdated=seldom, fails=seldom)
    def go_on(self, outdated: bool, fails: bool) -> None:
        goal, last = self.desk.goal, self.desk.state.last_turn_id
        wanted = goal is not None and goal.status is GoalStatus.ACTIVE and not outdated
        begun = self.do(c.ContinueGoal(turn_id=self.fresh("u"), after="another" if outdated else last), fails)
        assert (begun is not None) == wanted
        assert self.is_open() == (wanted and not fails)
        if self.desk.state.open_turn is not None:
            assert self.desk.state.open_turn.automatic
            self.step = Step("one")

    @precondition(is_open)
    @rule(status=st.sampled_from(["complete", "blocked", "paused"]), how=st.integers(0, 2), fails=seldom)
    def model_moves_the_goal(self, status: str, how: int, fails: bool) -> None:
        change = (None, GoalPatch(objective="z"), GoalPatch(status=status))[how]
        asks = c.AskGoal(turn_id=self.turn_id, goal_id=self.fresh("g"), patch=change, creates=how == 1)
        answer = self.do(asks, fails)
        assert fails or answer.goal == self.desk.goal

    @precondition(is_open)
    @rule(text=words, stops=seldom, fails=seldom)
    def disturb(self, text: str, stops: bool, fails: bool) -> None:
        if stops:
            self.do(c.Interrupt(self.turn_id, "user"), False)
        else:
            self.do(c.Steer(self.turn_id, self.fresh("s"), UserMessage(text)), fails)

    @rule(payload=of_hosts, fails=seldom, seconds=st.integers(0, 3))
    def host(self, payload: Any, fails: bool, seconds: int) -> None:
        self.desk.time += seconds
        if isinstance(payload, GoalPatch):
            payload = c.SetGoal(self.fresh("g"), payload)
        reply = self.do(payload, fails)
        if isinstance(payload, c.SetGoal) and not fails and reply is not None:
            assert reply == self.desk.goal
        if isinstance(payload, c.PersistItem):
            latest = self.do(c.LatestIndex(payload.turn_id), False)
            assert latest == (reply if not fails else reply - 1 if reply else None)

    # -- the job -------------------------------------------------------------------------------------------------------

    @precondition(is_open)
    @rule(events=st.lists(stream_events, min_size=1, max_size=6), tokens=st.integers(0, 12), fails=seldom)
    def stream(self, events: list[Any], tokens: int, fails: bool) -> None:
        if tokens:
            attempt = self.fresh("a")
            self.desk.use(tokens, attempt)
            self.desk.use(tokens + 1, attempt, report=2)
        for event in events:
            done = self.step.absorb(event)
            if done:
                self.do(c.ItemsDone(self.turn_id, done), fails)
            self.desk.show(event)

    @precondition(lambda self: self.desk.live.has_unsaved_text)
    @rule(fails=seldom)
    def checkpoint(self, fails: bool) -> None:
        self.do(c.Checkpoint(), fails)

    @precondition(is_open)
    @rule(answered=st.booleans(), fails=seldom)
    def step_with_calls(self, answered: bool, fails: bool) -> None:
        calls = tuple(self.step.calls.values())
        self.do(c.StepEnded(self.turn_id, self.step.final_items()), fails)
        self.step = Step("one")
        if answered and not fails:
            results = tuple(ToolResult(call.id, call.name, "done " * 20) for call in calls)
            self.do(c.ToolResultsDone(self.turn_id, results), False)

    @precondition(is_open)
    @rule(
        how=st.sampled_from(["consent", "consent", "host", "rewrite"]),
        spec=specs,
        new=st.booleans(),
        answered=st.booleans(),
        fails=seldom,
    )
    def call_asks(self, how: str, spec: ToolSpec, new: bool, answered: bool, fails: bool) -> None:
        turn, turn_id = self.desk.state.open_turn, self.turn_id
        assert turn is not None
        if new or not turn.calls:
            self.do(c.StepEnded(turn_id, (ToolCall(self.fresh("c"), spec.name, "{}"),)), False)
        call_id, before = list(turn.calls)[-1], list(turn.pending)
        if how == "rewrite":
            self.do(c.RecordToolEvents(turn_id, (ToolArgumentsRewritten(call_id, "{}", "hook"),)), fails)
        elif how == "host":
            request = c.RequestExternal(
                turn_id=turn_id, request_id=self.fresh("x"), call_id=call_id, name=spec.name, arguments="{}"
            )
            self.do(request, fails)
            assert len(turn.pending) - len(before) == (not fails and self.desk.cause is None)
        else:
            asks = c.RequestApproval(
                turn_id=turn_id, approval_id=self.fresh("p"), call_id=call_id, arguments="{}", spec=spec
            )
            ruling = self.do(asks, fails)
            stored = not fails and self.desk.cause is None and ruling.decision.value == "ask"
            assert list(turn.pending) == [*before, *[asks.approval_id] * stored]
        if answered and turn.pending:
            self.answer(0, how == "host", spec.name == "write", False)

    @rule(which=st.integers(0, 3), of_host=st.booleans(), approved=st.booleans(), fails=seldom)
    def someone_answers(self, which: int, of_host: bool, approved: bool, fails: bool) -> None:
        self.answer(which, of_host, approved, fails)

    def answer(self, which: int, of_host: bool, approved: bool, fails: bool) -> None:
        turn = self.desk.state.open_turn
        known = [] if turn is None else [*turn.pending, *self.resolved(self.desk)]
        if which >= len(known):
            return
        id, kind = known[which], ExternalToolRequested if of_host else ApprovalRequested
        waits = turn is not None and isinstance(turn.pending.get(id), kind) and self.desk.cause is None
        outcome = ApprovalOutcome.APPROVED if approved else ApprovalOutcome.DENIED
        answer = c.ResolveExternal(id, output=ToolOutput("x")) if of_host else c.ResolveApproval(id, outcome)
        assert self.do(answer, fails) is waits

    @rule(mode=st.sampled_from(PolicyMode), own=st.booleans(), fails=seldom)
    def mode_changes(self, mode: PolicyMode, own: bool, fails: bool) -> None:
        if not own:
            self.desk.given["policy_mode"] = mode
        self.do(c.ChangePolicy(mode if own else None), fails)

    def resolved(self, desk: Desk) -> list[str]:
        """The ids of all requests that have an answer, in the order of the answers."""
        found = (getattr(event, "approval_id", None) or getattr(event, "request_id", None) for event in desk.events
                 if isinstance(event, ApprovalResolved | ExternalToolResolved))  # fmt: skip
        return [id for id in found if id is not None]

    @precondition(is_open)
    @rule(preempted=st.booleans(), fails=seldom)
    def step_without_calls(self, preempted: bool, fails: bool) -> None:
        turn = self.desk.state.open_turn
        assert turn is not None
        goes_on = fails or self.desk.cause is not None or bool(turn.steers)
        if preempted:
            self.do(c.StepEnded(self.turn_id, self.step.unfinished()), fails)
            self.do(c.TakeSteers(self.turn_id), fails)
        elif not self.step.calls and not turn.pending:
            self.do(c.FinalStep(self.turn_id, self.step.final_items(), "stop"), fails)
            assert self.is_open() == goes_on
        self.step = Step("one")

    @precondition(lambda self: self.desk.slot.turn_id is not None)
    @rule(how=st.sampled_from(["failed", "interrupted", "nothing"]), early=seldom, leaves=st.booleans(), fails=seldom)
    def job_ended(self, how: str, early: bool, leaves: bool, fails: bool) -> None:
        was_open, turn_id = self.is_open(), self.turn_id
        if was_open and not early and self.desk.cause is None:
            return
        items = (*self.step.calls.values(), *self.step.unfinished()) if leaves else ()
        outcome: c.JobOutcome = {
            "failed": c.Failed("it broke", "internal", items),
            "interrupted": c.Interrupted(self.desk.cause or "user", items),
            "nothing": c.Finished(),
        }[how]
        ends = self.terminals()
        self.do(c.JobEnded(turn_id, outcome), fails)
        if fails:
            return
        assert (self.is_open(), self.desk.slot.phase) == (False, Phase.IDLE)
        assert self.terminals() == ends + was_open
        assert not [shown for shown in self.desk.live if shown.id.startswith(f"{turn_id}-")]
        assert turn_id not in self.desk.state.compactions.values()
        stored = len(self.desk.records)
        for late in (c.TakeSteers(turn_id), c.StepEnded(turn_id, (ANSWER,)), c.JobEnded(turn_id, outcome)):
            self.do(late, False)
        assert len(self.desk.records) == stored

    def terminals(self) -> int:
        return sum(isinstance(event, TERMINAL_EVENTS) for event in self.desk.events)

    @precondition(lambda self: self.desk.slot.turn_id is not None)
    @rule(ends=st.sampled_from(["never", "failed", "committed", "stale"]), summary=st.booleans(), fails=seldom)
    def compact(self, ends: str, summary: bool, fails: bool) -> None:
        id, turn_id = self.fresh("k"), self.turn_id
        self.do(c.RecordCompaction(turn_id, ContextCompactionStarted(id, "auto", 1, 1)), False)
        if ends == "failed":
            self.do(c.RecordCompaction(turn_id, ContextCompactionFailed(id, "x", "protocol")), fails)
        elif ends != "never":
            opaque = ProviderMetadata({"output": [{"type": "compaction", "id": id, "encrypted_content": "x"}]})
            boundary = ContextCompaction("so far", retained_count=1, active_request=USER) if summary else opaque
            base = len(self.desk.state.history) - (ends == "stale")
            commit = c.CommitCompaction(
                turn_id=turn_id, compaction_id=id, base=base, item=boundary, strategy="native", duration=1.0, tokens=1
            )
            self.do(commit, fails)

    @precondition(is_open)
    @rule(fails=seldom)
    def prune(self, fails: bool) -> None:
        history = self.desk.state.history
        before, log = history.estimate(), len(history)
        self.do(c.PruneContext(turn_id=self.turn_id, all_old=True), fails)
        assert (history.estimate() <= before, len(history)) == (True, log)
        pruned = history.estimate()
        self.do(c.PruneContext(turn_id=self.turn_id, all_old=True), False)
        assert fails or history.estimate() == pruned

    # -- the law -------------------------------------------------------------------------------------------------------

    @rule(happens=seldom)
    def crash(self, happens: bool) -> None:
        """The log is read again, and what was open is closed once."""
        if not happens:
            return
        state, ledger = hydrated(self.desk.records)
        opened = state.open_turn
        desk = Desk(self.desk.records, policy_mode=PolicyMode.DEFAULT)
        desk.minted = self.desk.minted
        desk.commit(close_open_work(desk.state, ledger, desk.facts()))
        assert (desk.state.open_turn, desk.state.compactions) == (None, {})
        if opened is not None:
            assert opened.turn_id not in {held.turn_id for held in desk.state.checkpoints.values()}
            assert self.resolved(desk)[-len(opened.pending) :] == list(opened.pending) or not opened.pending
            end = desk.events[-1]
            assert isinstance(end, TurnInterrupted)
            assert (end.reason, end.undelivered_steers) == ("runtime_restart", tuple(opened.steers))
        again = Desk(desk.records)
        assert close_open_work(again.state, hydrated(desk.records)[1], again.facts()) == ()
        self.desk, self.step = desk, Step("one")

    @invariant()
    def the_log_gives_the_state(self) -> None:
        state, ledger = hydrated(self.desk.records)
        assert parts(state) == parts(self.desk.state)
        read = Desk(self.desk.records)
        read.slot, read.time = self.desk.slot, self.desk.time
        assert read.goal == self.desk.goal
        assert ledger.thread == self.desk.totals.thread

    @invariant()
    def numbers_have_no_gap(self) -> None:
        records = self.desk.records
        events = [found for found in records if isinstance(found, EventEnvelope)]
        seqs = [found.seq for found in events if not isinstance(found.event, UsageRecorded)]
        assert seqs == list(range(1, self.desk.state.next_seq))
        stored = [found.seq for found in records if isinstance(found, ThreadItemEvent)]
        derived = [event.seq for found in events for event in derive(found)]
        assert sorted(stored + derived) == list(range(1, self.desk.state.next_item_seq))
        indices: dict[str | None, int] = {}
        for found in events:
            if isinstance(found.event, TranscriptItemAppended):
                assert found.event.index == indices.get(found.turn_id, 0)
                indices[found.turn_id] = found.event.index + 1

    @invariant()
    def each_request_has_one_answer_or_waits(self) -> None:
        turn, resolved = self.desk.state.open_turn, self.resolved(self.desk)
        waiting = {} if turn is None else turn.pending
        asked = [event.approval_id if isinstance(event, ApprovalRequested) else event.request_id
                 for event in self.desk.events
                 if isinstance(event, ApprovalRequested | ExternalToolRequested)]  # fmt: skip
        assert len(resolved) == len(set(resolved))
        assert [id for id in asked if id not in resolved] == list(waiting)
        assert list(self.desk.terms) == [id for id, asks in waiting.items() if isinstance(asks, ApprovalRequested)]

    @invariant()
    def item_ids_are_given_once(self) -> None:
        given = [event.event.item_id for found in self.desk.records if isinstance(found, EventEnvelope)
                 for event in derive(found) if isinstance(event.event, ItemCompleted)]  # fmt: skip
        numbered = [id for id in given if "-tool-" not in id]
        assert len(numbered) == len(set(numbered))


TestFoldIsLive = FoldIsLive.TestCase
TestFoldIsLive.settings = settings(max_examples=40, stateful_step_count=30)


@given(st.lists(st.sampled_from(["x" * FIRST_CHECKPOINT, "y", " "]), min_size=1, max_size=6))
@settings(max_examples=50)
def test_what_checkpoints_hold_at_a_crash_becomes_the_history(parts_said):
    desk = Desk()
    desk.start()
    for text in parts_said:
        desk.show(inference.MessageDelta(text))
        desk.do(c.Checkpoint())
    text = "".join(parts_said)
    state, ledger = hydrated(desk.records)
    again = Desk(desk.records)
    again.commit(close_open_work(state, ledger, again.facts()))
    expected = [AssistantMessage(text, interrupted=True)] if text.strip() else []
    assert again.state.history.items == [USER, *expected]
    shown = [found for found in again.state.items.items() if isinstance(found, AgentMessage)]
    assert [(found.id, found.text, found.status) for found in shown] == [
        ("u-message", text, ItemStatus.INTERRUPTED) for _ in expected
    ]
