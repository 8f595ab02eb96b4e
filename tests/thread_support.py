"""A thread without an actor: what is decided is stamped and folded at once, and effects move the slot.

Ids are counted and the clock stands still, so what a flow stores can be written down.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from roder_trio.errors import CommandRefused
from roder_trio.logic.estimate import estimate
from roder_trio.logic.live import LiveItems
from roder_trio.logic.thread.decide import decide
from roder_trio.logic.thread.draft import AppendItem, Draft, Stamped, fold_stamped, stamp
from roder_trio.logic.thread.facts import DEFERRED, ApprovalTerms, Decision, EngineFacts, Facts, Phase, Slot
from roder_trio.logic.thread.goals import read_goal
from roder_trio.logic.thread.hydration import fold_snapshot
from roder_trio.logic.thread.metadata import fold_metadata
from roder_trio.logic.thread.record import turns_of
from roder_trio.logic.thread.state import ThreadState
from roder_trio.logic.usage import Ledger, ThreadTotals
from roder_trio.schema import command as c
from roder_trio.schema import inference
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.event import (
    ApprovalResolved,
    ContextCompactionStarted,
    Event,
    EventEnvelope,
    SteerAccepted,
    UsageRecorded,
)
from roder_trio.schema.goal import GoalPatch
from roder_trio.schema.inference import InferenceCapabilities, InferenceEvent, ModelDescriptor
from roder_trio.schema.item import ItemEventKind, ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, Record, ThreadMetadata, ThreadSnapshot
from roder_trio.schema.transcript import (
    AssistantMessage,
    Image,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)
from roder_trio.schema.usage import Attempt, Purpose, TokenUsage

AT = datetime(2026, 10, 3, tzinfo=UTC)
THREAD = "t"
MODELS = {"m": ModelDescriptor(provider="one", id="m", supported_reasoning=("low", "high"))}
ENGINES = {
    "one": EngineFacts(capabilities=InferenceCapabilities.agent(), default_model="m", models=MODELS, target=None),
    "two": EngineFacts(capabilities=InferenceCapabilities.text_only(), default_model=None, models={}, target=None),
}


def metadata(**fields: Any) -> ThreadMetadata:
    return ThreadMetadata(thread_id=THREAD, created_at=AT, updated_at=AT, **fields)


def envelope(event: Event, turn_id: str | None = "u", seq: int = 1, event_id: str | None = None) -> EventEnvelope:
    return EventEnvelope(
        event_id=event_id or f"e{seq}", seq=seq, timestamp=AT, source="thread", thread_id=THREAD, turn_id=turn_id,
        event=event,
    )  # fmt: skip


def item_event(kind: ItemEventKind, seq: int, turn_id: str = "u", *, checkpoint: bool = False) -> ThreadItemEvent:
    return ThreadItemEvent(
        event_id=f"i{seq}", seq=seq, timestamp=AT, thread_id=THREAD, turn_id=turn_id, event=kind, checkpoint=checkpoint
    )


def snapshot_of(base: ThreadMetadata, records: Sequence[Record]) -> ThreadSnapshot:
    """What a store gives back of these records."""
    events = [record for record in records if isinstance(record, EventEnvelope)]
    return ThreadSnapshot(
        metadata=fold_metadata(base, records),
        turns=turns_of(THREAD, events),
        events=events,
        item_events=[record for record in records if isinstance(record, ThreadItemEvent)],
        extension_states=[record for record in records if isinstance(record, ExtensionStateRecord)],
    )


def hydrated(records: Sequence[Record], base: ThreadMetadata | None = None) -> tuple[ThreadState, Ledger]:
    """The state and the ledger that a log gives."""
    snapshot = snapshot_of(base or metadata(), records)
    assert snapshot.metadata is not None
    found = fold_snapshot(snapshot, snapshot.metadata)
    return found.state, found.ledger


class Desk:
    """One thread's state and log. `do` decides, commits and performs as the owner of a thread does."""

    def __init__(self, records: Iterable[Record] = (), **facts: Any) -> None:
        self.base = metadata()
        self.records: list[Record] = list(records)
        self.state, ledger = hydrated(self.records)
        self.live = LiveItems(self.state.numbers)
        self.totals = ThreadTotals()
        self.totals.hand_over(ledger)
        self.slot = Slot()
        self.cause: str | None = None
        self.time = 0.0
        self.given: dict[str, Any] = {"draining": False, "config": RuntimeConfig(), "engines": ENGINES, **facts}
        self.terms: dict[str, ApprovalTerms] = {}
        self.performed: list[Any] = []
        self.minted = len(self.records)

    def facts(self, **changes: Any) -> Facts:
        known = {
            "now": AT,
            "time": self.time,
            "slot": self.slot,
            "cause": self.cause,
            "totals": self.totals,
            "terms": self.terms,
        }
        return Facts(**{**known, **self.given, **changes})

    def mint(self) -> str:
        self.minted += 1
        return f"id{self.minted}"

    def decide(self, payload: Any, **facts: Any) -> Decision:
        decision = decide(self.state, payload, self.facts(**facts))
        assert decision is not DEFERRED
        assert isinstance(decision, Decision)
        return decision

    def stamp(self, drafts: Iterable[Draft]) -> list[Stamped]:
        return stamp(self.state, drafts, AT, self.mint, self.live)

    def commit(self, drafts: Iterable[Draft], *, fails: bool = False) -> list[Stamped]:
        stamped = self.stamp(drafts)
        if fails:
            self.live.give_back()
            return []
        attached = self.attached
        self.records += [entry.record for entry in stamped if entry.record is not None]
        fold_stamped(self.state, stamped)
        self.live.confirm()
        for entry in stamped:
            if isinstance(entry.record, EventEnvelope) and isinstance(entry.record.event, ApprovalResolved):
                self.terms.pop(entry.record.event.approval_id, None)
        if self.attached != attached:
            self.slot = attrs.evolve(self.slot, attached_at=self.time if self.attached else None)
        return stamped

    def do(self, payload: Any, *, fails: bool = False, **facts: Any) -> Any:
        """Carry a request out and return its reply; with `fails` its append fails, and nothing is performed."""
        decision = self.decide(payload, **facts)
        self.commit(decision.drafts, fails=fails)
        if not fails:
            self.perform(decision.effects)
        return decision.reply

    def perform(self, effects: Iterable[c.Effect]) -> None:
        for effect in effects:
            self.performed.append(effect)
            match effect:
                case c.StartJob(plan):
                    attached_at = self.time if self.attached else None
                    self.slot = Slot(Phase.RUNNING, plan.turn_id, attached_at=attached_at, continues=plan.continues)
                case c.StartCompaction(plan):
                    self.slot = Slot(Phase.COMPACTING, plan.turn_id)
                case c.CancelJob(reason):
                    self.cause = self.cause or reason
                    self.slot = attrs.evolve(self.slot, phase=Phase.CLOSING)
                case c.EndTurn():
                    self.slot = attrs.evolve(self.slot, phase=Phase.CLOSING)
                case c.FreeSlot():
                    self.slot, self.cause = Slot(), None
                case c.Remember(approval_id, terms):
                    self.terms[approval_id] = terms
                case c.SetMode(mode):
                    self.given["policy_mode"] = mode

    @property
    def attached(self) -> str | None:
        return None if self.state.open_turn is None else self.state.open_turn.goal_id

    @property
    def goal(self) -> Any:
        return read_goal(self.state, self.facts())

    @property
    def events(self) -> list[Event]:
        """All stored events, in order."""
        return [record.event for record in self.records if isinstance(record, EventEnvelope)]

    def since(self, count: int) -> list[Any]:
        """The events, item events and values stored behind the first `count` records."""
        return [getattr(record, "event", record) for record in self.records[count:]]

    def start(self, turn_id: str = "u", text: str = "hello", **options: Any) -> Any:
        message = UserMessage(text)
        return self.do(c.StartTurn(turn_id=turn_id, message=message, options=c.TurnOptions(**options)))

    def show(self, *events: InferenceEvent) -> list[ItemEventKind]:
        """Have the live items of the slot's turn take these stream events."""
        assert self.slot.turn_id is not None
        return [kind for event in events for kind in self.live.absorb(self.slot.turn_id, event)]

    def use(self, tokens: int, attempt_id: str = "a1", report: int = 1) -> None:
        """An attempt of the slot's turn, charged to what the turn is attached to, reports its running total."""
        assert self.slot.turn_id is not None
        attempt = Attempt(
            attempt_id=attempt_id, thread_id=THREAD, turn_id=self.slot.turn_id, purpose=Purpose.SAMPLING,
            provider="one", model="m", goal_id=self.attached,
        )  # fmt: skip
        usage = TokenUsage(tokens, 0, tokens)
        self.totals.open_attempt(attempt)
        self.totals.observe(attempt_id, usage)
        record = UsageRecorded(
            attempt_id=attempt_id, report=report, turn_id=attempt.turn_id, goal_id=attempt.goal_id, usage=usage,
            purpose=attempt.purpose,
        )  # fmt: skip
        self.records.append(envelope(record, attempt.turn_id, 0, f"{attempt_id}:{report}"))


# -- scenes ------------------------------------------------------------------------------------------------------------

USER, ANSWER = UserMessage("hello"), AssistantMessage("hi")
CALL, RESULT = ToolCall("c1", "look", "{}"), ToolResult("c1", "look", "seen")
BOUNDARY = ProviderMetadata({"output": [{"type": "compaction", "id": "k", "encrypted_content": "x"}]})
BEGUN = ContextCompactionStarted("k", "auto", 1, 1)


def start(turn_id: str = "u", text: str = "hello", images: tuple[Image, ...] = (), **options: Any) -> c.StartTurn:
    return c.StartTurn(turn_id=turn_id, message=UserMessage(text, images), options=c.TurnOptions(**options))


def commit(desk: Desk, id: str = "k", base: int | None = None) -> c.CommitCompaction:
    return c.CommitCompaction(
        turn_id="u", compaction_id=id, base=len(desk.state.history) if base is None else base, item=BOUNDARY,
        strategy="native", duration=2.0, tokens=estimate([BOUNDARY]),
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


def live(*items: Any) -> tuple[AppendItem, ...]:
    return tuple(AppendItem("u", item, live=True) for item in items)


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


def parts(state: ThreadState) -> dict[str, Any]:
    """All that two states of one thread must agree on, in a form that compares."""
    turn_ids = [*state.turns, "bare"]
    item_ids = ({shown.id for shown in state.items.items()} if state.items else set()) | {
        f"{turn_id}-user" for turn_id in turn_ids
    }
    chosen = ("provider", "model", "reasoning", "tool_allowlist", "developer_instructions", "labels", "workspace")
    return {
        **{name: getattr(state.metadata, name) for name in chosen},
        "numbers": (state.next_seq, state.next_item_seq),
        "turns": state.turns,
        "log": (state.history, state.history.boundaries),
        "windows": (state.history.window(), state.history.request(), state.history.sums(), state.history.baseline()),
        "results": (state.history.results, state.history.places(), state.history.said),
        "known": {(turn_id, id): state.numbers.knows(turn_id, id) for turn_id in turn_ids for id in item_ids},
        "items": None if state.items is None else state.items.items(),
        "open": (state.open_turn, state.left_open),
        "calls": state.call_ids,
        "last": (state.last_turn_id, state.last_model),
        "compactions": list(state.compactions.items()),
        "checkpoints": list(state.checkpoints.items()),
        "goal": (state.goal, state.opening_tokens, state.opening_time, state.goal_time, state.empty_turns),
        "extensions": state.extensions,
    }
