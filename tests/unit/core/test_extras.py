"""What a message says about an extra must work where it is read: in a clone, beside a wheel, after `pip install`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adacur.errors import MissingExtra
from adacur.requirements import install_command, require


@pytest.fixture
def installed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make this package look installed from somewhere, as pip and uv record it (PEP 610)."""

    def record(origin: dict | None) -> None:
        folder = tmp_path / "site" / "adacur-9.9.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: adacur\nVersion: 9.9\n")
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(str(folder.parent))

    return record


def test_a_published_package_is_asked_for_by_name(installed_from) -> None:
    installed_from(None)
    assert install_command("onnx").endswith(" install 'adacur[onnx]'")


def test_a_clone_is_asked_for_by_its_folder(installed_from, tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    installed_from({"url": clone.as_uri(), "dir_info": {}})
    assert install_command("onnx,serving").endswith(f" install '{clone}[onnx,serving]'")


def test_an_editable_clone_stays_editable(installed_from, tmp_path: Path) -> None:
    installed_from({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_command("evaluation").endswith(f" install -e '{tmp_path}[evaluation]'")


def test_a_wheel_is_asked_for_by_its_file_and_by_name_once_it_is_gone(installed_from, tmp_path: Path) -> None:
    wheel = tmp_path / "adacur-9.9-py3-none-any.whl"
    wheel.touch()
    installed_from({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("onnx").endswith(f" install '{wheel}[onnx]'")
    wheel.unlink()
    assert install_command("onnx").endswith(" install 'adacur[onnx]'")


def test_a_package_from_version_control_is_asked_for_by_name(installed_from) -> None:
    installed_from({"url": "https://example.org/adacur.git", "vcs_info": {"vcs": "git", "commit_id": "0"}})
    assert install_command("onnx").endswith(" install 'adacur[onnx]'")


def test_a_missing_module_names_the_extra_and_the_command() -> None:
    with pytest.raises(MissingExtra, match="no_such_module") as raised:
        require("no_such_module", extra="onnx")
    assert install_command("onnx") in str(raised.value)
