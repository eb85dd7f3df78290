"""CrossEncoders of sentence-transformers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import InputError
from adacur.protocols import Reopening, ScorerCard
from adacur.records import Pair
from adacur.requirements import require
from adacur.scorers.cross_encoders.checkpoints import (
    checkpoint_folder,
    quiet,
    tensors_digest,
    weight_files,
    weights_hash,
    with_effect,
)
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer
from adacur.scorers.wrapping import Closing, closed

_EXTRA = "sentence-transformers"
# Tokenizers without a limit write 10^30.
_NO_LIMIT = 10**9


class SentenceTransformersScorer(Closing):
    """A `sentence_transformers.CrossEncoder`, or the folder or hub name of one; raw float32 logits.

    The identity takes the place of the model's activation, which by default is a sigmoid and ties the best items. Only
    the item is cut to fit the model, and a query that leaves it no space is refused; models that write pairs into
    a chat template cut as they do by themselves. What is opened here runs in float32 on `device`; an object keeps its
    dtype, device and limit of tokens, and outlives `close`.
    """

    can_batch_callers = True

    def __init__(
        self,
        model: Any,
        *,
        batch_size: int = 32,
        device: str | None = None,
        name: str | None = None,
        source: str | None = None,
    ) -> None:
        at_least(1, batch_size=batch_size)
        self._folder: Path | None = None
        if isinstance(model, str | Path):
            require("sentence_transformers", extra=_EXTRA)
            self._folder = checkpoint_folder(model)
            origin = str(model)
            model = _opened(self._folder, device=device)
        else:
            if isinstance(model, type) or not callable(getattr(model, "predict", None)):
                given = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
                raise InputError(
                    f"Expected a sentence_transformers.CrossEncoder, its folder or its hub name; got {given}."
                )
            if device is not None:
                raise InputError(f"device={device!r} is for a folder or a name; move the object: model.to({device!r}).")
            origin = str(getattr(getattr(model, "config", None), "_name_or_path", None) or "")
        is_folder = bool(origin) and Path(origin).is_dir()
        self._name = name or (Path(origin).resolve().name if is_folder else origin or type(model).__name__)
        self._source = source or (str(Path(origin).resolve()) if is_folder else origin or None)
        if model.num_labels != 1:
            raise InputError(
                f"A cross-encoder must give one logit per pair; {self._name!r} has {model.num_labels} labels."
            )
        self._batch_size = batch_size
        limit = model.max_seq_length
        self._max_tokens = limit if limit is not None and limit < _NO_LIMIT else None
        self._dtype = next((str(weight.dtype).removeprefix("torch.") for weight in model.parameters()), None)
        self._tokens: PairTokenizer | None = None
        tokenizer = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
        # A pair in a chat template is longer than this would count.
        if tokenizer is not None and self._max_tokens and "message" not in getattr(model, "modalities", ()):
            self._tokens = PairTokenizer(tokenizer, max_tokens=self._max_tokens)
            self.tokens_of, self.cut = self._tokens.lengths, self._tokens.cut
        self._identity = require("torch", extra=_EXTRA).nn.Identity()
        self._model: Any = model
        # Threads that share a tokenizer end in 'Already borrowed'.
        self._lock = threading.Lock()

    @cached_property
    def card(self) -> ScorerCard:
        return ScorerCard(
            name=self._name,
            backend="sentence-transformers",
            weights=self._weights(),
            dtype=self._dtype,
            max_tokens=self._max_tokens,
            source=self._source,
            settings=self._settings(),
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        if not pairs:
            return np.empty(0, np.float32)
        with self._lock:
            if self._model is None:
                raise closed(self._name)
            cutting = {}
            if self._tokens is not None:
                # A query that is too long is refused; the others stay whole.
                self._tokens.texts(list({query.text: query for query, _ in pairs}.values()), [])
                cutting = {"processing_kwargs": {"text": {"truncation": "only_second"}}}
            scores: FloatArray = self._model.predict(
                [(query.text, item.text) for query, item in pairs],
                batch_size=self._batch_size,
                show_progress_bar=False,
                activation_fn=self._identity,
                **cutting,
            )
        return scores

    def reopening(self) -> Reopening:
        """What opens this scorer elsewhere: on one GPU if it is on a GPU here, else on one CPU."""
        if self._source is None:
            raise InputError(f"It is not known where {self._name!r} comes from, so it cannot be opened elsewhere.")
        kind = getattr(self._model.device, "type", "cpu")
        again = partial(SentenceTransformersScorer, self._source, batch_size=self._batch_size, name=self._name)
        return Reopening(partial(again, device=kind), gpus=int(kind == "cuda"))

    def close(self) -> None:
        """Let go of the model; the scorer cannot score any more."""
        with self._lock:
            # The card outlives the model.
            _ = self.card
            self._model = None

    def _weights(self) -> str | None:
        """A hash of the files, or of the weights in memory: an object may have been trained since it was loaded."""
        if self._folder is not None and (files := weight_files(self._folder)):
            return weights_hash(files)
        # Other backends than torch keep their weights out of sight.
        return tensors_digest(state)[:32] if (state := self._model.state_dict()) else None

    def _settings(self) -> str:
        """A hash of tokenizer, template, prompts, modules and configuration, as the model has them now."""
        tokenizer = getattr(self._model, "tokenizer", None)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # A copy: what the last call set to cut and pad its texts is not who the model is.
            backend = type(backend).from_str(backend.to_str())
            backend.no_truncation()
            backend.no_padding()
        modules = self._model.children()
        config = getattr(self._model, "config", None)
        known: dict[str, Any] = {
            "tokenizer": backend and backend.to_str(),
            "template": getattr(tokenizer, "chat_template", None),
            "prompts": getattr(self._model, "prompts", None),
            "prompt": getattr(self._model, "default_prompt_name", None),
            "modules": [(type(module).__name__, getattr(module, "get_config_dict", dict)()) for module in modules],
            "config": config and with_effect(config.to_dict()),
        }
        content = json.dumps(known, sort_keys=True, default=lambda value: type(value).__name__)
        return hashlib.sha256(content.encode()).hexdigest()[:32]


def _opened(folder: Path, *, device: str | None) -> Any:
    library = require("sentence_transformers", extra=_EXTRA)
    # By default a checkpoint in half precision is run in half precision, and its logits tie.
    whole = {"dtype": require("torch", extra=_EXTRA).float32}
    try:
        with quiet(require("transformers", extra=_EXTRA)):
            model = library.CrossEncoder(str(folder), device=device, model_kwargs=whole)
    except Exception as error:
        raise InputError(f"{folder} cannot be read as a sentence-transformers CrossEncoder: {error}") from error
    made_for = getattr(getattr(model, "config", None), "architectures", None) or ["ForSequenceClassification"]
    if len(list(model.children())) == 1 and not made_for[0].endswith(("ForSequenceClassification", "ForCausalLM")):
        raise InputError(f"{folder} is a {made_for[0]}, not a cross-encoder: its head would be random.")
    return model
