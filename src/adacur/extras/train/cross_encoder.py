"""Cross-encoders trained on the judged queries of a collection."""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from adacur.budget import at_least
from adacur.data import JudgedCollection
from adacur.errors import InputError
from adacur.extras.train.checking import Checked, sampled
from adacur.extras.train.emb_cross_encoder import EmbHead
from adacur.extras.train.judged_queries import learning_data, same_words, with_equal_texts
from adacur.extras.train.negatives import Draws, Mixture, facts_of_first, first_stage_positions, near_misses
from adacur.extras.train.run_folder import RunFolder, Trained, TrainingSettings, check_installed
from adacur.first_stages import AnyStage

if TYPE_CHECKING:
    from adacur.extras.train.fitting import Task

_log = logging.getLogger(__name__)
CrossEncoderHead = Literal["emb", "cls"]
_DEFAULT_SETTINGS = TrainingSettings()
_DEFAULT_MIXTURE = Mixture()
_SMALL_SAMPLE = 100


def train_cross_encoder(
    collection: JudgedCollection,
    folder: str | Path,
    *,
    base: str | Path,
    first: AnyStage,
    head: CrossEncoderHead = "emb",
    negatives: int = 63,
    depth: int = 200,
    mixture: Mixture | str = _DEFAULT_MIXTURE,
    turns: int | None = None,
    mining_calls: int | None = None,
    settings: TrainingSettings = _DEFAULT_SETTINGS,
    held_out: int | None = None,
    shortlist: int = 64,
    sample: int | None = None,
    max_tokens: int | None = None,
    max_item_tokens: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Trained:
    """Train a cross-encoder on the judged queries of a collection and write it to `folder`; a killed run continues.

    Each step shows queries with a relevant item and negatives, drawn anew for every epoch; the loss is the
    cross-entropy over them. Checks rank held-out queries' shortlists ("mrr") and estimate their rank among all items
    from a sample ("mrr_all"); the best model has the highest "mrr_all".

    - `base`: any encoder; a cross-encoder keeps its head if `head` is "cls"
    - `first`: finds the near misses and the shortlists
    - `head`: "emb" (the paper's dot product of tag tokens) or "cls" (a linear layer)
    - `negatives` per relevant item; near misses are drawn from the `depth` best of the first stage
    - `mixture`: shares of near misses, random items and items found by searches, such as "near=1,random=1,found=1"
    - `turns`: the epochs are divided into these, and before each but the first, searches with the model as it is find
      items for the mixture; by default 2, and 1 where there is one epoch
    - `mining_calls`: pairs that the searches of a turn may score, with their index; by default they take about as long
      as the turn's training
    - `held_out`: queries to check with; by default a tenth, at most 200
    - `shortlist`: items of a check that the first stage finds
    - `sample`: random items of a check; by default it costs at most half as many pairs as an epoch
    - `max_tokens`, `max_item_tokens`: where pairs and items are cut
    - `device`: "cpu" or "cuda"
    """
    check_installed()
    at_least(1, negatives=negatives, sample=sample, turns=turns)
    at_least(negatives, depth=depth)
    at_least(2, shortlist=shortlist)
    if head not in ("emb", "cls"):
        raise InputError(f"head must be 'emb' or 'cls'; got {head!r}.")
    shares = Mixture.parsed(str(mixture)) if not isinstance(mixture, Mixture) else mixture
    data = learning_data(collection, held_out=held_out, seed=settings.seed)
    limits = {"max_tokens": max_tokens, "max_item_tokens": max_item_tokens}
    facts = {
        "trains": "cross-encoder",
        "head": head,
        "collection": data.name,
        "data": data.fingerprint,
        **facts_of_first(first),
        "negatives": negatives,
        "depth": depth,
        "mixture": asdict(shares),
        "turns": turns,
        "mining_calls": mining_calls,
        "shortlist": shortlist,
        "sample": sample,
        **limits,
    }
    from adacur.extras.train import fitting
    from adacur.extras.train.mining import MINED_PER_TRAINED_PAIR, Turns, opened_for_scoring, plan_mining

    place_to_train = fitting.chosen_device(device, settings).type
    pairs_per_epoch = len(data.learnt) * (1 + negatives)
    n_turns = turns if turns is not None else min(2, settings.epochs) if shares.found else 1
    if n_turns > settings.epochs:
        raise InputError(f"A turn is at least one epoch, so turns must be from 1 to {settings.epochs}; got {turns}.")
    plan = None
    if n_turns > 1 and shares.found:
        # Mining takes about as long as the turn's training.
        usual = MINED_PER_TRAINED_PAIR[place_to_train] * (pairs_per_epoch * settings.epochs // n_turns)
        plan = plan_mining(len(data.learnt), len(data.items), calls=mining_calls, usual=usual)

    def prepare(base_folder: Path, run: RunFolder) -> Task:
        from adacur.extras.train.ranking_model import RankingModel

        model = RankingModel(base_folder, EmbHead() if head == "emb" else None, **limits)
        shortlists = first_stage_positions(first, data.held_out.queries, data.items, depth=shortlist)
        if not any(map(len, shortlists)):
            raise InputError(
                f"A check ranks what the first stage finds, which is nothing for {len(shortlists)} held-out queries. "
                "Use another first stage."
            )
        # Near-duplicates of a relevant item are not negatives.
        judged = with_equal_texts(data.learnt, same_words(data.items))
        checked = Checked(
            data.held_out,
            shortlists,
            sampled(
                data.items, sample or max(_SMALL_SAMPLE, pairs_per_epoch // (2 * len(data.held_out))), settings.seed
            ),
            n_items=len(data.items),
        )
        pairs = checked.pairs(model.tokens, data.items)
        _log.info(
            "%s pairs to train on, and %s in each of %d checks.%s",
            f"{pairs_per_epoch * settings.epochs:,}",
            f"{len(pairs):,}",
            settings.epochs + 1,
            "" if plan is None else f" Mining before each of the other {n_turns - 1} turns scores {plan.calls:,}.",
        )
        near = near_misses(first, judged, data.items, depth=depth)
        draws = Draws(judged, data.items, negatives, settings.seed, shares)
        lessons = Turns(
            n_turns,
            settings.epochs,
            near,
            judged,
            data.items,
            first,
            plan,
            run,
            partial(opened_for_scoring, model.save, run.state / "as-it-is", device=place_to_train, **limits),
            seed=settings.seed,
            progress=progress,
        )
        texts = model.tokens.texts(judged.queries, data.items.at(range(len(data.items))))
        examples = fitting.Examples(
            len(judged),
            draw=lambda place, epoch, pool: (place, draws(place, epoch, pool)),
            collate=partial(model.step, texts),
            mine=lessons.pools,
        )
        return fitting.Task(model, examples, lambda: checked.quality(model.scores_of(pairs)), watched="mrr_all")

    trained = fitting.run_training(
        folder, facts, prepare, base=base, settings=settings, device=device, progress=progress
    )
    if trained.best["outscored"] >= 0.5:
        _log.warning(
            "The model ranks relevant items below random ones: of a sample, %.0f %% outscore the best relevant item of "
            "a held-out query. Look whether grades are the right way round, and lower the learning rate.",
            100 * trained.best["outscored"],
        )
    return trained
