"""What a host reads and records on a thread, whether a turn runs or not."""

from roder_trio.errors import UnknownProvider
from roder_trio.logic.thread.draft import AppendItem, Emit, RecordItem, SaveOpenText, StoreState
from roder_trio.logic.thread.facts import Decision, Facts
from roder_trio.logic.thread.state import ThreadState
from roder_trio.schema.command import (
    Checkpoint,
    GetState,
    ItemExists,
    LatestIndex,
    PersistItem,
    RecordItemEvent,
    SetState,
    UpdateThread,
)
from roder_trio.schema.event import ThreadMetadataChanged
from roder_trio.schema.thread import ExtensionStateRecord, ThreadScope


def item_exists(state: ThreadState, command: ItemExists, facts: Facts) -> Decision:
    """Say whether an item event with that turn and item id is stored or derived."""
    return Decision(reply=state.numbers.knows(command.turn_id, command.item_id))


def latest_index(state: ThreadState, command: LatestIndex, facts: Facts) -> Decision:
    """Return the highest transcript index of the turn, or None."""
    entry = state.turns.get(command.turn_id)
    return Decision(reply=entry.count - 1 if entry is not None and entry.count else None)


def persist_item(state: ThreadState, command: PersistItem, facts: Facts) -> Decision:
    """Append a host's item; the index is that of the turn's next item."""
    entry = state.turns.get(command.turn_id)
    index = 0 if entry is None else entry.count
    return Decision((AppendItem(command.turn_id, command.item, source="host"),), reply=index)


def record_item_event(state: ThreadState, command: RecordItemEvent, facts: Facts) -> Decision:
    """Store a host's item event; the actor answers with the numbered one."""
    return Decision((RecordItem(command.turn_id, command.event, command.timestamp),))


def update_thread(state: ThreadState, command: UpdateThread, facts: Facts) -> Decision:
    """Change fields of the metadata. A running turn keeps what it began with."""
    provider = command.change.provider
    if isinstance(provider, str) and provider not in facts.engines:
        raise UnknownProvider(provider, tuple(facts.engines))
    if command.change == ThreadMetadataChanged():
        return Decision()
    return Decision((Emit(command.change),))


def get_state(state: ThreadState, command: GetState, facts: Facts) -> Decision:
    """Return a host's own value, or None."""
    record = state.extensions.get((command.extension_id, command.key))
    return Decision(reply=None if record is None else record.value)


def set_state(state: ThreadState, command: SetState, facts: Facts) -> Decision:
    """Store a host's own value."""
    record = ExtensionStateRecord(
        record_id=command.record_id,
        extension_id=command.extension_id,
        key=command.key,
        scope=ThreadScope(state.metadata.thread_id),
        schema_version=command.schema_version,
        value=command.value,
    )
    return Decision((StoreState(record),))


def checkpoint(state: ThreadState, command: Checkpoint, facts: Facts) -> Decision:
    """Store the open text that isn't stored yet."""
    return Decision((SaveOpenText(),))
