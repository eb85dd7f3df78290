"""`adacur find`: all items above a line, for questions in groups that share scorer calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import notes
from adacur.cli.search import TOGETHER, print_answers
from adacur.data import read_queries
from adacur.errors import InputError
from adacur.names import is_store_url
from adacur.options import FIND_OPTIONS
from adacur.records import as_queries


@opt.with_options(FIND_OPTIONS)
def find(
    index: opt.IndexPath,
    question: Annotated[list[str] | None, Argument(help="One question, or several.")] = None,
    queries: Annotated[Path | None, Option(help="A file of questions: .jsonl, .csv, .tsv, .txt or BEIR.")] = None,
    scorer: opt.ScorerOfIndex = None,
    encoder: opt.EncoderName = None,
    allow_code: opt.AllowCode = False,
    cache: opt.CacheFile = None,
    log: Annotated[Path | None, Option(help="A file that stores scores for `adacur index refresh`.")] = None,
    full: Annotated[bool, Option("--full", help="Show the whole text of each item.")] = False,
    as_json: opt.Json = False,
    **given: Any,
) -> None:
    """Find all items that score --above or higher, at a --recall that is certified. --json prints a line per question.

    The first question waits for a replay of the anchor queries, which tells when to stop.

    Example: adacur find my.adacur 'trials of aspirin in pregnancy' --above 0 --recall 0.95
    """
    import adacur
    from adacur.search.finding import find_options, plan_find

    questions = as_queries([*(question or ()), *(read_queries(queries) if queries else ())])
    if not questions:
        raise InputError("find needs a question. Give one, or --queries FILE.")
    if given["above"] is None:
        raise InputError("find needs a line: --above SCORE. `adacur search` finds the best k without one.")
    if is_store_url(index) and scorer is None:
        scorer = opt.DEFAULT_SCORER
    with adacur.load(index, scorer=scorer, encoder=encoder, allow_code=allow_code, log=log) as opened:
        if cache is not None:
            opened = opened.with_scorer(lambda named: adacur.Cached(named, cache))
        options = find_options(**given)
        with notes.status("calibrating …"):
            plan_find(opened, **options)
        print_answers(
            opened,
            lambda some: opened.find(some, **options),
            questions,
            together=len(questions) if given["deadline"] is not None else TOGETHER,
            cached=cache is not None,
            as_json=as_json,
            full=full,
        )
