"""A dual encoder together with its loss; imported only where one is trained, since it brings torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Router, Transformer
from torch.utils.checkpoint import checkpoint

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import Items
from adacur.scorers.cross_encoders.checkpoints import quiet, written_whole
from adacur.scorers.cross_encoders.pair_tokens import chosen_max_tokens
from adacur.scorers.cross_encoders.weights import json_in
from adacur.training.judged_queries import distinct_texts
from adacur.training.run_folder import RunFolder
from adacur.training.token_rows import TokenRows
from adacur.training.tower_options import TowerOptions

__all__ = ["TowerItems", "TowerPair"]

Side = Literal["query", "item"]
_MODULES = "modules.json"
_NORMALISED_SCALE = 20.0
# What a step keeps for the way back: on a GPU some 10 GB of a BERT-base.
_TOKENS_AT_ONCE = {"cpu": 8192, "cuda": 32_768}
_SCORES_AT_ONCE = 2**26
# Low enough for no weight in a softmax, and finite, so that times zero it is no NaN.
_NOT_COUNTED = -1e9


class TowerPair(torch.nn.Module):  # type: ignore[misc]
    """Queries and items to vectors, by two towers or by one; nearness is `scale` times the dot product.

    `half` encodes in bfloat16 on a GPU where nothing is learnt: for checks and to mine negatives.
    """

    def __init__(
        self, query: list[Any], item: list[Any], *, prompts: dict[Side, str], scale: float | None, half: bool
    ) -> None:
        super().__init__()
        modules = query if query is item else [Router.for_query_document(query, item)]
        self.encoder = SentenceTransformer(
            modules=modules,
            prompts={"query": prompts["query"], "document": prompts["item"]},
            similarity_fn_name="dot",
            device="cpu",
        ).float()
        is_normalised = any(isinstance(module, Normalize) for module in query)
        self.scale = scale if scale is not None else _NORMALISED_SCALE if is_normalised else 1.0
        self._towers: dict[Side, list[Any]] = {"query": query, "item": item}
        self._prompts = prompts
        self._half = half
        self.steps = 0

    @classmethod
    def opened(cls, base: Path, options: TowerOptions, *, half: bool) -> TowerPair:
        """Towers that begin as `base`: an encoder of transformers, or a model of sentence-transformers."""
        try:
            with quiet(transformers):
                model = SentenceTransformer(str(base), device="cpu") if _is_sentence_transformer(base) else None
                modules = list(model.children()) if model else [Transformer(str(base))]
        except Exception as error:
            raise InputError(f"{base} cannot be read as an encoder: {error}") from error
        if not model:
            modules.append(Pooling(modules[0].get_embedding_dimension(), "cls"))
        query, item = _apart(modules, towers=options.towers, base=base)
        for tower, max_tokens in ((query, options.max_query_tokens), (item, options.max_item_tokens)):
            _adapt(tower, options)
            tower[0].max_seq_length = _max_tokens(tower[0], max_tokens)
        prompts: dict[Side, str] = {
            "query": _prompt(model, "query") if model else "",
            "item": _prompt(model, "document", "passage", "corpus") if model else "",
        }
        return cls(query, item, prompts=prompts, scale=options.scale, half=half)

    def tokens(self, side: Side, texts: Sequence[str]) -> TokenRows:
        """Texts as the tower of this side reads them."""
        transformer = self._towers[side][0]
        return TokenRows.of(
            texts,
            tokenizer=transformer.tokenizer,
            max_tokens=transformer.max_seq_length,
            prefix=self._prompts[side],
        )

    def forward(
        self, queries: list[dict[str, Any]], query_places: Any, items: list[dict[str, Any]], targets: Any, counted: Any
    ) -> dict[str, Any]:
        """Cross-entropy between `targets`, probabilities of the items for each query, and the softmax of the scores of
        those that are `counted`; both are of shape (queries, items)."""
        self.steps += 1
        query_vectors, item_vectors = self._encoded("query", queries)[query_places], self._encoded("item", items)
        # Half precision would make large dot products tie.
        with torch.autocast(query_vectors.device.type, enabled=False):
            scores = self.scale * query_vectors.float() @ item_vectors.float().T
            return {"loss": torch.nn.functional.cross_entropy(scores.masked_fill(~counted, _NOT_COUNTED), targets)}

    def vectors(self, side: Side, texts: TokenRows) -> Any:
        """All texts as float32 vectors on the model's device, without gradients."""
        # Without gradients a layer's activations are gone with the next.
        chunks, places = texts.chunks(np.arange(len(texts)), most_tokens=4 * self.tokens_at_once)
        device = self._device
        half = self._half and device.type == "cuda" and torch.cuda.is_bf16_supported()
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
                parts = [
                    self._encoded(
                        side, [{name: tensor.to(device) for name, tensor in _tensors(padded).items()}]
                    ).float()
                    for padded in map(texts.padded, chunks)
                ]
                return torch.cat(parts)[torch.from_numpy(places).to(device)]
        finally:
            self.train(was_training)

    @property
    def tokens_at_once(self) -> int:
        """How many tokens of a step are encoded together."""
        return _TOKENS_AT_ONCE.get(self._device.type, _TOKENS_AT_ONCE["cpu"])

    def publish(self, run: RunFolder) -> None:
        """Write the encoder into the run's folder, whole or not at all, where sentence-transformers finds it."""
        written = run.state / "model"
        with written_whole(written) as unfinished, quiet(transformers):
            self.encoder.save_pretrained(str(unfinished), create_model_card=False)
        run.publish(written)

    @property
    def _device(self) -> Any:
        return next(self.parameters()).device

    def _encoded(self, side: Side, chunks: list[dict[str, Any]]) -> Any:
        # More than one chunk's activations might not fit; each is computed again on the way back.
        if self.training and len(chunks) > 1:
            return torch.cat([checkpoint(self._vectors_of, side, chunk, use_reentrant=False) for chunk in chunks])
        return torch.cat([self._vectors_of(side, chunk) for chunk in chunks])

    def _vectors_of(self, side: Side, chunk: dict[str, Any]) -> Any:
        features = dict(chunk)
        for module in self._towers[side]:
            features = module(features)
        return features["sentence_embedding"]


class TowerItems:
    """The items of a collection as a dual encoder reads them; equal texts are one row of tokens, encoded once."""

    def __init__(self, towers: TowerPair, items: Items) -> None:
        texts, self.row_of = distinct_texts(items)
        self._towers = towers
        self._tokens = towers.tokens("item", texts)
        self._encoded_last: tuple[int, Any] = (-1, None)

    @property
    def vectors(self) -> Any:
        """One row per item, kept until the next step: a check and the mining after it ask for the same."""
        steps, vectors = self._encoded_last
        if steps != self._towers.steps:
            vectors = self._towers.vectors("item", self._tokens)
            vectors = vectors[torch.from_numpy(self.row_of).to(vectors.device)]
            self._encoded_last = self._towers.steps, vectors
        return vectors

    def nearest(self, queries: Any, k: int) -> IntArray:
        """Per query vector, the positions of the k items with the highest dot product, best first."""
        items = self.vectors
        at_once = max(1, _SCORES_AT_ONCE // len(items))
        with torch.no_grad():
            found = [(block @ items.T).topk(k).indices.cpu().numpy() for block in queries.split(at_once)]
        return np.concatenate(found).astype(np.intp)

    def scores(self, query: Any) -> FloatArray:
        """What a query vector's softmax is taken over, for every item."""
        return np.asarray((self._towers.scale * (self.vectors @ query)).cpu().numpy(), np.float64)

    def step(
        self,
        queries: TokenRows,
        rows: Sequence[int],
        positions: Sequence[IntArray],
        targets: Sequence[FloatArray],
        *,
        not_against: Sequence[IntArray] | None = None,
    ) -> dict[str, Any]:
        """What `TowerPair.forward` takes: queries, each with items and what their probabilities should be.

        A query's items stand against one another; with `not_against` against all items of the step, less those with the
        texts in these rows.
        """
        # A step wants the memory that the vectors of all items take.
        self._encoded_last = (-1, None)
        query_chunks, query_places = self._chunks(queries, np.array(rows, np.intp))
        shown = self.row_of[np.concatenate(positions)]
        item_chunks, columns = self._chunks(self._tokens, shown)
        row_in = np.empty(columns.max() + 1, np.intp)
        row_in[columns] = shown
        wanted = np.zeros((len(rows), len(row_in)), np.float32)
        counted = np.zeros(wanted.shape, bool)
        for at, own in enumerate(np.split(columns, np.cumsum([len(some) for some in positions])[:-1])):
            np.add.at(wanted[at], own, targets[at])
            counted[at, own] = True
            if not_against is not None:
                counted[at] = ~np.isin(row_in, not_against[at]) | (wanted[at] > 0)
        return {
            "queries": query_chunks,
            "query_places": torch.from_numpy(query_places),
            "items": item_chunks,
            "targets": torch.from_numpy(wanted),
            "counted": torch.from_numpy(counted),
        }

    def _chunks(self, texts: TokenRows, rows: IntArray) -> tuple[list[dict[str, Any]], IntArray]:
        chunks, places = texts.chunks(rows, most_tokens=self._towers.tokens_at_once)
        return [_tensors(texts.padded(chunk)) for chunk in chunks], places


def _is_sentence_transformer(folder: Path) -> bool:
    # Its cross-encoders have the same files, but no vectors of texts.
    kind = json_in(folder, "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
    return (folder / _MODULES).is_file() and kind == "SentenceTransformer"


def _apart(modules: list[Any], *, towers: str, base: Path) -> tuple[list[Any], list[Any]]:
    """The modules of the query's tower and of the item's: the same list where it is shared."""
    first, *rest = modules
    if not isinstance(first, Router):
        query, item = modules, modules if towers == "shared" else copy.deepcopy(modules)
    else:
        if towers == "shared":
            raise InputError(f"{base} has a tower for queries and one for items; train it with towers='separate'.")
        if set(first.sub_modules) != {"query", "document"}:
            raise InputError(
                f"A dual encoder has a tower for queries and one for items; {base} has {', '.join(first.sub_modules)}."
            )
        query, item = ([*first.sub_modules[name], *copy.deepcopy(rest)] for name in ("query", "document"))
    for tower in (query, item):
        if not isinstance(tower[0], Transformer):
            raise InputError(f"A tower begins with a transformer; that of {base} is a {type(tower[0]).__name__}.")
    return query, item


def _adapt(tower: list[Any], options: TowerOptions) -> None:
    """Give a tower the pooling and the length of vectors that were asked for."""
    pooling = next((at for at, module in enumerate(tower) if isinstance(module, Pooling)), None)
    if options.pooling is not None and pooling is not None:
        tower[pooling] = Pooling(tower[0].get_embedding_dimension(), options.pooling)
    if options.normalise is not None:
        tower[:] = [module for module in tower if not isinstance(module, Normalize)]
        if options.normalise:
            tower.append(Normalize())


def _max_tokens(transformer: Any, asked: int | None) -> int:
    longest = transformer.max_seq_length
    return min(
        longest if asked is None else asked,
        chosen_max_tokens(asked, config=transformer.config.to_dict(), tokenizer_config={"model_max_length": longest}),
    )


def _prompt(model: Any, *names: str) -> str:
    """What sentence-transformers would put before a text of this kind."""
    name = next((name for name in names if name in model.prompts), model.default_prompt_name)
    return model.prompts.get(name) or ""


def _tensors(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
