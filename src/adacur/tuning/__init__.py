"""What to expect of an index, and which settings suit it: its own anchor queries searched again, as if they were new.

- held_out.py: anchor queries set aside by a draw, and searches for them without a scorer call.
- tune_index.py: `tune` chooses where searches start and their settings, and predicts recall; settings.py: by replay,
  judged.py: by judgements.
- compression.py: `compress` stores the model's features in less memory, and measures what that costs.
"""

from adacur.search.tuned import Judged, Mean, Tuning
from adacur.tuning.compression import Compression, compress, decompress
from adacur.tuning.held_out import HeldOut, replay
from adacur.tuning.judged import JudgedQueries
from adacur.tuning.settings import FEWEST_QUERIES, prediction_of, verdict
from adacur.tuning.tune_index import judged_queries, tune

__all__ = [
    "FEWEST_QUERIES",
    "Compression",
    "HeldOut",
    "Judged",
    "JudgedQueries",
    "Mean",
    "Tuning",
    "compress",
    "decompress",
    "judged_queries",
    "prediction_of",
    "replay",
    "tune",
    "verdict",
]
