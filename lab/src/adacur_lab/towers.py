"""A dual encoder with its loss; imported only where one is trained, as it needs torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Router, Transformer
from torch.utils.checkpoint import checkpoint

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.extras.train.ranking_model import untied
from adacur.extras.train.run_folder import written_whole
from adacur.protocols import Items
from adacur.scorers.cross_encoders.checkpoints import json_in, quiet, token_limit

Side = Literal["query", "item"]
# Weights for queries and others for items, or the same for both.
Towers = Literal["separate", "shared"]
# A query's text, the positions that it is shown, their target probabilities, and the text rows that must not count
# against them.
TowerExample = tuple[str, IntArray, FloatArray, IntArray]
# Chunks of tensors, and where each text stands in them.
Tokens = tuple[list[dict[str, Any]], Any]
_NORMALISED_SCALE = 20.0
# Texts encoded at once: their activations stay in memory until the gradients are known.
_TEXTS_AT_ONCE = {"cpu": 128, "cuda": 512}
_SCORES_AT_ONCE = 2**26
# Low enough for no weight in a softmax, and finite: minus infinity times zero is NaN.
_NOT_COUNTED = -1e9


class TowerPair(torch.nn.Module):  # type: ignore[misc]
    """Queries and items to vectors, by two towers or by one; nearness is `scale` times the dot product."""

    def __init__(self, query: list[Any], item: list[Any], *, prompts: dict[Side, str]) -> None:
        super().__init__()
        modules = query if query is item else [Router.for_query_document(query, item)]
        self.encoder = SentenceTransformer(
            modules=modules,
            prompts={"query": prompts["query"], "document": prompts["item"]},
            similarity_fn_name="dot",
            device="cpu",
        ).float()
        self.scale = _NORMALISED_SCALE if any(isinstance(module, Normalize) for module in query) else 1.0
        self._towers: dict[Side, list[Any]] = {"query": query, "item": item}
        self._prompts = prompts

    @classmethod
    def opened(cls, base: Path, *, towers: Towers, max_item_tokens: int | None = None) -> TowerPair:
        """Towers that begin as `base`: an encoder of transformers, or a model of sentence-transformers."""
        try:
            with quiet(transformers):
                model = SentenceTransformer(str(base), device="cpu") if _is_sentence_transformer(base) else None
                modules = list(model.children()) if model else [Transformer(str(base))]
        except Exception as error:
            raise InputError(f"{base} cannot be read as an encoder: {error}") from error
        if not model:
            modules.append(Pooling(modules[0].get_embedding_dimension(), "cls"))
        query, item = _apart(modules, towers=towers, base=base)
        query[0].max_seq_length = _max_tokens(query[0], None)
        item[0].max_seq_length = _max_tokens(item[0], max_item_tokens)
        prompts: dict[Side, str] = {
            "query": _prompt(model, "query") if model else "",
            "item": _prompt(model, "document", "passage", "corpus") if model else "",
        }
        return cls(query, item, prompts=prompts)

    def tokens(self, side: Side, texts: Sequence[str]) -> Tokens:
        """Texts as chunks of tensors, the longest first."""
        transformer, prompt = self._towers[side][0], self._prompts[side]
        longest_first = np.argsort([-len(text) for text in texts], kind="stable")
        places = np.empty_like(longest_first)
        places[longest_first] = np.arange(len(texts))
        at_once = _TEXTS_AT_ONCE[self._device.type]
        chunks = []
        for start in range(0, len(texts), at_once):
            some = [prompt + texts[at] for at in longest_first[start : start + at_once]]
            encoded = transformer.tokenizer(
                # Half a surrogate pair, as crawled JSON has them, cannot be encoded; it must not end a training.
                [text.encode(errors="replace").decode() for text in some],
                padding=True,
                truncation=True,
                max_length=transformer.max_seq_length,
                return_tensors="pt",
            )
            chunks.append({name: encoded[name] for name in ("input_ids", "attention_mask")})
        return chunks, torch.from_numpy(places)

    def forward(self, queries: Tokens, items: Tokens, targets: Any, counted: Any) -> dict[str, Any]:
        """Cross-entropy between `targets`, probabilities of the items for each query, and the softmax of the scores of
        those that are `counted`; both are of shape (queries, items)."""
        query_vectors, item_vectors = self._encoded("query", *queries), self._encoded("item", *items)
        # Half precision would make large dot products tie.
        with torch.autocast(query_vectors.device.type, enabled=False):
            scores = self.scale * query_vectors.float() @ item_vectors.float().T
            return {"loss": torch.nn.functional.cross_entropy(scores.masked_fill(~counted, _NOT_COUNTED), targets)}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return untied(super().state_dict(*args, **kwargs))

    def vectors(self, side: Side, texts: Sequence[str]) -> Any:
        """All texts as float32 vectors on the model's device, without gradients."""
        was_training = self.training
        self.eval()
        try:
            chunks, places = self.tokens(side, texts)
            on_device = ({name: ids.to(self._device) for name, ids in chunk.items()} for chunk in chunks)
            with torch.no_grad():
                return self._encoded(side, on_device, places.to(self._device)).float()
        finally:
            self.train(was_training)

    def save(self, folder: Path) -> None:
        """Write the encoder, whole or not at all, as sentence-transformers reads it."""
        with written_whole(folder) as unfinished, quiet(transformers):
            self.encoder.save_pretrained(str(unfinished), create_model_card=False)

    @property
    def _device(self) -> Any:
        return next(self.parameters()).device

    def _encoded(self, side: Side, chunks: Iterable[dict[str, Any]], places: Any) -> Any:
        # Of several chunks the activations might not fit; each is computed again for its gradients.
        if self.training and len(chunks := list(chunks)) > 1:
            parts = [checkpoint(self._vectors_of, side, chunk, use_reentrant=False) for chunk in chunks]
        else:
            parts = [self._vectors_of(side, chunk) for chunk in chunks]
        return torch.cat(parts)[places]

    def _vectors_of(self, side: Side, chunk: dict[str, Any]) -> Any:
        features = dict(chunk)
        for module in self._towers[side]:
            features = module(features)
        return features["sentence_embedding"]


class TowerItems:
    """The items of a collection as a dual encoder sees them; equal texts are one row, encoded once."""

    def __init__(self, towers: TowerPair, items: Items) -> None:
        texts, self.row_of = np.unique([item.text for item in items.at(range(len(items)))], return_inverse=True)
        self.texts = texts.tolist()
        self._towers = towers

    def nearest(self, queries: Sequence[str], k: int) -> IntArray:
        """Per query, the positions of the k items with the highest dot product, best first; encodes all of them."""
        items = self._towers.vectors("item", self.texts)
        items = items[torch.from_numpy(self.row_of).to(items.device)]
        at_once = max(1, _SCORES_AT_ONCE // len(items))
        blocks = self._towers.vectors("query", queries).split(at_once)
        best = [(block @ items.T).topk(k).indices.cpu().numpy() for block in blocks]
        return np.concatenate(best).astype(np.intp)

    def step(self, examples: Sequence[TowerExample]) -> dict[str, Any]:
        """The arguments of `TowerPair.forward`: each different text of the step once."""
        rows = np.unique(np.concatenate([self.row_of[positions] for _, positions, _, _ in examples]))
        targets = np.zeros((len(examples), len(rows)), np.float32)
        counted = np.ones(targets.shape, bool)
        for at, (_, positions, probabilities, not_against) in enumerate(examples):
            columns = np.searchsorted(rows, self.row_of[positions])
            np.add.at(targets[at], columns, probabilities)
            counted[at] = ~np.isin(rows, not_against) | (targets[at] > 0)
        return {
            "queries": self._towers.tokens("query", [text for text, *_ in examples]),
            "items": self._towers.tokens("item", [self.texts[row] for row in rows]),
            "targets": torch.from_numpy(targets),
            "counted": torch.from_numpy(counted),
        }


def _is_sentence_transformer(folder: Path) -> bool:
    # Its cross-encoders have the same files, but no vectors of texts.
    kind = json_in(folder, "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
    return (folder / "modules.json").is_file() and kind == "SentenceTransformer"


def _apart(modules: list[Any], *, towers: Towers, base: Path) -> tuple[list[Any], list[Any]]:
    """The modules of the query's tower and of the item's: the same list where it is shared."""
    if towers not in ("separate", "shared"):
        raise InputError(f"towers must be 'separate' or 'shared'; got {towers!r}.")
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
            raise InputError(f"A tower must begin with a transformer; that of {base} is a {type(tower[0]).__name__}.")
    return query, item


def _max_tokens(transformer: Any, limit: int | None) -> int:
    longest = transformer.max_seq_length
    return token_limit(limit, config=transformer.config.to_dict(), tokenizer_length=longest, usual=512).tokens


def _prompt(model: Any, *names: str) -> str:
    """The prompt that sentence-transformers puts before a text of this kind."""
    name = next((name for name in names if name in model.prompts), model.default_prompt_name)
    return model.prompts.get(name) or ""
