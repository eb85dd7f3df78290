"""`adacur search`: questions, in groups that share scorer calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from adacur.as_json import as_json as to_json
from adacur.budget import Budget
from adacur.cli import arguments as opt
from adacur.cli.messages import hits_table, note, notes, order_line, print_json, print_table, seconds_line, verdict_line
from adacur.data import read_queries
from adacur.errors import AdacurError, InputError
from adacur.names import is_store_url
from adacur.options import OPTIONS
from adacur.records import Query, as_queries
from adacur.results import Hits

if TYPE_CHECKING:
    from adacur.search import AnchorIndex

# Questions that share scorer calls, and are answered together.
TOGETHER = 16


@opt.with_options(OPTIONS)
def search(
    index: opt.IndexPath,
    question: Annotated[list[str] | None, Argument(help="One question, or several.")] = None,
    queries: Annotated[Path | None, Option(help="A file of questions: .jsonl, .csv, .tsv, .txt or BEIR.")] = None,
    k: Annotated[int | None, Option("-k", "--k", help="Items to return; default: 10, or the budget if less.")] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the method, such as rounds=3 or seed=1; may be repeated. A wrong name "
            "lists those that the method takes.",
        ),
    ] = None,
    scorer: opt.ScorerOfIndex = None,
    encoder: opt.EncoderName = None,
    allow_code: opt.AllowCode = False,
    cache: opt.CacheFile = None,
    log: Annotated[Path | None, Option(help="A file that stores scores for `adacur index refresh`.")] = None,
    full: Annotated[bool, Option("--full", help="Show the whole text of each item.")] = False,
    as_json: opt.Json = False,
    **given: Any,
) -> None:
    """Find the best items for a question, exactly scored, within a budget. --json prints a line per question.

    INDEX may be the URL of a collection in a vector engine, such as qdrant://localhost:6333/articles.

    Example: adacur search my.adacur 'who discovered penicillin?' -k 5 --budget 100
    """
    import adacur
    from adacur.search import FirstOnly, plan_search, search_options

    questions = as_queries([*(question or ()), *(read_queries(queries) if queries else ())])
    if not questions:
        raise InputError("search needs a question. Give one, or --queries FILE.")
    calls_none, deadline = given["method"] == FirstOnly.name, given["deadline"]
    spend = None if given["budget"] is None or calls_none else Budget.of(given["budget"])
    if k is None:
        k = 10 if spend is None or spend.calls is None else min(10, spend.calls)
    # A deadline is that of all questions together.
    together = len(questions) if deadline is not None else TOGETHER
    if is_store_url(index) and scorer is None:
        scorer = opt.DEFAULT_SCORER
    with adacur.load(index, scorer=scorer, encoder=encoder, allow_code=allow_code, log=log) as opened:
        if cache is not None:
            opened = opened.with_scorer(lambda named: adacur.Cached(named, cache))
        options = search_options(opened, **given | {"budget": spend}, **opt.settings_given(settings))
        if deadline is not None:
            # Opens and learns what a search needs, as every run of this command must: a deadline is for searching.
            with notes.status("opening …"):
                plan_search(opened, k, **options)
        print_answers(
            opened,
            lambda some: opened.search(some, k, **options),
            questions,
            together=together,
            cached=cache is not None,
            as_json=as_json,
            full=full,
        )


def print_answers(
    opened: AnchorIndex,
    search_for: Callable[[Sequence[Query]], list[Hits]],
    questions: Sequence[Query],
    *,
    together: int,
    cached: bool,
    as_json: bool,
    full: bool,
) -> None:
    """Answer questions, some at a time, and print each as it is answered; of an error, what it leaves."""
    counts: dict[str, Any] = {}
    for start in range(0, len(questions), together):
        failure: AdacurError | None = None
        try:
            with notes.status("searching …"):
                answers = search_for(questions[start : start + together])
        except AdacurError as error:
            failure, answers = error, [hits for hits in error.hits if hits.trace.calls]
            if not answers:
                raise
        calls_none = not any(hits.trace.rounds for hits in answers)
        if not start and not calls_none:
            note(f"Scorer: {opened.scorer.card}")
            if opened.drift is not None and opened.drift.n_probes:
                note(f"Besides the budget, {opened.drift.n_probes} calls went into recognising the scorer.")
        if cached and not calls_none:
            counts = {name: getattr(opened.scorer, name) for name in ("hits", "misses", "hit_rate")}
        for hits in answers:
            if as_json:
                print_json(to_json(hits) | ({"cache": counts} if counts else {}))
            else:
                print_table(hits_table(hits, title=hits.query.text, ids=True, full=full))
                for line in (verdict_line(hits), order_line(hits), hits.certificate):
                    if line:
                        note(str(line))
                note(seconds_line(hits) + "\n")
        sys.stdout.flush()
        if failure is not None:
            raise failure
    if counts and not as_json:
        known, new = counts["hits"], counts["misses"]
        note(f"Cache: {known} of {known + new} scores were known ({counts['hit_rate']:.0%}); {new} were paid for.")
