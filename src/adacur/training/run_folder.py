"""The folder of a training run: the model, and in `training/` what a killed run goes on from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from adacur.core.errors import InputError
from adacur.core.protocols import Retriever
from adacur.scorers.cross_encoders.weights import weights_hash

__all__ = ["RunFolder", "check_may_write", "facts_of_base", "facts_of_first", "model_hash", "step_of"]

_PREFIX = "checkpoint-"
# Written once a checkpoint is whole; without it, a kill in mid-write would be taken for one.
_WHOLE = "whole"
_MAKE_A_MODEL = ("config.json", "modules.json")
_STATE, _RUN, _SCORES = "training", "run.json", "teachers.sqlite"


class RunFolder:
    """One run, one folder, one process at a time; used as a context, which holds the lock.

    `made_from` says what the run is: settings, data and base model. A folder that was begun with something else is
    refused, and one with the same goes on where it ended.
    """

    def __init__(self, path: str | Path, made_from: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.state = self.path / _STATE
        self._made_from: dict[str, Any] = json.loads(json.dumps(dict(made_from)))
        self._lock = FileLock(self.path / ".training.lock", timeout=0)

    def __enter__(self) -> RunFolder:
        check_may_write(self.path)
        self.state.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise InputError(
                f"Another process is training in {self.path}. Wait for it, or take another folder."
            ) from None
        try:
            self._check()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def _check(self) -> None:
        file = self.state / _RUN
        begun = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        if begun == self._made_from:
            return
        # What failed before its first checkpoint has nothing to lose, and is begun anew with what may mend it.
        if begun is not None and (self.result is not None or self.last_checkpoint() is not None):
            before, now = _flat(begun), _flat(self._made_from)
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            said = "; ".join(f"{name} {before.get(name)!r}, now {now.get(name)!r}" for name in names)
            raise InputError(
                f"{self.path} holds a run that was begun differently: {said}. Ask for the same to go on with it, "
                "or take another folder."
            )
        for left_over in _all_but_scores(self.state):
            shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
        _replace(file, json.dumps(self._made_from, indent=2, ensure_ascii=False))

    @property
    def teachers(self) -> Path:
        """The score cache of whoever is learnt from."""
        return self.state / _SCORES

    @property
    def result(self) -> dict[str, Any] | None:
        """What a finished run came to; None before."""
        file = self.state / "result.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def publish(self, model: Path) -> None:
        """Move a model that was written elsewhere on this disk into the folder, what makes it one last."""
        for part in sorted(model.iterdir(), key=lambda part: part.name in _MAKE_A_MODEL):
            target = self.path / part.name
            if target.is_dir():
                shutil.rmtree(target)
            part.replace(target)
        model.rmdir()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Say that the model is written, and let go of what only a killed run needs."""
        _replace(self.state / "result.json", json.dumps(dict(result), indent=2, ensure_ascii=False))
        for checkpoint in self.checkpoints():
            shutil.rmtree(checkpoint)

    def checkpoints(self) -> list[Path]:
        """All of them, the last one first, whole or not."""
        found = [path for path in self.state.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit()]
        return sorted(found, key=step_of, reverse=True)

    def last_checkpoint(self) -> Path | None:
        """The last whole one; those that a kill left unfinished are removed."""
        whole = []
        for checkpoint in self.checkpoints():
            if (checkpoint / _WHOLE).exists():
                whole.append(checkpoint)
            else:
                shutil.rmtree(checkpoint)
        return whole[0] if whole else None

    def checkpoint(self, step: int) -> Path:
        """That of this step, there or not."""
        return self.state / f"{_PREFIX}{step}"

    def mark_whole(self, step: int) -> None:
        """Say that the checkpoint of this step is all there."""
        (self.checkpoint(step) / _WHOLE).touch()

    def keep_checkpoints(self, steps: Collection[int]) -> None:
        """Remove all others."""
        for checkpoint in self.checkpoints():
            if step_of(checkpoint) not in steps:
                # A kill may leave half of it.
                (checkpoint / _WHOLE).unlink(missing_ok=True)
                shutil.rmtree(checkpoint)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every step and every check, in order."""
        file = self.state / "log.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        # A kill may have cut the last line.
        return [json.loads(line) for line in lines if line.endswith("}")]

    def add_to_log(self, line: Mapping[str, Any]) -> None:
        with (self.state / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(line)) + "\n")

    def cut_log(self, after_step: int) -> None:
        """Forget what follows this step: it is done again."""
        lines = (json.dumps(line) + "\n" for line in self.log if line["step"] <= after_step)
        _replace(self.state / "log.jsonl", "".join(lines))


def check_may_write(folder: Path) -> None:
    """Refuse what a run must not be written to: a file, a model from elsewhere, somebody's folder `training`."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"A model is written to a folder; {folder} is a file.")
    state = folder / _STATE
    if (state / _RUN).exists():
        return
    if (folder / "manifest.json").exists():
        raise InputError(f"{folder} is an index. Take another folder for the model.")
    if any((folder / name).exists() for name in _MAKE_A_MODEL):
        raise InputError(f"{folder} holds a model that was not trained here. Take another folder.")
    if any(file.name != _partial(state / _RUN).name for file in _all_but_scores(state)):
        raise InputError(f"{state} holds files that no training wrote, and would be removed. Take another folder.")


def facts_of_base(base: str | Path, folder: Path, *, out: str | Path) -> dict[str, str]:
    """What a run says of the model that it starts from, by the name that was given and the folder behind it."""
    if folder.resolve() in Path(out).resolve().parents:
        raise InputError(f"A model is written outside of the one that it starts from; {out} lies in {folder}.")
    return {"base": str(folder.resolve() if Path(base).is_dir() else base), "base_weights": model_hash(folder)}


def facts_of_first(first: Retriever | None) -> dict[str, str | None]:
    """What a run says of its first stage: its name and, where it tells, the hash of its `weights`."""
    if first is None:
        return {"first": None}
    weights = getattr(first, "weights", None)
    name = getattr(first, "name", type(first).__name__)
    return {"first": name} | ({} if weights is None else {"first_weights": weights})


def model_hash(folder: Path) -> str:
    """A hash of the weights and settings in a folder, whatever a training left there aside."""
    files = (path for kind in ("safetensors", "bin", "onnx", "json") for path in folder.rglob(f"*.{kind}"))
    return weights_hash(path for path in files if _STATE not in path.relative_to(folder).parts)


def step_of(checkpoint: Path) -> int:
    """How many updates a checkpoint has seen."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings beside what they are settings of, so that those that differ can be told one by one."""
    inner = {name: value for name, value in values.items() if isinstance(value, dict)}
    return {name: value for name, value in values.items() if name not in inner} | {
        name: value for own in inner.values() for name, value in own.items()
    }


def _all_but_scores(state: Path) -> list[Path]:
    """What is in a run's folder; not the scores, which were paid for and are good for any run."""
    return [path for path in state.glob("*") if not path.name.startswith(_SCORES)]


def _replace(file: Path, text: str) -> None:
    """All of the new content or all of the old, whenever the process ends."""
    partial = _partial(file)
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def _partial(file: Path) -> Path:
    return file.with_name(file.name + ".partial")
