"""Who is measured, and how a workload compares them."""

from collections.abc import Iterable

from bench.contestant import Contestant
from bench.measure import MILLI, Measured, Unable, interleaved, median
from bench.ours import Ours
from bench.peers.langgraph import LangGraph, LangGraphExit
from bench.peers.openai_agents import OpenAIAgents, OpenAIAgentsAsync
from bench.peers.pydantic_ai import PydanticAI

PEERS: tuple[type[Contestant], ...] = (PydanticAI, OpenAIAgents, LangGraph)
"""Each framework once, for workloads without a store."""
DURABLE: tuple[type[Contestant], ...] = (OpenAIAgents, OpenAIAgentsAsync, LangGraph)
"""The SQLite stores that hold the question before the model is asked, as ours does."""
AT_EXIT = LangGraphExit
"""Stores once, after the answer: a crash loses the question too. Told beside the others, in no budget."""
STORED: tuple[type[Contestant], ...] = (*DURABLE, AT_EXIT)


def durabilities(found: Measured) -> None:
    """Note what a stored turn survives, by contestant, and who has no store."""
    told = "; ".join(f"{one.name}: {one.durability}" for one in (Ours, *STORED))
    found.note(f"Durability: {told}.")
    try:
        PydanticAI().stored_turns(0, None)  # type: ignore[arg-type]
    except Unable as error:
        found.note(f"Can't run it: {error}.")


def stored_turns(
    found: Measured, folder: object, rounds: int, each: int, extra: dict | None = None
) -> dict[str, float]:
    """Median seconds of a stored trivial turn of each contestant, with what else takes part in the rounds."""
    callers = {one.name: (lambda one=one: one().stored_turns(each, folder)) for one in (Ours, *STORED)}
    times = {name: median(values) for name, values in interleaved(rounds, **callers, **(extra or {})).items()}
    for name, value in times.items():
        found.figures[f"{name}, ms"] = value * MILLI
    return times


def best(times: dict[str, float], contestants: Iterable[type[Contestant]]) -> float:
    """The least seconds among some contestants."""
    return min(times[one.name] for one in contestants)
