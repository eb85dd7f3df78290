"""A dual encoder learns a teacher's order, from a plain encoder and from a trained one."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from adacur import Dense
from adacur.errors import InputError
from adacur.extras.train import TrainingSettings
from adacur.extras.train.dual_encoder import distill, target_shares
from adacur.extras.train.teacher_scores import TeacherRow, TeacherScores
from adacur.extras.train.training_settings import TowerOptions
from adacur.first_stages import SentenceTransformerEncoder
from tests.extras.train.word_worlds import word_index
from tests.unit.scorers.cross_encoders.tiny_models import tiny_transformer

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("sentence_transformers")

from adacur.extras.train.towers import TowerItems  # noqa: E402

TOWERS = [field.name for field in fields(TowerOptions)]
QUICK = TrainingSettings(epochs=2, learning_rate=3e-3, batch_queries=5, patience=None)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("base") / "tiny", layers=1)


def taught(folder: Path, base: Path, *, n_queries: int = 26, top: int = 8, **options):
    index = word_index(n_queries)
    towers = TowerOptions(**{name: options.pop(name) for name in list(options) if name in TOWERS})
    options = {"held_out": 6, "settings": QUICK, "device": "cpu", "towers": towers} | options
    return distill(TeacherScores.from_index(index, top=top), index.items, folder, base=base, **options)


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
    before, best = learnt.before, learnt.best
    assert before["top10_recall@10"] < 0.5
    assert best["top10_recall@10"] > 0.8


def test_dense_retrieval_with_the_result_finds_what_the_teacher_likes(learnt) -> None:
    index = word_index(230)
    items = index.items.at(range(len(index)))
    dense = Dense.build(items, encoder=SentenceTransformerEncoder(learnt.folder))
    liked = TeacherScores.from_index(index, top=10)
    shares = [
        np.isin(row.positions, nearest.positions).mean()
        for row, nearest in zip(liked.rows, dense.search([row.query for row in liked.rows], 10), strict=True)
    ]
    assert np.mean(shares) > 0.8


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_distilled_encoder_is_a_base_that_begins_where_it_ended(tmp_path, learnt, towers) -> None:
    options = {"n_queries": 60, "top": 20, "settings": replace(QUICK, epochs=1, learning_rate=1e-6)}
    again = taught(tmp_path / "again", learnt.folder, towers=towers, **options)
    assert again.before["top10_recall@10"] > 0.8
    # Separate towers are their own folders.
    assert (again.folder / "query_0_Transformer").exists() == (towers == "separate")


def test_the_target_is_equal_shares_of_the_better_half() -> None:
    assert target_shares(np.array([0.0, 2.0, 1.0, -4.0])).tolist() == [0, 0.5, 0.5, 0]


@pytest.mark.parametrize("of_all_items", [True, False])
def test_the_student_s_own_best_are_shown_where_the_teacher_is_known_to_like_them_less(
    tmp_path, base, monkeypatch, of_all_items
) -> None:
    index = word_index(26)
    teacher = replace(TeacherScores.from_index(index, top=8), of_all_items=of_all_items)
    seen, step = [], TowerItems.step
    monkeypatch.setattr(TowerItems, "step", lambda self, of: (seen.extend(of), step(self, of))[1])
    options = {"base": base, "held_out": 6, "settings": QUICK, "device": "cpu"}
    distill(teacher, index.items, tmp_path / "model", **options)
    for _, shown, targets, _ in seen:
        assert len(shown) == (60 if of_all_items else 8)
        assert len(set(shown)) == len(shown)
        assert not targets[8:].any()


def test_the_scale_of_a_teacher_s_scores_changes_nothing(tmp_path, base, whole) -> None:
    index = word_index(26)
    teacher = TeacherScores.from_index(index, top=8)
    larger = replace(teacher, rows=[replace(row, scores=50 * row.scores - 7) for row in teacher.rows])
    options = {"base": base, "held_out": 6, "settings": QUICK, "device": "cpu"}
    assert distill(larger, index.items, tmp_path / "model", **options).best == whole.best


def test_a_distillation_that_makes_it_worse_says_so_and_keeps_the_base(tmp_path, learnt, caplog) -> None:
    ruinous = replace(QUICK, epochs=1, learning_rate=0.5)
    result = taught(tmp_path / "model", learnt.folder, n_queries=60, top=20, towers="shared", settings=ruinous)
    assert result.best_update == 0
    assert result.best == result.before
    assert "No check was as good as the one before training (top10_recall@" in caplog.text
    weights = [(folder / "model.safetensors").read_bytes() for folder in (result.folder, learnt.folder)]
    assert weights[0] == weights[1]


def test_queries_may_have_different_numbers_of_items_and_items_may_be_a_list(tmp_path, base) -> None:
    index = word_index(12)
    full = TeacherScores.from_index(index, top=9)
    sizes = [2 + n % 8 for n in range(12)]
    uneven = TeacherScores(
        [
            TeacherRow(row.query, row.positions[-size:], row.scores[-size:])
            for row, size in zip(full.rows, sizes, strict=True)
        ]
    )
    result = distill(uneven, index.items.at(range(60)), tmp_path / "model", base=base, settings=QUICK, held_out=4)
    assert result.updates == 2 * 2


def test_what_cannot_be_distilled_is_refused_in_words(tmp_path, base) -> None:
    for said, options in {
        "got 26": {"held_out": 26},
        "at least 2 queries": {"n_queries": 1},
        "got 61": {"top": 61},
        "'both'": {"towers": "both"},
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
