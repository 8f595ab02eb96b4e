"""The tools glob and grep on real files: what fits, what a page holds, how bad and slow patterns end."""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import hypothesis
import pytest
import trio
from hypothesis import strategies as st

from roder_trio.errors import ToolError
from roder_trio.ports import Tool
from roder_trio.schema.tool import ToolOutput
from roder_trio.tools.workspace import matcher, search
from roder_trio.tools.workspace.matcher import compile_pattern
from roder_trio.tools.workspace.paths import Workspace, open_workspace
from roder_trio.tools.workspace.pattern import depth, split, to_regex
from roder_trio.tools.workspace.tool import WorkspaceTool
from roder_trio.tools.workspace.walk import Progress, walk
from tests.workspace_support import Desk, context, desk, fill, unhurried


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    unhurried(monkeypatch)
    root = tmp_path / "root"
    root.mkdir()
    return desk(root)


# glob


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["a.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/**", ["src/b.py", "src/deep/", "src/deep/c.py", "src/deep/d.txt"]),
        ("src/*/", ["src/deep/"]),
        ("src/", ["src/"]),
        ("**/", ["src/", "src/deep/"]),
        ("{a,src/b}.py", ["a.py", "src/b.py"]),
        ("{**/c,*}.py", ["a.py", "src/deep/c.py"]),
        ("src/{deep/**,x}", ["src/deep/c.py", "src/deep/d.txt"]),
        ("[a-c].py", ["a.py"]),
        ("**/[!ab].*", ["src/deep/c.py", "src/deep/d.txt"]),
        ("**/[]c].py", ["src/deep/c.py"]),
        ("src/?.py", ["src/b.py"]),
        ("s**c/b.py", ["src/b.py"]),
        ("**c/b.py", ["src/b.py"]),
        ("src/b.py", ["src/b.py"]),
        ("**/\\*", ["*"]),
        (".h*", [".hid"]),
        ("[", ["["]),
    ],
)
async def test_a_pattern_finds_paths(at: Desk, pattern: str, found: list[str]) -> None:
    fill(at, "a.py", "src/b.py", "src/deep/c.py", "src/deep/d.txt", ".git/a.py", ".hid", "*", "[")
    assert (await at.text("glob", pattern=pattern)).split("\n") == found


async def test_a_pattern_starts_from_a_path_and_shows_paths_from_the_root(at: Desk) -> None:
    fill(at, "a/b/c", "a/d")
    assert await at.text("glob", pattern="b/*", path="a") == "a/b/c"
    assert await at.text("glob", pattern="*", path="a") == "a/b/\na/d"
    assert await at.text("glob", pattern=f"{at.root}/a/d*") == "a/d"
    assert await at.error("glob", pattern="../*") == "outside the workspace: .."
    assert await at.error("glob", pattern="/*") == "outside the workspace: /"
    assert await at.error("glob", pattern="x/*") == "no such file or directory: x"
    assert await at.error("glob", pattern="*", path="a/d") == "not a directory: a/d"


async def test_a_search_for_paths_that_finds_nothing_says_why(at: Desk) -> None:
    assert await at.text("glob", pattern="*") == "[nothing found: the directory . is empty]"
    fill(at, "a/b")
    text = await at.text("glob", pattern="*.py")
    assert text == (
        "[nothing found: none of the 1 entries that were looked at in . fits '*.py'; **/*.py would look at every depth]"
    )
    assert "every depth" not in await at.text("glob", pattern="**/*.py")


async def test_found_paths_come_in_pages_of_200(at: Desk) -> None:
    fill(at, *[f"{number:03}" for number in range(201)])
    assert (await at.text("glob", pattern="*")).endswith(
        '199\n[entries 1 to 200 of 201; more: glob(pattern="*", offset=200)]'
    )
    assert await at.text("glob", pattern="*", offset=200) == "200"


async def test_a_bad_or_slow_pattern_of_paths_is_an_error(at: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "SECONDS", 0.1)
    fill(at, "a" * 60 + "b")
    assert "a '{' has no '}'" in await at.error("glob", pattern="{a")
    assert (await at.error("glob", pattern="[z-a]")).startswith("bad pattern: ")
    assert "longer than 4000" in await at.error("glob", pattern="a" * 4_001)
    assert "longer than 2 s" in await at.error("glob", pattern="{a,aa}" * 60 + "[!ab]")


def test_a_pattern_that_needs_no_depth_looks_no_deeper() -> None:
    assert depth("*.py") == 1
    assert depth("*/x/") == 2
    assert depth("**/x") is None
    assert split("a/b/*.py") == ("a/b", "*.py")
    assert split("/*.py") == ("/", "*.py")
    assert split("a/") == ("", "a/")
    assert split("a/b/") == ("a", "b/")
    assert to_regex("\\") == "\\\\"


async def test_a_directory_that_cannot_be_read_is_passed_over(at: Desk) -> None:
    fill(at, "a/x", "b")
    (at.root / "a").chmod(0)
    as_root = os.geteuid() == 0  # root reads all
    assert await at.text("glob", pattern="**") == ("a/\na/x\nb" if as_root else "a/\nb")
    (at.root / "a").chmod(0o700)


def test_a_directory_that_vanishes_during_a_walk_is_passed_over(at: Desk) -> None:
    fill(at, "a/x", "b")
    with open_workspace(at.root) as workspace:
        entries = walk(workspace.locate("."), Progress())
        assert next(entries).path == "a/"
        (at.root / "a/x").unlink()
        (at.root / "a").rmdir()
        assert [entry.path for entry in entries] == ["b"]


# grep


async def test_matches_are_shown_with_path_line_and_text(at: Desk) -> None:
    fill(at, "a.txt", content="Foo\r\nbar foo\nfood\n")
    fill(at, "a/b.txt", content="foo")
    fill(at, ".git/config", content="foo")
    assert await at.text("grep", pattern="foo") == "a.txt:2:bar foo\na.txt:3:food\na/b.txt:1:foo"
    assert await at.text("grep", pattern="FOO", ignore_case=True, path="a.txt") == (
        "a.txt:1:Foo\na.txt:2:bar foo\na.txt:3:food"
    )
    assert await at.text("grep", pattern="foo", word=True, path="a.txt") == "a.txt:2:bar foo"
    assert await at.text("grep", pattern="^F.o$", path="a.txt") == "a.txt:1:Foo"
    assert await at.text("grep", pattern="foo", path="a") == "a/b.txt:1:foo"
    assert await at.text("grep", pattern=r"(?<!\s)foo(?!\w)") == "a/b.txt:1:foo"


async def test_a_plain_text_is_found_as_it_is_and_a_bad_pattern_is_told_of_it(at: Desk) -> None:
    fill(at, "a", content="f(x\n")
    error = await at.error("grep", pattern="f(x")
    assert error.startswith("bad pattern: ")
    assert error.endswith("use regex=False to look for the text itself")
    assert await at.text("grep", pattern="f(x", regex=False) == "a:1:f(x"
    assert "RecursionError" in await at.error("grep", pattern="(" * 4_000)


async def test_binary_large_and_linked_files_are_passed_over(at: Desk) -> None:
    fill(at, "a", content="foo\n")
    (at.root / "binary").write_bytes(b"foo\0")
    with (at.root / "large").open("wb") as file:
        file.write(b"foo\n")
        file.truncate(11 * 1024 * 1024)
    (at.root / "link").symlink_to("a")
    os.mkfifo(at.root / "pipe")
    assert await at.text("grep", pattern="foo") == "a:1:foo"
    assert await at.text("grep", pattern="none") == (
        "[nothing found in 1 files; 2 binary, large or unreadable ones were passed over]"
    )
    assert await at.error("grep", pattern="foo", path="binary") == "a binary file: binary"
    assert await at.error("grep", pattern="foo", path="pipe") == "not a regular file: pipe"
    assert await at.error("grep", pattern="foo", path="x") == "no such file or directory: x"
    assert await at.text("grep", pattern="foo", path="link") == "a:1:foo"
    assert await at.text("grep", pattern="none", path="a") == "[nothing found in 1 files]"


async def test_at_most_200_matches_are_shown(at: Desk) -> None:
    fill(at, "a", content="foo\n" * 200)
    lines = (await at.text("grep", pattern="foo")).split("\n")
    assert (len(lines), lines[-1]) == (200, "a:200:foo")
    fill(at, "b", content="foo\n")
    lines = (await at.text("grep", pattern="foo")).split("\n")
    assert lines[199:] == ["a:200:foo", "[only the first 200 matches; a narrower pattern or path shows others]"]


async def test_long_lines_are_shortened_and_many_of_them_make_fewer(at: Desk) -> None:
    fill(at, "a", content=("foo" + "x" * 1_000 + "\n") * 100)
    text = await at.text("grep", pattern="foo")
    assert "[... 603 characters left out ...]" in text
    assert "[only the first 43 matches" in text
    assert len(text) < 20_000


class Clock:
    """Takes the place of the clock of searches: it stands still until their time is `over`."""

    def __init__(self) -> None:
        self.over = False
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return math.inf if self.over or self.asked > 200 else 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock under which a search matches half a second of the processor's time at a stretch, again and again."""
    clock = Clock()
    for module in (matcher, search):
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "SECONDS", 0.5)
    return clock


async def loop_within_a_stretch(clock: Clock, output: list[ToolOutput]) -> None:
    """Wait until the event loop has gone round 20 times while a search did nothing but match, or until it has ended."""
    rounds = stretch = 0
    while rounds < 20 and not output:
        rounds = rounds + 1 if clock.asked == stretch > 1 else 0
        stretch = clock.asked
        await trio.sleep(0.001)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a|a)*$"])
async def test_a_pattern_that_explodes_ends_with_its_time_and_holds_nobody_up(
    at: Desk, clock: Clock, pattern: str
) -> None:
    fill(at, "a", content="a" * 50 + "b\n")
    output: list[ToolOutput] = []

    async def look() -> None:
        output.append(await at.run("grep", pattern=pattern))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await loop_within_a_stretch(clock, output)
        was_matching = not output
        clock.over = True
    assert was_matching or not output[0].is_error
    assert output[0].text.startswith("matching took longer than 2 s" if output[0].is_error else "[nothing found")


async def test_a_search_that_does_not_get_its_time_is_given_up_by_its_caller(at: Desk) -> None:
    release = threading.Event()
    grep = at.tools["grep"]
    assert isinstance(grep, WorkspaceTool)
    late = attrs.evolve(grep, seconds=0.05, work=lambda workspace, arguments: str(release.wait(60)))
    try:
        output = await late.run(context(at.root), {"pattern": "a"})
    finally:
        release.set()
    assert (output.text, output.is_error) == (matcher.OVERRUN, True)


def test_a_match_that_the_package_gives_up_too_early_is_tried_again(clock: Clock) -> None:
    given_up = []

    class Impatient:
        def search(self, text: str, timeout: float) -> None:
            given_up.append(timeout)
            clock.over = len(given_up) == 3
            raise TimeoutError

    with pytest.raises(ToolError, match="longer than 2 s"):
        matcher.Matcher(Impatient(), 1.0).search("a")
    assert given_up == [1.0] * 3


LINE = st.text("ab \t.\u00e9", max_size=6)
PIECE = st.sampled_from(
    ["a", "b", ".", r"\s", "[^a]", r"\b", "^", "$", "(?:ab|b)", "a*", "b+?", r"\W", "(?=a)", "a++", "(a)", r"\A"]
)


@hypothesis.given(st.lists(LINE, max_size=8), st.lists(PIECE, min_size=1, max_size=4), st.booleans())
def test_a_block_of_lines_is_never_passed_over_if_a_line_of_it_matches(
    lines: list[str], pieces: list[str], word: bool
) -> None:
    pattern = compile_pattern("".join(pieces), time.monotonic() + 600, word=word)
    if pattern.is_local and any(pattern.search(line) for line in lines):
        assert pattern.search("\n".join(lines))


# cancelling


def watched(tool: Tool, ended: threading.Event, started: Callable[[], None]) -> Tool:
    """The tool with work that tells when its thread starts, and when it has been cancelled."""
    assert isinstance(tool, WorkspaceTool)

    def work(workspace: Workspace, arguments: Mapping[str, Any]) -> str:
        started()
        try:
            return tool.work(workspace, arguments)
        finally:
            ended.set()

    return attrs.evolve(tool, work=work)


async def test_a_cancelled_search_returns_at_once_and_its_thread_ends(at: Desk, clock: Clock) -> None:
    fill(at, "a", content="a" * 50 + "b\n")
    ended = threading.Event()
    grep = watched(at.tools["grep"], ended, lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grep.run, context(at.root), {"pattern": "(a|aa)+$"})
        await loop_within_a_stretch(clock, [])
        nursery.cancel_scope.cancel()
    assert not ended.is_set()
    clock.over = True
    assert await trio.to_thread.run_sync(ended.wait, 60)


async def test_a_walk_ends_within_1000_entries_of_a_cancel(at: Desk) -> None:
    for number in range(1_100):
        (at.root / str(number)).touch()
    ended = threading.Event()
    with trio.CancelScope() as scope:
        tool = watched(at.tools["list_files"], ended, lambda: trio.from_thread.run_sync(scope.cancel))
        await tool.run(context(at.root), {})
    assert scope.cancelled_caught
    assert await trio.to_thread.run_sync(ended.wait, 60)
