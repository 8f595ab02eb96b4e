"""The shell on real processes: what a result says, what a command sees, and that nothing outlives a call."""

import ctypes
import gc
import secrets
import time
from pathlib import Path

import hypothesis
import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock

from roder_trio.schema.tool import ToolOutput
from roder_trio.tools.shell import shell_tool
from roder_trio.tools.shell.group import environment
from roder_trio.tools.shell.output import HALF, MAX_BYTES, Output
from roder_trio.tools.shell.tool import _cut, _drain, _status
from roder_trio.tools.workspace.tool import threads
from tests.shell_support import (
    PATIENCE,
    descriptors,
    living,
    own_children,
    shell,
    shell_once_ready,
    until_living,
)
from tests.workspace_support import context

PR_SET_CHILD_SUBREAPER = 36

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")


@pytest.fixture(autouse=True)
def reaped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a process that was killed is seen to be over."""
    monkeypatch.setattr("roder_trio.tools.shell.group.REAP_SECONDS", PATIENCE)


@pytest.fixture
def told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is told to end has the time to do so, however busy the machine is."""
    monkeypatch.setattr("roder_trio.tools.shell.group.TERM_SECONDS", PATIENCE)


@pytest.fixture
def mark() -> str:
    """A number of seconds that no other process of this machine sleeps."""
    return f"100.{secrets.randbelow(10**9):09}"


# results


def test_the_shell_declares_that_it_runs_processes_one_at_a_time() -> None:
    spec = shell_tool().spec
    assert (spec.name, spec.effects, spec.concurrency) == ("shell", {"process"}, "exclusive")
    with pytest.raises(ValueError, match="env_keep"):
        shell_tool("PATH")


async def test_the_first_line_tells_the_exit_code_which_is_no_error(tmp_path: Path) -> None:
    assert await shell(tmp_path, "echo out; echo err >&2") == ToolOutput("exit code: 0\nout\nerr\n")
    assert await shell(tmp_path, "exit 3") == ToolOutput("exit code: 3")


async def test_the_first_line_tells_the_signal_that_killed_the_command(tmp_path: Path) -> None:
    assert await shell(tmp_path, "echo a; kill -KILL $$") == ToolOutput("killed by signal: SIGKILL\na\n")
    assert _status(-40) == "killed by signal: 40"
    assert _status(None) == "killed by signal: SIGKILL"


async def test_without_a_workspace_the_shell_is_an_error_result() -> None:
    output = await shell_tool().run(context(None), {"command": "true"})
    assert output == ToolOutput("no workspace", is_error=True)


async def test_a_command_has_no_input_no_terminal_and_a_session_of_its_own(tmp_path: Path) -> None:
    output = await shell(tmp_path, "cat; tty; ps -o sid= -p $$; echo $$; (: </dev/tty) 2>&1 | grep -c tty")
    lines = output.text.split()
    assert lines[3:6] == ["not", "a", "tty"]
    assert lines[6] == lines[7]
    assert lines[8] == "1"


async def test_a_command_runs_in_a_directory_of_the_workspace(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "f").touch()
    (root / "out").symlink_to("/etc")
    assert (await shell(root, "pwd")).text == f"exit code: 0\n{root}\n"
    assert (await shell(root, "pwd", workdir="d")).text == f"exit code: 0\n{root}/d\n"
    for path, reason in (
        ("..", "outside the workspace"),
        ("out", "outside the workspace"),
        ("f", "not a directory"),
        ("x", "no such file or directory"),
    ):
        assert await shell(root, "pwd", workdir=path) == ToolOutput(f"{reason}: {path}", is_error=True)


async def test_a_command_that_cannot_start_is_an_error_result(tmp_path: Path) -> None:
    for command in ("a\0b", "\ud800", "x" * 3_000_000):
        output = await shell(tmp_path, command)
        assert output.is_error
        assert output.text.startswith("could not start: ")


async def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    assert (await shell(tmp_path, r"printf 'a\377b'")).text == "exit code: 0\na\ufffdb"


# environment


async def test_a_command_sees_a_few_variables_and_those_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "DATABASE_URL", "LC_ALL", "LC_X"):
        monkeypatch.setenv(name, f"value-of-{name}")
    monkeypatch.delenv("TMPDIR", raising=False)
    output = await shell(tmp_path, "env")
    shown = {line.partition("=")[0] for line in output.text.split("\n")[1:]} - {"", "PWD", "OLDPWD", "SHLVL", "_"}
    assert shown <= {"PATH", "HOME", "LANG", "TERM", "USER", "SHELL", "LC_ALL", "LC_X"}
    assert {"PATH", "LC_ALL", "LC_X"} <= shown
    assert "value-of-OPENAI" not in output.text
    kept = await shell_tool(["OPENAI_API_KEY"]).run(context(tmp_path), {"command": "env"})
    assert "OPENAI_API_KEY=value-of-OPENAI_API_KEY" in kept.text
    assert "DATABASE_URL" not in kept.text


def test_the_variables_that_pass_are_listed() -> None:
    names = ["PATH", "HOME", "LANG", "LC_ALL", "TERM", "TMPDIR", "USER", "SHELL", "A", "B", "LCX", "PYTHONPATH", "PWD"]
    passed = environment(dict.fromkeys(names, "1"), keep=["A"])
    assert list(passed) == ["PATH", "HOME", "LANG", "LC_ALL", "TERM", "TMPDIR", "USER", "SHELL", "A"]


# time


@pytest.mark.usefixtures("told_in_time")
async def test_a_timeout_is_an_error_result_with_the_output_so_far(tmp_path: Path, mock_clock: MockClock) -> None:
    output = await shell_once_ready(mock_clock, tmp_path, "echo begun; : >ready; sleep 100", timeout=1)
    assert output == ToolOutput("killed by signal: SIGTERM\ntimed out after 1 s\nbegun\n", is_error=True)


@pytest.mark.usefixtures("told_in_time")
async def test_a_command_that_ends_by_itself_when_told_says_so(tmp_path: Path, mock_clock: MockClock) -> None:
    command = "trap 'echo bye; exit 7' TERM; : >ready; while :; do sleep 0.05 & wait; done"
    output = await shell_once_ready(mock_clock, tmp_path, command, timeout=1)
    assert output == ToolOutput("exit code: 7\ntimed out after 1 s\nbye\n", is_error=True)


async def test_a_command_that_ignores_the_signal_is_killed(tmp_path: Path, mock_clock: MockClock) -> None:
    started = time.monotonic()
    command = "trap '' TERM; : >ready; sleep 100; sleep 100"
    output = await shell_once_ready(mock_clock, tmp_path, command, timeout=1)
    assert output == ToolOutput("killed by signal: SIGKILL\ntimed out after 1 s", is_error=True)
    assert time.monotonic() - started < PATIENCE


@pytest.mark.usefixtures("told_in_time")
async def test_the_timeout_is_cut_to_the_rest_of_the_deadline(tmp_path: Path, mock_clock: MockClock) -> None:
    deadline = trio.current_time() + 0.3
    output = await shell_once_ready(mock_clock, tmp_path, ": >ready; sleep 100", deadline)
    assert output == ToolOutput("killed by signal: SIGTERM\ntimed out after 0.3 s", is_error=True)
    assert _cut(5.0, trio.current_time() - 1) == 0.0
    assert _cut(0.1, None) == 1.0
    assert _cut(700.0, None) == 600.0
    assert _cut(7.0, trio.current_time() + 100) == 7.0


async def test_an_endless_output_is_held_to_1_mib_and_its_command_ended(
    tmp_path: Path, mock_clock: MockClock, mark: str
) -> None:
    command = f"yes {mark} | head -c 3000000; : >ready; yes {mark}"
    output = await shell_once_ready(mock_clock, tmp_path, command, timeout=1)
    assert output.is_error
    assert len(output.text.encode()) <= MAX_BYTES + 200
    assert "bytes left out ...]" in output.text
    assert living(f"yes {mark}") == []


# the end of a group


@needs_proc
async def test_what_a_command_leaves_in_the_background_is_ended_with_it(tmp_path: Path, mark: str) -> None:
    output = await shell(tmp_path, f"sleep {mark} >/dev/null 2>&1 & echo done")
    assert output == ToolOutput("exit code: 0\ndone\n")
    assert living(f"sleep {mark}") == []


@needs_proc
async def test_a_child_that_keeps_the_pipe_has_half_a_second(tmp_path: Path, mock_clock: MockClock, mark: str) -> None:
    started = trio.current_time()
    until_the_shell_is_over = "while kill -0 $$ 2>/dev/null; do sleep 0.01; done"
    command = f"({until_the_shell_is_over}; echo late; : >ready; sleep {mark}; echo never) & echo done"
    output = await shell_once_ready(mock_clock, tmp_path, command, jump=0.0)
    assert output == ToolOutput("exit code: 0\ndone\nlate\n")
    assert 0.5 <= trio.current_time() - started < PATIENCE
    assert living(f"sleep {mark}") == []


async def test_a_child_that_left_the_group_keeps_nobody_waiting(tmp_path: Path) -> None:
    started = time.monotonic()
    output = await shell(tmp_path, "setsid sh -c 'sleep 40; :' & echo done")
    assert output == ToolOutput("exit code: 0\ndone\n")
    assert time.monotonic() - started < PATIENCE


async def test_a_child_that_left_the_group_and_floods_the_pipe_is_not_read_for_ever(tmp_path: Path) -> None:
    output = await shell(tmp_path, "setsid sh -c 'yes & yes=$!; sleep 2; kill $yes' & sleep 0.2")
    assert output.text.startswith("exit code: 0\n")
    assert len(output.text.encode()) <= MAX_BYTES + 200


def test_a_pipe_that_never_ends_is_read_no_more_than_is_held() -> None:
    output = Output()
    with Path("/dev/zero").open("rb") as endless:
        _drain(endless.fileno(), output)
    assert (output.held, output.dropped) == (MAX_BYTES, 0)


@needs_proc
async def test_an_interrupt_returns_when_all_processes_are_gone(tmp_path: Path, mark: str) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell, tmp_path, f"sleep {mark} & sleep {mark}")
            await until_living(f"sleep {mark}", 3)
            scope.cancel()
    assert scope.cancelled_caught
    assert living(f"sleep {mark}") == []


@needs_proc
async def test_an_interrupt_kills_what_ignores_the_signal(tmp_path: Path, mark: str) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell, tmp_path, f"trap '' TERM; sleep {mark} & sleep {mark}")
            await until_living(f"sleep {mark}", 3)
            started = time.monotonic()
            scope.cancel()
    assert living(f"sleep {mark}") == []
    assert time.monotonic() - started < PATIENCE


@needs_proc
async def test_100_interrupts_at_any_moment_leave_no_process_and_no_descriptor(tmp_path: Path, mark: str) -> None:
    await shell(tmp_path, "true")
    gc.collect()
    children, held = own_children(), descriptors()

    async def interrupted(after: float) -> None:
        with trio.move_on_after(after) as scope:
            await shell(tmp_path, f"sleep {mark} & sleep {mark}")
        assert scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(interrupted, number * 0.004)
    assert living(f"sleep {mark}") == []
    while threads().borrowed_tokens:  # noqa: ASYNC110 - what a cancelled call abandoned ends by itself
        await trio.sleep(0.005)
    assert descriptors() <= held
    assert own_children() <= children


@needs_proc
async def test_100_timeouts_leave_no_process(tmp_path: Path, mark: str) -> None:
    children = own_children()

    async def overrun() -> None:
        output = await shell(tmp_path, f"sleep {mark} & sleep {mark}", timeout=1)
        assert output.is_error

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(overrun)
    assert living(f"sleep {mark}") == []
    assert own_children() <= children


@needs_proc
async def test_orphans_are_reaped_if_they_come_to_this_process(tmp_path: Path) -> None:
    """As they do in a container whose first process this is."""
    children = own_children()
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        output = await shell(tmp_path, "sleep 100 & sleep 0.01 & echo done")
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert output == ToolOutput("exit code: 0\ndone\n")
    assert own_children() <= children


# what is held


def test_output_holds_its_first_and_last_half() -> None:
    output = Output()
    for number in range(40):
        output.add(bytes([65 + number]) * 65_536)
        assert output.held <= MAX_BYTES
    text = output.text()
    assert text.startswith("A" * 65_536)
    assert text.endswith(chr(65 + 39) * 65_536)
    assert f"\n[... {40 * 65_536 - MAX_BYTES} bytes left out ...]\n" in text


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    st.text("a\u00e9\u20ac\U0001f600", min_size=1, max_size=7), st.integers(0, 9), st.lists(st.integers(1, 400_000))
)
def test_output_is_cut_between_code_points_and_counts_what_it_drops(unit: str, lead: int, sizes: list[int]) -> None:
    data = b"x" * lead + unit.encode() * (MAX_BYTES // len(unit.encode()) + 1_000)
    output = Output()
    at = 0
    for size in [*sizes, len(data)]:
        output.add(data[at : at + size])
        at += size
    text = output.text()
    first, _, rest = text.partition("\n[... ")
    count, _, last = rest.partition(" bytes left out ...]\n")
    assert "\ufffd" not in text
    assert len(first.encode()) + int(count) + len(last.encode()) == len(data)
    assert HALF - 4 < len(first.encode()) <= HALF
    assert HALF - 4 < len(last.encode()) <= HALF


@hypothesis.given(st.lists(st.binary(max_size=50), max_size=5))
def test_a_short_output_is_whole(parts: list[bytes]) -> None:
    output = Output()
    for part in parts:
        output.add(part)
    assert output.text() == b"".join(parts).decode("utf-8", "replace")
