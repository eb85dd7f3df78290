"""A scorer as an MTEB model that searches: real tasks of local data, run by MTEB itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adacur.errors import AdacurError, InputError
from tests.living_world import Counted, Encoder, item, query, score

pytest.importorskip("mteb")

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata

from adacur_lab.mteb import AdacurSearch

DOCUMENTS = {f"d{number}": item(number).text for number in range(120)}
# A title and a text, as MTEB has them.
CORPUS = [{"id": id_, "title": text.split()[0], "text": " ".join(text.split()[1:])} for id_, text in DOCUMENTS.items()]
QUERIES = {f"t{number}": f"a thing that is {word}" for number, word in enumerate(("tall", "cheap", "new", "soft"))}


def exact(text: str) -> dict[str, float]:
    return dict(zip(DOCUMENTS, score([(text, document) for document in DOCUMENTS.values()]), strict=True))


def best(text: str, n: int) -> list[str]:
    scores = exact(text)
    return sorted(scores, key=scores.__getitem__, reverse=True)[:n]


def task(kind: str = "Retrieval", top_ranked: dict[str, list[str]] | None = None) -> AbsTaskRetrieval:
    """A task in which the judges agree with the scorer about the best five."""

    class Things(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=f"Things{kind}",
            description="Things and their properties.",
            type=kind,
            category="t2t",
            dataset={"path": "local/things", "revision": "1"},
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            split = RetrievalSplitData(
                corpus=Dataset.from_list(CORPUS),
                queries=Dataset.from_list([{"id": id_, "text": text} for id_, text in QUERIES.items()]),
                relevant_docs={id_: dict.fromkeys(best(text, 5), 1) for id_, text in QUERIES.items()},
                top_ranked=top_ranked,
            )
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Things()


def evaluate(model: AdacurSearch, what: AbsTaskRetrieval) -> dict[str, float]:
    result = mteb.evaluate(
        model, what, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs={"show_progress_bar": False}
    )
    (scores,) = result.task_results[0].scores["test"]
    return scores


def test_mteb_knows_it_as_a_model_that_searches() -> None:
    assert isinstance(AdacurSearch(scorer=score), mteb.SearchProtocol)


def test_a_task_is_evaluated_within_the_budget_of_each_query() -> None:
    scorer = Counted()
    model = AdacurSearch(scorer=scorer, n_anchors=20, budget=60)

    scores = evaluate(model, task())

    assert scores["ndcg_at_10"] > 0.8
    assert scores["recall_at_100"] > 0.8
    assert scorer.calls == 20 * len(DOCUMENTS) + 60 * len(QUERIES)


def test_a_budget_for_everything_finds_what_the_scorer_likes_best() -> None:
    assert evaluate(AdacurSearch(scorer=score, n_anchors=5, budget=120), task())["ndcg_at_10"] == 1.0


def test_everything_that_was_scored_is_returned_with_its_exact_score() -> None:
    model = AdacurSearch(scorer=score, n_anchors=10, budget=30)
    what = {"task_metadata": task().metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
    model.index(CORPUS, **what, num_proc=None)
    queries = [{"id": id_, "text": text} for id_, text in QUERIES.items()]

    found = model.search(queries, **what, num_proc=None, top_k=1000)
    fewer = model.search(queries, **what, num_proc=None, top_k=4)

    assert {id_: len(documents) for id_, documents in found.items()} == dict.fromkeys(QUERIES, 30)
    for id_, text in QUERIES.items():
        scores = exact(text)
        assert found[id_] == {document: scores[document] for document in found[id_]}
        assert list(fewer[id_]) == list(found[id_])[:4]
        assert list(found[id_].values()) == sorted(found[id_].values(), reverse=True)


def test_documents_to_re_rank_are_all_scored_and_nothing_else_is() -> None:
    scorer = Counted()
    given = {id_: [*best(text, 2), "d7", "d8"] for id_, text in QUERIES.items()}

    scores = evaluate(AdacurSearch(scorer=scorer, n_anchors=20), task("Reranking", given))

    assert scorer.calls == sum(len(set(documents)) for documents in given.values())
    assert scores["recall_at_5"] >= 2 / 5
    assert scores["mrr_at_10"] == 1.0


def test_what_has_no_text_is_not_found_and_finds_nothing() -> None:
    model = AdacurSearch(scorer=score, n_anchors=10, budget=30)
    what = {"task_metadata": task().metadata, "hf_split": "test", "hf_subset": "default", "top_k": 1000}
    model.index([*CORPUS[:29], {"id": "bare", "title": "", "text": " "}], **what)
    queries = [{"id": "t0", "text": QUERIES["t0"]}, {"id": "blank", "text": " "}]

    found = model.search(queries, **what)
    ranked = model.search(queries, **what, top_ranked={"t0": ["d1", "bare"], "blank": ["d1"]})

    assert found.keys() == ranked.keys() == {"t0", "blank"}
    assert set(found["t0"]) == {row["id"] for row in CORPUS[:29]}
    assert set(ranked["t0"]) == {"d1"}
    assert found["blank"] == ranked["blank"] == {}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"budgt": 30}, "budgt"),
        ({"k": 20, "budget": 10}, "k=20, budget=10"),
        ({"method": "magic"}, "magic"),
    ],
)
def test_what_the_searches_would_refuse_is_refused_before_an_index_is_paid_for(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(AdacurError, match=told):
        AdacurSearch(scorer=score, **options)


def test_an_index_that_is_kept_is_not_scored_again(tmp_path: Path) -> None:
    scorer = Counted()
    options = {"n_anchors": 10, "budget": 20, "folder": tmp_path, "first": "dense", "encoder": Encoder()}
    first = evaluate(AdacurSearch(scorer=scorer, **options), task())
    paid = scorer.calls

    assert evaluate(AdacurSearch(scorer=scorer, **options), task()) == first
    # 32 calls recognise a function.
    assert scorer.calls - paid == 32 + 20 * len(QUERIES)
    assert [folder.name for folder in tmp_path.iterdir()] == ["ThingsRetrieval-default-test.adacur"]


def test_results_are_filed_under_the_scorer_and_the_settings() -> None:
    meta = AdacurSearch(scorer=score, budget=50, rounds=3, anchor_queries=[query(1), query(2)]).mteb_model_meta

    assert meta.name == "adacur/score"
    assert meta.experiment_kwargs == {
        "first": "bm25",
        "n_anchors": 2,
        "k": 10,
        "method": "gaussian",
        "seed": 0,
        "budget": 50,
        "rounds": 3,
        "fuse": 0.0,
    }
    assert meta.experiment_name != AdacurSearch(scorer=score, budget=60).mteb_model_meta.experiment_name


def test_what_mteb_cannot_use_is_refused() -> None:
    with pytest.raises(InputError, match="filter"):
        AdacurSearch(scorer=score, fuse=0.5)
    with pytest.raises(InputError, match="Encoder"):
        AdacurSearch(scorer=score, first=Encoder())
    model = AdacurSearch(scorer=score)
    where = {"task_metadata": task().metadata, "hf_split": "test", "hf_subset": "default"}
    with pytest.raises(InputError, match="indexed"):
        model.search([], **where, top_k=10)
    model.index(CORPUS[:9], **where)
    with pytest.raises(InputError, match="is a list, not a text"):
        model.search([{"id": "t", "text": [{"role": "user", "content": "hello"}]}], **where, top_k=10)
