"""Dual encoders, trained on the judged queries of a collection or on the scores of a teacher."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.budget import is_whole
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.protocols import Items
from adacur.core.records import Item, ItemList
from adacur.data import JudgedCollection
from adacur.first_stages import AnyStage
from adacur.scorers.cross_encoders.checkpoints import checkpoint_folder
from adacur.training.fitting import check_device, fit
from adacur.training.judged_queries import (
    drawn_items,
    hard_negatives,
    learning_data,
    split_for_learning,
    with_equal_texts,
)
from adacur.training.run_folder import RunFolder, Trained, facts_of_base, facts_of_first
from adacur.training.settings import TowerOptions, TrainingSettings
from adacur.training.teacher_scores import TeacherScores

if TYPE_CHECKING:
    from adacur.training.towers import TowerExamples, TowerItems, TowerPair

__all__ = ["distill", "train_dual_encoder"]

_DEFAULT_SETTINGS = TrainingSettings(epochs=4, learning_rate=2e-5, batch_queries=32)
_AS_THE_BASE = TowerOptions()
_MRR_DEPTH = 10
# The paper's distillation: many items per query need fewer epochs.
_EPOCHS, _EPOCHS_OF_MANY, _MANY_ITEMS = 10, 4, 100
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
    - `held_out`: queries to check with; by default a tenth, at most 200
    - `device`: "cpu" or "cuda"

    `SentenceTransformerEncoder` opens the result by its path.
    """
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
    facts = {
        "trains": "dual-encoder",
        "collection": data.name,
        "data": data.fingerprint,
        **facts_of_first(first),
        "negatives": negatives,
        "depth": depth,
    }
    with _begun(folder, facts, base=base, towers=towers, settings=settings, device=device) as begun:
        if (finished := begun.run.result) is not None:
            return finished
        from adacur.training.towers import TowerExamples

        model, items = begun.opened(data.items)
        judged = with_equal_texts(data.learnt, items.row_of)
        texts, checked = ([query.text for query in part.queries] for part in (data.learnt, data.held_out))

        def mine(epoch: int) -> Sequence[IntArray] | None:
            if not negatives or (epoch == 0 and first is None):
                return None
            if epoch == 0 and first is not None:
                return hard_negatives(first, judged, data.items, depth=depth, seed=settings.seed)
            return nearest_but(judged.relevant, texts, items, depth=depth)

        def draw(place: int, epoch: int, mined: IntArray | None) -> tuple[IntArray, FloatArray, IntArray]:
            relevant = judged.relevant[place]
            shown = drawn_items(
                relevant,
                mined,
                negatives=negatives,
                items=data.items,
                seed=settings.seed,
                epoch=epoch,
                query=judged.queries[place],
            )
            return shown, np.eye(1, len(shown), dtype=np.float32)[0], items.row_of[relevant]

        def check() -> Mapping[str, float]:
            k = first_stage_depth(len(data.items))
            best = items.nearest(checked, min(len(data.items), max(k, _MRR_DEPTH)))
            return retrieval_quality(best, data.held_out.relevant, k=k)

        examples = TowerExamples(model, items, texts, draw=draw, mine=mine)
        return begun.fit(examples, check=check, watched=f"mrr@{_MRR_DEPTH}", progress=progress)


def distill(
    teacher: TeacherScores,
    items: Items | Iterable[Item],
    folder: str | Path,
    *,
    base: str | Path,
    towers: TowerOptions = _AS_THE_BASE,
    temperature: float | None = None,
    settings: TrainingSettings | None = None,
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
    - `temperature`: the paper's loss instead, between softmax(teacher / temperature) and that of the dot products, over
      the query's own items
    - `settings`: by default the paper's, learning rate 1e-5 and 10 epochs, or 4 where a query has more than 100 items
    - `held_out`: queries to check with; by default a tenth, at most 200
    - `device`: "cpu" or "cuda"
    """
    if temperature is not None and not 0 < temperature < float("inf"):
        raise InputError(f"temperature must be above 0; got {temperature!r}.")
    all_items: Items = ItemList(items) if isinstance(items, Iterable) else items
    for query, positions in zip(teacher.queries, teacher.positions, strict=True):
        if positions.max() >= len(all_items):
            raise InputError(
                f"The teacher scored the item at position {positions.max()} for query {query.id!r}; there are "
                f"{len(all_items)} items. Pass the items that it scored, in their order."
            )
    if len(teacher) < 2:
        raise InputError(f"Learning needs at least 2 queries, one of them to check with; there is {len(teacher)}.")
    settings = settings or paper_settings(teacher)
    learnt, kept = map(teacher.part, split_for_learning(teacher.queries, held_out=held_out, seed=settings.seed))
    facts = {
        "trains": "distilled dual-encoder",
        "teacher": teacher.fingerprint,
        "items": _fingerprint(all_items),
        "held_out": len(kept),
        "temperature": temperature,
    }
    with _begun(folder, facts, base=base, towers=towers, settings=settings, device=device) as begun:
        if (finished := begun.run.result) is not None:
            return finished
        from adacur.training.towers import TowerExamples

        model, in_rows = begun.opened(all_items)
        texts, checked = ([query.text for query in part.queries] for part in (learnt, kept))
        n_best = min(map(_n_best, kept.scores))
        depth = max(n_best, first_stage_depth(len(all_items)))
        watched = f"top{n_best}_recall@{depth}"
        liked = [of_query[_best(scores, n_best)] for of_query, scores in zip(kept.positions, kept.scores, strict=True)]

        def mine(epoch: int) -> Sequence[IntArray] | None:
            # What another teacher's list lacks is not known to be worse.
            if not teacher.of_all_items or temperature is not None:
                return None
            return nearest_but(learnt.positions, texts, in_rows, depth=_MINED)

        def draw(place: int, epoch: int, mined: IntArray | None) -> tuple[IntArray, FloatArray, IntArray | None]:
            positions, targets = learnt.positions[place], target_shares(learnt.scores[place], temperature)
            if mined is not None:
                positions, targets = np.append(positions, mined), np.append(targets, np.zeros(len(mined)))
            # Every other item of the step counts: what this query's list lacks, the teacher likes less.
            return positions, targets, np.empty(0, np.intp) if temperature is None else None

        def check() -> Mapping[str, float]:
            nearest = in_rows.nearest(checked, depth)
            shares = [np.isin(best, row).mean() for best, row in zip(liked, nearest, strict=True)]
            return {watched: float(np.mean(shares))}

        examples = TowerExamples(model, in_rows, texts, draw=draw, mine=mine)
        return begun.fit(examples, check=check, watched=watched, progress=progress)


@dataclass(slots=True)
class _TowerRun:
    """A run folder, and the towers that are trained in it."""

    run: RunFolder
    base: Path
    towers: TowerOptions
    settings: TrainingSettings
    device: str | None

    def opened(self, items: Items) -> tuple[TowerPair, TowerItems]:
        from adacur.training.towers import TowerItems, TowerPair

        # Weights that the base lacks, such as a pooler's, are drawn from it.
        require("torch", extra="training").manual_seed(self.settings.seed)
        model = TowerPair.opened(self.base, self.towers)
        return model, TowerItems(model, items)

    def fit(self, examples: TowerExamples, *, check: Any, watched: str, progress: bool) -> Trained:
        model = examples.towers
        trained = fit(
            model,
            examples,
            settings=self.settings,
            run=self.run,
            check=check,
            watched=watched,
            device=self.device,
            progress=progress,
        )
        model.publish(self.run)
        return self.run.finish(trained)


@contextmanager
def _begun(
    folder: str | Path,
    facts: Mapping[str, Any],
    *,
    base: str | Path,
    towers: TowerOptions,
    settings: TrainingSettings,
    device: str | None,
) -> Iterator[_TowerRun]:
    require("sentence_transformers", extra="training")
    check_device(require("torch", extra="training"), device, settings)
    base_folder = checkpoint_folder(base)
    made_from = {**facts, **facts_of_base(base, base_folder, out=folder)}
    with RunFolder(folder, made_from | {"towers": asdict(towers), "settings": asdict(settings)}) as run:
        yield _TowerRun(run, base_folder, towers, settings, device)


def nearest_but(
    without: Sequence[IntArray], queries: Sequence[str], items: TowerItems, *, depth: int
) -> list[IntArray]:
    """Per query, the positions of at most `depth` nearest items, without these."""
    most = max(map(len, without))
    depth = min(depth, len(items.row_of) - most)
    nearest = items.nearest(queries, depth + most)
    return [row[~np.isin(row, left_out)][:depth] for row, left_out in zip(nearest, without, strict=True)]


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


def target_shares(scores: FloatArray, temperature: float | None) -> FloatArray:
    """The probability of each of a query's items: equal for the best, or the softmax of the scores.

    Every scorer has its own scale of scores; which items are the best ten does not depend on it.
    """
    if temperature is not None:
        likelihood = np.exp((np.asarray(scores, np.float64) - max(scores)) / temperature)
        return np.asarray(likelihood / likelihood.sum())
    n = _n_best(scores)
    shares = np.zeros(len(scores))
    shares[_best(scores, n)] = 1 / n
    return shares


def paper_settings(teacher: TeacherScores) -> TrainingSettings:
    """The paper's settings of a distillation."""
    epochs = _EPOCHS if max(map(len, teacher.positions)) <= _MANY_ITEMS else _EPOCHS_OF_MANY
    return TrainingSettings(epochs=epochs, learning_rate=1e-5, batch_queries=4)


def _n_best(scores: FloatArray) -> int:
    # All that a teacher scored would say nothing about order.
    return min(_BEST, len(scores) // 2)


def _best(scores: FloatArray, n: int) -> IntArray:
    return np.argsort(-scores, kind="stable")[:n]


def _fingerprint(items: Items) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for item in items.at(range(len(items))):
        digest.update(f"{item.id}\0{item.text}\0".encode(errors="replace"))
    return digest.hexdigest()
