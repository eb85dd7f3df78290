"""One training loop for every model: transformers' Trainer, with checkpoints that a killed run goes on from."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.training.examples import Examples
from adacur.training.run_folder import RunFolder, step_of
from adacur.training.settings import TrainingSettings

__all__ = ["Fitted", "fit", "training_device"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fitted:
    """How a fit went: updates in all, the checks before it and at its best; seconds and queries of this process."""

    updates: int
    best_update: int
    before: Mapping[str, float]
    best: Mapping[str, float]
    seconds: float
    queries: int
    stopped_early: bool


def fit(
    model: Any,
    examples: Examples,
    *,
    settings: TrainingSettings,
    run: RunFolder,
    check: Callable[[], Mapping[str, float]],
    watched: str,
    lower_is_better: bool = False,
    device: str | None = None,
    progress: bool = True,
) -> Fitted:
    """Train `model`, whose forward returns {"loss": ...}, and leave it as it was at its best check.

    `check` measures it on held-out queries, in evaluation mode and without gradients; the first check with the highest
    `watched`, or the lowest, is the best. A run that was killed goes on from its last checkpoint, and ends with the
    same weights as one that was not, where the device computes the same twice.
    """
    torch = require("torch", extra="training")
    transformers = require("transformers", extra="training")
    require("accelerate", extra="training")
    from tqdm import tqdm

    from adacur.training.trainer import CheckedTrainer, RunCallback

    if not len(examples):
        raise InputError("There is no query to learn from.")
    batches = math.ceil(len(examples) / settings.batch_queries)
    updates_per_epoch = max(1, math.ceil(batches / settings.accumulate))
    every = max(1, math.ceil(updates_per_epoch / settings.checks_per_epoch))
    total = updates_per_epoch * settings.epochs
    place = torch.device(training_device(torch, device))
    bfloat16 = _wants_bfloat16(torch, settings, place)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    arguments = transformers.TrainingArguments(
        output_dir=str(run.state),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_queries,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=math.ceil(settings.warmup * total),
        lr_scheduler_type="linear",
        max_grad_norm=settings.clip,
        bf16=bfloat16,
        # What stays in float32 (the checks) runs several times as fast, and no score moves by more than a thousandth.
        tf32=True if place.type == "cuda" and torch.cuda.get_device_capability(place)[0] >= 8 else None,
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=place.type == "cpu",
        # The callback says when; a number of updates alone would miss the ends of most epochs.
        eval_strategy="steps",
        eval_steps=total + 1,
        save_strategy="steps",
        save_steps=total + 1,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model=watched,
        greater_is_better=not lower_is_better,
        restore_callback_states_from_checkpoint=True,
        logging_steps=1,
        log_level="error",
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=[],
        dataloader_pin_memory=place.type == "cuda",
    )
    # Trainer would split a step among all GPUs it sees, and tear queries from their items.
    arguments._n_gpu = min(1, arguments.n_gpu)
    bar = tqdm(total=total, desc="train", unit=" updates", disable=not progress)
    callback = RunCallback(run, examples, updates_per_epoch=updates_per_epoch, every=every, bar=bar)
    callbacks = [callback]
    if settings.patience is not None:
        callbacks.append(transformers.EarlyStoppingCallback(early_stopping_patience=settings.patience))
    trainer = CheckedTrainer(
        model=model,
        args=arguments,
        data_collator=examples.collate,
        train_dataset=examples,
        # Never read: `evaluate` asks `check` instead. But without one Trainer does not evaluate.
        eval_dataset=examples,
        callbacks=callbacks,
        check=check,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    last = run.last_checkpoint()
    run.cut_log(step_of(last) if last else -1)
    first_update = step_of(last) if last else 0
    if last:
        _log.info("Going on after update %d of %d.", first_update, total)
    else:
        run.add_to_log({"step": 0, "epoch": 0.0, **trainer.measured()})
    started = time.monotonic()
    with warnings.catch_warnings():
        # Their own use of what torch has deprecated is no news to a user.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        try:
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        finally:
            bar.close()
    state = trainer.state
    checks = {line["step"]: line for line in run.log if watched in line}
    before, best = (
        {name: value for name, value in checks[step].items() if name not in ("step", "epoch")}
        for step in (0, state.best_global_step)
    )
    return Fitted(
        updates=state.global_step,
        best_update=state.best_global_step,
        before=before,
        best=best,
        seconds=time.monotonic() - started,
        queries=round(state.epoch * len(examples) - first_update / updates_per_epoch * len(examples)),
        stopped_early=state.global_step < total,
    )


def training_device(torch: Any, asked: str | None) -> str:
    """The device asked for, else the first GPU, else the CPU."""
    if asked is None:
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise InputError(f"device is a torch device such as 'cpu' or 'cuda:0'; got {asked!r}.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {asked!r} was asked for, but torch sees {torch.cuda.device_count()} GPUs here.")
    return str(device)


def _wants_bfloat16(torch: Any, settings: TrainingSettings, place: Any) -> bool:
    has = place.type == "cuda" and torch.cuda.is_bf16_supported()
    if settings.precision == "bfloat16" and not has:
        # On CPUs without it torch does not say no: the process dies of an illegal instruction.
        raise InputError(f"Training in bfloat16 needs a GPU that has it; {place} has not. Use precision 'float32'.")
    return settings.precision == "bfloat16" or (settings.precision == "auto" and has)
