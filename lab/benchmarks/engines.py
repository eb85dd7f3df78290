"""Items in vector engines against the same items in memory: the same searches, what they cost, and a database killed.

    python lab/benchmarks/engines.py --scores DIR [--queries 200] [--engines lancedb,postgres] [--sample N] [--kill]

No anchor queries, k = 10, B = 100, first stage "dense"; engines search exactly. An engine's prior is that of all its
vectors in a small collection, and else of a sample (`--sample`: of so many here too). Counted are the queries for which
an engine's search scores the same items in the same rounds as memory's; of the others, how far their k-th best exact
scores are apart at most. Milliseconds are of a search, of which looking up the scores takes hardly any; the median.
Qdrant runs in its client's memory mode, which is Python and tells nothing of the server's speed.

`--words DATA`, a BEIR folder with the texts of scores that lack them: held-out anchor queries are searched from
"dense+words", without and with what each word of the question adds; the difference has its 95 % interval.

`--kill` ends Postgres with signal 9 in the midst of a search, and tells what that search and the next ones return.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from score_folders import ScoreFolder, read_score_folder

from adacur import AnchorIndex, Item, Query
from adacur.data import read_items, read_queries
from adacur.errors import AdacurError
from adacur.extras.engines import engine_index, search_in
from adacur.protocols import Items
from adacur.records import ItemList
from adacur.results import Hits
from adacur.scorers import FunctionScorer, MatrixScorer
from adacur_lab.known_vectors import KnownVectors

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.engine_tables import ENGINES
from tests.postgres_servers import running_postgres

BUDGET, K = 100, 10


def rounds_of(hits: Hits, items: Items) -> list[set[str]]:
    """The items of each round."""
    return [{item.id for item in one.scored_items(items)} for one in hits.trace.rounds]


def timed(index: AnchorIndex, folder: ScoreFolder) -> tuple[list[Hits], float]:
    """Every query's hits, and the median of milliseconds."""
    answers, took = [], []
    for query in folder.test:
        started = time.perf_counter()
        answers.append(index.search(query, k=K, budget=BUDGET, first="dense"))
        took.append(1000 * (time.perf_counter() - started))
    return answers, statistics.median(took)


def recall(answers: Sequence[Hits], exact: np.ndarray) -> float:
    """The mean share of the k best items by exact score."""
    best = [set(map(str, np.argsort(-row, kind="stable")[:K].tolist())) for row in exact]
    return statistics.mean(len(right & set(hits.ids)) / K for right, hits in zip(best, answers, strict=True))


def compare(folder: ScoreFolder, items: list[Item], names: Sequence[str], work: Path) -> None:
    scorer, dense = MatrixScorer(folder.test, items, folder.test_scores), folder.dense
    encoder, held = dense.open_encoder(), ItemList(items)
    numbered = type(dense).from_embeddings([item.id for item in items], folder.item_embeddings, encoder=encoder)
    here, ms = timed(AnchorIndex.from_items(items, scorer=scorer, first={"dense": numbered}), folder)
    print(f"{folder.domain}: {len(items):,} items, {len(folder.test)} queries")
    print("engine     same items in the same rounds  largest difference of the k-th score  recall@10     ms")
    print(f"{'memory':<10} {'':>29} {'':>37} {recall(here, folder.test_scores):>10.3f} {ms:>6.1f}", flush=True)
    for name in names:
        (work / name).mkdir()
        with closing(ENGINES[name](work / name).filled("items", items, {"dense": folder.item_embeddings})) as store:
            index = search_in(store.store, scorer=scorer, encoder=encoder, vector="dense", check=False)
            there, ms = timed(index, folder)
        same = sum(rounds_of(ours, held) == rounds_of(theirs, held) for ours, theirs in zip(here, there, strict=True))
        apart = max(abs(ours[-1].score - theirs[-1].score) for ours, theirs in zip(here, there, strict=True))
        print(
            f"{name:<10} {same:>22} of {len(there):>3} {apart:>37.1e} "
            f"{recall(there, folder.test_scores):>10.3f} {ms:>6.1f}",
            flush=True,
        )


def compare_words(given: argparse.Namespace, work: Path) -> None:
    """What a search from both stages finds without and with the words of its question as features."""
    folder = read_score_folder(given.scores, n_anchors=0, n_queries=given.queries, held_out=True)
    texts = {item.id: item.text for item in read_items(given.words)}
    asked = {query.id: query.text for query in read_queries(given.words)}
    items = [Item(str(at), texts[item.id]) for at, item in enumerate(folder.items)]
    queries = [Query(query.id, asked[query.id]) for query in folder.test]
    scorer, encoder = MatrixScorer(queries, items, folder.test_scores), KnownVectors(queries, folder.query_embeddings)
    best = [set(map(str, np.argsort(-row, kind="stable")[:K].tolist())) for row in folder.test_scores]
    for name in given.engines.split(","):
        (work / name).mkdir()
        with closing(ENGINES[name](work / name).filled("items", items, {"dense": folder.item_embeddings})) as store:
            found = []
            for adds_words in (False, store.adds_words):
                store.store.adds_words = adds_words
                index = search_in(store.store, scorer=scorer, encoder=encoder, vector="dense", check=False)
                answers = index.search(queries, k=K, budget=BUDGET, first="dense+words")
                found.append([len(right & set(hits.ids)) / K for right, hits in zip(best, answers, strict=True)])
        before, after = map(np.array, found)
        spread = 1.96 * (after - before).std() / len(before) ** 0.5
        print(f"{name:<10} {before.mean():.4f} {after.mean():.4f} ({(after - before).mean():+.4f} ± {spread:.4f})")


def kill(folder: ScoreFolder, items: list[Item], work: Path) -> None:
    """What searches return while their database dies, is away, and is there again."""
    server, known = running_postgres(), MatrixScorer(folder.test, items, folder.test_scores)
    encoder, by_text = folder.dense.open_encoder(), {item.text: item for item in items}
    calls = 0

    def dying(pairs: list[tuple[str, str]]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            server.kill()
        query = {one.text: one for one in folder.test}
        return known.score([(query[text], by_text[item]) for text, item in pairs])

    (work / "killed").mkdir()
    tables = ENGINES["postgres"](work / "killed")
    with closing(tables.filled("items", items, {"dense": folder.item_embeddings})) as store:
        scorer = FunctionScorer(dying, attempts=1)
        index = search_in(store.store, scorer=scorer, encoder=encoder, vector="dense", check=False)
        tell("killed in its second round", index, folder)
        tell("the next search", index, folder)
        server.start()
        tell("after a restart", index, folder)


def tell(when: str, index: AnchorIndex, folder: ScoreFolder) -> None:
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            hits = index.search(folder.test[0], k=K, budget=BUDGET, first="dense")
            said = f"{len(hits)} hits of {hits.trace.calls} calls, stopped by {hits.trace.stopped!r}"
        except AdacurError as error:
            said = f"{type(error).__name__}: {error}"
    print(f"{when}: {said} ({time.perf_counter() - started:.1f} s)")
    for one in caught:
        print(f"    {one.category.__name__}: {one.message}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--engines", default="qdrant,lancedb,postgres")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--words", type=Path, metavar="DATA")
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    if given.sample is not None:
        engine_index._ALL_ROWS, engine_index._SAMPLE = 0, given.sample
    if given.words:
        with tempfile.TemporaryDirectory() as work:
            compare_words(given, Path(work))
        return
    folder = read_score_folder(given.scores, n_anchors=0, n_queries=given.queries)
    # Every engine has whole numbers as ids, and one text is one item.
    items = [Item(str(at), f"{item.text} ({at})") for at, item in enumerate(folder.items)]
    with tempfile.TemporaryDirectory() as work:
        if given.kill:
            kill(folder, items, Path(work))
        else:
            compare(folder, items, given.engines.split(","), Path(work))


if __name__ == "__main__":
    main()
