"""Whether a turn or a manual compaction may begin, and what it runs with."""

import attrs

from roder_trio.errors import (
    BadWorkspace,
    EmptyMessage,
    RuntimeDraining,
    ThreadBusy,
    UnknownProvider,
    UnsupportedOption,
)
from roder_trio.logic.goal.prompt import continuation_text
from roder_trio.logic.output import FINAL_ANSWER, OutputForm, takes_format
from roder_trio.logic.thread.draft import AppendItem, Draft, Emit
from roder_trio.logic.thread.facts import DEFERRED, Decision, Deferred, EngineFacts, Facts, Phase
from roder_trio.logic.thread.goals import read_goal
from roder_trio.logic.thread.state import ThreadState
from roder_trio.logic.tool.offer import takes_tools
from roder_trio.schema.command import (
    Compact,
    ContinueGoal,
    StartCompaction,
    StartJob,
    StartTurn,
    TurnOptions,
    TurnPlan,
)
from roder_trio.schema.event import TurnStarted
from roder_trio.schema.goal import GoalStatus
from roder_trio.schema.transcript import ProviderMetadata, UserMessage


class WorkspaceUnchecked(BadWorkspace):
    """The workspace must be looked at before the turn can begin; only who may touch files can do that."""


class ModelUnknown(UnsupportedOption):
    """Nobody named a model and the engine's default isn't known; the engine's list of models tells it."""

    def __init__(self, provider: str) -> None:
        super().__init__("model", f"no model is named and the engine {provider!r} lists none; name one by `model`")
        self.provider = provider


def start_turn(state: ThreadState, command: StartTurn, facts: Facts) -> Decision | Deferred:
    """Admit a turn: its opening is one append."""
    if facts.draining:
        raise RuntimeDraining
    if not command.message.text.strip() and not command.message.images:
        raise EmptyMessage
    _check_workspace(state, command.options, command.existing_directory, facts)
    plan, engine = choose(state, command.turn_id, command.options, facts, command.message, command.output_form)
    if command.output_form is not None and not _can_answer(plan, engine, facts):
        raise UnsupportedOption("output_type", f"the engine {plan.provider!r} can't give a structured answer here")
    if command.message.images and not engine.capabilities.image_input:
        raise UnsupportedOption("images", f"the engine {plan.provider!r} takes no images")
    if must_wait(state, facts):
        return DEFERRED
    return _begin(state, plan)


def continue_goal(state: ThreadState, command: ContinueGoal, facts: Facts) -> Decision | Deferred:
    """Admit a turn of the goal by itself, if everything allows it at this moment; else nothing happens."""
    goal = read_goal(state, facts)
    outdated = command.after is not None and command.after != state.last_turn_id
    if goal is None or goal.status is not GoalStatus.ACTIVE or facts.draining or outdated:
        return Decision()
    try:
        if must_wait(state, facts):
            return DEFERRED
    except ThreadBusy:
        return Decision()
    options = TurnOptions() if facts.last_plan is None else facts.last_plan.options
    _check_workspace(state, options, command.existing_directory, facts)
    plan, _ = choose(state, command.turn_id, options, facts)
    message = UserMessage(continuation_text(goal, facts.policy_mode))
    return _begin(state, attrs.evolve(plan, message=message, continues=state.last_turn_id), automatic=True)


def _begin(state: ThreadState, plan: TurnPlan, *, automatic: bool = False) -> Decision:
    assert plan.message is not None
    drafts: list[Draft] = [
        Emit(TurnStarted(plan.provider, plan.model, plan.reasoning, automatic), plan.turn_id),
        AppendItem(plan.turn_id, plan.message),
    ]
    if state.last_model is not None and state.last_model != (plan.provider, plan.model):
        drafts.append(AppendItem(plan.turn_id, _model_switch(state.last_model, plan)))
    return Decision(tuple(drafts), (StartJob(plan),), reply=plan.turn_id)


def _check_workspace(state: ThreadState, options: TurnOptions, existing: str | None, facts: Facts) -> None:
    workspace = options.workspace or state.metadata.workspace or facts.config.workspace
    if workspace is not None and workspace != existing:
        raise WorkspaceUnchecked(workspace)


def compact(state: ThreadState, command: Compact, facts: Facts) -> Decision | Deferred:
    """Admit a manual compaction, with the thread's own provider and model."""
    if facts.draining:
        raise RuntimeDraining
    turn_id = f"compact-{command.compaction_id}"
    plan, _ = choose(state, turn_id, TurnOptions(), facts)
    if must_wait(state, facts):
        return DEFERRED
    return Decision(effects=(StartCompaction(plan, command.compaction_id, command.hint),), reply=turn_id)


def must_wait(state: ThreadState, facts: Facts) -> bool:
    """Whether the slot is closing down. Raises ThreadBusy if a turn runs or finishes in it."""
    slot = facts.slot
    if slot.phase is Phase.IDLE:
        return False
    running = slot.phase in (Phase.RUNNING, Phase.FINISHING) and facts.cause is None
    if running and slot.turn_id is not None:
        automatic = state.open_turn is not None and state.open_turn.automatic
        raise ThreadBusy(slot.turn_id, automatic)
    return True


def choose(
    state: ThreadState,
    turn_id: str,
    options: TurnOptions,
    facts: Facts,
    message: UserMessage | None = None,
    output_form: OutputForm | None = None,
) -> tuple[TurnPlan, EngineFacts]:
    """Choose provider, model and reasoning, each by itself: argument, thread, config, default."""
    config, metadata = facts.config, state.metadata
    provider = options.provider or metadata.provider or config.default_provider or next(iter(facts.engines))
    engine = facts.engines.get(provider)
    if engine is None:
        raise UnknownProvider(provider, tuple(facts.engines))
    model = options.model or metadata.model or config.default_model or engine.default_model
    if model is None:
        raise ModelUnknown(provider)
    reasoning = options.reasoning or metadata.reasoning or config.default_reasoning
    row = engine.models.get(model)
    if reasoning and row is not None and row.supported_reasoning and reasoning not in row.supported_reasoning:
        raise UnsupportedOption("reasoning", f"{model!r} knows {', '.join(row.supported_reasoning)}")
    plan = TurnPlan(
        turn_id=turn_id,
        provider=provider,
        model=model,
        reasoning=reasoning,
        options=options,
        developer_instructions=metadata.developer_instructions,
        workspace=options.workspace or metadata.workspace or config.workspace,
        tool_allowlist=metadata.tool_allowlist,
        message=message,
        output_form=output_form,
    )
    return plan, engine


def _can_answer(plan: TurnPlan, engine: EngineFacts, facts: Facts) -> bool:
    """Whether a structured answer can be had: by a response format, or by a tool whose name is free."""
    row = engine.models.get(plan.model)
    by_tool = takes_tools(engine.capabilities, row) and FINAL_ANSWER not in facts.tool_names
    return by_tool or takes_format(engine.capabilities, row)


def _model_switch(before: tuple[str, str], plan: TurnPlan) -> ProviderMetadata:
    return ProviderMetadata(
        {
            "kind": "model_switch",
            "provider": plan.provider,
            "model": plan.model,
            "previous_provider": before[0],
            "previous_model": before[1],
        }
    )
