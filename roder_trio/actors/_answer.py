"""A turn's structured answer: whether a step that would finish the turn has it, and what follows if it doesn't."""

from typing import Any

import attrs

from roder_trio.actors._turn import TurnFailure
from roder_trio.codec.structure import structure
from roder_trio.logic import output as rules
from roder_trio.logic.turn import Step
from roder_trio.schema.inference import ToolChoice, ToolDefinition
from roder_trio.schema.transcript import ToolCall, ToolResult, TranscriptItem


@attrs.frozen
class Accepted:
    """The answer fits: what the final append holds of the step, and what is stored if the turn goes on after all."""

    value: Any
    text: str
    items: tuple[TranscriptItem, ...]
    otherwise: tuple[TranscriptItem, ...]


@attrs.frozen
class Again:
    """Another round must give the answer; `items` are what the step leaves, and what begins that round."""

    items: tuple[TranscriptItem, ...]


@attrs.define(eq=False)
class StructuredAnswer:
    """What one turn's answer must be, and how often it was asked for again."""

    form: rules.OutputForm
    by_format: bool
    """The engine takes a response format; else it answers by a call of `final_answer`."""
    retries: int
    _repairs: int = 0
    _forced: bool = False

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The schema as the request has it, for an engine that takes one."""
        return dict(self.form.schema) if self.by_format else None

    @property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """The tool that is offered beside the others, for an engine that takes no response format."""
        return () if self.by_format else (self.form.tool,)

    @property
    def tool_choice(self) -> ToolChoice:
        """The tool choice of the next request."""
        return rules.FORCED if self._forced else ToolChoice()

    def calls_in(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the calls that hold an answer; the last one counts."""
        return () if self.by_format else tuple(call for call in calls if call.name == rules.FINAL_ANSWER)

    def ask_freely(self) -> None:
        """New input came: the model may do all else again before it answers."""
        self._forced = False

    def judge(self, step: Step, given: tuple[ToolCall, ...], kept: tuple[TranscriptItem, ...]) -> Accepted | Again:
        """Judge a step that would finish the turn; `given` are its calls that hold an answer, `kept` is all else.

        Raises TurnFailure once all repairs were made in vain.
        """
        if not self.by_format and not given:
            if not self._forced:
                self._forced = True
                return Again(kept)
            return self._repair(rules.LACKING, kept)
        self._forced = False
        text = given[-1].arguments if given else step.answer
        form = self.form
        answer = rules.read_answer(form, text, step.finish_reason, lambda value: structure(value, form.kind))
        items = (*kept, *given, *rules.not_taken(given[:-1], rules.REPLACED))
        if not answer.violations:
            accepted = tuple(ToolResult(call.id, call.name, rules.ACCEPTED) for call in given[-1:])
            otherwise = (*items, *rules.not_taken(given[-1:], rules.NOT_THE_END))
            return Accepted(answer.value, text, (*items, *accepted), otherwise)
        return self._repair(answer.violations, (*items, *rules.not_taken(given[-1:], rules.INVALID)))

    def _repair(self, violations: tuple[str, ...], items: tuple[TranscriptItem, ...]) -> Again:
        if self._repairs >= self.retries:
            raise TurnFailure(rules.output_error(violations), "output_invalid", items)
        self._repairs += 1
        return Again((*items, rules.repair_message(violations)))
