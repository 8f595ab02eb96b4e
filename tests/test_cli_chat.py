"""The chat at the command line: turns line by line, steering, Ctrl-C, and the end of the input."""

import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.loopback import HANG, STREAM, call, delta, ending, refusal, serving
from tests.program import at_terminal, journal, piped
from tests.test_cli import call as command
from tests.test_cli_tools import WRITE, body, calling, flags, results

pytestmark = pytest.mark.skipif(os.name != "posix", reason="terminals and signals as POSIX knows them")


def says(text: str) -> list[bytes]:
    return [STREAM, delta(text), ending(5, 1)]


def asked(request: bytes) -> list[str]:
    """What the user said, as a request tells the model."""
    messages = body(request)["messages"]
    assert isinstance(messages, list)
    return [message["content"] for message in messages if message["role"] == "user"]


async def test_each_line_at_the_prompt_is_a_turn_and_the_end_of_the_input_exits_with_zero(tmp_path: Path) -> None:
    async with (
        serving(says("One."), says("Two.")) as server,
        at_terminal(tmp_path, "chat", *flags(server)) as program,
    ):
        await program.sees("> ")
        program.type("first\n")
        await program.sees("One.\n")
        await program.sees("usage: 5 prompt + 1 completion")
        await program.sees("> ")
        program.type("\n")
        await program.sees("> ")
        program.type("second\n")
        await program.sees("Two.\n")
        await program.sees("> ")
        program.type("\x04")
        assert await program.end() == 0
    assert f"\nthread: {journal(tmp_path).stem}\n" in program.seen
    assert [asked(request) for request in server.requests] == [["first"], ["first", "second"]]


async def test_a_line_typed_while_the_model_speaks_steers_it(tmp_path: Path) -> None:
    async with (
        serving([STREAM, delta("Once upon "), HANG], says("Es war einmal.")) as server,
        at_terminal(tmp_path, "chat", *flags(server)) as program,
    ):
        await program.sees("> ")
        program.type("a tale\n")
        await program.sees("Once upon ")
        program.type("in German\n")
        await program.sees("Es war einmal.\n")
        await program.sees("> ")
        program.type("\x04")
        assert await program.end() == 0
    assert asked(server.requests[1])[0::2] == ["a tale", "in German"]
    shown = await piped(tmp_path, "threads", "usage", journal(tmp_path).stem, "--store", "here")
    assert len(shown[1].splitlines()) == 3, "heading, one turn, total"


async def test_ctrl_c_interrupts_the_turn_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with (
        serving([STREAM, delta("Half an "), HANG], says("Whole.")) as server,
        at_terminal(tmp_path, "chat", *flags(server)) as program,
    ):
        await program.sees("> ")
        program.type("one\n")
        await program.sees("Half an ")
        program.process.send_signal(signal.SIGINT)
        await program.sees("interrupted (user)")
        await program.sees("> ")
        program.type("two\n")
        await program.sees("Whole.\n")
        await program.sees("> ")
        program.type("\x04")
        assert await program.end() == 0
    assert b"Half an " in server.requests[1]


@pytest.mark.parametrize("turns", [0, 1])
async def test_ctrl_c_at_the_prompt_ends_the_chat(tmp_path: Path, turns: int) -> None:
    async with serving(says("One.")) as server, at_terminal(tmp_path, "chat", *flags(server)) as program:
        await program.sees("> ")
        for _ in range(turns):
            program.type("one\n")
            await program.sees("> ")
        program.process.send_signal(signal.SIGINT)
        assert await program.end() == 1
    assert "Traceback" not in program.seen


async def test_a_second_ctrl_c_while_the_turn_still_ends_ends_the_chat(tmp_path: Path) -> None:
    stubborn = "exec 3> fifo; trap 'echo termed >&3' TERM; echo up >&3; while :; do sleep 0.1; done"
    os.mkfifo(tmp_path / "fifo")
    opened = partial(trio.to_thread.run_sync, os.open, tmp_path / "fifo", os.O_RDONLY, abandon_on_cancel=True)
    async with (
        serving(calling("shell", json.dumps({"command": stubborn}))) as server,
        at_terminal(tmp_path, "chat", *flags(server), "--policy", "accept_all") as program,
    ):
        await program.sees("> ")
        program.type("one\n")
        async with trio.lowlevel.FdStream(await opened()) as fifo:
            assert await fifo.receive_some() == b"up\n"
            program.process.send_signal(signal.SIGINT)
            assert await fifo.receive_some() in (b"termed\n", b"")  # nothing if it was killed before it could say so
            program.process.send_signal(signal.SIGINT)
            assert await program.end() == 1
    assert "Traceback" not in program.seen
    shown = await piped(tmp_path, "threads", "show", journal(tmp_path).stem, "--store", "here")
    assert "[interrupted, " in shown[1]


async def test_a_line_answers_the_question_and_steers_nothing(tmp_path: Path) -> None:
    async with (
        serving(calling("write_file", WRITE), says("Written."), says("Bye.")) as server,
        at_terminal(tmp_path, "chat", *flags(server)) as program,
    ):
        await program.sees("> ")
        program.type("write it\n")
        await program.sees("run it? [y/N] ")
        program.type("y\n")
        await program.sees("tool write_file: done")
        await program.sees("Written.\n")
        await program.sees("> ")
        program.type("\x04")
        assert await program.end() == 0
    assert (tmp_path / "new.txt").read_text() == "written by a tool"
    assert asked(server.requests[1]) == ["write it"]


async def test_after_the_end_of_the_input_the_turn_goes_on_and_every_question_is_a_no(tmp_path: Path) -> None:
    again = json.dumps({"command": "touch made"})
    async with (
        serving(calling("write_file", WRITE), calling("shell", again), says("Well.")) as server,
        at_terminal(tmp_path, "chat", *flags(server)) as program,
    ):
        await program.sees("> ")
        program.type("write it\n")
        await program.sees("run it? [y/N] ")
        program.type("\x04")
        await program.sees("Well.\n")
        assert await program.end() == 0
    assert results(server.requests[2]) == ["approval denied", "approval denied"]
    assert not (tmp_path / "new.txt").exists()
    assert not (tmp_path / "made").exists()


async def test_piped_lines_are_turns_in_their_order_and_none_steers(tmp_path: Path) -> None:
    async with serving(says("One."), says("Two."), says("Three.")) as server:
        code, out, err = await piped(tmp_path, "chat", *flags(server), stdin=b"first\n\nsecond\r\nthird")
    assert code == 0
    assert out == "One.\nTwo.\nThree.\n"
    assert "> " not in err
    assert f"thread: {journal(tmp_path).stem}\n" in err
    assert asked(server.requests[2]) == ["first", "second", "third"]


async def test_a_turn_that_fails_is_told_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with serving([refusal("401 Unauthorized", "no")], says("Two.")) as server:
        code, out, err = await piped(tmp_path, "chat", *flags(server), stdin=b"first\nsecond\n")
    assert code == 0
    assert out == "Two.\n"
    assert "the turn failed (authentication)" in err


Command = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs a command in this process and in `tmp_path`, with `stdin` piped: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    before = os.dup(0)

    async def run(*tokens: str, stdin: str = "") -> tuple[int, str, str]:
        read, write = os.pipe()
        os.dup2(read, 0)
        os.close(read)
        os.write(write, stdin.encode())
        os.close(write)
        return (await command(*tokens), *capsys.readouterr())

    yield run
    os.dup2(before, 0)
    os.close(before)


async def test_a_chat_goes_on_with_a_thread_and_piped_consent_is_refused(tmp_path: Path, here: Command) -> None:
    async with serving(says("One."), calling("write_file", WRITE), says("Two.")) as server:
        await here("chat", *flags(server), stdin="first\n")
        thread = journal(tmp_path).stem
        code, out, _ = await here("chat", *flags(server), "--thread", thread, stdin="second\n")
    assert (code, out) == (0, "Two.\n")
    assert asked(server.requests[2]) == ["first", "second"]
    assert results(server.requests[2]) == ["needs approval, and nobody can give it"]


async def test_a_chat_without_a_word_makes_no_thread(tmp_path: Path, here: Command) -> None:
    code, out, err = await here("chat", "--provider", "offline", "--store", "here")
    assert (code, out) == (0, "")
    assert "thread: " not in err
    assert not list((tmp_path / "here" / "threads").glob("*.jsonl"))


async def test_a_chat_on_a_thread_that_is_not_there_exits_with_one(here: Command) -> None:
    flags = ("--provider", "offline", "--store", "here", "--thread", "no-such-thread")
    code, out, err = await here("chat", *flags, stdin="hello\n")
    assert (code, out) == (1, "")
    assert "can't go on with the chat: There is no active thread" in err
    assert "Traceback" not in err


async def test_json_is_one_event_a_line_for_all_turns(here: Command) -> None:
    async with serving([STREAM, delta("One."), call("list_files", "{}")], says("Done."), says("Two.")) as server:
        code, out, _ = await here("chat", *flags(server), "--json", stdin="first\nsecond\n")
    assert code == 0
    kinds = [json.loads(line)["event"]["type"] for line in out.splitlines()]
    assert kinds.count("turn.completed") == 2
    assert "tool.finished" in kinds
