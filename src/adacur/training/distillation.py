"""Dual encoders that learn a cross-encoder's scores on the collection that will be searched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.protocols import Items
from adacur.core.records import Item, ItemList, Query
from adacur.scorers.cross_encoders.checkpoints import checkpoint_folder
from adacur.training.dual_encoder import MinedNegatives, first_stage_depth
from adacur.training.fitting import check_device, fit
from adacur.training.judged_queries import JudgedQueries, learnt_and_held_out
from adacur.training.run_folder import RunFolder, facts_of_base
from adacur.training.settings import TrainingSettings
from adacur.training.teacher_scores import TeacherScores
from adacur.training.token_rows import TokenRows
from adacur.training.tower_options import Pooling, TowerOptions, Towers
from adacur.training.trained import Trained

if TYPE_CHECKING:
    from adacur.training.towers import TowerItems

__all__ = ["distill"]

_LEARNING_RATE = 1e-5
_BATCH_QUERIES = 4
# The paper's: many items per query need fewer epochs.
_EPOCHS, _EPOCHS_OF_MANY, _MANY_ITEMS = 10, 4, 100
_BEST = 10
# Of the student's own best items, beside the teacher's.
_MINED = 100


def distill(
    teacher: TeacherScores,
    items: Items | Iterable[Item],
    folder: str | Path,
    *,
    base: str | Path,
    towers: Towers = "separate",
    pooling: Pooling | None = None,
    normalise: bool | None = None,
    scale: float | None = None,
    temperature: float | None = None,
    settings: TrainingSettings | None = None,
    held_out: int | None = None,
    max_query_tokens: int | None = None,
    max_item_tokens: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Trained:
    """Train a dual encoder to find what a teacher likes best and write it to `folder`; a killed run goes on.

    The loss is the cross-entropy between equal shares for the teacher's best 10 items of a query (the better half of
    what was scored, where that is less) and softmax(scale · dot product) over all items of the step: the query's own
    others, those that the teacher scored for the other queries and, where it scored all items, the 100 best of the dual
    encoder itself at the beginning of the epoch. With a `temperature` it is the paper's, between softmax(teacher /
    temperature) and that of the dot products, over the query's own items.

    Checks search all items for held-out queries: "top10_recall@100", which says what is best, is the share of the
    teacher's best 10 among the dual encoder's best 100 (of half of what was scored, and of a tenth of all items, where
    these are fewer), beside the "held_out_loss". Where no check is as good as the one before training, the base is what
    is written, and `fitted.best_update` is 0.

    From a plain encoder as `base` comes the paper's DE^CE_BERT, from a trained dual encoder its DE^CE_base; other
    options are those of `train_dual_encoder`. Settings are the paper's: learning rate 1e-5, 10 epochs, or 4 where a
    query has more than 100 items.
    """
    torch = require("torch", extra="training")
    require("sentence_transformers", extra="training")
    options = TowerOptions(
        towers=towers,
        pooling=pooling,
        normalise=normalise,
        scale=scale,
        max_query_tokens=max_query_tokens,
        max_item_tokens=max_item_tokens,
    )
    if temperature is not None and not 0 < temperature < float("inf"):
        raise InputError(f"temperature is a number above 0; got {temperature!r}.")
    held: Items = ItemList(items) if isinstance(items, Iterable) else items
    _check_positions(teacher, held)
    if len(teacher) < 2:
        raise InputError(f"Learning needs at least 2 queries, one of them to check with; there is {len(teacher)}.")
    settings = settings or paper_settings(teacher)
    learnt, kept = (
        _part(teacher, part) for part in learnt_and_held_out(teacher.queries, held_out=held_out, seed=settings.seed)
    )
    check_device(torch, device, settings)
    base_folder = checkpoint_folder(base)
    made_from = {
        "trains": "distilled dual-encoder",
        **facts_of_base(base, base_folder, out=folder),
        "teacher": teacher.fingerprint,
        "items": _fingerprint(held),
        "held_out": len(kept),
        "temperature": temperature,
        **asdict(options),
        "settings": asdict(settings),
    }
    with RunFolder(folder, made_from) as run:
        if (finished := Trained.read(run)) is not None:
            return finished
        from adacur.training.towers import TowerItems, TowerPair

        # Weights that the base lacks, such as a pooler's, are drawn from it.
        torch.manual_seed(settings.seed)
        model = TowerPair.opened(base_folder, options, half=settings.precision != "float32")
        in_tokens = TowerItems(model, held)
        learnt_queries, kept_queries = (
            model.tokens("query", [query.text for query in part.queries]) for part in (learnt, kept)
        )
        best = min(map(_n_best, kept.scores))
        depth = max(best, first_stage_depth(len(held)))
        watched = f"top{best}_recall@{depth}"
        liked = [own[_best(scores, best)] for own, scores in zip(kept.positions, kept.scores, strict=True)]

        def check() -> Mapping[str, float]:
            vectors = model.vectors("query", kept_queries)
            found = in_tokens.nearest(vectors, depth)
            shares = [np.isin(own, row).mean() for own, row in zip(liked, found, strict=True)]
            losses = [
                _held_out_loss(in_tokens.scores(vector), own, scores, temperature)
                for vector, own, scores in zip(vectors, kept.positions, kept.scores, strict=True)
            ]
            return {watched: float(np.mean(shares)), "held_out_loss": float(np.mean(losses))}

        mined = MinedNegatives(
            JudgedQueries(learnt.queries, learnt.positions),
            learnt_queries,
            model,
            in_tokens,
            items=held,
            first=None,
            depth=_MINED,
            refresh_every=1,
            seed=settings.seed,
            folder=run.state,
            at_once=True,
        )
        # Of another teacher's list nobody knows what it lacks.
        mines = teacher.of_all_items and temperature is None
        fitted = fit(
            model,
            TeacherExamples(learnt, learnt_queries, in_tokens, mined=mined if mines else None, temperature=temperature),
            settings=settings,
            run=run,
            check=check,
            watched=watched,
            device=device,
            progress=progress,
        )
        model.publish(run)
        mined.forget()
        return Trained.write(run, fitted)


class TeacherExamples:
    """Per query the items that the teacher scored, and how likely the student should find each."""

    def __init__(
        self,
        teacher: TeacherScores,
        queries: TokenRows,
        in_tokens: TowerItems,
        *,
        mined: MinedNegatives | None,
        temperature: float | None,
    ) -> None:
        self._teacher, self._queries, self._in_tokens = teacher, queries, in_tokens
        self._mined, self._temperature = mined, temperature
        self._pools: Sequence[IntArray] | None = None

    def __len__(self) -> int:
        return len(self._teacher)

    def begin_epoch(self, epoch: int) -> None:
        self._pools = None if self._mined is None else self._mined.pools(epoch)

    def __getitem__(self, place: int) -> int:
        return place

    def collate(self, places: list[int]) -> dict[str, Any]:
        positions = [self._teacher.positions[place] for place in places]
        targets = [wanted(self._teacher.scores[place], self._temperature) for place in places]
        if self._pools is not None:
            pools = [self._pools[place] for place in places]
            positions = [np.concatenate(both) for both in zip(positions, pools, strict=True)]
            targets = [np.append(own, np.zeros(len(pool))) for own, pool in zip(targets, pools, strict=True)]
        return self._in_tokens.step(
            self._queries,
            places,
            positions,
            targets,
            # None of the other queries' items is left out: what this query's own list lacks, it likes less.
            not_against=[np.empty(0, np.intp)] * len(places) if self._temperature is None else None,
        )


def wanted(scores: FloatArray, temperature: float | None) -> FloatArray:
    """The probability of each of a query's items: the same for the best, or the softmax of the scores.

    Scores have a scale of their own for every scorer; which items are the best ten has none.
    """
    if temperature is not None:
        return probabilities(scores, temperature)
    n = _n_best(scores)
    shares = np.zeros(len(scores))
    shares[_best(scores, n)] = 1 / n
    return shares


def probabilities(scores: FloatArray, temperature: float) -> FloatArray:
    """The softmax of scores, in float64."""
    return np.exp(log_probabilities(np.asarray(scores, np.float64) / temperature))


def log_probabilities(logits: FloatArray) -> FloatArray:
    """The logarithm of their softmax, finite also where that is too small for a float."""
    below = logits - logits.max()
    logarithms: FloatArray = below - np.log(np.exp(below).sum())
    return logarithms


def _n_best(scores: FloatArray) -> int:
    # All that a teacher scored would say nothing about order.
    return min(_BEST, len(scores) // 2)


def _best(scores: FloatArray, n: int) -> IntArray:
    return np.argsort(-scores, kind="stable")[:n]


def _held_out_loss(logits: FloatArray, own: IntArray, scores: FloatArray, temperature: float | None) -> float:
    """The loss of one query, as if all items stood in its step."""
    found = log_probabilities(logits)[own] if temperature is None else log_probabilities(logits[own])
    return -float(wanted(scores, temperature) @ found)


def paper_settings(teacher: TeacherScores) -> TrainingSettings:
    epochs = _EPOCHS if max(map(len, teacher.positions)) <= _MANY_ITEMS else _EPOCHS_OF_MANY
    return TrainingSettings(epochs=epochs, learning_rate=_LEARNING_RATE, batch_queries=_BATCH_QUERIES)


def _part(teacher: TeacherScores, queries: Sequence[Query]) -> TeacherScores:
    place_of = {query.id: place for place, query in enumerate(teacher.queries)}
    places = [place_of[query.id] for query in queries]
    return replace(
        teacher,
        queries=queries,
        positions=[teacher.positions[place] for place in places],
        scores=[teacher.scores[place] for place in places],
    )


def _check_positions(teacher: TeacherScores, items: Items) -> None:
    for query, positions in zip(teacher.queries, teacher.positions, strict=True):
        if positions.max() >= len(items):
            raise InputError(
                f"The teacher scored the item at position {positions.max()} for query {query.id!r}; there are "
                f"{len(items)} items. Pass those that it scored, in their order."
            )


def _fingerprint(items: Items) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for item in items.at(range(len(items))):
        digest.update(f"{item.id}\0{item.text}\0".encode(errors="replace"))
    return digest.hexdigest()
