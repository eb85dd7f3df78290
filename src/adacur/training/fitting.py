"""One training loop for every model: transformers' Trainer, with a check and a checkpoint after every epoch."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from adacur.core.errors import InputError, TrainingFailed
from adacur.core.extras import require
from adacur.scorers.cross_encoders.checkpoints import quiet
from adacur.training.run_folder import RunFolder, Trained
from adacur.training.settings import TrainingSettings

__all__ = ["Examples", "check_device", "fit"]

_log = logging.getLogger(__name__)


class Examples(Protocol):
    """An example per query, and how several of them become the tensors of one step."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Any: ...

    def begin_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch."""
        ...

    def collate(self, examples: list[Any]) -> dict[str, Any]:
        """The arguments of the model's forward."""
        ...


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
) -> Trained:
    """Train `model`, whose forward returns {"loss": …}, and leave it as it was at its best check.

    `check` measures it on held-out queries, in evaluation mode and without gradients; the first check with the highest
    `watched` (or lowest) is the best. A model that was better before training stays as it came. A killed run continues
    after its last finished epoch and ends with the same weights, where the device computes the same twice.
    """
    torch = require("torch", extra="training")
    transformers = require("transformers", extra="training")
    require("accelerate", extra="training")
    from tqdm import tqdm

    if not len(examples):
        raise InputError("There is no query to learn from.")
    updates_per_epoch = math.ceil(math.ceil(len(examples) / settings.batch_queries) / settings.accumulate)
    total = updates_per_epoch * settings.epochs
    place = check_device(torch, device, settings)
    arguments = transformers.TrainingArguments(
        output_dir=str(run.state),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_queries,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=int(settings.warmup * total),
        max_grad_norm=settings.clip,
        bf16=settings.precision != "float32" and _has_bfloat16(torch, place),
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=place.type == "cpu",
        eval_strategy="epoch",
        save_strategy="epoch",
        # The best and the last.
        save_total_limit=2,
        metric_for_best_model=watched,
        greater_is_better=not lower_is_better,
        restore_callback_states_from_checkpoint=True,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        # Its bar prints every loss to the standard output.
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=[],
        dataloader_pin_memory=place.type == "cuda",
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
        trainer = _trainer(transformers)(
            model=model,
            args=arguments,
            data_collator=examples.collate,
            train_dataset=examples,
            # Never read, as `evaluate` calls `check`; but without one Trainer does not evaluate.
            eval_dataset=examples,
            callbacks=[_callback(transformers, run, examples, bar), *stopping],
        )
        trainer.check = check
        trainer.remove_callback(transformers.PrinterCallback)
        before = dict(trainer.measured())
        started = time.monotonic()
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    state = trainer.state
    log: list[Mapping[str, Any]] = [{"step": 0, **before}]
    log += [{name.removeprefix("eval_"): value for name, value in line.items()} for line in state.log_history]
    best_update = state.best_global_step
    best = next(line for line in log if line["step"] == best_update and watched in line)
    if best[watched] > before[watched] if lower_is_better else best[watched] < before[watched]:
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
        best_weights = run.checkpoint(best_update) / "model.safetensors"
        require("safetensors.torch", extra="training").load_model(model, best_weights)
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


def check_device(torch: Any, name: str | None, settings: TrainingSettings) -> Any:
    """The named device, else the GPU, else the CPU; refused where it is missing or lacks the precision."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise InputError(f"device must be 'cpu' or 'cuda' (CUDA_VISIBLE_DEVICES chooses which GPU); got {name!r}.")
    n_gpus = torch.cuda.device_count()
    if name == "cuda" and n_gpus != 1:
        # Trainer would split a step among several and tear queries from their items.
        raise InputError(
            f"Training runs on one GPU, and torch sees {n_gpus}. Set CUDA_VISIBLE_DEVICES=0, or use 'cpu'."
        )
    device = torch.device(name)
    if settings.precision == "bfloat16" and not _has_bfloat16(torch, device):
        # On CPUs without it torch raises nothing: the process dies of an illegal instruction.
        raise InputError(f"bfloat16 needs a GPU that has it; {device} does not. Use precision 'float32'.")
    return device


def _has_bfloat16(torch: Any, device: Any) -> bool:
    return bool(device.type == "cuda" and torch.cuda.is_bf16_supported())


def _trainer(transformers: Any) -> Any:
    """Trainer with `check` in place of its evaluation, which stops at a loss or a weight that is not finite."""
    torch = require("torch", extra="training")

    class CheckedTrainer(transformers.Trainer):  # type: ignore[misc]
        check: Callable[[], Mapping[str, float]]
        control: Any

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
                    return self.check()
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

    return CheckedTrainer


def _callback(transformers: Any, run: RunFolder, examples: Examples, bar: Any) -> Any:
    class RunCallback(transformers.TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # After the last step of an epoch the count can end in .9999.
            examples.begin_epoch(math.floor((state.epoch or 0) + 1e-6))

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:
            bar.update(state.global_step - bar.n)
            bar.set_postfix({name.removeprefix("eval_"): f"{value:.3g}" for name, value in logs.items()}, refresh=False)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            run.mark_whole(state.global_step)

    return RunCallback()
