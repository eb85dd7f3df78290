"""What a build would cost, and that saying so costs little and writes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import adacur
from adacur import Item, Query
from adacur.errors import EmptyInput, IncompleteIndex, InputError, ScorerFailed
from adacur.scorers import FunctionScorer, Metered
from adacur.store import Estimate
from adacur.store import manifest as manifests
from adacur.store.manifest import read_manifest, write_manifest
from tests.living_world import Encoder, score

ITEMS = [Item(f"i{number}", f"text {number} of kind {number % 7}") for number in range(200)]
ANCHORS = [Query(f"a{number}", f"anchor {number}") for number in range(30)]


def cost(path, *, items=ITEMS, anchors=ANCHORS, scorer=score, **options) -> Estimate:
    return adacur.build(items, anchors, scorer=scorer, path=path, dry_run=True, **options)


def test_a_dry_run_says_the_cost_and_writes_nothing(tmp_path) -> None:
    scorer = Metered(FunctionScorer(score, name="score"))
    found = cost(tmp_path / "index", scorer=scorer)
    assert (found.n_items, found.n_anchors, found.pairs, found.bytes) == (200, 30, 6000, 24_000)
    assert (found.status, found.pairs_done, found.workers) == (None, 0, 1)
    assert found.calls_used == scorer.calls <= 64
    assert found.low <= found.seconds <= found.high
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_the_items_of_an_iterator_and_makes_pseudo_queries(tmp_path) -> None:
    assert cost(tmp_path / "index", items=iter(ITEMS), anchors=5).pairs == 1000
    none = cost(tmp_path / "index", items=iter(ITEMS), anchors=0, scorer=score)
    assert (none.pairs, none.calls_used, none.seconds) == (0, 0, 0)


def test_a_dry_run_counts_what_is_encoded(tmp_path) -> None:
    assert cost(tmp_path / "index", first="dense", encoder=Encoder()).encoding_seconds > 0


def test_a_dry_run_knows_what_is_scored_already(tmp_path) -> None:
    path, calls = tmp_path / "index", 0

    def tired(pairs):
        nonlocal calls
        calls += len(pairs)
        if calls > 3000:
            raise TimeoutError("enough")
        return score(pairs)

    with pytest.raises(ScorerFailed):
        adacur.build(
            ITEMS, ANCHORS, scorer=FunctionScorer(tired, name="score"), path=path, block_items=20, progress=False
        )
    known = FunctionScorer(score, name="score")
    begun = cost(path, scorer=known)
    assert (begun.status, begun.pairs_done) == ("building", 3000)
    adacur.build(ITEMS, ANCHORS, scorer=known, path=path, tune=False, progress=False)
    scorer = Metered(FunctionScorer(score, name="score"))
    done = cost(path, scorer=scorer)
    assert (done.status, done.pairs_done, done.seconds, scorer.calls) == ("complete", 6000, 0, 0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"first": "bm52"}, LookupError),
        ({"first": "dense"}, InputError),
        ({"dtype": "int8"}, InputError),
        ({"executor": 0}, InputError),
        ({"anchors": []}, EmptyInput),
        ({"path": "s3://bucket/my.adacur"}, InputError),
    ],
)
def test_what_cannot_be_built_is_refused_before_a_call(tmp_path, options, error) -> None:
    scorer = Metered(FunctionScorer(score, name="score"))
    options = {"path": tmp_path / "index", "progress": False, "scorer": scorer, "anchors": ANCHORS} | options
    anchors = options.pop("anchors")
    for dry_run in (True, False):
        with pytest.raises(error):
            adacur.build(ITEMS, anchors, dry_run=dry_run, **options)
    assert scorer.calls == 0
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_was_killed_before_its_tuning_is_tuned_by_the_same_call(tmp_path) -> None:
    items = [Item(f"i{n}", f"thing{n} of kind{n % 7}") for n in range(110)]
    anchors = [Query(f"q{n}", f"which kind{n % 7} is {n}?") for n in range(20)]
    options = {"scorer": score, "path": tmp_path / "index", "progress": False}
    adacur.build(items, anchors, **options, tune=False).close()
    with adacur.build(items, anchors, **options) as index:
        assert index.tunings
    # Once: a finished index is opened.
    before = (tmp_path / "index" / "versions/1/tuned.json").stat().st_mtime_ns
    adacur.build(items, anchors, **options).close()
    assert (tmp_path / "index" / "versions/1/tuned.json").stat().st_mtime_ns == before


def test_a_build_writes_its_manifest_when_it_begins_and_when_all_is_there(tmp_path, monkeypatch) -> None:
    items = [Item(f"i{n}", f"thing{n} of kind{n % 7}") for n in range(110)]
    anchors = [Query(f"q{n}", f"which kind{n % 7} is {n}?") for n in range(20)]
    path, written = tmp_path / "index", []
    write = manifests.write_atomically

    def counted(file, content) -> None:
        written.append((file.parent.name, (path / "versions/1/first" / "bm25").exists()))
        write(file, content)

    monkeypatch.setattr(manifests, "write_atomically", counted)
    options = {"scorer": score, "path": path, "progress": False, "fuse": 0.5}
    with adacur.build(items, anchors, **options) as index:
        assert index.tunings
    assert written == [("built", False), ("1", False), ("index", False), ("built", False), ("1", True)]
    assert (read_manifest(path).first, read_manifest(path).fuse) == (("bm25",), 0.5)
    adacur.build(items, anchors, **options).close()
    assert len(written) == 5


def test_a_build_whose_first_stage_failed_goes_on_without_a_score_paid_twice(tmp_path) -> None:
    class Asleep(Encoder):
        def encode_items(self, texts):
            raise TimeoutError("the encoder is asleep")

    scorer = Metered(FunctionScorer(score, name="score"))
    options = {"scorer": scorer, "path": tmp_path / "index", "progress": False, "tune": False, "first": "dense"}
    with pytest.raises(TimeoutError):
        adacur.build(ITEMS, ANCHORS, encoder=Asleep(), **options)
    with pytest.raises(IncompleteIndex):
        adacur.load(tmp_path / "index")
    assert scorer.calls == 6000
    with adacur.build(ITEMS, ANCHORS, encoder=Encoder(), **options) as index:
        assert index.first_stages == ("dense", "random")
    # A function is recognised by a few scores.
    assert scorer.calls - 6000 <= 8
    assert not list((tmp_path / "index" / "versions/1/first").glob(".*"))


def test_a_first_stage_that_the_manifest_does_not_name_yet_is_named_by_the_same_build(tmp_path) -> None:
    options = {"scorer": score, "path": tmp_path / "index", "progress": False, "tune": False}
    adacur.build(ITEMS, ANCHORS, **options).close()
    manifest = read_manifest(tmp_path / "index")
    # As a process leaves it that is killed between the two.
    write_manifest(tmp_path / "index", replace(manifest, first=()))
    adacur.build(ITEMS, ANCHORS, **options).close()
    assert read_manifest(tmp_path / "index") == manifest
