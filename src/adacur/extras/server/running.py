"""The server process: its socket, and how it stops."""

from __future__ import annotations

import errno
import os
import socket
import threading
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from adacur.errors import InputError
from adacur.extras.server.logs import forward_logs

_SECONDS_FOR_THREADS = 5


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at this host and port; port 0 takes any that is free."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        at = socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=both)
        # Only where the protocol is named does asyncio send small answers at once; else each waits some 40 ms.
        return socket.socket(at.family, at.type, socket.IPPROTO_TCP, fileno=at.detach())
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = f"Port {port} of {host} is in use" if in_use else f"Cannot listen at {host} port {port}: {error}"
        raise InputError(f"{reason}. Choose another with --port; --port 0 takes any that is free.") from error


def run(app: FastAPI, at: socket.socket, *, grace_seconds: float, log: Any) -> None:
    """Serve until SIGTERM or Ctrl-C, then give requests under way `grace_seconds` to finish; take no new ones.

    For a process that does nothing else: once all is done it ends within seconds, even if a scorer hangs.
    """
    config = uvicorn.Config(
        app,
        # httptools, which uvicorn would prefer where it is installed, reads heads of any length.
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,  # type: ignore[arg-type]
    )
    forward_logs(log)
    _Process(config, log=log).run(sockets=[at])


class _Process(uvicorn.Server):
    """uvicorn, but a stopped process exits with status 0, and does not wait for threads that hang."""

    def __init__(self, config: uvicorn.Config, *, log: Any) -> None:
        super().__init__(config)
        self._log = log

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop when requests under way are done; at a second signal, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; a few seconds after the end, exit even if threads still run."""
        try:
            await super().serve(sockets=sockets)
        finally:
            # Threads cannot be stopped, and Python waits for them: for ever, if a scorer hangs.
            last = threading.Timer(_SECONDS_FOR_THREADS, self._leave)
            last.daemon = True
            last.start()

    def _leave(self) -> None:
        names = sorted(thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive())
        self._log.error("threads did not end", threads=names)
        os._exit(1)
