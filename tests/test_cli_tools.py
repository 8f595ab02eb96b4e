"""Tools at the command line: consent, policy, and what is shown of calls."""

import json
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.loopback import STREAM, Server, call, delta, ending, serving
from tests.program import at_terminal, piped
from tests.test_cli import call as command
from tests.test_cli_terminal import EVIL, FORBIDDEN

pytestmark = pytest.mark.skipif(os.name != "posix", reason="terminals and signals as POSIX knows them")

WRITE = '{"path":"new.txt","content":"written by a tool"}'
DONE = [STREAM, delta("Well."), ending(5, 1)]


def calling(name: str, arguments: str) -> list[bytes]:
    return [STREAM, call(name, arguments)]


def flags(server: Server) -> tuple[str, ...]:
    return ("--store", "here", "--base-url", server.base_url, "--model", "m")


def body(request: bytes) -> dict[str, object]:
    found: dict[str, object] = json.loads(request.partition(b"\r\n\r\n")[2])
    return found


def offered(request: bytes) -> list[str]:
    tools = body(request).get("tools", [])
    assert isinstance(tools, list)
    return [tool["function"]["name"] for tool in tools]


def results(request: bytes) -> list[str]:
    """What the tools answered, as a request tells the model."""
    messages = body(request)["messages"]
    assert isinstance(messages, Sequence)
    return [message["content"] for message in messages if message["role"] == "tool"]


Command = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process and in `tmp_path`: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    async def run(*tokens: str) -> tuple[int, str, str]:
        return (await command(*tokens), *capsys.readouterr())

    return run


@pytest.mark.parametrize("answer", ["y", " YES "])
async def test_a_yes_at_the_terminal_runs_the_tool(tmp_path: Path, answer: str) -> None:
    async with (
        serving(calling("write_file", WRITE), DONE) as server,
        at_terminal(tmp_path, "run", "write it", *flags(server)) as program,
    ):
        await program.sees("write_file needs your consent: in mode 'default', by its effects write\n")
        await program.sees(f"  {WRITE}\nrun it? [y/N] ")
        assert not (tmp_path / "new.txt").exists()
        program.type(f"{answer}\n")
        await program.sees("tool write_file: done")
        await program.sees("Well.\n")
        assert await program.end() == 0
    assert (tmp_path / "new.txt").read_text() == "written by a tool"


@pytest.mark.parametrize("answer", ["\n", "yes please\n", "\x04"])
async def test_anything_else_is_a_no_that_the_model_is_told(tmp_path: Path, answer: str) -> None:
    async with (
        serving(calling("write_file", WRITE), DONE) as server,
        at_terminal(tmp_path, "run", "write it", *flags(server)) as program,
    ):
        await program.sees("run it? [y/N] ")
        program.type(answer)
        await program.sees("\ntool write_file: failed: approval denied\n")
        assert await program.end() == 0
    assert not (tmp_path / "new.txt").exists()
    assert results(server.requests[1]) == ["approval denied"]


async def test_questions_come_one_at_a_time_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    second = json.dumps({"command": "echo from the shell"})
    async with (
        serving(calling("write_file", WRITE), calling("shell", second), DONE) as server,
        at_terminal(tmp_path, "run", "go", *flags(server)) as program,
    ):
        await program.sees("run it? [y/N] ")
        program.type("n\n")
        await program.sees("shell needs your consent")
        await program.sees("run it? [y/N] ")
        program.type("y\n")
        await program.sees("tool shell: done, 2 lines")
        assert await program.end() == 0
    assert results(server.requests[2]) == ["approval denied", "exit code: 0\nfrom the shell\n"]


async def test_what_was_typed_before_the_question_is_no_answer_to_it(tmp_path: Path) -> None:
    async with (
        serving([STREAM, delta("Thinking. "), call("write_file", WRITE)], DONE) as server,
        at_terminal(tmp_path, "run", "go", *flags(server)) as program,
    ):
        program.type("y\n")
        await program.sees("y\n")  # as the terminal shows what it took
        await program.sees("run it? [y/N] ")
        assert not (tmp_path / "new.txt").exists()
        program.type("n\n")
        assert await program.end() == 0
    assert results(server.requests[1]) == ["approval denied"]


async def test_ctrl_c_at_a_question_interrupts_the_turn(tmp_path: Path) -> None:
    async with (
        serving(calling("write_file", WRITE), DONE) as server,
        at_terminal(tmp_path, "run", "go", *flags(server)) as program,
    ):
        await program.sees("run it? [y/N] ")
        program.process.send_signal(signal.SIGINT)
        await program.sees("\ninterrupted (user)")
        assert await program.end() == 1
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("more", [(), ("--json",)])
async def test_without_a_terminal_what_needs_consent_is_refused_and_reading_is_not(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    (tmp_path / "old.txt").write_text("was here\n")
    read = calling("read_file", '{"path": "old.txt"}')
    async with serving(read, calling("write_file", WRITE), DONE) as server:
        code, out, err = await piped(tmp_path, "run", "go", *flags(server), *more, stdin=b"y\ny\n")
    assert code == 0
    content, refusal = results(server.requests[2])
    assert "was here" in content
    assert refusal == "needs approval, and nobody can give it"
    assert not (tmp_path / "new.txt").exists()
    if more:
        kinds = [json.loads(line)["event"]["type"] for line in out.splitlines()]
        assert "tool.finished" in kinds
        assert "tool " not in err
    else:
        assert out == "Well.\n"
        assert 'tool read_file {"path": "old.txt"}\ntool read_file: done, 1 line\n' in err
        assert "tool write_file: failed: needs approval, and nobody can give it\n" in err


async def test_json_at_a_terminal_asks_nothing(tmp_path: Path) -> None:
    async with (
        serving(calling("write_file", WRITE), DONE) as server,
        at_terminal(tmp_path, "run", "go", *flags(server), "--json") as program,
    ):
        assert await program.end() == 0
    assert "[y/N]" not in program.seen
    assert results(server.requests[1]) == ["needs approval, and nobody can give it"]


async def test_plan_denies_a_write(tmp_path: Path, here: Command) -> None:
    async with serving(calling("write_file", WRITE), DONE) as server:
        code, _, err = await here("run", "go", *flags(server), "--policy", "plan")
    assert code == 0
    assert results(server.requests[1]) == ["policy denied: in mode 'plan', by its effects write"]
    assert "tool write_file: failed: policy denied" in err
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("mode", ["accept_all", "bypass"])
async def test_accept_all_and_bypass_run_without_a_question_in_the_workspace_that_is_named(
    tmp_path: Path, here: Command, mode: str
) -> None:
    (tmp_path / "project").mkdir()
    async with serving(calling("write_file", WRITE), DONE) as server:
        more = ("--policy", mode, "--workspace", "project")
        code, _, _ = await here("run", "go", *flags(server), *more)
    assert code == 0
    assert (tmp_path / "project" / "new.txt").read_text() == "written by a tool"


async def test_the_workspace_tools_and_the_shell_are_offered_and_none_with_no_tools(here: Command) -> None:
    async with serving(DONE) as server:
        assert (await here("run", "hi", *flags(server)))[0] == 0
        assert (await here("run", "hi", *flags(server), "--no-tools"))[0] == 0
    names = ["create_goal", "edit", "get_goal", "glob", "grep", "list_files", "read_file", "shell"]
    names += ["update_goal", "write_file"]
    assert [offered(request) for request in server.requests] == [names, []]


async def test_with_no_tools_a_call_of_one_is_refused(tmp_path: Path, here: Command) -> None:
    async with serving(calling("write_file", WRITE), DONE) as server:
        code, _, err = await here("run", "go", *flags(server), "--no-tools", "--policy", "bypass")
    assert code == 0
    assert "tool write_file: failed: " in err
    assert not (tmp_path / "new.txt").exists()


async def test_the_offline_engine_gets_no_tools_and_nothing_is_said_of_it(here: Command) -> None:
    code, out, err = await here("run", "hello there", "--provider", "offline", "--store", "here")
    assert code == 0
    assert "hello there" in out
    assert "tool" not in err


@pytest.mark.parametrize(
    ("tokens", "words"),
    [(("--policy", "yolo"), "yolo"), (("--workspace", "not-there"), "--workspace must be a folder")],
)
async def test_a_wrong_policy_or_workspace_exits_with_two(here: Command, tokens: tuple[str, ...], words: str) -> None:
    code, out, err = await here("run", "hello", "--provider", "offline", *tokens)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


async def test_no_control_character_of_a_call_or_a_result_reaches_the_terminal(tmp_path: Path) -> None:
    evil = EVIL.replace("\0", "")
    (tmp_path / "evil.txt").write_text(evil, newline="")
    read = calling("read_file", '{"path": "evil.txt"}')
    unknown = calling(f"name{EVIL}", json.dumps({f"key{EVIL}": EVIL}, ensure_ascii=False))
    missing = calling("read_file", json.dumps({"path": f"nothing{evil}"}))
    shell = calling("shell", json.dumps({"command": f"printf '%s' '{evil}'"}, ensure_ascii=False))
    async with (
        serving(read, unknown, missing, shell, DONE) as server,
        at_terminal(tmp_path, "run", "go", *flags(server)) as program,
    ):
        everything = ""
        while "run it? [y/N] " not in program.seen:
            assert await program._more()
        everything, program.seen = program.seen, ""
        program.type("y\n")
        assert await program.end() == 0
        everything += program.seen
    assert not FORBIDDEN & set(everything)
    assert "\\u001b]0;title\\u0007" in everything  # what is asked about shows what would be hidden
    assert "\\u202etxt.exe" in everything
    assert len(results(server.requests[4])) == 4
    assert "tool shell: done" in everything


async def test_a_long_call_is_shown_short_but_asked_about_whole(tmp_path: Path) -> None:
    arguments = json.dumps({"command": "true " + "x  y" * 200 + " && rm -rf everything"}, separators=(",", ":"))
    async with (
        serving(calling("shell", arguments), DONE) as server,
        at_terminal(tmp_path, "run", "go", *flags(server)) as program,
    ):
        await program.sees("…\n")
        await program.sees(f"  {arguments}\n")
        await program.sees("run it? [y/N] ")
        program.type("n\n")
        assert await program.end() == 0
