"""A server process: where it listens, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from adacur.core.errors import InputError
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
        raise InputError(
            f"Nobody can listen at {host} port {port}: {error}. Choose another with --port; 0 takes any that is free."
        ) from error


def run(app: FastAPI, at: socket.socket, *, grace_seconds: float, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what was begun; a second signal ends it at once."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SECONDS_TO_SEND,
    )
    _Process(config, turns=app.state.turns, grace_seconds=grace_seconds, started=started).run(sockets=[at])


class _Process(uvicorn.Server):
    """uvicorn, but new searches are refused with 503 while those under way are finished, instead of not at all."""

    def __init__(
        self, config: uvicorn.Config, *, turns: Turns, grace_seconds: float, started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._turns = turns
        self._grace_seconds = grace_seconds
        self._started_callback = started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            self._started_callback()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._turns.is_stopping or self._loop is None:
            self.should_exit = self.force_exit = True
            if sig == signal.SIGINT:
                super().handle_exit(sig, frame)
            return
        self._turns.stop()
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._turns.all_done(), self._grace_seconds)
        self.should_exit = True
