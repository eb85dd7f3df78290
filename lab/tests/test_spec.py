from __future__ import annotations

import tomllib
from pathlib import Path

import ir_datasets
import pytest

from adacur.errors import FileFormatError, InputError, UnknownName
from adacur_lab.experiments import Spec, evaluate, spec_text
from adacur_lab.experiments.sources import read_records

ZESHEL = Path(__file__).parents[2] / "tests" / "fixtures" / "zeshel"
SCORER = {"source": "nobody:knows"}
SCORES = {"collection": {"scores": "scores"}}


def spec(tables, folder) -> Spec:
    return Spec.from_tables(SCORES | tables, relative_to=folder)


def test_a_spec_needs_no_more_than_a_collection(score_folder) -> None:
    made = spec({}, score_folder.parent)
    assert made.collections[0].name == "scores"
    assert made.collections[0].scores == score_folder
    assert [method.name for method in made.methods] == ["gaussian", "adacur", "anncur", "rerank", "exact"]
    assert (made.budgets, made.ks, made.rounds, made.seeds) == ((25, 50, 100), (1, 10), (5,), (0,))
    assert made.output == score_folder.parent / "results"
    assert made.scorer.source == "ms-marco-MiniLM-L-12-v2"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"serach": {}}, "Did you mean 'search'"),
        ({"search": {"budget": 5}}, "Did you mean 'budgets'"),
        ({"search": {"budgets": [0]}}, "at least 1; got 0"),
        ({"search": {"budgets": []}}, "is empty"),
        ({"search": {"k": [True]}}, "whole number"),
        ({"search": {"errors": 1}}, "true or false"),
        ({"search": 3}, "is a table"),
        ({"anchors": {"number": 3}}, "Did you mean 'numbers'"),
        ({"anchors": {"file": "nowhere.jsonl"}}, "there is no .*nowhere.jsonl"),
        ({"output": {"foldr": "x"}}, "Did you mean 'folder'"),
        ({"scorer": {"sorce": "x"}}, "Did you mean 'source'"),
        ({"scorer": {}}, "needs source"),
        ({"method": [{"first": "dense"}]}, "needs a name"),
        ({"method": [{"name": "rerank", "budget": [50, "many"]}]}, "'rerank' budget is a whole number"),
        ({"method": [{"name": "rerank", "split": 0.5}]}, "'rerank' has no key 'split'"),
        ({"collection": {"scores": "scores", "name": "a/b"}}, "name of a folder"),
        ({"collection": {"name": "x"}}, "says where its items are"),
        ({"collection": {"items": "scores/meta.json"}}, "items but no queries"),
        ({"collection": [{"scores": "scores"}, {"scores": "scores"}]}, "names of their own"),
        ({"collection": {"scores": "scores", "qrel": "x"}}, "Did you mean 'qrels'"),
        ({"collection": {"folder": "x", "items": "scores/meta.json"}}, "one place; got folder and items"),
        ({"collection": {"zeshel": str(ZESHEL)}}, "needs world: one of lighthouses, tea_houses"),
        ({"collection": {"zeshel": str(ZESHEL), "world": "tea_houses", "tags": "no"}}, "true or false"),
        ({"collection": {"zeshel": "nowhere", "world": "x"}}, "there is no .*nowhere"),
        ({"collection": {"folder": "x", "world": "lighthouses"}}, "world belongs to zeshel"),
        ({"collection": {"ir_dataset": 3}}, "ir_dataset is a text"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_door(score_folder, tables, message) -> None:
    with pytest.raises(InputError, match=message):
        spec(tables, score_folder.parent)


def test_an_unknown_method_is_told_with_its_neighbour(score_folder) -> None:
    with pytest.raises(UnknownName, match="'gaussian'"):
        spec({"search": {"methods": ["gausian"]}}, score_folder.parent)


def test_a_world_of_a_zeshel_folder_is_a_collection(word_scorer, tmp_path) -> None:
    tables = {
        "collection": {"zeshel": str(ZESHEL), "world": "lighthouses"},
        "scorer": {"source": word_scorer},
        "anchors": {"numbers": 2},
        "search": {"methods": ["adacur", "bm25"], "budgets": 3, "k": 1, "n_queries": 2, "first": "bm25"},
    }
    made = Spec.from_tables(tables, relative_to=tmp_path)
    (collection,) = made.collections
    assert collection.name == "lighthouses"
    assert "[unused0]" in read_records(collection).queries[0].text

    outcome = evaluate(made, progress=False)
    assert (len(outcome.runs), outcome.failed) == (2, ())
    assert all(run.run.values("nDCG@10").size == 2 for run in outcome.runs)

    tables["collection"]["tags"] = False
    plain = read_records(Spec.from_tables(tables).collections[0])
    assert not any("[unused" in record.text for record in (*plain.items, *plain.queries))


def test_an_unknown_world_is_answered_with_the_known_ones_before_anything_is_scored(tmp_path) -> None:
    tables = {"collection": {"zeshel": str(ZESHEL), "world": "tea_house"}, "scorer": SCORER}
    with pytest.raises(UnknownName, match=r"'tea_houses'.*tea_houses"):
        evaluate(Spec.from_tables(tables, relative_to=tmp_path), progress=False)


def test_a_dataset_of_ir_datasets_is_a_collection(tmp_path, monkeypatch) -> None:
    (tmp_path / "docs.tsv").write_text("d1\tA lamp burns oil.\nd2\tA candle burns wax.\n")
    (tmp_path / "queries.tsv").write_text("q1\twhat burns oil?\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 2\n")
    files = {"docs_tsv": "docs.tsv", "queries_tsv": "queries.tsv", "qrels_trec": "qrels.txt"}
    dataset = ir_datasets.create_dataset(**{name: str(tmp_path / file) for name, file in files.items()})
    monkeypatch.setitem(ir_datasets.registry._registered, "adacur/lights", dataset)

    made = Spec.from_tables({"collection": {"ir_dataset": "adacur/lights"}, "scorer": SCORER}, relative_to=tmp_path)

    assert made.collections[0].name == "adacur-lights"
    records = read_records(made.collections[0])
    assert [item.text for item in records.items] == ["A lamp burns oil.", "A candle burns wax."]
    assert ([query.id for query in records.queries], records.qrels) == (["q1"], {"q1": {"d1": 2}})


def test_a_file_is_named_where_it_is_wrong_and_its_paths_are_relative_to_it(score_folder) -> None:
    file = score_folder.parent / "spec.toml"
    file.write_text('[collection]\nscores = "scores"\n[search]\nbudgets = 5\n[output]\nfolder = "out"\n')
    assert Spec.from_file(file).budgets == (5,)
    assert Spec.from_file(file).output == score_folder.parent / "out"
    for text, message in (("[collection\n", "TOML"), ('[collection]\nscore = "scores"\n', "spec.toml: .*'scores'")):
        file.write_text(text)
        with pytest.raises(FileFormatError, match=message):
            Spec.from_file(file)


def test_written_tables_read_back_as_they_were() -> None:
    tables = {
        "collection": [{"name": "a", "folder": 'with "quotes" and ü'}, {"name": "b", "scores": "c:\\x"}],
        "scorer": {"source": "m", "options": {"max_item_tokens": 64, "fast": True}},
        "search": {"budgets": [25, 50], "pool": None, "first": ["bm25"]},
        "method": [{"name": "anncur", "split": [0.1, 0.9]}],
    }
    read = tomllib.loads(spec_text(tables))
    del tables["search"]["pool"]
    assert read == tables
