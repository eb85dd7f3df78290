"""The server's log: one line per request, as JSON for machines or in colour for a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog


def server_log(file: TextIO | None = None) -> Any:
    """A logger that writes to `file` (stderr); configures nothing that others use."""
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


def forward_logs(log: Any) -> None:
    """From now on this process writes what uvicorn, asyncio and Python's warnings say to this logger."""

    def forward(record: logging.LogRecord) -> None:
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)

    handler = logging.Handler(logging.WARNING)
    handler.emit = forward  # type: ignore[method-assign]
    logging.captureWarnings(True)
    for name in ("uvicorn", "asyncio", "py.warnings"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False


def silent_log() -> Any:
    """A logger that writes nowhere, for applications that log by themselves."""
    return structlog.wrap_logger(structlog.ReturnLogger(), processors=[], wrapper_class=structlog.BoundLogger)
