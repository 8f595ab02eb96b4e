"""What is stored of a compaction: that it began and how it ended, its boundary, and what was pruned instead."""

from roder_trio.errors import StaleWindow
from roder_trio.logic import pruning
from roder_trio.logic.boundary import compaction_items, has_open_call
from roder_trio.logic.estimate import estimate
from roder_trio.logic.thread.draft import AppendItem, Emit
from roder_trio.logic.thread.facts import VIEW, Decision, Facts
from roder_trio.logic.thread.state import ThreadState
from roder_trio.schema.command import CommitCompaction, PruneContext, RecordCompaction
from roder_trio.schema.event import (
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextPruned,
)
from roder_trio.schema.transcript import ProviderMetadata


def record_compaction(state: ThreadState, report: RecordCompaction, facts: Facts) -> Decision:
    """Store that a compaction began, or ended without a boundary; one that has its end gets no other."""
    match report.event:
        case ContextCompactionFailed(known) | ContextCompactionCancelled(known) if known not in state.compactions:
            return Decision(reply=VIEW)
    return Decision((Emit(report.event, report.turn_id),), reply=VIEW)


def commit_compaction(state: ThreadState, report: CommitCompaction, facts: Facts) -> Decision:
    """Store a boundary. Raises StaleWindow if the log grew meanwhile, a call is open, or the compaction has ended."""
    if report.compaction_id not in state.compactions:
        raise StaleWindow
    if len(state.history) != report.base or has_open_call(state.history.items):
        raise StaleWindow
    recorded = ContextCompactionRecorded(
        report.compaction_id, report.strategy, report.item_count, report.tokens, report.duration
    )
    return Decision((AppendItem(report.turn_id, report.item), Emit(recorded, report.turn_id)), reply=VIEW)


def prune_context(state: ThreadState, report: PruneContext, facts: Facts) -> Decision:
    """Show notices instead of old results, if that is worth it and suffices."""
    history, images = state.history, facts.slot.images
    window = history.window(facts.slot.target)
    old = pruning.results_before_newest_step(window) if report.all_old else pruning.old_results(window, images)
    known = history.places(facts.slot.target)
    places = [place for place in old if place in known]
    saved = pruning.saving(window, places, history.sums(facts.slot.target), images)
    if not places or not (report.all_old or saved.suffices(report.size, report.threshold)):
        return Decision(reply=VIEW)
    event = ContextPruned(tuple(known[place] for place in places), saved.before, saved.after)
    return Decision((Emit(event, report.turn_id),), reply=VIEW)


def in_band_recorded(turn_id: str, boundary: ProviderMetadata) -> ContextCompactionRecorded:
    """Return the end of a compaction that the provider made by itself; named as it did, else after the turn."""
    name = compaction_items(boundary.payload)[0].get("id")
    compaction_id = name if isinstance(name, str) and name else f"in-band-{turn_id}"
    return ContextCompactionRecorded(compaction_id, "in_band", 1, estimate([boundary]))
