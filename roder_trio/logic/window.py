"""What a model is sent of a thread's log: frozen views of it, and the log itself with what is kept as items come.

Pure. A window is the last boundary that counts for the engine, what that retains, and all later items. It is kept in
an append-only list that views share, so that handing out a window costs the same however long it is; only a boundary,
or an engine for which another boundary counts, makes a new list. Sums for the estimate are kept beside it. A summary
counts for every engine, so nobody needs what stands before it and isn't retained: that may be dropped.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias, overload

import attrs

from roder_trio.logic.boundary import counts_for, is_boundary, retained_before, retained_positions
from roder_trio.logic.estimate import Sums, strings, sums
from roder_trio.logic.pruning import pruned
from roder_trio.schema.inference import EngineTarget
from roder_trio.schema.transcript import ContextCompaction, ProviderMetadata, ToolResult, TranscriptItem, UserMessage

_NO_BOUNDARY = -1
_WITH_IMAGES = (UserMessage, ToolResult)

Place: TypeAlias = tuple[str, int]
"""A turn, and the index of one of its items."""


class Window(Sequence[TranscriptItem]):
    """A frozen view of the first `length` items of a list that is only ever appended to."""

    __slots__ = ("_items", "_length")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, items: list[TranscriptItem], length: int | None = None) -> None:
        self._items = items
        self._length = len(items) if length is None else length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[TranscriptItem]:
        return islice(self._items, self._length)

    @overload
    def __getitem__(self, index: int) -> TranscriptItem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TranscriptItem]: ...
    def __getitem__(self, index: int | slice) -> TranscriptItem | Sequence[TranscriptItem]:
        if isinstance(index, slice):
            return self._items[slice(*index.indices(self._length))] if index.step is None else list(self)[index]
        if not -self._length <= index < self._length:
            raise IndexError("the index lies outside the window")
        return self._items[index if index >= 0 else self._length + index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return self._length == len(other) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"Window({list(self)!r})"


class _Cut:
    """The window behind one boundary, kept as items come; `request` is the same list unless a request differs."""

    __slots__ = ("baseline", "items", "request", "total")

    def __init__(self, items: list[TranscriptItem], request: list[TranscriptItem], baseline: Sums | None) -> None:
        self.items = items
        self.request = request
        self.baseline = baseline
        self.total = sum(map(sums, items), Sums())


class History:
    """The log of a thread, with the windows that its engines see.

    Compares by its items. Only `append`, `prune` and `drop_summarised` change it; what `items` and `boundaries` hold is
    not changed from outside. `dropped` items of the log stand before `items` and are no longer held; `earlier` is the
    newest user message among them.
    """

    __slots__ = ("_cuts", "boundaries", "dropped", "earlier", "has_images", "items", "results", "said")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, items: Iterable[TranscriptItem] = (), dropped: int = 0, earlier: UserMessage | None = None
    ) -> None:
        self.items: list[TranscriptItem] = list(items)
        self.dropped = dropped
        self.earlier = earlier
        self.boundaries: list[int] = _boundaries(self.items)
        """Positions in `items`."""
        self.has_images = any(map(holds_images, self.items))
        """Whether any item of the log has images."""
        self.said = last_user_message(self.items) or earlier
        """The newest user message of the log."""
        self.results: dict[Place, int] = {}
        """Positions in the log of the tools' results that are held, by turn and index there."""
        self._cuts: tuple[tuple[EngineTarget | None, int, _Cut], ...] = ()
        """The windows that were asked for, each with a target and the position of its head; seldom more than one."""

    def __len__(self) -> int:
        """The number of items in the log."""
        return self.dropped + len(self.items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return (self.dropped, self.earlier, self.items) == (other.dropped, other.earlier, other.items)

    def __repr__(self) -> str:
        return f"History({self.items!r}{f', dropped={self.dropped}' if self.dropped else ''})"

    def append(self, item: TranscriptItem, place: Place | None = None) -> None:
        """Add an item at the end; a boundary makes the windows new. `place` is its turn, and its index there."""
        if place is not None and isinstance(item, ToolResult):
            self.results[place] = len(self)
        self.items.append(item)
        self.has_images = self.has_images or holds_images(item)
        if isinstance(item, UserMessage):
            self.said = item
        if is_boundary(item):
            self.boundaries.append(len(self.items) - 1)
            self._cuts = ()
        elif self._cuts:
            measured = sums(item)
            for cut in {head: cut for _, head, cut in self._cuts}.values():
                self._extend(cut, item, measured)

    def prune(self, places: Iterable[Place]) -> None:
        """Show notices instead of results from now on; the windows become new, and lists that views share stay."""
        items = list(self.items)
        for place in places:
            position = self.results.get(place, -1) - self.dropped
            result = items[position] if position >= 0 else None
            if isinstance(result, ToolResult):
                items[position] = pruned(result)
        self.items = items
        self._cuts = ()

    def places(self, target: EngineTarget | None = None) -> dict[int, Place]:
        """Return turn and index of the results in the window of a target, by their places there."""
        head, end = self.head(target), len(self.items)
        shown = range(end) if head is None else [head, *retained_positions(self.items, head), *range(head + 1, end)]
        known = {position - self.dropped: place for place, position in self.results.items()}
        return {at: known[position] for at, position in enumerate(shown) if position in known}

    def drop_summarised(self) -> bool:
        """Drop what stands before the last summary and isn't retained by it; True if the log holds a summary.

        The windows stay what they are, and so do lists that views share. What is dropped no later boundary retains.
        """
        summaries = [position for position in self.boundaries if isinstance(self.items[position], ContextCompaction)]
        if not summaries:
            return False
        first = min(retained_positions(self.items, summaries[-1]), default=summaries[-1])
        self.earlier = last_user_message(self.items[:first]) or self.earlier
        self.dropped += first
        self.items = self.items[first:]
        self.results = {place: at for place, at in self.results.items() if at >= self.dropped}
        self.boundaries = _boundaries(self.items)
        self._cuts = ()
        return True

    def window(self, target: EngineTarget | None = None) -> Window:
        """Return the window that an engine of this target sees."""
        return Window(self._cut(target).items)

    def request(self, target: EngineTarget | None = None) -> Window:
        """Return the transcript of a sampling request; it is the window unless boundaries say otherwise.

        Behind a boundary at the head stands the active user message (`active_user_message`); boundaries of other
        targets are left out.
        """
        return Window(self._cut(target).request)

    def windows(self, target: EngineTarget | None = None) -> tuple[Window, Window]:
        """Return the window and the transcript of a request: one object, if they are the same."""
        cut = self._cut(target)
        window = Window(cut.items)
        return window, window if cut.request is cut.items else Window(cut.request)

    def sums(self, target: EngineTarget | None = None) -> Sums:
        """Return the sums over the window; the difference of two readings measures what came between them."""
        return self._cut(target).total

    def estimate(self, target: EngineTarget | None = None, images: bool = True) -> int:
        """Return the tokens of the window, for an engine that takes images or not."""
        return self._cut(target).total.tokens(images)

    def baseline(self, target: EngineTarget | None = None, images: bool = True) -> int | None:
        """Return the estimate of the window as it was right after the boundary at its head; None without one."""
        baseline = self._cut(target).baseline
        return None if baseline is None else baseline.tokens(images)

    def head(self, target: EngineTarget | None = None) -> int | None:
        """Return the position of the boundary that heads the window; None if no boundary counts for the target."""
        return next(
            (position for position in reversed(self.boundaries) if counts_for(self.items[position], target)), None
        )

    def _cut(self, target: EngineTarget | None) -> _Cut:
        key = target if self.boundaries else None
        for known, _, cut in self._cuts:
            if known == key:
                return cut
        head = self.head(target)
        place = _NO_BOUNDARY if head is None else head
        shared = next((cut for _, known, cut in self._cuts if known == place), None)
        made = shared or (self._whole() if head is None else self._behind(head))
        self._cuts = (*self._cuts, (key, place, made))
        return made

    def _whole(self) -> _Cut:
        request = [item for item in self.items if not is_boundary(item)] if self.boundaries else self.items
        return _Cut(self.items, request, None)

    def _behind(self, head: int) -> _Cut:
        boundary = self.items[head]
        retained = retained_before(self.items, head)
        later = self.items[head + 1 :]
        window = [boundary, *retained, *later]
        request = window
        active = _message_behind(self, head)
        if active is not None or self.boundaries[-1] != head:
            repeated = [] if active is None else [active]
            request = [boundary, *repeated, *retained, *(item for item in later if not is_boundary(item))]
        return _Cut(window, request, sum(map(sums, [boundary, *retained]), Sums()))

    def _extend(self, cut: _Cut, item: TranscriptItem, measured: Sums) -> None:
        if cut.items is not self.items:
            cut.items.append(item)
        if cut.request is not cut.items:
            cut.request.append(item)
        cut.total += measured


def _boundaries(items: Iterable[TranscriptItem]) -> list[int]:
    return [position for position, item in enumerate(items) if is_boundary(item)]


def holds_images(item: TranscriptItem) -> bool:
    """Whether an item has images that a model could see."""
    if isinstance(item, ContextCompaction):
        return item.active_request is not None and bool(item.active_request.images)
    return isinstance(item, _WITH_IMAGES) and bool(item.images)


def without_images(items: Iterable[TranscriptItem]) -> list[TranscriptItem]:
    """Return the items for a model that takes no images: a note stands for those of each item."""
    return [_without_images(item) for item in items]


def _without_images(item: TranscriptItem) -> TranscriptItem:
    match item:
        case UserMessage(text, images) if images:
            return UserMessage(leave_out_images(text, len(images)))
        case ToolResult(result=text, images=images) if images:
            return attrs.evolve(item, result=leave_out_images(text, len(images)), images=())
        case ContextCompaction(active_request=UserMessage(text, images)) if images:
            return attrs.evolve(item, active_request=UserMessage(leave_out_images(text, len(images))))
    return item


def leave_out_images(text: str, count: int) -> str:
    """Return `text` with a note that stands for its images, which a model can't see."""
    note = f"[{count} image{'s were' if count > 1 else ' was'} left out: this model takes no images.]"
    return f"{text}\n{note}" if text else note


def last_user_message(items: Sequence[TranscriptItem]) -> UserMessage | None:
    """Return the newest user message of `items`; None if there is none."""
    return next((item for item in reversed(items) if isinstance(item, UserMessage)), None)


def active_user_message(history: History, target: EngineTarget | None = None) -> UserMessage | None:
    """Return the user message that a request repeats behind the boundary at the window's head; None if none is.

    A summary names it itself. Behind an opaque boundary it is the last user message before it, unless what the
    boundary stands for holds that text.
    """
    head = history.head(target)
    return None if head is None else _message_behind(history, head)


def _message_behind(history: History, head: int) -> UserMessage | None:
    boundary = history.items[head]
    if isinstance(boundary, ContextCompaction):
        return boundary.active_request
    before = (history.items[position] for position in range(head - 1, -1, -1))
    message = next((item for item in before if isinstance(item, UserMessage)), history.earlier)
    if message is None or not isinstance(boundary, ProviderMetadata) or not message.text.strip():
        return message
    repeated = any(message.text in text for text in strings(boundary.payload.get("compacted_input")))
    return None if repeated else message
