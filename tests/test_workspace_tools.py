"""The workspace tools on real files: what they show, what they change, and how they fail."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from roder_trio.tools.workspace import workspace_tools
from roder_trio.tools.workspace.page import MAX_CHARACTERS
from roder_trio.tools.workspace.paths import Workspace
from roder_trio.tools.workspace.tool import WorkspaceTool
from tests.workspace_support import Desk, context, desk, fill, names, unhurried


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    unhurried(monkeypatch)
    root = tmp_path / "root"
    root.mkdir()
    return desk(root)


# declaration


def test_the_six_tools_declare_what_they_touch() -> None:
    specs = {tool.spec.name: tool.spec for tool in workspace_tools()}
    assert list(specs) == ["read_file", "list_files", "glob", "grep", "write_file", "edit"]
    assert {name for name, spec in specs.items() if spec.effects == {"write"}} == {"write_file", "edit"}
    assert all(spec.effects == {"read"} for name, spec in specs.items() if name not in ("write_file", "edit"))
    assert {name for name, spec in specs.items() if spec.concurrency == "exclusive"} == {"write_file", "edit"}
    assert all(spec.parameters["additionalProperties"] is False for spec in specs.values())


def test_an_extra_root_is_an_absolute_path() -> None:
    with pytest.raises(ValueError, match="extra_read_roots"):
        workspace_tools(["relative"])


async def test_without_a_workspace_each_tool_is_an_error_result() -> None:
    for tool in workspace_tools():
        output = await tool.run(context(None), {"path": "a", "pattern": "a", "content": "", "edits": []})
        assert (output.text, output.is_error) == ("no workspace", True)


async def test_a_workspace_that_is_gone_is_an_error_result(tmp_path: Path) -> None:
    assert "no directory that can be opened" in await desk(tmp_path / "gone").error("list_files")


async def test_two_runs_of_trio_may_share_the_tools(at: Desk) -> None:
    fill(at, "a")

    def run() -> str:
        return trio.run(lambda: at.text("read_file", path="a"))

    assert await trio.to_thread.run_sync(run) == await at.text("read_file", path="a")


# read_file


async def test_a_file_is_shown_with_numbered_lines(at: Desk) -> None:
    (at.root / "a").write_bytes(b"one\r\n\ntwo")
    assert await at.text("read_file", path="a") == "1\tone\n2\t\n3\ttwo"
    assert await at.text("read_file", path="a", start_line=3) == "3\ttwo"


async def test_a_long_file_ends_with_the_next_call(at: Desk) -> None:
    fill(at, "a", content="".join(f"line {number}\n" for number in range(1, 451)))
    first = (await at.text("read_file", path="a")).split("\n")
    assert first[199] == "200\tline 200"
    assert first[200] == '[lines 1 to 200 of 450; more: read_file(path="a", start_line=201)]'
    assert len(first) == 201
    last = await at.text("read_file", path="a", start_line=401)
    assert last.endswith("450\tline 450")


async def test_a_limit_is_kept_by_the_next_call_and_never_above_200(at: Desk) -> None:
    fill(at, "a", content="x\n" * 300)
    assert (await at.text("read_file", path="a", limit=2)).endswith('read_file(path="a", start_line=3, limit=2)]')
    assert (await at.text("read_file", path="a", limit=300)).endswith('read_file(path="a", start_line=201)]')


async def test_long_lines_make_a_page_shorter_so_that_nothing_is_cut_out_of_it(at: Desk) -> None:
    fill(at, "a", content=("x" * 1_000 + "\n") * 30)
    text = await at.text("read_file", path="a")
    assert len(text) < MAX_CHARACTERS + 200
    assert "start_line=19)" in text
    fill(at, "b", content="x" * 50_000 + "\ny\n")
    text = await at.text("read_file", path="b")
    assert len(text) > 50_000
    assert "start_line=2)" in text


async def test_what_is_no_text_is_an_error_and_other_bytes_are_replaced(at: Desk) -> None:
    (at.root / "zero").write_bytes(b"a" * 8_000 + b"\0")
    (at.root / "late").write_bytes(b"a" * 9_000 + b"\0")
    (at.root / "bytes").write_bytes(b"caf\xe9\n")
    (at.root / "empty").touch()
    with (at.root / "large").open("wb") as file:
        file.write(b"x\n")
        file.truncate(10 * 1024 * 1024 + 1)
    assert await at.error("read_file", path="zero") == "a binary file: zero"
    assert "\0" in await at.text("read_file", path="late")
    assert await at.text("read_file", path="bytes") == "1\tcaf\ufffd"
    assert await at.text("read_file", path="empty") == "[the file is empty]"
    assert await at.error("read_file", path="large") == "larger than 10 MiB: large"


async def test_a_file_of_exactly_10_mib_is_read(at: Desk) -> None:
    fill(at, "a", content=("x" * 1_023 + "\n") * 10 * 1_024)
    assert "of 10240" in await at.text("read_file", path="a")


async def test_a_line_after_the_last_one_is_an_error_that_says_how_many_there_are(at: Desk) -> None:
    fill(at, "a", content="one\n")
    assert await at.error("read_file", path="a", start_line=2) == "the file has 1 lines, so there is no line 2: a"


async def test_what_is_missing_or_a_directory_is_told_with_the_path_as_given(at: Desk) -> None:
    fill(at, "d/a")
    assert await at.error("read_file", path="./x") == "no such file or directory: ./x"
    assert await at.error("read_file", path="d/") == "is a directory: d/"
    assert await at.error("read_file", path="d/a/b") == "not a directory: d/a/b"
    assert await at.error("read_file", path="") == "is a directory: "
    assert await at.error("read_file", path="n" * 300) == "file name too long: " + "n" * 300


# list_files


async def test_a_listing_is_sorted_and_marks_directories(at: Desk) -> None:
    fill(at, "b.txt", "b/x", "a", ".hidden", ".git/config")
    (at.root / "inside").symlink_to("b")
    (at.root / "outside").symlink_to("/etc")
    (at.root / "dangling").symlink_to("nowhere")
    os.mkfifo(at.root / "pipe")
    assert (await at.text("list_files")).split("\n") == [
        ".git/", ".hidden", "a", "b.txt", "b/", "dangling", "inside/", "outside", "pipe",
    ]  # fmt: skip
    assert await at.text("list_files", path="b") == "x"


async def test_a_large_directory_comes_in_pages_of_200(at: Desk) -> None:
    fill(at, *[f"d/{number:03}" for number in range(401)])
    first = (await at.text("list_files", path="d")).split("\n")
    assert first[199:] == ["199", '[entries 1 to 200 of 401; more: list_files(path="d", offset=200)]']
    assert await at.text("list_files", path="d", offset=400) == "400"
    assert await at.error("list_files", path="d", offset=401) == "there are 401 entries, so none is left after 401: d"


async def test_an_empty_directory_says_so_and_a_file_is_none(at: Desk) -> None:
    assert await at.text("list_files") == "[the directory is empty]"
    fill(at, "a")
    assert await at.error("list_files", path="a") == "not a directory: a"


async def test_names_that_are_no_text_do_no_harm(at: Desk) -> None:
    (at.root / "two\nlines").touch()
    (at.root / os.fsdecode(b"caf\xe9")).touch()
    assert await at.text("list_files") == "caf?\ntwo\\nlines"
    (await at.text("glob", pattern="**")).encode()


# write_file


async def test_a_file_is_written_with_its_parents(at: Desk) -> None:
    assert await at.text("write_file", path="x/y/z", content="h\u00e9\n") == "created x/y/z (4 bytes)"
    assert (at.root / "x/y/z").read_bytes() == "h\u00e9\n".encode()
    assert names(at.root / "x/y") == ["z"]


async def test_a_written_file_keeps_its_mode_and_is_another_file(at: Desk) -> None:
    fill(at, "a", content="old")
    (at.root / "a").chmod(0o751)
    with (at.root / "a").open() as reader:
        assert await at.text("write_file", path="a", content="new") == "replaced a (3 bytes)"
        assert reader.read() == "old"
    assert stat.S_IMODE((at.root / "a").stat().st_mode) == 0o751
    assert (at.root / "a").read_text() == "new"


async def test_a_new_file_gets_the_usual_mode(at: Desk) -> None:
    mask = os.umask(0o027)
    try:
        await at.text("write_file", path="a", content="")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((at.root / "a").stat().st_mode) == 0o640


async def test_a_write_to_what_is_no_file_is_refused(at: Desk) -> None:
    fill(at, "d/x", "a")
    os.mkfifo(at.root / "pipe")
    assert await at.error("write_file", path="d", content="") == "is a directory: d"
    assert await at.error("write_file", path=".", content="") == "is a directory: ."
    assert await at.error("write_file", path="pipe", content="") == "not a regular file: pipe"
    assert await at.error("write_file", path="a/b", content="") == "not a directory: a/b"
    assert "surrogate" in await at.error("write_file", path="new", content="\ud800")
    assert names(at.root) == ["a", "d", "pipe"]


async def test_a_write_that_is_cancelled_before_its_rename_changes_nothing(at: Desk) -> None:
    fill(at, "a", content="old")
    tool = at.tools["write_file"]
    assert isinstance(tool, WorkspaceTool)

    def work(workspace: Workspace, arguments: Mapping[str, Any]) -> str:
        trio.from_thread.run_sync(scope.cancel)
        return tool.work(workspace, arguments)

    with trio.CancelScope() as scope:
        await attrs.evolve(tool, work=work).run(context(at.root), {"path": "a", "content": "new"})
    assert scope.cancelled_caught
    assert (at.root / "a").read_text() == "old"
    assert names(at.root) == ["a"]


# edit


async def test_edits_are_made_in_order_on_the_text_so_far(at: Desk) -> None:
    fill(at, "a", content="one two\n")
    (at.root / "a").chmod(0o600)
    edits = [{"old": "one", "new": "two x"}, {"old": "two x", "new": "three"}]
    assert await at.text("edit", path="a", edits=edits) == "changed a (2 edits)"
    assert (at.root / "a").read_text() == "three two\n"
    assert stat.S_IMODE((at.root / "a").stat().st_mode) == 0o600


async def test_an_edit_that_does_not_fit_undoes_all(at: Desk) -> None:
    fill(at, "a", content="one two two\n")
    edits = [{"old": "one", "new": "1"}, {"old": "two", "new": "2"}]
    error = await at.error("edit", path="a", edits=edits)
    assert error.startswith("edit 2 of 2: `old` was found 2 times, not once")
    assert error.endswith("nothing was changed: a")
    assert (at.root / "a").read_text() == "one two two\n"
    assert "found 0 times" in await at.error("edit", path="a", edits=[{"old": "four", "new": ""}])


async def test_an_edit_keeps_line_ends_and_bytes_that_are_no_text(at: Desk) -> None:
    (at.root / "a").write_bytes(b"\xff one\r\ntwo\r\nthree\r\n")
    await at.text("edit", path="a", edits=[{"old": "one\ntwo", "new": "1\n2\n2b"}])
    assert (at.root / "a").read_bytes() == b"\xff 1\r\n2\r\n2b\r\nthree\r\n"


async def test_an_edit_of_what_cannot_be_read_is_an_error(at: Desk) -> None:
    assert await at.error("edit", path="x", edits=[{"old": "a", "new": "b"}]) == "no such file or directory: x"
    fill(at, "a", content="a\n")
    assert "surrogate" in await at.error("edit", path="a", edits=[{"old": "a", "new": "\ud800"}])
