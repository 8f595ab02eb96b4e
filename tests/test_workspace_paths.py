"""No path leads out of a workspace: not by links, by components, by what is swapped meanwhile or is no file."""

import contextlib
import os
import random
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from roder_trio.errors import ToolError
from roder_trio.tools.workspace.paths import Workspace, open_directory, open_file, open_workspace, status, telling
from roder_trio.tools.workspace.read import read_bytes
from roder_trio.tools.workspace.write import write_at, write_file
from tests.workspace_support import Desk, desk, fill, names, unhurried

SECRET = "SECRET"


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A workspace `root`, and beside it `root2` and `extra`, each with a secret file."""
    unhurried(monkeypatch)
    for name in ("root", "root2", "extra"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(SECRET)
    (tmp_path / "root/x").write_text("inside")
    return desk(tmp_path / "root")


def outside(at: Desk) -> dict[str, tuple[int, str]]:
    """All that lies beside the workspace."""
    found = {}
    for folder, _, files in os.walk(at.root.parent):
        if not Path(folder).is_relative_to(at.root):
            for name in files:
                path = Path(folder, name)
                if stat.S_ISREG(path.lstat().st_mode):
                    found[str(path)] = (path.lstat().st_ino, path.read_text())
    return found


async def refused(at: Desk, path: str) -> None:
    """Every tool refuses a path, in the same words."""
    before = outside(at)
    words = f"outside the workspace: {path}"
    assert await at.error("read_file", path=path) == words
    assert await at.error("list_files", path=path) == words
    assert await at.error("grep", pattern="", path=path) == words
    assert await at.error("glob", pattern="*", path=path) == words
    assert await at.error("write_file", path=path, content="new") == words
    assert await at.error("edit", path=path, edits=[{"old": SECRET, "new": "new"}]) == words
    assert outside(at) == before


@pytest.mark.parametrize(
    "path", ["../root2/x", "a/../../root2/x", "..", "/etc/passwd", "//etc/passwd", "../x", "d/../.."]
)
async def test_a_path_that_leads_out_is_refused(at: Desk, path: str) -> None:
    fill(at, "d/a")
    await refused(at, path)


async def test_a_neighbour_whose_name_begins_alike_is_outside(at: Desk) -> None:
    await refused(at, f"{at.root}2/x")


async def test_a_link_that_leads_out_is_refused_for_reading_and_for_writing(at: Desk) -> None:
    fill(at, "d/a")
    (at.root / "etc").symlink_to("/etc")
    (at.root / "up").symlink_to("../root2")
    (at.root / "file").symlink_to(at.root.parent / "root2/x")
    (at.root / "new").symlink_to("../root2/new")
    (at.root / "d/chain").symlink_to("../up")
    (at.root / "loop").symlink_to("loop")
    (at.root / "magic").symlink_to("/proc/self/root/etc")
    for path in ("etc", "etc/passwd", "up/x", "file", "new", "d/chain/x", "d/chain/../x", "loop", "magic/passwd"):
        await refused(at, path)
    assert not (at.root.parent / "root2/new").exists()


async def test_a_search_does_not_follow_links(at: Desk) -> None:
    (at.root / "up").symlink_to("../root2")
    (at.root / "file").symlink_to("../root2/x")
    (at.root / "again").symlink_to(".")
    assert SECRET not in await at.text("grep", pattern="")
    assert await at.text("glob", pattern="**") == "again/\nfile\nup\nx"


async def test_a_link_inside_is_fine_and_a_write_goes_to_its_target(at: Desk) -> None:
    fill(at, "real/a", content="one")
    (at.root / "d").symlink_to("real")
    (at.root / "f").symlink_to(at.root / "real/a")
    (at.root / "new").symlink_to("real/b")
    assert await at.text("read_file", path="d/a") == "1\tone"
    assert await at.text("list_files", path="d") == "a"
    assert await at.text("glob", pattern="*", path="d") == "real/a"
    assert await at.text("write_file", path="f", content="two") == "replaced real/a (3 bytes)"
    assert await at.text("edit", path="d/a", edits=[{"old": "two", "new": "three"}]) == "changed real/a (1 edit)"
    await at.text("write_file", path="new", content="four")
    assert (at.root / "f").is_symlink()
    assert ((at.root / "real/a").read_text(), (at.root / "real/b").read_text()) == ("three", "four")


async def test_the_root_has_several_names_and_a_tilde_is_none(at: Desk) -> None:
    fill(at, "~/a", content="home")
    for path in ("", ".", "./", "~/..", str(at.root), f"{at.root}/.", "none/.."):
        assert await at.text("list_files", path=path) == "x\n~/"
    assert await at.text("read_file", path="~/a") == "1\thome"
    assert await at.text("read_file", path=f"/{at.root}/x") == "1\tinside"


async def test_a_workspace_may_be_given_by_a_link(at: Desk) -> None:
    link = at.root.parent / "link"
    link.symlink_to("root")
    there = desk(link)
    assert await there.text("read_file", path=f"{link}/x") == "1\tinside"
    assert await there.text("read_file", path=f"{at.root}/x") == "1\tinside"
    await refused(there, "../root2/x")


async def test_the_whole_system_may_be_a_workspace(at: Desk) -> None:
    assert await desk(Path("/")).text("read_file", path=str(at.root / "x")) == "1\tinside"


async def test_an_extra_root_is_read_but_not_written(at: Desk) -> None:
    extra = at.root.parent / "extra"
    there = desk(at.root, (extra, at.root.parent / "gone"))
    (at.root / "link").symlink_to(extra)
    before = outside(at)
    for path in (f"{extra}/x", "link/x", "../extra/x"):
        assert await there.text("read_file", path=path) == f"1\t{SECRET}"
        assert await there.text("grep", pattern="SEC", path=path) == f"{extra}/x:1:{SECRET}"
        assert await there.error("write_file", path=path, content="") == f"outside the workspace: {path}"
    assert await there.text("glob", pattern=f"{extra}/*") == f"{extra}/x"
    assert await there.text("list_files", path=str(extra)) == "x"
    assert await there.error("read_file", path="../root2/x") == "outside the workspace: ../root2/x"
    assert outside(at) == before


async def test_what_is_no_regular_file_is_an_error_and_never_waits(at: Desk) -> None:
    os.mkfifo(at.root / "pipe")
    (at.root / "link").symlink_to("pipe")
    with trio.fail_after(60), socket.socket(socket.AF_UNIX) as listener:
        with contextlib.chdir(at.root):  # the path of a socket has room for 107 bytes
            listener.bind("socket")
        for path in ("pipe", "link", "socket"):
            assert await at.error("read_file", path=path) == f"not a regular file: {path}"
            assert await at.error("edit", path=path, edits=[{"old": "a", "new": "b"}]) == f"not a regular file: {path}"
            assert await at.error("write_file", path=path, content="") == f"not a regular file: {path}"
        for path in ("null", "zero", "tty"):
            assert await desk(Path("/dev")).error("read_file", path=path) == f"not a regular file: {path}"


async def test_what_is_no_path_is_an_error(at: Desk) -> None:
    assert "not a path" in await at.error("read_file", path="a\0b")
    assert "not a path" in await at.error("write_file", path="\ud800", content="")
    assert "longer than 4096" in await at.error("read_file", path="a/" * 3_000)


@pytest.mark.parametrize("parts", ["d/x", "d/e/x", "x"])
def test_what_is_swapped_for_a_link_after_the_check_is_refused(at: Desk, parts: str) -> None:
    fill(at, "d/x", "d/e/x", "x")
    before = outside(at)
    with open_workspace(at.root) as workspace:
        spot = workspace.locate(parts, for_writing=True)
        swapped = at.root / Path(parts).parts[0]
        swapped.rename(at.root / "old")
        target = at.root.parent / "root2"
        swapped.symlink_to(target if len(spot.parts) > 1 else target / "x")
        with pytest.raises(ToolError, match=f"^outside the workspace: {parts}$"), telling(parts):
            read_bytes(spot)
        with pytest.raises(ToolError, match=f"^outside the workspace: {parts}$"), telling(parts):
            write_at(spot, b"new")
    assert outside(at) == before


def test_what_is_swapped_for_a_pipe_after_the_check_is_an_error(at: Desk) -> None:
    with open_workspace(at.root) as workspace:
        spot = workspace.locate("x")
        (at.root / "x").unlink()
        os.mkfifo(at.root / "x")
        with pytest.raises(ToolError, match="not a regular file"), open_file(spot):
            pass


def test_a_root_that_is_swapped_stays_the_one_that_was_opened(at: Desk) -> None:
    with open_workspace(at.root) as workspace:
        at.root.rename(at.root.parent / "moved")
        at.root.symlink_to("root2")
        with pytest.raises(ToolError, match="outside"):
            workspace.locate("x")
        assert names(at.root.parent / "moved") == ["x"]


def test_a_directory_that_appears_meanwhile_is_entered(at: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls may make the same directory."""
    real = os.mkdir

    def twice(name: str, *, dir_fd: int) -> None:
        real(name, dir_fd=dir_fd)
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", twice)
    with open_workspace(at.root) as workspace, open_directory(workspace.locate("new/dir"), create=True):
        assert (at.root / "new/dir").is_dir()


@contextlib.contextmanager
def swapping(at: Desk) -> Iterator[None]:
    """Make `d` in turn a directory and a link that leads out, until the block ends."""
    over = threading.Event()
    fill(at, "real/x", content="inside")
    (at.root / "way").symlink_to("../root2")
    (at.root / "real").rename(at.root / "d")

    def put(name: str) -> None:
        while True:
            try:
                (at.root / name).rename(at.root / "d")
            except OSError:  # a write has made the directory meanwhile
                shutil.rmtree(at.root / "d", ignore_errors=True)
            else:
                return

    def swap() -> None:
        while not over.is_set():
            (at.root / "d").rename(at.root / "real")
            put("way")
            (at.root / "d").rename(at.root / "way")
            put("real")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def test_a_parent_that_is_swapped_all_the_time_never_leads_out(at: Desk) -> None:
    before = outside(at)
    seen = set()

    def many() -> None:
        for _ in range(1_500):
            with open_workspace(at.root) as workspace, contextlib.suppress(ToolError, OSError):
                seen.add(read_bytes(workspace.locate("d/x")))
            with open_workspace(at.root) as workspace, contextlib.suppress(ToolError):
                write_file(workspace, {"path": "d/y", "content": "new"})
            with open_workspace(at.root) as workspace, contextlib.suppress(ToolError, OSError):
                status(workspace.locate("d/x"))

    with swapping(at):
        await trio.to_thread.run_sync(many)
    assert seen <= {b"inside"}
    assert outside(at) == before


# random layouts and paths

NAMES = ["a", "b", "c", "d"]


def layout(root: Path, choose: random.Random) -> None:
    """Fill a workspace with directories, files, pipes and links that lead anywhere."""
    folders = [root]
    for _ in range(choose.randint(3, 12)):
        place = choose.choice(folders) / choose.choice(NAMES)
        if os.path.lexists(place):
            continue
        match choose.randrange(8):
            case 0 | 1 | 2:
                place.mkdir()
                folders.append(place)
            case 3:
                place.write_text("inside")
            case 4 if choose.random() < 0.3:
                os.mkfifo(place)
            case _:
                place.symlink_to(target(root, choose))


def target(root: Path, choose: random.Random) -> str:
    start = choose.choice(["", "", "./", "../", "../../", f"{root}/", f"{root.parent}/", f"{root}2/", "/", "//"])
    return start + walked(choose) or "."


def walked(choose: random.Random) -> str:
    steps = [*NAMES, *NAMES, "..", "..", ".", "x", "root", "root2"]
    return "/".join(choose.choice(steps) for _ in range(choose.randint(0, 5)))


def try_path(at: Desk, given: str) -> str:
    """Read and write one path; what may be read by the system's own judgement must be read, all else refused."""
    resolved = Path(os.path.realpath(at.root / given.replace("//", "/")))
    is_inside = resolved.is_relative_to(at.root)
    can_read = is_inside and resolved.is_file() and not given.endswith("/")
    with open_workspace(at.root) as workspace:
        content = read(workspace, given)
        if can_read:
            assert content in ("inside", "written"), given
        else:
            expected = "" if is_inside else f"outside the workspace: {given}"
            assert content.startswith("error: "), given
            assert content.endswith(expected), (given, content)
        try:
            write_file(workspace, {"path": given, "content": "written"})
        except ToolError:
            return "an error" if is_inside else "outside"
    assert is_inside
    return "written"


def read(workspace: Workspace, given: str) -> str:
    try:
        with telling(given):
            return read_bytes(workspace.locate(given)).decode()
    except ToolError as error:
        return f"error: {error}"


async def test_of_10000_random_paths_in_random_layouts_none_leads_out(at: Desk) -> None:
    choose = random.Random(20_240_101)
    counts = dict.fromkeys(("written", "an error", "outside"), 0)

    def many() -> None:
        for number in range(250):
            root = at.root.parent / f"case{number}" / "root"
            root.mkdir(parents=True)
            (root.parent / "root2").mkdir()
            (root.parent / "root2/x").write_text(SECRET)
            layout(root, choose)
            one = desk(root)
            secrets = outside(one)
            for _ in range(40):
                counts[try_path(one, target(root, choose))] += 1
            assert outside(one) == secrets

    await trio.to_thread.run_sync(many)
    assert min(counts.values()) > 100, counts
    assert sum(counts.values()) == 10_000
