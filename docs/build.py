"""Build the site: stage its pages, then let Zensical render them into site/.

    python docs/build.py [FOLDER]

The README, which is the first page, the pages of docs/, the experiments', the changelog and the notebooks are copied
to FOLDER/build/docs, where Zensical reads them, with links between them that hold there. The page on the command line
is made from the commands. A link to a file of the repository that is not on the site becomes plain text. Any warning of
Zensical's ends the build.

For readers that are programs, each page of text lies beside its HTML as Markdown, llms.txt lists them by the menu, and
llms-full.txt has them in one file. The reference of Python is made while rendering and exists as HTML alone.
"""

from __future__ import annotations

import base64
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")


def pages() -> dict[Path, Path]:
    """Every file of the site: where it lies in the repository, and where on the site."""
    files = {
        ROOT / "README.md": Path("index.md"),
        ROOT / "CHANGELOG.md": Path("changelog.md"),
        ROOT / "CONTRIBUTING.md": Path("contributing.md"),
        ROOT / "SECURITY.md": Path("security.md"),
    }
    for file in sorted((ROOT / "docs").rglob("*")):
        path = file.relative_to(ROOT / "docs")
        if file.suffix == ".ipynb":
            files[file] = path.with_suffix(".md")
        elif file.suffix in (".md", ".png", ".svg", ".css"):
            files[file] = path
    for file in sorted((ROOT / "lab/reproduction").glob("**/*")):
        path = Path("experiments") / file.relative_to(ROOT / "lab/reproduction")
        if file.name == "README.md":
            files[file] = path.with_name("index.md")
        elif file.name == "table.md" or file.suffix == ".png":
            files[file] = path
    # The folder of design notes has a page of its own on the site.
    files[ROOT / "docs/design"] = Path("design/index.md")
    return files


def with_links_of_the_site(text: str, source: Path, files: dict[Path, Path]) -> str:
    """A page whose links hold on the site; those that leave it become their text."""

    def rewrite(found: re.Match[str]) -> str:
        target, anchor = found["target"], found["anchor"] or ""
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        place = (source.parent / target).resolve()
        if place not in files:
            return found["text"]
        relative = os.path.relpath(files[place], files[source].parent)
        return f"{found['image']}[{found['text']}]({relative}{anchor})"

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(rewrite, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewrite, text[end:])])


def page_of(notebook: dict[str, Any], *, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and the pictures that it shows."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).rstrip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        text = ""
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![{cell['metadata'].get('alt', 'What the cell above draws')}]({picture})")
            else:
                text += "".join(output.get("text", data.get("text/plain", "")))
        if text.strip():
            parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def list_of_notes() -> str:
    lines = [
        "# Design notes",
        "",
        "A page for each part: what was chosen, and every rejected option, with the reason and the measurement.",
        "",
    ]
    for file in sorted((ROOT / "docs/design").glob("*.md")):
        title = file.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({file.name})")
    return "\n".join(lines) + "\n"


def with_levels(text: str) -> str:
    """A page of the reference, in which what stands under a heading of its own is one level lower."""
    level, lines = 2, []
    for line in text.splitlines():
        level = 3 if line.startswith("## ") else level
        if line.startswith("::: "):
            lines += ["", line, "    options:", f"      heading_level: {level}"]
        elif line != "    options:":
            lines.append(line)
    return "\n".join(lines) + "\n"


def stage(folder: Path) -> None:
    """Write what Zensical reads into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    files = pages()
    for source, place in files.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source == ROOT / "docs/design":
            target.write_text(list_of_notes(), encoding="utf-8")
        elif source.suffix == ".ipynb":
            text, pictures = page_of(json.loads(source.read_text(encoding="utf-8")), name=source.stem)
            links = {**files, **{source.parent / name: place.parent / name for name in pictures}}
            target.write_text(with_links_of_the_site(text, source, links), encoding="utf-8")
            for name, picture in pictures.items():
                (target.parent / name).write_bytes(picture)
        elif source.suffix == ".md":
            text = with_links_of_the_site(source.read_text(encoding="utf-8"), source, files)
            target.write_text(with_levels(text) if place.parent.name == "api" else text, encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    command_line = runpy.run_path(str(ROOT / "docs/command_line.py"))
    (folder / "cli.md").write_text(command_line["page"](), encoding="utf-8")


def write_for_programs(staged: Path, site: Path) -> None:
    """Write the Markdown of the pages beside them, llms.txt and llms-full.txt."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    texts = {page.relative_to(staged): page.read_text(encoding="utf-8") for page in sorted(staged.rglob("*.md"))}
    texts = {page: text for page, text in texts.items() if not re.search(r"^::: ", text, re.MULTILINE)}
    for page, text in texts.items():
        (site / page).write_text(text, encoding="utf-8")
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    whole: list[str] = []
    for entry in settings["nav"]:
        ((section, content),) = entry.items()
        lines += ["", f"## {section}", ""]
        for page in menu_pages(content):
            title = re.search(r"^# (.+)$", (staged / page).read_text(encoding="utf-8"), re.MULTILINE)
            there = page if page in texts else page.with_suffix(".html")
            lines.append(f"- [{title[1] if title else page.stem}]({there.as_posix()})")
            whole += [texts[page]] if page in texts else []
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def menu_pages(content: Any) -> Iterator[Path]:
    """The pages of a part of the menu, in order."""
    if isinstance(content, str):
        yield Path(content)
    else:
        for entry in content if isinstance(content, list) else content.values():
            yield from menu_pages(entry)


def build(folder: Path) -> str:
    """Build the site in `folder`; returns Zensical's log."""
    stage(folder / "build/docs")
    if folder != ROOT:
        shutil.copyfile(ROOT / "mkdocs.yml", folder / "mkdocs.yml")
    shutil.rmtree(folder / "site", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = re.sub(r"\x1b\[[\d;]*m", "", done.stdout)
    if done.returncode != 0 or re.search(r"warning", log, re.IGNORECASE):
        raise SystemExit(f"The site was not built without a warning:\n{log}")
    write_for_programs(folder / "build/docs", folder / "site")
    return log


if __name__ == "__main__":
    where = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    sys.stdout.write(
        f"{build(where)}Open {where / 'site/index.html'}; its search needs a server: python -m http.server -d site\n"
    )
