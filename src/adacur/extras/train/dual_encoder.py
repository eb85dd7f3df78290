"""Dual encoders, trained on the judged queries of a collection or on the scores of a teacher."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.budget import is_whole
from adacur.data import JudgedCollection
from adacur.errors import InputError
from adacur.extras.train.judged_queries import (
    learning_data,
    same_words,
    split_for_learning,
    update_with_texts,
    with_equal_texts,
)
from adacur.extras.train.mining import Mined, list_set_aside, plan_mining
from adacur.extras.train.mining import mine as mine_once
from adacur.extras.train.negatives import NEAR_ALONE, Draws, Mixture, Pool, facts_of_first, near_misses, without
from adacur.extras.train.run_folder import RunFolder, Trained
from adacur.extras.train.teacher_scores import TeacherScores
from adacur.extras.train.training_settings import TowerOptions, TrainingSettings, check_installed
from adacur.first_stages import AnyStage
from adacur.protocols import Items, Scorer
from adacur.records import Item, ItemList

if TYPE_CHECKING:
    from adacur.extras.train.fitting import Task
    from adacur.extras.train.towers import TowerExample, TowerItems, TowerPair

_log = logging.getLogger(__name__)
_DEFAULT_SETTINGS = TrainingSettings(epochs=4, learning_rate=2e-5, batch_queries=32)
# The paper's.
_DISTILL_SETTINGS = TrainingSettings(epochs=10, learning_rate=1e-5, batch_queries=4)
_AS_THE_BASE = TowerOptions()
_MRR_DEPTH = 10
_BEST = 10
# The student's own best items, shown beside the teacher's.
_MINED = 100


def train_dual_encoder(
    collection: JudgedCollection,
    folder: str | Path,
    *,
    base: str | Path,
    first: AnyStage | None = None,
    towers: TowerOptions = _AS_THE_BASE,
    negatives: int = 7,
    depth: int = 100,
    miner: Scorer | None = None,
    mining_calls: int | None = None,
    settings: TrainingSettings = _DEFAULT_SETTINGS,
    held_out: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Trained:
    """Train a dual encoder on the judged queries of a collection and write it to `folder`; a killed run continues.

    Each step shows queries with a relevant item and hard negatives, and the loss is the cross-entropy over all items of
    the step, other relevant ones left out. Checks rank all items for held-out queries: "mrr@10", which decides what is
    best, and "recall@100" (of the best tenth of the items where there are fewer than 1,000).

    - `base`: an encoder of transformers, or a model of sentence-transformers; it gives both towers their weights
    - `first`: finds the negatives of the first epoch, which has none without it; later epochs use the dual encoder
    - `towers`: pooling, length and sharing of the two towers
    - `negatives` per relevant item, drawn from the `depth` best that are not relevant
    - `miner`: a scorer; half of the negatives are then what searches with it find. What it puts above relevant items
      by a margin is never shown, and is listed in `folder`/set_aside.jsonl
    - `mining_calls`: pairs that the miner may score, for its index and its searches; by default four times the pairs
      that are trained on
    - `held_out`: queries to check with; by default a tenth, at most 200
    - `device`: "cpu" or "cuda"

    `SentenceTransformerEncoder` opens the result by its path.
    """
    check_installed()
    if not (is_whole(negatives) and is_whole(depth)) or not 0 <= negatives <= depth:
        raise InputError(
            f"negatives must be a whole number from 0 to depth; got negatives={negatives!r}, depth={depth!r}."
        )
    if not negatives and first is not None:
        raise InputError("A first stage finds negatives, and negatives is 0. Leave one of the two out.")
    data = learning_data(collection, held_out=held_out, seed=settings.seed)
    if min(settings.batch_queries, len(data.learnt)) == 1 and first is None:
        raise InputError(
            "A step of 1 query needs hard negatives to learn against. Raise batch_queries (now "
            f"{settings.batch_queries}, {len(data.learnt)} queries to learn from), or pass a first stage."
        )
    if miner is not None and not negatives:
        raise InputError("A miner finds negatives, and negatives is 0. Leave one of the two out.")
    facts = {
        "trains": "dual-encoder",
        "collection": data.name,
        "data": data.fingerprint,
        **facts_of_first(first),
        "negatives": negatives,
        "depth": depth,
        "miner": miner and asdict(miner.card),
        "mining_calls": mining_calls,
    }
    texts, checked = ([query.text for query in part.queries] for part in (data.learnt, data.held_out))

    def learn(model: TowerPair, items: TowerItems, run: RunFolder) -> Task:
        from adacur.extras.train.fitting import Examples, Task

        judged = with_equal_texts(data.learnt, same_words(data.items))
        found = aside = None
        if miner is not None:
            trained_on = settings.epochs * len(judged) * (1 + negatives)
            plan = plan_mining(len(judged), len(data.items), calls=mining_calls, usual=4 * trained_on)
            described = plan.describe(n_items=len(data.items), n_queries=len(judged))
            _log.info("Mining with %s: %s.", miner.card.name, described)
            if not run.mined(1).exists():
                options: dict[str, Any] = {"first": first, "plan": plan, "seed": settings.seed, "progress": progress}
                mine_once(miner, judged, data.items, **options).save(run.mined(1))
            mined = Mined.load(run.mined(1))
            found, aside = mined.positions, mined.outscoring()
            list_set_aside(mined.all_outscoring("under the miner"), judged, data.items, run.path)
        mixture = NEAR_ALONE if found is None else Mixture(near=1, random=0, found=1)
        draws = Draws(judged, data.items, negatives, settings.seed, mixture)

        def mine(epoch: int) -> Sequence[Pool] | None:
            if not negatives or (epoch == 0 and first is None and found is None):
                return None
            if epoch:
                near = nearest_but(judged.relevant, texts, items, depth=depth)
            elif first is not None:
                near = near_misses(first, judged, data.items, depth=depth)
            else:
                near = [np.empty(0, np.intp)] * len(judged)
            if found is None or aside is None:
                return list(map(Pool, near))
            return list(map(Pool, near, found, aside))

        def draw(place: int, epoch: int, mined: Pool | None) -> TowerExample:
            shown = draws(place, epoch, mined)
            return texts[place], shown, np.eye(1, len(shown))[0], items.row_of[judged.relevant[place]]

        def check() -> Mapping[str, float]:
            k = first_stage_depth(len(data.items))
            best = items.nearest(checked, min(len(data.items), max(k, _MRR_DEPTH)))
            return retrieval_quality(best, data.held_out.relevant, k=k)

        examples = Examples(len(texts), draw=draw, collate=items.step, mine=mine)
        return Task(model, examples, check, watched=f"mrr@{_MRR_DEPTH}")

    return _train_towers(
        learn, data.items, folder, facts, base=base, towers=towers, settings=settings, device=device, progress=progress
    )


def distill(
    teacher: TeacherScores,
    items: Items | Iterable[Item],
    folder: str | Path,
    *,
    base: str | Path,
    towers: TowerOptions = _AS_THE_BASE,
    settings: TrainingSettings = _DISTILL_SETTINGS,
    held_out: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Trained:
    """Train a dual encoder to find what a teacher likes best and write it to `folder`; a killed run continues.

    The loss is the cross-entropy between equal shares for the teacher's best 10 items of a query (the better half of
    what was scored, where that is less) and softmax(scale · dot product) over all items of the step: the query's, those
    of the other queries and, where the teacher scored all items, the dual encoder's own 100 best at the beginning of
    the epoch. Checks search all items for held-out queries: "top10_recall@100", which decides what is best, is the
    share of the teacher's best 10 among the dual encoder's best 100 (fewer in small collections).

    - `teacher`: `TeacherScores.from_index(index)`, which costs no scorer call, or `from_scorers`
    - `base`: a plain encoder gives the paper's DE^CE_BERT, a trained dual encoder its DE^CE_base
    - `towers`: pooling, length and sharing of the two towers
    - `settings`: by default the paper's, learning rate 1e-5 and 10 epochs
    - `held_out`: queries to check with; by default a tenth, at most 200
    - `device`: "cpu" or "cuda"
    """
    check_installed()
    all_items: Items = ItemList(items) if isinstance(items, Iterable) else items
    for row in teacher.rows:
        if row.positions.max() >= len(all_items):
            raise InputError(
                f"The teacher scored the item at position {row.positions.max()} for query {row.query.id!r}; there are "
                f"{len(all_items)} items. Pass the items that it scored, in their order."
            )
    if len(teacher.rows) < 2:
        raise InputError(f"Learning needs at least 2 queries, one of them to check with; got {len(teacher.rows)}.")
    row_of = {row.query.id: row for row in teacher.rows}
    parts = split_for_learning([row.query for row in teacher.rows], held_out=held_out, seed=settings.seed)
    learnt, checked = ([row_of[query.id] for query in part] for part in parts)
    texts_of_items = hashlib.blake2b(digest_size=16)
    update_with_texts(texts_of_items, all_items.at(range(len(all_items))))
    facts = {
        "trains": "distilled dual-encoder",
        "teacher": teacher.fingerprint,
        "items": texts_of_items.hexdigest(),
        "held_out": len(checked),
    }
    texts, checked_texts = ([row.query.text for row in part] for part in (learnt, checked))
    n_best = min(_n_best(row.scores) for row in checked)
    liked = [row.positions[_best(row.scores, n_best)] for row in checked]
    depth = max(n_best, first_stage_depth(len(all_items)))
    watched = f"top{n_best}_recall@{depth}"

    def learn(model: TowerPair, in_rows: TowerItems, run: RunFolder) -> Task:
        from adacur.extras.train.fitting import Examples, Task

        def mine(epoch: int) -> Sequence[IntArray] | None:
            # What another teacher's list lacks is not known to be worse.
            lists = [row.positions for row in learnt]
            return nearest_but(lists, texts, in_rows, depth=_MINED) if teacher.of_all_items else None

        def draw(place: int, epoch: int, mined: IntArray | None) -> TowerExample:
            positions, targets = learnt[place].positions, target_shares(learnt[place].scores)
            if mined is not None:
                positions, targets = np.append(positions, mined), np.append(targets, np.zeros(len(mined)))
            # Every other item of the step counts: what this query's list lacks, the teacher likes less.
            return texts[place], positions, targets, np.empty(0, np.intp)

        def check() -> Mapping[str, float]:
            nearest = in_rows.nearest(checked_texts, depth)
            shares = [np.isin(best, row).mean() for best, row in zip(liked, nearest, strict=True)]
            return {watched: float(np.mean(shares))}

        examples = Examples(len(texts), draw=draw, collate=in_rows.step, mine=mine)
        return Task(model, examples, check, watched)

    return _train_towers(
        learn, all_items, folder, facts, base=base, towers=towers, settings=settings, device=device, progress=progress
    )


def _train_towers(
    learn: Callable[[TowerPair, TowerItems, RunFolder], Task],
    items: Items,
    folder: str | Path,
    facts: Mapping[str, Any],
    *,
    towers: TowerOptions,
    **options: Any,
) -> Trained:
    """What both ways to train a dual encoder share."""
    from adacur.extras.train.fitting import run_training
    from adacur.extras.train.towers import TowerItems, TowerPair

    def prepare(base_folder: Path, run: RunFolder) -> Task:
        model = TowerPair.opened(base_folder, towers)
        return learn(model, TowerItems(model, items), run)

    return run_training(folder, {**facts, "towers": asdict(towers)}, prepare, **options)


def nearest_but(
    left_out: Sequence[IntArray], queries: Sequence[str], items: TowerItems, *, depth: int
) -> list[IntArray]:
    """Per query, the positions of at most `depth` nearest items, without these."""
    most = max(map(len, left_out))
    depth = min(depth, len(items.row_of) - most)
    nearest = items.nearest(queries, depth + most)
    return without(left_out, list(nearest), depth=depth)


def first_stage_depth(n_items: int) -> int:
    """The number of a dual encoder's best items that a check looks at: 100, or a tenth of a small collection."""
    return min(100, math.ceil(n_items / 10))


def retrieval_quality(best: IntArray, relevant: Sequence[IntArray], *, k: int) -> dict[str, float]:
    """Means over queries: the share of the relevant among the best k, and one over the rank of the first relevant, 0
    beyond the tenth."""
    hits = [np.isin(row, right) for row, right in zip(best, relevant, strict=True)]
    recall = [hit[:k].sum() / len(right) for hit, right in zip(hits, relevant, strict=True)]
    top = [hit[:_MRR_DEPTH] for hit in hits]
    return {
        f"recall@{k}": float(np.mean(recall)),
        f"mrr@{_MRR_DEPTH}": float(np.mean([1 / (1 + int(hit.argmax())) if hit.any() else 0.0 for hit in top])),
    }


def target_shares(scores: FloatArray) -> FloatArray:
    """The probability of each of a query's items: equal for the best, and 0 for the others.

    Every scorer has its own scale of scores; which items are the best ten does not depend on it.
    """
    n = _n_best(scores)
    shares = np.zeros(len(scores))
    shares[_best(scores, n)] = 1 / n
    return shares


def _n_best(scores: FloatArray) -> int:
    # All that a teacher scored would say nothing about order.
    return min(_BEST, len(scores) // 2)


def _best(scores: FloatArray, n: int) -> IntArray:
    return np.argsort(-scores, kind="stable")[:n]
