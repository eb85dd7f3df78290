"""Encoders that give a vector per token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from adacur.arrays import FloatArray
from adacur.first_stages import EncoderCard, OnnxEncoder, SentenceTransformerEncoder

__all__ = ["TokenEncoder", "token_encoder"]


@runtime_checkable
class TokenEncoder(Protocol):
    """Queries and items to float32 vectors of all their tokens, those of prefixes and special tokens too."""

    @property
    def card(self) -> EncoderCard: ...

    def encode_query_tokens(self, texts: Sequence[str]) -> list[FloatArray]:
        """Per text, shape (tokens, token dimension)."""
        ...

    def encode_item_tokens(self, texts: Sequence[str]) -> list[FloatArray]:
        """Per text, shape (tokens, token dimension)."""
        ...


def token_encoder(encoder: Any) -> TokenEncoder | None:
    """What gives the tokens' vectors of an encoder: its model's last states as they are; None where nothing does."""
    if isinstance(encoder, OnnxEncoder):
        return _OnnxTokens(encoder)
    if isinstance(encoder, SentenceTransformerEncoder):
        return _SentenceTransformerTokens(encoder)
    return encoder if isinstance(encoder, TokenEncoder) else None


class _OnnxTokens:
    def __init__(self, encoder: OnnxEncoder) -> None:
        self._encoder = encoder
        self.card = encoder.card

    def encode_query_tokens(self, texts: Sequence[str]) -> list[FloatArray]:
        return self._encode(self.card.query_prefix, texts)

    def encode_item_tokens(self, texts: Sequence[str]) -> list[FloatArray]:
        return self._encode(self.card.item_prefix, texts)

    def _encode(self, prefix: str, texts: Sequence[str]) -> list[FloatArray]:
        with ThreadPoolExecutor(self._encoder._threads) as pool:
            return list(pool.map(self._encoder._states, [prefix + text for text in texts]))


class _SentenceTransformerTokens:
    def __init__(self, encoder: SentenceTransformerEncoder) -> None:
        self._encoder = encoder
        self.card = encoder.card

    def encode_query_tokens(self, texts: Sequence[str]) -> list[FloatArray]:
        return self._encode(self._encoder._encode_query, self.card.query_prefix, texts)

    def encode_item_tokens(self, texts: Sequence[str]) -> list[FloatArray]:
        return self._encode(self._encoder._encode_document, self.card.item_prefix, texts)

    def _encode(self, encode: Callable[..., Any], prefix: str, texts: Sequence[str]) -> list[FloatArray]:
        if not texts:
            return []
        with self._encoder._lock:
            # The token embeddings that sentence-transformers cuts itself keep padding on the left.
            outputs = encode(
                [prefix + text for text in texts],
                batch_size=self._encoder._batch_size,
                output_value=None,
                show_progress_bar=False,
            )
        return [output["token_embeddings"][output["attention_mask"].bool()].float().cpu().numpy() for output in outputs]
