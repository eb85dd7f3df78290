"""What a match found: pairs as a table, the bill, the certificate, and the rows that a person should see."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np

from adacur.errors import InputError
from adacur.matching.bill import Bill
from adacur.matching.chances import Pace
from adacur.search.finding import most_above
from adacur.store.writing import sync_path

# Scores nearer than this share of their standard deviation, to the line or to each other, are for a person to judge.
_NEAR = 0.1


class Found(NamedTuple):
    """A pair that the scorer accepts. `rank` is the first stage's, from 1, None where it did not list the right row."""

    left: str
    right: str
    score: float
    relevance: float | None
    round: int
    rank: int | None = None


COLUMNS = ("left", "right", "score", "relevance", "round")


@dataclass(frozen=True, slots=True)
class MatchCertificate:
    """What is known of the pairs that were not found.

    - `recall`: the expected share found of all pairs that the scorer would accept, and `missing`, how many are expected
      to lack; estimates of the model, whatever the basis;
    - `basis`: "estimate", or "audit" where `rows` rows drawn at random were searched to the first stage's best `depth`;
    - `incomplete`: with this `confidence`, at most so many of all `of_rows` rows lack a pair within that depth (exact,
      hypergeometric); nothing is certified of what the first stage ranks lower.
    """

    recall: float
    missing: float
    basis: str = "estimate"
    rows: int = 0
    depth: int = 0
    incomplete: int | None = None
    of_rows: int = 0
    confidence: float | None = None
    seen_incomplete: int = 0

    def __str__(self) -> str:
        """The certificate as a paragraph."""
        expected = f"About {self.missing:,.0f} pairs are expected to be missing, a recall of {self.recall:.0%}"
        if self.basis == "estimate":
            return f"{expected}: an estimate of what the first stage lists, no promise. What it misses is not counted."
        return (
            f"In {self.rows:,} rows drawn at random and searched to depth {self.depth}, {self.seen_incomplete:,} "
            f"lacked a pair. With confidence {self.confidence:.0%} at most {self.incomplete:,} of all "
            f"{self.of_rows:,} rows lack one that the first stage ranks among its best {self.depth}; of what it ranks "
            f"lower nothing is certified. {expected} (an estimate)."
        )


def certificate_of(
    pace: Pace, audited: Mapping[str, bool], *, rows: int, depth: int, confidence: float
) -> MatchCertificate:
    """The certificate, given whether each audited row lacked a pair."""
    estimate = MatchCertificate(pace.expected_recall, pace.missing)
    n, bad = len(audited), sum(audited.values())
    most = most_above(rows, drawn=n, above=bad, doubt=1 - confidence)
    audit = replace(estimate, basis="audit", rows=n, depth=depth, incomplete=most, of_rows=rows)
    return replace(audit, confidence=confidence, seen_incomplete=bad) if n else estimate


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The pairs of a match, best first within each left row, and what is to be known of them.

    - `pairs`: `Found(left, right, score, relevance, round)`; the round counts the calls of its row;
    - `bill`, `certificate`: what was paid, and what is known of the rest;
    - `unmatched`: left rows without a pair; `without_text`: rows left out; `failed`: rows whose scorer failed, and why;
    - `to_look_at`: left rows whose best score lies near the line, or whose two best pairs lie near each other;
    - `accepted`: all pairs at the line or above, of which one-to-one keeps some; the certificate counts these;
    - `searched_calls`: the calls that the rows took, audits left out, known scores counted;
    - `order`: the order in which rows were matched; `learned`: whether earlier rows informed later ones.
    """

    pairs: Sequence[Found]
    bill: Bill
    certificate: MatchCertificate
    unmatched: Sequence[str] = ()
    to_look_at: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    without_text: Sequence[str] = ()
    accepted: int = 0
    searched_calls: int = 0
    order: str = "as given"
    learned: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Found]:
        return iter(self.pairs)

    @property
    def depth(self) -> int:
        """The least depth to which re-ranking every row takes as many calls."""
        return -(-self.searched_calls // max(1, self.bill.rows_done))

    def reranked(self, depth: int) -> int:
        """How many of these pairs re-ranking every row to this depth finds; by replay, without a call."""
        return sum(pair.rank is not None and pair.rank <= depth for pair in self.pairs)

    def columns(self) -> dict[str, list[Any]]:
        """The pairs by column."""
        return {name: [getattr(pair, name) for pair in self.pairs] for name in COLUMNS}

    def to_pandas(self) -> Any:
        """The pairs as a pandas frame."""
        return self._frame("pandas")

    def to_polars(self) -> Any:
        """The pairs as a Polars frame."""
        return self._frame("polars")

    def to_arrow(self) -> Any:
        """The pairs as an Arrow table."""
        return self._frame("pyarrow")

    def _frame(self, backend: Literal["pandas", "polars", "pyarrow"]) -> Any:
        kinds = (nw.String(), nw.String(), nw.Float64(), nw.Float64(), nw.Int64())
        return nw.from_dict(self.columns(), dict(zip(COLUMNS, kinds, strict=True)), backend=backend).to_native()

    def summary(self) -> str:
        """A paragraph for people."""
        rest = []
        if self.bill.stopped:
            rest.append(
                f"It was ended by the limit of {self.bill.stopped}: rows left {self.bill.rows - self.bill.rows_done:,}."
            )
        found, deepest = self.reranked(self.depth), max((pair.rank or 0 for pair in self.pairs), default=0)
        if self.accepted > len(self.pairs):
            rest.append(f"One-to-one keeps these of {self.accepted:,} accepted pairs; missing ones are counted before.")
        rest.append(str(self.certificate))
        rest.append(f"Re-ranking every row to depth {self.depth}, no fewer calls, finds {found:,} of these pairs.")
        if found < self.reranked(deepest) == len(self.pairs):
            rest.append(f"All of them takes depth {deepest:,}: {deepest * self.bill.rows_done:,} calls.")
        rest.append(
            f"{len(self.unmatched):,} rows have no pair, {len(self.to_look_at):,} are to be looked at, "
            f"{len(self.failed):,} failed. Rows were matched {self.order}"
            f"{', each by what the rows before it had taught' if self.learned else ', each by itself'}."
        )
        return f"{self.bill}. {' '.join(rest)}"


class PairsFile:
    """A CSV of pairs that is complete under its name at the end; until then, `NAME.partial` has those found so far."""

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(f"{path.name}.partial")
        self._open()

    def _open(self) -> None:
        self._file = self._partial.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLUMNS)

    def add(self, pairs: Sequence[Found]) -> None:
        """Write pairs, so that others can read them now."""
        self._writer.writerows(("" if value is None else value for value in pair[: len(COLUMNS)]) for pair in pairs)
        self._file.flush()

    def replace(self, pairs: Sequence[Found]) -> None:
        """Write these in place of all."""
        self._file.close()
        self._open()
        self.add(pairs)

    def __enter__(self) -> PairsFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        if kind is None:
            sync_path(self._partial)
            self._partial.replace(self._path)
            sync_path(self._path.parent)


def check_output(path: str | Path, *, force: bool, read: Sequence[Any] = ()) -> None:
    """Refuse an output file that exists, or whose folder does not, or that is one of the files that are `read`."""
    path = Path(path)
    if path.resolve() in [Path(one).resolve() for one in read if isinstance(one, str | Path)]:
        raise InputError(f"The output {path} is one of the files that this match reads. Give another name.")
    if path.exists() and not force:
        raise InputError(f"The output {path} exists. Give another name, or force=True (--force) to replace it.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent} for the output. Make it first.")


def one_each(pairs: Sequence[Found], *, within: bool = False) -> list[Found]:
    """The pairs of an assignment of one to one: the highest score first, then what it leaves.

    `within` one table, a row on either side counts.
    """
    taken: tuple[set[str], set[str]] = (set(), set())
    lefts, rights = taken if not within else (taken[0], taken[0])
    kept = set()
    for at in sorted(range(len(pairs)), key=lambda at: (-pairs[at].score, pairs[at].left, pairs[at].right)):
        pair = pairs[at]
        if pair.left not in lefts and pair.right not in rights:
            lefts.add(pair.left)
            rights.add(pair.right)
            kept.add(at)
    return [pair for at, pair in enumerate(pairs) if at in kept]


def is_doubtful(scores: np.ndarray[Any, Any], above: float, unit: float) -> bool:
    """Whether a person should look at a row with these scores, best first."""
    if not len(scores):
        return False
    near = _NEAR * unit
    rivals = len(scores) > 1 and scores[1] >= above and scores[0] - scores[1] <= near
    return bool(abs(scores[0] - above) <= near or rivals)
