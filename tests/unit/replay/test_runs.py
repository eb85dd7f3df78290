from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adacur.errors import FileFormatError, InputError
from adacur.replay import Run


def test_a_stored_run_comes_back_as_it_was(tmp_path: Path) -> None:
    run = Run("c", "m", {"budget": 100}, ("a", "ü"), {"recall@10": np.array([0.1, np.nan])}, {"version": "1"})
    run.save(tmp_path / "new" / "run.json")
    back = Run.load(tmp_path / "new" / "run.json")
    assert (back.collection, back.method, back.settings, back.query_ids, back.made) == (
        "c",
        "m",
        {"budget": 100},
        ("a", "ü"),
        {"version": "1"},
    )
    assert back.measures["recall@10"] == pytest.approx([0.1, np.nan], nan_ok=True)
    assert back.values("recall@10").tolist() == [0.1]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.json"]


def test_a_measure_has_one_value_per_query() -> None:
    with pytest.raises(InputError):
        Run("c", "m", {}, ("a", "b"), {"recall@10": np.array([0.1])})


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 2}'])
def test_a_file_that_is_no_run_is_refused(content, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(FileFormatError):
        Run.load(tmp_path / "run.json")
