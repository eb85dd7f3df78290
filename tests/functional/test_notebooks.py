"""The notebooks run from the first cell to the last, and print what they show.

    python -m tests.functional.test_notebooks docs/notebooks/NAME.ipynb …

runs notebooks and keeps what their cells really print and draw.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.functional.test_docs import ROOT, comparable

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


class ThisPython(AsyncKernelManager):
    """A kernel of the Python that runs the tests, whatever kernels are installed on the machine."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])


def run(path: Path, folder: Path) -> NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_manager_class=ThisPython, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return notebook


def printed(cell: NotebookNode) -> str:
    """What a cell shows as text; progress and warnings go to the error stream, and differ between machines."""
    return "".join(
        output.get("text", output.get("data", {}).get("text/plain", ""))
        for output in cell.get("outputs", [])
        if "image/png" not in output.get("data", {}) and output.get("name") != "stderr"
    )


def pictures(cell: NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


@pytest.mark.int8
@pytest.mark.examples
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_shows_what_it_prints_and_draws(path: Path, tmp_path: Path) -> None:
    shown = nbformat.read(path, as_version=4)
    for before, after in zip(shown.cells, run(path, tmp_path).cells, strict=True):
        for shown_line, line in zip_longest(comparable(printed(before)), comparable(printed(after))):
            agree = shown_line is not None and line is not None and shown_line.agrees_with(line)
            assert agree, f"{after.source}\n{shown_line}\n{line}"
        assert pictures(after) == pictures(before), after.source


def test_there_are_notebooks_and_they_show_something() -> None:
    assert len(NOTEBOOKS) >= 2
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert any(printed(cell) for cell in notebook.cells), path.name
        assert not any(output.output_type == "error" for cell in notebook.cells for output in cell.get("outputs", []))
        assert path.stat().st_size < 400_000, f"{path.name} is too large to keep in the repository"


def keep_outputs(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        notebook = run(path, Path(folder))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # When a cell ran, and on which machine, is noise in every difference.
            cell.metadata.pop("execution", None)
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        keep_outputs(Path(name).resolve())
