"""Dual encoders that learn what a cross-encoder likes best, from the anchor scores of an index."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adacur.arrays import IntArray
from adacur.budget import is_whole
from adacur.errors import EmptyInput, InputError
from adacur.extras.train.judged_queries import split_for_learning, update_with_texts
from adacur.extras.train.run_folder import RunFolder, Trained, TrainingSettings, check_installed
from adacur.search import AnchorIndex
from adacur_lab.dual_encoder import first_stage_depth, nearest_but

if TYPE_CHECKING:
    from adacur.extras.train.fitting import Task
    from adacur_lab.towers import TowerExample, Towers

_log = logging.getLogger(__name__)
# The paper's.
_DEFAULT_SETTINGS = TrainingSettings(epochs=10, learning_rate=1e-5, batch_queries=4)
_BEST = 10
# The student's own best items, shown beside the teacher's.
_MINED = 100


def distill(
    index: AnchorIndex,
    folder: str | Path,
    *,
    base: str | Path,
    top: int = 100,
    towers: Towers = "separate",
    max_item_tokens: int | None = None,
    settings: TrainingSettings = _DEFAULT_SETTINGS,
    held_out: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Trained:
    """Train a dual encoder to find what the scorer of an index likes best; a killed run continues. Nothing is scored.

    The loss is the cross-entropy between equal shares for the best 10 items of an anchor query (the better half of
    `top`, where that is less) and softmax(scale · dot product) over all items of the step: the query's, those of the
    other queries, and the dual encoder's own 100 best at the beginning of the epoch. Checks search all items for
    held-out anchor queries: "top10_recall@100", which decides what is best, is the share of the scorer's best 10 among
    the dual encoder's best 100 (fewer in small collections).

    - `base`: a plain encoder gives the paper's DE^CE_BERT, a trained dual encoder its DE^CE_base
    - `top`: items of each anchor query, its best
    - `towers`, `max_item_tokens`: as for `train_dual_encoder`
    - `settings`: by default the paper's, learning rate 1e-5 and 10 epochs
    - `held_out`: queries to check with; by default a tenth, at most 200
    - `device`: "cpu" or "cuda"
    """
    check_installed()
    items, queries = index.items, index.anchor_queries
    best = _best(index, top)
    different = [query for query in queries if query.id in best]
    if len(different) < len(queries):
        left_out = next(query.id for query in queries if query.id not in best)
        _log.warning(
            "%d of %d queries are left out, such as %r: their best %d items score the same.",
            len(queries) - len(different),
            len(queries),
            left_out,
            top,
        )
    if len(different) < 2:
        raise InputError(f"Learning needs at least 2 queries, one of them to check with; got {len(different)}.")
    learnt, checked = split_for_learning(different, held_out=held_out, seed=settings.seed)
    digest = hashlib.blake2b(digest_size=16)
    update_with_texts(digest, items.at(range(len(items))))
    update_with_texts(digest, different)
    for query in different:
        digest.update(best[query.id].astype("<i8").tobytes())
    facts = {
        "trains": "distilled dual-encoder",
        "teacher": digest.hexdigest(),
        "held_out": len(checked),
        "towers": towers,
        "max_item_tokens": max_item_tokens,
    }
    texts, checked_texts = ([query.text for query in part] for part in (learnt, checked))
    # All of the `top` would say nothing about order.
    n_best = min(_BEST, top // 2)
    depth = max(n_best, first_stage_depth(len(items)))
    watched = f"top{n_best}_recall@{depth}"

    from adacur.extras.train.fitting import Examples, Task, run_training
    from adacur_lab.towers import TowerItems, TowerPair

    def prepare(base_folder: Path, run: RunFolder) -> Task:
        model = TowerPair.opened(base_folder, towers=towers, max_item_tokens=max_item_tokens)
        in_rows = TowerItems(model, items)

        def mine(epoch: int) -> Sequence[IntArray]:
            return nearest_but([best[query.id] for query in learnt], texts, in_rows, depth=_MINED)

        def draw(place: int, epoch: int, mined: IntArray) -> TowerExample:
            positions = np.append(best[learnt[place].id], mined)
            # Equal shares: every scorer has its own scale of scores, and which are the best ten does not depend on it.
            targets = np.where(np.arange(len(positions)) < n_best, 1 / n_best, 0.0)
            # Every other item of the step counts: what this query's list lacks, the teacher likes less.
            return texts[place], positions, targets, np.empty(0, np.intp)

        def check() -> Mapping[str, float]:
            nearest = in_rows.nearest(checked_texts, depth)
            shares = [np.isin(best[query.id][:n_best], row).mean() for query, row in zip(checked, nearest, strict=True)]
            return {watched: float(np.mean(shares))}

        return Task(model, Examples(len(texts), draw=draw, collate=in_rows.step, mine=mine), check, watched)

    return run_training(folder, facts, prepare, base=base, settings=settings, device=device, progress=progress)


def _best(index: AnchorIndex, top: int) -> dict[str, IntArray]:
    """By query id the positions of the best items, best first, where they do not all score the same."""
    if not (is_whole(top) and 2 <= top <= len(index)):
        raise InputError(f"top must lie between 2 and the number of items, {len(index)}; got {top!r}.")
    if not len(index.anchor_queries):
        raise EmptyInput("This index has no anchor queries, so it holds no scores to learn from.")
    cells = index.snapshot.exact_cells()
    if cells is not None and not cells.all():
        raise InputError(
            "Some scores of this index are predicted, and only exact ones are worth learning from. Use an index in "
            "which every pair was scored."
        )
    best: dict[str, IntArray] = {}
    for query, column in zip(index.anchor_queries, index.matrix.T, strict=True):
        scores = np.ascontiguousarray(column)
        chosen = np.argpartition(-scores, top - 1)[:top]
        chosen = chosen[np.lexsort((chosen, -scores[chosen]))]
        if scores[chosen[0]] != scores[chosen[-1]]:
            best[query.id] = chosen
    return best
