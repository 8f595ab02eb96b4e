"""What the runs of all workloads say, as the text of RESULTS.md: each value is the median of its repetitions."""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from bench.measure import Budget, median

Runs = Sequence[dict[str, Any]]

HEAD = """# What the benchmarks measured

Written by `make bench`: each workload ran in a process of its own, {repetitions}, and each value is the median of its
repetitions. What is compared was measured in turns within one process, so the ratios say more than the milliseconds.
Peers run with their own test models, or with one that answers at once where theirs costs more, and with their own
stores. Where the time of a turn goes is told in [profile.md](profile.md).
"""


def report(found: dict[str, Runs]) -> str:
    """The whole text."""
    parts = [
        _head(found),
        "## Budgets\n",
        table(("workload", "what", "budget", "measured", "holds"), _verdicts(found)),
    ]
    for name, runs in found.items():
        parts.append(_section(name, runs))
    return "\n".join(parts)


def _head(found: dict[str, Runs]) -> str:
    counts = {len(runs) for runs in found.values()}
    latest = next(reversed(found.values()))[-1]
    repetitions = " or ".join(f"{count} times" if count > 1 else "once" for count in sorted(counts))
    facts = {**latest["machine"], **{f"version of {name}": value for name, value in latest["versions"].items()}}
    quick = "\nThese are quick runs, to see that all works: their values say nothing.\n" if latest["quick"] else ""
    return HEAD.format(repetitions=repetitions) + quick + "\n" + table(("what", "which"), facts.items())


def _verdicts(found: dict[str, Runs]) -> Iterable[tuple[str, ...]]:
    for name, runs in found.items():
        workload = _workload(name)
        for budget in workload.BUDGETS:
            value = median([run["checks"][budget.name] for run in runs])
            yield (
                f"{name} {workload.TITLE}",
                budget.name,
                _limit(budget),
                _number(value, budget.unit),
                _word(budget, value),
            )


def _section(name: str, runs: Runs) -> str:
    workload = _workload(name)
    figures = ((figure, f"{median([run['figures'][figure] for run in runs]):.4g}") for figure in runs[0]["figures"])
    parts = [f"## {name}: {workload.TITLE}\n", (workload.__doc__ or "").strip() + "\n"]
    if runs[0]["figures"]:
        parts.append(table(("measured", "median"), figures))
    parts += [f"{note}\n" for note in runs[0]["notes"]]
    missed = [one for one in workload.BUDGETS if not one.holds(median([run["checks"][one.name] for run in runs]))]
    floor = getattr(workload, "FLOOR", "")
    if missed and floor:
        parts.append(f"The floor: {floor}\n")
    return "\n".join(parts)


def _workload(name: str) -> Any:
    return importlib.import_module(f"bench.workloads.w{int(name[1:]):02}")


def _limit(budget: Budget) -> str:
    return f"at {'least' if budget.at_least else 'most'} {_number(budget.limit, budget.unit)}"


def _number(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}"


def _word(budget: Budget, value: float) -> str:
    return "yes" if budget.holds(value) else f"misses by {budget.missed_by(value):.0f} %"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)
