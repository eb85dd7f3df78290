"""Calls saved and recall lost by stopping early, and how far its expectations hold; by replay.

    python lab/benchmarks/early_stopping.py --scores DIR [--scores DIR …] [--held-out] [--fit] [--json OUT] [--plot PNG]
    python lab/benchmarks/early_stopping.py --add OUT [--add OUT …] --plot PNG

Reads folders of exact scores (see score_folders.py). Each search is the default of `index.search` in the number of
rounds asked for, with `stop_when` and without; "evenly" is the recall lost if every query had been given the mean
number of calls instead. Intervals are 95 % bootstrap intervals over the queries of a folder.
--held-out replays the last anchor queries against the others in place of the test queries, and --fit prints the
constants of `GaussianModel`'s chance_above that are likeliest on all --scores, each k of a folder alike: choose
on held-out queries, report on test queries.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from score_folders import ScoreFolder, read_score_folder

from adacur import AnchorIndex, Gaussian, Hits
from adacur.approximation import TopK
from adacur.evaluation import bootstrap_interval
from adacur.search import AdaptiveSearch, adaptive

RECALLS = np.array([0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0001])
# So near 1 that only a search that cannot be wrong would stop.
NEVER = 1 - 1e-15
CHANCES = np.array([0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0001])


class Watched(AdaptiveSearch):
    """Notes each chance that it goes by beside what the item's score turned out to be."""

    truth: dict[str, np.ndarray]
    # Distance from the score to beat in spreads, its rank, the chance stated, and whether the item was above.
    seen: list[np.ndarray]

    def settle(self, predicted: Any, chance_above: Any) -> None:
        state, index = chance_above.func.__self__, chance_above.args[0]
        exact = np.concatenate([round_.exact for round_ in self.rounds])
        spread = state._queries[index].residual_deviation
        if len(exact) >= self._k and np.isfinite(spread):
            best = np.sort(exact)[-self._k : -self._k + 1 or None]
            positions, promising = self.prospects.best(
                min(adaptive.SHORTLIST, np.count_nonzero(self.prospects.unscored)),
                acquisition=TopK(),
                stream=0,
                without=np.empty(0, dtype=np.intp),
                predicted=predicted,
            )
            chances = chance_above(promising, best, ranks=np.array([self._k]))[:, 0]
            distances = (promising - state._features.scale.rarity(best)) / spread
            above = self.truth[self.query.id][positions] > best
            Watched.seen.append(np.stack([distances, np.full(len(above), self._k), chances, above]))
        super().settle(predicted, chance_above)


def recall_by_round(hits: Hits, exact: np.ndarray, k: int) -> np.ndarray:
    """Top-k-recall after each round; items that tie with the k-th best count, as everywhere."""
    least = np.partition(exact, -k)[-k]
    found = np.cumsum([int((round_.exact >= least).sum()) for round_ in hits.trace.rounds])
    return np.asarray(np.minimum(found, k) / k)


def padded(values: Any, n: int) -> np.ndarray:
    """So many values, the last one again where a search was certain before its last round."""
    return np.pad(np.asarray(values, dtype=float)[:n], (0, max(0, n - len(values))), mode="edge")


def measure(
    folder: ScoreFolder,
    *,
    ks: list[int],
    budgets: list[int],
    rounds_of: list[int],
    stops: list[float],
    embeddings: bool = True,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of calls saved and recall lost, and rows of what was expected beside what was measured."""
    # Without a dense first stage of its own, an index has no item vectors.
    index = folder.index if embeddings else AnchorIndex(folder.index.anchors, scorer=folder.scorer)
    Watched.truth = dict(zip((query.id for query in folder.test), folder.test_scores, strict=True))
    rows, reliability = [], []
    for k, calls, n_rounds in itertools.product(ks, budgets, rounds_of):
        cell = {"domain": folder.domain, "anchors": len(folder.anchors), "k": k, "budget": calls, "rounds": n_rounds}
        Watched.seen = []
        # A search that goes on does what it did before, so one that never stops tells of all that would have.
        hits = index.search(
            folder.test, k, budget=calls, method=Gaussian(rounds=n_rounds, stop_when=NEVER), first=folder.dense
        )
        noted = np.concatenate(Watched.seen, axis=1)
        spent = np.stack([padded(np.cumsum([len(r.positions) for r in own.trace.rounds]), n_rounds) for own in hits])
        recall = np.stack(
            [
                padded(recall_by_round(own, exact, k), n_rounds)
                for own, exact in zip(hits, folder.test_scores, strict=True)
            ]
        )
        expected = np.stack(
            [
                padded([r.expected_recall for r in own.trace.rounds if r.expected_recall is not None], n_rounds - 1)
                for own in hits
            ]
        )
        fair = spent[:, :-1] >= k
        reliability.append(cell | {"recall": binned(expected[fair], recall[:, :-1][fair], RECALLS)})
        reliability[-1] |= {"items": binned(noted[2], noted[3], CHANCES), "noted": noted}
        for stop in stops:
            last = np.where((expected >= stop).any(axis=1), (expected >= stop).argmax(axis=1), n_rounds - 1)
            early = last < n_rounds - 1
            at = np.arange(len(hits)), last
            lost = recall[:, -1] - recall[at]
            rows.append(
                cell
                | {"stop_when": stop, "queries": len(hits), "whole": float(recall[:, -1].mean())}
                | interval("saved", 1 - spent[at] / calls)
                | interval("lost", lost)
                | {
                    "lost_evenly": float(
                        recall[:, -1].mean() - np.interp(spent[at].mean(), spent[0], recall.mean(axis=0))
                    )
                }
                | {"stopped": float(early.mean())}
                | {"expected": float(expected[early, last[early]].mean()) if early.any() else None}
                | {"measured": float(recall[at][early].mean()) if early.any() else None}
            )
            print(line(rows[-1]), flush=True)
    return rows, reliability


def interval(name: str, values: np.ndarray) -> dict[str, float]:
    low, high = bootstrap_interval(values)
    return {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}


def binned(stated: np.ndarray, came: np.ndarray, edges: np.ndarray) -> list[dict[str, float]]:
    """Means of what was stated and of what came true, between the edges of what was stated."""
    places = np.searchsorted(edges, stated, side="right")
    return [
        {"n": int((places == at).sum())}
        | {"stated": float(stated[places == at].mean()), "came": float(came[places == at].mean())}
        for at in range(1, len(edges))
        if (places == at).any()
    ]


def about(row: dict[str, Any]) -> str:
    return (
        f"  {row['domain']:10} {row['anchors']:>3} anchors k={row['k']:<3} B={row['budget']:<3} "
        f"rounds={row['rounds']:<2}"
    )


def line(row: dict[str, Any]) -> str:
    held = (
        "none stopped" if row["expected"] is None else f"expected {row['expected']:.3f}, measured {row['measured']:.3f}"
    )
    return (
        f"{about(row)} stop_when={row['stop_when']:<5}: "
        f"saved {row['saved']:.3f} [{row['saved_low']:.3f}, {row['saved_high']:.3f}]  "
        f"lost {row['lost']:+.4f} [{row['lost_low']:+.4f}, {row['lost_high']:+.4f}] of {row['whole']:.3f}  "
        f"(evenly {row['lost_evenly']:.4f})  "
        f"{row['stopped']:.0%} stopped, {held}"
    )


def setting(row: dict[str, Any]) -> tuple[int, int, int, int, float]:
    return row["anchors"], row["k"], row["budget"], row["rounds"], row["stop_when"]


def likeliest(noted: list[np.ndarray]) -> np.ndarray:
    """Log-odds at distance 0 and rank 1, per spread, and per logarithm of the rank, by Newton's method."""
    weights = np.concatenate([np.full(own.shape[1], 1 / (100 + own[3].sum())) for own in noted])
    distances, ranks, _, above = np.concatenate(noted, axis=1)
    known = np.stack([np.ones(len(ranks)), distances, np.log(ranks)], axis=1)
    odds = np.array([-3.0, 1.0, 0.0])
    for _ in range(50):
        chances = 1 / (1 + np.exp(-known @ odds))
        slope = known.T @ (weights * (above - chances))
        curve = (known * (weights * chances * (1 - chances))[:, None]).T @ known
        # With a single k, what its rank adds cannot be told from what holds at first.
        odds = odds + np.clip(np.linalg.pinv(curve, rcond=1e-9, hermitian=True) @ slope, -1, 1)
    return odds


def plot(reliability: list[dict[str, Any]], rows: list[dict[str, Any]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.4, 4.1), layout="constrained")
    items, recalls, trade = figure.subplots(1, 3)
    domains = list(dict.fromkeys(row["domain"] for row in reliability))
    colours = {domain: f"C{at}" for at, domain in enumerate(domains)}
    ks = sorted({row["k"] for row in reliability})
    looks = dict(zip(ks, ("-",) if len(ks) == 1 else (":", "-", "--", "-."), strict=False))
    for own in reliability:
        if own["budget"] != reliability[0]["budget"] or own["rounds"] != max(row["rounds"] for row in reliability):
            continue
        look = {"color": colours[own["domain"]], "ls": looks[own["k"]], "marker": ".", "lw": 1.2}
        # Where few items were given a chance, how many came above is chance itself.
        solid = [point for point in own["items"] if point["n"] * point["stated"] >= 10 and point["came"] > 0]
        items.plot([point["stated"] for point in solid], [point["came"] for point in solid], **look)
        solid = [point for point in own["recall"] if point["n"] >= 30]
        label = f"{own['domain']}, k = {own['k']}"
        recalls.plot([point["stated"] for point in solid], [point["came"] for point in solid], **look, label=label)
    most = max(row["rounds"] for row in rows)
    for domain in domains:
        own = [row for row in rows if row["domain"] == domain and row["k"] == 10 and row["rounds"] == most]
        own = [row for row in own if row["budget"] == reliability[0]["budget"]]
        saved, lost, evenly = ([row[name] for row in own] for name in ("saved", "lost", "lost_evenly"))
        trade.plot(saved, lost, color=colours[domain], marker=".", lw=1.2)
        trade.plot(saved, evenly, color=colours[domain], lw=0.8, ls=":")
        for row in own:
            trade.annotate(f" {row['stop_when']:g}", (row["saved"], row["lost"]), fontsize=7, va="top")
    items.plot([1e-4, 1], [1e-4, 1], color="grey", lw=0.8)
    items.set(xscale="log", yscale="log", xlabel="chance stated that an item is above the k-th best")
    items.set(ylabel="share that was", title="chances of items")
    recalls.plot([0, 1], [0, 1], color="grey", lw=0.8)
    recalls.set(
        xlabel="recall expected after a round",
        ylabel="recall measured",
        title="recall so far",
        xlim=(0.5, 1.01),
        ylim=(0.5, 1.01),
    )
    trade.axhline(0.005, color="grey", lw=0.8, ls="--")
    trade.set(xlabel="share of calls saved", ylabel="Top-10-recall lost")
    trade.set(title="k = 10; dotted: fewer calls for all alike")
    for axis in (items, recalls, trade):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*recalls.get_legend_handles_labels(), loc="outside lower center", ncols=len(domains), frameon=False)
    figure.savefig(file, dpi=150, metadata={"Software": None})


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def shares(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", action="append", default=[], help="a folder of exact scores; may be repeated")
    parser.add_argument("--add", action="append", type=Path, default=[], help="what --json wrote; may be repeated")
    parser.add_argument("--k", type=numbers, default=[10])
    parser.add_argument("--budgets", type=numbers, default=[200])
    parser.add_argument("--rounds", type=numbers, default=[5, 10])
    parser.add_argument("--stop-when", type=shares, default=[0.9, 0.95, 0.98, 0.99])
    parser.add_argument("--anchors", type=numbers, default=[500], help="the first N anchor queries; several: each")
    parser.add_argument("--queries", type=int, default=10_000, help="the first N test queries (default: all)")
    parser.add_argument("--held-out", action="store_true", help="the last --queries anchor queries instead")
    parser.add_argument("--no-embeddings", action="store_true", help="for the first batch and its ranks only")
    parser.add_argument("--fit", action="store_true", help="print the likeliest constants")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parser.add_argument("--plot", type=Path, help="where to draw them")
    arguments = parser.parse_args()
    adaptive.AdaptiveSearch = Watched  # type: ignore[misc,attr-defined]
    rows: list[dict[str, Any]] = []
    reliability: list[dict[str, Any]] = []
    for file in arguments.add:
        stored = json.loads(file.read_text())
        rows += stored["rows"]
        reliability += stored["reliability"]
    for where, n_anchors in itertools.product(arguments.scores, arguments.anchors):
        folder = read_score_folder(where, n_anchors=n_anchors, n_queries=arguments.queries, held_out=arguments.held_out)
        kind = "held-out anchor" if arguments.held_out else "test"
        print(
            f"\n{folder.domain}: {len(folder.items):,} items, {len(folder.anchors)} anchors, "
            f"{len(folder.test)} {kind} queries"
        )
        measured, noted = measure(
            folder,
            ks=arguments.k,
            budgets=arguments.budgets,
            rounds_of=arguments.rounds,
            stops=arguments.stop_when,
            embeddings=not arguments.no_embeddings,
        )
        rows += measured
        reliability += noted
    print("\nmean of the folders")
    for anchors, k, calls, n_rounds, stop in dict.fromkeys(map(setting, rows)):
        alike = [row for row in rows if setting(row) == (anchors, k, calls, n_rounds, stop)]
        saved, lost = (np.mean([row[name] for row in alike]) for name in ("saved", "lost"))
        print(
            f"  {anchors:>3} anchors k={k:<3} B={calls:<3} rounds={n_rounds:<2} stop_when={stop:<5}: "
            f"saved {saved:.3f}  lost {lost:+.4f}"
        )
    print("\nitems: chance stated -> share that was above the k-th best (n)")
    for own in reliability:
        cells = "  ".join(f"{point['stated']:.4f}->{point['came']:.4f} ({point['n']})" for point in own["items"])
        print(f"{about(own)} {cells}")
    print("\nafter a round: recall expected -> measured (n)")
    for own in reliability:
        cells = "  ".join(f"{point['stated']:.3f}->{point['came']:.3f} ({point['n']})" for point in own["recall"])
        print(f"{about(own)} {cells}")
    if arguments.fit:
        print("\nlikeliest log-odds: at first, per spread, per logarithm of the rank:", end=" ")
        print(likeliest([own["noted"] for own in reliability]).round(3).tolist())
    if arguments.plot:
        plot(reliability, rows, arguments.plot)
    if arguments.json:
        kept = [{name: value for name, value in own.items() if name != "noted"} for own in reliability]
        arguments.json.write_text(json.dumps({"rows": rows, "reliability": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
