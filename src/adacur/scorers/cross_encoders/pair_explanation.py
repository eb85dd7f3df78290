"""What a scorer makes of one pair, for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adacur.arrays import FloatArray
from adacur.records import Item, Query
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenPairs
from adacur.scorers.cross_encoders.readout import Readout


@dataclass(frozen=True, slots=True)
class Explanation:
    """A pair as a model reads it, and what is made of the numbers that it gives.

    `prompt` is the text of the whole pair, `tokens` what the model gets of it; `cut` tokens of the item did not fit.
    """

    prompt: str
    tokens: tuple[str, ...]
    cut: int
    readout: str
    score: float

    def __str__(self) -> str:
        cut = f", {self.cut} of the item cut" if self.cut else ""
        return (
            f"{self.prompt}\n\n{len(self.tokens)} tokens{cut}: {' '.join(map(repr, self.tokens))}\n"
            f"read as {self.readout}: {self.score:.4f}"
        )


def explained(
    query: Query | str,
    item: Item | str,
    *,
    tokens: PairTokenizer,
    scores: Callable[[TokenPairs], FloatArray],
    readout: Readout | None = None,
) -> Explanation:
    """What a model with this tokenizer reads of a pair, and its score."""
    asked = query if isinstance(query, Query) else Query("query", query)
    found = item if isinstance(item, Item) else Item("item", item)
    pairs = tokens.pairs([(asked, found)])
    ids = pairs.texts.pair(0, 0)[0]
    return Explanation(
        prompt=tokens.text_of(ids) if tokens.prompt is None else tokens.prompt.render(asked.text, found.text),
        tokens=tuple(tokens.tokens_of(ids)),
        cut=tokens.whole_length(found) - len(pairs.texts.item_beside(0, 0)),
        readout=str(readout or Readout.label()),
        score=float(scores(pairs)[0]),
    )
