"""From the numbers that a model gives to one raw score."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adacur.errors import InputError

_FORMS = "label(), labels(1, 0), odds('yes', 'no') or token('Yes'); or ('yes', 'no') for the odds"
# What each kind names, and the weights of these in the score.
_KINDS: dict[str, tuple[type | tuple[type, ...], tuple[float, ...]]] = {
    "label": (int, (1.0,)),
    "labels": (int, (1.0, -1.0)),
    "odds": ((str, int), (1.0, -1.0)),
    "token": ((str, int), (1.0,)),
}


@dataclass(frozen=True, slots=True)
class Readout:
    """One raw score from logits: of a classifier's labels, or of tokens that a language model may say next.

    Make one with `label()`, `labels(1, 0)`, `odds("yes", "no")` or `token("Yes")`. A token is its text, or its id.
    """

    kind: str
    names: tuple[str | int, ...]

    @classmethod
    def label(cls) -> Readout:
        """The logit of a classifier's one label."""
        return cls("label", (0,))

    @classmethod
    def labels(cls, right: int, wrong: int) -> Readout:
        """The logit of one label less that of another."""
        return cls("labels", (right, wrong))

    @classmethod
    def odds(cls, right: str | int, wrong: str | int) -> Readout:
        """The log-odds of one token against another."""
        return cls("odds", (right, wrong))

    @classmethod
    def token(cls, right: str | int) -> Readout:
        """The logit of one token."""
        return cls("token", (right,))

    @classmethod
    def of(cls, given: Readout | str | Sequence[str]) -> Readout:
        """A readout as it is, as a card has it (`str(readout)`), or as two tokens whose odds are meant."""
        if isinstance(given, Readout):
            return given
        try:
            made = cls._parsed(given) if isinstance(given, str) else cls.odds(*given)
            what, weights = _KINDS[made.kind]
            fits = all(isinstance(name, what) and type(name) is not bool for name in made.names)
            if not fits or len(set(made.names)) != len(weights):
                raise ValueError
        except (SyntaxError, LookupError, TypeError, ValueError, AttributeError, MemoryError, RecursionError):
            raise InputError(f"A readout must be one of {_FORMS}; got {given!r}.") from None
        return made

    @classmethod
    def _parsed(cls, text: str) -> Readout:
        call: Any = ast.parse(text, mode="eval").body
        makers: dict[str, Any] = {"label": cls.label, "labels": cls.labels, "odds": cls.odds, "token": cls.token}
        made: Readout = makers[call.func.id](*map(ast.literal_eval, call.args))
        return made

    def __str__(self) -> str:
        """As `of` reads it."""
        return "label()" if self.kind == "label" else f"{self.kind}({', '.join(map(repr, self.names))})"

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of what it names in the score."""
        return _KINDS[self.kind][1]

    @property
    def of_labels(self) -> bool:
        """Whether it reads a classifier's labels, not tokens."""
        return self.kind in ("label", "labels")

    def rows(self, tokenizer: Any, *, n_rows: int) -> list[int]:
        """The rows of the head that it reads: labels, or ids of tokens of a `tokenizers.Tokenizer`."""
        if self.of_labels:
            rows = [int(name) for name in self.names]
            if self.kind == "label" and n_rows != 1:
                raise InputError(
                    f"The readout label() needs a model with one label; this one has {n_rows}. If two of them mean "
                    "right and wrong, say which: readout='labels(1, 0)'."
                )
        else:
            rows = [name if isinstance(name, int) else _token_id(tokenizer, name) for name in self.names]
            if len(set(rows)) < len(rows):
                raise InputError(f"The answers of a readout must be different tokens; {self} reads the tokens {rows}.")
        if outside := [row for row in rows if not 0 <= row < n_rows]:
            what = "labels" if self.of_labels else "tokens"
            raise InputError(f"The readout {self} needs {what} between 0 and {n_rows - 1}; it names {outside[0]}.")
        return rows


def _token_id(tokenizer: Any, text: str) -> int:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if len(encoding.ids) == 1:
        # A vocabulary without the word has one token for all such words.
        unknown = getattr(tokenizer.model, "unk_token", None)
        if unknown is None or encoding.tokens != [unknown] or text == unknown:
            return int(encoding.ids[0])
    elif (known := tokenizer.token_to_id(text)) is not None:
        return int(known)
    raise InputError(
        f"An answer that is read off the next token must be one token; this model's tokenizer makes {encoding.tokens} "
        f"of {text!r}. Choose another answer (with another case, or a space before it), or give the id of a token."
    )


class ReadoutHead:
    """The few rows of a head that a readout needs, in float32: hidden vectors to scores.

    Nothing multiplies the whole vocabulary; without a `cap` on logits, it is one row.
    """

    def __init__(self, torch: Any, readout: Readout, head: Any, rows: Sequence[int], *, cap: float | None) -> None:
        self._torch, self._cap = torch, cap
        weight = head.weight.detach()[list(rows)].float().cpu()
        bias = getattr(head, "bias", None)
        bias = torch.zeros(len(rows)) if bias is None else bias.detach()[list(rows)].float().cpu()
        self._weights = torch.tensor(readout.weights)
        if cap is None:
            weight, bias = self._weights[None] @ weight, (self._weights @ bias)[None]
            self._weights = torch.ones(1)
        self._weight, self._bias = weight, bias

    def to(self, device: Any) -> ReadoutHead:
        """The same head on a device."""
        self._weight, self._bias, self._weights = (
            part.to(device) for part in (self._weight, self._bias, self._weights)
        )
        return self

    def __call__(self, hidden: Any) -> Any:
        logits = self._torch.addmm(self._bias, hidden.float(), self._weight.T)
        if self._cap is not None:
            logits = self._torch.tanh(logits / self._cap) * self._cap
        return logits @ self._weights
