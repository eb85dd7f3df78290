"""Cross-encoders trained on a collection: from judgements, or from the scores of teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.protocols import Scorer
from adacur.data import JudgedCollection
from adacur.first_stages import AnyStage
from adacur.scorers.cross_encoders.checkpoints import check_is_fast, checkpoint_folder, quiet, written_whole
from adacur.scorers.cross_encoders.emb_cross_encoder import EmbHead, make_emb_cross_encoder, save_emb_cross_encoder
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenPairs, chosen_max_tokens
from adacur.training.fitting import check_device, fit
from adacur.training.judged_queries import (
    LearningData,
    distinct_texts,
    first_stage_positions,
    hard_negatives,
    learning_data,
    with_equal_texts,
)
from adacur.training.run_folder import RunFolder, Trained, facts_of_base, facts_of_first
from adacur.training.settings import TrainingSettings
from adacur.training.teacher_scores import mean_scores

__all__ = ["CrossEncoderHead", "ranking_quality", "train_cross_encoder"]

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
    torch = require("torch", extra="training")
    if negatives < 1 or depth < negatives or shortlist < 2:
        raise InputError(
            "negatives must be at least 1, depth at least negatives and shortlist at least 2; got negatives="
            f"{negatives}, depth={depth}, shortlist={shortlist}."
        )
    if isinstance(head, str) and head not in ("emb", "cls"):
        raise InputError(f"head must be 'emb', 'cls' or an EmbHead; got {head!r}.")
    data = learning_data(collection, held_out=held_out, seed=settings.seed)
    place = check_device(torch, device, settings)
    base_folder = checkpoint_folder(base)
    made_from = {
        "trains": "cross-encoder",
        **facts_of_base(base, base_folder, out=folder),
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
        "settings": asdict(settings),
    }
    with RunFolder(folder, made_from) as run:
        if (finished := run.result) is not None:
            return finished
        # A new head is drawn from it.
        torch.manual_seed(settings.seed)
        tokenizer, cross_encoder, emb_head = _untrained(base_folder, head, add_tags=add_tags)
        tokens = PairTokenizer(
            tokenizer.backend_tokenizer,
            max_tokens=chosen_max_tokens(
                max_tokens,
                config=cross_encoder.config.to_dict(),
                tokenizer_config={"model_max_length": tokenizer.model_max_length},
            ),
            max_item_tokens=max_item_tokens,
            head=emb_head,
        )
        from adacur.training.ranking_model import TOKENS_AT_ONCE, PairExamples, RankingModel

        takes_types = "token_type_ids" in tokenizer.model_input_names
        model = RankingModel(cross_encoder, squared=bool(teachers), takes_types=takes_types)
        shortlists = first_stage_positions(first, data.held_out.queries, data.items, depth=shortlist)
        if not any(map(len, shortlists)):
            raise InputError(
                f"A check ranks what the first stage finds, which is nothing for {len(shortlists)} held-out queries. "
                "Use another first stage."
            )
        # An item with the text of a relevant one is not a negative.
        judged = with_equal_texts(data.learnt, distinct_texts(data.items)[1])
        pools = hard_negatives(first, judged, data.items, depth=depth, seed=settings.seed)
        taught: list[FloatArray] | None = None
        if teachers:
            shown = [np.concatenate(pair) for pair in zip(judged.relevant, pools, strict=True)]
            taught = mean_scores(
                teachers,
                [*judged.queries, *data.held_out.queries],
                [*shown, *shortlists],
                data.items,
                cache=run.teachers,
                progress=progress,
            )
        examples = PairExamples(
            judged,
            pools,
            tokens.texts(judged.queries, data.items.at(range(len(data.items)))),
            items=data.items,
            negatives=negatives,
            seed=settings.seed,
            pad_id=tokens.pad_id,
            most_tokens=TOKENS_AT_ONCE[place.type],
            taught=None if taught is None else taught[: len(judged)],
        )
        trained = fit(
            model,
            examples,
            settings=settings,
            run=run,
            check=_check(
                model,
                data,
                shortlists,
                tokens=tokens,
                taught=None if taught is None else np.concatenate(taught[len(judged) :]),
            ),
            watched="error" if teachers else "mrr",
            lower_is_better=bool(teachers),
            device=device,
            progress=progress,
        )
        _publish(run, cross_encoder.cpu(), tokenizer, is_emb=emb_head is not None)
        return run.finish(trained)


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


def _untrained(folder: Path, head: CrossEncoderHead | EmbHead, *, add_tags: bool) -> tuple[Any, Any, EmbHead | None]:
    """Tokenizer, module and, where it has one, the [EMB] head."""
    if head != "cls":
        emb_head = EmbHead() if head == "emb" else head
        return *make_emb_cross_encoder(folder, head=emb_head, add_tags=add_tags), emb_head
    transformers = require("transformers", extra="training")
    try:
        with quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            module, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=1, ignore_mismatched_sizes=True, output_loading_info=True
            )
    except Exception as error:
        raise InputError(f"{folder} cannot be read as a transformers encoder: {error}") from error
    # A head may be new, and a pooler is part of it.
    body = f"{module.base_model_prefix}."
    if missing := sorted(
        name for name in loading["missing_keys"] if name.startswith(body) and not name.startswith(f"{body}pooler.")
    ):
        raise InputError(f"The checkpoint in {folder} lacks the weights {missing}, which would be random.")
    check_is_fast(tokenizer, folder)
    # It learns plain pairs, and a model that comes with a template is not scored by them.
    tokenizer.chat_template = None
    return tokenizer, module.float(), None


def _check(
    model: Any,
    data: LearningData,
    shortlists: Sequence[IntArray],
    *,
    tokens: PairTokenizer,
    taught: FloatArray | None,
) -> Callable[[], Mapping[str, float]]:
    judged, sizes = data.held_out, [len(shortlist) for shortlist in shortlists]
    places, item_of = np.unique(np.concatenate(shortlists), return_inverse=True)
    texts = tokens.texts(judged.queries, data.items.at(places))
    pairs = TokenPairs(texts, np.repeat(np.arange(len(judged)), sizes), item_of)

    def check() -> Mapping[str, float]:
        scores = model.scores_of(pairs, pad_id=tokens.pad_id)
        quality = ranking_quality(np.split(scores, np.cumsum(sizes)[:-1]), shortlists, judged.relevant)
        if taught is None:
            return quality
        return quality | {"error": float(np.mean((scores.astype(np.float64) - taught) ** 2))}

    return check


def _publish(run: RunFolder, cross_encoder: Any, tokenizer: Any, *, is_emb: bool) -> None:
    written = run.state / "model"
    if is_emb:
        save_emb_cross_encoder(cross_encoder, tokenizer, written)
    else:
        with written_whole(written) as unfinished, quiet(require("transformers", extra="training")):
            cross_encoder.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
    run.publish(written)
