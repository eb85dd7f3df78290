"""Anchor queries for those who have no query log: cut from the items themselves, without a model."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import EmptyInput, InputError
from adacur.records import Item, Query
from adacur.seeds import stream_key

_CANDIDATES_PER_QUERY = 8
_FEWEST_WORDS = 5
_MOST_WORDS = 25
_MOST_CHARACTERS = 300
_DIMENSIONS = 512
_LANDMARKS = 2000
_FEWEST_REPEATS = 5
_BOILERPLATE_SHARE = 0.02
_LONGEST_ABBREVIATION = 20

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"""(?:[.!?…]+["'”’)\]]*\s+|[。！？]["”』」）]*\s*|\n\s*\n|\n(?=\s*[-•*]))""")
# Words after which a full stop ends no sentence.
_ABBREVIATION = re.compile(
    r"al|approx|ca?|cf|ch|co|corp|dept|dr|eds?|e\.?g|esp|est|etc|figs?|fl|gen|gov|hon|i\.?e|inc|jr|ltd?|m\.d|mrs?|ms|mt|"
    r"nos?|op|pp?|ph\.d|prof|rev|sen|sgt|spp?|sr|st|subsp|u\.k|u\.n|u\.s(\.a)?|v|var|viz|vol|vs",
    re.IGNORECASE,
)


def pseudo_queries(items: Iterable[Item], n: int, *, seed: int = 0) -> list[Query]:
    """n different queries that the items themselves suggest; the same for the same items in any order.

    Half are sentences from inside a text, up to 25 words; half are titles (`metadata["title"]`, else the first
    sentence) of other items. Short items lend their title or whole text instead. The items are read once, and memory
    grows with n, not with the items.
    """
    at_least(1, n=n)
    sample, n_items = _sample(items, _CANDIDATES_PER_QUERY * n, seed=seed)
    if not n_items:
        raise EmptyInput("There are no items to cut queries from. Give at least one.")
    # Each kind has items of its own, so that no item is asked about twice.
    halves = (_spread(sample[::2], n - n // 2, seed=seed), _spread(sample[1::2], n // 2, titles=True, seed=seed))
    chosen = list(_in_turn(halves))
    if len({query.text for query in chosen}) < n:
        chosen = _spread(sample, n, seed=seed)
    if len(chosen) < n:
        raise InputError(
            f"Only {len(chosen)} different pseudo-queries can be made from {n_items} items; {n} were asked for. "
            f"Ask for {len(chosen)} or fewer, or give queries of your own."
        )
    return chosen


def _sample(items: Iterable[Item], size: int, *, seed: int) -> tuple[list[Item], int]:
    """At most `size` items with different texts, in seeded random order, and the number of items seen.

    The order follows from a hash of the text: equal texts meet at the same place, where the smallest id stays.
    """
    stream = stream_key(seed, "pseudo-queries").to_bytes(8, "little")
    kept: dict[int, Item] = {}
    worst: list[int] = []
    n_items = 0
    for item in items:
        n_items += 1
        if not isinstance(item, Item):
            raise InputError(f"Items must be Item(id, text) records; got {type(item).__name__}: {str(item)[:40]!r}.")
        if not item.text.strip():
            continue
        digest = hashlib.blake2b(item.text.encode(errors="replace"), key=stream, digest_size=8).digest()
        key = int.from_bytes(digest, "little")
        if key in kept:
            kept[key] = min(kept[key], item, key=lambda item: item.id)
        elif len(kept) < size or key < -worst[0]:
            kept[key] = item
            heapq.heappush(worst, -key)
            if len(kept) > size:
                del kept[-heapq.heappop(worst)]
    return [kept[key] for key in sorted(kept)], n_items


def _candidates(items: list[Item], n: int, *, titles: bool, seed: int) -> list[Query]:
    """Different texts, in the order in which they would be taken at random; boilerplate last."""
    cuts = [_cut(item, titles=titles, seed=seed) for item in items]
    openings = Counter(opening for wanted, spare in cuts for opening in {_opening(text) for text in (*wanted, *spare)})
    most = max(_FEWEST_REPEATS, _BOILERPLATE_SHARE * len(items))
    lent: list[list[Query]] = []
    rest: list[list[Query]] = []
    for item, (wanted, spare) in zip(items, cuts, strict=True):
        pieces = [Query(f"pq-{item.id}-{j}", text) for j, text in enumerate((*wanted, *spare))]
        own = [j for j, piece in enumerate(pieces) if openings[_opening(piece.text)] <= most]
        # An item without a piece of the wanted kind lends the next best, so that short items are heard too.
        best = {j for j in own if j < len(wanted)} or set(own[:1])
        lent.append([piece for j, piece in enumerate(pieces) if j in best])
        rest.append([piece for j, piece in enumerate(pieces) if j not in best])
    chosen: dict[str, Query] = {}
    for columns, enough in ((lent, _CANDIDATES_PER_QUERY * n), (rest, n)):
        for piece in _in_turn(columns):
            if len(chosen) < enough:
                chosen.setdefault(" ".join(_words(piece.text)) or piece.text, piece)
    return list(chosen.values())


def _in_turn(columns: Iterable[list[Query]]) -> Iterator[Query]:
    """One of each item, then a second of each, and so on."""
    return (piece for row in itertools.zip_longest(*columns) for piece in row if piece is not None)


def _cut(item: Item, *, titles: bool, seed: int) -> tuple[list[str], list[str]]:
    """Pieces of the wanted kind, and pieces to fall back on, each best first."""
    title = item.metadata.get("title")
    title = title.strip() if isinstance(title, str) else ""
    body = item.text.removeprefix(f"{title}. ") if title else item.text
    sentences = [_shorten(sentence) for sentence in _sentences(body)]
    named = [_shorten(title)] if title else []
    inner = sorted(
        (sentence for sentence in sentences[1:] if len(sentence.split()) >= _FEWEST_WORDS),
        key=lambda sentence: stream_key(seed, "sentence", sentence),
    )
    whole = [*sentences[:1], *named, *inner, _shorten(item.text), item.text]
    return (named or sentences[:1]) if titles else inner, whole


def _sentences(text: str) -> list[str]:
    sentences: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if _ends_sentence(text, end):
            sentences.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in (*sentences, text[start:].strip()) if _WORD.search(sentence)]


def _ends_sentence(text: str, end: re.Match[str]) -> bool:
    if end.group().rstrip() != ".":
        return True
    following = text[end.end() : end.end() + 1]
    if following.islower():
        return False
    before = text[max(0, end.start() - _LONGEST_ABBREVIATION) : end.start()].split()
    word = before[-1].lstrip("(\"'“‘[") if before else ""
    # A lone capital is an initial: "J. R. R. Tolkien".
    return not _ABBREVIATION.fullmatch(word) and not (len(word) == 1 and word.isupper())


def _shorten(text: str) -> str:
    """At most 25 words, cut at a comma where one leaves a clause of ten words or more."""
    words = text.split()
    if len(words) > _MOST_WORDS:
        words = words[:_MOST_WORDS]
        commas = [at for at, word in enumerate(words, 1) if word.endswith((",", ";", ":")) and at >= 10]
        words = words[: commas[-1]] if commas else words
        words[-1] = words[-1].rstrip(",;:")
    text = " ".join(words)
    # A text without spaces between its words is one word by this count.
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS].rsplit(" ", 1)[0]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _opening(text: str) -> str:
    """What boilerplate shares: the first words, whatever the numbers in them."""
    return re.sub(r"\d+", "0", " ".join(_words(text)[:_FEWEST_WORDS]))


def _spread(sample: list[Item], n: int, *, titles: bool = False, seed: int) -> list[Query]:
    """n candidates, or as many as there are: of every few in turn, the one that adds most to how they cover them all.

    Covering, not mutual distance: candidates far from all others are odd sentences, and nobody's question.
    """
    candidates = _candidates(sample, n, titles=titles, seed=seed)
    if not 0 < n <= len(candidates):
        return candidates
    vectors = _vectors([candidate.text for candidate in candidates])
    landmarks = vectors[:_LANDMARKS]
    covered = np.zeros(len(landmarks), dtype=np.float32)
    taken: list[Query] = []
    bounds = np.linspace(0, len(candidates), n + 1).astype(int)
    for start, stop in itertools.pairwise(bounds.tolist()):
        covers = np.maximum(vectors[start:stop] @ landmarks.T, covered)
        # Rounded, so that the order of a sum does not decide between equals.
        best = int(np.argmax(np.round(covers.sum(axis=1), 2)))
        covered = covers[best]
        taken.append(candidates[start + best])
    return taken


def _vectors(texts: list[str]) -> FloatArray:
    """Hashed TF-IDF, one row of unit length per text."""
    counts = np.zeros((len(texts), _DIMENSIONS), dtype=np.float32)
    columns: dict[str, tuple[int, float]] = {}
    for row, text in enumerate(texts):
        for word in _words(text):
            if word not in columns:
                digest = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little")
                columns[word] = (digest % _DIMENSIONS, 1.0 if digest >> 31 else -1.0)
            column, sign = columns[word]
            counts[row, column] += sign
    present = (counts != 0).sum(axis=0)
    # The one added keeps common words in sight: without it, texts that differ in a number alone look unrelated.
    vectors = counts * (1 + np.log((1 + len(texts)) / (1 + present))).astype(np.float32)
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
