"""The command line, called in this process: what it prints, where, and how it exits."""

import io
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

import roder_trio as rt
from roder_trio.cli import __main__ as entry
from roder_trio.cli.main import app, main
from roder_trio.cli.options import store_place
from tests.loopback import HANG, STREAM, deaf_port, delta, ending, refusal, serving
from tests.test_cli_terminal import EVIL, FORBIDDEN

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own store, and nothing in the environment that would choose a provider but the offline one."""
    folder = tmp_path / "store"
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("RODER_TRIO_PROVIDER", "offline")
    monkeypatch.setenv("RODER_TRIO_STORE", str(folder))
    return folder


async def call(*tokens: str) -> int:
    """The exit code of a command."""
    try:
        code: int = await app.run_async(list(tokens), result_action="return_value")
    except SystemExit as error:
        return int(str(error.code))
    return code


def thread_of(notes: str) -> str:
    """The thread that a run told of on stderr."""
    [line] = [line for line in notes.splitlines() if line.startswith("thread: ")]
    return line.removeprefix("thread: ")


def texts(requests: Sequence[bytes]) -> list[list[str]]:
    """What each request told the model."""
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in requests]
    return [[str(message["content"]) for message in body["messages"]] for body in bodies]


async def test_an_answer_goes_to_stdout_and_the_rest_to_stderr(capsys: Capture) -> None:
    assert await call("run", "What is a nursery?") == 0
    out, err = capsys.readouterr()
    assert "What is a nursery?" in out
    assert out.endswith("\n")
    assert "thread: " in err
    assert " prompt + " in err
    assert "thread: " not in out


async def test_a_thread_goes_on_and_its_usage_adds_up(capsys: Capture) -> None:
    async with serving([STREAM, delta("One."), ending(10, 2)], [STREAM, delta("Two."), ending(20, 3)]) as server:
        flags = ("--base-url", server.base_url, "--model", "m")
        assert await call("run", "first question", *flags) == 0
        first = capsys.readouterr()
        assert first.out == "One.\n"
        assert "usage: 10 prompt + 2 completion = 12 tokens, at least $0.00; the thread: 10 prompt" in first.err
        assert await call("run", "second question", "--thread", thread_of(first.err), *flags) == 0
        second = capsys.readouterr()
    assert second.out == "Two.\n"
    assert "; the thread: 30 prompt + 5 completion = 35 tokens, at least $0.00" in second.err
    told = texts(server.requests)[1]
    assert [text for text in told if text in {"first question", "One.", "second question"}] == [
        "first question",
        "One.",
        "second question",
    ]
    assert thread_of(second.err) == thread_of(first.err)


async def test_threads_are_listed_shown_and_counted(capsys: Capture) -> None:
    await call("run", "Tell me about scopes")
    thread = thread_of(capsys.readouterr().err)
    assert await call("threads", "list") == 0
    listed = capsys.readouterr().out
    assert thread in listed
    assert "Tell me about scopes" in listed
    assert await call("threads", "show", thread) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("> Tell me about scopes\n")
    assert "[completed, " in shown
    assert await call("threads", "usage", thread) == 0
    heading, turn, total = capsys.readouterr().out.splitlines()
    assert heading.split() == ["turn", "status", "prompt", "cached", "completion", "reasoning", "total", "cost"]
    assert turn.split()[2:] == total.split()[1:]
    assert int(total.split()[-2]) > 0
    assert total.split()[-1] == "$0.00"


async def test_a_long_list_says_how_to_go_on(capsys: Capture) -> None:
    for prompt in ("one", "two", "three"):
        await call("run", prompt)
    capsys.readouterr()
    assert await call("threads", "list", "--limit", "2") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    cursor = err.strip().removeprefix("there are more: --cursor ")
    assert await call("threads", "list", "--limit", "2", "--cursor", cursor) == 0
    out, err = capsys.readouterr()
    assert "one" in out
    assert err == ""


async def test_a_store_that_is_not_there_is_said_to_be_missing_and_not_made(capsys: Capture, store: Path) -> None:
    assert await call("threads", "list") == 1
    assert "There is no store in" in capsys.readouterr().err
    assert not store.exists()


async def test_json_is_one_event_a_line_and_nothing_else_on_stdout(capsys: Capture) -> None:
    assert await call("run", "hello", "--json") == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) > 3
    assert "turn.completed" in json.dumps(lines[-1])
    assert "thread: " in err


@pytest.mark.parametrize("flag", [(), ("--json",)])
async def test_no_control_character_of_a_model_or_a_title_is_printed(capsys: Capture, flag: tuple[str, ...]) -> None:
    parts = [delta(letter) for letter in EVIL]
    async with serving([STREAM, *parts, ending(1, 1)]) as server:
        assert await call("run", f"title{EVIL}", "--base-url", server.base_url, "--model", "m", *flag) == 0
    run = capsys.readouterr()
    thread = thread_of(run.err)
    for command in (("list",), ("show", thread), ("usage", thread)):
        assert await call("threads", *command) == 0
    shown = capsys.readouterr()
    assert not FORBIDDEN & set(run.out + run.err + shown.out + shown.err)
    assert "title" in shown.out
    if flag:
        assert EVIL in "".join(_deltas(run.out))


def _deltas(out: str) -> list[str]:
    """The message deltas among lines of JSON, wherever the lines have them."""
    found: list[str] = []

    def search(value: object) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("delta"), str):
                found.append(value["delta"])
            for part in value.values():
                search(part)

    for line in out.splitlines():
        search(json.loads(line))
    return found


async def test_an_error_of_a_provider_is_one_line_without_control_characters_or_the_key(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    async with serving([refusal("401 Unauthorized", f"bad key sk-very-secret {EVIL}")]) as server:
        flags = ("--base-url", server.base_url, "--api-key-env", "MY_KEY", "--model", "m")
        assert await call("run", "hello", *flags) == 1
    out, err = capsys.readouterr()
    assert b"authorization: bearer sk-very-secret" in server.requests[0].lower().replace(b"bearer", b"bearer")
    assert out == ""
    [line] = [line for line in err.splitlines() if line.startswith("roder-trio: ")]
    assert "the turn failed (authentication)" in line
    assert "very-secret" not in err
    assert not FORBIDDEN & set(err)
    assert "Traceback" not in err


async def test_the_key_of_openai_is_not_sent_to_another_server(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    async with serving([STREAM, delta("hi"), ending(1, 1)]) as server:
        assert await call("run", "hello", "--base-url", server.base_url, "--model", "m") == 0
    assert b"sk-mine" not in b"".join(server.requests)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("run",), "PROMPT"),
        (("run", "hello", "--nonsense"), "--nonsense"),
        (("run", "   "), "the prompt is empty"),
        (("run", "hello", "--provider", "nobody"), "there is no provider 'nobody'"),
        (("run", "hello", "--api-key-env", "NO_SUCH_KEY", "--base-url", "http://h/v1"), "NO_SUCH_KEY"),
        (("run", "why", "is it"), "unexpected argument 'is it'; quote a text of several words"),
        (("threads", "list", "--store", "https://me:hunter2@example.org/threads"), "give postgresql://host/database"),
        (("threads", "list", "--limit", "many"), "many"),
        (("threads", "list", "--limit", "0"), "--limit must be a number from 1 to 500"),
        (("threads", "list", "--limit", "501"), "--limit must be a number from 1 to 500"),
        (("dance",), "dance"),
        (("run", "hello", "--\x1b[31mred"), "red"),
    ],
)
async def test_a_wrong_call_exits_with_two_and_says_in_one_line_why(
    capsys: Capture, tokens: tuple[str, ...], words: str
) -> None:
    assert await call(*tokens) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert err.startswith("roder-trio: ")
    assert err.count("\n") == 1
    assert "\x1b" not in err + out
    assert "hunter2" not in err


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("run", "hello", "--thread", "no-such-thread"), "can't run the turn: There is no active thread"),
        (("threads", "show", "no-such-thread"), "can't show the thread: There is no active thread"),
        (("threads", "usage", "no-such-thread"), "can't show the usage: There is no active thread"),
        (("threads", "list", "--cursor", "garbage"), "can't list the threads: "),
    ],
)
async def test_what_the_runtime_refuses_is_one_line_and_exits_with_one(
    capsys: Capture, tokens: tuple[str, ...], words: str
) -> None:
    await call("run", "there is a store now")
    capsys.readouterr()
    assert await call(*tokens) == 1
    out, err = capsys.readouterr()
    assert words in err
    assert "Traceback" not in err
    assert out == ""


async def test_a_file_that_is_no_store_is_one_line(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a store")
    assert await call("run", "hello", "--store", str(tmp_path / "file")) == 1
    _, err = capsys.readouterr()
    assert "can't run the turn: " in err
    assert "Traceback" not in err


async def test_a_server_that_is_not_there_fails_the_turn(capsys: Capture) -> None:
    with deaf_port() as port:
        assert await call("run", "hello", "--base-url", f"http://127.0.0.1:{port}/v1", "--model", "m") == 1
    err = capsys.readouterr().err
    assert "the turn failed (transport)" in err
    assert "trying again in " in err
    assert "no tokens counted" in err


def test_the_store_is_named_by_the_flag_or_the_environment_else_it_is_a_database_in_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store_place("here") == "here"
    monkeypatch.setenv("RODER_TRIO_STORE", "there")
    assert store_place(None) == "there"
    monkeypatch.delenv("RODER_TRIO_STORE")
    assert store_place(None) == str(tmp_path / "roder-trio" / "threads.db")


@pytest.mark.parametrize("name", ["threads.db", "journals"])
async def test_threads_are_kept_in_a_database_or_in_a_folder(
    capsys: Capture, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / name
    monkeypatch.setenv("RODER_TRIO_STORE", str(place))
    assert await call("run", "Tell me about stores") == 0
    thread = thread_of(capsys.readouterr().err)
    assert await call("run", "And more", "--thread", thread) == 0
    assert place.is_file() == (name == "threads.db")
    capsys.readouterr()
    assert await call("threads", "list") == 0
    assert "Tell me about stores" in capsys.readouterr().out


class Watched(io.StringIO):
    """A text stream that tells when a text was written to it."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.seen = trio.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.words in self.getvalue():
            self.seen.set()
        return written


async def test_ctrl_c_ends_the_turn_and_tells_that_what_was_said_is_kept(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Watched("Half an ans")
    monkeypatch.setattr(sys, "stdout", out)

    async def press() -> None:
        await out.seen.wait()
        signal.raise_signal(signal.SIGINT)

    async with serving([STREAM, delta("Half an "), delta("ans"), HANG]) as server, trio.open_nursery() as nursery:
        nursery.start_soon(press)
        assert await call("run", "hello", "--base-url", server.base_url, "--model", "m") == 1
    assert out.getvalue() == "Half an ans\n"
    assert "what was said is kept in the thread" in capsys.readouterr().err


async def test_a_second_ctrl_c_ends_the_program_while_the_first_is_at_work(
    capsys: Capture, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Watched("Half an ans")
    monkeypatch.setattr(sys, "stdout", out)

    async def press_again(runtime: rt.Runtime, thread_id: str, turn_id: str) -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    async def press() -> None:
        await out.seen.wait()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(rt.Runtime, "interrupt_turn", press_again)
    async with serving([STREAM, delta("Half an "), delta("ans"), HANG]) as server, trio.open_nursery() as nursery:
        nursery.start_soon(press)
        assert await call("run", "hello", "--base-url", server.base_url, "--model", "m") == 1
    [journal] = (store / "threads").glob("*.jsonl")
    assert "thread: " not in capsys.readouterr().err, "it left at once"
    assert await call("threads", "show", journal.stem) == 0
    assert "Half an ans [cut off]\n" in out.getvalue()
    assert "[interrupted, " in out.getvalue()


async def test_an_answer_that_was_cut_by_a_limit_says_so(capsys: Capture) -> None:
    cut = ending(1, 1).replace(b'"stop"', b'"length"')
    async with serving([STREAM, delta("Half"), cut]) as server:
        assert await call("run", "hello", "--base-url", server.base_url, "--model", "m") == 0
    assert "the model stopped early: length" in capsys.readouterr().err


@pytest.mark.parametrize("start", [main, entry.main])
def test_the_program_exits_with_the_code_of_its_command(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, start: Callable[[], None]
) -> None:
    monkeypatch.setattr(sys, "argv", ["roder-trio", "threads", "show", "nothing"])
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as exit_:
            start()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert exit_.value.code == 1


def test_without_its_extra_the_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "roder_trio.cli.main")
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    with pytest.raises(SystemExit, match=r"needs cyclopts; install roder_trio with its extra: roder_trio\[cli\]"):
        entry.main()


def test_a_module_of_another_kind_that_lacks_is_no_matter_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "roder_trio.cli.main")
    monkeypatch.setitem(sys.modules, "roder_trio.cli.chat", None)
    with pytest.raises(ModuleNotFoundError, match="chat"):
        entry.main()
