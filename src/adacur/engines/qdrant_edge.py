"""Item vectors in Qdrant Edge: the engine in this process, a folder for each collection."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from adacur.core.errors import EngineUnavailable, InputError
from adacur.core.extras import require
from adacur.engines.qdrant_points import Described, Opened, PointStore, Vector, search_params
from adacur.engines.store_urls import parameters, split
from adacur.engines.vector_store import TEXT_FIELD, Key, beside_name, check_name

# A file that `create` leaves in the folder of a collection.
_MADE = "made_by_adacur.json"


class QdrantEdgeStore(PointStore):
    """A collection of Qdrant Edge: a folder on this machine, opened by one process at a time.

    - folder: of the collection; those beside it are folders beside it;
    - text, id_field, vector: as for `QdrantStore`.

    The first search with `exact=False` builds the index, which takes minutes for a million items.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        text: str | Sequence[str] = TEXT_FIELD,
        id_field: str | None = None,
        vector: str | None = None,
        opened: Opened | None = None,
    ) -> None:
        self._models = models = require("qdrant_edge", extra="qdrant")
        # A folder can be opened only once: a store shares what is open with those beside it.
        shards = opened or Opened(lambda folder: models.EdgeShard.load(str(folder)))
        super().__init__(shards, owns=opened is None, text=text, id_field=id_field, vector=vector)
        self._folder = Path(check_name("folder", os.fspath(folder))).absolute()
        self._optimized = False

    @classmethod
    def from_url(cls, url: str, **options: Any) -> QdrantEdgeStore:
        """qdrant-edge:///path/to/collection."""
        parts = split(url)
        if parts.netloc or len(parts.path) < len("/x"):
            raise InputError(
                "A folder of Qdrant Edge is given as qdrant-edge:///path/to/collection, with three slashes."
            )
        return cls(unquote(parts.path), **(parameters(url, {}) | options))

    @property
    def name(self) -> str:
        return f"qdrant-edge://{quote(self._folder.as_posix())}"

    def exists(self) -> bool:
        return _is_collection(self._folder)

    def beside(self, suffix: str) -> QdrantEdgeStore:
        folder = self._folder.with_name(beside_name(self._folder.name, suffix))
        return QdrantEdgeStore(folder, text=self._text, id_field=self._id_field, opened=self._opened)

    def _describe(self) -> Described:
        indexed = TEXT_FIELD in self._ask(lambda shard: shard.info()).payload_schema
        # The shard does not tell its vectors; it writes this file when it is made or opened.
        config = json.loads((self._folder / "edge_config.json").read_text())
        vectors = {
            name: Vector(one["size"], "multivector" if one.get("multivector_config") else one["distance"])
            for name, one in config.get("vectors", {}).items()
        }
        vectors |= {name: Vector(0, "sparse") for name in config.get("sparse_vectors") or {}}
        return Described(vectors, (self._folder / _MADE).is_file(), indexed)

    def _count(self, filter_: Any) -> int:
        request = self._models.CountRequest(exact=True, filter=filter_)
        return int(self._ask(lambda shard: shard.count(request)))

    def _nearest(self, vector: str, weights: list[float], n: int, filter_: Any, exact: bool) -> Any:
        if not exact and not self._optimized:
            self._ask(lambda shard: shard.optimize())
            self._optimized = True
        m = self._models
        query = m.Query.Nearest(weights, using=vector)
        return m.QueryRequest(limit=n, query=query, filter=filter_, params=search_params(m, exact))

    def _search(self, requests: list[Any]) -> list[Any]:
        lists: list[Any] = self._ask(lambda shard: shard.query_batch(self._models.QueryBatchRequest(requests)))
        return lists

    def _search_words(self, field: str, text: str, n: int, filter_: Any) -> Any:
        return self._query(self._models.TextQuery(field, text), n, filter_)

    def _search_sparse(self, vector: str, indices: list[int], values: list[float], n: int, filter_: Any) -> Any:
        return self._query(
            self._models.Query.Nearest(self._models.SparseVector(indices, values), using=vector), n, filter_
        )

    def _query(self, query: Any, n: int, filter_: Any) -> Any:
        request = self._models.QueryRequest(limit=n, query=query, filter=filter_)
        return self._ask(lambda shard: shard.query(request))

    def _retrieve(self, ids: list[Key], *, payload: bool, vectors: list[str] | None) -> Any:
        return self._ask(lambda shard: shard.retrieve(ids, payload, vectors or False))

    def _scroll(self, start: Key | None, n: int, *, payload: bool) -> tuple[Any, Any]:
        request = self._models.ScrollRequest(offset=start, limit=n, with_payload=payload, with_vector=False)
        points, following = self._ask(lambda shard: shard.scroll(request))
        return points, following

    def _upsert(self, points: list[tuple[int, dict[str, list[float]], dict[str, Any]]]) -> None:
        made = self._called(lambda: [self._models.Point(*point) for point in points])
        self._ask(lambda shard: (shard.update(self._models.UpdateOperation.upsert_points(made)), shard.flush()))
        self._optimized = False

    def _has_id(self, ids: Collection[Key]) -> Any:
        return self._models.HasIdCondition(set(ids))

    def _equals(self, value: str | bool | int) -> Any:
        # Edge takes Python's True for the number 1, but not numpy's.
        return self._models.MatchValue(np.bool_(value) if isinstance(value, bool) else value)

    def _between(self, low: float, high: float) -> Any:
        return self._models.RangeFloat(gte=low, lte=high)

    def _make(self, dimensions: Mapping[str, int]) -> None:
        m = self._models
        if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
            raise InputError(f"{self._folder} is not empty. Give a folder that does not exist yet.")
        vectors = {name: m.EdgeVectorParams(size, m.Distance.Dot) for name, size in dimensions.items()}
        # Made elsewhere and moved here when it is whole: who is killed meanwhile leaves nothing here.
        aside = self._aside()
        aside.mkdir(parents=True)
        try:
            shard = self._called(lambda: m.EdgeShard.create(str(aside), m.EdgeConfig(vectors=vectors)))
            self._called(lambda: (shard.update(_words_index(m)), shard.flush(), shard.close()))
            (aside / _MADE).write_text("{}")
        except Exception:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        if self._folder.exists():
            self._folder.rmdir()
        aside.rename(self._folder)
        self._ask(lambda shard: shard.info())

    def _index_words(self) -> None:
        self._ask(lambda shard: (shard.update(_words_index(self._models)), shard.flush()))

    def _aside(self) -> Path:
        """A free name for a folder that is not yet, or no longer, a collection."""
        aside = self._folder.with_name(f".{self._folder.name}.unfinished")
        if aside.exists():
            shutil.rmtree(aside)
        return aside

    def _remove(self) -> None:
        self._opened.close(self._folder)
        shutil.rmtree(self._folder.rename(self._aside()))

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        if not self.exists():
            raise InputError(f"There is no collection {self.name}.")
        return self._called(lambda: call(self._opened.get(self._folder)))

    def _called(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (InputError, EngineUnavailable):
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{self.name} refused: {str(error).splitlines()[0]}.") from error
        except Exception as error:
            # Edge raises plain exceptions, told apart by how they begin.
            if type(error) is not Exception:
                raise
            if str(error).startswith("Service"):
                in_use = " Another process, or another store of this one, has it open." if "WAL" in str(error) else ""
                raise EngineUnavailable(f"{self.name} cannot be used: {error}.{in_use}") from error
            raise InputError(f"{self.name} refused: {error}.") from error


def _is_collection(folder: Path) -> bool:
    segments = folder / "segments"
    return (folder / "edge_config.json").is_file() or (segments.is_dir() and any(segments.iterdir()))


def _words_index(models: Any) -> Any:
    return models.UpdateOperation.create_field_index(TEXT_FIELD, models.TextIndexParams(scoring=True))
