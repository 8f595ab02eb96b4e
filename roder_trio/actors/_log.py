"""A thread's log while it is in memory: the state that its events fold to, and the items that are only live.

What is stored goes through `commit`, what is only shown through `show`; both publish, and nothing else does for this
thread's items. The log knows no requests and no jobs.
"""

from collections.abc import Callable, Iterable, Sequence

from roder_trio.actors._services import Services, new_id, utc_now
from roder_trio.logic.live import LiveItems
from roder_trio.logic.thread.draft import Draft, Stamped, fold_stamped, stamp
from roder_trio.logic.thread.facts import View
from roder_trio.logic.thread.state import ThreadState
from roder_trio.schema.command import BeginDirectCompaction
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.inference import EngineTarget, InferenceEvent
from roder_trio.schema.item import ItemDiscarded, ItemEventKind, ThreadItem, ThreadItemEvent
from roder_trio.schema.thread import ThreadMetadata
from roder_trio.schema.transcript import ErrorNote


class ThreadLog:
    """The state of a resident thread and its live items, changed together."""

    __slots__ = ("_ask_checkpoint", "_closed", "_noted", "_posted", "_services", "live", "state")

    def __init__(self, state: ThreadState, services: Services, ask_checkpoint: Callable[[], bool]) -> None:
        self.state = state
        self.live = LiveItems(state.numbers)
        self._services = services
        self._ask_checkpoint = ask_checkpoint
        """Puts a `Checkpoint` into the thread's mailbox; False if it has no room."""
        self._noted = False
        """The timer will call back."""
        self._posted = False
        """A `Checkpoint` stands in the mailbox or is under way."""
        self._closed = False

    @property
    def thread_id(self) -> str:
        """The thread that this is the log of."""
        return self.state.metadata.thread_id

    def close(self) -> None:
        """Ask for nothing any more."""
        self._closed = True

    # -- what is stored ------------------------------------------------------------------------------------------------

    async def commit(self, drafts: Iterable[Draft]) -> Sequence[Stamped]:
        """Append, fold, publish. If the append fails nothing has changed, and its error is raised."""
        stamped = stamp(self.state, drafts, utc_now(), new_id, self.live)
        records = [entry.record for entry in stamped if entry.record is not None]
        if not stamped:
            return stamped
        try:
            if records:
                await self._services.store.append(self.thread_id, records)
        except BaseException:
            self.live.give_back()
            raise
        fold_stamped(self.state, stamped)
        self.live.confirm()
        if self._services.broadcast.wants(self.thread_id):
            self._publish(stamped)
        return stamped

    def _publish(self, stamped: Sequence[Stamped]) -> None:
        publish = self._services.broadcast.publish
        for entry in stamped:
            record = entry.record
            if isinstance(record, EventEnvelope):
                publish(record)
            elif isinstance(record, ThreadItemEvent) and not record.checkpoint:
                publish(_wrapped(record, "turn" if isinstance(record.event, ItemDiscarded) else "host"))
            source = record.source if isinstance(record, EventEnvelope) else "turn"
            for derived in entry.derived:
                publish(_wrapped(derived, source))

    # -- what is only shown --------------------------------------------------------------------------------------------

    def show(self, turn_id: str, event: InferenceEvent) -> None:
        """Take a stream event into the live items and show it."""
        kinds = self.live.absorb(turn_id, event)
        if not kinds:
            return
        if self._services.broadcast.wants(self.thread_id):
            for kind in kinds:
                self._services.broadcast.publish(self._live_event(turn_id, kind))
        self._watch_open_text()

    def with_live(self, stored: Iterable[ThreadItem]) -> tuple[ThreadItem, ...]:
        """The thread's items: those that its log tells, and open ones with their text so far."""
        shown = {item.id: item for item in stored}
        shown.update((item.id, item) for item in self.live)
        return tuple(shown.values())

    def _live_event(self, turn_id: str, kind: ItemEventKind) -> EventEnvelope:
        event = ThreadItemEvent(
            event_id=new_id(), timestamp=utc_now(), thread_id=self.thread_id, turn_id=turn_id, event=kind
        )
        return _wrapped(event, "engine")

    # -- checkpoints of open text --------------------------------------------------------------------------------------

    def checkpoint_ended(self, *, stored: bool) -> None:
        """A `Checkpoint` was handled; text that came meanwhile is watched again."""
        self._posted = False
        self._watch_open_text(at_once=stored)

    def _watch_open_text(self, *, at_once: bool = True) -> None:
        """Have open text stored: at once if it is much (but not behind a failure), else when its time comes."""
        if at_once and self.live.checkpoint_due:
            self._post()
        if not self._noted and self.has_unsaved_text:
            self._noted = True
            self._services.checkpoints.note(self)

    @property
    def has_unsaved_text(self) -> bool:
        """Whether a message is open of which some text is to be stored."""
        return not self._closed and self.live.has_unsaved_text

    def fall_due(self) -> None:
        """Have open text stored now."""
        self._noted = False
        if self.has_unsaved_text:
            self._post()

    def _post(self) -> None:
        if not self._posted:
            self._posted = self._ask_checkpoint()

    # -- what others see of it -----------------------------------------------------------------------------------------

    def view(self, target: EngineTarget | None, *, images: bool) -> View:
        """Return the thread's window as an engine sees it, shared and not copied."""
        history = self.state.history
        window, request = history.windows(target)
        return View(
            window=window,
            request=request,
            sums=history.sums(target),
            baseline=history.baseline(target, images),
            base=len(history),
            goal_id=self.attached_goal,
            has_images=history.has_images,
            said=history.said,
        )

    def direct_view(self, command: BeginDirectCompaction, *, images: bool) -> tuple[View, ThreadMetadata] | None:
        """Return the window as an engine sees it, and the thread's metadata; None if it isn't what was given."""
        view = self.view(command.target, images=images)
        given = [item for item in command.transcript if not isinstance(item, ErrorNote)]
        held = [item for item in view.window if not isinstance(item, ErrorNote)]
        return (view, self.state.metadata) if given == held else None

    @property
    def attached_goal(self) -> str | None:
        """The goal that the open turn is attached to."""
        turn = self.state.open_turn
        return None if turn is None else turn.goal_id


def _wrapped(event: ThreadItemEvent, source: str) -> EventEnvelope:
    """Return an item event in an envelope of the same ids and time."""
    return EventEnvelope(
        event_id=event.event_id,
        timestamp=event.timestamp,
        source=source,
        thread_id=event.thread_id,
        turn_id=event.turn_id,
        event=event,
    )
