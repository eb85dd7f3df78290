"""Building and opening: what is refused before it is paid for, and what survives a crash."""

from __future__ import annotations

import json
import multiprocessing
import shutil

import numpy as np
import pytest

import adacur
from adacur import BM25, AnchorIndex, Dense, Item, Query
from adacur.data import ItemFile
from adacur.errors import (
    IncompleteIndex,
    IndexLocked,
    InputError,
    NotTrusted,
    ScorerFailed,
    UnknownName,
    WrongScorer,
)
from adacur.replay.tune_index import verdict
from adacur.scorers import Cached, FunctionScorer, Metered
from adacur.search.index_stages import add_first_stages
from adacur.store import IndexFolder, Origin, locked
from tests.editing import Edited
from tests.rerank_servers import RerankServer
from tests.unit.scorers.cross_encoders.tiny_models import tiny_transformer

WORDS = ["river", "castle", "engine", "violin", "glacier", "market", "orchid", "comet", "treaty", "harbour"]
ITEMS = [Item(f"{a}-{b}", f"the {a} by the {b}", {"title": a}) for a in WORDS for b in WORDS if a != b]
ANCHORS = [Query(f"a{n}", f"a {word} somewhere") for n, word in enumerate(WORDS)]


def overlap(pairs):
    return [float(len(set(query.split()) & set(item.split()))) for query, item in pairs]


def opposite(pairs):
    return [-score for score in overlap(pairs)]


def build(path, **options):
    settings = {"scorer": FunctionScorer(overlap, name="f"), "path": path, "progress": False, "block_items": 20}
    return adacur.build(ITEMS, ANCHORS, **(settings | options))


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (["bm26"], UnknownName),
        (["dense"], InputError),
        ("bm26", UnknownName),
        ([object()], InputError),
        (7, InputError),
    ],
)
def test_a_first_stage_that_cannot_be_built_is_refused_before_anything_is_scored(tmp_path, first, error) -> None:
    scorer = Metered(FunctionScorer(overlap))
    with pytest.raises(error):
        build(tmp_path / "index", scorer=scorer, first=first)
    assert scorer.calls == 0
    assert not (tmp_path / "index").exists()


def test_an_index_finds_by_text_after_a_reload(tmp_path) -> None:
    build(tmp_path / "index")
    index = adacur.load(tmp_path / "index", scorer=overlap)
    hits = index.search("violin harbour", k=2, budget=20, first="bm25")
    assert {hit.id for hit in hits} == {"violin-harbour", "harbour-violin"}
    assert hits[0].item.metadata == {"title": hits[0].id.split("-")[0]}


def test_a_number_instead_of_anchors_makes_pseudo_queries(tmp_path) -> None:
    index = adacur.build(ITEMS, 7, scorer=overlap, path=tmp_path / "index", progress=False)
    assert len({query.text for query in index.anchor_queries}) == 7


def test_items_may_be_a_path_or_plain_texts(tmp_path) -> None:
    texts = [item.text for item in ITEMS[:20]]
    index = adacur.build(texts, 5, scorer=overlap, path=tmp_path / "texts", progress=False)
    assert index.items[7] == Item("7", texts[7])
    assert len(AnchorIndex.from_items(texts, scorer=overlap)) == 20
    with pytest.raises(InputError, match="both in one list"):
        AnchorIndex.from_items([*texts, ITEMS[0]], scorer=overlap)
    rows = [{"_id": item.id, "title": "A title", "words": item.text} for item in ITEMS[:20]]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "more.jsonl").write_text(json.dumps({"_id": "new", "title": "A title", "words": "a comet"}))
    source = ItemFile(tmp_path / "items.jsonl", text_fields=("words",))
    with adacur.build(source, 5, scorer=overlap, path=tmp_path / "file", progress=False) as index:
        assert index.items[0].text == ITEMS[0].text
        # By the fields of the first file.
        Edited(index).add(tmp_path / "more.jsonl")
        assert index.items[20].text == "a comet"
        Edited(index).compact()
        assert index.anchors.manifest.origin == Origin(None, ("words",))
    whole = adacur.build(str(tmp_path / "more.jsonl"), ANCHORS, scorer=overlap, path=tmp_path / "one", progress=False)
    assert whole.items[0].text == "A title"


def test_a_build_logs_its_verdict_and_scores_every_pair_once(tmp_path, caplog) -> None:
    scorer = Metered(FunctionScorer(overlap, name="f"))
    items = [Item(f"{n}-{item.id}", f"{item.text} {n}") for n in range(30) for item in ITEMS]
    with caplog.at_level("INFO", logger="adacur.build"):
        index = adacur.build(items, 20, scorer=scorer, path=tmp_path / "index", progress=False)
    assert scorer.calls == len(items) * len(index.anchor_queries)
    assert verdict(index.tunings[0]) in caplog.text


def test_another_function_of_the_same_name_is_not_mixed_into_a_begun_index(tmp_path) -> None:
    answers = iter([overlap] * 2)

    def stops(pairs):
        return next(answers, None)(pairs) if len(pairs) > 8 else overlap(pairs)

    with pytest.raises(adacur.AdacurError):
        build(tmp_path / "index", scorer=FunctionScorer(stops, name="f"))
    with pytest.raises(IncompleteIndex, match="2 of 5 blocks"):
        adacur.load(tmp_path / "index")
    with pytest.raises(WrongScorer):
        build(tmp_path / "index", scorer=FunctionScorer(opposite, name="f"))
    index = build(tmp_path / "index")
    expected = [overlap([(query.text, item.text) for query in ANCHORS]) for item in ITEMS]
    assert index.matrix.tolist() == expected


def test_a_finished_index_is_not_opened_by_build_with_another_function(tmp_path) -> None:
    build(tmp_path / "index")
    with pytest.raises(WrongScorer):
        build(tmp_path / "index", scorer=FunctionScorer(opposite, name="f"))


def test_a_first_stage_that_was_lost_is_built_again_without_a_scorer_call(tmp_path) -> None:
    build(tmp_path / "index")
    shutil.rmtree(tmp_path / "index" / "versions/1/first" / "bm25")
    (tmp_path / "index" / "versions/1/first" / ".bm25.dead.unfinished").mkdir()
    scorer = Metered(FunctionScorer(overlap, name="f"))
    index = build(tmp_path / "index", scorer=scorer)
    assert index.first_stages == ("bm25", "random")
    assert scorer.calls <= 32
    assert [folder.name for folder in (tmp_path / "index" / "versions/1/first").iterdir()] == ["bm25"]


def _hold(path, held, let_go) -> None:
    with locked(path):
        held.set()
        let_go.wait(30)


def test_first_stages_are_not_written_into_a_folder_somebody_else_holds(tmp_path) -> None:
    build(tmp_path / "index", first=())
    context = multiprocessing.get_context("spawn")
    held, let_go = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "index", held, let_go))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(IndexLocked):
            add_first_stages({"bm25": "bm25"}, IndexFolder.open(tmp_path / "index"))
    finally:
        let_go.set()
        other.join()
    assert add_first_stages({"bm25": "bm25"}, IndexFolder.open(tmp_path / "index")).manifest.first == ("bm25",)


def test_first_stages_are_saved_under_the_names_they_were_given(tmp_path) -> None:
    table = np.zeros((len(ANCHORS), len(ITEMS)))
    titles = BM25.build([Item(item.id, item.metadata["title"]) for item in ITEMS])
    index = AnchorIndex.from_arrays(
        items=ITEMS,
        anchor_queries=ANCHORS,
        scores=table,
        scorer=overlap,
        first={"title": titles, "body": BM25.build(ITEMS)},
    )
    index.save(tmp_path / "saved")
    opened = adacur.load(tmp_path / "saved", scorer=overlap, check=False)
    assert opened.first_stages == ("body", "title", "body+title", "random")
    found = opened.first_stage("title").search(["violin"], 20)[0]
    assert all(ITEMS[position].id.startswith("violin-") for position in found.positions)


def test_verify_finds_a_flipped_byte_in_a_first_stage(tmp_path) -> None:
    build(tmp_path / "index")
    assert adacur.store.verify(tmp_path / "index").ok
    stage = tmp_path / "index" / "versions/1/first" / "bm25"
    file = max((file for file in stage.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (problem,) = adacur.store.verify(tmp_path / "index").problems
    assert problem.file == f"versions/1/first/bm25/{file.relative_to(stage)}"


def test_verify_finds_a_first_stage_that_was_lost(tmp_path) -> None:
    build(tmp_path / "index")
    shutil.rmtree(tmp_path / "index" / "versions/1/first" / "bm25")
    (problem,) = adacur.store.verify(tmp_path / "index").problems
    assert problem.file == "versions/1/first/bm25"


def test_a_small_build_costs_no_call_but_its_pairs(tmp_path) -> None:
    scorer = Metered(FunctionScorer(overlap, name="f"))
    build(tmp_path / "index", scorer=scorer, block_items=None)
    assert scorer.calls == len(ITEMS) * len(ANCHORS)


def test_an_encoder_that_is_misspelt_is_not_looked_for_in_a_library(tmp_path) -> None:
    with pytest.raises(UnknownName, match=r"'bge-small-en-v1\.5'"):
        build(tmp_path / "index", first=["dense"], encoder="bge-small-en-v15")


def test_an_encoder_whose_path_is_gone_is_fetched_by_name(tmp_path) -> None:
    few = ITEMS[:12]
    adacur.build(
        few,
        ANCHORS[:2],
        scorer=overlap,
        path=tmp_path / "index",
        first=["dense"],
        encoder="bge-small-en-v1.5",
        progress=False,
    )
    settings_file = tmp_path / "index" / "versions/1/first" / "dense" / "retriever.json"
    settings = json.loads(settings_file.read_text())
    settings["encoder"]["source"] = "/another/machine/bge-small-en-v1.5"
    settings_file.write_text(json.dumps(settings))
    index = adacur.load(tmp_path / "index", scorer=overlap)
    assert isinstance(index.first_stage("dense").stage, Dense)
    assert len(index.search("a castle by a river", k=1, budget=3, first="dense")) == 1


def test_a_hub_name_is_not_mistaken_for_a_misspelt_one(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(adacur.AdacurError, match="could not be fetched"):
        adacur.scorer("cross-encoder/ms-marco-MiniLM-L-12-v2")
    with pytest.raises(UnknownName, match="'ms-marco-MiniLM-L-12-v2'"):
        adacur.scorer("ms-marco-MiniLM-L12-v2")


def test_a_dense_stage_over_some_of_the_items_lends_no_embeddings() -> None:
    some = Dense.from_embeddings([item.id for item in ITEMS[::2]], np.random.default_rng(0).normal(size=(45, 4)))
    scores = np.random.default_rng(1).normal(size=(len(ANCHORS), len(ITEMS)))
    index = AnchorIndex.from_arrays(
        items=ITEMS, anchor_queries=ANCHORS, scores=scores, scorer=overlap, first={"dense": some}
    )
    hits = index.search("violin", k=3, budget=20, first="random")
    assert hits.trace.settings["approximator"] == "GaussianModel(noise=0.3, no embeddings)"


def test_a_dense_stage_in_another_order_lends_each_item_its_own_embedding() -> None:
    vectors = np.random.default_rng(0).normal(size=(len(ITEMS), 4)).astype(np.float32)
    scores = np.random.default_rng(1).normal(size=(len(ANCHORS), len(ITEMS)))
    answers = []
    for order in (slice(None), slice(None, None, -1)):
        dense = Dense.from_embeddings([item.id for item in ITEMS[order]], vectors[order])
        index = AnchorIndex.from_arrays(
            items=ITEMS, anchor_queries=ANCHORS, scores=scores, scorer=overlap, first={"dense": dense}
        )
        answers.append(index.search("violin", k=9, budget=20, first="random").ids)
    assert answers[0] == answers[1]


def test_a_first_stage_that_is_there_is_left_alone(tmp_path) -> None:
    build(tmp_path / "index")
    add_first_stages({"bm25": BM25.build(ITEMS[:3])}, IndexFolder.open(tmp_path / "index"))
    assert adacur.store.verify(tmp_path / "index").ok
    with pytest.raises(InputError, match="name of a folder"):
        add_first_stages({"org/bm25": BM25.build(ITEMS)}, IndexFolder.open(tmp_path / "index"))


def test_a_scorer_that_cannot_be_opened_again_says_what_to_give(tmp_path) -> None:
    build(tmp_path / "index", scorer=lambda pairs: overlap(pairs))
    with pytest.raises(InputError, match="scorer="):
        adacur.load(tmp_path / "index").search("violin", k=1)


def test_a_search_with_a_cache_finds_the_same_and_pays_once(tmp_path) -> None:
    build(tmp_path / "index")
    plain = adacur.load(tmp_path / "index", scorer=overlap).search("violin harbour", k=5, budget=30)
    paid = Metered(FunctionScorer(overlap, name="f"))
    with adacur.load(tmp_path / "index", scorer=Cached(paid, tmp_path / "scores.sqlite"), check=False) as index:
        first, second = (index.search("violin harbour", k=5, budget=30) for _ in range(2))
        assert (index.scorer.hits, index.scorer.misses) == (30, 30)
    for hits in (first, second):
        assert (hits.ids, hits.scores.tolist(), hits.trace.calls) == (plain.ids, plain.scores.tolist(), 30)
    assert paid.calls == 30


def test_the_scorer_named_in_the_manifest_is_cached_too(tmp_path) -> None:
    build(tmp_path / "index", scorer=FunctionScorer(overlap, name="words-1", source=f"{__name__}:overlap"))
    for expected in ((0, 20), (20, 0)):
        index = adacur.load(tmp_path / "index", allow_code=True)
        index = index.with_scorer(lambda scorer: Cached(scorer, tmp_path / "scores.sqlite"))
        index.search("violin harbour", k=5, budget=20)
        assert (index.scorer.hits, index.scorer.misses) == expected
        assert index.drift.same
        index.close()


@pytest.mark.parametrize("given", ["cached scorer", "metered cache"])
def test_a_scorer_is_recognised_by_what_it_says_today_not_by_what_is_cached(tmp_path, given) -> None:
    cache = tmp_path / "scores.sqlite"
    build(tmp_path / "index", scorer=Cached(FunctionScorer(overlap, name="f", source="s"), cache)).close()
    changed = FunctionScorer(opposite, name="f", source="s")
    scorer = {
        "cached scorer": {"scorer": Cached(changed, cache)},
        "metered cache": {"scorer": Metered(Cached(changed, cache))},
    }[given]
    with pytest.raises(WrongScorer):
        adacur.load(tmp_path / "index", **scorer)


def test_a_build_goes_on_only_with_the_scorer_of_today(tmp_path) -> None:
    cache, calls = tmp_path / "scores.sqlite", []

    def failing(pairs):
        calls.append(len(pairs))
        if len(calls) > 2:
            raise ConnectionError("gone")
        return overlap(pairs)

    with pytest.raises(ScorerFailed, match="gone"):
        build(tmp_path / "index", scorer=Cached(FunctionScorer(failing, name="f", source="s"), cache))
    with pytest.raises(WrongScorer):
        build(tmp_path / "index", scorer=Cached(FunctionScorer(opposite, name="f", source="s"), cache))


def test_an_index_scored_by_a_service_opens_the_service_again(tmp_path) -> None:
    with RerankServer("tei") as server:
        with adacur.build(
            ITEMS, ANCHORS, scorer=f"{server.root}#kind=tei", path=tmp_path / "index", progress=False
        ) as index:
            expected = index.search("the comet", budget=12)
        asked = len(server.asked)
        with adacur.load(tmp_path / "index") as index, pytest.raises(NotTrusted, match=server.root):
            index.search("the comet", budget=12)
        assert len(server.asked) == asked
        with adacur.load(tmp_path / "index", allow_code=True) as index:
            found = index.search("the comet", budget=12)
    assert found.ids == expected.ids


def test_whatever_a_scorer_raises_is_told_as_the_scorers_failure(tmp_path) -> None:
    for error in (StopIteration("early"), GeneratorExit, ZeroDivisionError("zero")):
        scorer = FunctionScorer(overlap)

        def failing(pairs, error=error):
            raise error

        scorer.score = failing
        expected = ScorerFailed if error is not GeneratorExit else GeneratorExit
        with pytest.raises(expected):
            build(tmp_path / "index", scorer=scorer)


def test_a_build_with_a_cache_pays_for_no_pair_twice(tmp_path) -> None:
    paid = Metered(FunctionScorer(overlap, name="f"))
    for name in ("one", "other"):
        index = build(tmp_path / name, scorer=Cached(paid, tmp_path / "scores.sqlite"), block_items=7)
        assert index.matrix.tolist() == [overlap([(query.text, item.text) for query in ANCHORS]) for item in ITEMS]
    assert paid.calls == len(ITEMS) * len(ANCHORS)


def test_a_cache_that_cannot_be_used_is_refused_before_anything_is_scored(tmp_path) -> None:
    (tmp_path / "scores.sqlite").write_text("these are no scores")
    paid = Metered(FunctionScorer(overlap, name="f"))
    with pytest.raises(InputError, match="not a score cache"):
        build(tmp_path / "index", scorer=Cached(paid, tmp_path / "scores.sqlite"))
    assert paid.calls == 0
    assert not (tmp_path / "index").exists()


def test_a_scorer_given_by_its_path_cuts_items_as_the_one_that_built_the_index_did(tmp_path) -> None:
    model = tiny_transformer(tmp_path / "model")
    items = [Item(f"i{n}", " ".join(f"w{n + step}" for step in range(9))) for n in range(12)]
    cut = adacur.scorer(model, device="cpu", max_item_tokens=3)
    adacur.build(items, [Query("a", "w1 w2"), Query("b", "w5")], scorer=cut, path=tmp_path / "index", progress=False)
    with adacur.load(tmp_path / "index", scorer=str(model)) as index:
        assert index.scorer.card.max_item_tokens == 3
        assert len(index.search("w3 w4", k=2, budget=4)) == 2
