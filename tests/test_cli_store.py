"""The commands that look after a store: what they print, how they exit, which store a name means."""

import json
from pathlib import Path

import pytest

from roder_trio import stores
from roder_trio.cli.location import password_in, store_at
from roder_trio.testing._sample import Sample
from tests.roder_support import RoderThread, usage
from tests.test_cli import Capture, call
from tests.transfer_support import fill, jsonl, log_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store that commands use when none is named."""
    monkeypatch.setenv("RODER_TRIO_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


async def filled(folder: Path, *thread_ids: str) -> None:
    async with jsonl(folder) as store:
        for thread_id in thread_ids:
            await fill(store, thread_id)
        if "gone" in thread_ids:
            await store.archive_thread("gone")


def damage(folder: Path, name: str) -> None:
    path = folder / "threads" / f"{name}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"garbage\n", *lines[2:]]))


# -- check


async def test_a_store_that_is_right_is_counted(folder: Path, capsys: Capture) -> None:
    await filled(folder, "a", "b", "gone")
    assert await call("store", "check") == 0
    out, err = capsys.readouterr()
    assert out == "2 threads and 1 archived ones with 3 turns and 21 records: all are as their logs say\n"
    assert err == ""
    assert await call("store", "check", "--store", str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "threads": 2,
        "archived": 1,
        "turns": 3,
        "records": 21,
        "failures": {},
    }


async def test_a_store_that_is_damaged_is_told_by_thread_and_left_as_it_is(folder: Path, capsys: Capture) -> None:
    await filled(folder, "a", "b")
    damage(folder, "b")
    before = (folder / "threads" / "b.jsonl").read_bytes()
    assert await call("store", "check") == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "b: it is damaged and can't be described"
    assert out[1].endswith(": 1 are wrong")
    assert await call("store", "check", "--json") == 1
    assert list(json.loads(capsys.readouterr().out)["failures"]) == ["b"]
    assert (folder / "threads" / "b.jsonl").read_bytes() == before


@pytest.mark.parametrize("command", [("check",), ("export", "t", "file"), ("copy", "SOURCE", "target")])
async def test_a_store_that_is_not_there_is_not_made(
    tmp_path: Path, folder: Path, capsys: Capture, command: tuple[str, ...]
) -> None:
    tokens = [{"SOURCE": str(folder), "target": str(tmp_path / "target")}.get(token, token) for token in command]
    assert await call("store", *tokens) == 1
    assert "There is no store in" in capsys.readouterr().err
    assert not folder.exists()


# -- export and import


async def test_a_thread_goes_to_a_file_and_from_there_into_another_store(
    tmp_path: Path, folder: Path, capsys: Capture
) -> None:
    await filled(folder, "a", "gone")
    for thread in ("a", "gone"):
        assert await call("store", "export", thread, str(tmp_path / thread)) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert f"thread {thread} was written to " in err
    other = str(tmp_path / "other")
    for new in ((), ("--new-id", "again"), ("--new-id", "again")):
        assert await call("store", "import", str(tmp_path / "a"), "--store", other, *new) == 0
        assert capsys.readouterr().out == f"{new[1] if new else 'a'}\n"
    async with jsonl(folder) as one, jsonl(Path(other)) as two:
        assert await log_of(one, "a") == await log_of(two, "a")
        assert len((await two.list_threads()).threads) == 2


async def test_an_export_is_overwritten_only_on_demand(tmp_path: Path, folder: Path, capsys: Capture) -> None:
    await filled(folder, "a")
    path = tmp_path / "file"
    path.write_text("mine")
    assert await call("store", "export", "a", str(path)) == 1
    assert "There is a file at" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert await call("store", "export", "a", str(path), "--overwrite") == 0
    assert path.read_text() != "mine"


async def test_a_file_that_is_no_export_is_told_in_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("nothing")
    assert await call("store", "import", str(tmp_path / "file")) == 1
    err = capsys.readouterr().err
    assert err.startswith("roder-trio: can't import the thread: ")
    assert len(err.splitlines()) == 1
    assert await call("store", "export", "unknown", str(tmp_path / "other")) == 1
    assert await call("store", "import") == 2


@pytest.mark.parametrize("new_id", ["", "x" * 513])
async def test_an_id_that_is_none_is_a_wrong_call(tmp_path: Path, folder: Path, capsys: Capture, new_id: str) -> None:
    await filled(folder, "a")
    assert await call("store", "export", "a", str(tmp_path / "file")) == 0
    assert await call("store", "import", str(tmp_path / "file"), "--new-id", new_id) == 2
    assert "roder-trio: The thread can't be imported: a thread id must be" in capsys.readouterr().err


# -- copies


async def test_a_store_is_copied_and_the_failures_are_listed(tmp_path: Path, folder: Path, capsys: Capture) -> None:
    await filled(folder, "a", "b", "gone")
    target = tmp_path / "target"
    assert await call("store", "copy", str(folder), str(target)) == 0
    assert capsys.readouterr().out == "3 threads copied, 0 failed\n"
    damage(folder, "b")
    assert await call("store", "copy", str(folder), str(target)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "b: it is damaged and can't be described",
        "2 threads copied, 1 failed",
    ]
    assert await call("store", "copy", str(folder), str(target), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["copied"]) == ["a", "gone"]
    assert list(found["failed"]) == ["b"]
    async with jsonl(target) as store:
        assert {row.thread_id for row in (await store.list_threads()).threads} == {"a", "b"}


# -- Roder


async def test_threads_of_roder_are_imported_with_their_warnings(tmp_path: Path, capsys: Capture) -> None:
    RoderThread(tmp_path / "threads", "good").metadata(usage=usage(1, 1)).turn(told=usage(2, 2)).write()
    RoderThread(tmp_path / "threads", "bad").metadata().file("events.jsonl", "garbage\n{}\n")
    assert await call("store", "import-roder", str(tmp_path / "threads")) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("bad: events.jsonl line 1")
    assert out.splitlines()[1] == "1 threads imported, 0 there already, 1 failed"
    assert "warning: good: the metadata count fewer tokens" in err
    assert await call("store", "import-roder", str(tmp_path / "threads"), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["imported"], found["skipped"], list(found["failed"])) == ([], ["good"], ["bad"])
    assert await call("store", "check") == 0
    assert await call("store", "import-roder", str(tmp_path / "store")) == 0
    assert "there is no thread directory" in capsys.readouterr().err


# -- migrate, and which store a name means


async def test_stores_in_files_are_up_to_date_once_they_were_opened(
    tmp_path: Path, folder: Path, capsys: Capture
) -> None:
    for place in (folder, tmp_path / "threads.db"):
        assert await call("store", "migrate", "--store", str(place)) == 0
        assert capsys.readouterr().out == "the store is up to date\n"
    assert await call("store", "check", "--store", str(tmp_path / "threads.db")) == 0
    (tmp_path / "file").write_text("no database")
    assert await call("store", "migrate", "--store", str(tmp_path / "file")) == 1


async def test_threads_move_between_a_folder_and_a_database(tmp_path: Path, folder: Path, capsys: Capture) -> None:
    await filled(folder, "a", "gone")
    database, back = str(tmp_path / "threads.db"), tmp_path / "back"
    assert await call("store", "copy", str(folder), database) == 0
    assert await call("store", "check", "--store", database) == 0
    assert await call("store", "copy", database, str(back)) == 0
    async with jsonl(folder) as one, jsonl(back) as two:
        for thread_id in ("a", "gone"):
            assert await log_of(one, thread_id) == await log_of(two, thread_id)


def test_a_store_is_named_by_its_path_or_url(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.db").mkdir()
    for name, kind in {
        "new": stores.JsonlThreadStore,
        "new.db": stores.SqliteThreadStore,
        "new.sqlite3": stores.SqliteThreadStore,
        "file": stores.SqliteThreadStore,
        "folder.db": stores.JsonlThreadStore,
    }.items():
        assert type(store_at(str(tmp_path / name))) is kind


def test_a_url_is_a_server_and_its_password_is_known_to_be_hidden() -> None:
    pytest.importorskip("psycopg")
    url = "postgresql://me:hunter2@localhost/threads"
    assert isinstance(store_at(url, migrate=True), stores.PostgresThreadStore)
    assert "hunter2" not in repr(store_at(url))
    assert password_in(url) == "hunter2"
    assert password_in("folder") is None
    assert password_in("postgresql://[bad") is None


@pytest.mark.parametrize("call_", [("check", "--store", "postgresql://"), ("check", "--store", "postgresql://[")])
async def test_a_url_that_is_none_is_a_wrong_call(call_: tuple[str, ...], capsys: Capture) -> None:
    pytest.importorskip("psycopg")
    assert await call("store", *call_) == 2
    assert capsys.readouterr().err.startswith("roder-trio: The store can't be reached: ")


async def test_the_password_of_a_server_is_in_no_error(capsys: Capture) -> None:
    pytest.importorskip("psycopg")
    assert await call("store", "check", "--store", "postgresql://me:hunter2@127.0.0.1:1/none?connect_timeout=1") == 1
    out, err = capsys.readouterr()
    assert "hunter2" not in out + err
    assert err.startswith("roder-trio: can't check the store: ")


async def test_control_characters_of_a_store_reach_no_terminal(tmp_path: Path, capsys: Capture) -> None:
    evil = "a\x1b[31mb"
    one, other = tmp_path / "one", tmp_path / "other"
    async with jsonl(one) as store:
        await fill(store, evil)
    async with jsonl(other) as store:
        await store.create_thread(Sample(evil).metadata(title="Another"))
    for flags in ((), ("--json",)):
        assert await call("store", "copy", str(one), str(other), *flags) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
    assert list(json.loads(out)["failed"]) == [evil]


async def test_threads_move_between_a_folder_and_a_server(
    database: str, tmp_path: Path, folder: Path, capsys: Capture
) -> None:
    await filled(folder, "a", "gone")
    assert await call("store", "migrate", "--store", database) == 0
    for _ in range(2):
        assert await call("store", "copy", str(folder), database) == 0
        assert capsys.readouterr().out.endswith("2 threads copied, 0 failed\n")
    assert await call("store", "check", "--store", database) == 0
    assert await call("store", "copy", database, str(tmp_path / "back")) == 0
    async with jsonl(folder) as one, jsonl(tmp_path / "back") as two:
        for thread_id in ("a", "gone"):
            assert await log_of(one, thread_id) == await log_of(two, thread_id)
        assert [row.thread_id for row in (await two.list_archived()).threads] == ["gone"]
    assert await call("store", "export", "gone", str(tmp_path / "file"), "--store", database) == 0
    assert await call("store", "import", str(tmp_path / "file"), "--new-id", "new", "--store", database) == 0
    assert await call("store", "check", "--store", database) == 0
