"""The one door between a search and a vector store: what is asked and what is answered is checked here."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError, EngineRefused, EngineUnavailable, InputError, UnknownName
from adacur.extras.engines.vector_store import Found, Key, Nearest, VectorStore, Where
from adacur.records import Item, check_texts

_log = logging.getLogger(__name__)
# Seconds before the second and the third try.
WAITS = (0.3, 1.2)
# Lone surrogates cannot be encoded as UTF-8, and some engines refuse NUL.
_UNFIT = re.compile("[\0\ud800-\udfff]")
_USER_IN_URL = re.compile(r"//\S*@")
_SECRET_VALUE = re.compile(
    r"""((?:key|password|passwd|pwd|token|secret|authorization)["']?\s*[=:]\s*)(?:bearer\s+)?("[^"]*"|'[^']*'|[^\s,;&)]+)""",
    re.IGNORECASE,
)
_SHOWN, _LONGEST_REASON = 60, 300
_MOST_ITEMS = 2**62
Answer = TypeVar("Answer")


class CheckedStore(VectorStore):
    """A store asked with care: three times where its engine is silent, and its answers are checked.

    What it refuses is an `EngineRefused`; silence, faults and answers that make no sense (keys that nobody asked for,
    NaN, rows of another size) are an `EngineUnavailable`. No error repeats a password.
    """

    def __init__(self, store: VectorStore, *, waits: Sequence[float] = WAITS) -> None:
        self.store, self._waits = store, waits
        self.vector, self.text_fields, self.adds_words = store.vector, store.text_fields, store.adds_words

    @property
    def name(self) -> str:
        return self.store.name

    def dimensions(self) -> dict[str, int]:
        return self._ask("dimensions", lambda: {str(name): int(n) for name, n in self.store.dimensions().items()})

    def count(self, where: Where = None) -> int:
        where = plain_filter(where)
        count = self._ask("count", lambda: self.store.count(where))
        if not isinstance(count, int) or not 0 <= count < _MOST_ITEMS:
            raise self._invalid(f"it counts {count!r} items")
        return count

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        where, size = plain_filter(where), self._size(vector)
        asked = [replace(one, weights=self._weights(one, size, vector)) for one in questions]
        sent = [one for one in asked if _may_have_answers(one)]

        def ask() -> list[Found]:
            answers = self.store.best(vector, sent, where=where, exact=exact) if sent else []
            if len(answers) != len(sent):
                raise self._invalid(f"{len(answers)} answers to {len(sent)} questions")
            return [self._checked(*pair) for pair in zip(answers, sent, strict=True)]

        answers = iter(self._ask("best", ask))
        return [next(answers) if _may_have_answers(one) else Found((), np.empty(0)) for one in asked]

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        size, wanted = self._size(vector), set(keys)

        def ask() -> dict[Key, FloatArray]:
            sent = self.store.rows(vector, list(keys)) if keys else {}
            rows = {key: np.asarray(row, dtype=np.float32) for key, row in sent.items() if key in wanted}
            for key, row in rows.items():
                if row.shape != (size,) or not np.isfinite(row).all():
                    raise self._invalid(f"the vector {vector!r} of {key!r} is not {size} finite numbers")
            return rows

        return self._ask("rows", ask)

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        wanted = set(keys)

        def ask() -> dict[Key, Item]:
            sent = self.store.items(list(keys)) if keys else {}
            items = {key: item for key, item in sent.items() if key in wanted}
            for item in items.values():
                check_texts("Item", item.id, item.text)
            return items

        return self._ask("items", ask)

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        where, question = plain_filter(where), Nearest(np.empty(0), n)
        # Such characters cannot be sent, and no stored text has any.
        sent = _UNFIT.sub(" ", text)
        if n < 1 or not sent.strip():
            return Found((), np.empty(0))
        return self._ask("words", lambda: self._checked(self.store.words(sent, n, where=where), question))

    def sample(self, n: int) -> tuple[Key, ...]:
        return self._ask("sample", lambda: tuple(dict.fromkeys(self.store.sample(n)))[:n]) if n > 0 else ()

    def close(self) -> None:
        self.store.close()

    def _ask(self, name: str, ask: Callable[[], Answer]) -> Answer:
        for wait in (*self._waits, None):
            try:
                return ask()
            except BaseException as error:
                failure, is_silence = self._explained(error, name)
                if failure is None:
                    raise
            # Not within `except`: the client's own error may hold what must not be shown.
            if wait is None or not is_silence:
                raise failure
            _log.info("%s; asking again in %.1f s", failure, wait)
            time.sleep(wait)
        raise AssertionError

    def _explained(self, error: BaseException, name: str) -> tuple[AdacurError | None, bool]:
        """An error as one of ours, and whether the engine was silent; None where it is fit to be shown as it is."""
        if isinstance(error, InputError | UnknownName):
            return EngineRefused(self._without_secrets(str(error))), False
        if isinstance(error, AdacurError):
            return None, False
        if isinstance(error, Exception) and (meant := self.store.explain(error)) is not None:
            reason = self._without_secrets(str(meant))[:_LONGEST_REASON].rstrip(".")
            if isinstance(meant, EngineUnavailable):
                return EngineUnavailable(f"{self.name} does not answer: {reason}."), True
            return EngineRefused(f"{self.name} refuses this: {reason}."), False
        # What Rust libraries raise when they panic is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            return None, False
        reason = self._without_secrets(str(error))[:_LONGEST_REASON]
        return self._invalid(f"{name}() failed with {type(error).__name__}: {reason}"), False

    def _without_secrets(self, text: str) -> str:
        for secret in filter(None, self.store.secrets):
            text = text.replace(secret, "***")
        return without_secrets(text)

    def _size(self, vector: str) -> int:
        sizes = self.dimensions()
        if vector not in sizes:
            known = ", ".join(map(repr, sizes)) or "none"
            raise UnknownName(f"{self.name} has no vector {shown(vector)} to search by. It has: {known}.")
        return sizes[vector]

    def _weights(self, question: Nearest, size: int, vector: str) -> FloatArray:
        weights = np.asarray(question.weights, dtype=np.float32)
        if weights.shape != (size,) or not np.isfinite(weights).all():
            raise InputError(
                f"Weights for the vector {vector!r} of {self.name} must be {size} finite numbers; got an array of the "
                f"shape {weights.shape}."
            )
        return weights

    def _checked(self, found: Found, question: Nearest) -> Found:
        keys, values = tuple(found.keys), np.asarray(found.values, dtype=np.float64)
        if values.shape != (len(keys),) or not np.isfinite(values).all():
            raise self._invalid("its values are not finite numbers, one for each key")
        without = set(question.without)
        within = None if question.within is None else set(question.within)
        known: set[Key] = set()
        for key in keys:
            if key in without or (within is not None and key not in within):
                raise self._invalid(f"{key!r}, which was not asked for")
            if key in known or key is None:
                raise InputError(
                    f"Each item must have an id of its own; in {self.name} {key!r} occurs more than once, or is none. "
                    "Keep one row of each, or name a column of distinct ids with id_field= (?id= in a URL)."
                )
            known.add(key)
        order = np.argsort(-values, kind="stable")[: question.n]
        return Found(tuple(keys[at] for at in order.tolist()), values[order])

    def _invalid(self, what: str) -> EngineUnavailable:
        return EngineUnavailable(f"{self.name} gave an invalid answer: {what}.")


def _may_have_answers(question: Nearest) -> bool:
    return question.n > 0 and (question.within is None or len(question.within) > 0)


def plain_filter(where: Where) -> Where:
    """A dictionary of metadata with a list of plain values under each name; other filters as they are."""
    if not isinstance(where, Mapping):
        return where
    plain = {}
    for name, values in where.items():
        some = list(values) if isinstance(values, list | tuple | set | frozenset) else [values]
        plain[name] = some = [one.item() if isinstance(one, np.generic) else one for one in some]
        if not isinstance(name, str) or not name or not all(map(_is_plain, [name, *some])):
            raise InputError(
                "A filter compares metadata with Unicode texts without NUL, finite numbers of 64 bits, True, False or "
                f"None; got one on {shown(name)}."
            )
    return plain


def _is_plain(value: object) -> bool:
    """Whether every engine can compare with a value."""
    if isinstance(value, str):
        return _UNFIT.search(value) is None
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and -(2**63) <= value < 2**63)


def without_secrets(text: str) -> str:
    """A text without the user and password of URLs in it, and without values that are called password, key or so."""
    return _SECRET_VALUE.sub(r"\1…", _USER_IN_URL.sub("//…@", text))


def shown(value: object) -> str:
    """A value as an error repeats it: the beginning."""
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
