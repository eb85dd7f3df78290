"""What every scorer promises."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from adacur.extras.train import export_onnx
from adacur.protocols import AsyncScorer, Scorer
from adacur.scorers import (
    Cached,
    FunctionScorer,
    HttpScorer,
    JudgeScorer,
    MatrixScorer,
    Metered,
    OnnxCrossEncoder,
    SentenceTransformersScorer,
    TorchCrossEncoder,
    ascore,
    score_grid,
)
from adacur.scorers import scorer as opened_scorer
from adacur.scorers.http_dialects import DIALECTS
from adacur.scorers.score_file import ScoreFile
from tests.judge_servers import JudgeServer, tiny_judge
from tests.rerank_servers import MODEL, RerankServer
from tests.unit.scorers.cross_encoders.tiny_models import (
    ITEMS,
    PAIRS,
    QUERIES,
    tiny_decoder,
    tiny_emb,
    tiny_onnx,
    tiny_transformer,
)

# PyTerrier 1.1 calls pandas 3 in ways that pandas 4 will not take.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")


@dataclass(frozen=True)
class Case:
    """A scorer, and how far two scores of one pair may lie apart."""

    scorer: Scorer
    tolerance: float


def cross_encoder(folder):
    library = pytest.importorskip("sentence_transformers")
    return library.CrossEncoder(str(tiny_transformer(folder)), device="cpu")


def overlaps(pairs: list[tuple[str, str]]) -> list[float]:
    return [len(set(query.split()) & set(item.split())) + len(item) / 7 for query, item in pairs]


async def slow_overlaps(pairs: list[tuple[str, str]]) -> list[float]:
    await asyncio.sleep(0)
    return overlaps(pairs)


def open_case(kind: str, folder) -> Case:
    if kind == "matrix":
        return Case(MatrixScorer(QUERIES, ITEMS, np.random.default_rng(0).normal(size=(len(QUERIES), len(ITEMS)))), 0)
    if kind == "function":
        return Case(FunctionScorer(overlaps, batch_size=9), 0)
    if kind == "async function":
        return Case(FunctionScorer(slow_overlaps), 0)
    if kind == "int8 onnx":
        return Case(OnnxCrossEncoder(tiny_onnx(folder, dynamic=True), threads=2), 0)
    if kind == "float onnx":
        return Case(OnnxCrossEncoder(tiny_onnx(folder)), 1e-4)
    if kind in HOSTS:
        make, wrapper = HOSTS[kind]
        opened = opened_scorer(make(folder))
        assert type(opened) is wrapper
        return Case(opened, 1e-4)
    if kind == "causal torch":
        return Case(TorchCrossEncoder(tiny_decoder(folder, kind="causal"), device="cpu", batch_tokens=400), 1e-4)
    if kind == "emb torch":
        return Case(TorchCrossEncoder(tiny_emb(folder), device="cpu", batch_tokens=400), 1e-4)
    if kind == "emb onnx":
        export_onnx(tiny_emb(folder), folder / "onnx")
        return Case(OnnxCrossEncoder(folder / "onnx"), 1e-4)
    if kind == "float16 torch":
        return Case(TorchCrossEncoder(tiny_transformer(folder), device="cpu", dtype="float16"), 0.05)
    return Case(TorchCrossEncoder(tiny_transformer(folder, kind.split()[1]), device="cpu", batch_tokens=400), 1e-4)


HOSTS = {
    "sentence-transformers": (cross_encoder, SentenceTransformersScorer),
}
KINDS = [
    "matrix",
    "function",
    "async function",
    "int8 onnx",
    "float onnx",
    "torch bert",
    "torch roberta",
    "torch distilbert",
    "float16 torch",
    "causal torch",
    "emb torch",
    "emb onnx",
    *(f"http {kind}" for kind in DIALECTS),
    "judge",
    *HOSTS,
]


# Wrappers promise the same of every scorer; three show it: a function, a model and a service.
WRAPPED = ["function", "int8 onnx", "http tei"]
WRAPPERS = {
    "bare": lambda scorer, folder: scorer,
    "metered": lambda scorer, folder: Metered(scorer),
    "cached": lambda scorer, folder: Cached(scorer, ScoreFile(folder / "scores.sqlite", identity="contract")),
}


@pytest.fixture(scope="module")
def opened(request, tmp_path_factory) -> Iterator[Case]:
    if request.param == "judge":
        with JudgeServer(tiny_judge()) as server, JudgeScorer(server.root, top_logprobs=120) as scorer:
            yield Case(scorer, 1e-4)
        return
    if request.param.startswith("http"):
        kind = request.param.split()[1]
        scores = "probability" if DIALECTS[kind].raw is None else "raw"
        options = {"kind": kind, "model": MODEL, "scores": scores}
        with RerankServer(kind, max_batch=100) as server, HttpScorer(server.root, **options) as scorer:
            yield Case(scorer, 1e-4)
        return
    case = open_case(request.param, tmp_path_factory.mktemp("model"))
    yield case
    if hasattr(case.scorer, "close"):
        case.scorer.close()


@pytest.fixture(scope="module")
def wrapper(request) -> str:
    return request.param


@pytest.fixture
def case(opened, wrapper, tmp_path) -> Case:
    return Case(WRAPPERS[wrapper](opened.scorer, tmp_path), opened.tolerance)


def pytest_generate_tests(metafunc) -> None:
    """Every scorer bare, and three of them in every wrapper."""
    cases = [(kind, wrapper) for kind in KINDS for wrapper in WRAPPERS if wrapper == "bare" or kind in WRAPPED]
    metafunc.parametrize(("opened", "wrapper"), cases, indirect=True, scope="module", ids=map(" ".join, cases))


@pytest.fixture
def scorer(case) -> Scorer:
    return case.scorer


def same(case: Case, left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(left, right, rtol=0, atol=case.tolerance)


def test_there_is_one_score_per_pair_in_order(case) -> None:
    scores = case.scorer.score(PAIRS)
    assert scores.shape == (len(PAIRS),)
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 0.1
    order = np.random.default_rng(0).permutation(len(PAIRS))
    same(case, case.scorer.score([PAIRS[at] for at in order]), scores[order])


def test_a_grid_is_its_pairs(case) -> None:
    pairs = case.scorer.score(PAIRS).reshape(len(QUERIES), len(ITEMS))
    same(case, score_grid(case.scorer, QUERIES, ITEMS), pairs)
    if hasattr(case.scorer, "score_grid"):
        same(case, case.scorer.score_grid(QUERIES, ITEMS), pairs)
        same(case, case.scorer.score_grid(QUERIES[1:2], ITEMS[::-1]), pairs[1:2, ::-1])


def test_awaiting_gives_the_same_scores(case) -> None:
    same(case, asyncio.run(ascore(case.scorer, PAIRS[:9])), case.scorer.score(PAIRS[:9]))
    if isinstance(case.scorer, AsyncScorer):
        same(case, asyncio.run(case.scorer.ascore(PAIRS[:9])), case.scorer.score(PAIRS[:9]))


def test_no_pairs_give_no_scores(scorer) -> None:
    assert scorer.score([]).shape == (0,)
    assert score_grid(scorer, QUERIES, []).shape == (len(QUERIES), 0)
    assert score_grid(scorer, [], ITEMS).shape == (0, len(ITEMS))
    assert asyncio.run(ascore(scorer, [])).shape == (0,)


def test_a_pair_scores_the_same_in_any_batch(case) -> None:
    together = case.scorer.score(PAIRS)
    for size in (1, 4):
        parts = [case.scorer.score(PAIRS[start : start + size]) for start in range(0, 16, size)]
        same(case, np.concatenate(parts), together[:16])
    same(case, case.scorer.score([*PAIRS[:5], *PAIRS[:5]]), np.tile(together[:5], 2))


def test_its_card_is_stable_and_fits_into_json(scorer) -> None:
    written = json.dumps(dataclasses.asdict(scorer.card))
    scorer.score(PAIRS[:2])
    assert json.dumps(dataclasses.asdict(scorer.card)) == written
    assert scorer.card.name
    assert scorer.card.backend


def test_eight_threads_get_the_same_answers(case) -> None:
    expected = case.scorer.score(PAIRS[:20])
    with ThreadPoolExecutor(8) as threads:
        for scores in threads.map(case.scorer.score, [PAIRS[:20]] * 8):
            same(case, scores, expected)


def test_the_pairs_given_are_left_alone(scorer) -> None:
    pairs = list(PAIRS[:6])
    scorer.score(pairs)
    assert pairs == PAIRS[:6]
    assert scorer.score(tuple(pairs)).shape == (6,)
