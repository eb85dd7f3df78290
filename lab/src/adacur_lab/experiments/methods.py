"""The search methods by the names that experiments call them by. No method lives here: only how each is set up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adacur.errors import InputError, UnknownName
from adacur.first_stages import AnyStage, as_hits
from adacur.model import GaussianModel, Softmax, TopK
from adacur.replay import top_k_recall
from adacur.results import Hits
from adacur.search import ANNCUR, AdaCUR, AnchorIndex, Exact, Rerank
from adacur.search.plan import KeepPredictions
from adacur.spelling import did_you_mean
from adacur_lab.axn import AXN, EmbeddingRegression
from adacur_lab.experiments.held_out_splits import SPLITS, held_out_splits
from adacur_lab.experiments.testbed import Testbed
from adacur_lab.oracle import Oracle

__all__ = ["METHODS", "Answers", "Asked", "Method", "method"]

# In the order in which a run lists them.
_BUDGETED = ("budget", "first", "pool", "seed", "fuse")
_PREDICTING = ("budget", "rounds", "anchors", "first", "first_share", "first_weight", "pool", "seed", "fuse")
_KERNEL = ("noise", "rescale", "centre")

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured: recall at each of `ks`, the error of predictions if these are kept, `judged` quality."""

    ks: tuple[int, ...]
    predictions: bool = False
    judged: bool = True


@dataclass(frozen=True, slots=True)
class Answers:
    """Hits of all test queries, to measure each k by; one search serves every k unless a method chooses per k."""

    by_k: Mapping[int, list[Hits]]
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def deepest(self) -> list[Hits]:
        """The hits for the largest k."""
        return self.by_k[max(self.by_k)]


@dataclass(frozen=True, slots=True)
class Method:
    """What a name stands for: the settings that matter to it, those that the name implies, and how it answers."""

    takes: tuple[str, ...]
    search: Callable[[Testbed, Settings, Asked], Answers]
    presets: Mapping[str, Any] = field(default_factory=dict)
    calls_scorer: bool = True


def method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise UnknownName(f"There is no method {name!r}.{did_you_mean(name, METHODS)} Known: {', '.join(METHODS)}.")
    return METHODS[name]


def _index(testbed: Testbed, settings: Settings) -> AnchorIndex:
    return testbed.index(settings.get("anchors"))


def _first(stage: AnyStage | None, settings: Settings) -> str | AnyStage:
    for name in ("first_share", "first_weight", "pool"):
        if settings.get(name):
            # Stored runs are named by it.
            raise InputError(f"{name} must be 0 or left out, as searches have none; got {settings[name]}.")
    return "random" if stage is None else stage


def _kept(asked: Asked) -> KeepPredictions:
    return "last" if asked.predictions else False


def _every_k(hits: list[Hits], asked: Asked) -> Answers:
    return Answers(dict.fromkeys(asked.ks, hits))


def _gaussian(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
    testbed = testbed.encoded_by(settings["first"])
    kernel: dict[str, Any] = {name: settings[name] for name in _KERNEL if name in settings}
    if settings.get("embeddings", True):
        has_vectors = testbed.query_embeddings is not None and testbed.anchor_embeddings is not None
        kernel |= {
            "embeddings": testbed.item_embeddings,
            "embed_queries": testbed.embed_queries if has_vectors else None,
        }
    return _adaptive(testbed, settings, asked, approximator=GaussianModel(**kernel))


def _adacur(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
    temperature = settings.get("temperature")
    return _adaptive(testbed, settings, asked, acquisition=TopK() if temperature is None else Softmax(temperature))


def _adaptive(
    testbed: Testbed,
    settings: Settings,
    asked: Asked,
    *,
    kind: type[AdaCUR | AXN] = AdaCUR,
    **choices: Any,
) -> Answers:
    chosen = kind(
        rounds=settings.get("rounds", 1),
        seed=settings["seed"],
        keep_predictions=_kept(asked),
        **choices,
    )
    return _searched(testbed, settings, asked, method=chosen)


def _searched(testbed: Testbed, settings: Settings, asked: Asked, *, method: Any) -> Answers:
    hits = _index(testbed, settings).search(
        testbed.test_queries,
        settings["k_max"],
        budget=settings["budget"],
        method=method,
        first=_first(testbed.first_stage(settings["first"]), settings),
        fuse=settings.get("fuse") or 0.0,
    )
    return _every_k(hits, asked)


def _axn(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
    testbed = testbed.encoded_by(settings["first"])
    if testbed.item_embeddings is None:
        raise InputError(f"AXN regresses on item embeddings, and {testbed.name!r} has none.")
    own = {name: settings[name] for name in ("blend", "ridge") if name in settings}
    regression = EmbeddingRegression(testbed.item_embeddings, embed_queries=testbed.embed_queries, **own)
    return _adaptive(testbed, settings, asked, kind=AXN, approximator=regression)


def _anncur(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
    hits = _one_shot(
        testbed,
        settings,
        first=testbed.first_stage(settings["first"]),
        split=settings["split"],
        predictions=asked.predictions,
    )
    return _every_k(hits, asked)


def _anncur_best_split(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
    """As the paper reports it: the best of nine splits per k, chosen on the test queries; an upper bound."""
    return _best_split(testbed, settings, asked.ks, first=testbed.first_stage(settings["first"]))


def _anncur_held_out_split(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
    """The split per k that is best on held-out anchor queries: what a user can have."""
    first = settings["first"]
    chosen = held_out_splits(
        testbed.index(settings["anchors"]),
        budget=settings["budget"],
        ks=[min(k, settings["budget"]) for k in asked.ks],
        first=testbed.of_anchors().first_stage(first) if first != "random" else None,
        seed=settings["seed"],
    )
    splits = {k: chosen[min(k, settings["budget"])] for k in asked.ks}
    found = {
        split: _one_shot(testbed, settings, first=testbed.first_stage(first), split=split)
        for split in sorted(set(splits.values()))
    }
    return Answers({k: found[split] for k, split in splits.items()}, {"split": _by_text(splits)})


def _oracle(choice: type[TopK | Softmax]) -> Callable[[Testbed, Settings, Asked], Answers]:
    """Anchor items by their exact scores, then as ANNCUR, as the paper judges its oracles: with the best split."""

    def search(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
        own = {"temperature": settings["temperature"]} if "temperature" in settings else {}

        def oracle(masked: int) -> Oracle:
            return Oracle(
                queries=testbed.test_queries,
                items=testbed.items,
                exact_scores=testbed.exact_scores,
                choice=choice(**own),
                masked=masked,
                random_share=settings["epsilon"],
                seed=settings["seed"],
            )

        def answers(masked: int, ks: Sequence[int]) -> Answers:
            if "split" not in settings:
                return _best_split(testbed, settings, ks, first=oracle(masked))
            split, predictions = settings["split"], asked.predictions
            hits = _one_shot(testbed, settings, first=oracle(masked), split=split, predictions=predictions)
            return Answers(dict.fromkeys(ks, hits))

        if settings["k_masked"] != "k":
            return answers(settings["k_masked"], asked.ks)
        parts = [answers(k, [k]) for k in asked.ks]
        return Answers(
            {k: hits for part in parts for k, hits in part.by_k.items()},
            {"split": {k: split for part in parts for k, split in part.chosen.get("split", {}).items()}},
        )

    return search


def _best_split(testbed: Testbed, settings: Settings, ks: Sequence[int], *, first: AnyStage | None) -> Answers:
    found = {split: _one_shot(testbed, settings, first=first, split=split) for split in SPLITS}

    def best(k: int) -> float:
        return max(SPLITS, key=lambda split: top_k_recall(found[split], testbed.exact_scores, k=k).mean())

    splits = {k: best(k) for k in ks}
    return Answers({k: found[split] for k, split in splits.items()}, {"split": _by_text(splits)})


def _one_shot(
    testbed: Testbed,
    settings: Settings,
    *,
    first: AnyStage | None,
    split: float,
    predictions: bool = False,
) -> list[Hits]:
    return _index(testbed, settings).search(
        testbed.test_queries,
        settings["k_max"],
        budget=settings["budget"],
        method=ANNCUR(split=split, seed=settings["seed"], keep_predictions="last" if predictions else False),
        first=_first(first, settings),
    )


def _by_text(splits: Mapping[int, float]) -> dict[str, float]:
    return {str(k): split for k, split in splits.items()}


def _rerank(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
    return _searched(testbed, settings, asked, method=Rerank(seed=settings["seed"]))


def _exact(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
    fuse = settings.get("fuse") or 0.0
    first = testbed.first_stage(testbed.first_stages[0]) if fuse else None
    index = _index(testbed, settings)
    hits = index.search(testbed.test_queries, settings["k_max"], method=Exact(), first=first, fuse=fuse)
    return _every_k(hits, asked)


def _alone(name: str) -> Method:
    """A first stage by itself: it calls no scorer, so only judgements can tell how good it is."""

    def search(testbed: Testbed, settings: Settings, asked: Asked) -> Answers:
        stage = testbed.first_stage(name)
        assert stage is not None
        answers = stage.search(testbed.test_queries, settings["k_max"])
        return _every_k(as_hits(testbed.test_queries, answers, stage.ids), asked)

    return Method((), search, calls_scorer=False)


_RANDOM = {"first": "random"}
_ONE_SHOT = ("budget", "anchors", "first", "pool", "seed")
_ORACLE = ("budget", "anchors", "split", "k_masked", "epsilon", "seed")

METHODS: dict[str, Method] = {
    "gaussian": Method((*_PREDICTING, *_KERNEL, "embeddings"), _gaussian, {"first_weight": 0.0}),
    "adacur": Method((*_PREDICTING, "temperature"), _adacur, {"first_share": 0.0}),
    "adacur_random": Method((*_PREDICTING, "temperature"), _adacur, {"first_share": 0.0} | _RANDOM),
    "adacur_softmax": Method((*_PREDICTING, "temperature"), _adacur, {"first_share": 0.0, "temperature": 1.0}),
    "axn": Method(
        ("budget", "rounds", "first", "first_share", "pool", "seed", "fuse", "blend", "ridge"),
        _axn,
        {"first_share": 0.0},
    ),
    "anncur": Method((*_ONE_SHOT, "split"), _anncur, {"split": 0.5} | _RANDOM),
    "anncur_dense": Method((*_ONE_SHOT, "split"), _anncur, {"split": 0.5, "first": "dense"}),
    "anncur_best_split": Method(_ONE_SHOT, _anncur_best_split, _RANDOM),
    "anncur_held_out_split": Method(_ONE_SHOT, _anncur_held_out_split, _RANDOM),
    "topk_oracle": Method(_ORACLE, _oracle(TopK), {"k_masked": 0, "epsilon": 0.0}),
    "softmax_oracle": Method((*_ORACLE, "temperature"), _oracle(Softmax), {"k_masked": 0, "epsilon": 0.0}),
    "rerank": Method(_BUDGETED, _rerank),
    "exact": Method(("fuse",), _exact),
} | {name: _alone(name) for name in ("dense", "bm25", "tfidf", "multi-vector")}
