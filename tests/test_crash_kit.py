"""The crash kit: victims die where they are told to, and a store that forgets what it acknowledged is found out."""

import re
import sys
from functools import partial

import pytest

from roder_trio.testing import Crash, CrashPoint, check_crashes, crash, open_victims
from tests import crash_stores

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="victims are forked and killed")


@pytest.fixture(scope="module")
def victims():
    with open_victims() as opened:
        yield opened


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_victim_dies_at_the_numbered_point_with_its_last_words(victims, tmp_path, number):
    path = tmp_path / "words"
    died = victims.run(crash_stores.count_down, CrashPoint("step", number), str(path), 3)
    assert died is (number <= 3)
    assert path.exists() is died


def test_a_point_that_is_never_reached_kills_nobody(victims, tmp_path):
    assert not victims.run(crash_stores.count_down, CrashPoint("nowhere"), str(tmp_path / "words"), 3)
    Crash(CrashPoint("step", 2)).reach("step")


def test_a_victim_that_fails_or_hangs_is_an_error(victims, monkeypatch):
    with pytest.raises(AssertionError, match=r"number=1\) failed with exit code 3"):
        victims.run(crash_stores.fail, CrashPoint("step"))
    monkeypatch.setattr(crash, "VICTIM_SECONDS", 0.2)
    with pytest.raises(AssertionError, match=r"hung for 0\.2 s"):
        victims.run(crash_stores.hang, CrashPoint("step"))


def test_a_victim_that_can_not_be_found_is_told(victims, monkeypatch):
    monkeypatch.setattr(crash_stores.fail, "__module__", "__main__")
    with pytest.raises(ValueError, match="a function of a module"):
        victims.run(crash_stores.fail, CrashPoint("step"))
    with pytest.raises(AssertionError, match="failed with exit code 1"):
        victims.run(crash_stores.count_down, CrashPoint("step"), "too", "many", "arguments")
    with pytest.raises(AssertionError, match="failed with exit code 1"):
        victims.run(crash_stores.count_down, CrashPoint("step"), crash_stores.Unreadable())


@pytest.mark.parametrize("reaped", [False, True], ids=["just killed", "gone"])
def test_a_warm_process_that_has_ended_is_told(reaped):
    with open_victims() as victims:
        victims._process.kill()
        if reaped:
            victims._process.wait()
        with pytest.raises(AssertionError, match="victims are forked from has ended"):
            victims.run(crash_stores.fail, CrashPoint("step"))


async def test_a_store_that_keeps_its_promises_survives_every_crash(tmp_path):
    await check_crashes(partial(crash_stores.jsonl, tmp_path))
    points = {path.name.partition("-")[0] for path in tmp_path.iterdir()}
    assert points == {"before", "in", "after"}
    assert len(list(tmp_path.glob("before-*"))) == len(list(tmp_path.glob("after-*"))) == len(crash.BATCHES) + 1
    assert len(list(tmp_path.glob("in-*"))) > len(crash.BATCHES)


async def test_a_store_that_tears_a_batch_apart_is_found_out(tmp_path):
    with pytest.raises(AssertionError, match="crashes left something else") as failure:
        await check_crashes(partial(crash_stores.halves, tmp_path))
    told = re.findall(r"^- killed (\w+) the write", str(failure.value), re.MULTILINE)
    assert set(told) == {"in"}


async def test_a_store_that_acknowledges_what_it_only_remembers_is_found_out(tmp_path):
    with pytest.raises(AssertionError, match="the log: found") as failure:
        await check_crashes(partial(crash_stores.late, tmp_path))
    assert "- killed after the write, 1: " in str(failure.value)
