"""A dual encoder learns a teacher's order, from a plain encoder and from a trained one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from word_worlds import pooled, word_index

from adacur import AnchorIndex, Dense
from adacur.errors import EmptyInput, InputError
from adacur.extras.train import TrainingSettings
from adacur.first_stages import SentenceTransformerEncoder
from adacur_lab.distillation import distill
from tests.unit.scorers.cross_encoders.tiny_models import tiny_transformer

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("sentence_transformers")

from adacur_lab.towers import TowerItems  # noqa: E402

QUICK = TrainingSettings(epochs=2, learning_rate=3e-3, batch_queries=5, patience=None)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("base") / "tiny", layers=1)


def taught(folder: Path, base: Path, *, n_queries: int = 26, top: int = 8, **options):
    index = word_index(n_queries)
    options = {"held_out": 6, "settings": QUICK, "device": "cpu"} | options
    return distill(index, folder, base=base, top=top, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, base):
    """A short run that nothing interrupted."""
    return taught(tmp_path_factory.mktemp("whole") / "model", base)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory, base):
    return taught(
        tmp_path_factory.mktemp("learnt") / "model",
        pooled(base, tmp_path_factory.mktemp("base") / "pooled"),
        n_queries=230,
        top=20,
        held_out=30,
        towers="shared",
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
    liked = np.argsort(-index.matrix, axis=0)[:10].T
    nearest = dense.search(list(index.anchor_queries), 10)
    shares = [np.isin(best, found.positions).mean() for best, found in zip(liked, nearest, strict=True)]
    assert np.mean(shares) > 0.8


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_distilled_encoder_is_a_base_that_begins_where_it_ended(tmp_path, learnt, towers) -> None:
    options = {"n_queries": 60, "top": 20, "settings": replace(QUICK, epochs=1, learning_rate=1e-6)}
    again = taught(tmp_path / "again", learnt.folder, towers=towers, **options)
    assert again.before["top10_recall@10"] > 0.8
    # Separate towers are their own folders.
    assert (again.folder / "query_0_Transformer").exists() == (towers == "separate")


def test_the_better_half_of_the_best_has_equal_shares_and_the_student_s_own_best_have_none(
    tmp_path, base, monkeypatch
) -> None:
    index = word_index(26)
    seen, step = [], TowerItems.step
    monkeypatch.setattr(TowerItems, "step", lambda self, of: (seen.extend(of), step(self, of))[1])
    distill(index, tmp_path / "model", base=base, top=8, held_out=6, settings=QUICK, device="cpu")
    texts = {query.text: column for column, query in enumerate(index.anchor_queries)}
    for text, shown, targets, _ in seen:
        best = np.argsort(-index.matrix[:, texts[text]])[:8]
        assert shown[:8].tolist() == best.tolist()
        assert targets.tolist() == [0.25] * 4 + [0.0] * 56
        assert sorted(shown.tolist()) == list(range(60))


def scored(scores: np.ndarray) -> AnchorIndex:
    index = word_index(26)
    items = index.items.at(range(len(index)))
    return AnchorIndex.from_arrays(items=items, anchor_queries=index.anchor_queries, scores=scores)


def test_the_scale_of_a_teacher_s_scores_changes_nothing(tmp_path, base, whole) -> None:
    options = {"base": base, "top": 8, "held_out": 6, "settings": QUICK, "device": "cpu"}
    assert distill(scored(50 * word_index(26).matrix.T - 7), tmp_path / "model", **options).best == whole.best


def test_a_query_whose_best_items_score_the_same_is_left_out_with_a_warning(tmp_path, base, caplog) -> None:
    scores = word_index(26).matrix.T.copy()
    scores[3] = 7
    options = {"base": base, "top": 8, "held_out": 6, "settings": QUICK, "device": "cpu"}
    assert distill(scored(scores), tmp_path / "model", **options).queries == 2 * (26 - 1 - 6)
    assert "1 of 26 queries are left out, such as 'q3'" in caplog.text
    with pytest.raises(InputError):
        distill(scored(0 * scores), tmp_path / "other", **options)


def test_a_distillation_that_makes_it_worse_says_so_and_keeps_the_base(tmp_path, learnt, caplog) -> None:
    ruinous = replace(QUICK, epochs=1, learning_rate=0.5)
    result = taught(tmp_path / "model", learnt.folder, n_queries=60, top=20, towers="shared", settings=ruinous)
    assert result.best_update == 0
    assert result.best == result.before
    assert "No check was as good as the one before training (top10_recall@" in caplog.text
    weights = [(folder / "model.safetensors").read_bytes() for folder in (result.folder, learnt.folder)]
    assert weights[0] == weights[1]


def test_what_cannot_be_distilled_is_refused(tmp_path, base) -> None:
    for options in ({"held_out": 26}, {"n_queries": 1}, {"top": 61}, {"towers": "both"}):
        with pytest.raises(InputError):
            taught(tmp_path / "model", base, **options)
    with pytest.raises(EmptyInput):
        distill(AnchorIndex.from_items(["a", "b"]), tmp_path / "model", base=base, top=2)
    taught(tmp_path / "model", base, top=4)
    with pytest.raises(InputError):
        taught(tmp_path / "model", base, top=5)
