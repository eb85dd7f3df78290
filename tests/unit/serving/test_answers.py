from __future__ import annotations

from adacur.serving.failures import as_refusal, json_answer
from adacur.serving.reference import reference_page


def test_an_answer_is_written_even_where_its_text_is_not_unicode():
    assert json_answer({"a": "\ud800"}).body == b'{"a":"?"}'


def test_messages_of_other_peoples_code_stay_here():
    refusal = as_refusal(RuntimeError("password=123 at /home/me"))
    assert (refusal.status, refusal.code) == (500, "internal")
    assert "123" not in refusal.message


def test_nothing_in_the_api_page_is_taken_for_html():
    document = {
        "info": {"title": "<b>", "version": "1", "description": "`a<b` & more"},
        "paths": {"/<x>": {"get": {"summary": "<i>", "responses": {"200": {"description": "<u>"}}}}},
    }
    page = reference_page(document)
    assert not any(tag in page for tag in ("<b>", "<i>", "<u>"))
    assert "<code>a&lt;b</code> &amp; more" in page
