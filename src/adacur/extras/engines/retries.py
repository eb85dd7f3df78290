"""Calls to an engine that are made again where no answer comes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from adacur.errors import EngineUnavailable
from adacur.requirements import require

_log = logging.getLogger(__name__)
T = TypeVar("T")
TRIES = 3
# Seconds before the second try; each later wait is four times as long.
_WAIT, _JITTER = 0.3, 0.2


class NoAnswer(Exception):
    """A call that the engine did not answer and that may be tried again; its words hold no credentials."""


def answered(store: str, call: Callable[[], T], *, extra: str, tries: int = TRIES) -> T:
    """The answer to a call, which is made again, at growing intervals, where `NoAnswer` came."""
    tenacity = require("tenacity", extra=extra)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(NoAnswer),
        stop=tenacity.stop_after_attempt(tries),
        wait=tenacity.wait_exponential(multiplier=_WAIT, exp_base=4) + tenacity.wait_random(0, _JITTER),
        before_sleep=tenacity.before_sleep_log(_log, logging.INFO),
        reraise=True,
    )
    try:
        answer: T = retrying(call)
    except NoAnswer as error:
        times = f", after {tries} tries" if tries > 1 else ""
        # The engine's own error, which may quote how it was reached, is not shown as the cause.
        raise EngineUnavailable(f"{store} does not answer{times}: {error}") from None
    return answer
