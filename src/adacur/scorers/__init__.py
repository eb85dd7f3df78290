"""Scorers: the expensive f(query, item), from a model, a service, another library, a function or a matrix.

Where to change what, from the name of a scorer to its scores:

- opening.py: the door; from an object, a path, a URL or a name to a scorer. consent.py: what an index folder may name
- calling.py (and scores.py): where other rooms call scorers; scores are checked there and failures named
- cross_encoders/: inference of our own. onnx.py (CPU), torch.py (GPU); opened_model.py (what a model is, its prompt and
  readout: pair_prompt.py, template_process.py, readout.py, known_rerankers.py), forwards.py, decoder.py over
  decoder_forward.py and shared_prefixes.py (language models: batches that share beginnings), pooled_head.py;
  pair_tokens.py (queries and items to token ids), item_table.py (those of items by position), pair_batches.py,
  packed_encoder.py, attention.py and gpu_kernels.py (the forward pass without padding); recorded.py (small calls as
  CUDA graphs); emb_cross_encoder.py ([EMB] heads), checkpoints.py and weights.py (folders of models), onnx_export.py
- http.py: rerank servers; http_dialects.py: how each kind is spoken to, one entry per kind. judge.py: language models
  that judge. Both over http_address.py (from a URL to a server) and http_requests.py (batches, retries, keys)
- function.py (a function of pairs is the adapter of any other library), matrix.py, sentence_transformers.py
- wrappers: cached.py (over score_file.py), metered.py, shared_batches.py; what
  they share: wrapping.py
- prices.py: what pairs are charged for, counted before they are scored, and a dated table of prices
- event_loop.py: async scorers for callers that are not async
"""

from __future__ import annotations

from adacur.scorers.by_name import scorer
from adacur.scorers.cached import Cached, CacheWarning
from adacur.scorers.calling import ascore, score_grid
from adacur.scorers.cross_encoders.onnx import OnnxCrossEncoder
from adacur.scorers.cross_encoders.pair_prompt import PairPrompt
from adacur.scorers.cross_encoders.readout import Readout
from adacur.scorers.cross_encoders.torch import TorchCrossEncoder
from adacur.scorers.function import FunctionScorer
from adacur.scorers.http import HttpScorer, ProbabilityWarning
from adacur.scorers.judge import JudgeScorer
from adacur.scorers.known import KnownScores, MatrixScorer
from adacur.scorers.metered import Metered
from adacur.scorers.prices import count_tokens, price_of
from adacur.scorers.sentence_transformers import SentenceTransformersScorer

__all__ = [
    "CacheWarning",
    "Cached",
    "FunctionScorer",
    "HttpScorer",
    "JudgeScorer",
    "KnownScores",
    "MatrixScorer",
    "Metered",
    "OnnxCrossEncoder",
    "PairPrompt",
    "ProbabilityWarning",
    "Readout",
    "SentenceTransformersScorer",
    "TorchCrossEncoder",
    "ascore",
    "count_tokens",
    "price_of",
    "score_grid",
    "scorer",
]
