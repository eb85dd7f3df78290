from __future__ import annotations

import tomllib

import pytest

from adacur.core.errors import FileFormatError, InputError, UnknownName
from adacur.experiments import Spec, spec_text

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
        ({"method": [{"name": "rerank", "split": 0.5}]}, "'rerank' has no key 'split'"),
        ({"collection": {"scores": "scores", "name": "a/b"}}, "name of a folder"),
        ({"collection": {"name": "x"}}, "says where its items are"),
        ({"collection": {"items": "scores/meta.json"}}, "\\[scorer\\] table is needed"),
        ({"collection": [{"scores": "scores"}, {"scores": "scores"}]}, "names of their own"),
        ({"collection": {"scores": "scores", "qrel": "x"}}, "Did you mean 'qrels'"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_door(score_folder, tables, message) -> None:
    with pytest.raises(InputError, match=message):
        spec(tables, score_folder.parent)


def test_an_unknown_method_is_told_with_its_neighbour(score_folder) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'gaussian'"):
        spec({"search": {"methods": ["gausian"]}}, score_folder.parent)


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
