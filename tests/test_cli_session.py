"""A chat in this process: who gets a line that is typed, and how questions are asked."""

import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from roder_trio import events
from roder_trio.cli.chat import converse
from roder_trio.cli.conversation import Conversation, open_conversation
from roder_trio.cli.keyboard import Keyboard
from roder_trio.cli.options import Options
from roder_trio.cli.signals import open_interrupts
from roder_trio.cli.terminal import Terminal
from tests.loopback import STREAM, Server, calls, serving
from tests.test_cli_chat import asked, says
from tests.test_cli_tools import WRITE, calling, results

TOUCH = json.dumps({"command": "touch made"})


class Screen(io.StringIO):
    """What is shown, which can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._grew = trio.Event()
        self._read = 0

    def write(self, text: str) -> int:
        self._grew.set()
        self._grew = trio.Event()
        return super().write(text)

    async def sees(self, words: str) -> None:
        with trio.fail_after(60):
            while words not in self.getvalue()[self._read :]:
                await self._grew.wait()
        self._read = self.getvalue().index(words, self._read) + len(words)


@attrs.define
class Session:
    """A running chat."""

    conversation: Conversation
    screen: Screen
    keys: int

    async def type(self, text: str) -> None:
        os.write(self.keys, text.encode())
        await trio.lowlevel.checkpoint()


def options(tmp_path: Path, server: Server, **more: Any) -> Options:
    store = str(tmp_path / "here")
    return Options(store=store, base_url=server.base_url, model="m", workspace=str(tmp_path), **more)


@asynccontextmanager
async def chatting(tmp_path: Path, server: Server, **more: object) -> AsyncIterator[Session]:
    """Run a chat as at a terminal until its input ends, which leaving the block does."""
    screen = Screen()
    terminal = Terminal(screen, screen)
    read, write = os.pipe()
    keyboard = Keyboard(read)
    try:
        async with (
            open_interrupts() as interrupts,
            open_conversation(
                terminal, interrupts, options(tmp_path, server, **more), keyboard, attended=True
            ) as conversation,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(converse, conversation, keyboard, attended=True))
            await screen.sees("> ")
            yield Session(conversation, screen, write)
            os.close(write)
            write = -1
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


async def test_a_turn_that_has_decided_to_end_makes_the_line_the_next_message(tmp_path: Path) -> None:
    async with serving(says("One."), says("Two.")) as server, chatting(tmp_path, server) as chat:
        await chat.type("first\n")
        await chat.screen.sees("> ")
        chat.conversation.turn_id = "ended"
        await chat.type("second\n")
        await chat.screen.sees("Two.\n")
        await chat.screen.sees("> ")
    assert asked(server.requests[1]) == ["first", "second"]


async def test_steers_beyond_what_a_turn_takes_are_told_and_so_are_those_that_it_never_saw(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    wait = json.dumps({"command": "echo up > fifo; sleep 100"})
    async with (
        serving(calling("shell", wait), says("Never.")) as server,
        chatting(tmp_path, server, policy="accept_all") as chat,
    ):
        await chat.type("go\n")
        await trio.to_thread.run_sync((tmp_path / "fifo").read_text)
        await chat.type("".join(f"steer {n}\n" for n in range(65)))
        await chat.screen.sees("roder-trio: the model was not told: 64 steers wait")
        conversation = chat.conversation
        assert conversation.thread_id is not None
        assert conversation.turn_id is not None
        await conversation.runtime.interrupt_turn(conversation.thread_id, conversation.turn_id)
        await chat.screen.sees("the model was not told: steer 0\n")
        await chat.screen.sees("the model was not told: steer 63\n")
        await chat.screen.sees("interrupted (user)")
        await chat.screen.sees("> ")
    assert len(server.requests) == 1


async def test_calls_that_wait_side_by_side_are_asked_about_one_after_the_other(tmp_path: Path) -> None:
    both = [STREAM, calls(("write_file", WRITE), ("shell", TOUCH))]
    async with serving(both, says("Well.")) as server, chatting(tmp_path, server) as chat:
        await chat.type("go\n")
        for nth in (1, 2):
            await chat.screen.sees("run it? [y/N] ")
            await wait_all_tasks_blocked()
            shown = chat.screen.getvalue()
            assert shown.count("[y/N]") == nth
            is_shell = shown.rpartition(" needs your consent")[0].endswith("shell")
            await chat.type("y\n" if is_shell else "n\n")
        await chat.screen.sees("Well.\n")
    assert results(server.requests[1]) == ["approval denied", "exit code: 0"]
    assert not (tmp_path / "new.txt").exists()
    assert (tmp_path / "made").exists()


async def test_a_question_that_is_resolved_elsewhere_is_withdrawn_and_the_next_line_steers(tmp_path: Path) -> None:
    async with serving(calling("write_file", WRITE), says("Well.")) as server, chatting(tmp_path, server) as chat:
        await chat.type("go\n")
        await chat.screen.sees("run it? [y/N] ")
        await chat.conversation.runtime.set_policy_mode("accept_all")
        await chat.screen.sees("\ntool write_file: done")
        assert not chat.conversation.questions.is_open
        await chat.screen.sees("> ")
    assert (tmp_path / "new.txt").exists()


async def test_a_view_that_missed_events_asks_what_still_waits(tmp_path: Path) -> None:
    async with serving(calling("write_file", WRITE), says("Well.")) as server, chatting(tmp_path, server) as chat:
        questions = chat.conversation.questions
        hear, questions.hear = questions.hear, lambda event: None  # type: ignore[method-assign]
        await chat.type("go\n")
        while not chat.conversation.runtime.pending_approvals():
            await wait_all_tasks_blocked()
        questions.hear = hear  # type: ignore[method-assign]
        assert "[y/N]" not in chat.screen.getvalue()
        questions.hear(events.Lagged(7))
        questions.hear(events.Lagged(1))
        assert chat.screen.getvalue().count("[y/N]") == 1
        await chat.type("y\n")
        await chat.screen.sees("Well.\n")
    assert (tmp_path / "new.txt").exists()


async def test_a_line_without_a_question_answers_nothing(tmp_path: Path) -> None:
    async with serving(says("One.")) as server, chatting(tmp_path, server) as chat:
        await chat.conversation.questions.answer("y")
        assert chat.conversation.thread_id is None


@pytest.mark.parametrize("line", [None, "", "no", "yess", "y y"])
async def test_anything_but_a_yes_is_a_no(tmp_path: Path, line: str | None) -> None:
    async with serving(calling("write_file", WRITE), says("Well.")) as server, chatting(tmp_path, server) as chat:
        await chat.type("go\n")
        await chat.screen.sees("run it? [y/N] ")
        await chat.conversation.questions.answer(line)
        await chat.screen.sees("failed: approval denied")
        await chat.screen.sees("Well.\n")
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("line", ["y\n", ""])
async def test_one_turn_reads_the_keyboard_only_for_an_answer(tmp_path: Path, line: str) -> None:
    read, write = os.pipe()
    screen = Screen()
    terminal, keyboard = Terminal(screen, screen), Keyboard(read)
    async with (
        serving(calling("write_file", WRITE), says("Well.")) as server,
        open_interrupts() as interrupts,
        open_conversation(terminal, interrupts, options(tmp_path, server), keyboard, attended=True) as conversation,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(conversation.questions.attend, keyboard)
        nursery.start_soon(conversation.say, "go")
        await screen.sees("run it? [y/N] ")
        os.write(write, line.encode())
        os.close(write)
        await screen.sees("thread: 6 prompt")
        nursery.cancel_scope.cancel()
    os.close(read)
    assert (tmp_path / "new.txt").exists() == bool(line)


async def test_an_interrupt_that_fails_is_told(tmp_path: Path) -> None:
    async with serving(says("One.")) as server, chatting(tmp_path, server) as chat:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chat.conversation.say, "go")
            await chat.screen.sees("One.")
        chat.conversation.runtime._core.services.lifecycle.closed = True
        await chat.conversation.interrupt("no-such-thread", "no-such-turn")
        chat.conversation.runtime._core.services.lifecycle.closed = False
        await chat.screen.sees("can't interrupt the turn, Ctrl-C again ends the program")
