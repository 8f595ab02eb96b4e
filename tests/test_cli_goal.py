"""Goals at the command line: given, shown, worked on turn after turn, and interrupted; and compacting a thread."""

import io
import json
import os
import re
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

import roder_trio as rt
from roder_trio import goals, providers, stores
from roder_trio.cli.goal import goal_in, goal_patch
from roder_trio.cli.report import goal_words
from roder_trio.cli.terminal import Terminal
from tests.loopback import HANG, STREAM, Server, call, delta, ending, refusal, serving
from tests.program import journal
from tests.test_cli import call as command
from tests.test_cli import store, texts, thread_of
from tests.test_cli_process import read_rest, read_until, start

__all__ = ["store"]

Capture = pytest.CaptureFixture[str]
NOW = datetime(2026, 10, 3, tzinfo=UTC)
COMPLETE = [STREAM, call("update_goal", '{"status":"complete"}')]
posix = pytest.mark.skipif(os.name != "posix", reason="terminals and signals as POSIX knows them")


def flags(server: Server) -> tuple[str, ...]:
    return ("--base-url", server.base_url, "--model", "m")


def says(text: str, tokens: int = 10) -> Sequence[bytes]:
    return [STREAM, delta(text), ending(tokens, 0)]


def untimed(text: str) -> str:
    """The text as a machine would write it that needs no time."""
    return re.sub(r"\b\d+:\d\d\b", "0:00", text)


async def goal_line(capsys: Capture, thread: str) -> str:
    """What `goal show` prints first."""
    capsys.readouterr()
    await command("goal", "show", thread)
    return untimed(capsys.readouterr().out.partition("\n")[0])


async def new_thread(capsys: Capture) -> str:
    assert await command("run", "hello") == 0
    return thread_of(capsys.readouterr().err)


# -- looking after a goal ----------------------------------------------------------------------------------------------


async def test_a_goal_is_set_shown_changed_and_cleared_and_no_turn_begins(capsys: Capture) -> None:
    thread = await new_thread(capsys)
    assert await command("goal", "set", thread, "prove it", "--budget", "500") == 0
    assert capsys.readouterr().out == "active: 0 of 500 tokens, 0:00\n"
    assert await command("goal", "show", thread) == 0
    assert capsys.readouterr().out == "active: 0 of 500 tokens, 0:00, $0.00\nprove it\n"
    assert await command("goal", "set", thread, "--no-budget", "--status", "paused") == 0
    assert capsys.readouterr().out == "paused: 0 tokens, 0:00\n"
    assert await command("goal", "show", thread, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["objective"], shown["status"], shown.get("token_budget")) == ("prove it", "paused", None)
    assert [await command("goal", "clear", thread), await command("goal", "clear", thread)] == [0, 1]
    assert capsys.readouterr().err == "the goal was cleared\nthere is no goal to clear\n"
    assert await command("goal", "show", thread) == 1
    assert capsys.readouterr().err == "the thread has no goal\n"
    assert await command("goal", "show", thread, "--json") == 1
    assert capsys.readouterr().out == "null\n"
    await command("threads", "usage", thread)
    assert capsys.readouterr().out.count("completed") == 1


@pytest.mark.parametrize(
    ("tokens", "code", "words"),
    [
        (("set", "THREAD"), 2, "the thread has no goal yet"),
        (("set", "THREAD", " "), 2, "objective must be text"),
        (("set", "THREAD", "x", "--budget", "0"), 2, "--budget must be a number of tokens above 0"),
        (("set", "THREAD", "x", "--budget", "5", "--no-budget"), 2, "exclude each other"),
        (("set", "THREAD", "x", "--status", "done"), 2, "done"),
        (("set", "nobody", "x"), 1, "can't set the goal: There is no active thread 'nobody'"),
        (("show", "nobody"), 1, "can't show the goal"),
        (("resume", "THREAD"), 1, "the thread has no goal; give it one"),
        (("resume", "nobody"), 1, "can't work on the goal"),
        (("resume", "THREAD", "--thread", "other"), 2, "named twice"),
    ],
)
async def test_what_can_not_be_done_is_said_in_a_line(
    capsys: Capture, tokens: tuple[str, ...], code: int, words: str
) -> None:
    thread = await new_thread(capsys)
    assert await command("goal", *(thread if token == "THREAD" else token for token in tokens)) == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


async def test_what_is_shown_of_a_goal_is_what_the_runtime_reads(tmp_path: Path) -> None:
    held = stores.MemoryThreadStore()
    engine = providers.Offline()
    async with rt.open_runtime(engines=[engine], store=held) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        await runtime.thread_goal_set(thread_id, goals.GoalPatch(objective="x", token_budget=10))
        await runtime.run_turn(thread_id, "hello")
        read = await runtime.thread_goal_get(thread_id)
        snapshot = await runtime.load_thread(thread_id)
        assert snapshot is not None
        assert goal_in(snapshot) == read


def test_a_change_that_names_nothing_keeps_the_budget() -> None:
    assert goal_patch(None, None).token_budget is goals.UNSET
    assert goal_patch("x", None, no_budget=True).token_budget is None


# -- working on one ----------------------------------------------------------------------------------------------------


async def test_a_goal_is_worked_on_until_the_model_completes_it(capsys: Capture) -> None:
    async with serving(says("First."), says("Second."), COMPLETE, says("Done.")) as server:
        assert await command("run", "start here", "--goal", "prove it", "--budget", "500", *flags(server)) == 0
    out, err = capsys.readouterr()
    assert out == "First.\nSecond.\nDone.\n"
    err = untimed(err)
    assert "turn 1, 0 of 500 tokens, 0:00\n" in err
    assert "turn 2, 10 of 500 tokens, 0:00\n" in err
    assert "turn 3, 20 of 500 tokens, 0:00\n" in err
    assert "tool update_goal: done" in err
    assert "goal complete after 3 turns, 22 of 500 tokens, 0:00, at least $0.00\n" in err
    first, second = texts(server.requests)[:2]
    assert "start here" in first
    assert any("prove it" in text for text in first)
    assert "Continue with the next step towards this goal." in second[-1]


async def test_offline_a_goal_ends_at_its_budget_which_is_raised_under_the_same_goal(capsys: Capture) -> None:
    assert await command("run", "--goal", "prove it", "--budget", "1500") == 1
    out, err = capsys.readouterr()
    assert "prove it" in out
    thread = thread_of(err)
    assert "goal budget_limited after 2 turns, " in err
    assert f"raise its budget: roder-trio goal resume {thread} --budget TOKENS\n" in err
    assert await command("goal", "resume", thread, "--budget", "3000") == 1
    assert "goal budget_limited after 1 turn, " in capsys.readouterr().err
    await command("goal", "show", thread, "--json")
    shown = json.loads(capsys.readouterr().out)
    await command("threads", "usage", thread)
    assert capsys.readouterr().out.splitlines()[-1].split()[-2:-1] == [str(shown["tokens_used"])]


async def test_a_model_that_does_nothing_blocks_the_goal(capsys: Capture) -> None:
    async with serving(says("I could.")) as server:
        assert await command("run", "--goal", "prove it", *flags(server)) == 1
    err = untimed(capsys.readouterr().err)
    assert "goal blocked after 3 turns, 30 tokens, 0:00, at least $0.00\n" in err
    assert "once what blocks it is out of the way: roder-trio goal resume" in err
    assert len(server.requests) == 3


async def test_a_turn_that_fails_ends_the_work(capsys: Capture) -> None:
    async with serving(says("First."), [refusal("401 Unauthorized", "no such key")]) as server:
        assert await command("run", "go", "--goal", "prove it", *flags(server)) == 1
    err = capsys.readouterr().err
    assert "the turn failed (authentication)" in err
    assert "goal blocked after 2 turns" in err


async def test_each_event_of_the_work_is_a_line_of_json_if_asked_for(capsys: Capture) -> None:
    async with serving(says("First."), COMPLETE, says("Done.")) as server:
        assert await command("run", "go", "--goal", "prove it", "--json", *flags(server)) == 0
    told = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    kinds = [event["type"] for event in told]
    assert kinds.count("turn.started") == kinds.count("turn.completed") == 2
    assert "goal.updated" in kinds


async def test_a_goal_of_an_existing_thread_is_worked_on(capsys: Capture) -> None:
    thread = await new_thread(capsys)
    async with serving(COMPLETE, says("Done.")) as server:
        assert await command("run", "--goal", "prove it", "--thread", thread, *flags(server)) == 0
    assert await goal_line(capsys, thread) == "complete: 2 tokens, 0:00, at least $0.00"


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("go", "--budget", "5"), "--budget is that of a goal"),
        (("--goal", "x", "--budget", "-1"), "--budget must be"),
        (("--goal", " "), "objective must be text"),
        ((), "the prompt is empty"),
    ],
)
async def test_a_run_that_can_not_work_is_called_wrongly(capsys: Capture, tokens: tuple[str, ...], words: str) -> None:
    assert await command("run", *tokens) == 2
    assert words in capsys.readouterr().err


async def test_a_goal_that_is_cleared_meanwhile_is_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rt.Runtime.continue_goal

    async def clear_first(self: rt.Runtime, thread_id: str) -> str | None:
        await self.thread_goal_clear(thread_id)
        return await real(self, thread_id)

    monkeypatch.setattr(rt.Runtime, "continue_goal", clear_first)
    async with serving(says("First.")) as server:
        assert await command("run", "go", "--goal", "prove it", *flags(server)) == 1
    assert "the goal was cleared\n" in capsys.readouterr().err


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


@posix
async def test_ctrl_c_interrupts_the_turn_and_pauses_the_goal_which_goes_on_later(tmp_path: Path) -> None:
    hanging = [STREAM, delta("Half an "), delta("ans"), HANG]
    async with serving(says("First."), hanging) as server, trio.open_nursery() as nursery:
        process = await start(nursery, tmp_path, "run", "go", "--goal", "x", "--store", "here", *flags(server))
        assert process.stdout is not None
        assert process.stderr is not None
        with trio.fail_after(60):
            await read_until(process.stdout, b"Half an ans")
            process.send_signal(signal.SIGINT)
            err = await read_rest(process.stderr)
            assert await process.wait() == 1
    thread = journal(tmp_path).stem
    assert "interrupted (user)" in err
    assert "goal paused after 2 turns, 10 tokens" in err
    assert f"to go on: roder-trio goal resume {thread}" in err
    async with serving(COMPLETE, says("Done.")) as server:
        assert await command("goal", "resume", thread, "--store", str(tmp_path / "here"), *flags(server)) == 0


async def test_ctrl_c_between_two_turns_pauses_the_goal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rt.Runtime.thread_cost

    async def press(self: rt.Runtime, thread_id: str, *, goal: bool = False) -> rt.Cost:
        if not goal:
            signal.raise_signal(signal.SIGINT)
        await trio.testing.wait_all_tasks_blocked()
        return await real(self, thread_id, goal=goal)

    monkeypatch.setattr(rt.Runtime, "thread_cost", press)
    async with serving(says("First."), says("Second.")) as server:
        assert await command("run", "go", "--goal", "x", *flags(server)) == 1
    assert "goal paused after 1 turn, 10 tokens" in capsys.readouterr().err
    assert len(server.requests) == 1


@pytest.mark.parametrize("prompt", [("go",), ()], ids=["the second", "the first"])
async def test_ctrl_c_while_a_turn_begins_interrupts_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, prompt: tuple[str, ...]
) -> None:
    real = rt.Runtime.continue_goal

    async def press(self: rt.Runtime, thread_id: str) -> str | None:
        turn_id = await real(self, thread_id)
        signal.raise_signal(signal.SIGINT)
        await trio.testing.wait_all_tasks_blocked()
        return turn_id

    monkeypatch.setattr(rt.Runtime, "continue_goal", press)
    hanging = [STREAM, delta("So far"), HANG]
    async with serving(*([says("First.")] if prompt else []), hanging) as server:
        assert await command("run", *prompt, "--goal", "x", *flags(server)) == 1
    turns = "2 turns" if prompt else "1 turn"
    assert f"goal paused after {turns}" in capsys.readouterr().err


# -- the line that tells how far it is ---------------------------------------------------------------------------------


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def live(monkeypatch: pytest.MonkeyPatch, kind: str = "xterm") -> tuple[Terminal, Tty, Tty]:
    monkeypatch.setenv("TERM", kind)
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, err = Tty(), Tty()
    return Terminal(out, err), out, err


def test_the_line_is_replaced_by_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, out, err = live(monkeypatch)
    terminal.progress("turn 1")
    terminal.progress("turn 1, later")
    assert err.getvalue() == "\rturn 1\x1b[K\rturn 1, later\x1b[K"
    terminal.line("an answer")
    assert (out.getvalue(), err.getvalue()[-4:]) == ("an answer\n", "\r\x1b[K")


def test_the_line_stays_out_of_an_answer_and_of_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, _, err = live(monkeypatch)
    terminal.say("half a line")
    terminal.progress("turn 1")
    assert err.getvalue() == ""
    terminal.say(" and its end\n")
    terminal.ask("run it? ")
    terminal.progress("turn 1")
    assert err.getvalue() == "run it? "


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_can_not_replace_a_line_gets_none(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    terminal, _, err = live(monkeypatch, kind)
    terminal.progress("turn 1")
    assert (terminal.is_live, err.getvalue()) == (False, "")


def test_the_line_fits_the_terminal_and_holds_no_control_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal, _, err = live(monkeypatch)
    terminal.progress("a\x1b[2Jb\n" + "x" * 50)
    assert err.getvalue() == "\ra[2Jb " + "x" * 13 + "\x1b[K"


class Watched(Tty):
    """Presses Ctrl-C once `words` were shown so many times."""

    def __init__(self, words: str, count: int) -> None:
        super().__init__()
        self.words, self.count = words, count

    def write(self, text: str) -> int:
        self.count -= self.words in text
        if self.count == 0:
            self.count = -1
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


async def test_the_line_is_shown_at_each_turn_and_anew_while_the_model_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, err = Tty(), Watched("\rturn 1, 0 of 500 tokens, ", 4)
    monkeypatch.setattr(Terminal, "standard", lambda: Terminal(out, err))
    monkeypatch.setattr("roder_trio.cli.pursuit.TICK", 0.01)
    async with serving([STREAM, HANG]) as server:
        assert await command("run", "--goal", "prove it", "--budget", "500", *flags(server)) == 1
    assert "goal paused after 1 turn" in err.getvalue()
    assert out.getvalue() == ""


def test_a_goal_in_words() -> None:
    goal = goals.Goal(
        goal_id="g",
        thread_id="t",
        objective="x",
        status=goals.GoalStatus.ACTIVE,
        created_at=NOW,
        updated_at=NOW,
        tokens_used=1234,
        time_used=125.9,
    )
    assert goal_words(goal) == "1234 tokens, 2:05"


# -- compacting --------------------------------------------------------------------------------------------------------


async def test_a_thread_is_compacted_and_its_tokens_are_told(capsys: Capture) -> None:
    thread = await new_thread(capsys)
    assert await command("compact", thread, "--hint", "keep the number") == 0
    out, err = capsys.readouterr()
    assert out.startswith("compacted (native): about ")
    assert " tokens before, " in out
    assert "usage: " in err
    await command("threads", "show", thread)
    assert await command("run", "go on", "--thread", thread) == 0


async def test_what_needs_no_compaction_is_told_so(capsys: Capture, tmp_path: Path) -> None:
    place = tmp_path / "store"
    async with rt.open_runtime(store=stores.JsonlThreadStore(place)) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
    assert await command("compact", thread_id, "--store", str(place)) == 0
    assert capsys.readouterr().out == "not compacted (empty_transcript): about 0 tokens\n"


async def test_a_thread_that_is_not_there_can_not_be_compacted(capsys: Capture) -> None:
    assert await command("compact", "nobody") == 1
    assert "can't compact the thread: There is no active thread 'nobody'" in capsys.readouterr().err
