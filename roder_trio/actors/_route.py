"""Where the steps of a turn go: to the engine that was asked for, and to those that take over from it.

Every step begins with the first. Another takes over only from a failure that stands, of a kind that another provider
need not have, and only while the step has shown nothing.
"""

import logging
from collections.abc import Sequence

import attrs
import trio

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.thread.facts import EngineFacts
from roder_trio.ports import InferenceEngine
from roder_trio.schema.command import TurnPlan
from roder_trio.schema.inference import ModelDescriptor

log = logging.getLogger(__name__)

_OF_ONE_PROVIDER = (
    ProviderFailureKind.QUOTA_EXCEEDED,
    ProviderFailureKind.USAGE_LIMIT,
    ProviderFailureKind.AUTHENTICATION,
)


@attrs.frozen(eq=False)
class Substitute:
    """An engine that takes over from another, with what is known of it."""

    engine: InferenceEngine
    facts: EngineFacts


@attrs.frozen(eq=False)
class Route:
    """An engine, and the model that a turn asks there; `row` is what the catalog knows of it."""

    engine: InferenceEngine
    provider: str
    model: str
    row: ModelDescriptor | None

    def plan(self, plan: TurnPlan) -> TurnPlan:
        """Return a turn's plan as it is on this way; a level of reasoning that its model doesn't know is left out."""
        known = None if self.row is None else self.row.supported_reasoning
        level = plan.reasoning if not known or plan.reasoning in known else None
        if (plan.provider, plan.model, plan.reasoning) == (self.provider, self.model, level):
            return plan
        return attrs.evolve(plan, provider=self.provider, model=self.model, reasoning=level)


class Routes:
    """The ways that a turn's steps may take; `current` is that of the next attempt."""

    __slots__ = ("_left", "_shown", "_substitutes", "current", "first")

    def __init__(self, first: Route, substitutes: Sequence[Substitute] = ()) -> None:
        self.first = first
        self.current = first
        self._substitutes = substitutes
        self._left = tuple(substitutes)
        self._shown = False

    def begin_step(self) -> None:
        """Go to the first engine again."""
        self.current = self.first
        self._left = tuple(self._substitutes)
        self._shown = False

    def note(self, *, shown: bool) -> None:
        """Take note of a failed attempt of the step, and whether it has shown something."""
        self._shown = self._shown or shown

    async def take_over(self, failure: ProviderFailure) -> bool:
        """Go on to the next engine after a failure that stands; False if the failure is the step's.

        An engine that can't name a model is passed over.
        """
        allowed = failure.retryable or failure.kind in _OF_ONE_PROVIDER
        while self._left and allowed and not self._shown:
            substitute, *left = self._left
            self._left = tuple(left)
            route = await _route(substitute)
            if route is not None:
                self.current = route
                return True
        await trio.lowlevel.checkpoint()
        return False


async def _route(substitute: Substitute) -> Route | None:
    engine, facts = substitute.engine, substitute.facts
    model, row = facts.default_model, None
    if model is None:
        try:
            listed = await engine.list_models()
        except Exception as error:
            log.warning("engine %s can't take over: its models could not be listed: %s", engine.id, error)
            await trio.lowlevel.checkpoint()
            return None
        if not listed:
            return None
        model, row = listed[0].id, listed[0]
    return Route(engine, engine.id, model, facts.models.get(model, row))
