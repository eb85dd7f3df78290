from __future__ import annotations

import functools
import inspect
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from adacur import errors
from adacur.errors import InputError, MissingExtra
from adacur.extras.ray import Ray, RayActors
from adacur.store.executor import WorkersLost

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL"),
    pytest.mark.usefixtures("ray_cluster"),
]

PATIENCE = 60.0


def work(folder: Path, task: str) -> str:
    if task.startswith("die"):
        marks = len(list(folder.iterdir()))
        if marks < int(task.removeprefix("die")):
            (folder / str(marks)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return task.upper()


def open_work(folder: Path) -> object:
    return functools.partial(work, folder)


def refuse() -> object:
    raise MissingExtra("no model library", name="model")


def leave() -> object:
    os._exit(3)


class Unpicklable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition) -> None:
    patience = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < patience
        time.sleep(0.01)


def test_a_task_whose_worker_is_killed_is_done_by_another_and_ray_is_silent(tmp_path, capfd) -> None:
    tasks = ["a", "die2", "b", "c"]
    results = list(RayActors(functools.partial(open_work, tmp_path)).run(tasks))
    assert sorted(results) == sorted((task, task.upper()) for task in tasks)
    assert len(list(tmp_path.iterdir())) == 2
    assert capfd.readouterr() == ("", "")


def test_a_task_that_kills_every_worker_ends_the_run_with_one_error(tmp_path) -> None:
    seen = []
    engine = RayActors(functools.partial(open_work, tmp_path), executor=Ray(workers=1))
    with pytest.raises(WorkersLost):
        seen.extend(task for task, _ in engine.run(["a", "die99", "b"]))
    assert seen == ["a"]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_worker_that_dies_while_it_opens_ends_the_run_with_one_error() -> None:
    with pytest.raises(WorkersLost):
        list(RayActors(leave, executor=Ray(workers=2)).run(["a"]))


def test_an_error_while_opening_is_the_error_of_the_run() -> None:
    with pytest.raises(MissingExtra) as caught:
        list(RayActors(refuse, executor=Ray(workers=1)).run(["a"]))
    assert caught.value.name == "model"
    assert "in refuse" in caught.value.__notes__[0]


def test_an_error_that_cannot_travel_comes_in_words() -> None:
    def open_failing():
        def fail(task):
            raise Unpicklable("one", "two")

        return fail

    with pytest.raises(RuntimeError) as caught:
        list(RayActors(open_failing, executor=Ray(workers=1)).run(["a"]))
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


def test_work_from_a_module_that_the_workers_lack_is_refused_in_words(tmp_path, monkeypatch) -> None:
    (tmp_path / "only_here.py").write_text("def open_it():\n    return str\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    engine = RayActors(only_here.open_it, executor=Ray(workers=1))
    (tmp_path / "only_here.py").unlink()
    with pytest.raises(WorkersLost):
        list(engine.run([1]))
    del sys.modules["only_here"]


def test_work_may_be_a_closure_and_whoever_stops_early_leaves_no_actor_at_it() -> None:
    seconds = {"sleep": 600, "tell": 0}

    def open_pid():
        def pid_or_sleep(task: str) -> int:
            time.sleep(seconds[task])
            return os.getpid()

        return pid_or_sleep

    results = RayActors(open_pid, executor=Ray(workers=1)).run(["tell", "sleep"])
    _, pid = next(results)
    assert is_there(pid)
    results.close()
    wait_for(lambda: not is_there(pid))


def test_a_node_that_joins_is_used_and_the_task_of_one_that_leaves_goes_to_another(ray_cluster, tmp_path) -> None:
    folder = str(tmp_path)

    def open_node():
        def node_of(task: int) -> str:
            import ray

            node = ray.get_runtime_context().get_node_id()
            (Path(folder) / f"{task}.{node}").touch()
            # Four at the same time take two more CPUs.
            while len(list(Path(folder).glob("[0-3].*"))) < 4:
                time.sleep(0.01)
            on_joined = sorted(Path(folder).glob(f"[0-3].{node}")) if (Path(folder) / f"joined.{node}").exists() else []
            # On the node that joined, one works until it leaves, and one has nothing to do; elsewhere both work.
            while (on_joined and on_joined[0].name == f"{task}.{node}") or not (
                on_joined or (Path(folder) / "left").exists()
            ):
                time.sleep(0.01)
            return node

        return node_of

    results: dict[int, str] = {}
    # Nodes can be started by the main thread only.
    driver = threading.Thread(target=lambda: results.update(RayActors(open_node).run(range(4))))
    driver.start()
    # Two have begun, and nobody else can.
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    joined = ray_cluster.add_node(num_cpus=2)
    try:
        (tmp_path / f"joined.{joined.node_id}").touch()
        wait_for(lambda: len(results) == 1)
    finally:
        ray_cluster.remove_node(joined, allow_graceful=False)
    (tmp_path / "left").touch()
    driver.join(PATIENCE)
    assert sorted(results) == [0, 1, 2, 3]
    assert list(results.values()).count(joined.node_id) == 1


def test_room_counts_what_a_worker_takes() -> None:
    assert Ray().capacity(cpus=1, gpus=0) >= 2
    assert Ray().capacity(cpus=2, gpus=0) >= 1
    assert Ray().capacity(cpus=1, gpus=1) == Ray().capacity(cpus=64, gpus=0) == 0
    with pytest.raises(WorkersLost):
        list(RayActors(refuse, gpus=1).run(["a"]))


def test_a_connection_that_is_there_is_used_and_kept() -> None:
    import ray

    with Ray().connected():
        assert ray.is_initialized()
    assert ray.is_initialized()


@pytest.mark.parametrize("address", ["nobody:1", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_answers_is_told_with_what_to_do(monkeypatch, address) -> None:
    import ray

    # Only one connection per process, and this one has it.
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(InputError),
        Ray(address).connected(),
    ):
        pass
