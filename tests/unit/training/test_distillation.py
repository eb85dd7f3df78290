"""A dual encoder learns a teacher's order, from a plain encoder and from a trained one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacur import Dense, Item, Query, SentenceTransformerEncoder
from adacur.core.errors import InputError
from adacur.core.records import ItemList
from adacur.training import TrainingSettings
from adacur.training.distillation import TeacherExamples, distill, paper_settings
from adacur.training.teacher_scores import TeacherScores
from adacur.training.tower_options import TowerOptions
from tests.unit.scorers.cross_encoders.tiny_models import tiny_transformer
from tests.unit.training.word_worlds import word_index

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("sentence_transformers")

from adacur.training.towers import TowerItems, TowerPair  # noqa: E402

QUICK = TrainingSettings(epochs=2, learning_rate=3e-3, batch_queries=5, checks_per_epoch=2, patience=None)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("base") / "tiny", layers=1)


def taught(folder: Path, base: Path, *, n_queries: int = 26, top: int = 8, **options):
    index = word_index(n_queries)
    asked = {"held_out": 6, "settings": QUICK, "device": "cpu"} | options
    return distill(TeacherScores.from_index(index, top=top), index.items, folder, base=base, **asked)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, base):
    """A short run that nothing interrupted."""
    return taught(tmp_path_factory.mktemp("whole") / "model", base)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory, base):
    return taught(
        tmp_path_factory.mktemp("learnt") / "model",
        base,
        n_queries=230,
        top=20,
        held_out=30,
        towers="shared",
        pooling="mean",
        normalise=True,
        settings=TrainingSettings(epochs=5, learning_rate=5e-3, batch_queries=10, patience=None),
    )


def test_a_plain_encoder_learns_which_items_the_teacher_likes(learnt) -> None:
    before, best = learnt.fitted.before, learnt.fitted.best
    assert before["top10_recall@10"] < 0.5
    assert best["top10_recall@10"] > 0.8
    assert best["held_out_loss"] < before["held_out_loss"] - 0.5


def test_dense_retrieval_with_the_result_finds_what_the_teacher_likes(learnt) -> None:
    index = word_index(230)
    items = index.items.at(range(len(index)))
    dense = Dense.build(items, encoder=SentenceTransformerEncoder(learnt.folder))
    liked = TeacherScores.from_index(index, top=10)
    shares = [
        np.isin(positions, index.items.positions(hits.ids)).mean()
        for positions, hits in zip(liked.positions, dense.search(liked.queries, 10), strict=True)
    ]
    assert np.mean(shares) > 0.8


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_distilled_encoder_is_a_base_that_begins_where_it_ended(tmp_path, learnt, towers) -> None:
    options = {"n_queries": 60, "top": 20, "settings": replace(QUICK, epochs=1, learning_rate=1e-6)}
    again = taught(tmp_path / "again", learnt.folder, towers=towers, **options)
    assert again.fitted.before["top10_recall@10"] > 0.8
    # Separate towers are their own folders.
    assert (again.folder / "query_0_Transformer").exists() == (towers == "separate")


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_the_loss_is_the_cross_entropy_over_all_items_of_the_step_or_with_a_temperature_over_a_query_s_own(
    base, temperature
) -> None:
    items = ItemList([Item(f"i{n}", f"w{n} w{n + 1}") for n in range(8)])
    positions = [np.array([5, 1, 2]), np.array([1, 0, 7, 6])]
    scores = [np.array([3.0, -1.0, 0.5]), np.array([0.0, 2.0, 1.0, -4.0])]
    teacher = TeacherScores([Query("a", "w1 w9"), Query("b", "w3")], positions, scores)
    pair = TowerPair.opened(base, TowerOptions(pooling="mean", normalise=True), half=False)
    in_tokens = TowerItems(pair, items)
    queries = pair.tokens("query", ["w1 w9", "w3"])
    pair.eval()
    with torch.no_grad():
        loss = pair(
            **TeacherExamples(teacher, queries, in_tokens, mined=None, temperature=temperature).collate([1, 0])
        )["loss"]
        dots = (pair.vectors("query", queries) @ in_tokens.vectors.T).numpy().astype(float)
    # The better half of each: item 5 for one query, items 0 and 7 for the other. Items 3 and 4 are in no list.
    best, in_the_step = [[5], [0, 7]], [0, 1, 2, 5, 6, 7]
    by_hand = []
    for row, own, wanted, liked in zip(np.exp(20 * dots), positions, scores, best, strict=True):
        if temperature is None:
            by_hand.append(-np.log(row[liked] / row[in_the_step].sum()).mean())
        else:
            target = np.exp(wanted / temperature) / np.exp(wanted / temperature).sum()
            by_hand.append(-(target * np.log(row[own] / row[own].sum())).sum())
    assert float(loss) == pytest.approx(np.mean(by_hand), rel=1e-4)


@pytest.mark.parametrize(("of_all_items", "temperature"), [(True, None), (False, None), (True, 1.0)])
def test_the_student_s_own_best_are_shown_where_the_teacher_is_known_to_like_them_less(
    tmp_path, base, monkeypatch, of_all_items, temperature
) -> None:
    index = word_index(26)
    teacher = replace(TeacherScores.from_index(index, top=8), of_all_items=of_all_items)
    steps, step = [], TowerItems.step
    monkeypatch.setattr(TowerItems, "step", lambda *args, **of: (steps.append(args), step(*args, **of))[1])
    options = {"base": base, "held_out": 6, "settings": QUICK, "device": "cpu", "temperature": temperature}
    folder = distill(teacher, index.items, tmp_path / "model", **options).folder
    all_shown, all_wanted = ([own for args in steps for own in args[place]] for place in (3, 4))
    for shown, wanted in zip(all_shown, all_wanted, strict=True):
        assert len(shown) == (60 if of_all_items and temperature is None else 8)
        assert len(set(shown)) == len(shown)
        assert not wanted[8:].any()
    assert not list((folder / "training").glob("negatives-*"))


def test_the_scale_of_a_teacher_s_scores_changes_nothing(tmp_path, base, whole) -> None:
    index = word_index(26)
    teacher = TeacherScores.from_index(index, top=8)
    larger = replace(teacher, scores=[50 * own - 7 for own in teacher.scores])
    options = {"base": base, "held_out": 6, "settings": QUICK, "device": "cpu"}
    assert distill(larger, index.items, tmp_path / "model", **options).log == whole.log


def test_a_distillation_that_makes_it_worse_says_so_and_keeps_the_base(tmp_path, learnt, caplog) -> None:
    ruinous = replace(QUICK, epochs=1, learning_rate=0.5)
    result = taught(tmp_path / "model", learnt.folder, n_queries=60, top=20, towers="shared", settings=ruinous)
    assert result.fitted.best_update == 0
    assert result.fitted.best == result.fitted.before
    assert "No check was as good as the one before training (top10_recall@" in caplog.text
    weights = [(folder / "model.safetensors").read_bytes() for folder in (result.folder, learnt.folder)]
    assert weights[0] == weights[1]


def test_items_that_the_student_thinks_impossible_have_a_finite_loss(tmp_path, base) -> None:
    result = taught(tmp_path / "model", base, scale=1e5, settings=replace(QUICK, epochs=1))
    assert 1e3 < result.fitted.before["held_out_loss"] < np.inf


@pytest.mark.parametrize("ends_at", [2, 5, 8])
def test_a_run_that_ended_anywhere_goes_on_to_the_same_losses_and_weights(
    tmp_path, base, whole, monkeypatch, ends_at
) -> None:
    steps, step = 0, TowerItems.step

    def ending(self, *args, **kwargs):
        nonlocal steps
        steps += 1
        if steps == ends_at:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(TowerItems, "step", ending)
    with pytest.raises(KeyboardInterrupt):
        taught(tmp_path / "ended", base)
    monkeypatch.undo()
    resumed = taught(tmp_path / "ended", base)

    def kept(line):
        return {name: value for name, value in line.items() if name != "grad_norm"}

    assert [kept(line) for line in resumed.log] == [kept(line) for line in whole.log]
    for part in ("query_0_Transformer", "document_0_Transformer"):
        written = [(one.folder / part / "model.safetensors").read_bytes() for one in (resumed, whole)]
        assert written[0] == written[1]


def test_settings_are_the_papers_unless_told(tmp_path, base) -> None:
    result = taught(tmp_path / "model", base, n_queries=14, top=2, settings=None)
    begun = json.loads((result.folder / "training" / "run.json").read_text())["settings"]
    assert (begun["epochs"], begun["learning_rate"]) == (10, 1e-5)
    many = TeacherScores([Query("a", "w1")], [np.arange(101)], [np.arange(101.0)])
    assert paper_settings(many).epochs == 4


def test_queries_may_have_different_numbers_of_items_and_items_may_be_a_list(tmp_path, base) -> None:
    index = word_index(12)
    full = TeacherScores.from_index(index, top=9)
    sizes = [2 + n % 8 for n in range(12)]
    uneven = TeacherScores(
        full.queries,
        [own[-size:] for own, size in zip(full.positions, sizes, strict=True)],
        [own[-size:] for own, size in zip(full.scores, sizes, strict=True)],
    )
    result = distill(uneven, index.items.at(range(60)), tmp_path / "model", base=base, settings=QUICK, held_out=4)
    assert np.isfinite(result.fitted.best["held_out_loss"])


def test_what_cannot_be_distilled_is_refused_in_words(tmp_path, base) -> None:
    for said, options in {
        "temperature is a number above 0": {"temperature": 0.0},
        "held_out lies between 1 and": {"held_out": 26},
        "at least 2 queries": {"n_queries": 1},
        "between 2 and the number of items": {"top": 61},
        "'separate' or 'shared'": {"towers": "both"},
    }.items():
        with pytest.raises(InputError, match=said):
            taught(tmp_path / "model", base, **options)
    index = word_index(10)
    teacher = TeacherScores.from_index(index, top=5)
    with pytest.raises(InputError, match="there are 20 items"):
        distill(teacher, index.items.at(range(20)), tmp_path / "model", base=base)
    taught(tmp_path / "model", base, top=4)
    with pytest.raises(InputError, match=r"teacher '.*', now '"):
        taught(tmp_path / "model", base, top=5)
