"""transformers' Trainer as `fit` uses it; imported there alone, since it brings torch and transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback

from adacur.core.errors import TrainingFailed
from adacur.training.examples import Examples
from adacur.training.run_folder import RunFolder

__all__ = ["CheckedTrainer", "RunCallback"]


class CheckedTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that checks by a function of ours, and stops at a loss that is no number."""

    def __init__(self, *args: Any, check: Callable[[], Mapping[str, float]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check = check
        self.control: Any

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        value = loss[0] if isinstance(loss, tuple) else loss
        if not torch.isfinite(value):
            raise self._failed(f"The loss is {value.item()}")
        return loss

    def measured(self) -> Mapping[str, float]:
        # The update behind a finite loss can still ruin the weights, and scores that are no numbers rank well.
        if not all(bool(torch.isfinite(weight).all()) for weight in self.model.parameters()):
            raise self._failed("A weight is no finite number")
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
        where = " That takes another folder: this one goes on with its own settings." if is_begun else ""
        return TrainingFailed(
            f"{what} after {self.state.global_step} updates. Lower the learning rate (now "
            f"{self.args.learning_rate:g}){precision}.{where}"
        )

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        # As transformers' linear one, which begins at 0, so that its first update stands still.
        warmup = self.args.get_warmup_steps(num_training_steps)
        left = num_training_steps - warmup
        self.lr_scheduler = LambdaLR(
            optimizer or self.optimizer,
            lambda done: min((done + 1) / (warmup + 1), max(0, num_training_steps - done) / left),
        )
        return self.lr_scheduler

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # transformers' own refuses a model, other than its own, with weights that are two at once, as T5's are.
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(folder / "model.safetensors"), metadata={"format": "pt"})

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Names that were left out when they were saved are no news, and it asks for what only its own models have."""

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        try:
            super()._save_checkpoint(*args, **kwargs)
        except Exception as error:
            # torch and safetensors each have an error of their own for a full disk.
            raise TrainingFailed(
                f"The checkpoint after {self.state.global_step} updates could not be written to "
                f"{self.args.output_dir}: {error}. Make room there and give the same command again: it goes on "
                "from the checkpoint before."
            ) from error


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Tells the run folder and the progress bar what happens."""

    def __init__(self, run: RunFolder, examples: Examples, *, updates_per_epoch: int, every: int, bar: Any) -> None:
        self._run, self._examples = run, examples
        self._updates_per_epoch, self._every = updates_per_epoch, every
        self._bar = bar
        self._said: dict[str, str] = {}

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Behind the last step of an epoch the count can end in .9999.
        self._examples.begin_epoch(math.floor((state.epoch or 0) + 1e-6))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._bar.update(state.global_step - self._bar.n)
        in_epoch = state.global_step % self._updates_per_epoch
        if in_epoch % self._every == 0:
            control.should_evaluate = control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:
        line = {name.removeprefix("eval_"): value for name, value in logs.items()}
        if "train_runtime" in line:
            return
        self._run.add_to_log({"step": state.global_step, **line})
        self._said |= {name: f"{value:.3g}" for name, value in line.items() if name not in ("epoch", "grad_norm")}
        self._bar.set_postfix(self._said, refresh=False)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.mark_whole(state.global_step)
        self._run.keep_checkpoints({state.global_step, state.best_global_step})
