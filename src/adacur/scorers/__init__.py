"""Scorers: the expensive f(query, item), from a model, a service, another library, a function or a matrix.

Where to change what, from the name of a scorer to its scores:

- by_name.py: the door, from an object, a path, a URL or a name to a scorer; consent.py: what an index folder may name
- calling.py (and scores.py beside the rooms): where other rooms call scorers, and scores are checked
- function.py: a function of pairs, the adapter of any other library; sentence_transformers.py; known.py: a matrix
- cross_encoders/: onnx.py (CPU), torch.py over forwards.py, the door to faster inference; opened_model.py (what a
  model is: checkpoints.py, its prompt and readout: pair_prompt.py, readout.py); pair_tokens.py
  (pairs as token ids: prompt_pieces.py)
- http.py: rerank servers, http_dialects.py: one entry per kind; judge.py: language models that judge; both over
  remote.py (addresses, keys, batches, retries, limits)
- wrappers: cached.py (over score_file.py), metered.py (calls, tokens and prices); what they share: wrapping.py
- event_loop.py: async scorers for callers that are not async, and the waits between attempts
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
from adacur.scorers.known import MatrixScorer
from adacur.scorers.metered import Metered, count_tokens, price_of
from adacur.scorers.sentence_transformers import SentenceTransformersScorer

__all__ = [
    "CacheWarning",
    "Cached",
    "FunctionScorer",
    "HttpScorer",
    "JudgeScorer",
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
