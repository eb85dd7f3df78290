"""An encoder for replays: it looks up the vectors of texts it has been given."""

from __future__ import annotations

from collections.abc import Sequence

from adacur.arrays import FloatArray
from adacur.errors import InputError
from adacur.first_stages.encoders import EncoderCard
from adacur.records import Query

__all__ = ["KnownVectors"]


class KnownVectors:
    """The vectors of known queries, a row each; equal texts must have equal vectors."""

    def __init__(self, queries: Sequence[Query], vectors: FloatArray) -> None:
        self._rows = {query.text: row for row, query in enumerate(queries)}
        self._vectors = vectors
        self.dimension = int(vectors.shape[1])
        self.card = EncoderCard(kind="looked up", dimension=self.dimension)

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """The vectors of these queries."""
        return self._vectors[[self._rows[text] for text in texts]]

    def encode_items(self, texts: Sequence[str]) -> FloatArray:
        """An error: items come with their vectors."""
        raise InputError(f"Vectors are known of queries alone; got {len(texts)} items to encode.")
