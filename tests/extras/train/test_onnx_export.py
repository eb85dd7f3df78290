from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from adacur.data import fetch
from adacur.errors import InputError
from adacur.extras.train import export_onnx
from adacur.records import Item, Query
from adacur.scorers import OnnxCrossEncoder, TorchCrossEncoder, scorer
from tests.unit.scorers.cross_encoders.tiny_models import WORDS, tiny_emb, tiny_transformer

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")


def pairs_of_all_lengths(n: int) -> list[tuple[Query, Item]]:
    """Pairs of 6 to 61 tokens."""
    rng = np.random.default_rng(0)

    def text(most: int) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(1, most)))

    return [(Query(f"q{at}", text(18)), Item(f"i{at}", text(38))) for at in range(n)]


PAIRS = pairs_of_all_lengths(200)


def tiny_export(temporary: pytest.TempPathFactory, kind: str) -> tuple[Path, Path]:
    """A checkpoint of one layer and its ONNX export; `kind` is "bert-cls" or "bert-emb". Takes seconds."""
    style, head = kind.split("-")
    folder = temporary.mktemp(f"tiny-export-{kind}")
    checkpoint = folder / ("base" if head == "cls" else "emb")
    if head == "cls":
        tiny_transformer(checkpoint, style, layers=1)
    else:
        tiny_emb(folder, style, layers=1)
    export_onnx(checkpoint, folder / "graph")
    return checkpoint, folder / "graph"


@pytest.fixture(scope="module", params=["bert-emb", "bert-cls", "roberta-emb"])
def exported(request, tmp_path_factory) -> tuple[Path, Path]:
    """A checkpoint and its export."""
    return tiny_export(tmp_path_factory, request.param)


def written_as(graph: Path, monkeypatch) -> None:
    """Exports write this graph from now on, in place of the seconds that torch takes; what comes after is real."""

    def copied(_: Path, target: Path, *, opset: int) -> None:
        shutil.copytree(graph, target.parent, dirs_exist_ok=True)

    monkeypatch.setattr("adacur.extras.train.onnx_export._write_graph", copied)


def test_the_export_scores_as_torch_does(exported) -> None:
    checkpoint, graph = exported
    with TorchCrossEncoder(checkpoint, device="cpu", dtype="float32") as torch_scorer:
        expected = torch_scorer.score(PAIRS)
    assert np.ptp(expected) > 0.1
    with scorer(graph, threads=1) as opened:
        assert isinstance(opened, OnnxCrossEncoder)
        np.testing.assert_allclose(opened.score(PAIRS), expected, atol=1e-3)
        assert opened.card.dtype == "float32"


@pytest.mark.parametrize("exported", ["bert-emb", "bert-cls"], indirect=True)
def test_an_int8_export_is_smaller_and_keeps_the_order_roughly(exported, tmp_path, monkeypatch) -> None:
    checkpoint, graph = exported
    written_as(graph, monkeypatch)
    export_onnx(checkpoint, tmp_path / "small", int8=True)
    with OnnxCrossEncoder(graph) as whole, OnnxCrossEncoder(tmp_path / "small") as small:
        ranks = [np.argsort(np.argsort(opened.score(PAIRS))) for opened in (whole, small)]
        assert (whole.card.dtype, small.card.dtype) == ("float32", "int8")
    assert np.corrcoef(*ranks)[0, 1] > 0.8
    sizes = [{file.name: file.stat().st_size for file in folder.iterdir()} for folder in (graph, tmp_path / "small")]
    assert sizes[0].keys() == sizes[1].keys()
    assert sizes[1]["model.onnx"] < sizes[0]["model.onnx"]


def test_what_is_no_cross_encoder_is_not_exported(tmp_path) -> None:
    with pytest.raises(InputError):
        export_onnx(tiny_transformer(tmp_path / "two", labels=2), tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_a_dual_encoder_is_not_exported(tmp_path) -> None:
    with pytest.raises(InputError):
        export_onnx(fetch("all-MiniLM-L6-v2"), tmp_path / "graph")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_not_exported_over(tmp_path) -> None:
    model = tiny_transformer(tmp_path / "checkpoint")
    weights = (model / "model.safetensors").read_bytes()
    with pytest.raises(InputError):
        export_onnx(model, model)
    assert (model / "model.safetensors").read_bytes() == weights
    assert not (model / "model.onnx").exists()


@pytest.mark.parametrize("exported", ["bert-cls"], indirect=True)
def test_a_graph_that_scores_otherwise_is_not_kept(exported, tmp_path, monkeypatch) -> None:
    _, graph = exported
    written_as(graph, monkeypatch)
    # Other random weights than those of the graph.
    other = tiny_transformer(tmp_path / "checkpoint", "distilbert")
    with pytest.raises(InputError, match="torch"):
        export_onnx(other, tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
