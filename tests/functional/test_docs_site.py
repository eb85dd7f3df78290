"""The documentation as a site: it builds without a warning, its links hold, and it asks no outside host."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import adacur
from tests.functional.test_docs import ROOT

OUTSIDE = re.compile(r"^(https?:)?//")


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_docs", ROOT / "docs/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site: any warning fails the build."""
    folder = tmp_path_factory.mktemp("docs-site")
    assert "No issues found" in builder().build(folder)
    return folder / "site"


class Page(HTMLParser):
    """What a page links to, loads, and can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given.get("href", ""))
        self.loads += [given[name] for name in ("src", "srcset", "data", "poster") if given.get(name)]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_link_of_the_site_leads_to_a_page_and_a_place_on_it(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 60
    broken = []
    for path, page in pages.items():
        # The page for what is not found is served at any depth, so its links start at the root.
        folder = site if path.name == "404.html" else path.parent
        for link in page.links + [load for load in page.loads if not load.startswith("data:")]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            place = parts.path.lstrip("/") if path.name == "404.html" else parts.path
            target = (folder / unquote(place)).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            fragment = unquote(parts.fragment)
            known = pages[target].ids if target in pages else set()
            if not target.exists() or (fragment and target in pages and fragment not in known | {"__skip"}):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == [], "\n".join(broken)


def test_no_page_loads_anything_from_an_outside_host(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert [load for load in page.loads if OUTSIDE.match(load)] == [], path.name
        assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*", path.read_text(encoding="utf-8")) == []
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)]*", sheet.read_text(encoding="utf-8")) == []


def nav_pages(entries: Any) -> Iterator[str]:
    for entry in entries if isinstance(entries, list) else entries.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from nav_pages(entry)


def test_the_menu_has_every_page_and_no_other(site: Path) -> None:
    named = list(nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    staged = site.parent / "build/docs"
    there = {str(path.relative_to(staged)) for path in staged.rglob("*.md")}
    assert len(named) == len(set(named))
    assert set(named) - there == set()
    # Design notes and experiments are listed on a page of their own.
    assert {path for path in there - set(named) if not path.startswith(("design/", "experiments/"))} == set()


def test_programs_find_every_page_of_text_as_markdown(site: Path) -> None:
    listed = re.findall(r"^- \[.+?\]\((\S+)\)$", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    menu = list(nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert [str(Path(page).with_suffix("")) for page in listed] == [str(Path(page).with_suffix("")) for page in menu]
    assert [page for page in listed if not (site / page).exists()] == []
    # Only the reference, which is made of docstrings while rendering, has no Markdown.
    assert {page for page in listed if page.endswith(".html")} <= {f"api/{Path(page).name}" for page in listed}
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    for page in (page for page in listed if page.endswith(".md")):
        text = (site / page).read_text(encoding="utf-8")
        assert text in whole, page
        assert text == (site.parent / "build/docs" / page).read_text(encoding="utf-8")
    # Design notes and experiments, which the menu lists on a page of their own, are Markdown too.
    assert (site / "design/witness.md").exists()


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    ids = set().union(*(page.ids for path, page in pages.items() if path.parent == site / "api"))
    assert {name for name in adacur.__all__ if f"adacur.{name}" not in ids} == set()
    for room in ("replay", "errors", "protocols"):
        module = importlib.import_module(f"adacur.{room}")
        public = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
        ]
        missing = {name for name in public if f"adacur.{room}.{name}" not in ids}
        assert missing - set(adacur.__all__) == set(), room
    # Read, not imported: a host library is not needed to know the names.
    for file in [ROOT / "src/adacur/extras/server/__init__.py", *(ROOT / "src/adacur/extras").glob("[!_]*.py")]:
        names = re.findall(r"^(?:async def|def|class) ([A-Za-z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE)
        room = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for name in names if file.name != "host_bridge.py" else ():
            assert {f"{room}.{name}", f"adacur.{name}"} & ids or name.isupper(), f"{room}.{name}"


def resolve(name: str) -> object:
    """What a dotted name stands for; a field or attribute that only instances have counts as found."""
    parts = name.split(".")
    value: Any = None
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                source = inspect.getsource(value)
                assert re.search(rf"self\.{part}\b|^    {part}:", source, re.MULTILINE), f"{name}: no {part}"
                return source
            value = getattr(value, part)
        return value
    raise AssertionError(f"{name} cannot be imported")


def test_every_name_in_the_table_from_the_paper_exists() -> None:
    text = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(adacur(?:_lab)?(?:\.\w+)+)`", text))
    assert len(names) > 40
    for name in names:
        resolve(name)
    for file in re.findall(r"\]\(\.\./(lab/reproduction/[\w-]+)/README\.md\)", text):
        assert (ROOT / file / "spec.toml").exists() or (ROOT / file / "table.md").exists(), file


def test_links_that_leave_the_site_become_text_and_others_follow_their_page() -> None:
    build = builder()
    files = build.pages()
    source = ROOT / "docs/train.md"
    for written, on_the_site in (
        ("[a](tune.md#b)", "[a](tune.md#b)"),
        ("[a](../lab/reproduction/oracles/README.md)", "[a](experiments/oracles/index.md)"),
        ("[a](../CHANGELOG.md)", "[a](changelog.md)"),
        ("[a](notebooks/look-inside-a-search.ipynb)", "[a](notebooks/look-inside-a-search.md)"),
        ("[`a`](../pyproject.toml)", "`a`"),
        ("[a](#b) [c](https://example.org)", "[a](#b) [c](https://example.org)"),
        ("```text\n[a](../pyproject.toml)\n```\n", "```text\n[a](../pyproject.toml)\n```\n"),
    ):
        assert build.with_links_of_the_site(written, source, files) == on_the_site


def test_a_notebook_becomes_a_page_with_what_it_printed_and_drew() -> None:
    stream = {"output_type": "stream", "name": "stdout", "text": ["one\n"]}
    drawn = {"output_type": "display_data", "data": {"image/png": "iVBORw==", "text/plain": ["<Figure>"]}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title"], "metadata": {}},
        {"cell_type": "code", "source": ["print('one')"], "metadata": {}, "outputs": [stream, drawn, stream]},
    ]
    text, pictures = builder().page_of({"cells": cells}, name="book")
    assert text.startswith("# Title\n\n```python\nprint('one')\n```\n")
    assert "```text\none\none\n```" in text
    assert "](book-1.png)" in text
    assert list(pictures) == ["book-1.png"]
