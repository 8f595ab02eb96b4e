"""The tools by which a model reads and moves its thread's goal: each call is one request to the thread's actor."""

from collections.abc import Mapping
from typing import Any

import attrs
import trio

from roder_trio.actors._job import JobPort
from roder_trio.actors._services import new_id
from roder_trio.errors import AppendOutcomeUnknown, StorageError, ToolError
from roder_trio.logic.goal.tool import CREATE, GET, UPDATE, GoalAnswer, answer_text
from roder_trio.logic.tool.refusal import INVALID_ARGUMENTS
from roder_trio.ports import Tool
from roder_trio.schema.command import AskGoal
from roder_trio.schema.goal import GoalPatch
from roder_trio.schema.ids import UNSET
from roder_trio.schema.tool import ToolContext, ToolOutput, ToolSpec


@attrs.frozen(eq=False)
class GoalTool(Tool):
    """One of the goal's tools; `ask` is given the way to the thread by the turn that runs it."""

    spec: ToolSpec

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolOutput:
        """Never called by the runtime. Raises ToolError."""
        await trio.lowlevel.checkpoint()
        raise ToolError(f"The tool {self.spec.name!r} works inside a turn only.")

    async def ask(self, port: JobPort, turn_id: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Ask the thread, and return its answer as the model reads it; a change is stored then.

        A refusal, and a change that could not be stored, is an error result. Raises AppendOutcomeUnknown, ActorCrashed.
        """
        try:
            question = self._question(turn_id, arguments)
        except ValueError as error:
            await trio.lowlevel.checkpoint()
            return ToolOutput(f"{INVALID_ARGUMENTS}{error}", is_error=True)
        try:
            answer: GoalAnswer = await port.report(question)
        except AppendOutcomeUnknown:
            raise
        except StorageError as error:
            return ToolOutput(f"the goal is unchanged, since it could not be stored: {error}", is_error=True)
        if answer.refusal is not None:
            return ToolOutput(f"{self.spec.name}: {answer.refusal}", is_error=True)
        return ToolOutput(answer_text(answer))

    def _question(self, turn_id: str, arguments: Mapping[str, Any]) -> AskGoal:
        if self.spec is GET:
            return AskGoal(turn_id=turn_id, goal_id=new_id())
        if self.spec is UPDATE:
            return AskGoal(turn_id=turn_id, goal_id=new_id(), patch=GoalPatch(status=arguments["status"]))
        budget = arguments.get("token_budget", UNSET)
        patch = GoalPatch(objective=arguments["objective"], token_budget=budget)
        return AskGoal(turn_id=turn_id, goal_id=new_id(), patch=patch, creates=True)


def goal_tools() -> tuple[Tool, ...]:
    """Return the goal's tools."""
    return tuple(GoalTool(spec) for spec in (GET, CREATE, UPDATE))
