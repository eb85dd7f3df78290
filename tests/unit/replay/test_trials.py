"""A small world of topics: what a trial measures, keeps and refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacur import BM25
from adacur.data import cache_folder
from adacur.errors import FileFormatError, InputError
from adacur.first_stages import EncoderCard
from adacur.protocols import ScorerCard
from adacur.records import Item, Query
from adacur.replay import Trial, TrialSizes, material, measures, try_collection
from adacur.replay.advice import Advice, commands, typed_source
from adacur.replay.material import read_material
from adacur.replay.measuring import Measured, measure
from adacur.replay.searches import Way
from adacur.scorers import FunctionScorer, MatrixScorer
from adacur.search import AnchorIndex

N_ITEMS, N_QUERIES, N_TOPICS = 300, 40, 15


def words(topic: int, n: int, draw: np.random.Generator) -> str:
    """Words of a topic, and words that anyone says."""
    own = [f"t{topic}w{one}" for one in draw.integers(12, size=n)]
    return " ".join([*own, *(f"common{one}" for one in draw.integers(30, size=n))])


def write_world(folder: Path, *, judged: bool = True, queries: bool = True) -> tuple[list[Item], list[Query]]:
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    items = [Item(f"d{at}", words(at % N_TOPICS, 8, draw)) for at in range(N_ITEMS)]
    asked = [Query(f"q{at}", words(at % N_TOPICS, 3, draw)) for at in range(N_QUERIES)]
    write(folder / "corpus.jsonl", items)
    if queries:
        write(folder / "queries.jsonl", asked)
    if judged:
        (folder / "qrels").mkdir(exist_ok=True)
        rows = [f"q{at}\td{at % N_TOPICS + N_TOPICS * n}\t1" for at in range(N_QUERIES) for n in range(3)]
        (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n")
    return items, asked


def write(file: Path, records: Sequence[Item | Query]) -> None:
    lines = (json.dumps({"_id": one.id, "text": one.text}) + "\n" for one in records)
    file.write_text("".join(lines), encoding="utf-8")


def overlap(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Shared words, and a little that is the item's own, so that no two scores are equal."""
    return [len(set(query.split()) & set(text.split())) + (sum(map(ord, text)) % 997) / 1000 for query, text in pairs]


def knowing(tmp_path: Path) -> Any:
    """A scorer that likes what is judged relevant best."""
    items, _ = write_world(tmp_path / "world")
    number = {item.text: at for at, item in enumerate(items)}

    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        first = [10 * (number[text] < 3 * N_TOPICS) for _, text in pairs]
        return [own + shared for own, shared in zip(first, overlap(pairs), strict=True)]

    return score


class Topics:
    """An encoder that sees the topics of words."""

    dimension = N_TOPICS
    card = EncoderCard(kind="topics", dimension=N_TOPICS)

    def encode_items(self, texts: Sequence[str]) -> Any:
        counts = np.zeros((len(texts), N_TOPICS), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.split():
                if word.startswith("t"):
                    counts[row, int(word[1:].partition("w")[0])] += 1
        return counts / np.maximum(1e-6, np.linalg.norm(counts, axis=1, keepdims=True))

    encode_queries = encode_items


def tried(tmp_path: Path, **options: Any) -> Trial:
    given: dict[str, Any] = {"scorer": overlap, "calls": 5000, "kept": tmp_path / "kept", "progress": False}
    return try_collection(tmp_path / "world", **(given | options))


def measured_world(
    tmp_path: Path,
    scores: Any,
    *,
    seed: int = 0,
    budget: int = 20,
    calls: int | None = None,
    judged: str | None = None,
) -> Measured:
    """What would be measured with these scores, queries × items in the order of the files."""
    if judged is not None:
        (tmp_path / "world" / "qrels" / "test.tsv").write_text(judged)
    read = read_material(tmp_path / "world", seed=seed)
    items, asked = write_world(tmp_path / "world")
    scorer = MatrixScorer(asked, items, scores)
    plan = TrialSizes(
        "world", N_ITEMS, N_ITEMS, len(read.queries), len(read.qrels), ("bm25",), 5, budget, 0, 0, 0, 0, 0, 0
    )
    return measure(read, plan, scorer=scorer, first={"bm25": BM25.build(read.items)}, seconds=1e9, calls=calls)


def noisy_scores(items: list[Item], asked: list[Query]) -> Any:
    """Overlap, and so much noise that the first stage misses many of the best."""
    plain = np.array([overlap([(query.text, item.text) for item in items]) for query in asked])
    return plain + 3 * np.random.default_rng(1).standard_normal(plain.shape)


def test_recall_is_the_share_of_the_best_that_were_found_in_any_way(tmp_path: Path) -> None:
    items, asked = write_world(tmp_path / "world")
    scores = noisy_scores(items, asked)
    measured = measured_world(tmp_path, scores, budget=60)
    index = AnchorIndex.from_items(items, scorer=MatrixScorer(asked, items, scores))
    few, most = (index.search(asked, 5, budget=n, method="rerank", first="bm25", fuse=0) for n in (20, 60))
    shares = {
        less.query.id: float(np.mean(np.asarray(less.scores) >= more.scores[-1]))
        for less, more in zip(few, most, strict=True)
    }

    recalls = measured.recalls(Way("rerank", "bm25", 20))
    assert recalls.tolist() == [shares[query.id] for query in measured.queries]
    assert 0.1 < recalls.mean() < 0.9
    assert set(measured.recalls(Way("rerank", "bm25", 60))) == {1.0}


def test_the_answers_name_what_to_do(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    plans: list[TrialSizes] = []
    trial = tried(tmp_path, scorer=knowing(tmp_path), encoder=Topics(), on_plan=plans.append)

    assert plans == [trial.plan]
    assert f"{trial.plan.pairs:,} pairs" in trial.plan.summary()
    assert trial.answer("scorer").choice in ("blend", "rerank", "search")
    assert [one.question for one in trial.answers] == ["scorer", "first stage", "budget", "method"]
    assert trial.answer("first stage").choice in ("bm25", "dense", "bm25+dense")
    assert trial.answer("budget").choice in {row["budget"] for row in trial.figures["rerank"]}
    for one in trial.answers:
        assert one.mean is None or one.mean.low <= one.mean.value <= one.mean.high, one
    assert trial.commands[0].startswith(f"adacur build {tmp_path / 'world'} world-")


def test_calls_that_lose_against_none_are_never_advised_and_nothing_says_the_opposite(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    trial = tried(tmp_path, encoder=Topics())

    assert trial.answer("scorer").choice in ("no", "unproven")
    assert "Use none here" in trial.answer("scorer").words
    assert [one.question for one in trial.answers] == ["scorer", "first stage"]
    build, search, *others = trial.commands
    assert " -n 0 " in build
    assert "--method first" in search
    assert "--budget" not in search
    assert not others


def test_a_scorer_is_left_blended_or_followed_by_what_it_knows(tmp_path: Path) -> None:
    items, asked = write_world(tmp_path / "world")
    shared = np.array([overlap([(query.text, item.text) for item in items]) for query in asked])
    chance, hidden = np.random.default_rng(5).standard_normal((2, *shared.shape))
    # What is relevant shares words with the query, and has something that no word tells.
    truth = shared + hidden
    best = np.argsort(-truth, axis=1)[:, :3]
    rows = [f"q{row}\td{at}\t1\n" for row, of_query in enumerate(best) for at in of_query]
    judged = "query-id\tcorpus-id\tscore\n" + "".join(rows)
    said = {}
    for name, scores in {"nothing": chance, "the hidden": hidden, "all": truth}.items():
        said[name] = Advice(measured_world(tmp_path, scores, judged=judged)).choice

    assert said == {"nothing": "no", "the hidden": "blend", "all": "rerank"}


def test_most_of_the_judged_queries_are_asked_what_the_scorer_is_worth(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    trial = tried(tmp_path, encoder=Topics(), calls=3000)

    assert trial.plan.n_more > 5
    assert trial.n_queries == trial.plan.n_queries + trial.plan.n_more
    assert f"on {trial.n_queries} judged queries" in trial.answer("scorer").words


def test_a_trial_that_ended_before_all_judged_queries_is_to_be_continued_with_the_same_models(tmp_path: Path) -> None:
    items, asked = write_world(tmp_path / "world")
    advice = Advice(measured_world(tmp_path, noisy_scores(items, asked), calls=300))
    assert 0 < len(advice.measured.asked) < advice.plan.n_queries
    vars(advice)["choice"] = "unproven"
    card = ScorerCard(name="own", backend="function", source="mine:own")
    lines = commands(advice, card=card, encoder="/models/own encoder", folder=tmp_path / "world")
    assert lines[2:] == (
        f"adacur try {tmp_path / 'world'} --scorer mine:own --encoder '/models/own encoder' --minutes 30",
    )


def test_fields_are_read_as_a_build_reads_them_and_printed_in_its_command(tmp_path: Path) -> None:
    items, _ = write_world(tmp_path / "world", judged=False)
    (tmp_path / "world" / "corpus.jsonl").unlink()
    rows = [{"sku": item.id, "what it is": item.text, "price": "1"} for item in items]
    with (tmp_path / "world" / "corpus.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)

    with pytest.raises(FileFormatError):
        tried(tmp_path)
    trial = tried(tmp_path, id_field="sku", text_fields=["what it is"])
    assert "--text-field 'what it is' --id-field sku" in trial.commands[0]
    assert set(read_material(tmp_path / "world", id_field="sku", text_fields=["what it is"]).items.ids) == {
        item.id for item in items
    }


def test_what_it_takes_to_find_all_above_a_line_is_said_where_it_is_asked_for(tmp_path: Path) -> None:
    items, asked = write_world(tmp_path / "world")
    measured = measured_world(tmp_path, noisy_scores(items, asked), budget=60)
    *others, found = Advice(measured).answers(above=4.0)
    assert [one.question for one in others] == [one.question for one in Advice(measured).answers()]
    scored = [row[~np.isnan(row)] for row in measured._scores]
    some = sum(bool((row >= 4.0).any()) for row in scored)
    assert found.words.startswith(f"{some} of {len(scored)} queries have scored items at 4 or higher")
    assert found.choice == 60
    assert found.mean.value == 1.0
    few = measured.recalls_above(Way("rerank", "bm25", 15), 4.0)
    assert len(few) == some
    assert 0.1 < few.mean() < 0.9
    (*_, none) = Advice(measured).answers(above=1e6)
    assert none.choice is none.mean is None


def test_without_judgements_quality_is_left_open_and_recall_is_not(tmp_path: Path) -> None:
    write_world(tmp_path / "world", judged=False)
    trial = tried(tmp_path)

    assert trial.answer("scorer").choice == "unknown"
    assert [one.question for one in trial.answers] == ["scorer", "first stage", "budget", "method"]
    assert trial.plan.n_judged == 0


def test_judgements_that_cannot_be_used_here_are_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "world")
    monkeypatch.setattr(measures, "find_spec", lambda _: None)
    trial = tried(tmp_path)

    assert any("[evaluation]" in line for line in trial.plan.notes)
    assert trial.answer("scorer").choice == "unknown"
    assert "without ir_measures" in trial.answer("scorer").words


def test_without_queries_pseudo_queries_stand_in_and_that_is_said(tmp_path: Path) -> None:
    write_world(tmp_path / "world", judged=False, queries=False)
    trial = tried(tmp_path)

    assert any("no queries" in note for note in trial.plan.notes)
    assert trial.n_queries >= 20


def test_a_search_that_a_model_here_was_scored_for_is_replayed_in_the_same_rounds(tmp_path: Path) -> None:
    write_world(tmp_path / "world", judged=False)
    model = FunctionScorer(overlap, name="overlap-1")
    model.card = replace(model.card, backend="onnx")
    trial = tried(tmp_path, encoder=Topics(), scorer=model)

    assert trial.answer("method").choice in ("gaussian", "rerank")


def test_a_second_run_pays_for_nothing_again(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    named = FunctionScorer(overlap, name="overlap-1")
    first = tried(tmp_path, encoder=Topics(), scorer=named)
    second = tried(tmp_path, encoder=Topics(), scorer=named)

    assert first.calls > 0
    assert second.calls == 0
    assert second.known == first.calls + first.known
    assert second.answers == first.answers


def test_calls_are_a_limit_that_is_never_exceeded(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    paid = 0

    def counted(pairs: Sequence[tuple[str, str]]) -> list[float]:
        nonlocal paid
        paid += len(pairs)
        return overlap(pairs)

    for calls in (3200, 4000, 5000):
        paid = 0
        trial = tried(tmp_path, scorer=counted, encoder=Topics(), calls=calls, kept=tmp_path / f"kept-{calls}")
        assert calls / 2 < paid <= calls
        assert trial.plan.timed + trial.calls == paid


def test_a_query_that_could_cost_more_calls_than_are_left_is_not_begun(tmp_path: Path) -> None:
    items, asked = write_world(tmp_path / "world")
    measured = measured_world(tmp_path, noisy_scores(items, asked), calls=330)

    assert 300 < measured.calls <= 330
    assert len(measured.queries) < N_QUERIES
    with pytest.raises(InputError):
        measured_world(tmp_path, noisy_scores(items, asked), calls=10)


def test_a_sample_of_the_items_keeps_what_is_relevant_and_counts_for_the_whole(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    trial = tried(tmp_path, scorer=knowing(tmp_path), items=100)

    # 45 items are judged relevant to someone, a third of them in any hundred.
    assert 100 < trial.plan.n_used <= 145
    assert trial.plan.n_items == N_ITEMS
    assert trial.plan.whole(trial.plan.budget) == round(trial.plan.budget * N_ITEMS / trial.plan.n_used)
    assert trial.answer("budget").choice <= trial.plan.whole(trial.plan.budget)


def test_of_more_items_than_can_be_held_a_sample_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_world(tmp_path / "world")
    monkeypatch.setattr(material, "_HELD_ITEMS", 50)
    read = read_material(tmp_path / "world")
    ids = set(read.items.ids)

    assert read.n_items == N_ITEMS
    assert 50 <= len(ids) <= 50 + 45
    assert {id_ for grades in read.qrels.values() for id_ in grades} <= ids
    assert read.items.ids[:50] == read_material(tmp_path / "world").items.ids[:50]


@pytest.mark.parametrize("limits", [{"calls": 200}, {"minutes": 1e-5}])
def test_too_little_for_anything_is_refused_with_what_is_needed(tmp_path: Path, limits: dict[str, Any]) -> None:
    write_world(tmp_path / "world")

    with pytest.raises(InputError) as refused:
        tried(tmp_path, **limits)
    assert "20 queries" in str(refused.value)


@pytest.mark.parametrize("limits", [{"minutes": 0}, {"minutes": float("nan")}, {"calls": 0}, {"items": 0}])
def test_limits_that_are_none_are_refused(tmp_path: Path, limits: dict[str, Any]) -> None:
    write_world(tmp_path / "world")

    with pytest.raises(InputError):
        tried(tmp_path, **limits)


def test_judgements_of_unknown_items_are_counted_or_refused(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    file = tmp_path / "world" / "qrels" / "test.tsv"
    known = file.read_text()
    file.write_text(known + "q1\tnobody\t1\n")
    assert any("1 of 46 judged items" in note for note in read_material(tmp_path / "world").notes)

    file.write_text("q1\tnobody\t1\nq2\tnothing\t1\n")
    with pytest.raises(InputError):
        read_material(tmp_path / "world")
    file.write_text("someone\td1\t1\n")
    with pytest.raises(InputError):
        read_material(tmp_path / "world")


def test_folders_that_leave_it_open_are_refused(tmp_path: Path) -> None:
    world = tmp_path / "world"
    world.mkdir()
    with pytest.raises(FileFormatError):
        tried(tmp_path)
    write(world / "one.jsonl", [Item("a", "a")])
    write(world / "two.jsonl", [Item("a", "a")])
    with pytest.raises(FileFormatError):
        tried(tmp_path)
    with pytest.raises(FileFormatError):
        try_collection(tmp_path / "absent", scorer=overlap)
    # Too few items, and judgements without queries that they could refer to.
    (world / "two.jsonl").unlink()
    with pytest.raises(InputError):
        tried(tmp_path)
    (world / "qrels.tsv").write_text("q\ta\t1\n")
    with pytest.raises(FileFormatError):
        tried(tmp_path)


def test_commands_name_a_fetched_model_by_its_name_and_any_other_by_its_path() -> None:
    fetched = cache_folder() / "ms-marco-MiniLM-L-12-v2" / "model.onnx"
    assert typed_source(str(fetched)) == "ms-marco-MiniLM-L-12-v2"
    assert typed_source("my models/reranker") == "'my models/reranker'"
    assert typed_source(str(cache_folder())) == str(cache_folder())
    assert typed_source(None) == ""
