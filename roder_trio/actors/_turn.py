"""What the parts of one running turn share: whose turn it is, how it speaks, and why it may be told to end."""

import math

import attrs

from roder_trio.actors._job import Job, JobPort
from roder_trio.actors._route import Routes
from roder_trio.actors._services import Services
from roder_trio.logic.thread.facts import View
from roder_trio.ports import InferenceEngine
from roder_trio.schema.command import TurnPlan
from roder_trio.schema.event import Event
from roder_trio.schema.inference import ModelDescriptor
from roder_trio.schema.transcript import TranscriptItem


class TurnFailure(Exception):
    """Ends the turn as failed: an outcome on its way up. `items` replace what the step leaves; None: that is stored."""

    def __init__(self, error: str, kind: str, items: tuple[TranscriptItem, ...] | None = None) -> None:
        super().__init__(error)
        self.kind = kind
        self.items = items


@attrs.define(eq=False, kw_only=True)
class TurnScope:
    """One running turn, as its parts see it; `view` is replaced by the answer to each report."""

    services: Services
    thread_id: str
    plan: TurnPlan
    routes: Routes
    """Where its steps go; all else is the first engine's."""
    job: Job
    port: JobPort
    view: View
    context: str | None = None
    """What hooks added to the turn's developer context."""

    @property
    def turn_id(self) -> str:
        """The running turn."""
        return self.plan.turn_id

    @property
    def engine(self) -> InferenceEngine:
        """The engine that the turn asked for."""
        return self.routes.first.engine

    @property
    def model(self) -> ModelDescriptor | None:
        """What the catalog knows of the model that the turn asked for."""
        return self.routes.first.row

    @property
    def deadline(self) -> float:
        """When the turn must end, in trio's time; infinite if it has no deadline."""
        return self.job.ends_at

    @property
    def is_limited(self) -> bool:
        """Whether the turn has a deadline."""
        return self.deadline != math.inf

    @property
    def takes_images(self) -> bool:
        """Whether the engine takes images."""
        return self.engine.capabilities.image_input

    @property
    def calls_in_parallel(self) -> bool:
        """Whether calls may run side by side; a model of which nothing is told may."""
        supports = frozenset() if self.model is None else self.model.supports
        return self.services.config.parallel_tool_calls and (not supports or "parallel" in supports)

    def cut_at(self) -> float:
        """Return when the turn was told to end, in trio's time; infinite if it was not."""
        if self.job.cut_at is not None:
            return self.job.cut_at
        return self.deadline if self.job.is_cut else math.inf

    def cut_for_good(self) -> bool:
        """Whether the turn is to end."""
        return self.job.is_cut

    def cut(self) -> bool:
        """Whether what is under way is to end, for the turn's end or for new input."""
        return self.cut_for_good() or self.job.signal.pending

    def publish(self, event: Event) -> None:
        """Publish a live event of the turn."""
        self.port.publish(event)
