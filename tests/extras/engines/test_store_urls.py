from __future__ import annotations

import logging
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adacur.errors import AdacurError, InputError
from adacur.extras.engines.qdrant import QdrantStore
from adacur.extras.engines.store_urls import open_store, without_credentials
from adacur.names import STORES


def opened(url: str) -> Any:
    for module in ("qdrant_client", "lancedb", "psycopg"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    return open_store(url).store


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("qdrant://db/things", "qdrant://db:6333/things"),
        ("qdrant://db:99/a%20b", "qdrant://db:99/a%20b"),
        ("qdrant://[::1]:99/things", "qdrant://[::1]:99/things"),
        ("qdrant+https://x.cloud/things", "qdrant+https://x.cloud:6333/things"),
        ("qdrant+https://x.cloud:443/behind/proxy/things", "qdrant+https://x.cloud:443/behind/proxy/things"),
        ("lancedb:///data/my%20shop%3F/things", "lancedb:///data/my%20shop%3F/things"),
        ("postgresql://db:99/a%2Fb/s.things", "postgresql://db:99/a%2Fb/s.things"),
        ("postgresql://%2Frun%2Fpg/shop/things?text=a", "postgresql://%2Frun%2Fpg/shop/things"),
        ("postgresql://[::1]:99/shop/things", "postgresql://[::1]:99/shop/things"),
    ],
)
def test_a_store_can_be_opened_again_by_its_name(url: str, name: str) -> None:
    assert opened(url).name == name == opened(name).name


@pytest.mark.parametrize(
    "url",
    [
        "qdrant://db/things?tex=body",
        "qdrant://db",
        "postgresql://db/things",
        "postgresql://db/a/b/things",
        "lancedb:///things",
        "lancedb:///a/",
        "lancedb:///a#b/things",
        "qdrant://db:port/things",
        "qdrant://[::1/things",
        "qdrant://me:secret@db/things",
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


LANCE = "lancedb:///data/shop/things"


@pytest.mark.parametrize("base", ["qdrant://db/things", LANCE, "postgresql://db/shop/things"])
def test_every_engine_takes_the_fields_of_text_id_and_vector(base: str) -> None:
    store = opened(f"{base}?text=title&text=body&id=doc&vector=dense")
    id_field = vars(store).get("_columns", {}).get("id_field") or store._id_field
    assert (store.text_fields, id_field, store.vector) == (("title", "body"), "doc", "dense")
    with pytest.raises(InputError):
        opened(f"{base}?idd=doc")


# Halves of a password, between which a URL may break.
FIRST, SECOND = "hunt", "er2zz"
URLS = [
    "{scheme}://{user}:{password}@host/things",
    "{scheme}://{user}:{password}@host:99/folder/things?table=things&text=a",
    "{scheme}://{password}@/folder/things?table=x",
    "{scheme}://host/things?table=x&api_key={password}",
    "{scheme}://host/things?password={password}&table=x",
]


@given(
    scheme=st.sampled_from([*STORES, "http", "qdrnt"]),
    pattern=st.sampled_from(URLS),
    user=st.text(max_size=4).map(lambda text: f"me{text}"),
    parts=st.lists(
        st.text(alphabet=st.sampled_from("/@?#:%[]\\ ,;&=\n\tä℀é1a") | st.characters(), max_size=3),
        min_size=3,
        max_size=3,
    ),
)
@example(scheme="qdrant", pattern=URLS[0], user="me", parts=["", "℀", ""])
@example(scheme="qdrant", pattern=URLS[0], user="me", parts=["", "/", ""])
@example(scheme="postgresql", pattern=URLS[1], user="me", parts=["", "/", ""])
@example(scheme="postgresql", pattern=URLS[1], user="me", parts=["", "@", ""])
@example(scheme="lancedb", pattern=URLS[0], user="me", parts=["", "/", ""])
@example(scheme="qdrant", pattern=URLS[2], user="me", parts=["/", "", ""])
@example(scheme="postgresql", pattern=URLS[4], user="me", parts=["", "&", ""])
@settings(deadline=None, max_examples=400)
def test_a_password_is_never_shown(scheme: str, pattern: str, user: str, parts: list[str]) -> None:
    password = f"{parts[0]}{FIRST}{parts[1]}{SECOND}{parts[2]}"
    url = pattern.format(scheme=scheme, user=user, password=password)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    shown = [without_credentials(url)]
    try:
        store = opened(url)
        shown += [store.name, repr(store), str(store)]
        store.close()
    except AdacurError as error:
        shown += [str(error), repr(error), "".join(traceback.format_exception(error)[-2:])]
    finally:
        logging.getLogger().removeHandler(handler)
    shown += [record.getMessage() for record in records]
    for text in shown:
        assert FIRST not in text
        assert SECOND not in text


@pytest.mark.parametrize(
    "url", ["http://me:hunt/er2@db", "http://me:hunt@er2@db", "http://me:hunt℀@db", "http://me:hunt", "http://me:h@db"]
)
def test_the_name_of_a_collection_does_not_show_the_password_of_its_client(url: str) -> None:
    store = QdrantStore("things", client=SimpleNamespace(init_options={"url": url}))
    assert "hunt" not in store.name
    assert store.name.endswith("…/things")


@pytest.mark.parametrize("url", ["qdrnt://db/things", "things", "http://me:secret@db/things?api_key=secret"])
def test_a_url_of_another_kind_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(InputError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert ("Did you mean" in str(caught.value)) == url.startswith("qdrnt")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db:5432/shop/things", "postgresql://…"),
        ("postgresql://db:5432/shop/things", "postgresql://db:5432/shop/things"),
        ("postgresql://me:se/c@ret@db/shop", "postgresql://…"),
        ("postgresql://me:se?cret@db/shop", "postgresql://…"),
        ("postgresql://me:secret/shop", "postgresql://…"),
        ("me:secret@db://shop", "…"),
        ("postgresql://db/shop?user=me&password=se&cret&sslmode=require", "postgresql://db/shop"),
        ("qdrant://db/things?API_KEY=secret", "qdrant://db/things"),
        ("lancedb:///home/a%40b/things", "lancedb:///home/a%40b/things"),
        ("things", "things"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
