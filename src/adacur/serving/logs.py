"""What a server writes down: one line per request, as JSON for machines or in colour for a terminal."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import structlog

__all__ = ["server_log", "silent_log"]


def server_log(file: TextIO | None = None) -> Any:
    """A logger that writes to `file` (stderr); configures nothing that others use."""
    file = file or sys.stderr
    shown: Any = structlog.dev.ConsoleRenderer() if file.isatty() else structlog.processors.JSONRenderer()
    return structlog.wrap_logger(
        structlog.WriteLogger(file),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if file.isatty() else [structlog.processors.format_exc_info]),
            shown,
        ],
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=True,
    )


def silent_log() -> Any:
    """A logger that writes nowhere, for applications that keep their own books."""
    return structlog.wrap_logger(structlog.ReturnLogger(), processors=[_nothing], wrapper_class=structlog.BoundLogger)


def _nothing(logger: Any, name: str, event: Any) -> Any:
    raise structlog.DropEvent
