"""How many tokens of a pair a model takes, as its makers saved it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adacur.errors import InputError
from adacur.scorers.cross_encoders.weights import json_in

_USUAL_TOKENS, _NO_LIMIT = 512, 10**9
_SAVED = "sentence_bert_config.json"
# Their position embeddings start after the padding id, so that 514 of them hold 512 tokens.
_POSITIONS_AFTER_PADDING = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


class TokenLimit(NamedTuple):
    """The most tokens of a pair, and what says so: a file, "given" or "default"; None for the model's positions."""

    tokens: int
    origin: str | None = None


def token_limit(
    max_tokens: int | None,
    *,
    config: Mapping[str, Any],
    tokenizer_length: float | None,
    folder: Path | None = None,
    usual: int | None = None,
) -> TokenLimit:
    """The limit given, by default the one that sentence-transformers would take, and never more than the positions.

    `tokenizer_length` is the tokenizer's own limit; `usual` is the most that is taken unless more is given.
    """
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and config.get("model_type") in _POSITIONS_AFTER_PADDING:
        positions -= (config.get("pad_token_id") or 0) + 1
    most = _length(positions)
    lengths = {} if folder is None else {_SAVED: _saved_length(folder)}
    lengths["tokenizer_config.json"] = _length(tokenizer_length)
    file, length = next(((file, length) for file, length in lengths.items() if length is not None), (None, None))
    if length is not None and (most is None or length < most):
        found = TokenLimit(length, file)
    else:
        # Without any limit sentence-transformers cuts nothing, and one text of a megabyte ends a build.
        found = TokenLimit(most) if most is not None else TokenLimit(_USUAL_TOKENS, "default")
    if usual is not None and usual < found.tokens:
        found = TokenLimit(usual, "default")
    if max_tokens is None or max_tokens == found.tokens:
        return found
    largest = most or length or _NO_LIMIT
    if not 1 <= max_tokens <= largest:
        raise InputError(f"max_tokens must lie between 1 and the model's limit of {largest}; got {max_tokens}.")
    return TokenLimit(max_tokens, "given")


def folder_limit(max_tokens: int | None, folder: Path) -> TokenLimit:
    """The limit of a model whose files alone are read."""
    tokenizer = json_in(folder, "tokenizer_config.json")
    length = tokenizer.get("model_max_length", tokenizer.get("max_len"))
    return token_limit(max_tokens, config=json_in(folder, "config.json"), tokenizer_length=length, folder=folder)


def _saved_length(folder: Path) -> int | None:
    """The limit in the settings of a sentence-transformers folder, which come before the tokenizer's."""
    if not (folder / "modules.json").is_file():
        return None
    saved = json_in(folder, _SAVED)
    texts = saved.get("processing_kwargs") or {}
    loading = saved.get("processor_kwargs") or saved.get("tokenizer_args") or {}
    given = [(texts.get(part) or {}).get("max_length") for part in ("chat_template", "text", "common")]
    lengths = map(_length, (*given, loading.get("model_max_length"), saved.get("max_seq_length")))
    return next((length for length in lengths if length is not None), None)


def _length(value: Any) -> int | None:
    """A limit of tokens; tokenizers without one write 10^30, and XLNet has -1 positions."""
    return int(value) if value is not None and 0 < value < _NO_LIMIT else None
