"""A vector store that others wrote: what it answers is checked, and its errors repeat no password."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest

from adacur.errors import EngineRefused, EngineUnavailable, InputError
from adacur.extras.engines.checked_store import CheckedStore, without_secrets
from adacur.extras.engines.vector_store import Nearest
from adacur.records import Item
from tests.memory_store import MemoryStore

SECRET = "tom" + "ate"
CALLS: dict[str, tuple[Any, ...]] = {
    "dimensions": (),
    "count": (),
    "best": ("", [Nearest(np.ones(2, dtype=np.float32), 1)]),
    "rows": ("", [0]),
    "items": ([0],),
    "words": ("red", 1),
    "sample": (2,),
}


def store_that(method: str, answer: Any) -> CheckedStore:
    store = MemoryStore([Item("a", "red")], {"": np.ones((1, 2), dtype=np.float32)})

    def answered(*_: Any, **__: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    setattr(store, method, answered)
    return CheckedStore(store, waits=(0, 0))


def ask(store: CheckedStore, method: str) -> Any:
    return getattr(store, method)(*CALLS[method])


@pytest.mark.parametrize("answer", [None, 7, [None], {"a": None}])
@pytest.mark.parametrize("method", list(CALLS))
def test_an_answer_of_another_shape_is_an_invalid_answer_of_the_engine(method: str, answer: Any) -> None:
    store = store_that(method, answer)
    allowed = (method == "count" and answer == 7) or (method == "sample" and isinstance(answer, list | dict))
    # Keys that nobody asked for are passed over.
    allowed |= method in ("rows", "items") and isinstance(answer, dict)
    if allowed:
        ask(store, method)
    else:
        with pytest.raises(EngineUnavailable):
            ask(store, method)


@pytest.mark.parametrize(
    "said",
    [
        f"cannot reach postgresql://me:{SECRET}@host:5432/things",
        f"cannot reach https://me:a/{SECRET}@host",
        f"FATAL: host=h password={SECRET} dbname=d",
        f"options {{'api_key': '{SECRET}', 'n': 1}}",
        f'{{"token": "{SECRET}"}}',
        f"401 for Authorization: Bearer {SECRET}",
        f"https://host/things?api-key={SECRET}&table=x",
    ],
)
@pytest.mark.parametrize("error", [RuntimeError, ValueError, InputError, KeyboardInterrupt])
def test_a_password_in_an_error_of_a_store_is_not_repeated(said: str, error: type[BaseException]) -> None:
    kinds = {InputError: EngineRefused, KeyboardInterrupt: KeyboardInterrupt}
    with pytest.raises(kinds.get(error, EngineUnavailable)) as caught:
        ask(store_that("count", error(said)), "count")
    if error is not KeyboardInterrupt:
        assert SECRET not in str(caught.value)
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_words_without_a_secret_stay() -> None:
    said = "column key not found at https://host/things?table=x (errno 7)"
    assert without_secrets(said) == said
