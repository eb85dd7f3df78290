"""`match`: the pairs of two tables that a scorer accepts, within a bill."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.budget import Budget, is_whole
from adacur.errors import BudgetError, InputError
from adacur.matching.bill import Bill, Progress, Till, forecast
from adacur.matching.chances import Pace
from adacur.matching.one_table import OnceEach
from adacur.matching.result import Matches, PairsFile, certificate_of, check_output, one_each
from adacur.matching.rows_loop import Running
from adacur.matching.tables import Table, open_right
from adacur.money import Money, Price
from adacur.records import Query
from adacur.scorers.by_name import scorer as open_scorer
from adacur.scorers.cached import Cached
from adacur.scorers.score_file import ScoreFile
from adacur.search import AnchorIndex
from adacur.search.spending import priced

CALLS_PER_ROW = 100
# The most pairs that are scored and stored together, where the scorer's own calls have no fewer: a crash can lose them.
SAVED_TOGETHER = 64
# Rows that move together: few at first, so that later ones learn from them soon.
_FIRST_ROWS, _MOST_ROWS = 16, 256


def match(
    left: Any,
    right: Any,
    *,
    scorer: Any = None,
    above: float,
    recall: float = 0.9,
    calls_per_row: int = CALLS_PER_ROW,
    total_calls: int | None = None,
    cost: Money | str | float | None = None,
    price: Price | str | None = None,
    one_to_one: bool = False,
    path: str | Path | None = None,
    output: str | Path | None = None,
    force: bool = False,
    left_text: str | None = None,
    right_text: str | None = None,
    left_id: str | None = None,
    right_id: str | None = None,
    first: Any = None,
    encoder: Any = None,
    learning: bool = True,
    audit: int = 0,
    confidence: float = 0.9,
    seed: int = 0,
    progress: bool | Progress = True,
    dry_run: bool = False,
) -> Any:
    """All pairs of a left and a right row that score `above` or higher, at a recall, within a bill: `Matches`.

    Rows are matched in batches, in the order given, and each ends when no pair of it is likely enough to be worth a
    call: most after two or three calls, a few after many. What earlier rows taught decides how likely pairs are.
    Where both tables are one, its duplicates are found: no row is paired with itself, and each pair is scored once.

    - left, right: files that `adacur.data` reads, pandas, Polars or Arrow frames, or lists of records; the right one
      may be an index or its folder. The left table is streamed; the right one is held in memory, unless it is a folder;
    - scorer: what `adacur.scorer` opens; by default that of the index;
    - above: the least score of a pair; recall: the share of these pairs to find, as far as the model can tell;
    - calls_per_row, total_calls, cost: limits of calls for each row, and of calls and money for all; `cost` such as
      "5 USD" with the `price` of the scorer. They are never passed, and what comes first ends the match;
    - one_to_one: of the pairs found, at most one of each row, the best first;
    - path: a file that keeps all paid scores: a match that was interrupted continues when called again, and changed
      tables pay only for what changed;
    - output: a CSV of the pairs; `output.partial` has those found so far. One that exists is refused without `force`;
    - left_text, right_text: templates such as "{title} {brand}"; by default all columns but the id. left_id, right_id:
      the columns of the ids, by default "id", else row numbers;
    - first, encoder: first stages of the right table, as for `AnchorIndex.from_items`; "bm25", and "dense" with an
      encoder;
    - learning: False lets every row stand alone;
    - audit: this many rows, drawn by `seed`, are re-ranked to `calls_per_row` too, for a certificate at `confidence`;
    - progress: a bar, or a function that is given the `Bill` after each batch of rows;
    - dry_run: return a `MatchEstimate` instead, and pay for nothing; models in this process are timed.
    """
    started = time.monotonic()
    _check(above=above, recall=recall, confidence=confidence, audit=audit)
    table = Table(left, left_text, left_id, "left")
    if output is not None and not dry_run:
        check_output(output, force=force, read=(left, right, path))
    within = right is left or table.is_file(right)
    n_rows, shown = table.count(), progress is True
    # Both sides of a table within itself are read alike.
    texts = (right_text or left_text, right_id or left_id) if within else (right_text, right_id)
    index = open_right(right, text=texts[0], id_=texts[1], first=first, encoder=encoder, scorer=scorer, progress=shown)
    opened = index.scorer if scorer is None else open_scorer(scorer)
    most_cost, price = priced(Budget(calls_per_row, cost=cost, price=price), opened)
    if total_calls is not None and (not is_whole(total_calls) or total_calls < 1):
        raise BudgetError(f"total_calls must be a whole number of at least 1, or None; got {total_calls!r}.")
    if dry_run:
        some = [Query(row.id, row.text) for row in itertools.islice(table, _FIRST_ROWS)]
        most = min(n_rows * min(calls_per_row, len(index)), total_calls or n_rows * len(index))
        audited = min(audit, n_rows) * min(calls_per_row, len(index))
        return forecast(index, some, opened, rows=n_rows, audited=audited, most=most, price=price)
    till = Till(opened, most_calls=total_calls, most_cost=most_cost, price=price)
    with ExitStack() as open_until_the_end:
        ledger = open_until_the_end.enter_context(_kept(till, path))
        running = Running(
            index=index,
            above=above,
            scorer=OnceEach(ledger) if within else ledger,
            calls_per_row=min(calls_per_row, len(index)),
            first=first if isinstance(right, AnchorIndex) else None,
            pace=Pace(recall),
            learning=learning,
            within=within,
            audited=frozenset(random.Random(seed).sample(range(n_rows), min(audit, n_rows))),
        )
        report = open_until_the_end.enter_context(_reporting(progress, n_rows))
        file = None if output is None else open_until_the_end.enter_context(PairsFile(Path(output)))
        bill, rows = Bill(n_rows), iter(table)
        while batch := list(itertools.islice(rows, min(_MOST_ROWS, max(_FIRST_ROWS, bill.rows_done)))):
            calls_left = None if total_calls is None else total_calls - till.calls
            new = running.rows([Query(row.id, row.text) for row in batch], calls_left, n_rows - bill.rows_done)
            if file is not None:
                file.add(new)
            now = {"known": ledger.hits, "seconds": time.monotonic() - started}
            bill = till.on_bill(bill, rows_done=running.n_done, pairs=len(running.pairs), **now)
            report(bill)
            if running.is_over:
                break
        pairs = one_each(running.pairs, within=within) if one_to_one else running.pairs
        if file is not None and one_to_one:
            file.replace(pairs)
    return Matches(
        pairs=pairs,
        bill=replace(bill, pairs=len(pairs)),
        certificate=certificate_of(
            running.pace, running.lacking, rows=n_rows, depth=running.calls_per_row, confidence=confidence
        ),
        accepted=len(running.pairs),
        searched_calls=running.pace.calls,
        unmatched=running.unmatched,
        to_look_at=running.doubtful,
        failed=running.failed,
        without_text=table.empty,
        learned=learning,
        settings={"above": above, "recall": recall, "first": running.first_name, "scorer": opened.card.name},
    )


@contextmanager
def _kept(till: Till, path: str | Path | None) -> Iterator[Cached]:
    """The scorer behind a file of all that was paid; without a path, one that is gone at the end."""
    with ExitStack() as stack:
        if path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="adacur-match-"))
            cached = Cached(till, ScoreFile(Path(folder, "scores"), identity="one run"), save_every=SAVED_TOGETHER)
        else:
            under_way = getattr(till.scorer, "pairs_at_once", None) or SAVED_TOGETHER
            cached = Cached(till, path, save_every=min(under_way, SAVED_TOGETHER), must_keep=True)
        try:
            yield cached
        finally:
            cached.close_file()


@contextmanager
def _reporting(progress: bool | Progress, n_rows: int) -> Iterator[Progress]:
    """Where bills go: a function, a bar, or nowhere."""
    if callable(progress):
        yield progress
        return
    from tqdm.auto import tqdm

    with tqdm(total=n_rows, desc="matching", unit=" rows", disable=not progress) as bar:

        def show(bill: Bill) -> None:
            bar.set_postfix_str(f"{bill.pairs:,} pairs, {bill.calls:,} calls{f', {bill.cost}' if bill.cost else ''}")
            bar.update(bill.rows_done - bar.n)

        yield show


def _check(*, above: float, recall: float, confidence: float, audit: int) -> None:
    for name, value in (("above", above), ("recall", recall), ("confidence", confidence)):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
            raise InputError(f"{name} must be a finite number; got {value!r}.")
    if not 0 < recall < 1:
        raise InputError(f"recall must be above 0 and below 1, such as 0.9; got {recall}.")
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence must be at least 0.5 and below 1, such as 0.9; got {confidence}.")
    if not is_whole(audit) or audit < 0:
        raise BudgetError(f"audit must be a number of rows, from 0 up; got {audit!r}.")
