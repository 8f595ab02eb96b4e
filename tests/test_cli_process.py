"""The command line as a program of its own: streams, signals and exit codes."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from roder_trio.cli.discovery import find_local_server
from tests.loopback import HANG, STREAM, delta, ending, serving

PROGRAM = (sys.executable, "-W", "error", "-m", "roder_trio.cli")
posix = pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX knows them")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """Almost nothing: no key and no provider."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data"), **more}


def run(tmp_path: Path, *tokens: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *tokens]
    env = environment(tmp_path, **more)
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)


def test_without_any_configuration_the_offline_engine_answers(tmp_path: Path) -> None:
    if trio.run(find_local_server) is not None:
        pytest.skip("a model server runs on this machine")
    finished = run(tmp_path, "run", "hello there")
    assert finished.returncode == 0
    assert "hello there" in finished.stdout
    assert finished.stderr.startswith("offline: no provider is configured and no local server answers\n")
    assert list((tmp_path / "data").rglob("threads.db"))


def test_the_exit_code_and_the_version_are_those_of_a_program(tmp_path: Path) -> None:
    assert run(tmp_path, "run").returncode == 2
    assert run(tmp_path, "threads", "show", "nothing").returncode == 1
    assert run(tmp_path, "--version").stdout.strip()
    assert "run" in run(tmp_path, "--help").stdout


@posix
def test_a_ctrl_c_while_python_leaves_changes_no_exit_code(tmp_path: Path) -> None:
    late = "import atexit, signal, sys; atexit.register(signal.raise_signal, signal.SIGINT)"
    program = f"{late}; sys.argv[1:] = ['threads', 'show', 'nothing']; from roder_trio.cli.main import main; main()"
    finished = subprocess.run(
        [*PROGRAM[:3], "-c", program],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 1
    assert finished.stderr.startswith("roder-trio: can't show the thread: ")
    assert finished.stderr.count("\n") == 1


def test_a_reader_that_has_gone_ends_the_program_quietly(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [*PROGRAM, "run", "hello there"]
    env = environment(tmp_path, RODER_TRIO_PROVIDER="offline")
    finished = subprocess.run(
        command, env=env, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(write)
    assert finished.returncode == 1
    assert "Traceback" not in finished.stderr
    assert "BrokenPipe" not in finished.stderr
    assert "Broken pipe" not in finished.stderr


async def start(nursery: trio.Nursery, tmp_path: Path, *tokens: str) -> trio.Process:
    command = [*PROGRAM, *tokens]
    pipe = subprocess.PIPE
    start_process = partial(
        trio.run_process, command, env=environment(tmp_path), cwd=tmp_path, stdout=pipe, stderr=pipe, check=False
    )
    process: trio.Process = await nursery.start(start_process)
    return process


async def read_until(stream: trio.abc.ReceiveStream, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        chunk = await stream.receive_some()
        assert chunk, f"the output ended without {words!r}: {seen!r}"
        seen += chunk
    return seen


async def read_rest(stream: trio.abc.ReceiveStream) -> str:
    rest = b""
    async for chunk in stream:
        rest += chunk
    return rest.decode()


@posix
async def test_ctrl_c_interrupts_the_turn_and_what_was_said_is_kept(tmp_path: Path) -> None:
    async with serving([STREAM, delta("Half an "), delta("ans"), HANG]) as server, trio.open_nursery() as nursery:
        flags = ("--store", "here", "--base-url", server.base_url, "--model", "m")
        process = await start(nursery, tmp_path, "run", "hello", *flags)
        assert process.stdout is not None
        assert process.stderr is not None
        with trio.fail_after(60):
            await read_until(process.stdout, b"Half an ans")
            process.send_signal(signal.SIGINT)
            err = await read_rest(process.stderr)
            assert await process.wait() == 1
    assert "Traceback" not in err
    [journal] = (tmp_path / "here" / "threads").glob("*.jsonl")
    shown = run(tmp_path, "threads", "show", journal.stem, "--store", "here")
    assert "Half an ans [cut off]\n" in shown.stdout
    assert "[interrupted, " in shown.stdout
    assert "interrupted" in err
    assert f"thread: {journal.stem}" in err


@posix
async def test_ctrl_c_before_the_turn_ends_the_program(tmp_path: Path) -> None:
    async with serving([HANG]) as server, trio.open_nursery() as nursery:
        process = await start(nursery, tmp_path, "run", "hello", "--base-url", server.base_url)
        assert process.stderr is not None
        with trio.fail_after(60):
            await read_until(process.stderr, b"named by the flags")
            process.send_signal(signal.SIGINT)
            err = await read_rest(process.stderr)
            assert await process.wait() == 1
    assert "Traceback" not in err


@posix
async def test_an_interrupted_thread_goes_on_and_the_model_is_told_what_it_had_said(tmp_path: Path) -> None:
    half, whole = [STREAM, delta("Half an "), HANG], [STREAM, delta("Done."), ending(5, 1)]
    async with serving(half, whole) as server:
        flags = ("--store", "here", "--base-url", server.base_url, "--model", "m")
        async with trio.open_nursery() as nursery:
            process = await start(nursery, tmp_path, "run", "hello", *flags)
            assert process.stdout is not None
            with trio.fail_after(60):
                await read_until(process.stdout, b"Half an ")
                process.send_signal(signal.SIGINT)
                await process.wait()
        [journal] = (tmp_path / "here" / "threads").glob("*.jsonl")
        async with trio.open_nursery() as nursery:
            process = await start(nursery, tmp_path, "run", "go on", "--thread", journal.stem, *flags)
            assert process.stdout is not None
            with trio.fail_after(60):
                assert await read_rest(process.stdout) == "Done.\n"
    assert b"Half an " in server.requests[-1]
