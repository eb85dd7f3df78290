"""Two tables matched by a scorer, with a bill: `adacur.match`.

- two_tables.py: the door; rows_loop.py: batches of rows, each one search of many queries (search/rounds.py)
- tables.py, sides.py: rows of files, frames and lists; the right table as an index; both tables being one
- chances.py: how likely a pair is to be accepted, and when a row ends; pacing.py: which chance is worth a call
- bill.py: what is paid, and the walls; forecast.py: what it would be; result.py: pairs, certificate, rows to look at
"""

from __future__ import annotations

from adacur.matching.bill import Bill
from adacur.matching.forecast import MatchEstimate
from adacur.matching.result import Found, MatchCertificate, Matches, Reranked
from adacur.matching.two_tables import match

__all__ = ["Bill", "Found", "MatchCertificate", "MatchEstimate", "Matches", "Reranked", "match"]
