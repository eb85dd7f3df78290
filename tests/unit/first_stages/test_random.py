from __future__ import annotations

from adacur.first_stages import Random

IDS = [f"i{n}" for n in range(300)]


def test_seeds_and_queries_draw_differently() -> None:
    answers = [Random(IDS, seed=seed).search([query], 5)[0] for seed in (0, 1) for query in ("a", "b")]
    assert len({tuple(answer.positions) for answer in answers}) == 4


def test_every_item_comes_first_about_equally_often() -> None:
    firsts = [answer.positions[0] for answer in Random(IDS[:4]).search([f"q{n}" for n in range(400)], 1)]
    assert all(60 < firsts.count(position) < 140 for position in range(4))
