"""A sample of the soak: a few of its schedules on SQLite and on journals, and that its checks see what they are for."""

import os
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import roder_trio as rt
from roder_trio.testing import Victims, open_victims
from roder_trio.testing._sample import Sample
from tests.soak import laws
from tests.soak.diary import Append, Diary, Said, read_diary
from tests.soak.flows import FAMILIES, FLOWS, INTERVAL, STEP, Stage
from tests.soak.schedule import (
    PLACES,
    WRITES,
    Kill,
    Life,
    Schedule,
    Session,
    Task,
    family_of,
    random_schedule,
    swept,
    tasks_of,
)
from tests.soak.trial import Counts, Trial
from tests.soak.worker import run_schedule, storage_of

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="the soak forks its victims"), pytest.mark.unmeasured]

TALK = Session("plain", ((0, "talk, completed"),))
TALKS = Session("plain", (*TALK.work, (1, "calls")))


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    with open_victims() as warm:
        yield warm


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("store", ["sqlite", "jsonl"])
def test_lives_that_end_at_random_leave_what_they_were_told(victims: Victims, store: str, seed: int):
    counts = run_schedule(victims, random_schedule(seed), store)
    assert counts.lives >= 2
    assert counts.threads > 0


@pytest.mark.parametrize("place", WRITES)
def test_a_turn_whose_process_dies_at_each_of_its_writes_is_closed_once(victims: Victims, place: str):
    number, counts = 0, Counts()
    for schedule in swept("calls", place):
        number += 1
        done = run_schedule(victims, schedule, "sqlite")
        counts += done
        if not done.kills:
            break
    assert counts.kills == number - 1 > 8
    assert counts.restarts > 3


def test_text_that_was_shown_is_stored_one_interval_later(victims: Victims, tmp_path: Path):
    trial = Trial(victims, storage_of("sqlite", tmp_path), tmp_path)
    lives = (Life((TALK,), Kill("before", 7)), Life((TALK,)))
    assert trial.run(Schedule("two talks", lives)).kills == 1
    first, second = (read_diary(tmp_path / f"{number}.diary") for number in range(2))
    assert INTERVAL < first.said[-1].at <= first.clock
    assert INTERVAL < second.said[-1].at <= second.clock


def test_time_stands_still_while_text_is_due(tmp_path: Path):
    clock = MockClock()

    async def talk() -> None:
        stage = Stage(clock, Diary(tmp_path / "diary"))
        stage.begin("t")
        stage.show("t", "u", 5)
        while trio.current_time() < INTERVAL:
            await stage.turn_clock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.turn_clock)
            await wait_all_tasks_blocked()
            assert trio.current_time() == INTERVAL
            stage.store("t", 5)
        assert trio.current_time() == INTERVAL + STEP

    trio.run(talk, clock=clock)


# -- the checks --------------------------------------------------------------------------------------------------------


def empty(thread_id: str) -> rt.ThreadSnapshot:
    return rt.ThreadSnapshot(metadata=Sample(thread_id).metadata())


def batch(number: int, *ids: str, stored: bool = True) -> Append:
    return Append(number, "t", list(ids), ["turn.item_appended"] * len(ids), [], 0, is_stored=stored)


@pytest.mark.parametrize(
    ("appends", "found", "told"),
    [
        ([batch(1, "a", "b")], ["a"], "in part"),
        ([batch(1, "a"), batch(2, "b")], ["b"], "is lost"),
        ([batch(1, "a")], ["a", "a"], "each record once"),
        ([batch(1, "a"), batch(2, "b")], ["b", "a"], "in order"),
        ([batch(1, "a")], ["a", "x"], "each record once"),
    ],
)
def test_a_log_that_differs_from_the_diary_is_a_violation(appends: list[Append], found: list[str], told: str):
    with pytest.raises(AssertionError, match=told):
        laws.check_batches(appends, found)


def test_an_append_that_was_under_way_may_be_there_or_not():
    appends = [batch(1, "a"), batch(2, "b", "c", stored=False)]
    assert laws.check_batches(appends, ["a"]) == appends[:1]
    assert laws.check_batches(appends, ["a", "b", "c"]) == appends


def test_text_that_was_shown_and_is_not_stored_is_a_violation():
    with pytest.raises(AssertionError, match="5 characters were shown"):
        laws.check_text(empty("t"), Said("t", "u", 5, 0.0))
    laws.check_text(empty("t"), Said("t", "u", 0, 0.0))


def test_an_end_that_is_stored_before_its_usage_is_a_violation(victims: Victims, tmp_path: Path):
    trial = Trial(victims, storage_of("jsonl", tmp_path), tmp_path)
    trial.run(Schedule("talks", (Life((TALKS,)),)))
    account = read_diary(tmp_path / "0.diary")
    (thread_id,) = {append.thread_id for append in account.appends if append.billed == 18}
    appends = [append for append in account.appends if append.thread_id == thread_id]
    laws.check_usage(empty(thread_id), 0, appends)
    for append in appends:
        append.counted = 0
    with pytest.raises(AssertionError, match="before its usage is settled"):
        laws.check_usage(empty(thread_id), 0, appends)
    with pytest.raises(AssertionError):
        laws.check_usage(empty(thread_id), 18, appends)


def test_a_schedule_comes_again_from_its_name():
    tasks = tasks_of(range(25))
    assert [len(task.seeds) for task in tasks if task.seeds] == [10, 10, 5]
    assert {task.place for task in tasks if task.flow} == set(PLACES)
    assert list(Task.named("random/7").schedules()) == [random_schedule(7)]
    (third,) = Task.named("calls/cut/3").schedules()
    assert third.name == "calls/cut/3"
    assert third.lives[0].kill.number == 3
    names = [schedule.name for schedule in takewhile(lambda one: one.name != "steer/mid/3", swept("steer", "mid"))]
    assert names == ["steer/mid/1", "steer/mid/2"]
    with pytest.raises(ValueError, match="names no schedule"):
        Task.named("calls/nowhere")
    with pytest.raises(ValueError, match="needs a URL"):
        storage_of("postgres", Path())


def test_every_flow_belongs_to_a_family_so_that_it_can_be_swept():
    assert {family_of(flow) for flow in FLOWS} == set(FAMILIES)
