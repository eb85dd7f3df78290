from __future__ import annotations

from pathlib import Path

import pytest

import adacur
from adacur.errors import InputError, NotTrusted, WrongScorer
from adacur.extras.server.open_indexes import named_places, open_indexes
from tests.serving_world import world_items


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("indexes")
    made = {}
    for name, part in (("one", slice(0, 40)), ("two", slice(40, 80))):
        made[name] = home / f"{name}.adacur"
        adacur.build(
            world_items()[part],
            4,
            scorer="tests.functional.scoring:named_lengths",
            path=made[name],
            progress=False,
            tune=False,
        ).close()
    return made


def test_an_index_is_named_after_its_folder_or_as_asked(tmp_path):
    assert named_places(["a/wiki.adacur", "mine=b/wiki.adacur", "qdrant://host/far", "plain/"]) == {
        "wiki": "a/wiki.adacur",
        "mine": "b/wiki.adacur",
        "far": "qdrant://host/far",
        "plain": "plain/",
    }
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert named_places([str(odd)]) == {"a=b": str(odd)}


def test_two_indexes_of_one_name_are_refused():
    with pytest.raises(InputError, match=r"'wiki'.*a/wiki\.adacur.*b/wiki\.adacur"):
        named_places(["a/wiki.adacur", "b/wiki.adacur"])


def test_indexes_of_one_scorer_open_one_model_and_one_cache(folders, tmp_path):
    with pytest.raises(NotTrusted, match="scoring:named_lengths"):
        open_indexes(folders)
    opened = open_indexes(folders, allow_code=True)
    assert list(opened) == ["one", "two"]
    assert opened["one"].scorer is opened["two"].scorer
    given = open_indexes(folders, scorer="tests.functional.scoring:named_lengths")
    assert given["one"].scorer is given["two"].scorer
    cached = open_indexes(folders, allow_code=True, cache=tmp_path / "scores.sqlite")
    assert isinstance(cached["one"].scorer, adacur.Cached)
    assert cached["one"].scorer is cached["two"].scorer


def test_another_scorer_than_the_one_that_built_an_index_is_refused(folders):
    with pytest.raises(WrongScorer):
        open_indexes(folders, scorer=lambda pairs: [float(len(item) % 5) for _, item in pairs])
