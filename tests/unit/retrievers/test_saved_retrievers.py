from __future__ import annotations

import json
import subprocess
import sys

import pytest

import adacur.retrievers
from adacur.core.errors import NewerFormat, NotAnIndex, UnknownName
from adacur.retrievers import load_retriever


def test_an_unknown_kind_names_the_known_ones(tmp_path) -> None:
    (tmp_path / "retriever.json").write_text(json.dumps({"kind": "splade", "format": 1}))
    with pytest.raises(UnknownName, match=r"'splade'; known kinds: 'bm25', 'dense', 'multi-vector', 'tfidf'"):
        load_retriever(tmp_path)


def test_a_later_format_asks_for_an_upgrade(tmp_path) -> None:
    (tmp_path / "retriever.json").write_text(json.dumps({"kind": "bm25", "format": 2}))
    with pytest.raises(NewerFormat, match="Upgrade"):
        load_retriever(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_folder_without_a_description_is_refused(tmp_path, content) -> None:
    if content is not None:
        (tmp_path / "retriever.json").write_text(content)
    with pytest.raises(NotAnIndex):
        load_retriever(tmp_path)


def test_importing_the_room_costs_numpy_only() -> None:
    code = (
        "import sys, adacur.retrievers as room; [getattr(room, name) for name in room.__all__];"
        "heavy = {'bm25s', 'Stemmer', 'onnxruntime', 'tokenizers', 'torch', 'sentence_transformers', 'sklearn'};"
        "heavy.add('scipy');"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_what_is_listed_can_be_imported() -> None:
    assert dir(adacur.retrievers) == sorted(adacur.retrievers.__all__)
    with pytest.raises(AttributeError, match="Splade"):
        _ = adacur.retrievers.Splade
