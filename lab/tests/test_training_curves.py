"""Training curves: what is drawn of a log, and where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adacur.errors import EmptyInput
from adacur_lab.report import save, training_curves


def log(updates: int = 200, *, every: int = 50, **measures: float) -> list[dict[str, float]]:
    """A loss of 1/update, and checks of the same measures."""
    lines = [{"step": 0, "epoch": 0.0, **measures}]
    for step in range(1, updates + 1):
        lines.append({"step": step, "loss": 1 / step, "learning_rate": 1e-5, "grad_norm": 1.0, "epoch": step / 100})
        if step % every == 0:
            lines.append({"step": step, "epoch": step / 100, **measures})
    return lines


def drawn(axis) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines}


def test_every_loss_and_every_check_is_drawn_at_its_update() -> None:
    losses, checks = training_curves(log(mrr=0.5, accuracy=0.25)).axes

    assert drawn(losses)["each update"] == (list(range(1, 201)), [1 / step for step in range(1, 201)])
    assert drawn(checks) == {
        "mrr": ([0, 50, 100, 150, 200], [0.5] * 5),
        "accuracy": ([0, 50, 100, 150, 200], [0.25] * 5),
    }


def test_the_running_mean_is_of_the_last_updates_and_of_all_where_there_are_fewer() -> None:
    updates, means = drawn(training_curves(log(mrr=0.5)).axes[0])["mean of 4"]

    values = [1 / update for update in updates]
    assert means == pytest.approx([np.mean(values[max(0, end - 4) : end]) for end in range(1, 201)])


def test_a_few_updates_need_no_mean() -> None:
    assert list(drawn(training_curves(log(20)).axes[0])) == ["each update"]


def test_losses_and_errors_of_checks_stand_beside_the_training_loss() -> None:
    losses, checks = training_curves(log(mrr=0.5, held_out_loss=7.0, error=3.0)).axes

    assert {"held out loss", "error"} < set(drawn(losses))
    assert list(drawn(checks)) == ["mrr"]
    assert checks.get_ylim() == (0, 1.04)


def test_the_update_that_was_kept_is_marked_in_both_panels() -> None:
    for axis in training_curves(log(mrr=0.5), best_update=150).axes:
        assert drawn(axis)["kept"][0] == [150, 150]


def test_a_run_without_checks_is_one_panel() -> None:
    assert len(training_curves([line for line in log() if "loss" in line]).axes) == 1


def test_a_log_without_an_update_cannot_be_drawn() -> None:
    with pytest.raises(EmptyInput, match="has 1 lines"):
        training_curves([{"step": 0, "epoch": 0.0, "mrr": 0.5}])


def test_the_same_log_gives_the_same_file(tmp_path: Path) -> None:
    (one,) = save(training_curves(log(mrr=0.5)), tmp_path / "one", kinds=("png",))
    (other,) = save(training_curves(log(mrr=0.5)), tmp_path / "other", kinds=("png",))

    assert one.read_bytes() == other.read_bytes()
