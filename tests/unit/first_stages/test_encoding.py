"""What the bar of an encoder says."""

from __future__ import annotations

import tqdm.auto

from adacur.first_stages import Dense
from adacur.first_stages.encoders import blocks_to_encode
from adacur.records import Item
from tests.living_world import Encoder

ITEMS = [Item(f"i{n}", f"text {n}") for n in range(300)]


def test_the_bar_counts_what_has_been_encoded(monkeypatch) -> None:
    encoder, seen = Encoder(), []

    class Bar(tqdm.auto.tqdm):
        def update(self, n=1):
            seen.append((self.n + n, len(encoder.encoded), self.total))
            return super().update(n)

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    Dense.build(ITEMS, encoder=encoder, progress=True)
    assert len(seen) > 3
    assert seen[0][0] <= 16
    assert all(said == encoded for said, encoded, _ in seen)
    assert seen[-1] == (300, 300, 300)


def test_items_of_unknown_number_are_encoded_too(capsys) -> None:
    blocks = list(blocks_to_encode(iter(ITEMS), progress=None))
    assert [item for block in blocks for item in block] == ITEMS
    assert capsys.readouterr().err == ""
