"""The tables and their migrations: made once, by one at a time, and never by a store that wasn't told to."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import trio

import roder_trio as rt
from roder_trio import stores
from roder_trio.stores.postgres import schema
from tests.postgres_support import created, open_stores
from tests.test_cli import call

RELATIONS = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY relname"
NEXT: schema.Step = ("ALTER TABLE thread ADD COLUMN colour text", "UPDATE thread SET colour = 'blue'")


def linked(url: str, work: Callable[[Any], Any]) -> Any:
    with psycopg.connect(url, autocommit=True) as link:
        return work(link)


def relations(url: str) -> list[Any]:
    found: list[Any] = linked(url, lambda link: link.execute(RELATIONS).fetchall())
    return found


async def enter(url: str, **options: Any) -> None:
    async with stores.PostgresThreadStore(url, **options).open():
        pass


async def test_a_store_that_may_not_migrate_defines_nothing(empty_database: str) -> None:
    with pytest.raises(rt.StorageError, match=r"no tables yet.*`roder-trio store migrate`.*migrate=True"):
        await enter(empty_database)
    assert relations(empty_database) == []
    await enter(empty_database, migrate=True)
    made = relations(empty_database)
    await enter(empty_database)
    await enter(empty_database, migrate=True)
    assert relations(empty_database) == made


async def test_the_command_line_makes_the_tables(empty_database: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = ("--store", empty_database)
    assert await call("threads", "list", *store) == 1
    assert "run `roder-trio store migrate`" in capsys.readouterr().err
    assert await call("store", "migrate", *store) == 0
    assert "up to date" in capsys.readouterr().out
    assert await call("store", "check", *store) == 0
    linked(empty_database, schema.check)


async def test_an_older_schema_is_refused_and_brought_up_to_date(empty_database: str, tenant: str) -> None:
    async with open_stores(empty_database, tenant, migrate=True) as (store,):
        await created(store)
    newer = (*schema.STEPS, NEXT)
    with pytest.raises(rt.StorageError, match="has version 1 of the schema, but version 2 is needed"):
        linked(empty_database, lambda link: schema.check(link, newer))
    assert linked(empty_database, lambda link: schema.migrate(link, newer)) == 1
    assert linked(empty_database, lambda link: link.execute("SELECT colour FROM thread").fetchall()) == [("blue",)]
    linked(empty_database, lambda link: schema.check(link, newer))


async def test_a_newer_schema_is_left_alone(empty_database: str) -> None:
    linked(empty_database, lambda link: schema.migrate(link, (*schema.STEPS, NEXT)))
    made = relations(empty_database)
    for migrate in (False, True):
        with pytest.raises(rt.SchemaTooNew, match="version 2"):
            await enter(empty_database, migrate=migrate)
    assert relations(empty_database) == made


def test_a_step_that_fails_leaves_the_version_before_it(empty_database: str) -> None:
    broken = (*schema.STEPS, ("CREATE TABLE half (id text)", "SELECT 1/0"))
    with pytest.raises(psycopg.errors.DivisionByZero):
        linked(empty_database, lambda link: schema.migrate(link, broken))
    assert linked(empty_database, schema.version_of) == 1
    assert ("half",) not in relations(empty_database)
    linked(empty_database, schema.check)


def test_of_two_migrators_one_works_and_the_other_finds_it_done(empty_database: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: linked(empty_database, schema.migrate), range(4)))
    assert sorted(done) == [0, 0, 0, len(schema.STEPS)]


async def test_stores_that_migrate_at_once_all_open(empty_database: str) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(lambda: enter(empty_database, migrate=True))


def test_a_migrator_waits_for_another_only_so_long(empty_database: str) -> None:
    def held(link: Any) -> None:
        link.execute("SELECT pg_advisory_lock(%s)", (schema.MIGRATION_KEY,))
        with pytest.raises(rt.StorageError, match=r"more than 0\.1 s"):
            linked(empty_database, lambda other: schema.migrate(other, lock_seconds=0.1))

    linked(empty_database, held)
    assert linked(empty_database, schema.migrate) == len(schema.STEPS)


async def test_a_database_with_other_tables_of_those_names_is_left_as_it_is(empty_database: str) -> None:
    linked(empty_database, lambda link: link.execute("CREATE TABLE thread (id text)"))
    with pytest.raises(rt.StorageError, match=r"could not be opened.*already exists"):
        await enter(empty_database, migrate=True)
    assert linked(empty_database, schema.version_of) == 0
