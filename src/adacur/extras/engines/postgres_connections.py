"""Connections to Postgres that only read, and its errors in words."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from adacur.errors import AdacurError, EngineUnavailable, InputError
from adacur.requirements import require

_NOT_LET_IN = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


class Connections:
    """Connections to one database: a call borrows one that is idle, or opens one.

    Each transaction reads only, so that no filter can change a table. `address` is a URL without user and password,
    which are among the `secrets`.
    """

    def __init__(self, dsn: str, *, timeout: float) -> None:
        try:
            given = require("psycopg.conninfo", extra="postgres").conninfo_to_dict(dsn)
        except (_psycopg().Error, UnicodeError):
            # The error would repeat the text, password and all.
            raise InputError(
                "The address of a Postgres database is postgresql://host:port/database, or what else libpq takes."
            ) from None
        self._dsn, self._milliseconds = dsn, str(round(1000 * timeout))
        secrets = (given.get("password"), os.environ.get("PGPASSWORD"), given.get("user"), given.get("sslpassword"))
        self.secrets = [str(secret) for secret in secrets if secret]
        self.address = _address(given)
        self._idle: list[Any] = []
        self._closings = 0
        weakref.finalize(self, _close_all, self._idle)

    def read(self, statement: str, values: Sequence[Any], settings: Mapping[str, str]) -> list[Any]:
        """The rows of a statement, with these settings for it alone."""
        # What a condition sets for its session is undone with the rest. Nothing in a transaction that began as one that
        # reads only can make it write.
        with self._borrowed() as connection, connection.transaction(force_rollback=True):
            for name, value in settings.items():
                connection.execute("SELECT set_config(%s, %s, true)", [name, value])
            rows: list[Any] = connection.execute(statement, values).fetchall()
        return rows

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back; a later call connects again."""
        self._closings += 1
        _close_all(self._idle)

    @contextmanager
    def _borrowed(self) -> Iterator[Any]:
        closings = self._closings
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connected()
        try:
            yield connection
        finally:
            if connection.broken:
                # What broke this one broke the others.
                self.close()
            status = connection.info.transaction_status
            if closings == self._closings and status == _psycopg().pq.TransactionStatus.IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    def _connected(self) -> Any:
        connection = _psycopg().connect(
            self._dsn,
            autocommit=True,
            # Prepared statements would be planned without knowing the lists of keys; poolers do not like them either.
            prepare_threshold=None,
            client_encoding="utf8",
            tcp_user_timeout=self._milliseconds,
        )
        connection.execute("SELECT set_config('statement_timeout', %s, false)", [self._milliseconds])
        connection.read_only = True
        return connection


def explained(error: Exception) -> AdacurError | None:
    """What an error of psycopg means."""
    psycopg = _psycopg()
    if not isinstance(error, psycopg.Error):
        return None
    words = f"{type(error).__name__}: {(error.diag.message_primary or str(error)).strip().splitlines()[0]}"
    refused = (
        psycopg.ProgrammingError,
        psycopg.DataError,
        psycopg.IntegrityError,
        psycopg.NotSupportedError,
        psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.ActiveSqlTransaction,
    )
    # A connection that is refused has no code, only words; trying again would not help, and may lock an account.
    if isinstance(error, refused) or any(sign in str(error) for sign in _NOT_LET_IN):
        return InputError(words)
    return EngineUnavailable(words)


def _close_all(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


def _psycopg() -> Any:
    return require("psycopg", extra="postgres")


def _address(given: Mapping[str, Any]) -> str:
    """A URL of the database, without user and password."""
    hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "localhost").split(",")
    ports = str(given.get("port") or os.environ.get("PGPORT") or 5432).split(",")
    database = str(given.get("dbname") or os.environ.get("PGDATABASE") or "")
    ports = [port or "5432" for port in (ports * len(hosts) if len(ports) == 1 else ports)]
    # A '/' or '@' that is not escaped in a password makes a host, a port and a name of its parts.
    if len(ports) != len(hosts) or not all(map(str.isdigit, ports)) or any("@" in one for one in (*hosts, database)):
        raise InputError(
            "The host and the name of a Postgres database must not hold '@', and there must be one port, a number, for "
            "all hosts, or one for each."
        )
    places = [f"{quote(host, safe='')}:{port}" for host, port in zip(hosts, ports, strict=True)]
    return f"postgresql://{','.join(places)}/{quote(database, safe='')}"
