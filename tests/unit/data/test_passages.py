"""Long texts as passages: nothing is lost, passages overlap, and each names its document."""

from __future__ import annotations

import itertools

import pytest

from adacur import Item
from adacur.data import Passages
from adacur.errors import InputError

SENTENCES = [f"Sentence {n} has exactly seven words here." for n in range(60)]
LONG = Item("doc", " ".join(SENTENCES), {"lang": "en"})


def test_short_items_stay_as_they_are() -> None:
    short = Item("a", "a few words")

    assert list(Passages([short], 50)) == [short]
    assert short.document == "a"


def test_every_word_is_in_a_passage_and_none_is_too_long() -> None:
    passages = list(Passages([LONG], 50))

    assert [one.id for one in passages] == [f"doc#{n}" for n in range(1, len(passages) + 1)]
    assert all(len(one.text.split()) <= 50 for one in passages)
    assert all(any(sentence in one.text for one in passages) for sentence in SENTENCES)
    assert {one.document for one in passages} == {"doc"}
    assert passages[0].metadata == {"lang": "en", "document": "doc"}


def test_passages_keep_to_sentences_and_overlap() -> None:
    passages = list(Passages([LONG], 50))

    assert all(one.text.startswith("Sentence") for one in passages[:-1])
    assert all(one.text.endswith("here.") for one in passages)
    for before, after in itertools.pairwise(passages):
        assert any(sentence in before.text and sentence in after.text for sentence in SENTENCES)


def test_text_without_sentences_or_spaces_is_split_all_the_same() -> None:
    words = Item("w", " ".join(f"w{n}" for n in range(233)))
    signs = Item("s", "語" * 233)

    for item in (words, signs):
        passages = list(Passages([item], 50))
        assert len(passages) > 4
        assert passages[-1].text.endswith(item.text[-3:])
    assert all(len(one.text) <= 50 for one in Passages([signs], 50))


def test_a_title_stands_before_every_passage() -> None:
    titled = Item("t", "The title. " + LONG.text, {"title": "The title"})
    passages = list(Passages([titled], 50))

    assert all(one.text.startswith("The title. ") for one in passages)
    assert all(len(one.text.split()) <= 50 for one in passages)
    assert "title" not in passages[1].text[len("The title. ") :]


def test_a_passage_of_a_document_may_be_split_further() -> None:
    part = Item("part", LONG.text, {"document": "whole"})

    assert {one.document for one in Passages([part], 50)} == {"whole"}


@pytest.mark.parametrize("words", [0, 19, 2.5, "200"])
def test_passages_of_a_few_words_are_refused(words) -> None:
    with pytest.raises(InputError):
        Passages([LONG], words)
