"""The server process: its socket, its log, and how it stops."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import threading
from types import FrameType
from typing import Any, TextIO

import structlog
import uvicorn
from fastapi import FastAPI

from adacur.errors import InputError

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
    _forward_logs(log)
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the application in order after a second signal too; it does not wait for requests then."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()

    def _leave(self) -> None:
        names = sorted(thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive())
        self._log.error("threads did not end", threads=names)
        os._exit(1)


def server_log(file: TextIO | None = None) -> Any:
    """A logger that writes a line per request to `file` (stderr): JSON, or in colour for a terminal."""
    file = file or sys.stderr
    # Not structlog's default traceback, which shows the values of variables: queries, and keys.
    for_people = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    for_machines = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    return structlog.wrap_logger(
        structlog.WriteLogger(file),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([for_people] if file.isatty() else for_machines),
        ],
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _forward_logs(log: Any) -> None:
    """From now on this process writes what uvicorn, asyncio and Python's warnings say to this logger."""

    def forward(record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            # A request that the end of the grace period cut off; its own line says so.
            return
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)

    handler = logging.Handler(logging.WARNING)
    handler.emit = forward  # type: ignore[method-assign]
    logging.captureWarnings(True)
    for name in ("uvicorn", "asyncio", "py.warnings"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
