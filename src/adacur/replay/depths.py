"""How deep an evaluation can look: to the last item where all are scored, else as deep as is affordable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from adacur.data import JudgedCollection, names
from adacur.data.cache_folder import cache_folder
from adacur.first_stages import first_stage_named, placed
from adacur.first_stages.joined import SEPARATOR, Joined
from adacur.protocols import FirstStage, Scorer, ScorerCard
from adacur.records import ItemList, Query
from adacur.replay.measures import can_judge
from adacur.replay.searchability import DEPTHS, Curve, Searchability, searchability, telling_queries
from adacur.scorers import Cached, MatrixScorer
from adacur.scorers.consent import why_consent

# On a sample, of the calls that the evaluation makes anyhow.
_SHARE_OF_CALLS = 0.25
_TRAINED_HERE = ("torch", "sentence-transformers")


@dataclass(frozen=True, slots=True)
class DepthSpec:
    """What a searchability report would rest on; `first` is empty where there can be none, and `note` says why."""

    collection: JudgedCollection
    queries: Sequence[Query]
    first: tuple[str, ...]
    depths: tuple[int, ...]
    all_items: bool
    note: str | None = None


def plan_depths(
    whole: JudgedCollection, scored: JudgedCollection, test: Sequence[Query], first: Sequence[str], *, calls: int
) -> DepthSpec:
    """All depths where every item is scored; for a sample, as deep into the whole as a quarter of `calls` reaches.

    Depth within a sample would say little: what misleads a scorer is mostly among the items that are not in it.
    """
    judged = [query for query in test if whole.qrels.get(query.id)]
    is_sample = len(scored.items) < len(whole.items)
    stages = tuple(name for name in dict.fromkeys(first) if "random" not in name.split(SEPARATOR))
    if is_sample:
        parts = {name: name.split(SEPARATOR) for name in stages}
        stages = tuple(name for name in stages if not any(first_stage_named(one).needs_encoder for one in parts[name]))
    plan = DepthSpec(whole, judged, stages, DEPTHS, not is_sample)
    if not judged or not can_judge():
        return replace(plan, first=())
    if not telling_queries(judged, ItemList(whole.items), whole.qrels):
        why = "no test query has both relevant items and others"
        return replace(plan, first=(), note=f"The searchability report is left out: {why}.")
    if not is_sample:
        return plan if stages else replace(plan, note="The searchability report is left out: it needs a first stage.")
    n = len(judged)
    most = min(len(whole.items) - 1, _SHARE_OF_CALLS * calls / max(1, n * len(stages)))
    affordable = [depth for depth in DEPTHS if depth <= most]
    everything = f"--items {len(whole.items)} scores every item"
    if not stages or len(affordable) < 2:
        why = "too few calls are affordable" if stages else "no first stage of a sample knows all items"
        return replace(plan, first=(), note=f"The searchability report is left out: {why}. {everything}.")
    deepest = affordable[-1]
    note = (
        f"Searchability is measured on all {len(whole.items):,} items, as deep as is affordable: the best {deepest} of "
        f"{' and '.join(stages)} for {n} judged queries, about {deepest * n * len(stages):,} more calls. {everything}."
    )
    return replace(plan, depths=tuple(affordable), note=note)


def measure_depths(
    plan: DepthSpec,
    *,
    known: MatrixScorer,
    scorer: Scorer,
    first: Mapping[str, FirstStage],
    encoder: str | None,
    folder: Path,
    output: Path,
    progress: bool,
) -> Searchability:
    """The report of a plan for a BEIR folder, with the commands that follow; no pair is paid for twice.

    `known` has the scores of the evaluation; what goes beyond them is kept in the folder `output`.
    """
    beyond = None if plan.all_items else Cached(scorer, output / "scores" / "depths.sqlite", key="evaluate")
    items = ItemList(plan.collection.items)
    found = searchability(
        plan.queries,
        plan.collection.items,
        plan.collection.qrels,
        scorer=known if beyond is None else Cached(beyond, known),
        first={name: _joined(name, first, items) for name in plan.first},
        depths=plan.depths,
        all_items=plan.all_items,
        progress=progress and not plan.all_items,
    )
    curves = [
        replace(curve, commands=_commands(curve, plan, scorer.card, encoder=encoder, folder=folder, output=output))
        for curve in found.curves
    ]
    return replace(found, curves=tuple(_with_caveats(curve, scorer.card, folder) for curve in curves))


def _joined(name: str, first: Mapping[str, FirstStage], items: ItemList) -> FirstStage:
    """The stage of a name such as "bm25" or "bm25+dense"."""
    parts = name.split(SEPARATOR)
    return first[name] if len(parts) == 1 else Joined([placed(first[part], items) for part in parts])


def _with_caveats(curve: Curve, card: ScorerCard, folder: Path) -> Curve:
    """What to know before training, beside the reason to."""
    if curve.verdict.kind != "mend":
        return curve
    why = curve.verdict.why
    if card.backend not in _TRAINED_HERE:
        why += " This scorer cannot be trained here: the command trains another one."
    if not any((folder / name).is_file() for name in ("qrels/train.tsv", "qrels.train.tsv")):
        why += " It must not learn from the judgements that test it: write others to qrels/train.tsv."
    return replace(curve, verdict=replace(curve.verdict, why=why))


def _commands(
    curve: Curve, plan: DepthSpec, card: ScorerCard, *, encoder: str | None, folder: Path, output: Path
) -> tuple[str, ...]:
    """The command lines that follow from a verdict; none where all judged queries were used and cannot tell."""
    verdict = curve.verdict
    data, name = quote(str(folder)), folder.resolve().name
    index, model = quote(f"{name}.adacur"), quote(f"{name}-reranker")
    scorer = f" --scorer {typed_source(card.source) or 'SCORER'}"
    cut = f" --max-item-tokens {card.max_item_tokens}" if card.max_item_tokens else ""
    parts = curve.first.split(SEPARATOR)
    encoded = f" --encoder {typed_source(encoder)}" if encoder and "dense" in parts else ""
    first = f" --first {curve.first}"
    place = "" if output.name == f"{name}-results" else f" -o {quote(str(output))}"
    sizes = f"{f' --items {len(plan.collection.items)}' * plan.all_items} --methods rerank,exact{place}"
    if verdict.kind == "mend":
        base = f" --base {quote(card.source)}" if card.source and card.backend in _TRAINED_HERE else ""
        return (
            f"adacur train cross-encoder {data} {model}{base} --first {parts[0]} --turns 2",
            f"adacur evaluate {data} --scorer {model}{cut}{first}{encoded} --queries {len(plan.queries)}{sizes}",
        )
    if verdict.kind == "unclear":
        more = min(verdict.enough or 0, len(plan.collection.judged))
        again = f"adacur evaluate {data}{scorer}{cut}{first}{encoded} --queries {more}{sizes}"
        return (again,) if more > verdict.n_queries else ()
    number, spend = ("", "100") if verdict.kind == "deeper" else (" -n 0", f"{verdict.depth} --method rerank")
    # An index alone is not trusted to name a function or a service.
    named = "" if card.source and why_consent(card.source, folder=None) is None else scorer
    return (
        f"adacur build {data} {index}{number}{scorer}{cut} --first {','.join(parts)}{encoded}",
        f"adacur search {index} 'your question' --budget {spend}{first} --fuse 0{named}",
    )


def typed_source(source: str | None) -> str:
    """How a user would name a model: by its name in the catalogue, where it was fetched from there."""
    if source and Path(source).is_relative_to(cache_folder()):
        name = next(iter(Path(source).relative_to(cache_folder()).parts), "")
        source = name if name in names() else source
    return quote(source) if source else ""
