"""What the page about stores tells can be done as it is told."""

import re

import pytest

import roder_trio as rt
from roder_trio import stores, testing
from roder_trio.cli.store import store as commands
from tests.roder_support import RoderThread
from tests.support import ROOT
from tests.transfer_support import fill

PAGE = (ROOT / "docs" / "stores.md").read_text()


async def test_the_calls_that_move_threads_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RoderThread(tmp_path / "roder", "theirs").metadata().turn().write()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "export_thread" in block]
    code = code.replace("~/.roder/threads", str(tmp_path / "roder"))
    body = "".join(f"    {line}\n" for line in code.splitlines())
    names = {"stores": stores}
    exec(f"async def run(store, other, thread_id):\n{body}", names)
    store, other = stores.JsonlThreadStore("."), stores.MemoryThreadStore()
    async with store.open():
        await fill(store, "damaged")
        await names["run"](store, other, "damaged")
        assert {row.thread_id for row in (await other.list_threads()).threads} == {"damaged", "another"}
        assert await store.load_thread("theirs") is not None
    assert (tmp_path / "saved.jsonl").exists()


async def test_a_snapshot_is_made_as_the_page_says():
    store = stores.MemoryThreadStore()
    await fill(store, "t")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def snapshot" in block]
    names = {}
    exec(code, names)
    thread = store._active["t"]
    assert names["snapshot"](thread.created, thread.records) == await store.load_thread("t")


def test_every_command_that_is_named_is_there_and_the_reverse():
    told = set(re.findall(r"^roder-trio store ([a-z-]+)", PAGE, re.MULTILINE))
    assert told == {name for name in commands if not name.startswith("-")}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"(?:testing|stores)\.(\w+)", PAGE))))
def test_every_name_that_is_told_is_exported(name):
    assert name in {*dir(testing), *dir(stores)}


def test_every_link_leads_somewhere():
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link


async def test_the_faulty_store_of_the_page_fails_as_it_says():
    store = testing.FaultyStore(stores.MemoryThreadStore(), fail={3: rt.StorageError("full")})
    await fill(store, batches=[[], []])
    with pytest.raises(rt.StorageError, match="full"):
        await store.append("t", [])
