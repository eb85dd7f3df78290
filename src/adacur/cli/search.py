"""`adacur search`: questions, in groups that share scorer calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from adacur.cli import options as opt
from adacur.cli.messages import hits_table, note, notes, print_json, print_table, seconds_line, verdict_line
from adacur.core.as_json import as_json as to_json
from adacur.core.budget import Budget
from adacur.core.errors import InputError
from adacur.core.records import as_queries
from adacur.data import read_queries
from adacur.engines.store_urls import is_store_url

# Questions that share scorer calls, and are answered together.
_TOGETHER = 16


def search(
    index: opt.IndexPath,
    question: Annotated[list[str] | None, Argument(help="One question, or several.")] = None,
    queries: Annotated[Path | None, Option(help="A file of questions: .jsonl, .csv, .tsv, .txt or BEIR.")] = None,
    k: Annotated[int | None, Option("-k", "--k", help="Items to return; default: 10, or the budget if less.")] = None,
    budget: Annotated[
        str | None,
        Option(
            help="Scorer calls per question, and more limits: '100', '20000 tokens', '100, 0.02 USD'; default: as "
            "tuned by judgements, or 100 calls."
        ),
    ] = None,
    price: opt.PriceOfScorer = None,
    deadline: Annotated[float | None, Option(help="Seconds for all questions together.")] = None,
    method: Annotated[
        str | None,
        Option(
            help="gaussian, adacur (the paper's), anncur, axn, rerank or exact; default: gaussian, or rerank where the "
            "index has neither anchor queries nor dense vectors."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the method, such as rounds=3, seed=1 or stop_when=0.98; may be repeated. A wrong name "
            "lists those that the method takes.",
        ),
    ] = None,
    first: Annotated[
        str | None,
        Option(help="First stage; default: as tuned, or the first there is of bm25+dense, dense, bm25, random."),
    ] = None,
    pool: Annotated[int | None, Option(help="Search only the first stage's best N.")] = None,
    fuse: Annotated[float | None, Option(help="Weight of the first stage in the final order, such as 0.5.")] = None,
    effort: Annotated[
        str | None, Option(help="auto: spend what a question needs; or the mean recall to reach. Of a tuned index.")
    ] = None,
    min_relevance: Annotated[float | None, Option(help="Leave out hits below this relevance, from 0 to 1.")] = None,
    min_score: Annotated[float | None, Option(help="Leave out hits below this score.")] = None,
    where: Annotated[
        list[str] | None,
        Option(
            "--filter",
            metavar="NAME=VALUE",
            help="Metadata that items must have; of a name that is repeated, any of its values.",
        ),
    ] = None,
    scorer: opt.ScorerOfIndex = None,
    store: opt.StoreUrl = None,
    encoder: opt.EncoderName = None,
    trust: opt.Trust = False,
    cache: opt.CacheFile = None,
    log: Annotated[Path | None, Option(help="A file that stores scores for `adacur index refresh`.")] = None,
    full: Annotated[bool, Option("--full", help="Show the whole text of each item.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Find the best items for a question, exactly scored, within a budget. --json prints a line per question.

    INDEX may be the URL of a collection in a vector engine, such as qdrant://localhost:6333/articles.

    Example: adacur search my.adacur 'who discovered penicillin?' -k 5 --budget 100
    """
    import adacur
    from adacur.search import plan_search, search_options

    questions = as_queries([*(question or ()), *(read_queries(queries) if queries else ())])
    if not questions:
        raise InputError("search needs a question. Give one, or --queries FILE.")
    spend = None if budget is None else Budget.of(budget)
    if k is None:
        k = 10 if spend is None or spend.calls is None else min(10, spend.calls)
    # A deadline is that of all questions together.
    together = len(questions) if deadline is not None else _TOGETHER
    if is_store_url(index) and scorer is None:
        scorer = opt.DEFAULT_SCORER
    with adacur.load(index, scorer=scorer, encoder=encoder, trust=trust, log=log, store=store) as opened:
        if cache is not None:
            opened = opened.with_scorer(lambda named: adacur.Cached(named, cache))
        limits: dict[str, Any] = {"budget": spend, "price": price, "deadline": deadline, "method": method}
        limits |= {"first": first, "pool": pool, "fuse": fuse}
        limits |= {"filter": opt.metadata_wanted(where), "min_relevance": min_relevance, "min_score": min_score}
        limits |= {"effort": opt.effort_given(effort)}
        options = search_options(opened, **limits, **opt.settings_given(settings))
        cached: dict[str, Any] = {}
        if deadline is not None:
            # Opens and learns what a search needs, as every run of this command must: a deadline is for searching.
            with notes.status("opening …"):
                plan_search(opened, k, **options)
        for start in range(0, len(questions), together):
            with notes.status("searching …"):
                answers = opened.search(questions[start : start + together], k, **options)
            if not start:
                note(f"Scorer: {opened.scorer.card}")
                if opened.drift is not None and opened.drift.n_probes:
                    note(f"Besides the budget, {opened.drift.n_probes} calls went into recognising the scorer.")
            if isinstance(opened.scorer, adacur.Cached):
                cached = {name: getattr(opened.scorer, name) for name in ("hits", "misses", "hit_rate")}
            for hits in answers:
                if as_json:
                    print_json(to_json(hits) | ({"cache": cached} if cached else {}))
                else:
                    print_table(hits_table(hits, title=hits.query.text, ids=True, full=full))
                    if hits.verdict is not None:
                        note(verdict_line(hits))
                    note(seconds_line(hits) + "\n")
            sys.stdout.flush()
        if cached and not as_json:
            known, new = cached["hits"], cached["misses"]
            note(f"Cache: {known} of {known + new} scores were known ({cached['hit_rate']:.0%}); {new} were paid for.")
