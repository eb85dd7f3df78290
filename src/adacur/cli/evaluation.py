"""`adacur evaluate`: what is told before, during and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from rich.table import Table
from rich.text import Text

from adacur.cli.messages import counted, duration_range, explained, failed, pace, print_json, print_table, tell
from adacur.core.errors import InputError
from adacur.core.extras import install_command
from adacur.evaluation import Run, bootstrap_interval
from adacur.experiments import Outcome, Spec, StoredRun, starting_spec
from adacur.experiments import evaluate as run_all
from adacur.experiments.sources import Start
from adacur.experiments.spec import DEFAULT_SCORER
from adacur.experiments.starting import is_edited
from adacur.index import Estimate
from adacur.report import panels, summary
from adacur.report.lines import pooled
from adacur.report.summary import worth

__all__ = ["evaluate_command"]

_MINUTES = 5.0
# Estimates are not known better.
_TOO_LONG = 1.5
_FEW_ITEMS = 200
_COMMON = ("anchors", "first", "rounds", "seed", "pool", "budget")


def evaluate_command(what: Path, given: Mapping[str, Any], *, output: Path | None, trec: bool, as_json: bool) -> bool:
    """Evaluate a spec, or a BEIR folder with the options given; False if a run failed."""
    if what.is_dir():
        # "." and ".." have no name to add to.
        beside = what if what.name not in ("", "..") else what.resolve()
        spec = _spec_of_folder(what, given, output or beside.with_name(f"{beside.name}-results"))
    elif not what.exists():
        raise InputError(f"There is neither a folder nor a spec {what}. Give a BEIR folder or a spec (.toml).")
    elif what.suffix != ".toml":
        raise InputError(
            f"{what} is a file, and not a spec (.toml). Give a spec, or a BEIR folder: corpus.jsonl, queries.jsonl and,"
            " for judged quality, qrels/test.tsv."
        )
    else:
        if given:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"A spec says all by itself; leave out {options}, or change the spec.")
        spec = Spec.from_file(what)
        spec = spec if output is None else replace(spec, output=output)
    minutes = float(given.get("minutes", _MINUTES)) if what.is_dir() else None
    outcome = run_all(spec, trec=trec, on_start=_tell_start, on_cost=partial(_tell_cost, minutes=minutes))
    if as_json:
        print_json(_as_json(outcome))
    else:
        _show(outcome, spec)
    for failure in outcome.failed:
        settings = ", ".join(f"{name} {value}" for name, value in failure.settings.items())
        failed(f"{failure.collection}, {settings}: {explained(failure.error)}")
    if not as_json:
        again = f", {outcome.searched_again} searched again for their TREC files" if outcome.searched_again else ""
        reused = f"{outcome.found:,} of them reused" if outcome.found else "none reused"
        tell(f"{len(outcome.runs)} runs stored in {spec.output / 'runs'}, {reused}{again}.")
        if outcome.runs:
            install = "" if find_spec("matplotlib") else f"{install_command('report')} && "
            tell(f"Next: {install}adacur report {quote(str(spec.output))}")
    return not outcome.failed


def _spec_of_folder(folder: Path, given: Mapping[str, Any], output: Path) -> Spec:
    """The spec of a folder: one that was changed by hand is taken as it is, any other written anew."""
    file = output / "spec.toml"
    if given or not is_edited(file):
        spec = Spec.from_file(_started(folder, given, output))
        tell(f"The spec is {file}; change it and run `adacur evaluate {quote(str(file))}` for more.")
        if "budgets" in given and max(_numbers("--budgets", given["budgets"])) > max(spec.budgets):
            tell(f"Budgets above the number of items are taken as {max(spec.budgets)}.")
        return spec
    spec = Spec.from_file(file)
    if not any(one.folder and Path(one.folder).resolve() == folder.resolve() for one in spec.collections):
        raise InputError(f"{file} was changed by hand and does not evaluate {folder}. Choose another --output.")
    tell(f"The spec is {file}, as it was changed by hand.")
    return spec


def _started(folder: Path, given: Mapping[str, Any], output: Path) -> Path:
    search: dict[str, Any] = {"first": ["bm25"]}
    search |= {name: _texts(given[name]) for name in ("methods", "first") if name in given}
    search |= {"encoder": given["encoder"]} if "encoder" in given else {}
    search |= {"k": _numbers("-k", given["k"])} if "k" in given else {}
    options: dict[str, Any] = {"n_anchors": given.get("anchors"), "n_queries": given.get("queries")}
    options |= {name: given[name] for name in ("minutes", "seed") if name in given}
    options |= {"n_items": given["items"]} if "items" in given else {}
    if "budgets" in given:
        options["budgets"] = _numbers("--budgets", given["budgets"])
    if "max_item_tokens" in given:
        options["scorer_options"] = {"max_item_tokens": given["max_item_tokens"]}
    scorer = given.get("scorer", DEFAULT_SCORER)
    return starting_spec(folder, scorer=scorer, output=output, search=search, **options)


def _tell_start(start: Start) -> None:
    if start.scorer is not None:
        tell(f"Scorer: {start.scorer.card}")
    anchors = (
        counted(start.n_anchors, "anchor query", "anchor queries")
        if start.n_anchors
        else "no anchor queries, since no method uses any"
    )
    told = f"{start.collection}: {start.n_test:,} test queries, {anchors}"
    if start.pseudo_anchors:
        told += ": pseudo-queries, cut from the items. Real queries usually give higher recall"
    tell(f"{told}.")
    for one in start.notes:
        tell(one)


def _tell_cost(name: str, cost: Estimate, *, minutes: float | None) -> None:
    tell(
        f"{name}: {cost.pairs // cost.n_anchors:,} items × {cost.n_anchors} queries = {cost.pairs:,} pairs to score; "
        f"estimated time {duration_range(cost.low, cost.high)} at {pace(cost.pairs_per_second)}. All runs are replayed "
        "from these."
    )
    if minutes is not None and cost.seconds > 60 * _TOO_LONG * minutes:
        sample = (
            f"a sample of the items (--items {_FEW_ITEMS}), " if cost.pairs > 2 * _FEW_ITEMS * cost.n_anchors else ""
        )
        tell(
            f"That is longer than the {minutes:g} min asked for. Ctrl-C stops it, and what is scored is kept. Faster: "
            f"{sample}--max-item-tokens 64, fewer --queries and --anchors, a faster --scorer."
        )


def _show(outcome: Outcome, spec: Spec) -> None:
    for collection in spec.collections:
        own = [stored.run for stored in outcome.runs if stored.run.collection == collection.name]
        if own:
            print_table(_table(own, spec))
    if outcome.runs:
        tell("Means over the test queries, with 95 % intervals. recall@k: share of the scorer's own k best.")
        runs = [stored.run for stored in outcome.runs]
        for panel in panels(pooled(runs)):
            tell(" ".join(filter(None, (f"{panel.title}.", worth(panel), summary(panel)))))
        if any(run.settings.get("budget", k) < k <= run.made["items"] for run in runs for k in spec.ks):
            tell("Where the budget is smaller than k, recall@k cannot pass budget / k.")


def _table(runs: Sequence[Run], spec: Spec) -> Table:
    """A row per run; settings that all runs share stand in the title, those that tell runs apart in columns."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in ("method", "k_max"))
    differ = [name for name in names if _tells_apart(name, runs)]
    shared = {name: run.settings[name] for name in _COMMON for run in runs if name in run.settings}
    title = ", ".join(
        [runs[0].collection, f"{runs[0].made['items']:,} items", f"{len(runs[0].query_ids)} test queries"]
        + [f"{name} {value}" for name, value in shared.items() if name not in differ]
    )
    measures = [f"recall@{k}" for k in spec.ks] + ["nDCG@10"]
    measures = [name for name in measures if any(name in run.measures for run in runs)]
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True)
    for name in (*(name for name in differ if name != "first"), *measures):
        table.add_column(name, justify="right", overflow="fold")
    for run in sorted(runs, key=lambda run: run.settings.get("budget", float("inf"))):
        label = run.method + (f" · {run.settings['first']}" if "first" in differ and "first" in run.settings else "")
        cells = [str(run.settings.get(name, "")) for name in differ if name != "first"]
        table.add_row(label, *cells, *(_cell(run, name) for name in measures))
    return table


def _tells_apart(name: str, runs: Sequence[Run]) -> bool:
    """Whether runs differ in a setting: any runs in a common one, runs of one method in one of its own."""
    values = {(run.method if name not in _COMMON else None, run.settings[name]) for run in runs if name in run.settings}
    return len(values) > len({method for method, _ in values})


def _cell(run: Run, measure: str) -> str:
    if measure not in run.measures or not len(values := run.values(measure)):
        return ""
    low, high = bootstrap_interval(values)
    return f"{values.mean():.2f} ({low:.2f}–{high:.2f})"


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "runs": [_row(stored) for stored in outcome.runs],
        "failed": [
            {"collection": one.collection, "settings": one.settings, "error": explained(one.error)}
            for one in outcome.failed
        ],
        "found": outcome.found,
    }


def _row(stored: StoredRun) -> dict[str, Any]:
    run = stored.run
    measures = {}
    for name in run.measures:
        values = run.values(name)
        if len(values):
            low, high = bootstrap_interval(values)
            measures[name] = {"mean": float(values.mean()), "low": low, "high": high, "queries": len(values)}
    return {
        "collection": run.collection,
        "method": run.method,
        "settings": dict(run.settings),
        "measures": measures,
        "file": str(stored.file),
    }


def _texts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} is a list of whole numbers such as 25,50; got {text!r}.") from None
