"""A score is paid for once, kept exactly, and never taken for another's."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

from adacur.errors import FileFormatError, InputError, NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.protocols import ScorerCard
from adacur.records import Item, Query
from adacur.scorers import Cached, FunctionScorer, Metered, score_grid
from adacur.scorers import scorer as opened_scorer
from adacur.scorers.cached import CacheWarning, past_cache
from adacur.scorers.score_file import look_up

QUERIES = [Query(f"q{n}", f"question {n}") for n in range(6)]
ITEMS = [Item(f"i{n}", f"text {n}") for n in range(40)]
PAIRS = [(query, item) for query in QUERIES for item in ITEMS]


def value(query: str, item: str) -> float:
    return zlib.crc32(f"{query}\0{item}".encode()) / 2**28 - 8


def values(pairs: list[tuple[str, str]]) -> list[float]:
    return [value(query, item) for query, item in pairs]


def truth(pairs=PAIRS) -> list[float]:
    return values([(query.text, item.text) for query, item in pairs])


class Recording:
    """A scorer that remembers what it was asked, in a type of one's choice."""

    def __init__(self, dtype="float32", *, card=None, function=values) -> None:
        self.card = card or ScorerCard(name="recording", backend="test", weights="abc", dtype="float32")
        self.dtype = dtype
        self.function = function
        self.calls: list[list[tuple[str, str]]] = []

    def score(self, pairs):
        asked = [(query.text, item.text) for query, item in pairs]
        self.calls.append(asked)
        return np.array(self.function(asked), dtype=self.dtype)

    @property
    def asked(self):
        return [pair for call in self.calls for pair in call]


def stored_by(cached) -> int:
    """The number of scores in the file."""
    with contextlib.closing(sqlite3.connect(cached._known._path)) as file:
        return file.execute("SELECT count(*) FROM scores").fetchone()[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scores.sqlite"


# --- what is paid


def test_a_pair_is_asked_for_once_in_a_call_and_once_in_all_calls(path) -> None:
    scorer = Recording()
    cached = Cached(scorer, path)
    twice = [*PAIRS[:50], *PAIRS[:50][::-1]]
    expected = np.array(truth(twice), dtype="float32")
    assert cached.score(twice).tolist() == expected.tolist()
    assert cached.score(PAIRS).tolist() == np.array(truth(), dtype="float32").tolist()
    assert score_grid(cached, QUERIES, ITEMS).ravel().tolist() == cached.score(PAIRS).tolist()
    assert asyncio.run(cached.ascore(twice)).tolist() == expected.tolist()
    assert len(scorer.asked) == len(set(scorer.asked)) == len(PAIRS)


def test_a_pair_is_asked_for_once_without_a_file_too() -> None:
    scorer = Recording()
    cached = Cached(scorer)
    for _ in range(2):
        assert cached.score([*PAIRS[:9], PAIRS[0]]).tolist() == np.array(truth([*PAIRS[:9], PAIRS[0]]), "f4").tolist()
        assert asyncio.run(cached.ascore(PAIRS[:12])).tolist() == np.array(truth(PAIRS[:12]), "f4").tolist()
    assert len(scorer.asked) == len(set(scorer.asked)) == 12 == cached.misses


def test_hits_and_misses_add_up_to_the_pairs_answered(path) -> None:
    cached = Cached(Recording(), path)
    assert cached.hit_rate == 0
    cached.score([*PAIRS[:3], PAIRS[0]])
    assert (cached.hits, cached.misses) == (1, 3)
    score_grid(cached, QUERIES[:1], [*ITEMS[:4], ITEMS[0]])
    assert (cached.hits, cached.misses) == (5, 4)
    asyncio.run(cached.ascore(PAIRS[:8]))
    assert (cached.hits, cached.misses, cached.hit_rate) == (9, 8, 9 / 17)


def test_metered_outside_counts_answers_and_inside_what_was_paid(path) -> None:
    inside = Metered(FunctionScorer(values, name="f"))
    outside = Metered(Cached(inside, path))
    for _ in range(2):
        outside.score(PAIRS)
        outside.score_grid(QUERIES, ITEMS)
        asyncio.run(outside.ascore(PAIRS))
    assert (outside.calls, inside.calls) == (6 * len(PAIRS), len(PAIRS))


def test_scores_are_stored_after_every_few_pairs(path) -> None:
    def dies_at_last(pairs):
        if ("question 5", "text 39") in pairs:
            raise RuntimeError("out of service")
        return values(pairs)

    cached = Cached(Recording(function=dies_at_last), path, save_every=50)
    with pytest.raises(RuntimeError):
        cached.score(PAIRS)
    assert stored_by(cached) == cached.misses == 200
    with pytest.raises(RuntimeError):
        score_grid(cached, QUERIES, ITEMS)
    assert stored_by(cached) < len(PAIRS)
    cached.scorer.function = values
    assert cached.score(PAIRS).tolist() == np.array(truth(), dtype="float32").tolist()
    assert len(cached.scorer.calls[-1]) <= 50


# --- what is kept


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_comes_from_the_cache_equals_what_the_scorer_gave_bit_for_bit(path, dtype) -> None:
    # What float32 cannot hold is 0 at the door, before any cache.
    tiny = np.finfo("float16" if dtype == "float16" else "float32").smallest_subnormal
    numbers = np.array([0.0, -0.0, tiny, -tiny, 1 / 3, np.finfo(dtype).max, np.finfo(dtype).min, 7.0], dtype=dtype)
    pairs = PAIRS[: len(numbers)]
    cached = Cached(Recording(dtype, function=lambda asked: numbers), path)
    for scores in (cached.score(pairs), cached.score(pairs), score_grid(cached, QUERIES[:1], ITEMS[: len(numbers)])[0]):
        assert scores.dtype == numbers.dtype
        assert scores.tobytes() == numbers.tobytes()
    assert cached.misses == len(numbers)


def test_texts_that_join_to_the_same_are_different_pairs(path) -> None:
    texts = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("c", "ab"), ("bc", "a"), ("x", "x"), ("é", "e\u0301")]
    pairs = [(Query("q", query), Item("i", item)) for query, item in texts]
    for cached in (Cached(Recording("float64"), path), Cached(Recording("float64"), path)):
        assert cached.score(pairs).tolist() == values(texts)
        assert cached.score(pairs[::-1]).tolist() == values(texts[::-1])


def test_lone_surrogates_are_texts_too(path) -> None:
    pairs = [(Query("q", "\ud800"), Item("i", text)) for text in ("\udfff", "?")]
    cached = Cached(Recording(function=lambda asked: list(range(len(asked)))), path)
    assert cached.score(pairs).tolist() == cached.score(pairs).tolist() == [0.0, 1.0]
    assert stored_by(cached) == 2


def test_ids_and_metadata_do_not_matter_but_texts_do(path) -> None:
    scorer = Recording()
    cached = Cached(scorer, path)
    cached.score([(Query("1", "question"), Item("1", "text", {"title": "a"}))])
    cached.score([(Query("2", "question"), Item("2", "text", {"title": "b"}))])
    cached.score([(Query("1", "question"), Item("1", "text "))])
    assert scorer.asked == [("question", "text"), ("question", "text ")]


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        ({"source": "elsewhere"}, True),
        ({"name": "renamed"}, True),
        ({"backend": "onnx"}, False),
        ({"weights": "abd"}, False),
        ({"dtype": "float16"}, False),
        ({"max_tokens": 128}, False),
        ({"max_item_tokens": 128}, False),
        ({"settings": "other"}, False),
        ({"arithmetic": "saturating products"}, False),
        ({"prompt": "another {query} {item}"}, False),
        ({"readout": "odds('Yes', 'No')"}, False),
        ({"weights": None}, False),
    ],
)
def test_scorers_that_differ_never_share_a_score(path, other, shared) -> None:
    card = ScorerCard(name="n", backend="b", weights="abc", dtype="float32", max_tokens=512, max_item_tokens=64)
    Cached(Recording(card=card), path).score(PAIRS)
    changed = Recording(card=dataclasses.replace(card, **other), function=lambda asked: [5.0] * len(asked))
    scores = Cached(changed, path).score(PAIRS)
    assert (len(changed.asked) == 0) is shared
    assert (scores.tolist() == [5.0] * len(PAIRS)) is not shared
    assert Cached(Recording(card=card), path).score(PAIRS).tolist() == np.array(truth(), dtype="float32").tolist()


def test_every_field_of_a_card_was_thought_of() -> None:
    """Decide whether a new field changes scores, and test it above."""
    known = "name backend weights dtype max_tokens max_item_tokens source settings arithmetic prompt readout limited_by"
    assert [field.name for field in dataclasses.fields(ScorerCard)] == known.split()


@pytest.mark.parametrize("name", [None, "values"])
def test_a_function_without_a_name_of_its_own_is_refused(path, name) -> None:
    for wrapped in (FunctionScorer(values, name=name), Metered(FunctionScorer(values, name=name))):
        with pytest.raises(InputError):
            Cached(wrapped, path)
    assert not path.exists()


def test_functions_are_told_apart_by_their_names_and_known_again(path) -> None:
    answers = []
    for number in (1.0, 2.0, 1.0, 2.0):
        scorer = opened_scorer(lambda pairs, number=number: [number] * len(pairs), name=f"model-v{number:.0f}")
        with Cached(Metered(scorer), path) as cached:
            answers.append((float(cached.score(PAIRS[:1])[0]), cached.misses))
    assert answers == [(1.0, 1), (2.0, 1), (1.0, 0), (2.0, 0)]


def test_what_is_not_open_yet_is_not_cached(path) -> None:
    with pytest.raises(InputError):
        Cached("module:function", path)


def test_an_answer_that_cannot_be_right_is_an_error_and_nothing_of_it_is_stored(path) -> None:
    for wrong, error in (
        (lambda pairs: [float("nan")] * len(pairs), NonFiniteScore),
        (lambda pairs: [*values(pairs)[:-1], float("inf")], NonFiniteScore),
        (lambda pairs: values(pairs)[:-1], ScoreCountError),
    ):
        cached = Cached(Recording(function=wrong), path)
        with pytest.raises(error):
            cached.score(PAIRS)
        with pytest.raises(error):
            asyncio.run(cached.ascore(PAIRS))
        assert (stored_by(cached), cached.hits, cached.misses) == (0, 0, 0)
    assert Cached(Recording(), path).score(PAIRS).shape == (len(PAIRS),)


def test_closing_closes_the_scorer_and_what_is_known_can_still_be_read(path) -> None:
    class Closing(Recording):
        closed = False

        def close(self):
            self.closed = True

    with Cached(Closing(), path) as cached:
        cached.score(PAIRS)
    assert cached.scorer.closed
    assert not path.with_name(path.name + "-wal").exists()
    assert cached.score(PAIRS[:3]).shape == (3,)
    cached.close()


@pytest.mark.parametrize("save_every", [1, 37, 16_384])
def test_a_grid_never_asks_for_a_pair_that_is_known(path, save_every) -> None:
    scorer = Recording()
    cached = Cached(scorer, path, save_every=save_every)
    cached.score([PAIRS[at] for at in np.random.default_rng(0).permutation(len(PAIRS))[:100]])
    grid = score_grid(cached, QUERIES, ITEMS)
    assert grid.ravel().tolist() == np.array(truth(), dtype="float32").tolist()
    assert len(scorer.asked) == len(set(scorer.asked)) == len(PAIRS) == cached.misses


# --- threads and coroutines


def test_looking_up_does_not_hold_the_event_loop(path) -> None:
    cached = Cached(Recording(), path)
    loops = []
    find = cached._known.find
    cached._known.find = lambda keys: loops.append(threading.current_thread() is threading.main_thread()) or find(keys)
    asyncio.run(cached.ascore(PAIRS))
    assert loops
    assert not any(loops)


# --- processes


def fill(path, seed, answered) -> None:
    cached = Cached(FunctionScorer(values, name="f", source="s"), path)
    order = np.random.default_rng(seed).permutation(len(PAIRS))
    pairs = [PAIRS[at] for at in order]
    answered.put(cached.score(pairs).tolist() == truth(pairs))


def test_processes_share_a_file_from_its_first_moment_on(path) -> None:
    context = multiprocessing.get_context("spawn")
    answered = context.Queue()
    processes = [context.Process(target=fill, args=(path, seed, answered)) for seed in range(4)]
    for process in processes:
        process.start()
    assert [answered.get(timeout=120) for _ in processes] == [True] * 4
    for process in processes:
        process.join()
    cached = Cached(FunctionScorer(lambda pairs: 1 / 0, name="f", source="s"), path)
    assert cached.score(PAIRS).tolist() == truth()
    assert stored_by(cached) == len(PAIRS)


WRITER = """
import sys, zlib
from adacur.records import Item, Query
from adacur.scorers import (Cached, FunctionScorer)

def values(pairs):
    return [zlib.crc32(f"{query}\\0{item}".encode()) / 2**28 - 8 for query, item in pairs]

cached = Cached(FunctionScorer(values, name="f"), sys.argv[1])
query = Query("q", "question")
for start in range(0, 10**9, 500):
    cached.score([(query, Item("i", f"text {n}")) for n in range(start, start + 500)])
    print(start + 500, flush=True)
"""


@pytest.mark.parametrize("calls", [1, 5, 12])
def test_a_killed_writer_leaves_complete_and_correct_scores(path, calls) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(calls):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    cached = Cached(FunctionScorer(lambda pairs: 1 / 0, name="f"), path)
    # What was answered is stored; of what was under way all or nothing is.
    assert stored_by(cached) >= told
    assert stored_by(cached) % 500 == 0
    pairs = [(Query("q", "question"), Item("i", f"text {n}")) for n in range(stored_by(cached))]
    assert cached.score(pairs).tolist() == truth(pairs)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


FORK = """
import os, sys, threading, time, zlib
from adacur.records import Item, Query
from adacur.scorers import (Cached, FunctionScorer)

asked = threading.Event()
def values(pairs):
    asked.set()
    if parent == os.getpid():
        time.sleep(0.5)
    return [float(len(item)) for query, item in pairs]

parent = os.getpid()
cached = Cached(FunctionScorer(values, name="f"), sys.argv[1])
pairs = [(Query("q", "question"), Item("i", "x" * n)) for n in range(20)]
thread = threading.Thread(target=cached.score, args=(pairs,))
thread.start()
asked.wait()
# The child inherits a claim that nobody there will ever settle, and a connection that is not its own.
child = os.fork()
answers = cached.score(pairs).tolist() if child == 0 else None
if child == 0:
    os._exit(0 if answers == [float(n) for n in range(20)] and cached.hits + cached.misses == 20 else 1)
thread.join()
_, status = os.waitpid(child, 0)
assert status == 0, status
assert cached.score(pairs).tolist() == [float(n) for n in range(20)]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_with_a_connection_of_its_own(path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(path)], check=True, timeout=60)


# --- files that cannot be used


def stored(*statements: str):
    """A cache in which somebody ran statements."""

    def make(path) -> None:
        with Cached(Recording(), path) as cached:
            cached.score(PAIRS)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return make


def foreign(path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE scores (mine TEXT)")


def torn(path) -> None:
    with Cached(Recording(), path) as cached:
        cached.score(PAIRS)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"not a database at all, but long enough to look at" * 100),
        lambda path: path.write_bytes(b"PK\x03\x04"),
        foreign,
        torn,
        stored("CREATE TRIGGER t AFTER INSERT ON scores BEGIN DELETE FROM scores; END"),
        stored("CREATE VIEW v AS SELECT * FROM scores"),
        stored("CREATE TABLE others (a TEXT)"),
        stored("UPDATE scores SET score = 'high'"),
        stored("UPDATE scores SET score = x'0000c07f'"),
        stored("PRAGMA ignore_check_constraints = 1", "UPDATE scores SET score = x'000000'"),
        stored("PRAGMA application_id = 1094931250"),
    ],
    ids=[
        "text",
        "zip",
        "foreign",
        "torn",
        "trigger",
        "view",
        "table",
        "text as score",
        "NaN as score",
        "three bytes as score",
        "other format",
    ],
)
def test_a_file_that_cannot_be_a_cache_is_refused_and_left_alone(path, make) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(FileFormatError), Cached(Recording(), path) as cached:
        cached.score(PAIRS)
    # It may be somebody's only copy of something.
    assert path.read_bytes() == before


def fill_up(cached: Cached) -> None:
    """A real refusal of SQLite, as on a full disk: the file may not grow."""
    with cached._known._connected() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")


def test_scores_that_do_not_fit_are_answered_with_a_warning_and_nothing_stored_is_lost(path) -> None:
    scorer = Recording()
    cached = Cached(scorer, path)
    cached.score(PAIRS[:20])
    fill_up(cached)
    many = [(Query("q", "many"), Item("i", f"text {n}")) for n in range(3000)]
    for _ in range(2):
        with pytest.warns(CacheWarning):
            scores = cached.score([*many, *many])
        assert scores.tolist() == np.array(truth(many) * 2, dtype="float32").tolist()
    # Not one pair twice in a call, stored or not.
    assert len(scorer.asked) == 20 + 2 * 3000
    with pytest.warns(CacheWarning):
        assert score_grid(cached, [many[0][0]], [item for _, item in many])[0].tolist() == scores[:3000].tolist()
    with pytest.warns(CacheWarning):
        assert asyncio.run(cached.ascore(many)).tolist() == scores[:3000].tolist()
    assert cached.score(PAIRS[:20]).tolist() == np.array(truth(PAIRS[:20]), dtype="float32").tolist()
    cached.close()
    assert stored_by(cached) == 20
    assert cached.score(many).tolist() == scores[:3000].tolist()
    assert stored_by(cached) == 3020


class Negated:
    """A scorer of somebody's own, around another one."""

    card = ScorerCard(name="negated", backend="test")

    def __init__(self, scorer) -> None:
        self.scorer = scorer

    def score(self, pairs):
        return -self.scorer.score(pairs)


def test_what_lies_past_a_cache_scores_as_it_does(path) -> None:
    inner = Recording()
    cached = Cached(inner, path)
    for same in (cached, Metered(cached)):
        assert past_cache(same) is inner
    # Another wrapper may change the scores of the cache within.
    for other in (inner, Metered(inner), Negated(cached), Metered(Negated(cached))):
        assert past_cache(other) is other


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_cache_is_readable_by_its_owner_alone(tmp_path) -> None:
    from adacur.extras.server.search_log import SearchLog

    with Cached(FunctionScorer(lambda pairs: [1.0] * len(pairs), name="f"), tmp_path / "scores.sqlite") as cached:
        cached.score([(Query("q", "question"), Item("i", "text"))])
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    SearchLog(tmp_path / "log.sqlite")
    assert stat.S_IMODE((tmp_path / "log.sqlite").stat().st_mode) == 0o600


def test_a_look_up_reads_the_pairs_that_are_wanted_and_no_others(path) -> None:
    with Cached(Recording(), path) as cached:
        cached.score(PAIRS)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {look_up(2)}", (b"q", b"i", b"r", b"j", 1)).fetchall()
    assert any("scorer=? AND query=? AND item=?" in row[3] for row in plan), plan


@pytest.mark.parametrize("is_async", [False, True])
def test_batches_that_were_scored_before_one_failed_are_stored(tmp_path, is_async) -> None:
    broken = {PAIRS[4][1].text}
    called: list[str] = []

    def function(pairs):
        if PAIRS[4][0].text == pairs[0][0] and pairs[0][1] in broken:
            raise ConnectionError
        called.extend(text for _, text in pairs)
        return values(pairs)

    async def awaited(pairs):
        return function(pairs)

    scorer = FunctionScorer(awaited if is_async else function, name="f", batch_size=2, concurrency=1, attempts=1)
    with Cached(scorer, tmp_path / "scores.sqlite") as cached:
        with pytest.raises(ScorerFailed):
            asyncio.run(cached.ascore(PAIRS)) if is_async else cached.score(PAIRS)
        assert (stored_by(cached), cached.misses) == (4, 4)
        broken.clear()
        assert cached.score(PAIRS).tolist() == truth()
    assert len(called) == len(PAIRS)
