"""What every place where work can run promises."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time

import pytest

from adacur.errors import NonFiniteScore
from adacur.extras.ray import Ray, RayActors
from adacur.store.executor import Executor, InThisProcess

MOST_AT_WORK = 2


def square(task: int) -> int:
    if task == 13:
        raise NonFiniteScore("13 has no square")
    return task * task


def open_square() -> object:
    return square


@pytest.fixture(params=["this process", "ray"])
def executor(request) -> Executor[int, int]:
    if request.param == "this process":
        return InThisProcess(square)
    request.getfixturevalue("ray_cluster")
    return RayActors(open_square, executor=Ray(workers=MOST_AT_WORK))


def test_every_task_is_done_once_and_keeps_its_result(executor) -> None:
    assert executor.workers in (1, MOST_AT_WORK)
    assert sorted(executor.run(range(12))) == [(task, task * task) for task in range(12)]
    assert sorted(executor.run(iter([5]))) == [(5, 25)]
    assert list(executor.run([])) == []


def test_tasks_are_read_only_shortly_before_they_are_done(executor) -> None:
    read = []
    results = executor.run(task for task in range(100, 140) if not read.append(task))
    for count, _ in enumerate(results, start=1):
        # At work, finished with them, and one ahead.
        assert len(read) <= count + 2 * MOST_AT_WORK + 1
    assert len(read) == 40


def test_an_error_of_the_work_comes_as_it_is_after_what_was_finished(executor) -> None:
    seen = []
    tasks = itertools.chain(range(10), itertools.repeat(13))
    with pytest.raises(NonFiniteScore) as caught:
        seen.extend(task for task, _ in executor.run(tasks))
    assert str(caught.value) == "13 has no square"
    # All but what others were still at.
    assert len(set(seen)) == len(seen) > 10 - MOST_AT_WORK
    assert set(seen) <= set(range(10))


def test_an_error_of_the_tasks_comes_as_it_is(executor) -> None:
    def torn():
        yield 1
        raise EOFError("the file ends here")

    with pytest.raises(EOFError, match="ends here"):
        list(executor.run(torn()))


def test_what_was_finished_before_an_error_of_the_tasks_is_not_lost() -> None:
    def torn():
        yield from (1, 2)
        raise EOFError("the file ends here")

    seen = []
    with pytest.raises(EOFError, match="ends here"):
        seen.extend(InThisProcess(square).run(torn()))
    assert seen == [(1, 1), (2, 4)]


def test_whoever_stops_early_leaves_nothing_behind(executor) -> None:
    ended = threading.Event()

    def endless():
        try:
            yield from itertools.count(100)
        finally:
            ended.set()

    threads = threading.active_count()
    results = executor.run(endless())
    next(results)
    results.close()
    assert ended.is_set()
    assert threading.active_count() == threads


def test_tasks_are_read_and_closed_in_one_thread_of_their_own(executor) -> None:
    threads = set()

    def tasks():
        try:
            for task in range(100, 105):
                threads.add(threading.get_ident())
                yield task
        finally:
            threads.add(threading.get_ident())

    for _ in executor.run(tasks()):
        pass
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def held_up(folder: str, task: int) -> int:
    """Goes on when somebody else has begun, too."""
    open(os.path.join(folder, str(task)), "w").close()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.001)
    return os.getpid()


def open_held_up(folder: str) -> object:
    return functools.partial(held_up, folder)


def test_processes_work_at_the_same_time(ray_cluster, tmp_path) -> None:
    opener = functools.partial(open_held_up, str(tmp_path))
    results = dict(RayActors(opener, executor=Ray(workers=2)).run([1, 2]))
    assert set(results) == {1, 2}
    assert len({*results.values(), os.getpid()}) == 3
