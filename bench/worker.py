"""One run of one workload in a process of its own: `python -m bench.worker w04 [--quick]` prints it as JSON."""

import argparse
import importlib
import json
import tempfile
from pathlib import Path

import attrs

from bench.measure import Scale, machine_facts, versions


def main() -> None:
    """Run it in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    workload = importlib.import_module(f"bench.workloads.{asked.workload}")
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        found = workload.measure(Scale(asked.quick), Path(folder))
        facts = machine_facts(Path(folder))
    print(json.dumps(attrs.asdict(found) | {"machine": facts, "versions": versions(), "quick": asked.quick}))


if __name__ == "__main__":
    main()
