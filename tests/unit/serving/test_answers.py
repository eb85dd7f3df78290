from __future__ import annotations

import json

import numpy as np

from adacur.core.as_json import as_json
from adacur.serving.answers import sse
from adacur.serving.failures import as_refusal
from adacur.serving.reference import reference_page


def test_every_value_becomes_one_that_json_has():
    odd = {1: (float("nan"), np.float32(2), {"x"}), "a": np.array([1.5, float("inf")]), "b": object, "c": True}
    told = json.loads(json.dumps(as_json(odd), allow_nan=False))
    assert told["1"] == [None, 2.0, ["x"]]
    assert told["a"] == [1.5, None]
    assert told["c"] is True


def test_an_event_is_written_even_where_its_text_is_no_unicode():
    assert sse("round", '{"a":"\ud800"}') == b'event: round\ndata: {"a":"?"}\n\n'


def test_what_other_peoples_code_says_stays_here():
    refusal = as_refusal(RuntimeError("password=123 at /home/me"))
    assert (refusal.status, refusal.code) == (500, "internal")
    assert "123" not in refusal.message


def test_nothing_in_the_api_page_is_taken_for_html():
    document = {
        "info": {"title": "<b>", "version": "1", "description": "`a<b` & more"},
        "paths": {"/<x>": {"get": {"summary": "<i>", "responses": {"200": {"description": "<u>"}}}}},
    }
    page = reference_page(document)
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<u>" not in page
    assert "<code>a&lt;b</code> &amp; more" in page
