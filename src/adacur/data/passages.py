"""Long texts as overlapping passages of a document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from adacur.budget import is_whole
from adacur.data.files import joined
from adacur.errors import InputError
from adacur.records import Item, check_item

_FEWEST_WORDS = 20
# Where no spaces part the words, each sign counts as one.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_ENDS_SENTENCE = re.compile(r"[.!?…。！？]['\"”’»)\]]*$")


@dataclass(frozen=True, slots=True)
class Passages:
    """Items whose longer texts are split into passages of at most `words` words; the others stay as they are.

    A passage ends with a sentence where one ends in its last quarter, and repeats about a fifth of `words` from the end
    of the one before. A title that the text begins with stands before each. Passages of the item "a" are the items
    "a#1", "a#2" and so on, whose metadata name the `document` "a". Read anew each time.
    """

    items: Iterable[Item]
    words: int = 200

    def __post_init__(self) -> None:
        if not is_whole(self.words) or self.words < _FEWEST_WORDS:
            raise InputError(f"Passages must have a whole number of words, at least {_FEWEST_WORDS}; got {self.words}.")

    def __iter__(self) -> Iterator[Item]:
        for item in self.items:
            yield from self.split(item)

    def split(self, item: Item) -> list[Item]:
        """The passages of one item, or the item itself."""
        check_item(item)
        if len(_WORD.findall(item.text)) <= self.words:
            return [item]
        given = item.metadata.get("title")
        title = given if isinstance(given, str) and given.strip() and item.text.startswith(given) else ""
        most = self.words - len(_WORD.findall(title))
        if most < self.words // 2:
            title, most = "", self.words
        body = item.text[len(title) :].lstrip(" .:;\n\t") if title else item.text
        texts = [joined([title, text]) for text in _windows(body, most)]
        about = {**item.metadata, "document": item.document}
        return [Item(f"{item.id}#{number}", text, about) for number, text in enumerate(texts, 1)]


def _windows(text: str, most: int) -> Iterator[str]:
    """Pieces of a text that has more than `most` words, in order."""
    spans = [(found.start(), found.end()) for found in _WORD.finditer(text)]
    ends = {at + 1 for at, (start, end) in enumerate(spans) if _ENDS_SENTENCE.search(text[start:end])}
    start, n = 0, len(spans)
    while True:
        stop = min(n, start + most)
        if stop < n:
            stop = max((at for at in range(stop - most // 4, stop + 1) if at in ends), default=stop)
        yield text[spans[start][0] : spans[stop - 1][1]]
        if stop == n:
            return
        # From the beginning of a sentence, where one begins in what is repeated.
        again = stop - most // 5
        again = min((at for at in range(again, stop) if at in ends), default=again)
        # A last passage of a few words would say nothing by itself.
        start = again if n - again > most // 2 else max(start + 1, n - most)
