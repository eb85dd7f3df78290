"""The tags of an [EMB] cross-encoder, as its config.json names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adacur.errors import FileFormatError, InputError
from adacur.names import EMB_KEY


@dataclass(frozen=True, slots=True)
class EmbHead:
    """Scores are mean(h[query_start], h[query_end]) · h[item]: dot products of the vectors of tags in the pair."""

    query_start: str = "[unused0]"
    query_end: str = "[unused1]"
    item: str = "[unused2]"

    def __post_init__(self) -> None:
        if not all(isinstance(tag, str) and tag.strip() for tag in self.tags) or len(set(self.tags)) < 3:
            raise InputError(f"The tags of an [EMB] head are three different words; got {self.tags}.")

    @property
    def tags(self) -> tuple[str, str, str]:
        return self.query_start, self.query_end, self.item

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EmbHead | None:
        """The head that a model's config.json tells of; None for models with another."""
        if EMB_KEY not in config:
            return None
        try:
            return cls(**config[EMB_KEY])
        except (TypeError, ValueError) as error:
            found = f"{config[EMB_KEY]!r} ({error})"
            raise FileFormatError(f"{EMB_KEY!r} in config.json is not an [EMB] head: {found}.") from error

    def to_config(self) -> dict[str, Any]:
        """What a model's config.json says of it."""
        return {EMB_KEY: asdict(self)}
