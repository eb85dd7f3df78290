"""One path for every training, and one loop: transformers' Trainer, with a check and a checkpoint after every epoch.

Imported only where something is trained, as it needs torch.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_model
from tqdm import tqdm

from adacur.errors import InputError, TrainingFailed
from adacur.extras.train.run_folder import RunFolder, Trained, TrainingSettings, model_hash, opened_run
from adacur.scorers.cross_encoders.checkpoints import checkpoint_folder, quiet

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Examples:
    """An example per query, `n` of them, drawn anew for every epoch.

    - `draw(place, epoch, mined)`: the example of the query at this place; `mined` are its items of this epoch
    - `collate`: several examples as the arguments of the model's forward
    - `mine(epoch)`: called before the first step of an epoch: items for each query, or None
    """

    n: int
    draw: Callable[[int, int, Any], Any]
    collate: Callable[[list[Any]], dict[str, Any]]
    mine: Callable[[int], Sequence[Any] | None]
    _epoch: int = 0
    _mined: Sequence[Any] | None = None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, place: int) -> Any:
        return self.draw(place, self._epoch, None if self._mined is None else self._mined[place])

    def begin_epoch(self, epoch: int) -> None:
        self._epoch, self._mined = epoch, self.mine(epoch)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What is fitted.

    - `model`: a module whose forward returns {"loss": …}, and whose `save` writes a folder that appears whole
    - `check`: measures the model on held-out queries, in evaluation mode and without gradients
    - `watched`: the measure that decides; the first check with the highest value is the best
    """

    model: Any
    examples: Examples
    check: Callable[[], Mapping[str, float]]
    watched: str


def run_training(
    folder: str | Path,
    facts: Mapping[str, Any],
    prepare: Callable[[Path, RunFolder], Task],
    *,
    base: str | Path,
    settings: TrainingSettings,
    device: str | None,
    progress: bool,
) -> Trained:
    """Train what `prepare` makes of the base's folder and write it to `folder`; a finished run is returned as it is.

    `facts` say, with base and settings, what the run is made from.
    """
    place = chosen_device(device, settings)
    base_folder = checkpoint_folder(base)
    if base_folder.resolve() in Path(folder).resolve().parents:
        raise InputError(f"A model must be written outside of its base model; {folder} lies in {base_folder}.")
    made_from = {
        **facts,
        "base": str(base_folder.resolve() if Path(base).is_dir() else base),
        "base_weights": model_hash(base_folder),
        "settings": asdict(settings),
    }
    with opened_run(folder, made_from) as run:
        if (finished := run.result) is not None:
            return finished
        # Weights that the base lacks, such as a head, are drawn from it.
        torch.manual_seed(settings.seed)
        task = prepare(base_folder, run)
        trained = fit(task, settings=settings, run=run, device=place, progress=progress)
        model = run.state / "model"
        # That of a run which was killed while it published it.
        shutil.rmtree(model, ignore_errors=True)
        task.model.save(model)
        run.publish(model)
        return run.finish(trained)


def fit(task: Task, *, settings: TrainingSettings, run: RunFolder, device: Any, progress: bool) -> Trained:
    """Train the task's model and leave it as it was at its best check.

    A model that was better before training stays as it came. A killed run continues after its last finished epoch.
    """
    model, examples, watched = task.model, task.examples, task.watched
    updates_per_epoch = math.ceil(math.ceil(len(examples) / settings.batch_queries) / settings.accumulate)
    total = updates_per_epoch * settings.epochs
    arguments = transformers.TrainingArguments(
        output_dir=str(run.state),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_queries,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=int(settings.warmup * total),
        max_grad_norm=settings.clip,
        bf16=settings.precision != "float32" and _has_bfloat16(device),
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=device.type == "cpu",
        eval_strategy="epoch",
        save_strategy="epoch",
        # The best and the last.
        save_total_limit=2,
        metric_for_best_model=watched,
        greater_is_better=True,
        restore_callback_states_from_checkpoint=True,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        # Its bar prints every loss to the standard output.
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=[],
        dataloader_pin_memory=device.type == "cuda",
    )
    untrained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    last = run.last_checkpoint()
    done = 0 if last is None else int(last.name.rpartition("-")[2])
    if last:
        _log.info("Continuing after update %d of %d.", done, total)
    stopping = [] if settings.patience is None else [transformers.EarlyStoppingCallback(settings.patience)]
    bar = tqdm(total=total, initial=done, desc="train", unit=" updates", disable=not progress)
    with bar, quiet(transformers), warnings.catch_warnings():
        # transformers' own use of what torch has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        trainer = _CheckedTrainer(
            task.check,
            model=model,
            args=arguments,
            data_collator=examples.collate,
            train_dataset=examples,
            # Never read, as `evaluate` calls `check`; but without one Trainer does not evaluate.
            eval_dataset=examples,
            callbacks=[_RunCallback(examples, bar), *stopping],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        before = dict(trainer.measured())
        started = time.monotonic()
        try:
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        except torch.OutOfMemoryError as error:
            raise TrainingFailed(
                f"{device} ran out of memory after {trainer.state.global_step} updates. Free some and run the same "
                "again, or lower max_tokens, max_item_tokens or negatives in another folder."
            ) from error
    state = trainer.state
    log: list[Mapping[str, Any]] = [{"step": 0, **before}]
    log += [{name.removeprefix("eval_"): value for name, value in line.items()} for line in state.log_history]
    best_update = state.best_global_step
    best = next(line for line in log if line["step"] == best_update and watched in line)
    if best[watched] < before[watched]:
        _log.warning(
            "No check was as good as the one before training (%s %.3f, then %.3f at best): the model stays as it was.",
            watched,
            before[watched],
            best[watched],
        )
        model.load_state_dict(untrained)
        best_update, best = 0, before
    else:
        # Not by Trainer, which looks for it at the path that it had before the folder was moved.
        load_model(model, run.checkpoint(best_update) / "model.safetensors")
    return Trained(
        run.path,
        updates=state.global_step,
        best_update=best_update,
        before=before,
        best={name: best[name] for name in before},
        seconds=time.monotonic() - started,
        queries=round((state.global_step - done) / updates_per_epoch * len(examples)),
        stopped_early=state.global_step < total,
        log=log,
    )


def chosen_device(name: str | None, settings: TrainingSettings) -> Any:
    """The named device, else the GPU, else the CPU; refused where it is missing or lacks the precision."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    n_gpus = torch.cuda.device_count()
    # Trainer would split a step among several GPUs and tear queries from their items.
    if name not in ("cpu", "cuda") or (name == "cuda" and n_gpus != 1):
        raise InputError(
            f"device must be 'cpu' or 'cuda', of which torch must see one and sees {n_gpus} (CUDA_VISIBLE_DEVICES=0 "
            f"chooses); got {name!r}."
        )
    device = torch.device(name)
    if settings.precision == "bfloat16" and not _has_bfloat16(device):
        # On CPUs without it torch raises nothing: the process dies of an illegal instruction.
        raise InputError(f"bfloat16 needs a GPU that has it; {device} does not. Use precision 'float32'.")
    return device


def _has_bfloat16(device: Any) -> bool:
    return bool(device.type == "cuda" and torch.cuda.is_bf16_supported())


class _CheckedTrainer(transformers.Trainer):  # type: ignore[misc]
    """Trainer with `check` in place of its evaluation, which stops at a loss or a weight that is not finite."""

    control: Any

    def __init__(self, check: Callable[[], Mapping[str, float]], **options: Any) -> None:
        super().__init__(**options)
        self._check = check

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        value = loss[0] if isinstance(loss, tuple) else loss
        if not torch.isfinite(value):
            raise self._failed(f"The loss is {value.item()}")
        return loss

    def measured(self) -> Mapping[str, float]:
        # The update after a finite loss can still ruin the weights, and NaN scores rank well.
        if not all(bool(torch.isfinite(weight).all()) for weight in self.model.parameters()):
            raise self._failed("A weight is not finite")
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return self._check()
        finally:
            self.model.train(was_training)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = {f"eval_{name}": value for name, value in self.measured().items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _failed(self, what: str) -> TrainingFailed:
        precision = ", or train in float32" if self.args.bf16 else ""
        is_begun = any(Path(self.args.output_dir).glob("checkpoint-*"))
        where = " Use another folder for that: this one continues with its settings." if is_begun else ""
        return TrainingFailed(
            f"{what} after {self.state.global_step} updates. Lower the learning rate (now "
            f"{self.args.learning_rate:g}){precision}.{where}"
        )


class _RunCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Begins the epochs of the examples, and moves the bar."""

    def __init__(self, examples: Examples, bar: Any) -> None:
        self._examples, self._bar = examples, bar

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # After the last step of an epoch the count can end in .9999.
        self._examples.begin_epoch(math.floor((state.epoch or 0) + 1e-6))

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:
        self._bar.update(state.global_step - self._bar.n)
        shown = {name.removeprefix("eval_"): f"{value:.3g}" for name, value in logs.items()}
        self._bar.set_postfix(shown, refresh=False)
