"""How many calls of a turn failed, and what becomes of a turn in which too many did.

Each error result counts, whatever the stage, in call order; a success ends a row of failures. The limits are looked at
after each batch, that of the whole turn first.
"""

from collections.abc import Iterable
from typing import Final

import attrs

from roder_trio.schema.transcript import ToolResult, UserMessage

PER_TURN: Final = "max_tool_failures_per_turn"
CONSECUTIVE: Final = "max_consecutive_tool_failures"
MAX_SHOWN: Final = 200
"""Characters of each failure in the nudge."""
MAX_LISTED: Final = 10
"""The newest failures that the nudge lists."""


@attrs.frozen
class Failures:
    """The failures of a turn so far, and the row of them that stands at its end, oldest first."""

    in_turn: int = 0
    consecutive: int = 0
    row: tuple[ToolResult, ...] = ()

    def add(self, results: Iterable[ToolResult]) -> "Failures":
        """Return the count with the results of a batch, in call order."""
        in_turn, consecutive, row = self.in_turn, self.consecutive, list(self.row)
        for result in results:
            if result.is_error:
                in_turn += 1
                consecutive += 1
                row.append(result)
            else:
                consecutive = 0
                row.clear()
        return Failures(in_turn, consecutive, tuple(row[-MAX_LISTED:]))

    def reset(self) -> "Failures":
        """Return the count after a nudge: the row begins anew, the turn's sum stays."""
        return Failures(self.in_turn)


@attrs.frozen
class LimitHit:
    """A limit was reached; `nudge` is stored and the turn goes on, or there is none and the turn fails."""

    name: str
    value: int
    nudge: UserMessage | None = None

    @property
    def error(self) -> str:
        """What a turn that fails so says."""
        return f"The turn reached the limit {self.name} of {self.value}."


def limit_hit(failures: Failures, *, per_turn: int, consecutive: int, goes_on: bool) -> LimitHit | None:
    """Look at the limits after a batch; `goes_on` is the setting `continue_on_failure_limit`."""
    if failures.in_turn >= per_turn:
        return LimitHit(PER_TURN, per_turn)
    if failures.consecutive >= consecutive:
        return LimitHit(CONSECUTIVE, consecutive, _nudge(failures) if goes_on else None)
    return None


def _nudge(failures: Failures) -> UserMessage:
    listed = "\n".join(f"- {result.name}: {_first_line(result.result)}" for result in failures.row)
    return UserMessage(
        f"The last {failures.consecutive} tool calls failed:\n{listed}\n"
        "Don't repeat them. Find out why they failed and try another way."
    )


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}..."
