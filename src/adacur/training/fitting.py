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
from adacur.scorers.cross_encoders.checkpoints import quiet
from adacur.training.examples import Examples
from adacur.training.run_folder import RunFolder, step_of
from adacur.training.settings import TrainingSettings

__all__ = ["Fitted", "check_device", "fit"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fitted:
    """How a fit went: updates in all, the checks before it and at its best (update 0: nothing was as good as before);
    seconds and queries of this process."""

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
    `watched`, or the lowest, is the best, and the model stays as it came where that was better than any. A run that was
    killed goes on from its last checkpoint, and ends with the same weights as one that was not, where the device
    computes the same twice.
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
    place = check_device(torch, device, settings)
    arguments = transformers.TrainingArguments(
        output_dir=str(run.state),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_queries,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=min(math.ceil(settings.warmup * total), total - 1),
        max_grad_norm=settings.clip,
        bf16=settings.precision != "float32" and _has_bfloat16(torch, place),
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=place.type == "cpu",
        # The callback says when; a number of updates alone would miss the ends of most epochs.
        eval_strategy="steps",
        eval_steps=total + 1,
        save_strategy="steps",
        save_steps=total + 1,
        metric_for_best_model=watched,
        greater_is_better=not lower_is_better,
        restore_callback_states_from_checkpoint=True,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=[],
        dataloader_pin_memory=place.type == "cuda",
    )
    # Trainer would split a step among all GPUs it sees, and tear queries from their items.
    arguments._n_gpu = min(1, arguments.n_gpu)
    if place.type == "cuda":
        # And it takes the first, whichever was asked for.
        arguments._setup_devices = place
        torch.cuda.set_device(place)
    # A run that goes on comes with the same.
    untrained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    last = run.last_checkpoint()
    first_update = step_of(last) if last else 0
    if last:
        _log.info("Going on after update %d of %d.", first_update, total)
    bar = tqdm(total=total, desc="train", unit=" updates", disable=not progress)
    callback = RunCallback(run, examples, updates_per_epoch=updates_per_epoch, every=every, bar=bar)
    callbacks = [callback]
    if settings.patience is not None:
        callbacks.append(transformers.EarlyStoppingCallback(early_stopping_patience=settings.patience))
    with bar, quiet(transformers), warnings.catch_warnings():
        # Their own use of what torch has deprecated is no news to a user.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
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
        run.cut_log(first_update if last else -1)
        if not last:
            run.add_to_log({"step": 0, "epoch": 0.0, **trainer.measured()})
        started = time.monotonic()
        state = transformers.TrainerState.load_from_json(str(last / "trainer_state.json")) if last else None
        # A run that was killed behind its last checkpoint has ended; Trainer would go on where it stopped early.
        if state is None or not state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]:
            trainer.train(resume_from_checkpoint=str(last) if last else None)
            state = trainer.state
    checks = {line["step"]: line for line in run.log if watched in line}
    gain = checks[state.best_global_step][watched] - checks[0][watched]
    best_update = 0 if (gain > 0 if lower_is_better else gain < 0) else state.best_global_step
    if best_update:
        # Not by Trainer, which looks for it at the path that it had before the folder was moved.
        best_weights = run.checkpoint(best_update) / "model.safetensors"
        require("safetensors.torch", extra="training").load_model(model, best_weights)
    else:
        _log.warning(
            "No check was as good as the one before training (%s %.3f, then %.3f at best): the model stays as it was.",
            watched,
            checks[0][watched],
            checks[state.best_global_step][watched],
        )
        model.load_state_dict(untrained)
    before, best = (
        {name: value for name, value in checks[step].items() if name not in ("step", "epoch")}
        for step in (0, best_update)
    )
    return Fitted(
        updates=state.global_step,
        best_update=best_update,
        before=before,
        best=best,
        seconds=time.monotonic() - started,
        queries=round(state.epoch * len(examples) - first_update / updates_per_epoch * len(examples)),
        stopped_early=state.global_step < total,
    )


def check_device(torch: Any, asked: str | None, settings: TrainingSettings) -> Any:
    """The device asked for, else the first GPU, else the CPU; refused where it is not there, or lacks the precision."""
    if asked is None:
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"device is a torch device, 'cpu' or one such as 'cuda:0'; got {asked!r}.")
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise InputError(f"device {asked!r} was asked for, but torch sees {torch.cuda.device_count()} GPUs here.")
    if settings.precision == "bfloat16" and not _has_bfloat16(torch, device):
        # On CPUs without it torch does not say no: the process dies of an illegal instruction.
        raise InputError(f"Training in bfloat16 needs a GPU that has it; {device} has not. Use precision 'float32'.")
    return device


def _has_bfloat16(torch: Any, device: Any) -> bool:
    return bool(device.type == "cuda" and torch.cuda.is_bf16_supported())
