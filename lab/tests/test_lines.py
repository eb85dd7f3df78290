"""Which runs stand in which panel, on which line, under which name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored_runs import contest, run

from adacur.errors import EmptyInput
from adacur.replay import paired_difference
from adacur_lab.report.lines import (
    estimate,
    labels,
    lines,
    panels,
    pooled,
    read_runs,
    replaced,
    setting_words,
    without_sweeps,
)


def test_runs_are_found_at_any_depth_and_other_json_is_counted(tmp_path: Path) -> None:
    run(budget=50).save(tmp_path / "a" / "b" / "one.json")
    run(budget=100).save(tmp_path / "two.json")
    (tmp_path / "notes.json").write_text('{"format": 1}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "broken.json").write_text("{")

    runs, others = read_runs(tmp_path)

    assert sorted(one.settings["budget"] for one in runs) == [50, 100]
    assert [file.name for file in others] == ["broken.json", "list.json", "notes.json"]


def test_beside_the_runs_of_an_evaluation_nothing_is_read(tmp_path: Path) -> None:
    run(budget=50).save(tmp_path / "runs" / "town" / "one.json")
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "manifest.json").write_text("{}")

    runs, others = read_runs(tmp_path)

    assert (len(runs), others) == (1, [])


def test_a_folder_without_a_run_is_told_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")

    with pytest.raises(EmptyInput, match="1 JSON"):
        read_runs(tmp_path)


def test_seeds_are_averaged_query_by_query_so_that_no_query_counts_twice() -> None:
    first = run(recall=0.6, budget=50, seed=0)
    second = run(recall=0.8, budget=50, seed=1)

    [both] = pooled([first, second])

    assert both.query_ids == first.query_ids
    np.testing.assert_allclose(
        both.measures["recall@10"], (first.measures["recall@10"] + second.measures["recall@10"]) / 2
    )
    assert both.settings["seeds"] == [0, 1]
    assert np.isnan(both.measures["nDCG@10"]).sum() == np.isnan(first.measures["nDCG@10"]).sum()


def test_a_query_that_only_one_seed_has_keeps_its_value() -> None:
    [both] = pooled([run(n=2, budget=50, seed=0), run(n=3, budget=50, seed=1)])

    assert both.query_ids == ("q0", "q1", "q2")
    assert both.measures["recall@10"][2] == pytest.approx(run(n=3).measures["recall@10"][2])


def test_a_run_made_again_with_other_scores_replaces_the_old_one() -> None:
    old, new = (
        replace(run(recall=recall, budget=50), made={"at": at}) for recall, at in ((0.1, "2026"), (0.9, "2027"))
    )

    assert pooled([new, old]) == [new]
    assert replaced([new, old]) == [old]


def test_runs_to_other_depths_become_one_with_the_newest_of_each_measure() -> None:
    deep = {"recall@100": np.linspace(0, 1, 30)}
    old = replace(run(recall=0.1, budget=200, k_max=100, measures=deep), made={"at": "2026"})
    # The queries may come in another order.
    ids = tuple(reversed(old.query_ids))
    new = replace(run(recall=0.9, budget=200, k_max=10), query_ids=ids, made={"at": "2027"})

    for given in ([old, new], [new, old]):
        [both] = pooled(given)
        assert both.query_ids == ids
        np.testing.assert_array_equal(both.measures["recall@100"], deep["recall@100"][::-1])
        np.testing.assert_array_equal(both.measures["recall@10"], new.measures["recall@10"])
        assert replaced(given) == []


@pytest.mark.parametrize("other", [{"items": 8, "at": "2026"}, {"embeddings": True, "at": "2026"}])
def test_measures_of_other_items_are_not_merged(other: dict[str, object]) -> None:
    old = replace(run(budget=50, measures={"recall@1": np.ones(30)}), made=other)
    new = replace(run(budget=50), made={"items": 9, "embeddings": False, "at": "2027"})

    assert pooled([old, new]) == [new]
    assert replaced([old, new]) == [old]


def test_measures_of_other_queries_are_not_merged() -> None:
    old = replace(run(budget=50, measures={"recall@1": np.ones(30)}), made={"at": "2026"})
    new = replace(run(budget=50, n=20), made={"at": "2027"})

    assert pooled([old, new]) == [new]
    assert replaced([old, new]) == [old]


def test_real_and_pseudo_anchors_are_lines_of_their_own() -> None:
    runs = [
        replace(run(budget=budget, anchors=50), made={"pseudo_anchors": pseudo})
        for budget in (50, 100)
        for pseudo in (False, True)
    ]

    [panel] = panels([*runs, run("rerank", budget=50), run("rerank", budget=100)])
    [own] = lines([panel], along="budget")
    assert sorted((line.label, line.along) for line in own) == [
        ("gaussian, pseudo anchors", (50, 100)),
        ("gaussian, real anchors", (50, 100)),
        ("rerank", (50, 100)),
    ]
    # Of a kind that all share nothing is said, and of one that was not recorded no kind is claimed.
    assert set(labels(pooled(runs[::2])).values()) == {"gaussian"}
    assert set(labels(pooled([runs[0], run(budget=50, anchors=50)])).values()) == {
        "gaussian, real anchors",
        "gaussian, anchors of unknown kind",
    }


def test_each_scorer_of_a_collection_makes_a_collection_of_its_own() -> None:
    def by(scorer: str | None, *, seed: int = 0, collection: str = "town"):
        made = {"scorer": scorer} if scorer else {}
        return replace(run(budget=50, seed=seed, collection=collection), made=made)

    runs = [by("A"), by("B", seed=1), by(None), by("A", collection="village")]

    titles = ["town · A", "town · B", "town · unknown scorer", "village"]
    assert [(panel.title, len(panel.runs)) for panel in panels(runs)] == [(title, 1) for title in titles]
    assert replaced(runs) == []
    # What was pooled stays as it is, also in part.
    once = pooled(runs)
    assert pooled(once) == once
    assert pooled(once[1:2]) == once[1:2]


def test_seeds_in_another_order_make_no_difference() -> None:
    def seeds(values):
        return pooled(
            run(n=8, budget=50, seed=seed, measures={"recall@10": np.full(8, value)})
            for seed, value in enumerate(values)
        )[0]

    found = paired_difference(seeds([0.1, 0.2, 0.3]), seeds([0.3, 0.2, 0.1]), "recall@10")
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_a_method_without_an_index_stands_in_every_panel() -> None:
    rerank = run("rerank", budget=50)
    shown = panels([run(budget=50, anchors=100), run(budget=50, anchors=500), rerank])

    assert [panel.title for panel in shown] == ["town, 100 anchors", "town, 500 anchors"]
    assert all(rerank in panel.runs for panel in shown)


def test_names_hold_only_what_tells_runs_apart() -> None:
    alike = [run(budget=budget, first="dense", rounds=5) for budget in (50, 100)]
    assert set(labels(alike).values()) == {"gaussian"}

    varied = [*alike, run(budget=50, first="bm25", rounds=5)]
    assert set(labels(varied).values()) == {"gaussian, dense first", "gaussian, bm25 first"}


def test_settings_are_told_in_words() -> None:
    told = {"rounds": 1, "first": "bm25", "epsilon": 0.5, "pool": None, "embeddings": False, "k_masked": 0}
    said = ["1 round", "bm25 first", "ε = 0.5", "no pool", "without embeddings", "none masked"]

    assert [setting_words(name, value) for name, value in told.items()] == said


def test_a_line_never_joins_settings_even_if_they_meet_at_no_budget() -> None:
    apart = [run(budget=budget, rounds=rounds) for budget, rounds in ((50, 5), (100, 5), (200, 10))]

    [own] = lines(panels(apart), along="budget")
    assert [(line.label, line.along) for line in own] == [
        ("gaussian, 5 rounds", (50, 100)),
        ("gaussian, 10 rounds", (200,)),
    ]
    assert set(without_sweeps(apart)) == set(apart)
    # Nor is more rounds at more calls a sweep of rounds.
    [own] = lines(panels(apart[1:]), along="rounds")
    assert [line.along for line in own] == [(5,), (10,)]


def test_how_much_of_the_ranking_was_kept_is_no_choice_of_the_method() -> None:
    [[line]] = lines(panels([run(budget=50, k_max=50), run(budget=200, k_max=100)]), along="budget")

    assert (line.label, line.along) == ("gaussian", (50, 200))


def test_a_sweep_at_one_budget_stays_off_the_lines_though_its_method_has_none_there() -> None:
    swept = [run("adacur", budget=100, rounds=rounds) for rounds in (1, 5)]

    [own] = lines(panels([run(budget=50), run(budget=100), *swept]), along="budget")

    assert [line.label for line in own] == ["gaussian"]


def test_a_sweep_of_rounds_stays_off_the_lines_along_budgets() -> None:
    runs = contest()
    [own] = lines(panels(runs), along="budget")
    assert {line.label: line.along for line in own} == dict.fromkeys(("rerank", "gaussian", "adacur"), (50, 100))

    [swept] = lines(panels(runs), along="rounds")
    assert [(line.label, line.along) for line in swept] == [("adacur", (1, 2, 5, 20))]


def test_runs_without_a_budget_are_no_sweep() -> None:
    exact = run("exact", recall=1.0)

    kept = without_sweeps([*contest(), exact])

    assert exact in kept
    assert {one.settings.get("rounds") for one in kept} == {5, None}


def test_one_query_has_a_mean_and_no_interval() -> None:
    found = estimate(run(n=1, recall=0.5, ndcg=None), "recall@10")

    assert found is not None
    assert (found.mean, found.n) == (0.5, 1)
    assert np.isnan([found.low, found.high]).all()
    assert estimate(run(ndcg=None), "nDCG@10") is None
