from __future__ import annotations

import asyncio

import pytest

from adacur.extras.server.concurrency import Turns
from adacur.extras.server.failures import Refusal


async def test_turns_are_given_in_order_and_never_more_than_allowed():
    turns = Turns(concurrency=2, queue=3)
    most, order = 0, []

    async def one(name: int) -> None:
        nonlocal most
        async with turns.one():
            most = max(most, turns.running)
            order.append(name)
            await asyncio.sleep(0.001)

    await asyncio.gather(*(one(name) for name in range(5)))
    assert (most, order) == (2, [0, 1, 2, 3, 4])
    assert (turns.running, turns.waiting) == (0, 0)


async def test_who_is_cancelled_in_line_leaves_no_trace():
    turns = Turns(concurrency=1, queue=1)
    async with turns.one():

        async def waits() -> None:
            async with turns.one():
                raise AssertionError

        waiting = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match=r"1 requests .* 1 wait"):
            turns.check()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (turns.running, turns.waiting) == (1, 0)
    async with turns.one():
        pass


async def test_a_turn_that_does_not_come_in_time_is_refused():
    turns = Turns(concurrency=1, queue=1)
    async with turns.one():
        with pytest.raises(Refusal, match=r"0\.01") as refused:
            async with turns.one(within=0.01):
                raise AssertionError
    assert refused.value.status == 504
    assert (turns.running, turns.waiting) == (0, 0)
    async with turns.one(within=0.01):
        assert turns.running == 1
