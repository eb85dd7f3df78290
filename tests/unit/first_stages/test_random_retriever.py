from __future__ import annotations

from adacur.core.records import Item
from adacur.first_stages import RandomRetriever

IDS = [f"i{n}" for n in range(300)]


def test_items_and_their_ids_give_the_same_order() -> None:
    items = [Item(id_, "text") for id_ in IDS]
    assert RandomRetriever(items).search(["q"], 9)[0].ids == RandomRetriever(IDS).search(["q"], 9)[0].ids


def test_seeds_and_queries_draw_differently() -> None:
    orders = {RandomRetriever(IDS, seed=seed).search([query], 5)[0].ids for seed in (0, 1) for query in ("a", "b")}
    assert len(orders) == 4


def test_every_item_comes_first_about_equally_often() -> None:
    firsts = [found.ids[0] for found in RandomRetriever(IDS[:4]).search([f"q{n}" for n in range(400)], 1)]
    assert all(60 < firsts.count(id_) < 140 for id_ in IDS[:4])
