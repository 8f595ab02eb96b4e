"""What an incarnation reads of its thread: the state it begins with, and what that state doesn't hold.

Each function awaits the store alone; cancelling one leaves at most the claim, which is given back as the thread leaves
memory. They raise StorageError.
"""

from roder_trio.actors._services import Services
from roder_trio.actors.cost import EndedTurn
from roder_trio.errors import ThreadNotFound, UnknownTurn
from roder_trio.logic.cost import bills_of_turn
from roder_trio.logic.thread.hydration import Hydration
from roder_trio.logic.thread.reading import shown_items, stored_outcome
from roder_trio.ports import ThreadStore
from roder_trio.schema.item import ThreadItem
from roder_trio.schema.thread import ThreadSnapshot


async def load_state(services: Services, thread_id: str) -> Hydration | None:
    """Claim a thread, read its state and hand its usage to the board; None if there is no such thread."""
    await services.store.claim_thread(thread_id)
    totals = services.accounting.totals(thread_id)
    totals.begin_load()
    hydration = await services.store.load_state(thread_id)
    if hydration is not None and totals.needs_readings(hydration.ledger):
        hydration = await ThreadStore.load_state(services.store, thread_id)
    if hydration is not None:
        totals.hand_over(hydration.ledger)
    return hydration


async def load_items(services: Services, thread_id: str) -> tuple[ThreadItem, ...]:
    """Read what is shown of a thread, apart from what is only live. Raises ThreadNotFound."""
    return shown_items(await _load_whole(services, thread_id))


async def load_outcome(services: Services, thread_id: str, turn_id: str) -> EndedTurn:
    """Read how a turn ended and how it is charged. Raises ThreadNotFound, and UnknownTurn if the log doesn't say."""
    snapshot = await _load_whole(services, thread_id)
    outcome = stored_outcome(snapshot, turn_id)
    if outcome is None:
        raise UnknownTurn(turn_id)
    return EndedTurn(outcome, bills_of_turn(snapshot.events, turn_id))


async def _load_whole(services: Services, thread_id: str) -> ThreadSnapshot:
    snapshot = await services.store.load_thread(thread_id)
    if snapshot is None:
        raise ThreadNotFound(thread_id)
    return snapshot
