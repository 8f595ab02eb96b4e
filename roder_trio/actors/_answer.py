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
    """The answer fits; `items` are what the final append holds of it."""

    value: Any
    text: str
    items: tuple[TranscriptItem, ...] = ()


@attrs.frozen
class Again:
    """Another round must give the answer; `items` begin it."""

    items: tuple[TranscriptItem, ...] = ()


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

    def call_in(self, calls: tuple[ToolCall, ...]) -> ToolCall | None:
        """Return the call that holds the answer; the last one, if the model made several."""
        if self.by_format:
            return None
        return next((call for call in reversed(calls) if call.name == rules.FINAL_ANSWER), None)

    def judge(self, step: Step, call: ToolCall | None) -> Accepted | Again:
        """Judge a step that would finish the turn. Raises TurnFailure once all repairs were made in vain."""
        if not self.by_format and call is None:
            if not self._forced:
                self._forced = True
                return Again()
            return self._repair(rules.LACKING, ())
        self._forced = False
        text = step.answer if call is None else call.arguments
        form = self.form
        answer = rules.read_answer(form, text, step.finish_reason, lambda value: structure(value, form.kind))
        if not answer.violations:
            result = () if call is None else (call, ToolResult(call.id, call.name, rules.ACCEPTED))
            return Accepted(answer.value, text, result)
        wrong = () if call is None else (call, ToolResult(call.id, call.name, rules.INVALID, is_error=True))
        return self._repair(answer.violations, wrong)

    def _repair(self, violations: tuple[str, ...], items: tuple[TranscriptItem, ...]) -> Again:
        if self._repairs >= self.retries:
            raise TurnFailure(rules.output_error(violations), "output_invalid", items)
        self._repairs += 1
        return Again((*items, rules.repair_message(violations)))
