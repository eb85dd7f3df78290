from __future__ import annotations

import functools
import inspect
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from adacur.core import errors
from adacur.engines import LocalProcesses, WorkersLost

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")


class Unpicklable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def work(folder: Path, task: str) -> str:
    if task.startswith("die"):
        deaths = int(task.removeprefix("die"))
        marks = len(list(folder.iterdir()))
        if marks < deaths:
            (folder / str(marks)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if task == "unpicklable":
        raise Unpicklable("one", "two")
    if task == "leave a child" and not (folder / "left").exists():
        (folder / "left").touch()
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        # It has the pipe of its parent, open.
        while not (folder / "end").exists():
            time.sleep(0.05)
        os._exit(0)
    return task.upper()


def open_work(folder: Path) -> object:
    return functools.partial(work, folder)


def refuse() -> object:
    raise errors.MissingExtra("no model library", name="model")


def leave() -> object:
    os._exit(3)


def test_a_task_whose_worker_is_killed_is_done_by_another(tmp_path, caplog) -> None:
    caplog.set_level(logging.WARNING, "adacur.engines")
    tasks = ["a", "die2", "b", "c"]
    results = list(LocalProcesses([functools.partial(open_work, tmp_path)] * 2).run(tasks))
    assert sorted(results) == sorted((task, task.upper()) for task in tasks)
    assert len(list(tmp_path.iterdir())) == 2
    assert [record.args[:2] for record in caplog.records] == [("on a task", "by SIGKILL")] * 2


def test_a_place_is_given_up_for_deaths_in_a_row_only(tmp_path) -> None:
    tasks = ["die1", "a", "die2", "b", "die3", "c", "die4"]
    results = list(LocalProcesses([functools.partial(open_work, tmp_path)]).run(tasks))
    assert results == [(task, task.upper()) for task in tasks]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_death_is_seen_though_a_process_is_left_behind_with_the_pipe(tmp_path) -> None:
    end = threading.Timer(30, (tmp_path / "end").touch)
    end.start()
    results = list(LocalProcesses([functools.partial(open_work, tmp_path)]).run(["leave a child"]))
    assert results == [("leave a child", "LEAVE A CHILD")]
    assert not (tmp_path / "end").exists()
    end.cancel()
    (tmp_path / "end").touch()


def test_a_task_that_kills_every_worker_ends_the_run_with_one_error(tmp_path) -> None:
    seen = []
    engine = LocalProcesses([functools.partial(open_work, tmp_path)])
    with pytest.raises(WorkersLost, match="SIGKILL"):
        seen.extend(task for task, _ in engine.run(["a", "die99", "b"]))
    assert seen == ["a"]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_place_where_nobody_can_start_is_given_up_and_the_others_go_on(tmp_path) -> None:
    tasks = [f"task {number}" for number in range(5)]
    engine = LocalProcesses([leave, functools.partial(open_work, tmp_path)])
    assert sorted(task for task, _ in engine.run(tasks)) == tasks


def test_when_no_place_is_left_the_error_says_how_they_went() -> None:
    with pytest.raises(WorkersLost, match=r"exit code 3"):
        list(LocalProcesses([leave]).run(["a"]))


def test_an_error_while_opening_is_the_error_of_the_run() -> None:
    with pytest.raises(errors.MissingExtra, match="no model library") as caught:
        list(LocalProcesses([refuse]).run(["a"]))
    assert caught.value.name == "model"
    assert "in refuse" in caught.value.__notes__[0]


def test_an_error_that_cannot_travel_is_told_in_words(tmp_path) -> None:
    with pytest.raises(RuntimeError) as caught:
        list(LocalProcesses([functools.partial(open_work, tmp_path)]).run(["unpicklable"]))
    assert str(caught.value) == "Unpicklable: one and two"


OURS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.AdacurError)]


@pytest.mark.parametrize("kind", OURS)
def test_every_error_of_ours_travels_with_its_message_and_notes(kind) -> None:
    error = kind("the rule, the values seen, what to try")
    error.add_note("from a worker")
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is kind
    assert str(arrived) == str(error)
    assert arrived.__notes__ == ["from a worker"]


SCRIPT = """
from operator import add
from functools import partial
from adacur.engines import LocalProcesses
print("begun")
print(sorted(LocalProcesses([partial(partial, add, "if __name__ == '__main__': ")] * 2).run("ab")))
"""


def test_a_script_without_a_main_guard_is_not_run_again_by_its_workers(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    expected = [(task, f"if __name__ == '__main__': {task}") for task in "ab"]
    assert ran.stdout.splitlines() == ["begun", str(expected)]
    assert ran.stderr == ""
