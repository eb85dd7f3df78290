from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adacur.core.errors import InputError
from adacur.engines.store_urls import open_store, without_credentials


def opened(url: str, **options: Any) -> Any:
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    return open_store(url, **options)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("qdrant://db/things", "qdrant://db:6333/things"),
        ("qdrant://db:99/a%20b", "qdrant://db:99/a%20b"),
        ("qdrant://[::1]:99/things", "qdrant://[::1]:99/things"),
        ("qdrant+https://x.cloud/things", "qdrant+https://x.cloud:6333/things"),
        ("qdrant+https://x.cloud:443/behind/proxy/things", "qdrant+https://x.cloud:443/behind/proxy/things"),
        ("qdrant://:memory:/things", "qdrant://:memory:/things"),
    ],
)
def test_a_store_can_be_opened_again_by_its_name(url: str, name: str) -> None:
    assert opened(url).name == name == opened(name).name


def test_a_folder_of_edge_can_be_opened_again_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")
    store = open_store(f"qdrant-edge://{tmp_path.as_posix()}/my%20things?text=body")
    assert store.name == f"qdrant-edge://{tmp_path.as_posix()}/my%20things"
    assert not (tmp_path / "my things").exists()
    store.create({"features": 2})
    assert (tmp_path / "my things").is_dir()
    store.close()


def test_parameters_name_the_fields_of_an_item_and_options_come_before_them() -> None:
    store = opened("qdrant://db/things?text=title&text=body&id=doc_id&timeout=3", id_field="mine")
    assert (store._text, store._id_field) == (("title", "body"), "mine")
    assert store._client.init_options["timeout"] == 3.0


@pytest.mark.parametrize(
    "url",
    [
        "qdrant://db/things?tex=body",
        "qdrant://db/things?timeout=soon",
        "qdrant://db",
        "qdrant://db:port/things",
        "qdrant://[::1/things",
        "qdrant://me:secret@db/things",
        "qdrant-edge://folder/things",
    ],
)
def test_a_url_that_is_unreadable_or_says_too_much_is_refused(url: str) -> None:
    with pytest.raises(InputError) as caught:
        opened(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("qdrant+https://x.cloud/things", True),
        ("qdrant://localhost/things", True),
        ("qdrant://127.0.0.1:99/things", True),
        ("qdrant://[::1]/things", True),
        ("qdrant://db/things", False),
        ("qdrant://127.0.0.1.evil.com/things", False),
    ],
)
def test_the_key_of_the_environment_is_sent_over_https_or_to_this_machine_only(
    url: str, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    assert opened(url)._client.init_options["api_key"] == ("secret" if sent else None)


@pytest.mark.parametrize("url", ["qdrnt://db/things", "things", "http://me:secret@db/things?api_key=secret"])
def test_a_url_of_another_kind_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(InputError, match="qdrant://") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert ("Did you mean" in str(caught.value)) == url.startswith("qdrnt")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db:5432/shop/things", "postgresql://db:5432/shop/things"),
        ("postgresql://me:se/c@ret@db/shop", "postgresql://db/shop"),
        (
            "postgresql://db/shop?user=me&password=secret&sslmode=require",
            "postgresql://db/shop?user=me&sslmode=require",
        ),
        ("qdrant://db/things?API_KEY=secret", "qdrant://db/things"),
        ("qdrant-edge:///home/a@b/things", "qdrant-edge:///home/a@b/things"),
        ("things", "things"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
