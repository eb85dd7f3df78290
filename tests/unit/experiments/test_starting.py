from __future__ import annotations

import tomllib

import pytest

from adacur.core.errors import InputError, UnknownName
from adacur.experiments import Spec, starting_spec
from adacur.experiments.sources import live_split, prepared
from adacur.experiments.starting import is_edited


def tables(path):
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_the_first_spec_can_be_run_and_names_what_was_chosen(beir_folder, word_scorer, tmp_path) -> None:
    path = starting_spec(beir_folder, scorer=word_scorer, output=tmp_path / "out")
    spec = Spec.from_file(path)
    assert spec.output.resolve() == (tmp_path / "out").resolve()
    assert spec.collections[0].name == "lessons"
    # No budget buys more than all items.
    assert spec.budgets == (25, 40)
    # A fast scorer affords the most, and only judged queries are test queries.
    assert spec.n_queries == 15
    # Fifteen queries are left, too few for a hundred anchors, and forty items yield no hundred different queries.
    assert (spec.anchors.numbers, spec.anchors.pseudo) == ((15,), False)


def test_numbers_that_are_given_are_kept_and_the_scorer_is_not_asked(beir_folder, word_scorer, tmp_path) -> None:
    path = starting_spec(beir_folder, scorer="nobody:knows", output=tmp_path / "out", n_anchors=10, n_queries=5)
    assert tables(path)["anchors"] == {"numbers": [10], "pseudo": False, "seed": 0}
    assert tables(path)["search"]["n_queries"] == 5


def test_a_second_start_keeps_the_queries_of_the_first(beir_folder, word_scorer, tmp_path) -> None:
    output = tmp_path / "out"
    starting_spec(beir_folder, scorer=word_scorer, output=output, n_anchors=10, n_queries=5)
    again = starting_spec(beir_folder, scorer=word_scorer, output=output, search={"methods": ["rerank"]})
    assert tables(again)["anchors"]["numbers"] == [10]
    assert tables(again)["search"] == {
        "budgets": [25, 40],
        "k": [1, 10],
        "methods": ["rerank"],
        "n_queries": 5,
        "seeds": [0],
    }


def test_a_spec_that_was_changed_by_hand_is_never_overwritten(beir_folder, word_scorer, tmp_path) -> None:
    options = {"scorer": word_scorer, "output": tmp_path / "out", "n_anchors": 10, "n_queries": 5}
    path = starting_spec(beir_folder, **options)
    assert not is_edited(path)
    edited = path.read_text().replace("budgets = [25, 40]", "budgets = [7]")
    path.write_text(edited)
    assert is_edited(path)
    with pytest.raises(InputError, match="changed by hand"):
        starting_spec(beir_folder, **options)
    assert path.read_text() == edited


def test_a_first_stage_that_cannot_run_is_refused_before_the_scorer_is_timed(beir_folder, tmp_path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'dense'"):
        starting_spec(beir_folder, scorer="nobody:knows", output=tmp_path / "out", search={"first": "dnse"})
    assert not (tmp_path / "out").exists()


def test_the_results_of_another_folder_are_not_mixed_with(beir_folder, word_scorer, tmp_path) -> None:
    output = tmp_path / "out"
    starting_spec(beir_folder, scorer=word_scorer, output=output, n_anchors=10, n_queries=5)
    other = beir_folder.rename(tmp_path / "others")
    with pytest.raises(InputError, match="Choose another output"):
        starting_spec(other, scorer=word_scorer, output=output)


def test_what_a_spec_would_refuse_is_refused_before_it_is_written(beir_folder, word_scorer, tmp_path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'rerank'"):
        starting_spec(
            beir_folder,
            scorer=word_scorer,
            output=tmp_path / "out",
            n_anchors=9,
            n_queries=5,
            search={"methods": "rerang"},
        )
    assert not (tmp_path / "out").exists()


def test_where_the_fewest_queries_do_not_fit_a_sample_of_the_items_is_taken(
    beir_folder, word_scorer, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("adacur.experiments.starting._FEWEST_ITEMS", 20)
    output = tmp_path / "out"
    options = {"scorer": word_scorer, "output": output, "minutes": 1e-9}
    path = starting_spec(beir_folder, **options)
    assert tables(path)["collection"]["sample"] == 20
    # Runs on a sample are not to be pooled with those of the whole collection.
    assert tables(path)["collection"]["name"] == "lessons-20-items"
    assert tables(path)["search"]["n_queries"] == 5
    assert tables(path)["search"]["budgets"] == [20]
    again = starting_spec(beir_folder, scorer=word_scorer, output=output)
    assert tables(again)["collection"]["sample"] == 20
    (source,) = prepared(Spec.from_file(path))
    assert (len(source.records.items), source.records.sampled_from) == (20, 40)
    # Most of the items would take as long as all of them.
    monkeypatch.setattr("adacur.experiments.starting._FEWEST_ITEMS", 21)
    whole = starting_spec(beir_folder, scorer=word_scorer, output=tmp_path / "other", minutes=1e-9)
    assert "sample" not in tables(whole)["collection"]


def test_a_sample_keeps_every_item_that_is_judged_for_a_test_query(beir_folder, word_scorer, tmp_path) -> None:
    options = {"scorer": word_scorer, "n_anchors": 6, "n_queries": 4}
    whole = Spec.from_file(starting_spec(beir_folder, output=tmp_path / "whole", **options))
    spec = Spec.from_file(starting_spec(beir_folder, output=tmp_path / "out", n_items=10, **options))
    (source,), (full,) = prepared(spec), prepared(whole)
    records = source.records
    test = live_split(records, spec).test
    assert [query.id for query in test] == [query.id for query in live_split(full.records, whole).test]
    judged = {id_ for query in test for id_ in full.records.qrels[query.id]}
    ids = [item.id for item in records.items]
    assert judged <= set(ids)
    assert len(ids) == 10
    assert ids == [item.id for item in full.records.items if item.id in set(ids)]
    assert set(records.qrels) == {query.id for query in test}
    every = starting_spec(beir_folder, output=tmp_path / "all", n_items=4000, **options)
    assert "sample" not in tables(every)["collection"]
