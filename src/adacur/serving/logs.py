"""What a server writes down: one line per request, as JSON for machines or in colour for a terminal."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import structlog

__all__ = ["in_its_words", "server_log", "silent_log"]


def server_log(file: TextIO | None = None) -> Any:
    """A logger that writes to `file` (stderr); configures nothing that others use."""
    file = file or sys.stderr
    # Not its default traceback, which shows the values of variables: queries, and keys.
    on_a_terminal = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    shown: Any = on_a_terminal if file.isatty() else structlog.processors.JSONRenderer()
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


@contextmanager
def in_its_words(log: Any) -> Iterator[None]:
    """Within the block, what uvicorn, asyncio and Python's warnings have to say is said by this logger."""
    told = _Told(log)
    others = [logging.getLogger(name) for name in ("uvicorn", "asyncio")]
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, category, *_, **__: log.warning(str(message), kind=category.__name__)
        for other in others:
            other.addHandler(told)
            other.propagate = False
        try:
            yield
        finally:
            for other in others:
                other.removeHandler(told)
                other.propagate = True


class _Told(logging.Handler):
    def __init__(self, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        say = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        say(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)


def silent_log() -> Any:
    """A logger that writes nowhere, for applications that keep their own books."""
    return structlog.wrap_logger(structlog.ReturnLogger(), processors=[_nothing], wrapper_class=structlog.BoundLogger)


def _nothing(logger: Any, name: str, event: Any) -> Any:
    raise structlog.DropEvent
