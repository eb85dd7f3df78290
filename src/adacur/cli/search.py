"""`adacur search` and `adacur find`: questions, in groups that share scorer calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from adacur.budget import Budget
from adacur.cli import arguments as opt
from adacur.cli.messages import hits_table, note, notes, notes_on, show
from adacur.data import read_queries
from adacur.errors import AdacurError, InputError
from adacur.names import is_store_url
from adacur.options import FIND_OPTIONS, OPTIONS
from adacur.records import Query, as_queries
from adacur.results import Hits

if TYPE_CHECKING:
    from adacur.search import AnchorIndex

# Questions that share scorer calls, and are answered together.
_TOGETHER = 16
_Question = Annotated[list[str] | None, Argument(metavar="QUESTION", help="One question, or several.")]
_Questions = Annotated[Path | None, Option(help="A file of questions: .jsonl, .csv, .tsv, .txt or BEIR.")]


@opt.with_options(OPTIONS)
def search(
    index: opt.IndexPath,
    question: _Question = None,
    queries: _Questions = None,
    k: Annotated[int | None, Option("-k", "--k", help="Items to return; default: 10, or the budget if less.")] = None,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="An option of the method, such as rounds=3.")
    ] = None,
    scorer: opt.ScorerOfIndex = None,
    encoder: opt.EncoderName = None,
    allow_code: opt.AllowCode = False,
    cache: opt.CacheFile = None,
    as_json: opt.Json = False,
    **given: Any,
) -> None:
    """Find the best k items for a question, within a budget.

    All that is returned is exactly scored. INDEX may be the URL of a collection in a vector engine, such as
    qdrant://localhost:6333/articles. --json prints a line per question.

    Example: adacur search my.adacur 'who discovered penicillin?' -k 5 --budget 100
    """
    from adacur.search import FirstOnly, plan_search, search_options

    questions = _asked("search", question, queries)
    calls_none, deadline = given["method"] == FirstOnly.name, given["deadline"]
    spend = None if given["budget"] is None or calls_none else Budget.of(given["budget"])
    if k is None:
        k = 10 if spend is None or spend.calls is None else min(10, spend.calls)
    with _opened(index, scorer, encoder, allow_code, cache) as opened:
        options = search_options(opened, **given | {"budget": spend}, **opt.settings_given(settings))
        if deadline is not None:
            # Opens and learns what a search needs, as every run of this command must: a deadline is for searching.
            with notes.status("opening …"):
                plan_search(opened, k, **options)
        _answer(opened, lambda some: opened.search(some, k, **options), questions, deadline, cache, as_json=as_json)


@opt.with_options(FIND_OPTIONS)
def find(
    index: opt.IndexPath,
    question: _Question = None,
    queries: _Questions = None,
    scorer: opt.ScorerOfIndex = None,
    encoder: opt.EncoderName = None,
    allow_code: opt.AllowCode = False,
    cache: opt.CacheFile = None,
    as_json: opt.Json = False,
    **given: Any,
) -> None:
    """Find all items that score --above or higher, certified.

    The first question waits for a replay of the anchor queries, which tells when to stop. --json prints a line per
    question.

    Example: adacur find my.adacur 'trials of aspirin in pregnancy' --above 0 --recall 0.95
    """
    from adacur.search.finding import find_options, plan_find

    questions = _asked("find", question, queries)
    if given["above"] is None:
        raise InputError("find needs a line: --above SCORE. `adacur search` finds the best k without one.")
    with _opened(index, scorer, encoder, allow_code, cache) as opened:
        options = find_options(**given)
        with notes.status("calibrating …"):
            plan_find(opened, **options)
        _answer(opened, lambda some: opened.find(some, **options), questions, given["deadline"], cache, as_json=as_json)


def _asked(command: str, question: Sequence[str] | None, queries: Path | None) -> list[Query]:
    questions = as_queries([*(question or ()), *(read_queries(queries) if queries else ())])
    if not questions:
        raise InputError(f"{command} needs a question. Give one, or --queries FILE.")
    return questions


@contextmanager
def _opened(
    path: str, scorer: str | None, encoder: str | None, allow_code: bool, cache: Path | None
) -> Iterator[AnchorIndex]:
    import adacur

    if is_store_url(path) and scorer is None:
        scorer = opt.DEFAULT_SCORER
    with adacur.load(path, scorer=scorer, encoder=encoder, allow_code=allow_code) as opened:
        yield opened if cache is None else opened.with_scorer(lambda named: adacur.Cached(named, cache))


def _answer(
    opened: AnchorIndex,
    search_for: Callable[[Sequence[Query]], list[Hits]],
    questions: Sequence[Query],
    deadline: float | None,
    cache: Path | None,
    *,
    as_json: bool,
) -> None:
    """Answer questions, some at a time, and print each as it is answered; of an error, what it leaves."""
    # A deadline is that of all questions together.
    together = _TOGETHER if deadline is None else len(questions)
    for start in range(0, len(questions), together):
        failure: AdacurError | None = None
        try:
            with notes.status("searching …"):
                answers = search_for(questions[start : start + together])
        except AdacurError as error:
            failure, answers = error, [hits for hits in error.hits if hits.trace.calls]
            if not answers:
                raise
        calls_some = any(hits.trace.rounds for hits in answers)
        if not start and calls_some:
            note(f"Scorer: {opened.scorer.card}")
            if opened.drift is not None and opened.drift.n_probes:
                note(f"Besides the budget, {opened.drift.n_probes} calls went into recognising the scorer.")
        for hits in answers:
            show(hits, hits_table(hits), hints=notes_on(hits), as_json=as_json)
        sys.stdout.flush()
        if failure is not None:
            raise failure
    if cache is not None and calls_some:
        known: Any = opened.scorer
        note(f"Cache: {known.hits} of {known.hits + known.misses} scores were known; {known.misses} were paid for.")
