"""What would be uploaded: the wheel and the sdist, built here and looked into."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from adacur.data.catalogue import describe, unpack
from adacur.search import shipped
from adacur.search.shipped import wikivital_numbers

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")
pytest.importorskip("hatch_fancy_pypi_readme", reason="hatch-fancy-pypi-readme is not installed")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(built.glob("*.whl")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {name.split("/")[0] for name in names} == {"adacur", f"adacur-{PROJECT['version']}.dist-info"}
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "adacur").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == {name for name in names if "dist-info" not in name}
    assert {"adacur/py.typed", "adacur/extras/server/page/index.html"} <= names
    assert sum(entry.compress_size for entry in wheel.infolist()) < 1.5e6


def test_the_numbers_of_the_demo_are_a_wheel_of_their_own_which_the_catalogue_names(tmp_path: Path) -> None:
    source = ROOT / "src/adacur_wikivital"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=source, capture_output=True, encoding="utf-8", check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    (built,) = tmp_path.glob("*.whl")
    asset = describe("wikivital-scores")
    name, _, version = asset.wheel.partition("==")
    assert built.name.startswith(f"{name.replace('-', '_')}-{version}-")
    unpack(built, asset, tmp_path / asset.name)
    assert asset.is_in(tmp_path)
    assert {file.name for file in source.glob("*.npy")} <= asset.files.keys()
    assert wikivital_numbers() == source


def test_an_installed_library_fetches_the_numbers_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(shipped, "find_spec", lambda name: None)
    monkeypatch.setattr(shipped, "fetch", lambda name: asked.append(name) or Path("there"))
    assert wikivital_numbers() == Path("there")
    assert asked == ["wikivital-scores"]


def test_the_licences_of_all_that_is_shipped_are_in_the_wheel(wheel: zipfile.ZipFile, metadata: Message) -> None:
    licences = [name.partition(".dist-info/licenses/")[2] for name in wheel.namelist()]
    vendor = "src/adacur/extras/server/page/vendor/"
    assert set(metadata.get_all("License-File", [])) == set(filter(None, licences))
    for script in (ROOT / vendor).glob("*.js"):
        name = script.name.removesuffix(".js").removesuffix(".min")
        assert f"{vendor}{name}.LICENSE.txt" in licences
    assert "LICENSE" in licences
    assert metadata["License-Expression"] == PROJECT["license"]
    # With an expression, licence classifiers are forbidden.
    assert not [name for name in PROJECT["classifiers"] if name.startswith("License")]


def test_the_sdist_holds_what_a_build_needs(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    top = {name.split("/")[0] for name in names}
    assert {"src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"} <= top
    assert top.isdisjoint({"tests", "docs", "lab", "shared", ".venv", "build", "site"})


def test_the_readme_of_the_package_has_no_link_that_leads_nowhere(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert [link for link in re.findall(r"\]\(([^)]+)\)", prose) if not link.startswith(("https://", "#"))] == []
    # Beside links and pictures nothing is left out.
    words = set(
        re.findall(r"\w+", re.sub(r"!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)", "", (ROOT / "README.md").read_text("utf-8")))
    )
    assert words - set(re.findall(r"\w+", text)) == set()


def test_the_versions_agree(metadata: Message) -> None:
    assert metadata["Version"] == PROJECT["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert f'__version__ = "{PROJECT["version"]}"' in (ROOT / "src/adacur/__init__.py").read_text(encoding="utf-8")


def test_every_requirement_has_a_lowest_version_and_no_highest() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for line in (line for group in groups for line in group):
        requirement = Requirement(line)
        operators = [part.operator for part in requirement.specifier]
        assert operators == ([] if requirement.name == "adacur" else [">="]), line


@pytest.mark.parametrize("name", ["test.yml", "release.yml"])
def test_workflows_pin_actions_by_commit_and_grant_nothing_by_default(name: str) -> None:
    text = (ROOT / ".github/workflows" / name).read_text(encoding="utf-8")
    actions = re.findall(r"uses: (\S+) #", text)
    assert len(actions) == text.count("uses:")
    assert [action for action in actions if not re.search(r"@[0-9a-f]{40}$", action)] == []
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    writing = {job for job, body in workflow["jobs"].items() if "write" in body["permissions"].values()}
    assert writing == ({"publish"} if name == "release.yml" else set())


def test_every_python_that_is_claimed_is_tested() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    claimed = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if "Python :: 3." in name]
    assert workflow["jobs"]["matrix"]["strategy"]["matrix"]["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"
