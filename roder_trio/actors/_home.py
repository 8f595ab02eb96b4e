"""What an incarnation of a thread's actor needs of the cell that outlives it."""

from typing import Protocol

import trio

from roder_trio.actors._cell import Mailbox, Request
from roder_trio.actors._desk import Desk
from roder_trio.actors._job import Job
from roder_trio.errors import RoderTrioError
from roder_trio.schema.command import TurnPlan


class Home(Protocol):
    """What an incarnation needs of the cell that outlives it."""

    thread_id: str
    mailbox: Mailbox
    job: Job | None
    waiting: list[Request]
    desk: Desk
    last_plan: TurnPlan | None
    scope: trio.CancelScope | None
    """What the incarnation runs in."""
    lost: bool
    """Another owner may write the thread."""

    def lose(self) -> None:
        """Leave memory at once, writing nothing: another owner may write the thread."""

    def parting(self) -> RoderTrioError:
        """What those are told whose requests an incarnation takes with it."""

    def depart(self) -> None:
        """Take no more requests: the thread stops being resident."""
