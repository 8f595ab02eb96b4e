"""The one decision: state, request and facts in; what is stored, done and answered out.

Refuses by raising `CommandRefused`, with nothing changed; `DEFERRED` says that the request waits.
"""

from collections.abc import Callable, Mapping
from typing import Any

from roder_trio.errors import NoActiveTurn, ThreadNotFound
from roder_trio.logic.thread import admission, compactions, goals, host, tools, turns
from roder_trio.logic.thread.facts import Decision, Deferred, Facts
from roder_trio.logic.thread.goals import read_goal
from roder_trio.logic.thread.state import ThreadState
from roder_trio.schema import command as c

Handler = Callable[[ThreadState, Any, Facts], Decision | Deferred]

_HANDLERS: Mapping[type, Handler] = {
    c.StartTurn: admission.start_turn,
    c.ContinueGoal: admission.continue_goal,
    c.Compact: admission.compact,
    c.Steer: turns.steer,
    c.Interrupt: turns.interrupt,
    c.WaitTurn: turns.wait_turn,
    c.ItemsDone: turns.items_done,
    c.TakeSteers: turns.take_steers,
    c.StepEnded: turns.step_ended,
    c.FinalStep: turns.final_step,
    c.ToolResultsDone: turns.tool_results_done,
    c.RecordCompaction: compactions.record_compaction,
    c.PruneContext: compactions.prune_context,
    c.CommitCompaction: compactions.commit_compaction,
    c.JobEnded: turns.job_ended,
    c.RecordToolEvents: tools.record_tool_events,
    c.RequestApproval: tools.request_approval,
    c.RequestExternal: tools.request_external,
    c.ResolveApproval: tools.resolve_approval,
    c.ResolveExternal: tools.resolve_external,
    c.ChangePolicy: tools.change_policy,
    c.GetGoal: lambda state, command, facts: Decision(reply=read_goal(state, facts)),
    c.SetGoal: goals.set_goal,
    c.AskGoal: goals.ask_goal,
    c.ClearGoal: goals.clear_goal,
    c.ItemExists: host.item_exists,
    c.LatestIndex: host.latest_index,
    c.PersistItem: host.persist_item,
    c.RecordItemEvent: host.record_item_event,
    c.UpdateThread: host.update_thread,
    c.GetState: host.get_state,
    c.SetState: host.set_state,
    c.Checkpoint: host.checkpoint,
    c.Touch: lambda state, command, facts: Decision(reply=True),
}

_OF_NO_THREAD: Mapping[type, Any] = {
    c.Archive: False,
    c.ResolveApproval: False,
    c.ResolveExternal: False,
    c.Checkpoint: None,
    c.ClearGoal: False,
    c.GetGoal: None,
    c.Interrupt: None,
    c.ItemExists: False,
    c.LatestIndex: None,
    c.Touch: None,
}


_OF_THE_OPEN_TURN = (c.ItemsDone, c.TakeSteers, c.PruneContext, c.StepEnded, c.FinalStep, c.ToolResultsDone)


def decide(state: ThreadState, payload: Any, facts: Facts) -> Decision | Deferred:
    """Decide one request on a thread. A late word of an old turn is dropped."""
    if isinstance(payload, _OF_THE_OPEN_TURN) and not state.is_open(payload.turn_id):
        return Decision()
    decision = _HANDLERS[type(payload)](state, payload, facts)
    return decision if isinstance(decision, Deferred) else goals.store_budget(state, facts, decision)


def answer_of_no_thread(thread_id: str, payload: Any) -> Any:
    """Answer a request on a thread that doesn't exist: reads are empty, writes raise ThreadNotFound."""
    if isinstance(payload, c.Steer):
        raise NoActiveTurn(payload.turn_id)
    if type(payload) not in _OF_NO_THREAD:
        raise ThreadNotFound(thread_id)
    return _OF_NO_THREAD[type(payload)]
