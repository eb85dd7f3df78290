"""Dual encoders, trained on the judged queries of a collection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adacur.arrays import IntArray
from adacur.budget import at_least, is_whole
from adacur.data import JudgedCollection
from adacur.errors import InputError
from adacur.extras.train.judged_queries import learning_data, same_words, with_equal_texts
from adacur.extras.train.negatives import Draws, Pool, facts_of_first, near_misses, without
from adacur.extras.train.run_folder import RunFolder, Trained, TrainingSettings, check_installed
from adacur.first_stages import AnyStage

if TYPE_CHECKING:
    from adacur.extras.train.fitting import Task
    from adacur_lab.towers import TowerExample, TowerItems, Towers

_DEFAULT_SETTINGS = TrainingSettings(epochs=4, learning_rate=2e-5, batch_queries=32)
_MRR_DEPTH = 10


def train_dual_encoder(
    collection: JudgedCollection,
    folder: str | Path,
    *,
    base: str | Path,
    first: AnyStage | None = None,
    towers: Towers = "separate",
    max_item_tokens: int | None = None,
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
    - `towers`: "separate" weights for queries and items, or "shared" ones
    - `max_item_tokens`: where items are cut; by default at 512 or where the base cuts them
    - `negatives` per relevant item, drawn from the `depth` best that are not relevant
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
    at_least(1, max_item_tokens=max_item_tokens)
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
        "towers": towers,
        "max_item_tokens": max_item_tokens,
    }
    texts, checked = ([query.text for query in part.queries] for part in (data.learnt, data.held_out))

    from adacur.extras.train.fitting import Examples, Task, run_training
    from adacur_lab.towers import TowerItems, TowerPair

    def prepare(base_folder: Path, run: RunFolder) -> Task:
        model = TowerPair.opened(base_folder, towers=towers, max_item_tokens=max_item_tokens)
        items = TowerItems(model, data.items)
        judged = with_equal_texts(data.learnt, same_words(data.items))
        draws = Draws(judged, data.items, negatives, settings.seed)

        def mine(epoch: int) -> Sequence[Pool] | None:
            if not negatives or (epoch == 0 and first is None):
                return None
            if epoch == 0:
                assert first is not None
                return list(map(Pool, near_misses(first, judged, data.items, depth=depth)))
            return list(map(Pool, nearest_but(judged.relevant, texts, items, depth=depth)))

        def draw(place: int, epoch: int, mined: Pool | None) -> TowerExample:
            shown = draws(place, epoch, mined)
            return texts[place], shown, np.eye(1, len(shown))[0], items.row_of[judged.relevant[place]]

        def check() -> Mapping[str, float]:
            k = first_stage_depth(len(data.items))
            best = items.nearest(checked, min(len(data.items), max(k, _MRR_DEPTH)))
            return retrieval_quality(best, data.held_out.relevant, k=k)

        examples = Examples(len(texts), draw=draw, collate=items.step, mine=mine)
        return Task(model, examples, check, watched=f"mrr@{_MRR_DEPTH}")

    return run_training(folder, facts, prepare, base=base, settings=settings, device=device, progress=progress)


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
