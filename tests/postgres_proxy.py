"""A way to a PostgreSQL server that can be cut at a commit, and be closed for a while."""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

COMMIT = b"COMMIT\0"
Cut = Literal["before", "after"]


class Proxy:
    """Passes bytes on. `cuts` holds what is done at the next commits: cut before the server hears of it, or after it
    did it and before the client hears; None passes one on."""

    def __init__(self, folder: Path, url: str) -> None:
        given = conninfo_to_dict(url)
        host, port = str(given.get("host", "")), str(given.get("port") or 5432)
        self._target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(port))
        self.url = make_conninfo(**{**given, "host": str(folder), "port": "5432"})
        self.cuts: deque[Cut | None] = deque()
        self.commits = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._open = True
        self._shuts = False
        self._closing = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def is_open(self) -> bool:
        return self._open

    def shut(self) -> None:
        """Cut all connections and take none until `reopen`."""
        self._open = False
        self.cut_all()

    def cut_and_shut(self, cut: Cut) -> None:
        """Cut at the next commit, which no other connection outlives; none is taken from then on, until `reopen`."""
        self._shuts = True
        self.cuts.append(cut)

    def reopen(self) -> None:
        self._open = True

    def cut_all(self) -> None:
        for pair in list(self._pairs):
            self._cut(pair)

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()  # from then on no pair is added
        self.cut_all()
        for thread in self._threads:
            thread.join()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                server.close()
                continue
            pair = (client, server)
            self._pairs.add(pair)
            if not self._open:  # shut since it was looked at
                self._cut(pair)
            self._start(self._to_server, pair)
            self._start(self._to_client, pair)

    def _to_server(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if COMMIT in data:
                    self.commits += 1
                    cut = self.cuts.popleft() if self.cuts else None
                    if cut is not None and self._shuts:
                        self._shut_but(pair)
                    if cut == "before":
                        break
                    if cut == "after":
                        client.shutdown(socket.SHUT_RDWR)
                        server.sendall(data)
                        continue
                server.sendall(data)
        self._cut(pair)

    def _shut_but(self, kept: tuple[socket.socket, socket.socket]) -> None:
        """Shut before the client of `kept` can hear that its connection is cut."""
        self._shuts = self._open = False
        for pair in self._pairs - {kept}:
            self._cut(pair)

    def _to_client(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        self._cut(pair)

    @staticmethod
    def _cut(pair: tuple[socket.socket, socket.socket]) -> None:
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def open_proxy(folder: Path, url: str) -> Iterator[Proxy]:
    proxy = Proxy(folder, url)
    try:
        yield proxy
    finally:
        proxy.close()
