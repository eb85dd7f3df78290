"""JSON and arrays of folders that may be damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adacur.data.stored import check_seal, read_array, read_json, sealed_json


@pytest.mark.parametrize("bracket", ["(", "[", "{", "'", '"""'])
def test_a_header_whose_bracket_is_not_closed_is_no_array(tmp_path: Path, bracket: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"}", bracket[:1].encode(), 1))
    with pytest.raises(ValueError, match=r"a\.npy"):
        read_array(tmp_path / "a.npy", kind="i")


def test_any_other_byte_of_a_sealed_file_breaks_the_seal_or_the_content_is_the_same(tmp_path: Path) -> None:
    file, content = tmp_path / "a.json", {"k": 10, "x": 0.1, "names": ["a", "b"], "none": None}
    file.write_text(sealed_json(content))
    check_seal(file)
    whole = file.read_bytes()
    broken = 0
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + (b"7" if whole[at : at + 1] != b"7" else b"6") + whole[at + 1 :])
        try:
            check_seal(file)
        except ValueError:
            broken += 1
        else:
            assert read_json(file).items() >= content.items()
    assert broken > len(whole) / 2


@pytest.mark.parametrize("content", ['{"k": 1}', "[1]"])
def test_a_file_without_a_digest_does_not_pass(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match="written"):
        check_seal(tmp_path / "a.json")
