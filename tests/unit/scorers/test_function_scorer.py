from __future__ import annotations

import asyncio
import functools
import threading

import pytest

from adacur.errors import InputError, NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.records import Item, Query
from adacur.scorers import FunctionScorer

PAIRS = [(Query(f"q{n}", "x" * n), Item(f"i{n}", "y" * 2 * n)) for n in range(7)]


def lengths(pairs: list[tuple[str, str]]) -> list[float]:
    return [len(query) + len(item) for query, item in pairs]


async def slow_lengths(pairs: list[tuple[str, str]]) -> list[float]:
    await asyncio.sleep(0)
    return lengths(pairs)


class AsyncLengths:
    async def __call__(self, pairs: list[tuple[str, str]]) -> list[float]:
        return await slow_lengths(pairs)


CALLABLES = {
    "plain": lengths,
    "async": slow_lengths,
    "async object": AsyncLengths(),
    "partial": functools.partial(slow_lengths),
}


@pytest.fixture(params=CALLABLES.values(), ids=CALLABLES.keys())
def function(request):
    return request.param


@pytest.mark.parametrize("batch_size", [None, 1, 3, 100])
def test_each_pair_of_texts_gets_its_score(function, batch_size) -> None:
    scorer = FunctionScorer(function, batch_size=batch_size)
    assert scorer.score(PAIRS).tolist() == [3.0 * n for n in range(7)]
    assert asyncio.run(scorer.ascore(PAIRS)).tolist() == [3.0 * n for n in range(7)]


def test_it_can_be_asked_where_a_loop_is_running(function) -> None:
    async def inside() -> list[float]:
        return FunctionScorer(function).score(PAIRS).tolist()

    assert asyncio.run(inside()) == [3.0 * n for n in range(7)]


def test_an_async_function_keeps_its_loop_between_calls() -> None:
    loops = []

    async def remembering(pairs):
        loops.append(asyncio.get_running_loop())
        return lengths(pairs)

    scorer = FunctionScorer(remembering)
    scorer.score(PAIRS)
    scorer.score(PAIRS)
    assert loops[0] is loops[1]
    assert not loops[0].is_closed()


def test_an_async_scorer_may_ask_another_one() -> None:
    inner = FunctionScorer(slow_lengths)

    async def outer(pairs):
        return inner.score([(Query("", query), Item("", item)) for query, item in pairs])

    assert FunctionScorer(outer).score(PAIRS).tolist() == [3.0 * n for n in range(7)]


def test_a_plain_function_does_not_hold_up_the_loop() -> None:
    async def both() -> None:
        other_side = threading.Event()

        def waiting(pairs):
            assert other_side.wait(60)
            return lengths(pairs)

        task = asyncio.create_task(FunctionScorer(waiting).ascore(PAIRS))
        await asyncio.sleep(0)
        other_side.set()
        await task

    asyncio.run(both())


def test_an_error_inside_becomes_scorer_failed_with_its_cause() -> None:
    def failing(pairs):
        raise ZeroDivisionError("by nought")

    async def failing_later(pairs):
        await asyncio.sleep(0)
        failing(pairs)

    for function in (failing, failing_later):
        scorer = FunctionScorer(function)
        for ask in (scorer.score, lambda pairs, scorer=scorer: asyncio.run(scorer.ascore(pairs))):
            with pytest.raises(ScorerFailed, match=r"ZeroDivisionError.*'q0'.*'i0'") as caught:
                ask(PAIRS)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_interrupts_harm_no_later_call(stop) -> None:
    def plain(pairs):
        raise stop

    async def later(pairs):
        raise stop

    for batch_size in (None, 2):
        with pytest.raises(stop):
            FunctionScorer(plain, batch_size=batch_size).score(PAIRS)
        # On the loop that all async functions share, an exit is a failure of this one.
        with pytest.raises(ScorerFailed, match=stop.__name__):
            FunctionScorer(later, batch_size=batch_size).score(PAIRS)
    assert len(FunctionScorer(slow_lengths).score(PAIRS)) == len(PAIRS)


@pytest.mark.parametrize("ask", [lambda scorer: scorer.score(PAIRS), lambda scorer: asyncio.run(scorer.ascore(PAIRS))])
@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_batches_of_an_async_function_run_side_by_side_within_bounds_and_in_order(ask, concurrency) -> None:
    running, most = 0, 0

    async def first_comes_last(pairs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(50 - 5 * len(pairs[0][0])):
            await asyncio.sleep(0)
        running -= 1
        return lengths(pairs)

    scorer = FunctionScorer(first_comes_last, batch_size=1, concurrency=concurrency)
    assert ask(scorer).tolist() == [3.0 * n for n in range(7)]
    assert most == min(concurrency, 7)


@pytest.mark.parametrize("ask", [lambda scorer: scorer.score(PAIRS), lambda scorer: asyncio.run(scorer.ascore(PAIRS))])
def test_the_first_batch_to_fail_is_named_and_cancels_the_others(ask) -> None:
    ended = []

    async def third_fails(pairs):
        try:
            if pairs[0][0] == "xx":
                raise ZeroDivisionError("by nought")
            await asyncio.sleep(3600)
        finally:
            ended.append(len(pairs[0][0]))

    with pytest.raises(ScorerFailed, match=r"ZeroDivisionError.*'q2'.*'i2'") as caught:
        ask(FunctionScorer(third_fails, batch_size=1, concurrency=4, attempts=1))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert sorted(ended) == [0, 1, 2, 3]


def failing(times: int, *, answer=lengths, is_async: bool, error=ConnectionError):
    """A function that raises this many times, and the sizes of the calls it gets."""
    calls: list[int] = []

    def function(pairs):
        calls.append(len(pairs))
        if len(calls) <= times:
            raise error("try again")
        return answer(pairs)

    async def awaited(pairs):
        return function(pairs)

    return (awaited if is_async else function), calls


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("attempts", "times"), [(3, 2), (2, 1), (1, 0)])
def test_a_call_that_raises_is_made_again_for_the_same_pairs(is_async, attempts, times) -> None:
    function, calls = failing(times, is_async=is_async)
    scorer = FunctionScorer(function, attempts=attempts)
    assert scorer.score(PAIRS).tolist() == [3.0 * n for n in range(7)]
    assert calls == [7] * attempts
    assert asyncio.run(scorer.ascore(PAIRS)).tolist() == [3.0 * n for n in range(7)]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_function_that_goes_on_raising_is_an_error_after_as_many_calls_as_are_allowed(is_async, attempts) -> None:
    function, calls = failing(10, is_async=is_async)
    with pytest.raises(ScorerFailed) as caught:
        FunctionScorer(function, attempts=attempts).score(PAIRS)
    assert calls == [7] * attempts
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert ("2 times" in str(caught.value)) == (attempts == 2)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda pairs: [float("nan")] * len(pairs), NonFiniteScore),
        (lambda pairs: [1.0], ScoreCountError),
        (lambda pairs: None, ScoreCountError),
        (lambda pairs: [*lengths(pairs)[:-1], None], NonFiniteScore),
    ],
)
def test_an_answer_that_would_be_wrong_again_is_an_error_at_once(is_async, answer, error) -> None:
    function, calls = failing(0, answer=answer, is_async=is_async)
    with pytest.raises(error):
        FunctionScorer(function).score(PAIRS)
    assert calls == [7]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_nobody_who_stops_a_call_has_to_stop_it_again(stop) -> None:
    function, calls = failing(10, is_async=False, error=stop)
    with pytest.raises(stop):
        FunctionScorer(function).score(PAIRS)
    assert calls == [7]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_holds_the_scores_of_the_batches_before_it(is_async) -> None:
    def function(pairs):
        if pairs[0][0] == "xxxx":
            raise ConnectionError
        return lengths(pairs)

    async def awaited(pairs):
        return function(pairs)

    with pytest.raises(ScorerFailed) as caught:
        FunctionScorer(awaited if is_async else function, batch_size=2, concurrency=1, attempts=1).score(PAIRS)
    assert caught.value.scored == {PAIRS[n]: 3.0 * n for n in range(4)}


def test_the_card_says_how_to_import_the_function_where_that_is_possible() -> None:
    assert FunctionScorer(lengths).card.source == f"{__name__}:lengths"
    assert FunctionScorer(lengths, source="elsewhere:f", name="n").card.source == "elsewhere:f"
    assert FunctionScorer(lengths, name="n").card.name == "n"
    assert FunctionScorer(lambda pairs: []).card.source is None
    assert FunctionScorer(AsyncLengths()).card.source is None
    assert FunctionScorer(AsyncLengths()).card.name == "AsyncLengths"
    assert FunctionScorer(lengths).card.weights is None


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"concurrency": 0}, {"attempts": 0}])
def test_options_that_cannot_be_meant_are_refused(options) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        FunctionScorer(lengths, **options)


@pytest.mark.parametrize(
    "function",
    [
        3,
        lambda query, text: 1.0,
        lambda: 1.0,
        lambda pairs, *, needed: 1.0,
        lambda query, text, *more: 1.0,
    ],
)
def test_a_function_of_a_query_and_a_text_is_told_that_it_gets_a_list_of_pairs(function) -> None:
    with pytest.raises(InputError):
        FunctionScorer(function)
