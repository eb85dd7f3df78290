"""`adacur.match`: the pairs, what is paid for them, and what becomes of a match that is interrupted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import adacur
from adacur.errors import BudgetError, InputError, ScorerFailed
from adacur.matching import Bill
from adacur.matching.chances import Chances
from adacur.matching.result import Found, PairsFile, one_each
from adacur.protocols import Ranking
from adacur.scorers import FunctionScorer
from tests.living_world import Encoder

RIGHT = [{"id": f"r{n}", "name": f"item {n} of colour {n % 5} and shape {n % 7}"} for n in range(10, 90)]
LEFT = [{"id": f"l{n}", "name": f"the item {n} colour {n % 5}"} for n in range(10, 70, 2)]
NUMBER = {row["name"]: int(row["id"][1:]) for row in (*LEFT, *RIGHT)}
QUIET: dict[str, Any] = {"progress": False, "recall": 0.99}


class Counted:
    """Scores 2 for equal numbers, and lower the further apart; counts what it was called for."""

    def __init__(self, fails: Callable[[str], bool] = lambda text: False) -> None:
        self.pairs: Counter[tuple[str, str]] = Counter()
        self._fails = fails

    def __call__(self, pairs: list[tuple[str, str]]) -> list[float]:
        if any(self._fails(query) for query, _ in pairs):
            raise RuntimeError("no answer")
        self.pairs.update(pairs)
        return [2.0 - abs(NUMBER[query] - NUMBER[item]) for query, item in pairs]

    def scorer(self) -> FunctionScorer:
        return FunctionScorer(self, name="counted-v1", attempts=1)


def ids(pairs: Any) -> list[tuple[str, str]]:
    return [(pair.left, pair.right) for pair in pairs]


def test_every_pair_is_scored_exactly_and_lies_above_the_line() -> None:
    counted = Counted()
    done = adacur.match(LEFT, RIGHT, scorer=counted.scorer(), above=1.5, **QUIET)
    assert set(ids(done)) == {(row["id"], f"r{row['id'][1:]}") for row in LEFT}
    assert {pair.score for pair in done} == {2.0}
    assert done.bill.calls == sum(counted.pairs.values())
    assert max(counted.pairs.values()) == 1
    assert done.bill.calls < len(LEFT) * len(RIGHT) / 4
    assert done.bill.rows_done == done.bill.rows == len(LEFT)


def test_pairs_become_frames_of_three_libraries() -> None:
    done = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=1.5, **QUIET)
    for frame in (done.to_pandas(), done.to_polars(), done.to_arrow().to_pandas()):
        assert list(frame.columns) == ["left", "right", "score", "relevance", "round"]
        assert list(frame["left"]) == [pair.left for pair in done]
    assert len(adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=99, **QUIET).to_pandas()) == 0


@pytest.mark.parametrize("learning", [True, False])
def test_the_same_call_gives_the_same_answer(learning: bool) -> None:
    first, second = (
        adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=0.5, learning=learning, **QUIET) for _ in range(2)
    )
    assert first.pairs == second.pairs
    assert first.bill.calls == second.bill.calls


def test_without_learning_a_row_does_not_depend_on_the_others() -> None:
    options: dict[str, Any] = {"above": 0.5, "learning": False, **QUIET}
    whole = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), **options)
    alone = [pair for row in LEFT[::-1] for pair in adacur.match([row], RIGHT, scorer=Counted().scorer(), **options)]
    assert sorted(whole.pairs) == sorted(alone)


@pytest.mark.parametrize("most", [1, 17, 40])
def test_no_call_is_made_beyond_the_total(most: int) -> None:
    counted = Counted()
    done = adacur.match(LEFT, RIGHT, scorer=counted.scorer(), above=0.5, total_calls=most, **QUIET)
    assert sum(counted.pairs.values()) == done.bill.calls <= most
    assert done.bill.stopped == "calls" or done.bill.rows_done == len(LEFT)
    assert all(pair.score >= 0.5 for pair in done)


def test_no_call_is_made_beyond_the_money() -> None:
    counted = Counted()
    options: dict[str, Any] = {"cost": "0.02 USD", "price": "0.001 USD / call", **QUIET}
    done = adacur.match(LEFT, RIGHT, scorer=counted.scorer(), above=0.5, **options)
    assert sum(counted.pairs.values()) == done.bill.calls == 20
    assert str(done.bill.cost) == "0.02 USD"
    assert done.bill.stopped == "cost"


def test_no_row_takes_more_calls_than_its_own_limit() -> None:
    counted = Counted()
    adacur.match(LEFT, RIGHT, scorer=counted.scorer(), above=-99, calls_per_row=3, **QUIET)
    assert max(Counter(query for query, _ in counted.pairs).values()) == 3


def test_a_path_keeps_what_was_paid_and_only_changed_rows_are_paid_for(tmp_path: Path) -> None:
    options: dict[str, Any] = {"above": 0.5, "path": tmp_path / "scores", "learning": False, **QUIET}
    first, again, changed = Counted(), Counted(), Counted()
    done = adacur.match(LEFT, RIGHT, scorer=first.scorer(), **options)
    repeated = adacur.match(LEFT, RIGHT, scorer=again.scorer(), **options)
    assert repeated.pairs == done.pairs
    assert not again.pairs
    assert repeated.bill.known == done.bill.calls
    new = {"id": "new", "name": LEFT[3]["name"] + " changed"}
    NUMBER[new["name"]] = 16
    adacur.match([*LEFT[:3], new, *LEFT[4:]], RIGHT, scorer=changed.scorer(), **options)
    assert {query for query, _ in changed.pairs} == {new["name"]}


def test_equal_texts_are_paid_for_once() -> None:
    counted = Counted()
    rows = [{"id": f"{n}", "name": LEFT[0]["name"]} for n in range(20)]
    done = adacur.match(rows, RIGHT, scorer=counted.scorer(), above=1.5, learning=False, **QUIET)
    assert len(done) == 20
    assert max(counted.pairs.values()) == 1


def test_rows_whose_scorer_fails_are_listed_and_the_others_go_on() -> None:
    bad = {LEFT[4]["name"], LEFT[9]["name"]}
    done = adacur.match(LEFT, RIGHT, scorer=Counted(bad.__contains__).scorer(), above=1.5, **QUIET)
    assert set(done.failed) == {LEFT[4]["id"], LEFT[9]["id"]}
    assert {pair.left for pair in done} == {row["id"] for row in LEFT} - set(done.failed)


def test_a_scorer_that_fails_for_every_row_ends_the_match_and_what_was_paid_stays(tmp_path: Path) -> None:
    options: dict[str, Any] = {"above": 0.5, "path": tmp_path / "scores", **QUIET}
    paid, n_calls = Counted(), iter(range(1000))
    cut_off = FunctionScorer(lambda pairs: paid(pairs) if next(n_calls) < 3 else 1 / 0, name="counted-v1", attempts=1)
    with pytest.raises(ScorerFailed):
        adacur.match(LEFT, RIGHT, scorer=cut_off, **options)
    rest, whole = Counted(), Counted()
    done = adacur.match(LEFT, RIGHT, scorer=rest.scorer(), **options)
    assert not set(rest.pairs) & set(paid.pairs)
    assert done.pairs == adacur.match(LEFT, RIGHT, scorer=whole.scorer(), above=0.5, **QUIET).pairs


class Killed(BaseException):
    """Nothing catches it."""


def test_calls_that_returned_are_not_paid_again_whatever_ends_the_process(tmp_path: Path) -> None:
    options: dict[str, Any] = {"above": 0.5, "path": tmp_path / "scores", **QUIET}
    paid, again, n_calls = Counted(), Counted(), iter(range(1000))

    def killed(pairs: list[tuple[str, str]]) -> list[float]:
        if next(n_calls) == 3:
            raise Killed
        return paid(pairs)

    with pytest.raises(Killed):
        adacur.match(LEFT, RIGHT, scorer=FunctionScorer(killed, name="counted-v1", batch_size=4), **options)
    adacur.match(LEFT, RIGHT, scorer=again.scorer(), **options)
    assert len(paid.pairs) == 12
    assert not set(again.pairs) & set(paid.pairs)


TINY_DISK = """
    import subprocess, sys, adacur
    from adacur.errors import StorageFull
    from tests.unit.matching.test_match import LEFT, RIGHT, Counted
    disk, counted, again = sys.argv[1], Counted(), Counted()
    options = dict(above=-99, recall=0.99, path=disk + "/scores", progress=False)
    def mount(option):
        subprocess.run(["mount", "-t", "tmpfs", "-o", option, "none", disk], check=True)
    mount("size=120k")
    try:
        adacur.match(LEFT, RIGHT, scorer=counted.scorer(), **options)
    except StorageFull:
        print("full")
    mount("remount,size=8m")
    adacur.match(LEFT, RIGHT, scorer=again.scorer(), **options)
    print(sum(counted.pairs.values()), len(set(counted.pairs) & set(again.pairs)))
    subprocess.run(["umount", disk], check=True)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make a disk")
def test_a_full_disk_ends_the_match_and_what_was_kept_is_not_paid_again(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    command = ["unshare", "--mount", sys.executable, "-c", textwrap.dedent(TINY_DISK), str(tmp_path / "disk")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("needs the right to mount")
    assert done.returncode == 0, done.stderr
    full, paid, again = done.stdout.split()
    assert full == "full"
    assert int(again) <= 64 < int(paid)


def test_duplicates_of_one_table_come_once_and_never_with_themselves() -> None:
    rows = [{"id": f"{n}", "name": row["name"]} for n, row in enumerate([*RIGHT[:40], *LEFT[:10]])]
    counted = Counted()
    done = adacur.match(rows, rows, scorer=counted.scorer(), above=1.5, **QUIET)
    found = {frozenset((pair.left, pair.right)) for pair in done}
    assert found == {frozenset((str(2 * n), str(40 + n))) for n in range(10)}
    assert len(found) == len(done)
    unordered = Counter(frozenset(pair) for pair in counted.pairs.elements())
    assert max(unordered.values()) == 1
    assert min(len(pair) for pair in unordered) == 2
    assert set(done.unmatched) == {row["id"] for row in rows} - {id_ for pair in found for id_ in pair}


def test_equal_tables_that_are_not_one_are_matched_with_each_other() -> None:
    done = adacur.match(list(LEFT), list(LEFT), scorer=Counted().scorer(), above=1.5, **QUIET)
    assert set(ids(done)) == {(row["id"], row["id"]) for row in LEFT}


def test_one_to_one_keeps_the_best_pair_of_each_row() -> None:
    pairs = [Found("a", "x", 1.0, None, 1), Found("a", "y", 3.0, None, 1), Found("b", "y", 2.0, None, 1)]
    assert ids(one_each(pairs)) == [("a", "y")]
    done = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=-5, one_to_one=True, **QUIET)
    assert max(Counter(pair.left for pair in done).values()) == 1
    assert max(Counter(pair.right for pair in done).values()) == 1
    every = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=-5, **QUIET)
    assert done.accepted == every.accepted == len(every) > len(done)
    assert f"One-to-one keeps these of {len(every):,} " in done.summary()
    assert "One-to-one" not in every.summary()


def test_an_audit_says_how_many_rows_may_lack_a_pair() -> None:
    # The line lies so low that a row has many pairs, and the recall that is asked for ends rows soon.
    options: dict[str, Any] = {"above": -8, "calls_per_row": 80, "progress": False, "recall": 0.01}
    done = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), audit=len(LEFT), **options)
    alone = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), **options)
    before = Counter(pair.left for pair in alone)
    lacking = sum(n > before[left] for left, n in Counter(pair.left for pair in done).items())
    assert done.certificate.basis == "audit"
    assert done.certificate.incomplete == done.certificate.seen_incomplete == lacking > 0
    assert done.depth == alone.depth
    assert adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), **options).certificate.basis == "estimate"


def test_an_audit_that_a_wall_ends_loses_no_pair_and_says_nothing_of_that_row() -> None:
    whole = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=0.5, progress=False)
    options: dict[str, Any] = {"above": 0.5, "progress": False, "audit": len(LEFT)}
    done = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), total_calls=whole.bill.calls + 1, **options)
    assert done.bill.stopped == "calls"
    rows = {row["id"] for row in LEFT[: done.bill.rows_done]}
    assert rows
    assert {pair for pair in ids(whole) if pair[0] in rows} <= set(ids(done))
    assert done.certificate.rows < len(LEFT)


def test_a_dry_run_counts_the_audit() -> None:
    options: dict[str, Any] = {"above": 0.5, "progress": False, "dry_run": True}
    without, with_ = (adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), audit=n, **options) for n in (0, 2))
    assert with_.expected > without.expected


def test_the_bill_is_shown_after_each_batch_and_never_falls() -> None:
    bills: list[Bill] = []
    adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=0.5, progress=bills.append)
    assert [bill.rows_done for bill in bills] == [16, 30]
    assert bills[0].calls <= bills[1].calls
    assert bills[0].expected_calls >= bills[0].calls


def test_a_dry_run_pays_for_nothing() -> None:
    counted = Counted()
    cost = adacur.match(LEFT, RIGHT, scorer=counted.scorer(), above=0, price="0.001 USD / call", dry_run=True)
    assert not counted.pairs
    assert (cost.rows, cost.right_rows) == (len(LEFT), len(RIGHT))
    assert len(LEFT) <= cost.expected <= cost.most == len(LEFT) * len(RIGHT)
    assert cost.cost is not None
    assert str(cost.most_cost) == "2.4 USD"


def test_pairs_found_so_far_are_in_a_file(tmp_path: Path) -> None:
    output = tmp_path / "pairs.csv"
    seen: list[int] = []

    def watch(bill: Bill) -> None:
        partial = output.with_name("pairs.csv.partial").read_text().splitlines()
        seen.append(len(partial) - 1 - bill.pairs)
        assert not output.exists()

    done = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=0.5, output=output, progress=watch)
    assert seen == [0, 0]
    assert len(output.read_text().splitlines()) == 1 + len(done)
    assert not output.with_name("pairs.csv.partial").exists()


def test_the_file_of_pairs_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch) -> None:
    synced: list[tuple[int, bool]] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, (tmp_path / "pairs.csv").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with PairsFile(tmp_path / "pairs.csv") as file:
        file.add([])
    assert synced == [((tmp_path / "pairs.csv").stat().st_ino, False), (tmp_path.stat().st_ino, True)]


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (InputError, {"above": float("nan")}),
        (InputError, {"above": float("inf")}),
        (InputError, {"above": "0"}),
        (InputError, {"recall": 1.0}),
        (BudgetError, {"calls_per_row": 0}),
        (BudgetError, {"total_calls": 0}),
        (BudgetError, {"cost": "1 EUR", "price": "0.001 USD / call"}),
        (BudgetError, {"cost": "1 USD"}),
        (BudgetError, {"audit": -1}),
        (InputError, {"right_text": "{nothing}"}),
        (InputError, {"left_id": "nothing"}),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_paid(
    error: type[Exception], options: dict[str, Any]
) -> None:
    counted = Counted()
    with pytest.raises(error):
        adacur.match(LEFT, RIGHT, **{"scorer": counted.scorer(), "above": 0.0, **QUIET} | options)
    assert not counted.pairs


def test_an_output_that_exists_is_refused_without_force(tmp_path: Path) -> None:
    output = tmp_path / "pairs.csv"
    output.write_text("mine")
    counted = Counted()
    options: dict[str, Any] = {"scorer": counted.scorer(), "above": 1.5, "output": output, **QUIET}
    with pytest.raises(InputError):
        adacur.match(LEFT, RIGHT, **options)
    assert not counted.pairs
    assert output.read_text() == "mine"
    adacur.match(LEFT, RIGHT, force=True, **options)
    assert len(output.read_text().splitlines()) == 1 + len(LEFT)


def test_an_output_that_is_an_input_is_refused_even_with_force(tmp_path: Path) -> None:
    left = tmp_path / "left.jsonl"
    left.write_text("".join(json.dumps(row) + "\n" for row in LEFT))
    before, counted = left.read_text(), Counted()
    with pytest.raises(InputError):
        adacur.match(left, RIGHT, scorer=counted.scorer(), above=1.5, output=left, force=True, **QUIET)
    assert left.read_text() == before
    assert not counted.pairs


def test_a_price_per_search_is_charged_for_each_row() -> None:
    """A request has one query, so pairs of thirty rows in one call are thirty searches."""
    price = {"price": "0.01 USD / search", "total_calls": len(LEFT)}
    done = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=99, **price, **QUIET)
    assert done.bill.calls == len(LEFT)
    assert str(done.bill.cost) == "0.3 USD"


def test_where_nothing_is_found_the_answer_says_how_much_may_be_missing() -> None:
    done = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=99, **QUIET)
    assert not done.pairs
    assert 0 < done.certificate.missing < len(LEFT)
    assert f"{done.certificate.missing:,.0f} pairs" in str(done.certificate)


def test_the_estimate_says_that_it_leaves_out_what_the_first_stage_misses() -> None:
    done = adacur.match(LEFT, RIGHT, scorer=Counted().scorer(), above=0.5, **QUIET)
    assert "of what the first stage lists" in str(done.certificate)


def test_a_stage_that_does_not_list_a_pair_says_nothing_of_it() -> None:
    """Its log-odds are those by the stages that list it."""

    class Listed(NamedTuple):
        ranking: Ranking

        def search(self, queries: list[adacur.Query], k: int) -> list[Ranking]:
            return [self.ranking for _ in queries]

    words = Listed(Ranking(np.arange(5), np.linspace(9, 5, 5)))
    meaning = Listed(Ranking(np.arange(9, 4, -1), np.linspace(0.9, 0.5, 5)))
    anchors: Any = SimpleNamespace(items=range(12))

    def log_odds(*stages: Listed) -> np.ndarray[Any, Any]:
        model = Chances(0.0, stages)  # type: ignore[arg-type]
        ranks = [[stage.ranking.positions for stage in stages]]
        return model.begin(anchors, [adacur.Query("q", "a query")], ranks).predict()[0]

    both, alone = log_odds(words, meaning), log_odds(meaning)
    assert both[5:10] == pytest.approx(alone[5:10])
    assert both[10] < both[5:10].min()


def test_an_index_with_anchors_serves_as_the_right_side(tmp_path: Path) -> None:
    items = [adacur.Item(row["id"], row["name"]) for row in RIGHT]
    queries = [adacur.Query(f"q{n}", RIGHT[n]["name"]) for n in range(0, 80, 8)]
    counted = Counted()
    built = adacur.build(items, queries, scorer=counted.scorer(), path=tmp_path / "i", progress=False, tune=False)
    from_object = adacur.match(LEFT, built, above=1.5, **QUIET)
    from_folder = adacur.match(LEFT, tmp_path / "i", scorer=counted.scorer(), above=1.5, **QUIET)
    assert from_object.pairs == from_folder.pairs
    assert set(ids(from_object)) == {(row["id"], f"r{row['id'][1:]}") for row in LEFT}
    with pytest.raises(InputError):
        adacur.match(LEFT, built, above=1.5, right_text="{name}", **QUIET)


@pytest.mark.parametrize("first", ["bm25", "dense", None])
def test_a_row_may_start_from_one_first_stage_of_several(first: str | None) -> None:
    items = [adacur.Item(row["id"], row["name"]) for row in RIGHT]
    index = adacur.AnchorIndex.from_items(items, first=["bm25", "dense"], encoder=Encoder(), progress=False)
    done = adacur.match(LEFT, index, scorer=Counted().scorer(), above=1.5, first=first, **QUIET)
    assert ids(done)
    assert set(ids(done)) <= {(row["id"], f"r{row['id'][1:]}") for row in LEFT}


def test_learning_ends_rows_sooner_where_the_first_candidate_is_always_right() -> None:
    """One hundred rows like those before teach that nothing comes after the first."""
    rows = [{"id": f"l{n}", "name": f"token{n}x unique{n}y"} for n in range(200)]
    table = [{"id": f"r{n}", "name": f"token{n}x unique{n}y shop"} for n in range(200)]

    def same(pairs: list[tuple[str, str]]) -> list[float]:
        return [1.0 if item.startswith(query) else -1.0 for query, item in pairs]

    learned, alone = (
        adacur.match(rows, table, scorer=FunctionScorer(same, name="same"), above=0, learning=learning, **QUIET)
        for learning in (True, False)
    )
    assert len(learned) == len(alone) == 200
    assert learned.bill.calls <= alone.bill.calls
    assert learned.bill.calls < 250


KILLED = """
    import os, sys, time, adacur
    from tests.unit.matching.test_match import LEFT, RIGHT, Counted
    counted = Counted()
    log = os.open(sys.argv[1] + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def score(pairs):
        scores = counted(pairs)
        os.write(log, "".join(f"{query}|{item}\\n" for query, item in pairs).encode())
        time.sleep(0.03)
        return scores
    scorer = adacur.scorers.FunctionScorer(score, name="logged-v1", batch_size=4)
    adacur.match(LEFT, RIGHT, scorer=scorer, above=-3, recall=0.99, path=sys.argv[1], output=sys.argv[1] + ".csv",
                 force=True, progress=False)
    print("done")
"""


def test_a_killed_match_continues_and_pays_again_for_one_call_at_most(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    code, draw = textwrap.dedent(KILLED), random.Random(0)

    def run(path: Path, seconds: float | None) -> bool:
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        log = Path(f"{path}.log")
        before = log.stat().st_size if log.exists() else 0
        if seconds is not None:
            # From its first call on, so that a slow start does not matter.
            while process.poll() is None and not (log.exists() and log.stat().st_size > before):
                time.sleep(0.005)
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
        out, _ = process.communicate()
        return b"done" in out

    assert run(tmp_path / "whole" / "scores", None)
    kills = 0
    for _ in range(4):
        kills += not run(tmp_path / "scores", draw.uniform(0.0, 0.15))
    assert run(tmp_path / "scores", None)
    paid = Counter((tmp_path / "scores.log").read_text().splitlines())
    assert kills
    assert sum(n - 1 for n in paid.values()) <= kills * 4, "the one call under way, of at most 4 pairs"
    both = [sorted((folder / "scores.csv").read_text().splitlines()) for folder in (tmp_path, tmp_path / "whole")]
    assert both[0] == both[1]
