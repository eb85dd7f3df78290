"""Anchor queries for those who have no query log: cut from the items themselves, without a model."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import EmptyInput, InputError
from adacur.records import Item, Query
from adacur.seeds import stream_key

PseudoQueryKind = Literal["sentences", "titles", "mixed"]

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


def pseudo_queries(items: Iterable[Item], n: int, *, seed: int = 0, kinds: PseudoQueryKind = "mixed") -> list[Query]:
    """n different queries that the items themselves suggest; the same for the same items in any order.

    "sentences" come from inside the text, up to 25 words; "titles" are `metadata["title"]`, else the first sentence;
    "mixed" is half of each. Short items lend their title or whole text instead. The items are read once, and again
    only if too few of the sampled ones differ; memory grows with n, not with the items, unless they come as a one-shot
    iterator, which is first read into a list.
    """
    at_least(1, n=n)
    if kinds not in get_args(PseudoQueryKind):
        raise InputError(f"kinds must be one of {', '.join(map(repr, get_args(PseudoQueryKind)))}; got {kinds!r}.")
    if iter(items) is items:
        items = list(items)
    sample_size = _CANDIDATES_PER_QUERY * n
    while True:
        sample, n_items = _sample(items, sample_size, seed=seed)
        chosen = _choose(sample, n, kinds=kinds, seed=seed)
        if len(chosen) >= n or len(sample) < sample_size:
            break
        sample_size *= _CANDIDATES_PER_QUERY
    if not n_items:
        raise EmptyInput("There are no items to cut queries from. Give at least one.")
    if len(chosen) < n:
        raise InputError(
            f"Only {len(chosen)} different pseudo-queries can be made from {n_items} items; {n} were asked for. "
            f"Ask for {len(chosen)} or fewer, or give queries of your own."
        )
    return chosen


def _choose(sample: list[Item], n: int, *, kinds: PseudoQueryKind, seed: int) -> list[Query]:
    """n different queries from a sample of items, or as many as there are."""
    if kinds == "mixed":
        # Each kind has items of its own, so that no item is asked about twice.
        sentences = _choose(sample[::2], n - n // 2, kinds="sentences", seed=seed)
        titles = _choose(sample[1::2], n // 2, kinds="titles", seed=seed)
        in_turn = [one for pair in itertools.zip_longest(sentences, titles) for one in pair if one is not None]
        if len({candidate.text for candidate in in_turn}) == n:
            return in_turn
        kinds = "sentences"
    candidates = _candidates(sample, n, kinds=kinds, seed=seed)
    return _spread(candidates, n) if 0 < n <= len(candidates) else candidates


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
        key = int.from_bytes(
            hashlib.blake2b(item.text.encode(errors="replace"), key=stream, digest_size=8).digest(), "little"
        )
        if key in kept:
            kept[key] = min(kept[key], item, key=lambda item: item.id)
        elif len(kept) < size or key < -worst[0]:
            kept[key] = item
            heapq.heappush(worst, -key)
            if len(kept) > size:
                del kept[-heapq.heappop(worst)]
    return [kept[key] for key in sorted(kept)], n_items


def _candidates(items: list[Item], n: int, *, kinds: PseudoQueryKind, seed: int) -> list[Query]:
    """Different texts, in the order in which they would be taken at random; boilerplate last."""
    cuts = [_cut(item, kinds=kinds, seed=seed) for item in items]
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
    for piece in _in_turn(lent):
        if len(chosen) < _CANDIDATES_PER_QUERY * n:
            chosen.setdefault(_plain(piece.text), piece)
    for piece in _in_turn(rest):
        if len(chosen) < n:
            chosen.setdefault(_plain(piece.text), piece)
    texts = {piece.text: piece for piece in chosen.values()}
    # Only where nothing else is left may two queries differ in punctuation alone.
    for piece in itertools.chain(_in_turn(lent), _in_turn(rest)):
        if len(texts) < n:
            texts.setdefault(piece.text, piece)
    return list(texts.values())


def _in_turn(columns: list[list[Query]]) -> Iterator[Query]:
    """One of each item, then a second of each, and so on."""
    return (piece for row in itertools.zip_longest(*columns) for piece in row if piece is not None)


def _cut(item: Item, *, kinds: PseudoQueryKind, seed: int) -> tuple[list[str], list[str]]:
    """Pieces of the wanted kind, and pieces to fall back on, each best first."""
    title = item.metadata.get("title")
    title = title.strip() if isinstance(title, str) else ""
    body = item.text.removeprefix(f"{title}. ") if title else item.text
    sentences = [_shorten(sentence) for sentence in _sentences(body)]
    inner = sorted(
        (sentence for sentence in sentences[1:] if len(sentence.split()) >= _FEWEST_WORDS),
        key=lambda sentence: stream_key(seed, "sentence", sentence),
    )
    whole = [*sentences[:1], *([_shorten(title)] if title else []), *inner, _shorten(item.text), item.text]
    if kinds == "sentences":
        return inner, whole
    return [_shorten(title) if title else sentences[0]] if title or sentences else [], whole


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


def _plain(text: str) -> str:
    return " ".join(_words(text)) or text


def _spread(candidates: list[Query], n: int) -> list[Query]:
    """Of every few candidates in turn, the one that adds most to how well the taken ones cover them all.

    Covering, not mutual distance: candidates far from all others are odd sentences, and nobody's question.
    """
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
