"""Lines that are typed or piped."""

import io
import os
import sys
import threading
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from roder_trio.cli.keyboard import Keyboard, is_attended
from tests.test_cli_terminal import Tty


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that a test may close itself at the end that is written to."""
    read, write = os.pipe()
    yield read, write
    os.close(read)
    try:
        os.close(write)
    except OSError:
        return


async def test_lines_come_one_by_one_however_they_were_written(pipe: tuple[int, int]) -> None:
    read, write = pipe
    keyboard = Keyboard(read)
    os.write(write, b"one\ntwo\r\n\nth")
    assert [await keyboard.line() for _ in range(3)] == ["one", "two", ""]
    os.write(write, b"ree\nbad \xff byte\nlast")
    os.close(write)
    assert [await keyboard.line() for _ in range(4)] == ["three", "bad \ufffd byte", "last", None]
    assert await keyboard.line() is None


async def test_a_cancelled_read_leaves_at_once(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = pipe
    ended, real = threading.Event(), os.read

    def read_once(fd: int, size: int) -> bytes:
        try:
            return real(fd, size)
        finally:
            ended.set()

    monkeypatch.setattr(os, "read", read_once)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Keyboard(read).line)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    os.write(write, b"\n")
    await trio.to_thread.run_sync(ended.wait)  # else the thread that was left behind may read what is opened next


async def test_nothing_of_a_pipe_is_forgotten(pipe: tuple[int, int]) -> None:
    read, write = pipe
    keyboard = Keyboard(read)
    os.write(write, b"one\ntwo\n")
    assert await keyboard.line() == "one"
    keyboard.forget()
    assert await keyboard.line() == "two"


@pytest.mark.skipif(os.name != "posix", reason="terminals as POSIX knows them")
async def test_what_was_typed_at_a_terminal_is_forgotten() -> None:
    ours, theirs = os.openpty()
    try:
        keyboard = Keyboard(theirs)
        os.write(ours, b"before\n")
        await trio.lowlevel.wait_readable(theirs)
        keyboard.forget()
        os.write(ours, b"after\n")
        assert await keyboard.line() == "after"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("stdin", "stderr", "expected"),
    [(Tty(), Tty(), True), (Tty(), io.StringIO(), False), (io.StringIO(), Tty(), False), (None, Tty(), False)],
)
def test_somebody_attends_who_sees_questions_and_can_type(
    monkeypatch: pytest.MonkeyPatch, stdin: object, stderr: object, expected: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert is_attended() is expected
