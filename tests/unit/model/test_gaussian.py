"""What each part of the Gaussian does, and that it can be left out."""

from __future__ import annotations

import tracemalloc
import weakref

import numpy as np
import pytest

from adacur import AnchorIndex
from adacur.errors import InputError
from adacur.model import GaussianModel, PseudoInverse
from adacur.model.constants import NOISE, QUERY_SCALE, embedding_share, locality
from adacur.model.rank_slopes import RankSlopes
from adacur.model.scale import ScoreScale
from adacur.store import AnchorTable
from tests.conftest import World, make_world


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


@pytest.mark.parametrize("popularity", [0.0, 1.0, 5.0], ids=["means of noise", "means of both", "means to trust"])
@pytest.mark.parametrize("n_stages", [0, 1, 2])
def test_the_prediction_is_the_conditional_mean_written_out(popularity, n_stages) -> None:
    world = make_world(n_items=40, n_anchors=12, n_test=1, noise=0.5)
    rng = np.random.default_rng(3)
    world.anchor_scores[:] += popularity * rng.normal(size=40)
    embeddings = rng.normal(size=(40, 4))
    positions = np.array([3, 17, 25, 31])
    lists = [rng.permutation(40)[:25] for _ in range(n_stages)]
    slopes = None
    if n_stages:
        slopes = RankSlopes(np.array([0.7, -0.2])[:n_stages], np.array([[0.3, 0.1], [0.1, 0.2]])[:n_stages, :n_stages])
    gaussian = GaussianModel(
        embeddings=embeddings,
        embed_queries=embed_queries,
        noise=0.2,
        slopes=slopes,
    )
    state = gaussian.begin(world.index, world.test, [lists])
    state.tell([positions], [world.test_scores[0][positions]])
    predicted = state.in_scores(0, state.predict()[0])

    scale = ScoreScale.of(world.index.matrix)
    rows = scale.rarity(world.index.matrix).T
    vectors, vector = embed_queries(world.index.anchor_queries), embed_queries(world.test)[0]
    vectors, vector = vectors / np.linalg.norm(vectors, axis=1, keepdims=True), vector / np.linalg.norm(vector)
    mean = rows.mean(axis=0)

    def regressed(others: list[int], target: np.ndarray, scores: np.ndarray) -> np.ndarray:
        own = vectors[others]
        kernel = np.exp((own @ own.T - 1) / QUERY_SCALE) + NOISE * np.eye(len(others))
        return np.exp((own @ target - 1) / QUERY_SCALE) @ np.linalg.solve(kernel, scores[others])

    everyone = list(range(12))
    residuals = np.stack(
        [
            rows[left] - mean - regressed([j for j in everyone if j != left], vectors[left], rows - mean)
            for left in everyone
        ]
    )
    weights = np.exp(vectors @ vector / locality(12))
    weights /= weights.sum()
    variance = (residuals**2).mean()
    # Of the means' variance, what the means of 12 such residuals would have by themselves is noise; of a sample's own
    # mean squares, an unbiased estimate takes 11.
    trust = max(0.0, 1 - variance / 11 / mean.var())
    assert {0.0: trust < 0.5, 1.0: 0.3 < trust < 0.95, 5.0: trust > 0.9}[popularity]
    trust += (1 - trust) * np.clip(regressed(everyone, vector, np.ones((12, 1)))[0], 0, 1)
    centred = embeddings - embeddings.mean(axis=0)
    share = embedding_share(12)
    # A query's level varies as much as an item's score.
    covariance = (residuals.T * weights) @ residuals + (1 + share) * variance
    covariance += share * variance * centred @ centred.T / (centred**2).sum(axis=1).mean()
    prior = mean.mean() + trust * (mean - mean.mean()) + regressed(everyone, vector, rows - mean)
    if slopes is not None:
        rise = np.zeros((40, n_stages))
        for stage, listed in enumerate(lists):
            rise[listed, stage] = np.log(1010 / (10 + np.arange(25)))
        prior += rise @ slopes.means
        covariance += rise @ slopes.covariance @ rise.T
    noise = 0.2 * variance * (1 + share) * np.eye(4)
    surprise = scale.rarity(world.test_scores[0][positions]) - prior[positions]
    seen = np.linalg.solve(covariance[np.ix_(positions, positions)] + noise, surprise)
    assert predicted == pytest.approx(scale.score(prior + covariance[:, positions] @ seen), abs=1e-5)


@pytest.mark.parametrize("told_first", [0, 12])
def test_one_product_for_all_queries_and_a_device_predict_the_same(told_first) -> None:
    pytest.importorskip("torch")
    world = make_world(n_anchors=6, noise=0.5)
    rng = np.random.default_rng(3)
    world.anchor_scores[:] += 2 * rng.normal(size=len(world.items))
    ranks = [[rng.permutation(200)[:150], rng.permutation(200)[:30]] for _ in world.test]
    given = {"embeddings": world.item_embeddings, "embed_queries": embed_queries, "slopes": RankSlopes.assumed(2)}
    predicted = []
    for model in (
        GaussianModel(**given),
        GaussianModel(**given).in_one_product(),
        GaussianModel(**given, device="cpu"),
        GaussianModel(**given, device="cpu").in_one_product(),
    ):
        assert 0 < model.features_of(world.index).trust < 1
        state = model.begin(world.index, world.test, ranks)
        where = np.arange(told_first)
        state.tell([where] * len(world.test), [scores[where] for scores in world.test_scores])
        predicted.append(np.stack([np.asarray(row) for row in state.predict()]))
    assert predicted[0].std() > 0.1
    for other in predicted[1:]:
        assert other == pytest.approx(predicted[0], abs=1e-4)


def test_few_anchor_queries_are_not_taken_for_what_all_queries_have_in_common() -> None:
    rng = np.random.default_rng(0)

    def trust(n_anchors: int, popularity: float) -> float:
        world = make_world(n_items=400, n_anchors=n_anchors, rank=40, seed=n_anchors)
        world.anchor_scores[:] += popularity * rng.normal(size=400)
        return GaussianModel(rescale=False).features_of(world.index).trust

    assert trust(60, 0.0) < 0.2
    assert trust(60, 30.0) > 0.99
    # The scores' standard deviation is about 6.3 by the query, and 3 by the item: 9 / (9 + 40 / n) is the item's.
    assert trust(4, 3.0) == pytest.approx(9 / 19, abs=0.15)
    assert trust(20, 3.0) == pytest.approx(9 / 11, abs=0.1)
    assert trust(2, 0.0) < 0.2
    assert trust(1, 0.0) == 0
    assert GaussianModel(centre=False).features_of(make_world(n_anchors=3).index).trust == 1


def test_anchor_queries_that_all_agree_leave_the_ranks_to_tell() -> None:
    world = make_world(n_anchors=8, noise=0.5)
    world.anchor_scores[:] = world.anchor_scores[0] * (1 + 1e-9 * np.arange(8)[:, None])
    state = GaussianModel(noise=0, slopes=RankSlopes.assumed(1)).begin(
        world.index, world.test[:1], [[np.argsort(-world.test_scores[0])]]
    )
    for where in np.split(np.arange(60), 3):
        state.tell([where], [world.test_scores[0][where]])
    assert np.isfinite(state.predict()).all()


def test_items_that_embed_alike_share_what_one_of_them_scored() -> None:
    world = make_world(n_items=30, n_anchors=5, n_test=1)
    world.test_scores[0, 2] = 50.0
    plain = told(GaussianModel(), world, np.array([2])).predict()[0]
    twin = int(plain.argmin())
    embeddings = np.random.default_rng(0).normal(size=(30, 8))
    embeddings[twin] = embeddings[2]
    embedded = told(GaussianModel(embeddings=embeddings), world, np.array([2])).predict()[0]
    assert set(np.argsort(plain - embedded)[:1].tolist()) == {twin}


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

    state = GaussianModel(embed_queries=like_the_fifth).begin(world.index, world.test)
    predicted = state.in_scores(0, state.predict()[0])
    likeness = [np.corrcoef(predicted, scores)[0, 1] for scores in world.index.matrix.T]
    assert np.argmax(likeness) == 4
    assert likeness[4] > 0.9


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


def test_slopes_can_be_changed_without_extracting_the_features_again() -> None:
    world = make_world()
    calls = []

    def counted(queries):
        calls.append(len(queries))
        return embed_queries(queries)

    index = world.index
    first = GaussianModel(embed_queries=counted)
    first.begin(index, world.test)
    other, ranks = first.with_slopes(RankSlopes.assumed(1)), [[np.arange(9)] for _ in world.test]
    calls.clear()
    state = other.begin(index, world.test, ranks)
    assert calls == [len(world.test)]
    seen = np.arange(5)
    state.tell([seen] * len(world.test), [scores[seen] for scores in world.test_scores])
    afresh = GaussianModel(embed_queries=counted, slopes=RankSlopes.assumed(1)).begin(index, world.test, ranks)
    afresh.tell([seen] * len(world.test), [scores[seen] for scores in world.test_scores])
    assert state.predict().tolist() == afresh.predict().tolist()


def test_other_slopes_do_not_read_the_embeddings_again() -> None:
    gaussian = GaussianModel(embeddings=np.ones((3, 2), dtype=np.float32))
    # Refused, whenever they are read.
    gaussian.embeddings[:] = np.nan
    assert gaussian.with_slopes(RankSlopes.assumed(2)).slopes is not None


def test_one_anchor_query_cannot_be_left_out() -> None:
    world = make_world(n_anchors=1)
    with pytest.raises(InputError, match="got 1"):
        GaussianModel().replay(world.index, np.array([0]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": -1},
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


def test_of_long_lists_only_the_ranks_that_count_are_held() -> None:
    world = make_world(n_items=1200, n_anchors=6)
    answer = np.arange(1200)
    held = weakref.ref(answer)
    state = GaussianModel(slopes=RankSlopes.assumed(1)).begin(world.index, world.test[:1], [[answer[:1100]]])
    del answer
    assert held() is None
    assert np.isfinite(state.predict()).all()


@pytest.mark.parametrize("stages", [1, 3])
def test_ranks_of_other_stages_than_the_slopes_are_refused(stages) -> None:
    world = make_world(n_anchors=6)
    model = GaussianModel(slopes=RankSlopes.assumed(2))
    with pytest.raises(InputError, match=rf"2.*{stages}"):
        model.begin(world.index, world.test[:1], [[np.arange(5)] * stages])
    with pytest.raises(InputError, match=rf"2.*{stages}"):
        model.replay(world.index.anchors, np.arange(1), [[np.arange(5)] * stages])


def mistrusted(n_items: int = 200) -> World:
    """A world whose anchor queries are too few for the items' means to be trusted."""
    world = make_world(n_items=n_items, n_anchors=6, noise=0.5)
    world.anchor_scores[:] += 2 * np.random.default_rng(3).normal(size=n_items)
    return world


def test_what_depends_on_the_anchor_queries_alone_is_solved_once(monkeypatch) -> None:
    world, solved = mistrusted(), []
    index, model = world.index, GaussianModel(embed_queries=embed_queries)
    assert 0 < model.features_of(index).trust < 1
    solve = np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda *given: (solved.append(1), solve(*given))[1])
    for _ in range(3):
        model.begin(index, world.test)
    assert len(solved) == 1


def test_predictions_in_one_product_take_no_memory_but_their_own() -> None:
    world = mistrusted(20_000)
    index, model = world.index, GaussianModel().in_one_product()
    state = model.begin(index, world.test * 5)
    assert model.features_of(index).trust < 1
    tracemalloc.start()
    predicted = state.predict()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * predicted.nbytes
