"""`try_collection`: a sample is scored once, and every question answered from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adacur.data import cache_folder, write_queries
from adacur.errors import FetchError, InputError, MissingExtra
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.protocols import Scorer, ScorerCard
from adacur.replay.advice import Advice, Answer, commands, table
from adacur.replay.evaluating import kept_first_stages, uncached
from adacur.replay.material import digest_of, read_material
from adacur.replay.measuring import Measured, TrialSizes, measure, plan_trial
from adacur.scorers import Cached
from adacur.scorers.by_name import scorer as open_scorer


@dataclass(frozen=True, slots=True)
class Trial:
    """What was tried, what it says, and how to go on.

    `n_queries` of the plan's queries, `n_more` included, were scored within the limits. `calls` were made, besides
    those for timing; `known` pairs had been scored by an earlier run. `queries_file` holds the queries that the answers
    rest on, in BEIR's form: those of the largest budget first. `figures` has all numbers behind the answers.
    """

    plan: TrialSizes
    scorer: ScorerCard
    n_queries: int
    calls: int
    known: int
    seconds: float
    answers: tuple[Answer, ...]
    commands: tuple[str, ...]
    queries_file: Path
    figures: Mapping[str, Any]

    def answer(self, question: str) -> Answer:
        """The answer to a question, such as "budget"."""
        return next(one for one in self.answers if one.question == question)


def try_collection(
    folder: str | Path,
    *,
    scorer: Any,
    encoder: Any = None,
    minutes: float = 5.0,
    items: int | None = None,
    calls: int | None = None,
    seed: int = 0,
    above: float | None = None,
    id_field: str | None = None,
    text_fields: Sequence[str] | None = None,
    kept: str | Path | None = None,
    save_queries: str | Path | None = None,
    progress: bool = True,
    on_plan: Callable[[TrialSizes], None] | None = None,
) -> Trial:
    """Whether searching with this scorer is worth it here, and how: measured on what a few minutes allow.

    - folder: items (corpus.jsonl, or one file of items), and if there are any queries.jsonl and judgements (qrels*).
      Without queries, pseudo-queries are cut from the items.
    - scorer, encoder: what `adacur.scorer` and `adacur.encoder` open; without an encoder, BM25 is the only first stage.
    - minutes: the time that encoding and scoring may take; the sizes follow from the pace measured here.
    - items, calls: limits besides the time. Calls count timing and what an earlier run scored, and are never exceeded.
    - seed: draws queries and items. The same seed asks for the same pairs.
    - above: also say what it takes to find all items that score this or higher, as `AnchorIndex.find` does.
    - id_field, text_fields: as `adacur.data.read_items` reads them.
    - kept: the folder that keeps scores and vectors, so that a second run goes on; by default in the cache. A scorer
      that is `Cached` keeps its scores itself.
    - save_queries: the file to write the queries to that the answers rest on; by default in `kept`.
    - on_plan: called before anything but the timing is scored.
    """
    for name, given in (("items", items), ("calls", calls)):
        if given is not None and given < 1:
            raise InputError(f"{name} must be at least 1, or None for as many as the time allows; got {given}.")
    material = read_material(folder, id_field=id_field, text_fields=text_fields, seed=seed)
    opened, dual, notes = open_scorer(scorer), None, list(material.notes)
    try:
        dual = open_encoder(encoder)
    except (FetchError, MissingExtra) as error:
        notes.append(f"Without the dense first stage: {error}")
    material = replace(material, notes=tuple(notes))
    limits: dict[str, Any] = {"minutes": minutes, "items": items, "calls": calls, "seed": seed}
    plan, material = plan_trial(material, scorer=uncached(opened), encoder=dual, **limits)
    keep = Path(kept) if kept is not None else cache_folder() / "try"
    cached, why = _cached(opened, keep)
    plan = replace(plan, notes=(*plan.notes, *why))
    if on_plan is not None:
        on_plan(plan)
    started, before = time.monotonic(), (cached.misses, cached.hits) if isinstance(cached, Cached) else (0, 0)
    stages = kept_first_stages(list(material.items), plan.first, encoder=dual, folder=keep / "first", progress=progress)
    left = 60 * minutes - (time.monotonic() - started)
    most = None if calls is None else calls - plan.timed
    measured = measure(material, plan, scorer=cached, first=stages, seconds=left, calls=most, progress=progress)
    advice = Advice(measured)
    answers = tuple(advice.answers(above))
    source = dual.card.source if dual is not None else None
    return Trial(
        plan=plan,
        scorer=opened.card,
        n_queries=len(measured.asked),
        calls=cached.misses - before[0] if isinstance(cached, Cached) else measured.calls,
        known=cached.hits - before[1] if isinstance(cached, Cached) else 0,
        seconds=time.monotonic() - started,
        answers=answers,
        commands=commands(advice, card=opened.card, encoder=source, folder=Path(folder)),
        queries_file=_saved(measured, Path(save_queries) if save_queries is not None else keep),
        figures=table(advice),
    )


def _saved(measured: Measured, place: Path) -> Path:
    """The queries that were scored, in a file or in a folder under a name of their own."""
    file = place / f"{measured.plan.collection}-{digest_of(measured.asked)}.jsonl" if place.is_dir() else place
    write_queries(file, measured.asked)
    return file


def _cached(scorer: Scorer, folder: Path) -> tuple[Scorer, tuple[str, ...]]:
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(scorer, Cached):
        return scorer, ()
    try:
        return Cached(scorer, folder / "scores.sqlite"), ()
    except InputError as error:
        # The cache could mix up two functions without a name.
        return scorer, (f"Scores are not kept for a second run: {error}",)
