from __future__ import annotations

from adacur.extras.server.failures import as_refusal, json_answer


def test_an_answer_is_written_even_where_its_text_is_not_unicode():
    assert json_answer({"a": "\ud800"}).body == b'{"a":"?"}'


def test_messages_of_other_peoples_code_stay_here():
    refusal = as_refusal(RuntimeError("password=123 at /home/me"))
    assert (refusal.status, refusal.code) == (500, "internal")
    assert "123" not in refusal.message
