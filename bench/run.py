"""Run the workloads, each in a process of its own, three times, and write RESULTS.md from the medians.

Run by `make bench`. `--only W4,W7` measures some again and keeps what was found of the others, which is in
bench/.results; `--quick` measures little of each, to see that it works, and writes no RESULTS.md.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.report import report

HERE = Path(__file__).parent
KEPT = HERE / ".results"
REPETITIONS = 3
NAMES = tuple(f"W{number}" for number in range(1, 14))


def main() -> None:
    """Measure what was asked for; ends with exit code 1 if a workload could not be run."""
    asked = _arguments()
    kept = KEPT / ("quick" if asked.quick else "full")
    kept.mkdir(parents=True, exist_ok=True)
    failed = [
        name
        for repetition in range(1, (1 if asked.quick else REPETITIONS) + 1)
        for name in asked.only
        if not _run(name, repetition, kept, quick=asked.quick)
    ]
    text = report(_read(kept))
    print(text)
    if not asked.quick:
        (HERE / "RESULTS.md").write_text(text)
    if failed:
        sys.exit(f"could not be run: {', '.join(sorted(set(failed)))}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="workloads, such as W4,W7")
    asked = parser.parse_args()
    asked.only = [name.strip().upper() for name in asked.only.split(",") if name.strip()] or NAMES
    for name in asked.only:
        if name not in NAMES:
            parser.error(f"no workload is named {name}; there are {', '.join(NAMES)}")
    return asked


def _run(name: str, repetition: int, kept: Path, *, quick: bool) -> bool:
    """Run one workload once and keep what it found."""
    command = [sys.executable, "-m", "bench.worker", f"w{int(name[1:]):02}", "--folder", str(KEPT)]
    began = time.monotonic()
    done = subprocess.run(
        command + ["--quick"] * quick, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False
    )
    print(f"{name} run {repetition}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    if done.returncode:
        return False
    (kept / f"{name}-{repetition}.json").write_text(done.stdout.strip().splitlines()[-1])
    return True


def _read(kept: Path) -> dict[str, list[dict[str, Any]]]:
    """What is known of each workload, by its name, repetition by repetition."""
    found = {name: [json.loads(path.read_text()) for path in sorted(kept.glob(f"{name}-*.json"))] for name in NAMES}
    return {name: runs for name, runs in found.items() if runs}


if __name__ == "__main__":
    main()
