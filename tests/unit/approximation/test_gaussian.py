"""What each part of the Gaussian does, and that it can be left out."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import AnchorIndex
from adacur.approximation import GaussianModel, PseudoInverse
from adacur.approximation.item_factors import ScoreScale
from adacur.core.errors import InputError
from adacur.index import AnchorTable
from tests.conftest import make_world


def embed_queries(queries):
    """A vector that belongs to the query's id."""
    return np.stack([np.random.default_rng(list(query.id.encode())).normal(size=6) for query in queries])


def told(approximator, world, positions):
    state = approximator.begin(world.index, world.test)
    state.tell([positions] * len(world.test), [scores[positions] for scores in world.test_scores])
    return state


@pytest.mark.parametrize("n_told", [5, 20, 45], ids=["fewer than anchors", "as many", "more than anchors"])
def test_with_every_part_left_out_it_is_the_paper_s_pseudo_inverse(n_told) -> None:
    world = make_world(n_anchors=20, noise=0.5)
    positions = np.random.default_rng(0).permutation(len(world.items))[:n_told]
    bare = told(GaussianModel(noise=0, rescale=False, centre=False), world, positions)
    paper = told(PseudoInverse(), world, positions)
    assert bare.predict() == pytest.approx(paper.predict(), abs=2e-4)


def test_the_prediction_is_the_conditional_mean_written_out() -> None:
    world = make_world(n_items=40, n_anchors=12, n_test=1, noise=0.5)
    embeddings = np.random.default_rng(3).normal(size=(40, 4))
    positions = np.array([3, 17, 25, 31])
    gaussian = GaussianModel(
        embeddings=embeddings,
        embed_queries=embed_queries,
        noise=0.2,
        embedding_weight=0.7,
        query_noise=0.4,
        locality=0.5,
    )
    state = told(gaussian, world, positions)
    predicted = state.in_scores(state.predict())[0]

    scale = ScoreScale.of(world.index.matrix)
    rows = scale.rarity(world.index.matrix).T
    vectors, vector = embed_queries(world.index.anchor_queries), embed_queries(world.test)[0]
    vectors, vector = vectors / np.linalg.norm(vectors, axis=1, keepdims=True), vector / np.linalg.norm(vector)
    mean = rows.mean(axis=0)

    def regressed(others: list[int], target: np.ndarray) -> np.ndarray:
        own = vectors[others]
        kernel = np.exp((own @ own.T - 1) / 0.2) + 0.4 * np.eye(len(others))
        return mean + np.exp((own @ target - 1) / 0.2) @ np.linalg.solve(kernel, rows[others] - mean)

    everyone = list(range(12))
    residuals = np.stack(
        [rows[left] - regressed([j for j in everyone if j != left], vectors[left]) for left in everyone]
    )
    weights = np.exp(vectors @ vector / 0.5)
    weights /= weights.sum()
    variance = (residuals**2).mean()
    centred = embeddings - embeddings.mean(axis=0)
    covariance = (residuals.T * weights) @ residuals + 0.5 * variance
    covariance += 0.7 * variance * centred @ centred.T / (centred**2).sum(axis=1).mean()
    prior = regressed(everyone, vector)
    noise = 0.2 * variance * 1.7 * np.eye(4)
    surprise = scale.rarity(world.test_scores[0][positions]) - prior[positions]
    seen = np.linalg.solve(covariance[np.ix_(positions, positions)] + noise, surprise)
    assert predicted == pytest.approx(scale.score(prior + covariance[:, positions] @ seen), abs=1e-5)


def test_items_that_embed_alike_share_what_one_of_them_scored() -> None:
    world = make_world(n_items=30, n_anchors=5, n_test=1)
    world.test_scores[0, 2] = 50.0
    plain = told(GaussianModel(), world, np.array([2])).predict()[0]
    twin = int(plain.argmin())
    embeddings = np.random.default_rng(0).normal(size=(30, 8))
    embeddings[twin] = embeddings[2]
    embedded = told(GaussianModel(embeddings=embeddings, embedding_weight=20.0), world, np.array([2])).predict()[0]
    assert set(np.argsort(-embedded)[:2].tolist()) == {2, twin}


def test_without_anchor_queries_the_embeddings_alone_predict() -> None:
    world = make_world(n_items=200, n_anchors=2, n_test=4, rank=6)
    state = GaussianModel(embeddings=world.item_embeddings, noise=0.01).begin(
        AnchorTable(world.index.items, (), np.empty((len(world.items), 0))), world.test
    )
    seen = np.arange(60)
    state.tell([seen] * 4, [scores[seen] for scores in world.test_scores])
    for predicted, exact in zip(state.predict(), world.test_scores, strict=True):
        assert np.corrcoef(predicted[60:], exact[60:])[0, 1] > 0.4


def test_an_anchor_query_like_the_new_one_leads_before_anything_is_scored() -> None:
    world = make_world(n_anchors=20, n_test=1, noise=0.5)
    nearest = world.index.anchor_queries[4]

    def like_the_fifth(queries):
        return np.stack([embed_queries([nearest if query is world.test[0] else query])[0] for query in queries])

    state = GaussianModel(embed_queries=like_the_fifth, query_noise=1e-3).begin(world.index, world.test)
    expected = world.index.matrix[:, 4]
    assert state.in_scores(state.predict())[0] == pytest.approx(expected, abs=0.1)


def test_chances_rise_with_the_prediction_and_fall_with_the_score_to_beat() -> None:
    world = make_world(n_items=50, n_anchors=30, n_test=1, noise=1.0)
    state = told(GaussianModel(), world, np.arange(20))
    predicted = np.sort(state.predict()[0][20:])
    best = np.array([50.0, 0.0, -50.0])
    chances = state.chance_above(0, predicted, best, ranks=np.array([1, 2, 3]))
    assert chances.shape == (30, 3)
    assert (np.diff(chances, axis=0) >= 0).all()
    assert (np.diff(chances, axis=1) >= 0).all()
    assert chances.min() >= 0
    assert chances.max() <= 1


def test_chances_do_not_depend_on_the_unit_of_the_scores() -> None:
    world = make_world(n_items=50, n_anchors=30, n_test=1, noise=1.0)
    wide = AnchorIndex.from_arrays(
        items=world.items, anchor_queries=world.index.anchor_queries, scores=1000 * world.index.matrix.T
    )
    plain, stretched = (GaussianModel(rescale=False).begin(index, world.test) for index in (world.index, wide))
    plain.tell([np.arange(20)], [world.test_scores[0, :20]])
    stretched.tell([np.arange(20)], [1000 * world.test_scores[0, :20]])
    ranks = np.array([1])
    chances = plain.chance_above(0, plain.predict()[0][20:], np.array([1.0]), ranks=ranks)
    assert stretched.chance_above(0, stretched.predict()[0][20:], np.array([1000.0]), ranks=ranks) == pytest.approx(
        chances, rel=1e-3
    )


def test_settings_can_be_changed_without_extracting_the_features_again() -> None:
    world = make_world()
    calls = []

    def counted(queries):
        calls.append(len(queries))
        return embed_queries(queries)

    index = world.index
    first = GaussianModel(embed_queries=counted)
    first.begin(index, world.test)
    other = first.adjusted(noise=3.0, embedding_weight=None, locality=None)
    assert (first.noise, other.noise) == (0.3, 3.0)
    calls.clear()
    state = other.begin(index, world.test)
    assert calls == [len(world.test)]
    seen = np.arange(5)
    state.tell([seen] * len(world.test), [scores[seen] for scores in world.test_scores])
    afresh = told(GaussianModel(embed_queries=counted, noise=3.0), world, seen)
    assert state.predict().tolist() == afresh.predict().tolist()


def test_a_setting_given_none_is_chosen_by_the_number_of_anchor_queries_again() -> None:
    world = make_world()
    own = GaussianModel(embeddings=world.item_embeddings, embedding_weight=9.0, locality=5.0)
    seen, usual = np.arange(5), GaussianModel(embeddings=world.item_embeddings)
    again = own.adjusted(noise=usual.noise, embedding_weight=None, locality=None)
    assert told(again, world, seen).predict().tolist() == told(usual, world, seen).predict().tolist()


def test_adjusting_settings_does_not_read_the_embeddings_again() -> None:
    gaussian = GaussianModel(embeddings=np.ones((3, 2), dtype=np.float32))
    # Refused, whenever they are read.
    gaussian.embeddings[:] = np.nan
    assert gaussian.adjusted(noise=1.0, embedding_weight=2.0, locality=3.0).embedding_weight == 2.0
    with pytest.raises(InputError, match="noise"):
        gaussian.adjusted(noise=-1.0, embedding_weight=None, locality=None)


def test_one_anchor_query_cannot_be_left_out() -> None:
    world = make_world(n_anchors=1)
    with pytest.raises(InputError, match="two anchor queries"):
        GaussianModel().replay(world.index, np.array([0]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": -1},
        {"embedding_weight": -1},
        {"query_noise": 0},
        {"locality": 0},
        {"embeddings": np.full((3, 2), np.nan)},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))}|Embeddings"):
        GaussianModel(**wrong)


def test_query_vectors_that_do_not_fit_are_refused() -> None:
    world = make_world()
    with pytest.raises(InputError, match="a finite vector per query"):
        GaussianModel(embed_queries=lambda queries: np.ones((1, 3))).begin(world.index, world.test)
