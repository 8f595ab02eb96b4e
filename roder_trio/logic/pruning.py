"""Pruning: old results of tools shown to the model as one line each, while the log keeps them whole.

Pure. The newest items are protected; of the older ones only results that are longer than their notice are worth it.
"""

import re
from collections.abc import Sequence
from typing import Final

import attrs

from roder_trio.logic.estimate import Sums, byte_length, sums
from roder_trio.schema.transcript import AssistantMessage, ReasoningSummary, ToolCall, ToolResult, TranscriptItem

PROTECTED: Final = 40_000
"""Tokens of the newest items that are left alone; the item that crosses them is, too."""
WORTH_IT: Final = 20_000
"""Tokens that pruning must save."""
_NOTICE: Final = re.compile(r"\[tool output pruned: .*, \d+ bytes, \d+ lines\]")
_OF_A_STEP: Final = (AssistantMessage, ReasoningSummary, ToolCall, ToolResult)


def pruned(result: ToolResult) -> ToolResult:
    """Return a result as a window shows it once it is pruned."""
    return ToolResult(result.id, result.name, notice(result), result.is_error)


def notice(result: ToolResult) -> str:
    """Return the line that stands for a result."""
    lines = result.result.count("\n") + (not result.result.endswith("\n"))
    return f"[tool output pruned: {result.name}, {byte_length(result.result)} bytes, {lines} lines]"


def old_results(window: Sequence[TranscriptItem], images: bool = True) -> list[int]:
    """Return the places of the results that may be pruned, for an engine that takes images or not."""
    protected, place = Sums(), len(window)
    while place and protected.tokens(images) < PROTECTED:
        place -= 1
        protected += sums(window[place])
    return _longer(window, place)


def results_before_newest_step(window: Sequence[TranscriptItem]) -> list[int]:
    """Return the places of all results that may be pruned if need be: those outside the newest step.

    A step that had calls ends with their results; behind another one all results are older.
    """
    place = len(window)
    while place and not isinstance(window[place - 1], _OF_A_STEP):
        place -= 1
    while place and isinstance(window[place - 1], ToolResult):
        place -= 1
    return _longer(window, place)


@attrs.frozen
class Saving:
    """What pruning some places of a window takes off its estimate, in tokens."""

    before: int
    after: int

    @property
    def tokens(self) -> int:
        """By how much the estimate falls."""
        return self.before - self.after

    def suffices(self, size: int, threshold: int) -> bool:
        """Whether it is worth it, and leaves the window below the threshold."""
        return self.tokens >= WORTH_IT and size - self.tokens < threshold


def saving(window: Sequence[TranscriptItem], places: Sequence[int], total: Sums, images: bool = True) -> Saving:
    """Return what pruning `places` saves of a window whose sums are `total`."""
    after = total
    for place in places:
        item = window[place]
        assert isinstance(item, ToolResult)
        after = after - sums(item) + sums(pruned(item))
    return Saving(total.tokens(images), after.tokens(images))


def _longer(window: Sequence[TranscriptItem], end: int) -> list[int]:
    return [place for place in range(end) if isinstance(item := window[place], ToolResult) and _is_worth_it(item)]


def _is_worth_it(result: ToolResult) -> bool:
    """Whether a result is longer than its notice, and isn't a notice already."""
    return byte_length(result.result) > byte_length(notice(result)) and not _NOTICE.fullmatch(result.result)
