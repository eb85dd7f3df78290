"""A server process: where it listens, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from adacur.core.errors import InputError
from adacur.serving.logs import in_its_words
from adacur.serving.turns import Turns

__all__ = ["listening", "run"]

# Answers that are ready are sent within this; nobody is given longer than that after the grace.
_SECONDS_TO_SEND = 5


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        # Only where the protocol is named does asyncio send small answers at once; else each waits some 40 ms.
        at = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                # Elsewhere this would let two servers have one port.
                at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            at.bind(address)
            at.listen(2048)
        except BaseException:
            at.close()
            raise
        return at
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise InputError(
                f"Port {port} of {host} is in use. Choose another with --port; --port 0 takes any that is free."
            ) from error
        raise InputError(
            f"Nobody can listen at {host} port {port}: {error}. Choose another with --port; 0 takes any that is free."
        ) from error


def run(app: FastAPI, at: socket.socket, *, grace_seconds: float, started: Callable[[], None], log: Any) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what was begun; a second signal ends the process at once.

    For a process that does nothing else: when all is done it ends within seconds, even if a scorer hangs.
    """
    config = uvicorn.Config(
        app,
        # httptools, which uvicorn would prefer where it is installed, reads heads of any length.
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SECONDS_TO_SEND,
    )
    process = _Process(config, turns=app.state.turns, grace_seconds=grace_seconds, started=started, log=log)
    with in_its_words(log):
        process.run(sockets=[at])


class _Process(uvicorn.Server):
    """uvicorn, but new searches are refused with 503 while those under way are finished, instead of not at all."""

    def __init__(
        self, config: uvicorn.Config, *, turns: Turns, grace_seconds: float, started: Callable[[], None], log: Any
    ) -> None:
        super().__init__(config)
        self._turns = turns
        self._grace_seconds = grace_seconds
        self._started_callback = started
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            self._started_callback()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets=sockets)
        finally:
            # Threads cannot be stopped, and Python waits for them: for ever, where a scorer hangs.
            last = threading.Timer(_SECONDS_TO_SEND, self._leave)
            last.daemon = True
            last.start()

    def _leave(self) -> None:
        names = sorted(thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive())
        self._log.error("left what did not end", threads=names)
        os._exit(1)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._turns.is_stopping or self._loop is None:
            # At once is what was asked for: neither answers nor threads are waited for.
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
            return
        self._turns.stop()
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._turns.all_done(), self._grace_seconds)
        self.should_exit = True
