"""A prompt cut where a tokenizer always cuts, so that queries and items are tokenised apart, each once."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.scorers.cross_encoders.pair_prompt import PairPrompt

_log = logging.getLogger(__name__)
# Characters that are tokenised to find where a prompt can be cut, which takes seconds.
_MOST_TRIED = 2**22
# Texts whose ends join with what stands beside them, where a tokenizer lets them.
_ENDS = (
    "word", "Word.", "7", "x!", "(a)", "trail ", " lead", "line\n", "\nline", "tab\t", "\n\n", "'s", "it's", "<", ">:",
    "ü", "日本", "🙂", "...", '"', "-", "_", "",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PromptPieces:
    """The parts of a prompt, which can be tokenised apart.

    A query's piece is `query_before` + query + `query_after`, an item's likewise; their tokens joined, and `tail`, are
    those of the whole prompt. Of an item that is cut, `bridge` are the tokens of what stands behind it in its piece:
    they are never cut.
    """

    prompt: PairPrompt
    query_before: str
    query_after: str
    item_before: str
    item_after: str
    bridge: Any
    tail: Any

    @classmethod
    def of(cls, prompt: PairPrompt, tokenizer: Any) -> PromptPieces:
        """The pieces of a prompt for a `tokenizers.Tokenizer`."""

        def encode(texts: list[str]) -> list[list[int]]:
            return [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

        middle, suffix = prompt.middle, prompt.suffix
        specials = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.content]
        names = ("item", "query") if prompt.item_first else ("query", "item")
        first, second = ([prompt.trimmed(name, end) for end in _ENDS] for name in names)
        lefts = [f"{prompt.prefix}{end}{middle}" for end in (*first, *["a"] * len(second))]
        rights = [f"{end}{suffix}" for end in (*["a"] * len(first), *second)]
        at = _always_cut(encode, lefts, rights, middle, specials, late=True)
        if at is None:
            _log.warning(
                "The tokenizer joins what stands on both sides of an item's beginning in this prompt, so the parts are "
                "tokenised apart: %r. Its tokens can differ from those of the whole text.",
                prompt.text,
            )
            at = len(middle)
        if prompt.item_first:
            bridge = encode([middle[:at]])[0]
            pieces = (middle[at:], suffix, prompt.prefix, middle[:at])
            return cls(prompt, *pieces, bridge=np.array(bridge, np.int64), tail=np.empty(0, np.int64))
        lefts = [middle[at:] + end + suffix for end in second]
        end = _always_cut(encode, lefts, [""] * len(lefts), suffix, specials, late=False)
        end = len(suffix) if end is None else end
        bridge, tail = encode([suffix[:end], suffix[end:]])
        pieces = (prompt.prefix, middle[:at], middle[at:], suffix[:end])
        return cls(prompt, *pieces, bridge=np.array(bridge, np.int64), tail=np.array(tail, np.int64))

    def of_query(self, text: str) -> str:
        """The piece of a query."""
        return f"{self.query_before}{self.prompt.trimmed('query', text)}{self.query_after}"

    def of_item(self, text: str) -> str:
        """The piece of an item."""
        return f"{self.item_before}{self.prompt.trimmed('item', text)}{self.item_after}"


def _always_cut(
    encode: Any, lefts: list[str], rights: list[str], between: str, specials: list[str], *, late: bool
) -> int | None:
    """A place in `between`, which ends every left text, where a cut changes no token; None if there is none.

    Beside special tokens if possible, or behind a line end: tokenizers cut there. Of these the last where it should be
    `late`, else the first.
    """
    wholes = encode([left + right for left, right in zip(lefts, rights, strict=True)])
    n = len(between)
    at_special = {edge for special in specials for edge in _edges(between, special)}
    after_lines = {found.end() for found in re.finditer(r"\n", between)} - at_special
    others = set(range(n + 1)) - at_special - after_lines
    places = [at for group in (at_special, after_lines, others) for at in sorted(group, reverse=late)]
    # Of a long prompt only some places are tried: its tokens would take time in the square of its length.
    length = sum(map(len, lefts)) + sum(map(len, rights))
    for at in places[: 1 + _MOST_TRIED // length]:
        heads = encode([left[: len(left) - n + at] for left in lefts])
        tails = encode([between[at:] + right for right in rights])
        if all(head + tail == whole for head, tail, whole in zip(heads, tails, wholes, strict=True)):
            return at
    return None


def _edges(text: str, special: str) -> list[int]:
    starts = [found.start() for found in re.finditer(re.escape(special), text)]
    return [edge for start in starts for edge in (start, start + len(special))]
