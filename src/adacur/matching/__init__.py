"""Two tables matched by a scorer, with a bill: `adacur.match`.

- two_tables.py: the door; rows_loop.py: batches of rows, each one search of many queries (search/rounds.py)
- tables.py: rows of files, frames and lists, and the right table as an index; one_table.py: both tables being one
- chances.py: how likely a pair is to be accepted, which chance is worth a call, and so when a row ends
- bill.py: what it would cost, what is paid, and the walls; result.py: pairs, certificate, rows to look at
"""

from __future__ import annotations

from adacur.matching.bill import Bill, MatchEstimate
from adacur.matching.result import Found, MatchCertificate, Matches
from adacur.matching.two_tables import match

__all__ = ["Bill", "Found", "MatchCertificate", "MatchEstimate", "Matches", "match"]
