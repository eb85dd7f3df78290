from __future__ import annotations

import subprocess
import sys

import pytest

import adacur.scorers
from adacur.core.errors import InputError, UnknownName
from adacur.core.records import Item, Query
from adacur.scorers import FunctionScorer, MatrixScorer, OnnxCrossEncoder, TorchCrossEncoder, scorer
from tests.unit.scorers.tiny_models import tiny_onnx, tiny_transformer

PAIR = (Query("q", "xx"), Item("i", "yyy"))


def lengths(pairs):
    return [len(query) + len(item) for query, item in pairs]


NOTHING = None
KNOWN = MatrixScorer(["q"], ["i"], [[1.0]])


def test_a_scorer_stays_what_it_is() -> None:
    assert scorer(KNOWN) is KNOWN
    with pytest.raises(InputError, match=r"no options; got \['threads'\]"):
        scorer(KNOWN, threads=2)


def test_a_function_becomes_a_scorer() -> None:
    opened = scorer(lengths, name="lengths", batch_size=5)
    assert isinstance(opened, FunctionScorer)
    assert opened.score([PAIR]).tolist() == [5.0]


def test_a_function_is_found_by_its_name_and_keeps_it() -> None:
    opened = scorer(f"{__name__}:lengths")
    assert opened.score([PAIR]).tolist() == [5.0]
    assert opened.card.source == f"{__name__}:lengths"
    assert scorer(f"{__name__}:KNOWN") is KNOWN


def test_folders_and_files_are_told_apart(tmp_path) -> None:
    graph, checkpoint = tiny_onnx(tmp_path / "graph"), tiny_transformer(tmp_path / "checkpoint")
    for source in (graph, str(graph), graph / "model.onnx"):
        with scorer(source, threads=1, max_tokens=40) as opened:
            assert isinstance(opened, OnnxCrossEncoder)
            assert opened.card.max_tokens == 40
    with scorer(str(checkpoint), device="cpu") as opened:
        assert isinstance(opened, TorchCrossEncoder)


@pytest.mark.parametrize(
    "source", ["no-such-thing", "", "no.such.module:f", f"{__name__}:missing", "a/b/c", 3, NOTHING]
)
def test_what_nobody_knows_is_refused(source) -> None:
    with pytest.raises(UnknownName):
        scorer(source)


def test_the_refusal_lists_what_is_accepted(tmp_path) -> None:
    with pytest.raises(UnknownName, match=r"'module:function'.*\.onnx.*config\.json.*'org/name'"):
        scorer(tmp_path)


def test_a_module_that_misses_an_import_of_its_own_is_not_called_absent(tmp_path, monkeypatch) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        scorer("needs_more:f")


def test_every_public_name_can_be_imported() -> None:
    for name in adacur.scorers.__all__:
        assert getattr(adacur.scorers, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = adacur.scorers.nonsense


def test_importing_the_room_imports_no_model_library() -> None:
    program = (
        "import sys, adacur.scorers\n"
        "heavy = {'torch', 'transformers', 'onnxruntime', 'tokenizers', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
