from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import AdacurError, EmptyInput, FileFormatError, InputError, UnknownName
from adacur.first_stages import EncoderCard
from adacur_lab.experiments.reproduction import EXPERIMENTS, Sources, experiment_names, reproduce
from adacur_lab.report import read_runs

REPRODUCTION = Path(__file__).parents[1] / "reproduction"
RUNS = """
collections = ["world"]
[anchors]
numbers = [10, 20]
[search]
methods = ["adacur", "rerank", "exact"]
budgets = [10, 20]
rounds = 2
k = [1, 5]
"""
SCATTER = """
collections = ["world"]
[[panel]]
title = "random"
method = "anncur"
budget = 20
anchors = 20
split = 0.999
[[panel]]
title = "by score"
method = "topk_oracle"
budget = 20
anchors = 20
split = 0.999
"""


class CountingEncoder:
    """A vector per word, the same for the same word; counts the texts that it was given."""

    card = EncoderCard(kind="words", dimension=4, weights="v1")

    def __init__(self) -> None:
        self.n_encoded = 0

    def encode_item_tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        self.n_encoded += len(texts)
        return [np.array([self.vector(word) for word in text.split()]) for text in texts]

    encode_query_tokens = encode_item_tokens

    @staticmethod
    def vector(word: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(word.encode())).normal(size=4)


@pytest.fixture
def sources(tmp_path, make_world) -> Sources:
    world = make_world(n_items=60, n_anchors=20, n_test=4, rank=4, noise=0.1)
    scores, data = tmp_path / "scores" / "world", tmp_path / "data" / "world"
    scores.mkdir(parents=True)
    data.mkdir(parents=True)
    every = np.vstack([world.anchor_scores, world.test_scores])
    np.savez(scores / "scores.npz", scores=np.round((every + 16) * 1024).astype(np.uint16))
    rng = np.random.default_rng(0)
    np.save(scores / "dense_items.npy", world.item_embeddings.astype(np.float16))
    np.save(scores / "dense_queries.npy", rng.normal(size=(24, world.item_embeddings.shape[1])).astype(np.float16))
    meta = {"decode": "logit = value / 1024 - 16", "item_ids": [item.id for item in world.items]}
    meta |= {"anchor_query_ids": [one.id for one in world.anchors], "test_query_ids": [one.id for one in world.test]}
    (scores / "meta.json").write_text(json.dumps(meta))
    _lines(data / "corpus.jsonl", [{"_id": item.id, "text": f"item {item.id}"} for item in world.items])
    _lines(data / "queries.jsonl", [{"_id": one.id, "text": one.text} for one in (*world.anchors, *world.test)])
    judged = "".join(f"{one.id}\t{world.items[0].id}\t1\n" for one in world.test)
    (data / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return Sources(tmp_path / "scores", tmp_path / "data")


def _lines(file: Path, records: list[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def _folder(tmp_path: Path, name: str, spec: str) -> Path:
    folder = tmp_path / "reproduction"
    (folder / name).mkdir(parents=True)
    (folder / name / "spec.toml").write_text(spec)
    return folder


def test_results_are_made_once_and_drawn_without_the_scores_afterwards(tmp_path, sources) -> None:
    folder = _folder(tmp_path, "topk-vs-softmax", RUNS)

    first = reproduce("topk-vs-softmax", folder, sources=sources, progress=False)
    again = reproduce("topk-vs-softmax", folder, sources=sources, progress=False)
    drawn = reproduce("topk-vs-softmax", folder)

    # adacur with two numbers of anchors and two budgets, rerank with two budgets, exact once.
    assert (first.made, first.found, first.failed) == (7, 0, ())
    assert (again.made, again.found) == (0, 7)
    assert (drawn.made, drawn.found) == (0, 0)
    assert first.files == drawn.files
    assert {file.name for file in drawn.files} == {"figure.png", "table.md"}
    assert all(file.stat().st_size for file in drawn.files)


def test_a_collection_without_scores_is_named_and_its_stored_runs_are_still_drawn(tmp_path, sources) -> None:
    folder = _folder(tmp_path, "topk-vs-softmax", RUNS.replace('["world"]', '["world", "elsewhere"]'))
    shutil.copytree(sources.scores / "world", sources.scores / "elsewhere")
    shutil.copytree(sources.data / "world", sources.data / "elsewhere")
    reproduce("topk-vs-softmax", folder, sources=sources, progress=False)
    shutil.rmtree(sources.scores / "elsewhere")

    with pytest.warns(UserWarning, match="no scores of elsewhere"):
        made = reproduce("topk-vs-softmax", folder, sources=sources, progress=False)

    assert (made.made, made.found) == (0, 7)
    assert "elsewhere" in (folder / "topk-vs-softmax" / "table.md").read_text()


def test_spectra_are_kept_per_collection_and_made_anew_when_its_scores_change(tmp_path, sources) -> None:
    spec = 'collections = ["world", "later"]\n[anchors]\nnumbers = [20]\n[search]\nmethods = ["exact"]\n'
    spec += '[[panel]]\ntitle = "both"\nlines = { world = "one", later = "two" }\n'
    folder = _folder(tmp_path, "spectrum", spec)
    with pytest.warns(UserWarning, match="no scores of later"):
        first = reproduce("spectrum", folder, sources=sources, progress=False)
    assert (first.made, first.found) == (1, 0)
    for kind in (sources.scores, sources.data):
        shutil.copytree(kind / "world", kind / "later")
    again = reproduce("spectrum", folder, sources=sources, progress=False)
    assert (again.made, again.found) == (1, 1)
    np.savez(sources.scores / "later" / "scores.npz", scores=np.tile(np.arange(60, dtype=np.uint16), (24, 1)))
    assert reproduce("spectrum", folder, sources=sources, progress=False).made == 1
    table = (folder / "spectrum" / "table.md").read_text()
    # The world has rank 4 and some noise; rows that are all alike have nothing left once their mean is out.
    assert re.search(r"\| world +\|.*\| +4 \|", table)
    assert re.search(r"\| later +\|.*\| +0 \| +0 \| +0 \|", table)
    assert {file.name for file in again.files} == {"figure.png", "table.md"}


def test_scores_of_another_scorer_name_the_texts_that_they_share(tmp_path, sources) -> None:
    shutil.copytree(sources.scores / "world", sources.scores / "world-emb")
    meta = json.loads((sources.scores / "world-emb" / "meta.json").read_text())
    (sources.scores / "world-emb" / "meta.json").write_text(json.dumps(meta | {"texts": "world"}))
    folder = _folder(tmp_path, "topk-vs-softmax", RUNS.replace('["world"]', '["world", "world-emb"]'))

    made = reproduce("topk-vs-softmax", folder, sources=sources, progress=False)

    assert (made.made, made.failed) == (14, ())
    assert {run.collection for run in read_runs(folder)[0]} == {"world", "world-emb"}


def test_a_method_is_run_on_its_collections_only(tmp_path, sources) -> None:
    shutil.copytree(sources.scores / "world", sources.scores / "elsewhere")
    shutil.copytree(sources.data / "world", sources.data / "elsewhere")
    spec = RUNS.replace('["world"]', '["world", "elsewhere"]').replace('["adacur", "rerank", "exact"]', '["exact"]')
    folder = _folder(tmp_path, "topk-vs-softmax", spec + '[[method]]\nname = "rerank"\nonly = ["elsewhere"]\n')

    reproduce("topk-vs-softmax", folder, sources=sources, progress=False)

    runs, _ = read_runs(folder)
    assert {(run.collection, run.method) for run in runs} == {
        ("world", "exact"),
        ("elsewhere", "exact"),
        ("elsewhere", "rerank"),
    }


def test_the_row_of_a_collection_without_scores_stays_in_the_table(tmp_path, sources) -> None:
    folder = _folder(tmp_path, "collections", 'collections = ["elsewhere", "world"]\n')
    (folder / "collections" / "results").mkdir()
    stored = folder / "collections" / "results" / "collections.json"
    stored.write_text('[{"collection": "elsewhere", "items": 7}]')

    with pytest.warns(UserWarning, match="no scores of elsewhere"):
        reproduce("collections", folder, sources=sources, progress=False)

    assert [(row["collection"], row["items"]) for row in json.loads(stored.read_text())] == [
        ("elsewhere", 7),
        ("world", 60),
    ]


def test_token_vectors_are_kept_in_the_cache_and_encoded_once(tmp_path, sources, monkeypatch) -> None:
    encoder = CountingEncoder()
    monkeypatch.setenv("ADACUR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("adacur_lab.experiments.sources.open_encoder", lambda name: encoder)
    spec = RUNS + 'first = ["dense", "multi-vector"]\n'
    folder = _folder(tmp_path, "multi-vector", spec)

    first = reproduce("multi-vector", folder, sources=sources, progress=False)
    n_encoded = encoder.n_encoded
    shutil.rmtree(tmp_path / "cache")
    again = reproduce("multi-vector", folder, sources=sources, progress=False)

    # With every run stored, not even the vectors are missed.
    assert (first.made, again.found, again.failed) == (13, 13, ())
    assert encoder.n_encoded == n_encoded
    assert not (folder / "multi-vector" / "results" / "first").exists()


def test_only_the_measures_that_are_drawn_are_kept(tmp_path, sources) -> None:
    folder = _folder(tmp_path, "topk-vs-softmax", RUNS)

    reproduce("topk-vs-softmax", folder, sources=sources, progress=False)

    runs, _ = read_runs(folder)
    assert {name for run in runs for name in run.measures} == {"recall@1", "recall@5", "nDCG@10"}


def test_a_run_that_fails_is_named_and_the_others_are_drawn(tmp_path, sources) -> None:
    spec = RUNS.replace('["adacur", "rerank", "exact"]', '["adacur", "exact"]')
    folder = _folder(tmp_path, "topk-vs-softmax", spec + '[[method]]\nname = "rerank"\nfirst = "nobody"\n')

    made = reproduce("topk-vs-softmax", folder, sources=sources, progress=False)

    assert made.made == 5
    assert len(made.failed) == 2
    assert all("world" in failure and "nobody" in failure for failure in made.failed)
    assert made.files


def test_a_scatter_stores_what_the_anchor_items_say_of_every_item(tmp_path, sources) -> None:
    folder = _folder(tmp_path, "anchor-scatter", SCATTER)

    made = reproduce("anchor-scatter", folder, sources=sources, progress=False)

    with np.load(folder / "anchor-scatter" / "results" / "world.npz") as stored:
        exact, by_score = stored["exact"].astype(float), stored["anchors1"]
        assert [len(stored[f"anchors{place}"]) for place in (0, 1)] == [20, 20]
        assert exact[by_score].min() == np.sort(exact)[-20]
        # Twenty anchor queries, twenty anchor items: these are met exactly.
        assert np.allclose(stored["approximate1"][by_score], exact[by_score], atol=0.06)
    assert (made.made, made.found) == (1, 0)
    assert reproduce("anchor-scatter", folder, sources=sources, progress=False).found == 1


def test_other_panels_are_computed_anew(tmp_path, sources) -> None:
    folder = _folder(tmp_path, "anchor-scatter", SCATTER)
    reproduce("anchor-scatter", folder, sources=sources, progress=False)
    file = folder / "anchor-scatter" / "spec.toml"
    file.write_text(file.read_text().replace("budget = 20", "budget = 10"))

    assert reproduce("anchor-scatter", folder, sources=sources, progress=False).made == 1
    with np.load(folder / "anchor-scatter" / "results" / "world.npz") as stored:
        assert len(stored["anchors0"]) == 10


def test_a_scatter_of_other_scores_is_computed_anew(tmp_path, sources) -> None:
    folder = _folder(tmp_path, "anchor-scatter", SCATTER)
    reproduce("anchor-scatter", folder, sources=sources, progress=False)
    file = sources.scores / "world" / "scores.npz"
    with np.load(file) as stored:
        scores = stored["scores"]
    # Three logits more for an item; the spec is the same.
    scores[:, 7] += 3 * 1024
    np.savez(file, scores=scores)

    assert reproduce("anchor-scatter", folder, sources=sources, progress=False).made == 1
    with np.load(folder / "anchor-scatter" / "results" / "world.npz") as stored:
        assert stored["exact"][7] == scores[20, 7] / 1024 - 16


def test_a_scatter_tells_the_scorers_best_even_where_they_differ_by_a_hair(tmp_path, sources) -> None:
    file = sources.scores / "world" / "scores.npz"
    with np.load(file) as stored:
        scores = stored["scores"]
    # All items of the first test query within a tenth of a logit, the best ones last.
    scores[20] = 20_000 + np.arange(scores.shape[1])
    np.savez(file, scores=scores)
    folder = _folder(tmp_path, "anchor-scatter", SCATTER)

    reproduce("anchor-scatter", folder, sources=sources, progress=False)

    with np.load(folder / "anchor-scatter" / "results" / "world.npz") as stored:
        assert np.argsort(-stored["exact"], kind="stable")[:10].tolist() == list(range(59, 49, -1))


def test_latency_is_measured_anew_with_other_settings(tmp_path, sources) -> None:
    spec = "[latency]\nitems = [50]\nanchors = 10\nbudget = 12\nrounds = [1, 3]\nqueries = 2\n"
    folder = _folder(tmp_path, "latency-vs-rounds", spec)
    reproduce("latency-vs-rounds", folder, sources=sources, progress=False)

    for old, new in (("budget = 12", "budget = 15"), ("anchors = 10", "anchors = 8"), ("queries = 2", "queries = 3")):
        spec = spec.replace(old, new)
        (folder / "latency-vs-rounds" / "spec.toml").write_text(spec)
        assert reproduce("latency-vs-rounds", folder, sources=sources, progress=False).made == 2

    runs, _ = read_runs(folder)
    assert [(run.settings["budget"], run.settings["anchors"], len(run.query_ids)) for run in runs] == [(15, 8, 3)] * 2


def test_latency_is_measured_on_made_up_scores(tmp_path, sources) -> None:
    spec = "[latency]\nitems = [50, 80]\nanchors = 10\nbudget = 12\nrounds = [1, 3]\nqueries = 2\n"
    folder = _folder(tmp_path, "latency-vs-rounds", spec)

    made = reproduce("latency-vs-rounds", folder, sources=sources, progress=False)

    assert made.made == 4
    runs, _ = read_runs(folder)
    assert {run.collection for run in runs} == {"50 items", "80 items"}
    # A single round predicts nothing.
    assert all(("seconds.solve" in run.measures) == (run.settings["rounds"] > 1) for run in runs)
    assert all("seconds.score" not in run.measures for run in runs)
    assert reproduce("latency-vs-rounds", folder, sources=sources, progress=False).found == 4


def test_collections_are_described(tmp_path, sources) -> None:
    folder = _folder(tmp_path, "collections", 'collections = ["world"]\n')

    reproduce("collections", folder, sources=sources, progress=False)

    (row,) = json.loads((folder / "collections" / "results" / "collections.json").read_text())
    assert (row["items"], row["anchor queries"], row["test queries"], row["judged test queries"]) == (60, 20, 4, 4)
    assert "| world | 60 |" in (folder / "collections" / "table.md").read_text()


@pytest.mark.parametrize(
    ("name", "spec", "error"), [("topk-vs-softmax", RUNS, EmptyInput), ("anchor-scatter", SCATTER, EmptyInput)]
)
def test_without_results_there_is_nothing_to_draw(tmp_path, name: str, spec: str, error: type[AdacurError]) -> None:
    with pytest.raises(error, match="results"):
        reproduce(name, _folder(tmp_path, name, spec))


def test_a_folder_without_the_experiment_says_where_it_lives(tmp_path) -> None:
    with pytest.raises(FileFormatError, match=r"repository; .* --folder PATH\.$"):
        reproduce("anchor-scatter", tmp_path)


def test_texts_that_are_missing_are_named(tmp_path, sources) -> None:
    (sources.data / "world" / "corpus.jsonl").unlink()

    with pytest.raises(InputError, match=r"lacks corpus\.jsonl"):
        reproduce("anchor-scatter", _folder(tmp_path, "anchor-scatter", SCATTER), sources=sources)


def test_scores_of_other_collections_are_refused(tmp_path, sources) -> None:
    spec = SCATTER.replace('["world"]', '["elsewhere"]')

    with pytest.raises(EmptyInput, match="elsewhere"):
        reproduce("anchor-scatter", _folder(tmp_path, "anchor-scatter", spec), sources=sources)


def test_an_unknown_experiment_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="recall-vs-rounds"):
        experiment_names("recall-vs-round")
    assert experiment_names("all") == list(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_ships_with_spec_results_and_words(name: str) -> None:
    folder = REPRODUCTION / name

    assert (folder / "spec.toml").exists()
    assert any((folder / "results").rglob("*.*"))
    words = (folder / "README.md").read_text()
    assert EXPERIMENTS[name].claim in words
    for shown in ("figure.png", "table.md"):
        assert (folder / shown).exists() == (shown in words)


def test_all_that_is_shipped_stays_small() -> None:
    assert sum(file.stat().st_size for file in REPRODUCTION.rglob("*") if file.is_file()) < 6 * 2**20
