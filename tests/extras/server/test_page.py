"""The page at `/`, in a real browser against a real server."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import os
import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from adacur import BM25, AnchorIndex, Item, Query
from adacur.extras.server import ServerSettings, create_app
from adacur.scorers import FunctionScorer
from tests.serving_world import serving

PAGE = Path(__file__).parents[3] / "src/adacur/extras/server/page"
SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = '<img src=x onerror="window.hacked = 2">'
WORDS = ("river", "stone", "cloud", "lamp", "horse", "bread", "copper", "violin", "harbour", "candle", "forest", "salt")
QUESTION = "river stone bread"
KEY = "open sesame"
# For what must happen at last, however busy the machine is: no test waits as long where all is well.
WAIT = 60_000
expect.set_options(timeout=WAIT)


class WordScorer:
    """Knows which words belong together. A question that is held waits for leave before each call; one with "fail" in
    it fails once it is asked again; and the pairs of each question are counted.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._vectors = {word: rng.normal(size=8) for word in WORDS}
        self._leaves: dict[str, threading.Semaphore] = {}
        self.pairs: dict[str, int] = {}

    @contextmanager
    def holding(self, question: str) -> Iterator[threading.Semaphore]:
        """Until the end of the block, each call about this question waits for one leave."""
        self._leaves[question] = leave = threading.Semaphore(0)
        try:
            yield leave
        finally:
            # A call under way comes to its end, whatever failed here; later ones are not held.
            del self._leaves[question]
            leave.release(1000)

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        questions = {query for query, _ in pairs}
        for leave in [self._leaves[one] for one in questions if one in self._leaves]:
            leave.acquire()
        if any("fail" in one and one in self.pairs for one in questions):
            raise RuntimeError("the model went away")
        for one, _ in pairs:
            self.pairs[one] = self.pairs.get(one, 0) + 1
        return [self.of(*pair) for pair in pairs]

    def of(self, query: str, item: str) -> float:
        # Texts with markup in them are liked by every question: they must be seen to be harmless.
        liked = 12.0 * ("<" in item)
        return float(self._sum(query) @ self._sum(item)) + liked + len(item) / 1000

    def _sum(self, text: str) -> Any:
        return sum((self._vectors.get(word, 0.0) for word in re.findall("[a-z]+", text.lower())), np.zeros(8))


def world(scorer: WordScorer, *, n_items: int = 300, n_anchors: int = 40) -> AnchorIndex:
    rng = np.random.default_rng(1)
    items = [Item("script", f"{SCRIPT} river", {"title": SCRIPT}), Item("image", f"{IMAGE} stone")]
    while len(items) < n_items:
        words = " ".join(rng.choice(WORDS, size=5))
        items.append(
            Item(f"i{len(items)}", f"About number {len(items)}. It is of {words}.", {"title": f"About {words}"})
        )
    anchors = [Query(f"a{number}", " ".join(rng.choice(WORDS, size=3))) for number in range(n_anchors)]
    scores = np.array([[scorer.of(anchor.text, item.text) for item in items] for anchor in anchors])
    return AnchorIndex.from_arrays(
        items=items,
        anchor_queries=anchors,
        scores=scores,
        scorer=FunctionScorer(scorer, name="words"),
        first={"bm25": BM25.build(items)},
    )


@pytest.fixture(scope="module")
def scorer() -> WordScorer:
    return WordScorer()


@pytest.fixture(scope="module")
def server(scorer: WordScorer) -> Iterator[str]:
    indexes = {"words": world(scorer), "few-anchors": world(scorer, n_items=60, n_anchors=3)}
    with serving(create_app(indexes, settings=ServerSettings(max_budget=200))) as address:
        yield f"{address}/"


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        reason = "needs Debian's chromium: apt-get install chromium, or make browser"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    opened = playwright.chromium.launch(executable_path=program)
    yield opened
    opened.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages of a window each, and lets none go that asked elsewhere, broke the policy or threw an error."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def open_(address: str, *, expected: Sequence[str] = (), **options: Any) -> Page:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        host = urlsplit(address).netloc
        context.on("request", lambda asked: None if urlsplit(asked.url).netloc == host else wrong.append(asked.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))

        def said(message: Any) -> None:
            if message.type in ("error", "warning") and not any(text in message.text for text in expected):
                wrong.append(f"{message.text} {message.location}")

        page.on("console", said)
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []


def ask(page: Page, question: str = QUESTION, **settings: str) -> None:
    """Fill in the form and search."""
    page.evaluate("document.getElementById('settings').open = true")
    for name, value in settings.items():
        field = page.locator(f"#{name}")
        if name in ("k", "budget"):
            field.fill(value)
        else:
            field.select_option(value)
    page.fill("#question", question)
    page.press("#question", "Enter")


def ended(page: Page, state: str = "done", *, panels: int = 1) -> None:
    """Wait for the end of every search; one that ends otherwise is told at once."""
    expect(page.locator('.progress:not([data-state=""])')).to_have_count(panels)
    told = page.locator(".progress, .trouble:visible, #status").all_inner_texts()
    assert page.locator(f'.progress[data-state="{state}"]').count() == panels, told


def dots(page: Page, name: str, panel: int = 0) -> Any:
    return page.locator(".scatter").nth(panel).locator(f".{name}_marks path")


def shown_hits(page: Page, panel: int = 0) -> list[tuple[str, str, str]]:
    rows = page.locator(".hits").nth(panel).locator("tbody tr")
    shown = rows.evaluate_all(
        "rows => rows.map(row => [row.dataset.id, row.cells[2].innerText, row.querySelector('.why dd').textContent])"
    )
    return [(id_, measure, score.split(";")[0]) for id_, measure, score in shown]


def found_by_api(server: str, question: str = QUESTION, **options: Any) -> dict[str, Any]:
    verb, wanted = ("find", {}) if "above" in options else ("search", {"k": 10, "budget": 100})
    body = json.dumps({"query": question, **wanted, **options}).encode()
    request = urllib.request.Request(f"{server}v1/{verb}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["results"][0]


def metrics(server: str) -> str:
    with urllib.request.urlopen(f"{server}metrics") as answer:
        return str(answer.read(), "utf-8")


def until(holds: Callable[[], bool]) -> None:
    """Wait for what the page does not show."""
    end = time.monotonic() + WAIT / 1000
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def as_shown(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    shown = []
    for hit in result["hits"]:
        score = f"{hit['score']:.2f}".replace("-", "−")
        # As browsers round: what is exactly half, up.
        known = None if "relevance" not in hit else Decimal(hit["relevance"]).quantize(Decimal("0.01"), ROUND_HALF_UP)
        measure = score if known is None else str(known)
        shown.append((hit["id"], measure, f"{score}, in round {hit['round']}"))
    return shown


def test_the_verdict_comes_first_and_why_an_item_is_here_on_demand(server, open_page):
    page = open_page(server)
    ask(page, k="7", budget="60")
    ended(page)
    result = found_by_api(server, k=7, budget=60, explain=True)
    expect(page.locator(".verdict")).to_contain_text(re.compile(result["verdict"], re.IGNORECASE))
    expect(page.locator(".hits th").last).to_have_text("Relevance")
    expect(page.locator(".hits-explain")).to_contain_text("the share whose best item scores lower")
    row, hit = page.locator(".hits tbody tr").nth(2), result["hits"][2]
    why = row.locator(".why")
    expect(why).to_be_hidden()
    row.locator("summary").click()
    expect(why).to_be_visible()
    told = hit["explanation"]
    rank = told["first"][0]["rank"]
    expect(why).to_contain_text(f"rank {rank}" if rank else "not among its best")
    for anchor in told["anchors"]:
        expect(why).to_contain_text(f"To “{anchor['query']['text']}”")


def test_where_nothing_tells_what_scores_mean_the_page_shows_scores(server, open_page):
    page = open_page(server + "?index=few-anchors", expected=["status of 404"])
    ask(page, k="5", budget="20")
    ended(page)
    expect(page.locator(".verdict")).to_be_hidden()
    expect(page.locator(".hits th").last).to_have_text("Score")
    assert shown_hits(page) == as_shown(found_by_api(server, index="few-anchors", k=5, budget=20))


def test_a_question_shows_the_hits_rounds_and_calls_that_the_api_returns(server, open_page):
    page = open_page(server)
    ask(page, k="7", budget="60")
    ended(page)
    result = found_by_api(server, k=7, budget=60, trace=True)
    assert shown_hits(page) == as_shown(result)
    assert page.locator(".calls").inner_text() == "60"
    of_round, so_far = (page.locator(f".rounds tbody td:nth-child({at})").all_text_contents() for at in (2, 3))
    assert of_round == [str(len(one["items"])) for one in result["trace"]]
    assert so_far == [str(one["calls"]) for one in result["trace"]]
    page.click("text=Round by round")
    expect(page.locator(".rounds th:visible")).to_have_count(6)


def test_every_call_is_a_dot_and_the_best_are_ringed(server, open_page):
    page = open_page(server)
    ask(page, k="7", budget="60")
    ended(page)
    first, *later = found_by_api(server, k=7, budget=60, trace=True)["trace"]
    expect(dots(page, "unpredicted")).to_have_count(len(first["items"]))
    expect(dots(page, "predicted")).to_have_count(sum(len(one["items"]) for one in later))
    assert dots(page, "unpredicted_top").count() + dots(page, "predicted_top").count() == 7
    # Colour and shape each tell the rounds apart.
    for sign in ("fill", "d"):
        drawn = dots(page, "predicted").evaluate_all(f"dots => dots.map(dot => dot.getAttribute('{sign}'))")
        assert len(set(drawn)) == len(later)
    assert page.locator(".scored tbody tr").count() == 60
    assert page.locator(".panel .legend span").count() == len(later) + 2


def test_rounds_arrive_one_by_one_and_stop_ends_the_spending(server, scorer, open_page):
    question = "hold the river"
    page = open_page(server)
    asking = re.compile(r"Round 1: asking the scorer about \d+ items … \d+ s")
    with scorer.holding(question) as leave:
        ask(page, question)
        expect(page.locator(".progress")).to_contain_text(asking)
        assert page.locator(".tiles").is_hidden(), "there is no result yet"
        leave.release()
        expect(page.locator(".progress")).to_contain_text("Round 1 is in")
        assert page.locator(".expected").inner_text() == "–"
        expect(dots(page, "unpredicted")).to_have_count(int(page.locator(".calls").inner_text()))
        leave.release()
        expect(page.locator(".progress")).to_contain_text("Round 2 is in")
        spent = int(page.locator(".calls").inner_text())
        kept = shown_hits(page)
        page.click("#stop")
        ended(page, "stopped")
        assert shown_hits(page) == kept
        assert len(kept) == 10
        expect(page.locator("#go")).to_be_visible()
        until(lambda: "adacur_searches_in_flight 0.0" in metrics(server))
    # The call under way when the client left may still come to its end; no other follows it.
    ask(page, "after all that", k="3")
    ended(page)
    assert spent <= scorer.pairs[question] <= spent + 30
    assert scorer.pairs[question] < 100


def test_a_scorer_that_fails_on_the_way_leaves_what_was_found_and_a_reason(server, open_page):
    page = open_page(server)
    ask(page, "fail at the river")
    ended(page, "failed")
    expect(page.locator(".trouble:visible")).to_contain_text("10 items below were found before that")
    assert len(shown_hits(page)) == 10
    assert all(score.endswith("in round 1") for *_, score in shown_hits(page))


def test_a_request_that_the_server_refuses_is_answered_in_words(server, open_page):
    page = open_page(server, expected=["status of 422"])
    ask(page, k="50", budget="20")
    ended(page, "failed")
    expect(page.locator(".trouble:visible")).to_contain_text("k must not exceed the budget; got k=50")
    ask(page, k="5", budget="20")
    ended(page)


def test_two_methods_stand_side_by_side_at_the_same_budget(server, open_page):
    page = open_page(server)
    ask(page, method="gaussian", compare="rerank", budget="40")
    ended(page, panels=2)
    ours, theirs = (found_by_api(server, method=method, budget=40) for method in ("gaussian", "rerank"))
    assert [shown_hits(page, 0), shown_hits(page, 1)] == [as_shown(ours), as_shown(theirs)]
    ids = [{hit["id"] for hit in result["hits"]} for result in (ours, theirs)]
    assert ids[0] != ids[1], "the world is meant to tell the two methods apart"
    expect(page.locator("#overlap-text")).to_contain_text(f"{len(ids[0] & ids[1])} of 10 in common")
    for panel in (0, 1):
        only = page.locator(".hits").nth(panel).locator("tr:has(.only:visible)")
        assert {row.get_attribute("data-id") for row in only.all()} == ids[panel] - ids[1 - panel]
    left, right = (page.locator(".panel").nth(panel).bounding_box() for panel in (0, 1))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    # Re-ranking predicts nothing: its one round has the chart to itself.
    expect(dots(page, "unpredicted", 1)).to_have_count(40)


def test_a_find_shows_all_above_the_line_and_its_certificate(server, open_page):
    page = open_page(server)
    page.check("#all")
    expect(page.locator("#recall")).to_be_hidden()
    page.fill("#above", "12")
    ask(page)
    ended(page)
    result = found_by_api(server, above=12.0, recall=0.9, budget=200)
    assert len(result["hits"]) > 3
    assert [id_ for id_, *_ in shown_hits(page)] == [hit["id"] for hit in result["hits"]]
    expect(page.locator(".certificate")).to_have_text(result["certificate"]["text"])
    expect(page.locator(".columns h3").first).to_have_text(f"Scored 12.00 or higher: {len(result['hits'])} found")
    assert page.locator(".calls").inner_text() == str(result["calls"])
    # The address asks for the same.
    again = open_page(page.url)
    ended(again)
    expect(again.locator(".certificate")).to_have_text(result["certificate"]["text"])


def test_the_slider_changes_the_budget_asked_for_and_the_recall_to_expect(server, open_page):
    page = open_page(server)
    here = page.locator("#recall-chart .here_0_marks path")
    expect(here).to_have_count(1)
    before = page.locator("#recall-text").inner_text()
    at = here.bounding_box()["x"]
    page.focus("#budget-slider")
    page.keyboard.press("ArrowRight")
    assert page.input_value("#budget") == "200"
    expect(page.locator("#recall-text")).to_contain_text("200 calls: expect")
    assert page.locator("#recall-text").inner_text() != before
    # The chart follows the text.
    until(lambda: here.bounding_box()["x"] > at)
    with page.expect_request("**/v1/search") as asked:
        ask(page)
    assert asked.value.post_data_json["budget"] == 200
    ended(page)
    assert page.locator(".calls").inner_text() == "200"


def test_a_search_that_scored_every_item_has_found_all(server, open_page):
    page = open_page(f"{server}?q={quote(QUESTION)}&budget=60&index=few-anchors", expected=["status of 404"])
    ended(page)
    expect(page.locator(".expected")).to_have_text("100 %")
    expect(page.locator(".expected-note")).to_have_text("every item was scored")


def test_the_first_screen_says_what_is_searched_and_offers_the_comparison(server, open_page):
    page = open_page(server)
    expect(page.locator("#searched")).to_contain_text("words: 300 items")
    # What is expected of our search and of re-ranking, before either has run.
    expect(page.locator("#recall-text b")).to_have_count(2)
    assert raw(server, f"/{page.locator('nav a').get_attribute('href')}").status == 200
    assert page.locator("#method").is_hidden()
    page.check("#against")
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    ended(page, panels=2)
    assert page.locator(".panel .method").all_inner_texts() == ["adacur", "Re-ranking"]
    page.locator("#settings summary").click()
    assert page.input_value("#compare") == "rerank"
    expect(page.locator("#compare-means")).to_contain_text("the usual way")
    page.select_option("#compare", "")
    assert not page.is_checked("#against")


def test_questions_to_begin_with_come_from_the_index(server, open_page):
    page = open_page(server)
    with urllib.request.urlopen(f"{server}v1/indexes") as answer:
        offered = json.load(answer)["indexes"][0]["examples"]
    assert 2 <= len(offered) <= 4
    expect(page.locator("#examples button")).to_have_text(offered)
    page.locator("#examples button").first.click()
    ended(page)
    assert page.input_value("#question") == offered[0]


def test_what_scores_like_no_answer_is_not_called_the_best_found(server, open_page):
    page = open_page(server)

    def unanswered(route: Any) -> None:
        text = re.sub(r'"verdict": ?"[a-z ]+"', '"verdict": "nothing found"', route.fetch().text())
        route.fulfill(content_type="text/event-stream", body=text)

    page.route("**/v1/search", unanswered)
    ask(page, k="5", budget="30")
    ended(page)
    expect(page.locator(".verdict")).to_contain_text("Nothing found.")
    expect(page.locator(".columns h3").first).to_have_text("The 5 that came nearest")


def test_an_index_without_a_curve_says_why(server, open_page):
    page = open_page(server, expected=["status of 404"])
    page.locator("#settings summary").click()
    page.select_option("#index", "few-anchors")
    expect(page.locator("#recall-text")).to_contain_text("this index has 3")
    ask(page, budget="30")
    ended(page)
    assert shown_hits(page) == as_shown(found_by_api(server, index="few-anchors", budget=30))


def test_markup_in_items_and_questions_is_shown_and_never_run(server, open_page):
    page = open_page(f"{server}?q={quote(IMAGE + SCRIPT)}&budget=30&compare=rerank")
    ended(page, panels=2)
    assert page.input_value("#question") == IMAGE + SCRIPT
    for panel in (0, 1):
        titles = page.locator(".hits").nth(panel).locator("summary").all_inner_texts()
        assert {SCRIPT, f"{IMAGE} stone"} <= set(titles)
    page.locator("summary", has_text="window.hacked = 1").first.click()
    expect(page.locator(".text:visible")).to_have_text(f"{SCRIPT} river")
    until(lambda: dots(page, "unpredicted").count() + dots(page, "predicted").count() == 30)
    tips = set()
    for ring in [*dots(page, "unpredicted_top").all(), *dots(page, "predicted_top").all()]:
        ring.hover(force=True)
        tips.add(page.locator("#tooltip b").inner_text())
        if SCRIPT in tips:
            break
    assert SCRIPT in tips
    page.keyboard.press("Escape")
    expect(page.locator("#tooltip")).to_be_hidden()
    assert page.locator("main img, main script, #tooltip img, #tooltip script").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_search_needs_no_mouse(server, open_page):
    page = open_page(server)
    page.locator("#question").wait_for()
    seen = []
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        if seen[-1] == "question":
            break
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    ended(page)
    while not page.evaluate("document.activeElement.matches('#settings summary')"):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
        assert len(seen) < 60
    page.keyboard.press("Enter")
    while not page.evaluate("document.activeElement.matches('.hits summary')"):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
        assert len(seen) < 60
    assert {"go", "budget-slider", "budget", "against", "index", "method", "compare", "first", "k"} <= set(seen)
    page.keyboard.press("Enter")
    expect(page.locator(".hits .text:visible")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator(".hits .text:visible")).to_have_count(0)
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    expect(page.locator("#status")).to_contain_text("adacur: done, 10 hits with 100 calls.")


def test_every_field_has_a_name_and_every_table_its_heads(server, open_page):
    page = open_page(server)
    ask(page)
    ended(page)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select')]"
        ".filter(field => !field.labels.length && !field.ariaLabel).map(field => field.id)"
    )
    assert unnamed == []
    heads = "[...document.querySelectorAll('table')].map(table => table.querySelectorAll('th[scope=col]').length)"
    assert min(page.evaluate(heads)) >= 3


def test_a_link_searches_with_the_settings_in_it(server, open_page):
    page = open_page(f"{server}?q={quote(QUESTION)}&k=5&budget=50&method=adacur&first=random&index=words")
    ended(page)
    assert shown_hits(page) == as_shown(found_by_api(server, k=5, budget=50, method="adacur", first="random"))
    page.reload()
    ended(page)
    ask(page, k="4", compare="rerank")
    ended(page, panels=2)
    assert "k=4" in page.url
    assert "compare=rerank" in page.url


@pytest.mark.parametrize("query", ["?k=-3&budget=x&method=<b>&q=", "?q=%00&k=99999999999&index=../../etc"])
def test_a_link_with_nonsense_in_it_opens_the_page_as_usual(server, open_page, query):
    page = open_page(server + query, expected=["status of 422"])
    expect(page.locator("#method")).to_have_value("gaussian")
    expect(page.locator("#k")).to_have_value("10")


def test_both_themes_and_the_choice_between_them(server, open_page):
    page = open_page(f"{server}?q={quote(QUESTION)}&budget=30", color_scheme="light")
    ended(page)
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.scatter text')).fill"
    dot = "document.querySelector('.predicted_marks path').getAttribute('fill')"
    expect(dots(page, "predicted").first).to_be_attached()
    light = [page.evaluate(one) for one in (ground, ink, dot)]
    page.emulate_media(color_scheme="dark")
    expect(page.locator("#theme")).to_have_text("Light theme")
    for one, was in zip((ground, ink, dot), light, strict=True):
        until(lambda: page.evaluate(one) != was)  # noqa: B023
    page.click("#theme")
    page.reload()
    ended(page)
    assert page.evaluate(ground) == light[0]


def test_a_phone_needs_no_sideways_scrolling(server, open_page):
    page = open_page(f"{server}?q={quote(QUESTION)}&budget=60&compare=rerank", viewport={"width": 375, "height": 812})
    ended(page, panels=2)
    expect(page.locator(".scatter svg")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollHeight") < 3000, "two answers fit in a few screens"
    page.locator(".hits summary").first.click()
    for fold in page.locator(".fold > summary").all():
        fold.click()
    for more in page.locator(".more summary").all():
        more.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    for chart in page.locator(".chart svg").all():
        box = chart.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 375


def test_a_server_with_keys_is_asked_with_the_key_that_was_typed(scorer, open_page):
    index = world(scorer, n_items=60, n_anchors=12)
    with serving(create_app({"wikivital": index}, settings=ServerSettings(api_keys=(KEY,)))) as address:
        page = open_page(address, expected=["status of 401", "status of 404"])
        expect(page.locator("#key")).to_be_focused()
        assert page.locator("#search, #results").first.is_hidden()
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.locator("#key-explain")).to_contain_text("does not know this key")
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        expect(page.locator("#key-form")).to_be_hidden()
        expect(page.locator("#index-field"), "with one index there is nothing to choose").to_be_hidden()
        page.fill("#budget", "30")
        page.get_by_role("button", name="who discovered penicillin?").click()
        ended(page)
        page.reload()
        ended(page)
        page.context.close()


def test_a_server_that_went_away_is_told_in_words(scorer, open_page):
    with serving(create_app({"words": world(scorer, n_items=40, n_anchors=3)})) as address:
        page = open_page(address, expected=["status of 404", "ERR_CONNECTION_"])
        expect(page.locator("#recall-text")).to_contain_text("no curve")
    ask(page, budget="30")
    expect(page.locator(".trouble:visible")).to_contain_text("The server cannot be reached")


def raw(address: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=WAIT / 1000)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.content = answer.read()
    connection.close()
    return answer


@pytest.mark.parametrize(
    "path",
    [
        "/page/../page.py",
        "/page/%2e%2e/page.py",
        "/page/..%2f..%2fapp.py",
        "/page/vendor/../../settings.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/main.js%00",
        "/page/..\\page.py",
        "/page/",
        "/page/nothing.js",
    ],
)
def test_only_the_files_of_the_page_are_served(server, path):
    answer = raw(server, path)
    assert answer.status == 404
    assert b"import" not in answer.content


def test_files_come_with_a_strict_policy_and_are_kept_as_long_as_they_hold(server):
    page = raw(server, "/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy.replace("https", "http").split("sha256")[0]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-cache"
    assert raw(server, "/", **{"If-None-Match": page.headers["etag"]}).status == 304
    vendored = "/page/vendor/vega-6.4.0.min.js"
    plain, packed = raw(server, vendored), raw(server, vendored, **{"Accept-Encoding": "gzip"})
    assert "immutable" in plain.headers["cache-control"]
    assert plain.headers["content-type"].startswith("text/javascript")
    assert gzip.decompress(packed.content) == plain.content
    assert len(packed.content) < len(plain.content) / 2


def test_files_of_others_are_those_that_the_readme_names():
    named = dict(re.findall(r"^\| (\S+\.js) \|.*\| ([0-9a-f]{64}) \|$", (PAGE / "vendor/README.md").read_text(), re.M))
    held = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (PAGE / "vendor").glob("*.js")}
    assert named == held
    assert sum(path.stat().st_size for path in PAGE.rglob("*") if path.is_file()) < 2**20


def test_the_page_names_no_other_host():
    own = [path for path in PAGE.rglob("*") if path.is_file() and "vendor" not in path.parts]
    hosts = {host for path in own for host in re.findall(r"https?://[^\"'\s)]+", path.read_text())}
    assert hosts <= {"http://www.w3.org/2000/svg"}


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(theme):
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (PAGE / "style.css").read_text())
    colours = {name: both[theme] for name, *both in pairs}

    def contrast(one: str, other: str) -> float:
        lighter, darker = sorted([luminance(colours[one]), luminance(colours[other])], reverse=True)
        return (lighter + 0.05) / (darker + 0.05)

    texts = [(text, ground) for text in ("ink", "muted", "accent", "second") for ground in ("card", "page")]
    for text, ground in [*texts, ("on-accent", "accent"), ("bad", "bad-back"), ("card", "bad"), ("card", "ink")]:
        assert contrast(text, ground) >= 4.5, (text, ground)
    for sign in ["edge", "accent", "second", *(f"round-{number}" for number in range(1, 9))]:
        assert contrast(sign, "card") >= 3, sign
