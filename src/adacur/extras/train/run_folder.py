"""A training run: its settings, and its folder: the model, and in `training/` what a killed run continues from."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from adacur.budget import at_least, is_whole
from adacur.errors import InputError, StorageFull
from adacur.requirements import require
from adacur.scorers.cross_encoders.checkpoints import weights_hash
from adacur.store.writing import is_in_use, made_whole, write_atomically

Precision = Literal["auto", "float32", "bfloat16"]
_PREFIX = "checkpoint-"
# Trainer writes it into a checkpoint behind everything else.
_LAST_WRITTEN = "trainer_state.json"
_MAKE_A_MODEL = ("config.json", "modules.json")
_STATE, _LOCK = "training", ".training.lock"
_RUN, _RESULT = "run.json", "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The numbers that every training has in common; the defaults are the paper's for cross-encoders.

    - `epochs`: passes over the queries; after each the model is checked on held-out queries and saved
    - `learning_rate`, `weight_decay`, `clip` (of the gradient's norm)
    - `batch_queries`: queries of one step, each with all its items
    - `accumulate`: steps whose mean gradient makes one update
    - `warmup`: share of all updates during which the learning rate rises
    - `precision`: "auto" is bfloat16 on a GPU that has it, float32 elsewhere
    - `patience`: epochs without a better check that end the training; None never does
    - `seed`: of the draws, the dropout and a new head
    """

    epochs: int = 4
    learning_rate: float = 1e-5
    batch_queries: int = 16
    accumulate: int = 1
    weight_decay: float = 0.01
    warmup: float = 0.01
    clip: float = 1.0
    precision: Precision = "auto"
    patience: int | None = 3
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(
            1,
            epochs=self.epochs,
            batch_queries=self.batch_queries,
            accumulate=self.accumulate,
            patience=self.patience,
        )
        rules = {
            "seed": ("from 0 to 2**32 - 1", is_whole(self.seed) and 0 <= self.seed < 2**32),
            "learning_rate": ("above 0 and below 1", 0 < self.learning_rate < 1),
            "warmup": ("at least 0 and below 1", 0 <= self.warmup < 1),
            "weight_decay": ("at least 0", self.weight_decay >= 0),
            "clip": ("at least 0", self.clip >= 0),
            "precision": ("'auto', 'float32' or 'bfloat16'", self.precision in ("auto", "float32", "bfloat16")),
        }
        for name, (rule, is_kept) in rules.items():
            if not is_kept:
                raise InputError(f"{name} must be {rule}; got {getattr(self, name)!r}.")


def check_installed() -> None:
    """Refuse to begin without the packages of the extra `training`."""
    for module in ("torch", "transformers", "accelerate"):
        # Looked for, not imported: that takes seconds, and something else may be wrong.
        if find_spec(module) is None:
            require(module, extra="training")


@dataclass(frozen=True, slots=True)
class Trained:
    """A model on disk and how its training went.

    `before` and `best` are the checks on held-out queries before training and at the best update; update 0 means that
    nothing beat the base, which is then what the folder holds. `seconds` and `queries` are those of the process that
    finished the run. `log` has the losses and checks in order, each with its "step".
    """

    folder: Path
    updates: int
    best_update: int
    before: Mapping[str, float]
    best: Mapping[str, float]
    seconds: float
    queries: int
    stopped_early: bool
    log: list[Mapping[str, Any]]


class RunFolder:
    """What is known of one run: its checkpoints and its result."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / _STATE

    def begin(self, made_from: Mapping[str, Any]) -> None:
        """Record what the run is made from, or continue a run that was made from the same."""
        file = self.state / _RUN
        begun = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        # As it is read again: tuples are lists.
        made_from = json.loads(json.dumps(made_from))
        if begun == made_from:
            return
        # A run that failed before its first checkpoint has nothing to lose.
        if begun is not None and (self.result is not None or self.last_checkpoint() is not None):
            before, now = _flat(begun), _flat(made_from)
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            differences = "; ".join(f"{name} {before.get(name)!r}, now {now.get(name)!r}" for name in names)
            raise InputError(
                f"{self.path} holds a run with other options: {differences}. Repeat its options to continue it, or use "
                "another folder."
            )
        for left_over in self.state.iterdir():
            shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
        write_atomically(file, _json(made_from))

    def mined(self, turn: int) -> Path:
        """The file of what was mined before a turn."""
        return self.state / f"mined-{turn}.npz"

    @property
    def result(self) -> Trained | None:
        """The result of a finished run; None before."""
        file = self.state / _RESULT
        return Trained(self.path, **json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None

    def publish(self, model: Path) -> None:
        """Move a model that was written elsewhere on this disk into the folder, the files that make it one last."""
        for part in sorted(model.iterdir(), key=lambda part: part.name in _MAKE_A_MODEL):
            target = self.path / part.name
            if target.is_dir():
                shutil.rmtree(target)
            part.replace(target)
        model.rmdir()

    def finish(self, trained: Trained) -> Trained:
        """Record the result, once the model is written, and remove the checkpoints."""
        facts = asdict(trained)
        del facts["folder"]
        write_atomically(self.state / _RESULT, _json(facts))
        for checkpoint in self.state.glob(f"{_PREFIX}*"):
            shutil.rmtree(checkpoint)
        return trained

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint of this step."""
        return self.state / f"{_PREFIX}{step}"

    def last_checkpoint(self) -> Path | None:
        """The last complete checkpoint; those that a kill left unfinished are removed."""
        complete: dict[int, Path] = {}
        for path in self.state.glob(f"{_PREFIX}*"):
            if _is_whole(path / _LAST_WRITTEN):
                complete[int(path.name.removeprefix(_PREFIX))] = path
            else:
                shutil.rmtree(path)
        return complete[max(complete)] if complete else None


@contextmanager
def opened_run(path: str | Path, made_from: Mapping[str, Any]) -> Iterator[RunFolder]:
    """One run, one folder, one process at a time.

    `made_from` says what the run is: settings, data and base model. A folder begun with something else is refused; one
    begun with the same continues where it ended.
    """
    run = RunFolder(Path(path))
    check_may_write(run.path)
    run.state.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run.path / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"Another process is training in {path}. Wait for it, or use another folder.") from None
    try:
        run.begin(made_from)
        yield run
    finally:
        lock.release()


def check_may_write(folder: Path) -> None:
    """Refuse to write a run over a file, or into a folder that holds anything but a run: an index, another model."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"A model is written to a folder; {folder} is a file.")
    state = folder / _STATE
    others = [path for path in folder.glob("*") if path.name not in (_STATE, _LOCK)]
    others += [path for path in state.glob("*") if path.name != f"{_RUN}.partial"]
    if others and not (state / _RUN).exists():
        raise InputError(f"{folder} holds {others[0].name}, which training did not write. Use another folder.")


def model_hash(folder: Path) -> str:
    """A hash of the weights and settings in a folder, without those of training runs."""
    files = (path for kind in ("safetensors", "bin", "onnx", "json") for path in folder.rglob(f"*.{kind}"))
    return weights_hash(path for path in files if _STATE not in path.relative_to(folder).parts)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings beside the others, so that differences can be named one by one."""
    nested = {name: value for name, value in values.items() if isinstance(value, dict)}
    flat = {name: value for name, value in values.items() if name not in nested}
    return flat | {name: value for inner in nested.values() for name, value in inner.items()}


def _is_whole(file: Path) -> bool:
    """Whether a file of JSON is there, and was not cut short by a kill."""
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False)


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """An empty folder that becomes `folder`, which is new or empty, when the block ends without an error."""
    if is_in_use(folder):
        raise InputError(f"A model is written to a new or an empty folder; {folder} holds something. Name another.")
    try:
        with made_whole(folder) as unfinished:
            unfinished.mkdir(parents=True)
            yield unfinished
    except Exception as error:
        # Safetensors reports a full disk only in its message.
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            raise StorageFull(f"The disk that holds {folder} is full; nothing was written. Free some space.") from error
        raise
