"""Every rival on the same questions, at equal scorer calls a question, by replay of exact scores.

- `contest`: one collection, its questions, and the methods that answer them;
- `questions`: a question that pays for exact scores call by call;
- `graphs`: GAR by pyterrier-adaptive, and a greedy walk; `feedback`: Qdrant's relevance feedback.

`graphs` and `feedback` need the extra "rivals" of this package. `lab/benchmarks/rivals.py` runs the contest.
"""

from adacur_lab.rivals.contest import METHODS, TUNED_ON, Contest, Contestant
from adacur_lab.rivals.questions import Question, Rival, round_sizes

__all__ = ["METHODS", "TUNED_ON", "Contest", "Contestant", "Question", "Rival", "round_sizes"]
