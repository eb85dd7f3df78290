"""First stages: the cheap search that says where an expensive one starts. Each speaks `protocols.FirstStage`.

Where to change what:

- `bm25`, `dense`, `matrix`: one first stage each; `saved` has the files that all share (settings and ids). "random"
  names none: a search then starts from a random draw. `joined`: several as one, as in first="bm25+dense".
- `stage_table`: the names. To add a first stage: write its file here, add one line to `FIRST_STAGES`, and one to the
  makers of tests/contracts/test_first_stages.py. The command line, `adacur.build`, edits and loading read the table.
- `placing`: a first stage in an index: translates its positions where the index has the items in another order, and
  looks up ids for search engines that answer by id.
- `encoders`: what turns texts into vectors, how it is opened, and the card by which it is recognised.

search/index_stages.py keeps them in index folders.
"""

from __future__ import annotations

from adacur.first_stages.bm25 import BM25
from adacur.first_stages.dense import Dense
from adacur.first_stages.encoders import Encoder, EncoderCard, OnnxEncoder, SentenceTransformerEncoder, bge_small
from adacur.first_stages.joined import Joined
from adacur.first_stages.matrix import Matrix
from adacur.first_stages.placing import AnyStage, Placed, Retriever, as_hits, placed
from adacur.first_stages.saved import read_settings
from adacur.first_stages.stage_table import FIRST_STAGES, first_stage_named, load_first_stage

__all__ = [
    "BM25",
    "FIRST_STAGES",
    "AnyStage",
    "Dense",
    "Encoder",
    "EncoderCard",
    "Joined",
    "Matrix",
    "OnnxEncoder",
    "Placed",
    "Retriever",
    "SentenceTransformerEncoder",
    "as_hits",
    "bge_small",
    "first_stage_named",
    "load_first_stage",
    "placed",
    "read_settings",
]
