"""What to expect of an index, and which settings suit it: its own anchor queries searched again, as if they were new.

- held_out.py: anchor queries set aside by a draw; replaying.py: searches for them without a scorer call.
- settings.py: `tune` chooses the settings of "gaussian" searches, and predicts recall.
- compression.py: `compress` stores the model's features in less memory, and measures what that costs.
- judged.py: `tune_fuse` chooses by judgements how much the first stage counts in the final order.
"""

from adacur.search.tuned import Tuning
from adacur.tuning.compression import Compression, compress, decompress
from adacur.tuning.held_out import HeldOut
from adacur.tuning.judged import JudgedChoice, JudgedTuning, calls_to_tune_fuse, tune_fuse
from adacur.tuning.replaying import replay
from adacur.tuning.settings import FEWEST_QUERIES, prediction_of, tune, verdict

__all__ = [
    "FEWEST_QUERIES",
    "Compression",
    "HeldOut",
    "JudgedChoice",
    "JudgedTuning",
    "Tuning",
    "calls_to_tune_fuse",
    "compress",
    "decompress",
    "prediction_of",
    "replay",
    "tune",
    "tune_fuse",
    "verdict",
]
