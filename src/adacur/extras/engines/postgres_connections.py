"""A pool of connections to Postgres; its errors say what to do."""

from __future__ import annotations

import contextlib
import json
import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import InputError
from adacur.extras.engines.retries import NoAnswer
from adacur.extras.engines.store_urls import check_seconds, split
from adacur.requirements import require

T = TypeVar("T")
_NOT_LET_IN = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


class Connections:
    """Connections to one database: a call borrows one that is idle, or opens one.

    Each transaction reads only, so that no filter can change a table. `address` is a URL without user and password.
    """

    def __init__(self, dsn: str, *, timeout: float, connect_timeout: float) -> None:
        psycopg = _psycopg()
        check_seconds(timeout=timeout, connect_timeout=connect_timeout)
        if "://" in dsn.partition("=")[0]:
            split(dsn, credentials=True)
        try:
            given = require("psycopg.conninfo", extra="postgres").conninfo_to_dict(dsn)
        except (psycopg.Error, UnicodeError):
            # The error would repeat the text, password and all.
            raise InputError(
                "The address of a Postgres database is postgresql://host:port/database, or what else libpq takes."
            ) from None
        self._dsn, self._timeout, self._connect_timeout = dsn, timeout, connect_timeout
        secrets = (given.get("password"), os.environ.get("PGPASSWORD"), given.get("user"), given.get("sslpassword"))
        self._secrets = [secret for secret in secrets if secret]
        self.address = _address(given)
        # A connection that was out when `close` was called is closed when it comes back.
        self._closings = 0
        self._idle: list[tuple[int, Any]] = []
        weakref.finalize(self, _close_all, self._idle)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        weakref.finalize(self, _close_all, self._idle)

    def read(self, statement: str, values: Sequence[Any], *, settings: Mapping[str, str]) -> list[Any]:
        """The rows of a statement, with these settings for it alone."""

        def ask(connection: Any) -> list[Any]:
            # What a condition sets for its session is undone with the rest. Nothing in a transaction that began as one
            # that reads only can make it write.
            with connection.transaction(force_rollback=True):
                for name, value in settings.items():
                    connection.execute("SELECT set_config(%s, %s, true)", [name, value])
                rows: list[Any] = connection.execute(statement, values).fetchall()
            return rows

        return self.lend(ask)

    def lend(self, work: Callable[[Any], T]) -> T:
        """Do work with a connection. `NoAnswer` where the server does not answer, InputError where it refuses."""
        connection, closings = None, self._closings
        try:
            connection = self._borrow()
            answer = work(connection)
        except _psycopg().Error as error:
            raise self._in_words(error) from None
        except UnicodeEncodeError:
            raise InputError(f"{self.address} takes Unicode text only, without lone surrogates.") from None
        finally:
            self._take_back(connection, closings)
        return answer

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back; a later call connects again."""
        self._closings += 1
        _close_all(self._idle)

    def _borrow(self) -> Any:
        with contextlib.suppress(IndexError):
            process, connection = self._idle.pop()
            # A fork must not use the sockets of its parent.
            if process == os.getpid():
                return connection
        milliseconds = str(round(1000 * self._timeout))
        connection = _psycopg().connect(
            self._dsn,
            autocommit=True,
            # Prepared statements would be planned without knowing the lists of keys; poolers do not like them either.
            prepare_threshold=None,
            connect_timeout=max(1, math.ceil(self._connect_timeout)),
            client_encoding="utf8",
            tcp_user_timeout=milliseconds,
        )
        connection.execute("SELECT set_config('statement_timeout', %s, false)", [milliseconds])
        connection.read_only = True
        return connection

    def _take_back(self, connection: Any, closings: int) -> None:
        if connection is None or connection.broken:
            # What broke this one broke the others.
            self.close()
        if connection is None:
            return
        idle = not connection.closed and connection.info.transaction_status == _psycopg().pq.TransactionStatus.IDLE
        if not idle or closings != self._closings:
            connection.close()
        else:
            self._idle.append((os.getpid(), connection))

    def _in_words(self, error: Any) -> Exception:
        said = (error.diag.message_primary or str(error)).strip().split("\n")[0]
        for secret in self._secrets:
            said = said.replace(secret, "***")
        psycopg = _psycopg()
        words = f"{type(error).__name__}: {said}"
        refused = (
            psycopg.ProgrammingError,
            psycopg.DataError,
            psycopg.IntegrityError,
            psycopg.NotSupportedError,
            psycopg.errors.ReadOnlySqlTransaction,
            psycopg.errors.ActiveSqlTransaction,
        )
        # A connection that is refused has no code, only words; trying again would not help, and may lock an account.
        let_in = not any(sign in str(error) for sign in _NOT_LET_IN)
        if isinstance(error, refused) or not let_in:
            return InputError(f"{self.address} refuses this. {words}")
        return NoAnswer(words)


def vector_text(row: FloatArray) -> str:
    """A vector as pgvector reads it."""
    return f"[{','.join(map(repr, row.tolist()))}]"


def jsonb_text(text: str) -> str:
    """JSON text whose numbers jsonb gives back as they are.

    A jsonb number has all its digits: 1.5e300 would come back as the whole number 15 · 10²⁹⁹, which is another one.
    """
    if "e+" not in text:
        return text
    exact = json.loads(text, parse_float=lambda digits: int(float(digits)) if "e+" in digits else float(digits))
    return json.dumps(exact, ensure_ascii=False)


def vector_received(sent: bytes) -> FloatArray:
    """A vector from what pgvector's vector_send gives."""
    return np.frombuffer(sent, dtype=">f4", offset=4).astype(np.float32)


def _psycopg() -> Any:
    return require("psycopg", extra="postgres")


def _address(given: Mapping[str, Any]) -> str:
    """A URL of the database, without user and password."""
    hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "localhost").split(",")
    ports = str(given.get("port") or os.environ.get("PGPORT") or 5432).split(",")
    database = str(given.get("dbname") or os.environ.get("PGDATABASE") or "")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts) or "://" in database or any("@" in host for host in hosts):
        raise InputError(
            "The host of a Postgres database must not hold '@', and its name no URL; there must be one port for all "
            "hosts, or one for each."
        )
    places = [f"{quote(host, safe='')}:{port or 5432}" for host, port in zip(hosts, ports, strict=True)]
    return f"postgresql://{','.join(places)}/{quote(database, safe='')}"


def _close_all(idle: list[tuple[int, Any]]) -> None:
    while True:
        try:
            process, connection = idle.pop()
        except IndexError:
            return
        if process == os.getpid():
            connection.close()
