"""Whether it is worth it, in a few minutes: what `adacur try` measures on a sample, and what it advises.

- material.py: the items, queries and judgements of a folder; draws that a second run repeats.
- planning.py: how much a few minutes allow, measured before anything else.
- measuring.py: what was scored, the quality and recall of every way to search within it, and what anchor queries save.
- advice.py: the answers in words, with intervals and commands.
- trial.py: `try_collection`, which does it all.
"""

from adacur.trying.advice import Answer
from adacur.trying.planning import TrialPlan
from adacur.trying.trial import Trial, try_collection

__all__ = ["Answer", "Trial", "TrialPlan", "try_collection"]
