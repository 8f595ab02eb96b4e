"""Decisions on turns of a goal that nobody asked for: when one begins, and what an interrupt means between two."""

import attrs
import pytest

from roder_trio.logic.thread.admission import WorkspaceUnchecked
from roder_trio.logic.thread.decide import decide
from roder_trio.logic.thread.draft import AppendItem, Emit
from roder_trio.logic.thread.facts import DEFERRED, Decision, Phase, Slot
from roder_trio.logic.thread.goals import goal_note
from roder_trio.schema import command as c
from roder_trio.schema.config import GoalConfig, RuntimeConfig
from roder_trio.schema.event import GoalCleared, GoalUpdated, TurnCompleted, TurnStarted
from roder_trio.schema.goal import GoalCause, GoalPatch, GoalStatus
from roder_trio.schema.transcript import UserMessage
from tests.thread_support import ANSWER, Desk

NEXT = c.ContinueGoal(turn_id="v", after="u")
NOTHING = Decision()


def after_turn(**patch: object) -> Desk:
    """A thread whose turn u of an active goal has completed, and is gone."""
    desk = Desk()
    desk.do(c.SetGoal("g", GoalPatch("prove it", **patch)))
    desk.start()
    desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    desk.do(c.JobEnded("u", c.Finished()))
    return desk


def test_a_turn_that_completes_asks_for_the_next_one_of_its_goal():
    desk = Desk()
    desk.do(c.SetGoal("g", GoalPatch("x", token_budget=10)))
    desk.start()
    final = c.FinalStep("u", (ANSWER,), "stop")
    assert desk.decide(final).effects == (c.EndTurn("u"), c.ContinueLater("u"))
    still = RuntimeConfig(goals=GoalConfig(auto_continue=False))
    assert desk.decide(final, config=still).effects == (c.EndTurn("u"),)
    desk.use(10)
    assert desk.decide(final).effects == (c.EndTurn("u"),)
    desk.do(c.ClearGoal())
    assert desk.decide(final).effects == (c.EndTurn("u"),)


def test_its_opening_is_its_start_and_its_prompt_in_one_decision():
    desk = after_turn()
    decision = desk.decide(NEXT)
    started, prompt = decision.drafts
    assert started == Emit(TurnStarted("one", "m", None, automatic=True), "v")
    assert isinstance(prompt, AppendItem)
    assert isinstance(prompt.item, UserMessage)
    assert (prompt.turn_id, "prove it" in prompt.item.text) == ("v", True)
    [job] = decision.effects
    assert (job.plan.turn_id, job.plan.continues, job.plan.message) == ("v", "u", prompt.item)
    assert decision.reply == "v"


@pytest.mark.parametrize(
    "patch",
    [GoalPatch(status="paused"), GoalPatch(status="blocked"), GoalPatch(status="complete"), c.ClearGoal()],
    ids=str,
)
def test_without_an_active_goal_none_begins(patch):
    desk = after_turn()
    desk.do(patch if isinstance(patch, c.ClearGoal) else c.SetGoal("h", patch))
    assert desk.decide(NEXT) == NOTHING
    assert Desk().decide(c.ContinueGoal(turn_id="v")) == NOTHING


def test_an_exhausted_goal_begins_none_though_that_is_not_stored_yet():
    desk = after_turn(token_budget=10)
    desk.state.opening_tokens = 10
    assert desk.state.goal is not None
    assert (desk.state.goal.status, desk.goal.status) == (GoalStatus.ACTIVE, GoalStatus.BUDGET_LIMITED)
    assert desk.decide(NEXT) == NOTHING


def test_one_that_follows_a_turn_which_is_not_the_last_any_more_is_dropped():
    desk = after_turn()
    desk.start("w")
    assert desk.decide(NEXT) == NOTHING
    desk.do(c.FinalStep("w", (ANSWER,), "stop"))
    desk.do(c.JobEnded("w", c.Finished()))
    assert desk.decide(NEXT) == NOTHING
    assert desk.decide(attrs.evolve(NEXT, after="w")) != NOTHING
    assert desk.decide(attrs.evolve(NEXT, after=None)) != NOTHING


def test_none_begins_while_the_runtime_drains_or_a_turn_runs_and_it_waits_for_a_slot_that_closes():
    desk = after_turn()
    assert desk.decide(NEXT, draining=True) == NOTHING
    for phase, waits in ((Phase.RUNNING, False), (Phase.FINISHING, False), (Phase.CLOSING, True)):
        facts = desk.facts(slot=Slot(phase, "u"))
        assert decide(desk.state, NEXT, facts) == (DEFERRED if waits else NOTHING)
    assert decide(desk.state, NEXT, desk.facts(slot=Slot(Phase.COMPACTING, "compact-k"))) is DEFERRED


def test_it_runs_with_the_options_of_the_last_turn_and_never_with_its_message():
    desk = after_turn()
    options = c.TurnOptions(provider="two", model="n", instructions="be brief", workspace="/w")
    last = c.TurnPlan(turn_id="u", provider="two", model="n", options=options, message=UserMessage("hello"))
    with pytest.raises(WorkspaceUnchecked):
        desk.decide(NEXT, last_plan=last)
    known = attrs.evolve(NEXT, existing_directory="/w")
    decision = desk.decide(known, last_plan=attrs.evolve(last, output_form="a form"))
    [job] = decision.effects
    assert (job.plan.provider, job.plan.model, job.plan.options, job.plan.workspace) == ("two", "n", options, "/w")
    assert (job.plan.output_form, job.plan.message == last.message) == (None, False)
    assert len(decision.drafts) == 3


# -- an interrupt between two turns ------------------------------------------------------------------------------------


def test_an_interrupt_of_the_turn_that_ended_pauses_the_goal_while_a_continuation_waits():
    desk = after_turn()
    decision = desk.decide(c.Interrupt("u", "user"), continues_after="u")
    [update] = decision.drafts
    assert isinstance(update, Emit)
    assert isinstance(update.event, GoalUpdated)
    assert (update.event.goal.status, update.event.cause) == (GoalStatus.PAUSED, GoalCause.HOST)
    assert (decision.effects, decision.reply) == ((), None)


@pytest.mark.parametrize(
    ("turn_id", "reason", "waits"), [("w", "user", "u"), ("u", "caller_left", "u"), ("u", "user", None)]
)
def test_any_other_interrupt_of_a_turn_that_ended_does_nothing(turn_id, reason, waits):
    assert after_turn().decide(c.Interrupt(turn_id, reason), continues_after=waits) == NOTHING


def test_a_goal_that_is_not_active_is_not_paused():
    desk = after_turn()
    desk.do(c.ClearGoal())
    assert isinstance(desk.events[-1], GoalCleared)
    assert desk.decide(c.Interrupt("u", "user"), continues_after="u") == NOTHING


def test_an_interrupt_of_the_turn_before_reaches_the_continuation_and_what_waits_behind_it():
    desk = after_turn()
    desk.do(NEXT)
    [cancel, _] = desk.decide(c.Interrupt("u", "user")).effects
    assert cancel == c.CancelJob("user")
    assert desk.decide(c.Interrupt("u", "caller_left")) == NOTHING
    desk.do(c.FinalStep("v", (ANSWER,), "stop"))
    assert isinstance(desk.events[-1], TurnCompleted)
    [update] = desk.decide(c.Interrupt("u", "user"), continues_after="v").drafts
    assert isinstance(update, Emit)
    assert isinstance(update.event, GoalUpdated)
    assert update.event.goal.status is GoalStatus.PAUSED


# -- what a model asks -------------------------------------------------------------------------------------------------


def test_a_model_that_reads_stores_nothing_and_one_that_is_refused_neither():
    desk = after_turn()
    asks = c.AskGoal(turn_id="u", goal_id="h")
    assert desk.decide(asks).drafts == ()
    assert desk.decide(asks).reply.goal == desk.goal
    refused = desk.decide(attrs.evolve(asks, patch=GoalPatch("y"), creates=True))
    assert (refused.drafts, refused.reply.goal) == ((), desk.goal)
    assert "unfinished" in refused.reply.refusal
    nothing = Desk().decide(attrs.evolve(asks, patch=GoalPatch(status="complete")))
    assert (nothing.drafts, nothing.reply.refusal) == ((), "there is no goal")


def test_where_no_turn_runs_nothing_is_said_of_the_goal():
    desk = after_turn()
    assert goal_note(desk.state, desk.facts()) is None
