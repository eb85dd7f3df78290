"""The documents keep their word: every example runs, and every output shown is what it prints.

A fenced block is run by its language, in the order of the document, in a folder of its own:
`python` in one namespace per document, a `text` block right behind it being what it prints; `console` and `bash`
command by command, if it is an `adacur` command; and a block with `title="name"` is a file of that name.
`adacur serve …` is started on a free port, and stopped at the end of the document; the `curl` commands and the Python
behind it that say `localhost:8000` (or the `--port` given) reach it there. `python -m adacur_lab …` finds a copy
of the repository's experiments. Plain commands that other tests start as processes of their own run in this one.
`<!-- not run: reason -->` above a block leaves it alone.

    python -m tests.functional.test_docs [--all] docs/quickstart.md …

runs documents and writes what their examples really print into them, where that differs by more than a test would
forgive; with --all, everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adacur.cli import messages
from adacur.cli import run as run_adacur
from adacur.data import cache_folder
from adacur.store import DriftWarning
from tests.functional.test_cli import commands

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", *PAGES]
# Run by `make test`; the others by `make examples`.
FIRST_READ = [ROOT / "README.md", ROOT / "docs/quickstart.md", *sorted((ROOT / "docs/api").glob("*.md"))]
# What takes longest comes first.
DOCUMENTS.sort(key=lambda page: page.name not in ("train.md", "relevance.md"))
EVERY_PAGE = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *PAGES,
    *sorted((ROOT / "lab" / "reproduction").rglob("README.md")),
]

FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n+)?"
    r"```(?P<language>[a-z]*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = r"(?<![\w.])[-−]?(?:\d[\d,]*)?(?:\.\d+)+(?:e[-+]?\d+)?|\d+e[-+]\d+"
# A number with one point that is neither a speed, a size nor a time or a range of them.
UNIT = r"(?:–[\d.,]+)? (?:s|ms|min|h|kB|MB|GB|pairs/s)\b"
DECIMAL = re.compile(rf"(?<![\w.])[-−]?(?:\d[\d,]*)?\.\d+(?:e[-+]?\d+)?(?![\d.]*\d|{UNIT})")
# Ends of an interval over few queries leap from 0 to 1.
INTERVAL = re.compile(r"[(\[][-−]?[\d.]+(?:–|, )[-−]?[\d.]+[)\]]")
# int8 scores differ by up to half a logit between processors, and the rehearsal moves them by three tenths.
MOST_BETWEEN_PROCESSORS = 0.8
WIDTH = 88
# Each has a test that starts it as a process; importing everything anew for each example would prove nothing more.
RUN_HERE = ("build", "search", "tune", "evaluate", "inspect", "index", "train")


@dataclass(frozen=True)
class Block:
    """A fenced block; `start` and `stop` are where its body lies in the document."""

    language: str
    body: str
    title: str | None
    left_alone: bool
    start: int
    stop: int


@dataclass(frozen=True)
class Shown:
    """An output that a document shows, where it shows it, and what was really printed."""

    example: str
    start: int
    stop: int
    shown: str
    printed: str

    @property
    def missing(self) -> str | None:
        """The first line shown that was not printed, in the order shown; None where all were."""
        printed = iter(comparable(self.printed))
        return next((line.whole for line in comparable(self.shown) if not any(map(line.agrees_with, printed))), None)


@dataclass(frozen=True)
class Line:
    """A line of output: its words, and the decimals between them."""

    whole: str
    words: str
    decimals: tuple[float, ...]

    def agrees_with(self, other: Line) -> bool:
        return self.words == other.words and all(
            abs(ours - theirs) <= MOST_BETWEEN_PROCESSORS
            for ours, theirs in zip(self.decimals, other.decimals, strict=False)
        )


# Commands open the int8 model where no scorer is named.
INT8 = re.compile(r"MiniLM|bge-|wikivital|\badacur (demo|build|search|serve|tune|evaluate|index|train) ")


def uses_int8(text: str) -> bool:
    """Whether the examples of a document may open an int8 model, whose scores differ between processors."""
    return any(INT8.search(block.body) for block in blocks_of(text) if not block.left_alone)


def marked(document: Path) -> Any:
    """A document for `parametrize`, with the marks by which the Makefile chooses when it runs, and how."""
    marks = [pytest.mark.int8] if uses_int8(document.read_text(encoding="utf-8")) else []
    marks += [] if document in FIRST_READ else [pytest.mark.examples]
    return pytest.param(document, marks=marks, id=name_of(document))


def blocks_of(text: str) -> list[Block]:
    return [
        Block(
            language=found["language"],
            body=found["body"],
            title=found["title"],
            left_alone=found["reason"] is not None,
            start=found.start("body"),
            stop=found.end("body"),
        )
        for found in FENCE.finditer(text)
    ]


class Servers:
    """The servers that a document starts: each runs on a free port in place of the one that the document names."""

    def __init__(self) -> None:
        self.running: list[tuple[Shown, subprocess.Popen[bytes], Path]] = []
        self.ports: dict[str, str] = {}

    def start(self, command: str, shown: Shown) -> None:
        named = re.search(r"--port[ =](\d+)", command)
        wanted = named[1] if named else "8000"
        command = re.sub(r"\s*&$", "", command)
        port = self.ports[wanted] = str(free_port())
        command = command.replace(named[0], f"--port {port}") if named else f"{command} --port {port}"
        log = Path(f"serve-{port}.log")
        with log.open("w") as written:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], stdout=written, stderr=subprocess.STDOUT, env=shell()
            )
        self.running.append((shown, server, log.resolve()))
        end = time.monotonic() + 120
        while time.monotonic() < end and server.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://localhost:{port}/readyz"):
                return
            time.sleep(0.1)
        raise AssertionError(f"{command}\nis not ready:\n{log.read_text()}")

    def reach(self, text: str) -> str:
        for named, port in self.ports.items():
            text = re.sub(rf"(localhost|127\.0\.0\.1):{named}\b", rf"\1:{port}", text)
        return text

    def printed(self, text: str) -> str:
        for named, port in self.ports.items():
            text = text.replace(f":{port}", f":{named}")
        return text

    def stop(self) -> Iterator[Shown]:
        while self.running:
            shown, server, log = self.running.pop()
            server.send_signal(signal.SIGINT)
            try:
                server.wait(30)
            finally:
                server.kill()
            # Whether it was ready was this test's question, not the document's.
            lines = [line for line in log.read_text(encoding="utf-8").splitlines() if "/readyz" not in line]
            yield dataclasses.replace(shown, printed=self.printed("\n".join([*lines, ""])))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(text: str) -> Iterator[Shown]:
    """Run a document's examples in the current folder."""
    servers = Servers()
    try:
        yield from run_blocks(text, servers)
    finally:
        stopped = list(servers.stop())
    yield from stopped


def run_blocks(text: str, servers: Servers) -> Iterator[Shown]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = blocks_of(text)
    for block, after in zip(blocks, [*blocks[1:], None], strict=False):
        if block.left_alone:
            continue
        if block.title is not None:
            Path(block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            printed = servers.printed(run_python(servers.reach(block.body), namespace))
            if after is not None and after.language == "text" and not text[block.stop + 3 : after.start - 8].strip():
                yield Shown(block.body, after.start, after.stop, after.body, printed)
        elif block.language in ("console", "bash"):
            yield from run_commands(block, servers)


def run_python(code: str, namespace: dict[str, object]) -> str:
    printed = io.StringIO()

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        printed.write(f"{category.__name__}: {message}\n")

    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("always", DriftWarning)
        warnings.showwarning = show
        exec(compile(code, "<document>", "exec"), namespace)
    return printed.getvalue()


def commands_of(block: Block) -> Iterator[Shown]:
    """The commands of a block with the output that it shows of each, nothing being printed yet."""
    prompt = "$ " if block.language == "console" else ""
    starts = [found.start() for found in re.finditer(rf"^{re.escape(prompt)}(?=\S)", block.body, re.MULTILINE)]
    for start, stop in zip(starts, [*starts[1:], len(block.body)], strict=True):
        part = block.body[start:stop].removeprefix(prompt)
        command = re.match(r"(?:.*\\\n)*.*\n", part)
        assert command is not None
        text = part[command.end() :]
        where = block.start + start + len(prompt) + command.end()
        yield Shown(command.group().strip(), where, where + len(text), text, printed="")


def run_commands(block: Block, servers: Servers) -> Iterator[Shown]:
    for shown in commands_of(block):
        line, text = shown.example, shown.shown
        if line.startswith("python -m adacur_lab ") and not Path("lab").exists():
            shutil.copytree(ROOT / "lab/reproduction", "lab/reproduction")
        if line.split()[:2] == ["adacur", "serve"]:
            servers.start(line, shown)
        elif line.startswith(("adacur", "python -m adacur_lab ")) or (line.startswith("curl") and servers.running):
            printed = run_command(servers.reach(line), fails="Error: " in text)
            yield dataclasses.replace(shown, printed=servers.printed(printed))


def shell() -> dict[str, str]:
    scripts = Path(sys.executable).parent
    return os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}", "COLUMNS": str(WIDTH), "NO_COLOR": "1"}


def run_command(command: str, *, fails: bool) -> str:
    # A shell is needed for its own signs, and a process by those that start processes.
    is_plain = not re.search(r"[|&;<>$`*~#]|--workers|--ray", command)
    program, name = command.split()[:2]
    code, printed = (run_here if program == "adacur" and name in RUN_HERE and is_plain else run_in_a_shell)(command)
    assert (code != 0) == fails, f"{command}\nended with {code}:\n{printed}"
    return printed.replace(str(cache_folder()), "~/.cache/adacur")


def run_in_a_shell(command: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=shell(),
        check=False,
    )
    return done.returncode, done.stdout


def run_here(command: str) -> tuple[int, str]:
    printed = io.StringIO()
    code: Any = 0
    modules = set(sys.modules)
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(),
    ):
        # As they are in a process of its own.
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        for variable, value in shell().items():
            patch.setenv(variable, value)
        for console in (messages.output, messages.notes):
            patch.setattr(console, "_width", WIDTH)
        patch.setattr(sys, "argv", shlex.split(command.replace("\\\n", " ")))
        patch.setattr(sys, "path", [*sys.path])
        try:
            run_adacur()
        except SystemExit as stop:
            code = stop.code
    # The next document may have a file by the same name.
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == Path.cwd():
            del sys.modules[name]
    return code, printed.getvalue()


def without_progress(printed: str) -> str:
    """What stays on the screen: a progress bar writes over itself."""
    lines = (line.rstrip() for line in re.split(r"[\n\r]+", printed))
    return "".join(f"{line}\n" for line in lines if line and not re.search(r"\d%\||\d+it|\ditem|pairs \[", line))


def comparable(output: str) -> list[Line]:
    """Lines without what may differ between machines: spacing, speeds, rounds, dates."""
    lines = []
    for line in re.split(r"[\n\r]", output):
        words = INTERVAL.sub("INTERVAL", re.sub(r"\d{4}-\d\d-\d\dT[\d:+]+", "DATE", line))
        decimals = tuple(float(number.replace(",", "").replace("−", "-")) for number in DECIMAL.findall(words))
        for pattern, plain in (
            (r"[━╇┃┼─\s]+", " "),
            (NUMBER, "#"),
            (r"[\d,#]+ pairs/s", "# pairs/s"),
            (r"(over|timed on) [\d,]+ pairs", r"\1 # pairs"),
            (r"(under )?(#–)?# (s|min|h|kB|MB)\b", "# units"),
            (r"(round[\"']?:? |│ # │ )\s*\d+", r"\1#"),
        ):
            words = re.sub(pattern, plain, words)
        words = words.strip()
        if words not in ("", "…"):
            # Where a table cuts its last column depends on the width of the numbers before it.
            lines.append(Line(line.strip(), words[:60] if words.endswith("…") else words, decimals))
    return lines


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT)).removeprefix("docs/")


@pytest.mark.parametrize("document", [marked(document) for document in DOCUMENTS])
def test_every_example_runs_and_prints_what_is_shown(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in run(document.read_text(encoding="utf-8")):
        assert example.missing is None, (
            f"{document.name} shows a line that was not printed:\n  {example.missing}\n"
            f"The example:\n{example.example}\nprinted:\n{without_progress(example.printed)}"
        )


def test_a_line_that_was_not_printed_is_noticed() -> None:
    document = '```python\nprint("one 1.5")\nprint("two")\n```\n\n```text\n{}\n```\n'
    for shown, missing in (
        ("one 2.25\ntwo", None),
        ("one 2.75\ntwo", "one 2.75"),
        ("two", None),
        ("two\none 1.5", "one 1.5"),
        ("three", "three"),
    ):
        (example,) = run(document.format(shown))
        assert example.missing == missing


def test_decimals_are_compared_but_for_times_sizes_and_versions() -> None:
    for line, decimals in (
        ("1. -10.28  round 4  Silk Road", [-10.28]),
        ("│ 0.5 s │ 4.0 kB │ 1,234.5 │ 251.5 pairs/s", [1234.5]),
        ("12.25, 1e-05, version 1.2.3, 0.859 … 1.000.", [12.25, 0.859, 1.0]),
        ('"score": 5.19, finds .74 (0.50–1.00); adds −.21 [−.09, .33]', [5.19, 0.74, -0.21]),
    ):
        assert [list(one.decimals) for one in comparable(line)] == [decimals]


def test_rounds_and_the_width_of_numbers_are_not_compared() -> None:
    (shown,), printed = comparable("1 │  9.99 │     1 │ Tereshkova"), comparable("1 │ 10.08 │     2 │ Tereshkova")
    assert shown.agrees_with(*printed)


def test_a_block_that_is_marked_is_left_alone() -> None:
    assert list(run("<!-- not run: it fails -->\n\n```python\n1 / 0\n```\n")) == []
    with pytest.raises(ZeroDivisionError):
        list(run("```python\n1 / 0\n```\n"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_command_is_run_or_names_an_extra_or_target_that_exists(document: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for block in blocks_of(document.read_text(encoding="utf-8")):
        if block.left_alone or block.title or block.language not in ("bash", "console"):
            continue
        for command in (shown.example for shown in commands_of(block)):
            if named := re.match(r"pip install '?(?:adacur|\.)(?:\[([\w,-]+)\])?'?(?:\s|$)", command):
                assert set((named[1] or "onnx").split(",")) <= set(extras), command
            elif command.startswith("make "):
                assert command.split()[1] in targets, command
            else:
                assert command.startswith(("adacur ", "curl ", "python -m adacur_lab ")), (
                    f"{document.name} has a command that is not run: {command}"
                )


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_every_link_and_file_that_a_page_names_exists(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = {link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link}
    files = set(re.findall(r"`((?:src|tests|lab|docs)/[\w./-]+)`", text))
    for link in links:
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for file in files:
        assert (ROOT / file).exists(), f"{page.name} names {file}"


def test_the_page_on_the_command_line_has_an_example_of_every_command() -> None:
    page = runpy.run_path(str(ROOT / "docs/command_line.py"))["page"]()
    for name, _ in commands():
        assert re.search(rf"^adacur {name}\b", page, re.MULTILINE), f"adacur {name} --help has no example"


def write_outputs(document: Path, *, everywhere: bool) -> None:
    text = document.read_text(encoding="utf-8")
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for example in sorted(run(text), key=lambda example: -example.start):
            if everywhere or example.missing is not None or not comparable(example.shown):
                text = text[: example.start] + without_progress(example.printed) + text[example.stop :]
        os.chdir(here)
    document.write_text(text, encoding="utf-8")


def test_every_file_that_the_map_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))(?::\w+)?`", text))
    assert len(named) > 20
    known = [path for path in named if (ROOT / "src/adacur" / path).exists() or (ROOT / path).exists()]
    assert named - set(known) == set()


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--all"]
    for name in names:
        write_outputs(Path(name).resolve(), everywhere="--all" in sys.argv)
