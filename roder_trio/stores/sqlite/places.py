"""Where pages of events ended, so that the next page needn't be looked for from the start of the log.

Rules of the room: a place is only a hint, which the reader checks; forgetting one costs a longer search.
"""

from roder_trio.schema.ids import ThreadId
from roder_trio.stores._sql_record import EventPage, unicode_text
from roder_trio.stores.sqlite.query import Place

MAX_PLACES = 16
"""Places that are kept of one thread, the newest."""
MAX_THREADS = 1024


class Places:
    """The last places of each thread."""

    def __init__(self) -> None:
        self._known: dict[ThreadId, dict[int, Place]] = {}

    def before(self, thread_id: ThreadId, seq: int) -> Place | None:
        """The place nearest to the first envelope with a higher seq, and not behind it."""
        fitting = [place for place in self._known.get(thread_id, {}).values() if place.seq <= seq]
        return max(fitting, key=lambda place: place.seq, default=None)

    def note(self, thread_id: ThreadId, page: EventPage) -> None:
        """Take where a page ended."""
        if not page.events or page.seq is None:
            return
        last = page.events[-1]
        places = self._known.setdefault(thread_id, {})
        places.pop(last.seq, None)
        places[last.seq] = Place(last.seq, page.last_position, unicode_text(last.event_id))
        if len(places) > MAX_PLACES:
            del places[next(iter(places))]
        if len(self._known) > MAX_THREADS:
            del self._known[next(iter(self._known))]

    def forget(self, thread_id: ThreadId) -> None:
        """Drop what is known of a thread."""
        self._known.pop(thread_id, None)
