"""A thread's state and usage as one JSON text, for stores that keep states to hydrate from.

Rules of the room: the text holds what decisions need, and leaves out what is read from the log when someone asks for it
(what is shown, how turns ended). It is a cache: one that this version can't read is None, and the log is folded
instead. Whoever changes what a fold makes, or this form, raises `FOLD_VERSION`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import cattrs

from roder_trio.codec.converter import converter, quick
from roder_trio.codec.text import REFUSALS, DecodeError, dump, parse_json
from roder_trio.errors import InvalidRecord
from roder_trio.logic.thread.hydration import Hydration
from roder_trio.logic.thread.state import GoalStop, HeldText, OpenTurn, ThreadState, TurnEntry
from roder_trio.logic.usage import ClosedUsage, Ledger
from roder_trio.logic.window import History
from roder_trio.schema.event import ApprovalRequested, Event, ExternalToolRequested, SteerAccepted, UsageRecorded
from roder_trio.schema.goal import Goal
from roder_trio.schema.item import ThreadItem
from roder_trio.schema.thread import ExtensionStateRecord, ThreadMetadata
from roder_trio.schema.transcript import AssistantMessage, ToolCall, TranscriptItem, UserMessage
from roder_trio.schema.usage import ZERO_USAGE, TokenUsage

FOLD_VERSION = 4

NEWEST_READINGS = 32
"""How many attempts keep their own reading, in case a later one comes; the open turn's do too."""

Ids = tuple[str, ...]

_USER, _ASSISTANT = "u", "a"
_MESSAGES: dict[str, Callable[[str], TranscriptItem]] = {_USER: UserMessage, _ASSISTANT: AssistantMessage}
_read_item = quick.get_structure_hook(TranscriptItem)


def encode_state(hydration: Hydration) -> str:
    """Return the text of a state; its metadata is left to the store, which has it.

    Raises InvalidRecord, also for a state that hydration must put in order first.
    """
    if hydration.state.left_open:
        raise InvalidRecord("A thread with earlier turns that never ended is kept once those are closed.")
    try:
        return dump(converter.unstructure(_document(hydration), _Document)).decode()
    except REFUSALS as error:
        raise InvalidRecord(f"The state of a thread can't be encoded: {error}.") from error


def decode_state(text: str | bytes, metadata: ThreadMetadata) -> Hydration | None:
    """Return the state in a text, with the thread's metadata; None if this version can't read it."""
    try:
        value = parse_json(text)
        if value.get("fold_version") != FOLD_VERSION:
            return None
        return _hydration(quick.structure(value, _Document), metadata)
    except (cattrs.BaseValidationError, DecodeError, *REFUSALS):
        return None


# -- the form ----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Held:
    item_id: str
    turn_id: str
    item: tuple[ThreadItem, ...] = ()
    """One, or none."""


@attrs.frozen(kw_only=True)
class _OpenTurn:
    turn_id: str
    provider: str
    model: str
    automatic: bool = False
    goal_id: str | None = None
    answer: str = ""
    steers: tuple[SteerAccepted, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    call_ids: Ids = ()
    pending: tuple[Event, ...] = ()
    asked: Ids = ()
    worked: bool = False
    stopped: GoalStop | None = None


@attrs.frozen(kw_only=True)
class _Usage:
    thread: TokenUsage = ZERO_USAGE
    goals: dict[str, int] = attrs.field(factory=dict)
    attempts: Ids = ()
    """Those in the sums."""
    readings: tuple[UsageRecorded, ...] = ()


@attrs.frozen(kw_only=True)
class _Document:
    fold_version: int
    next_seq: int
    next_item_seq: int
    turns: dict[str, int] = attrs.field(factory=dict)
    """The number of items by turn."""
    never_started: Ids = ()
    without_end: Ids = ()
    items: tuple[Any, ...] = ()
    """Each as in a record; of a message that is only text, its letter and the text."""
    results: tuple[tuple[str, int, int], ...] = ()
    """Turn, index and position in the log of the tools' results."""
    dropped: int = 0
    earlier: UserMessage | None = None
    has_images: bool = False
    endings: tuple[Ids, ...] = ()
    """Ends of the item ids of a turn, behind its own and a hyphen; many turns have the same."""
    own_item_ids: tuple[int, ...] = ()
    """By turn, in the order of `turns`, which of the endings are its."""
    other_item_ids: dict[str, Ids] = attrs.field(factory=dict)
    """By turn, whole ids."""
    open_turn: _OpenTurn | None = None
    last_turn_id: str | None = None
    last_model: Ids = ()
    """Provider and model, or nothing."""
    compactions: dict[str, str | None] = attrs.field(factory=dict)
    held: tuple[_Held, ...] = ()
    goal: Goal | None = None
    opening_tokens: int = 0
    opening_time: float = 0.0
    goal_time: float = 0.0
    empty_turns: int = 0
    call_ids: Ids = ()
    extensions: tuple[ExtensionStateRecord, ...] = ()
    usage: _Usage = _Usage()


# -- there -------------------------------------------------------------------------------------------------------------


def _document(hydration: Hydration) -> _Document:
    state, history = hydration.state, hydration.state.history
    own, other = _split_ids(state)
    endings = {ends: place for place, ends in enumerate(dict.fromkeys(own))}
    return _Document(
        fold_version=FOLD_VERSION,
        next_seq=state.next_seq,
        next_item_seq=state.next_item_seq,
        turns={turn_id: entry.count for turn_id, entry in state.turns.items()},
        never_started=tuple([turn_id for turn_id, entry in state.turns.items() if not entry.started]),
        without_end=tuple([turn_id for turn_id, entry in state.turns.items() if not entry.ended]),
        items=tuple([_short(item) for item in history.items]),
        results=tuple([(*place, position) for place, position in history.results.items()]),
        dropped=history.dropped,
        earlier=history.earlier,
        has_images=history.has_images,
        endings=tuple(endings),
        own_item_ids=tuple([endings[ends] for ends in own]),
        other_item_ids=other,
        open_turn=None if state.open_turn is None else _open_document(state.open_turn, state),
        last_turn_id=state.last_turn_id,
        last_model=state.last_model or (),
        compactions=state.compactions,
        held=tuple([_held(item_id, held) for item_id, held in state.checkpoints.items()]),
        goal=state.goal,
        opening_tokens=state.opening_tokens,
        opening_time=state.opening_time,
        goal_time=state.goal_time,
        empty_turns=state.empty_turns,
        call_ids=tuple(sorted(state.call_ids)),
        extensions=tuple(state.extensions.values()),
        usage=_usage(hydration.ledger, None if state.open_turn is None else state.open_turn.turn_id),
    )


def _open_document(turn: OpenTurn, state: ThreadState) -> _OpenTurn:
    return _OpenTurn(
        turn_id=turn.turn_id,
        provider=turn.provider,
        model=turn.model,
        automatic=turn.automatic,
        goal_id=turn.goal_id,
        answer=state.turn(turn.turn_id).answer or "",
        steers=tuple(turn.steers),
        calls=tuple(turn.calls.values()),
        call_ids=tuple(sorted(turn.call_ids)),
        pending=tuple(turn.pending.values()),
        asked=tuple(sorted(turn.asked)),
        worked=turn.worked,
        stopped=turn.stopped,
    )


def _held(item_id: str, held: HeldText) -> _Held:
    return _Held(item_id=item_id, turn_id=held.turn_id, item=() if held.item is None else (held.item,))


def _usage(ledger: Ledger, open_turn_id: str | None) -> _Usage:
    kept = ledger.closing(open_turn_id, NEWEST_READINGS)
    closed = kept.closed
    attempts = tuple(sorted(closed.attempts))
    return _Usage(thread=closed.thread, goals=dict(closed.goals), attempts=attempts, readings=tuple(kept))


def _short(item: TranscriptItem) -> Any:
    match item:
        case UserMessage(text, ()):
            return [_USER, text]
        case AssistantMessage(text, None, False):
            return [_ASSISTANT, text]
    return converter.unstructure(item, TranscriptItem)


def _split_ids(state: ThreadState) -> tuple[list[Ids], dict[str, Ids]]:
    """The endings of each turn's item ids, and the ids of another form or of turns that only they name."""
    own: dict[str, list[str]] = {turn_id: [] for turn_id in state.turns}
    other: dict[str, list[str]] = {}
    for turn_id, item_id in state.numbers.known():
        if turn_id in own and item_id.startswith(f"{turn_id}-"):
            own[turn_id].append(item_id[len(turn_id) + 1 :])
        else:
            other.setdefault(turn_id, []).append(item_id)
    return [tuple(ends) for ends in own.values()], {turn_id: tuple(ids) for turn_id, ids in other.items()}


# -- and back ----------------------------------------------------------------------------------------------------------


def _hydration(document: _Document, metadata: ThreadMetadata) -> Hydration:
    history = History(map(_whole, document.items), document.dropped, document.earlier)
    history.has_images = document.has_images
    history.results = {(turn_id, index): position for turn_id, index, position in document.results}
    state = ThreadState(
        metadata,
        next_seq=document.next_seq,
        next_item_seq=document.next_item_seq,
        turns=_turns(document),
        whole_turns=[] if document.open_turn is None else [document.open_turn.turn_id],
        history=history,
        items=None,
        open_turn=None if document.open_turn is None else _open_turn(document.open_turn),
        last_turn_id=document.last_turn_id,
        last_model=_pair(document.last_model) if document.last_model else None,
        compactions=document.compactions,
        checkpoints={held.item_id: HeldText(held.turn_id, next(iter(held.item), None)) for held in document.held},
        goal=document.goal,
        opening_tokens=document.opening_tokens,
        opening_time=document.opening_time,
        goal_time=document.goal_time,
        empty_turns=document.empty_turns,
        call_ids=dict.fromkeys(document.call_ids),
        extensions={(record.extension_id, record.key): record for record in document.extensions},
    )
    for turn_id, item_id in _item_ids(document):
        state.numbers.see(turn_id, item_id)
    usage = document.usage
    ledger = Ledger(ClosedUsage(thread=usage.thread, goals=usage.goals, attempts=frozenset(usage.attempts)))
    for reading in usage.readings:
        ledger.apply(reading)
    return Hydration(state, ledger)


def _whole(item: Any) -> TranscriptItem:
    if isinstance(item, list):
        letter, text = item
        return _MESSAGES[letter](text)
    found: TranscriptItem = _read_item(item, TranscriptItem)
    return found


def _turns(document: _Document) -> dict[str, TurnEntry]:
    bare, open_ended = set(document.never_started), set(document.without_end)
    turns = {
        turn_id: TurnEntry(count, None, started=turn_id not in bare, in_log=turn_id not in open_ended)
        for turn_id, count in document.turns.items()
    }
    if document.open_turn is not None:
        turns[document.open_turn.turn_id].answer = document.open_turn.answer
    return turns


def _open_turn(document: _OpenTurn) -> OpenTurn:
    return OpenTurn(
        document.turn_id,
        document.provider,
        document.model,
        automatic=document.automatic,
        goal_id=document.goal_id,
        steers=list(document.steers),
        calls={call.id: call for call in document.calls},
        call_ids=dict.fromkeys(document.call_ids),
        pending=dict(_requests(document.pending)),
        asked=dict.fromkeys(document.asked),
        worked=document.worked,
        stopped=document.stopped,
    )


def _requests(pending: Iterable[Event]) -> Iterator[tuple[str, ApprovalRequested | ExternalToolRequested]]:
    for event in pending:
        match event:
            case ApprovalRequested(approval_id=id) | ExternalToolRequested(request_id=id):
                yield id, event
            case _:
                raise ValueError(f"{type(event).__name__} waits for nobody")


def _pair(model: Ids) -> tuple[str, str]:
    provider, name = model
    return provider, name


def _item_ids(document: _Document) -> Iterator[tuple[str, str]]:
    for turn_id, place in zip(document.turns, document.own_item_ids, strict=True):
        for end in document.endings[place]:
            yield turn_id, f"{turn_id}-{end}"
    for turn_id, ids in document.other_item_ids.items():
        for id in ids:
            yield turn_id, id
