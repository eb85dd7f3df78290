"""Cross-encoders trained on a collection: from judgements, or from the scores of teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import Scorer
from adacur.data import JudgedCollection
from adacur.first_stages import AnyStage
from adacur.scorers.cross_encoders.emb_cross_encoder import EmbHead
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs
from adacur.training.judged_queries import distinct_texts, learning_data, with_equal_texts
from adacur.training.negatives import Draws, facts_of_first, first_stage_positions, hard_negatives
from adacur.training.run_folder import RunFolder, Trained
from adacur.training.settings import TrainingSettings, check_installed
from adacur.training.teacher_scores import mean_scores

if TYPE_CHECKING:
    from adacur.training.fitting import Task
    from adacur.training.ranking_model import PairExample

CrossEncoderHead = Literal["emb", "cls"]
_DEFAULT_SETTINGS = TrainingSettings()


def train_cross_encoder(
    collection: JudgedCollection,
    folder: str | Path,
    *,
    base: str | Path,
    first: AnyStage,
    head: CrossEncoderHead | EmbHead = "emb",
    add_tags: bool = False,
    negatives: int = 63,
    depth: int = 200,
    teachers: Sequence[Scorer] = (),
    settings: TrainingSettings = _DEFAULT_SETTINGS,
    held_out: int | None = None,
    shortlist: int = 64,
    max_tokens: int | None = None,
    max_item_tokens: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Trained:
    """Train a cross-encoder on the judged queries of a collection and write it to `folder`; a killed run continues.

    Each step shows queries with a relevant item and hard negatives, drawn anew for every epoch; the loss is the
    cross-entropy over them, or with teachers the squared distance to their mean scores. Checks rank a shortlist of the
    first stage for held-out queries; the best model has the highest "mrr", or with teachers the lowest "error".

    - `base`: any encoder; a cross-encoder keeps its head if `head` is "cls"
    - `first`: finds the negatives and the shortlists
    - `head`: "emb" (the paper's dot product of tag tokens), an `EmbHead` with other tags, or "cls" (a linear layer)
    - `add_tags`: give the tokenizer the tags of the head
    - `negatives` per relevant item, drawn from the `depth` best of the first stage that are not relevant
    - `teachers`: scorers to learn from
    - `held_out`: queries to check with; by default a tenth, at most 200
    - `shortlist`: items of a check
    - `max_tokens`, `max_item_tokens`: where pairs and items are cut
    - `device`: "cpu" or "cuda"
    """
    check_installed()
    if negatives < 1 or depth < negatives or shortlist < 2:
        raise InputError(
            "negatives must be at least 1, depth at least negatives and shortlist at least 2; got negatives="
            f"{negatives}, depth={depth}, shortlist={shortlist}."
        )
    if isinstance(head, str) and head not in ("emb", "cls"):
        raise InputError(f"head must be 'emb', 'cls' or an EmbHead; got {head!r}.")
    data = learning_data(collection, held_out=held_out, seed=settings.seed)
    facts = {
        "trains": "cross-encoder",
        "head": head if isinstance(head, str) else asdict(head),
        "add_tags": add_tags,
        "collection": data.name,
        "data": data.fingerprint,
        **facts_of_first(first),
        "negatives": negatives,
        "depth": depth,
        "shortlist": shortlist,
        "teachers": [asdict(teacher.card) for teacher in teachers],
        "max_tokens": max_tokens,
        "max_item_tokens": max_item_tokens,
    }
    from adacur.training import fitting

    def prepare(base_folder: Path, run: RunFolder) -> Task:
        from adacur.training.ranking_model import RankingModel

        model = RankingModel(
            base_folder,
            {"emb": EmbHead(), "cls": None}[head] if isinstance(head, str) else head,
            add_tags=add_tags,
            max_tokens=max_tokens,
            max_item_tokens=max_item_tokens,
            squared=bool(teachers),
        )
        shortlists = first_stage_positions(first, data.held_out.queries, data.items, depth=shortlist)
        if not any(map(len, shortlists)):
            raise InputError(
                f"A check ranks what the first stage finds, which is nothing for {len(shortlists)} held-out queries. "
                "Use another first stage."
            )
        # An item with the text of a relevant one is not a negative.
        judged = with_equal_texts(data.learnt, distinct_texts(data.items)[1])
        pools = hard_negatives(first, judged, data.items, depth=depth, seed=settings.seed)
        shown = [np.concatenate(pair) for pair in zip(judged.relevant, pools, strict=True)]
        taught: Sequence[FloatArray] = ()
        if teachers:
            queries, positions = [*judged.queries, *data.held_out.queries], [*shown, *shortlists]
            taught = mean_scores(teachers, queries, positions, data.items, cache=run.teachers, progress=progress)
        draws = Draws(judged, data.items, negatives, settings.seed)

        def draw(place: int, epoch: int, pool: IntArray | None) -> PairExample:
            positions = draws(place, epoch, pool)
            if not taught:
                return place, positions, np.eye(1, len(positions))[0]
            scores = dict(zip(shown[place].tolist(), taught[place], strict=True))
            return place, positions, np.array([scores[position] for position in positions.tolist()])

        places, item_of = np.unique(np.concatenate(shortlists), return_inverse=True)
        sizes = [len(of_query) for of_query in shortlists]
        pairs = TokenPairs(
            model.tokens.texts(data.held_out.queries, data.items.at(places)),
            np.repeat(np.arange(len(sizes)), sizes),
            item_of,
        )

        def check() -> Mapping[str, float]:
            scores = model.scores_of(pairs)
            quality = ranking_quality(np.split(scores, np.cumsum(sizes)[:-1]), shortlists, data.held_out.relevant)
            if not taught:
                return quality
            errors = scores.astype(np.float64) - np.concatenate(taught[len(judged) :])
            return quality | {"error": float(np.mean(errors**2))}

        texts = model.tokens.texts(judged.queries, data.items.at(range(len(data.items))))
        examples = fitting.Examples(
            len(judged), draw=draw, collate=lambda of: model.step(texts, of), mine=lambda epoch: pools
        )
        watched = "error" if teachers else "mrr"
        return fitting.Task(model, examples, check, watched, lower_is_better=bool(teachers))

    return fitting.run_training(folder, facts, prepare, base=base, settings=settings, device=device, progress=progress)


def ranking_quality(
    scores: Sequence[FloatArray], shortlists: Sequence[IntArray], relevant: Sequence[IntArray]
) -> dict[str, float]:
    """The mean over queries of one over the rank of the first relevant item; 0 where the shortlist holds none.

    Among equal scores the relevant item comes last, so that a model that cannot tell does not gain.
    """
    ranks = []
    for of_query, shortlist, right in zip(scores, shortlists, relevant, strict=True):
        is_right = np.isin(shortlist, right)
        best = of_query[is_right].max(initial=-np.inf)
        # Not ">=": comparisons with NaN are false.
        ranks.append(1 + int(np.count_nonzero(~(of_query[~is_right] < best))) if is_right.any() else 0)
    return {"mrr": float(np.mean([1 / rank if rank else 0.0 for rank in ranks]))}
