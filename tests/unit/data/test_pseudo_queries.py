from __future__ import annotations

import random

import pytest

from adacur.data import pseudo_queries
from adacur.data.pseudo_queries import _sentences, _shorten
from adacur.errors import EmptyInput, InputError
from adacur.records import Item

SUBJECTS = ["river", "castle", "engine", "violin", "glacier", "market", "orchid", "comet", "treaty", "harbour"]
PLACES = ["Norway", "Peru", "Kenya", "Japan", "Malta", "Chile", "Nepal", "Ghana", "Tonga", "Cuba"]
ITEMS = [
    Item(
        f"i{s}{p}",
        f"The {subject} of {place}. The {subject} of {place} is well known to all. "
        f"Friends {subject} {place} come here each spring. "
        f"Masters {place} {subject} made its oldest part by hand in {1500 + 10 * s + p}.",
        {"title": f"The {subject} of {place}"},
    )
    for s, subject in enumerate(SUBJECTS)
    for p, place in enumerate(PLACES)
]


def test_n_different_queries_with_different_ids_are_made() -> None:
    queries = pseudo_queries(ITEMS, 40)
    assert len({query.id for query in queries}) == len({query.text for query in queries}) == 40
    assert all(query.id.startswith("pq-i") for query in queries)
    assert all(0 < len(query.text.split()) <= 25 for query in queries)


def test_they_follow_from_the_items_and_the_seed_alone() -> None:
    shuffled = random.Random(1).sample(ITEMS, len(ITEMS))
    assert pseudo_queries(ITEMS, 20) == pseudo_queries(shuffled, 20)
    assert pseudo_queries(ITEMS, 20) == pseudo_queries(iter(ITEMS), 20)
    assert pseudo_queries(ITEMS, 20) != pseudo_queries(ITEMS, 20, seed=1)


def test_by_default_half_are_sentences_and_half_are_titles_of_other_items() -> None:
    queries = pseudo_queries(ITEMS, 41)
    titles = [query for query in queries if query.text in {item.metadata["title"] for item in ITEMS}]
    assert len(titles) == 20
    assert sum(query.text.endswith(".") for query in queries) == 21
    asked_by_title = {query.id.rsplit("-", 1)[0] for query in titles}
    assert not asked_by_title & {query.id.rsplit("-", 1)[0] for query in queries if query not in titles}


@pytest.mark.parametrize("n", [1, 50, 300])
def test_short_items_lend_their_whole_text(n) -> None:
    items = [Item(f"i{n}", f"disease {n}", {"title": f"disease {n}"}) for n in range(300)]
    assert len({query.text for query in pseudo_queries(items, n)}) == n


def test_one_odd_item_among_many_equal_ones_is_heard() -> None:
    items = [Item(f"i{n}", "The very same text in every one of these.") for n in range(500)] + [
        Item("odd", "Other words.")
    ]
    assert {query.id for query in pseudo_queries(items, 2)} == {"pq-i0-0", "pq-odd-0"}


def test_boilerplate_comes_last() -> None:
    notice = "All rights are reserved by the owner of this page."
    pairs = [(subject, place) for subject in SUBJECTS for place in PLACES][:50]
    items = [Item(f"i {s} {p}", f"Page. {notice} This {s} of {p} has words of its own.") for s, p in pairs]
    assert notice not in {query.text for query in pseudo_queries(items, 50)}


def test_a_crowd_of_near_duplicates_does_not_drown_the_rest() -> None:
    crowd = [Item(f"c{n}", f"A lamp. Lamp number {n} of this series is bright and cheap to run.") for n in range(360)]
    chosen = pseudo_queries([*crowd, *ITEMS[:40]], 30)
    # A random choice would take three.
    assert sum(query.id.startswith("pq-i") for query in chosen) >= 10


def test_more_than_can_be_made_and_none_are_refused() -> None:
    items = [Item("a", "One text."), Item("b", "Another text."), Item("c", "One text."), Item("d", " ")]
    with pytest.raises(InputError):
        pseudo_queries(items, 3)
    with pytest.raises(InputError):
        pseudo_queries(ITEMS, 0)
    with pytest.raises(EmptyInput):
        pseudo_queries([], 1)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One here. Two there! Three?", ["One here.", "Two there!", "Three?"]),
        ("J. R. R. Tolkien met Dr. Lewis. They spoke.", ["J. R. R. Tolkien met Dr. Lewis.", "They spoke."]),
        ("Made in the U.S. Army, c. 1950. It grew.", ["Made in the U.S. Army, c. 1950.", "It grew."]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("It is 3.5 m long, e.g. for boats. Done.", ["It is 3.5 m long, e.g. for boats.", "Done."]),
        ("First block\n\nsecond block", ["First block", "second block"]),
        ("吾輩は猫である。名前はまだ無い。", ["吾輩は猫である。", "名前はまだ無い。"]),
        ("", []),
        ("...", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text, sentences) -> None:
    assert _sentences(text) == sentences


def test_long_sentences_are_cut_at_a_comma_or_between_words() -> None:
    words = [f"w{n}" for n in range(40)]
    assert _shorten(" ".join(words)) == " ".join(words[:25])
    words[14] += ","
    assert _shorten(" ".join(words)) == " ".join(words[:14]) + " w14"
    assert len(_shorten("猫" * 5000)) <= 300
