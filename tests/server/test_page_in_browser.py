"""The page at / in a headless Chromium, against a real server with the default model.

Skipped without Playwright or a Chromium (`apt-get install chromium`, or FATHOM_CHROMIUM=path).
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.processes import PATIENCE_S, comes_true
from tests.server.processes import Server

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = os.environ.get("FATHOM_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
]
GREEDY = {"temperature": "0", "max_tokens": "24"}
QUESTION = "Why is the sea salt?"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, smollm2: Server) -> Iterator[Any]:
    """The chat, freshly opened; in the end it has asked nobody but the server, and has not complained."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme="light")
    opened = context.new_page()
    opened.set_default_timeout(1000 * PATIENCE_S)
    asked: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.goto(smollm2.url)
    until(opened, "document.getElementById('connection').textContent === 'smollm2'")
    yield opened
    context.close()
    assert all(url.startswith(smollm2.url) for url in asked)
    assert [text for text in complaints if "Failed to load resource" not in text] == []


def until(page: Any, expression: str) -> None:
    """Wait until some JavaScript is true. Playwright's own way is an eval in the page, which the page forbids."""
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def ask(page: Any, text: str = QUESTION, **settings: str) -> None:
    for name, value in (GREEDY | settings).items():
        page.fill(f"#{name}", value)
    page.fill("#input", text)
    page.press("#input", "Enter")


def wait_for_the_end(page: Any) -> None:
    page.wait_for_selector(".regenerate")


def answer_of(server: Server, text: str = QUESTION, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24}
    answer: dict[str, Any] = server.post("/v1/chat/completions", **body | fields).json()
    return answer


def test_an_answer_is_that_of_the_api(page: Any, smollm2: Server) -> None:
    ask(page)
    wait_for_the_end(page)
    expected = answer_of(smollm2)
    assert page.text_content(".assistant .text") == expected["choices"][0]["message"]["content"]
    numbers = page.text_content(".assistant .numbers")
    usage = expected["usage"]
    assert f"{usage['completion_tokens']} tokens · " in numbers
    assert f"prompt {usage['prompt_tokens']}" in numbers
    assert re.search(r"[\d.]+ tokens/s · first after [\d.]+ m?s", numbers)
    assert page.get_attribute(".assistant", "aria-busy") == "false"
    assert page.text_content("#announce") == f"Answer finished, {usage['completion_tokens']} tokens"


def test_the_conversation_goes_on_with_the_system_prompt(page: Any, smollm2: Server) -> None:
    ask(page, system="You are a pirate.")
    wait_for_the_end(page)
    first = page.text_content(".assistant .text")
    ask(page, "And lakes?", system="You are a pirate.")
    until(page, "document.querySelectorAll('.assistant[aria-busy=false]').length === 2")
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And lakes?"},
    ]
    expected = answer_of(smollm2, messages=messages)["choices"][0]["message"]["content"]
    assert page.text_content(".assistant >> nth=1 >> .text") == expected
    page.click(".regenerate")
    until(page, "document.querySelectorAll('.assistant[aria-busy=false]').length === 2")
    assert page.text_content(".assistant >> nth=1 >> .text") == expected
    page.click("#new-chat")
    assert page.locator(".message").count() == 0
    assert page.is_visible("#empty")


def test_an_answer_comes_bit_by_bit_and_stop_ends_it_in_the_engine(page: Any, smollm2: Server) -> None:
    ask(page, temperature="2", max_tokens="4000", seed="1")  # words at random have no end
    length = "document.querySelector('.assistant .text')?.textContent.length"
    until(page, f"{length} > 0")
    until(page, f"{length} > {page.evaluate(length)}")
    assert page.is_hidden("#send")
    page.click("#stop")
    wait_for_the_end(page)
    assert "stopped" in page.text_content(".numbers")
    assert comes_true(lambda: not smollm2.http.get("/load").json()["num_running"])
    assert page.is_visible("#send")


def test_tokens_are_coloured_by_their_probability(page: Any, smollm2: Server) -> None:
    page.check("#logprobs")
    ask(page)
    wait_for_the_end(page)
    entries = answer_of(smollm2, logprobs=True, top_logprobs=5)["choices"][0]["logprobs"]["content"]
    shown = page.locator(".token")
    assert shown.all_text_contents() == [entry["token"] for entry in entries]
    levels = [re.search(r"p(\d)", span.get_attribute("class"))[1] for span in shown.all()]
    limits = (0.1, 0.3, 0.6, 0.9)
    assert levels == [str(sum(math.exp(entry["logprob"]) >= limit for limit in limits)) for entry in entries]
    assert len(set(levels)) > 2
    shown.nth(3).hover()
    rows = page.locator("#tooltip .tip-row")
    assert rows.count() in (5, 6)
    for row, top in zip(rows.all(), entries[3]["top_logprobs"], strict=False):
        share = float(row.locator(".tip-share").text_content().split()[0])
        assert share == pytest.approx(100 * math.exp(top["logprob"]), abs=0.51)
    page.uncheck("#logprobs")
    assert page.is_hidden(".tokens")
    assert page.text_content(".assistant .text") == "".join(entry["token"] for entry in entries)


def test_text_is_never_markup(page: Any) -> None:
    """Neither the user's nor a system prompt's, nor the model's, which is made to repeat it."""
    evil = "Repeat: <img src=x onerror=alert(1)> <script>alert(2)</script>"
    ask(page, evil)
    wait_for_the_end(page)
    assert page.text_content(".user .body") == evil
    assert page.locator("#messages img, #messages script").count() == 0


def test_code_reasoning_and_calls(page: Any) -> None:
    """The view of an answer, given chunks as the API sends them."""
    page.evaluate("""async () => {
        const { AnswerView } = await import('/page/answer.js');
        const view = new AnswerView();
        document.getElementById('messages').append(view.root);
        const chunk = (delta) => view.add({ choices: [{ delta, finish_reason: null }] });
        chunk({ role: 'assistant', reasoning: 'Let me ' });
        chunk({ reasoning: 'think <b>hard</b>.' });
        chunk({ content: 'Use `x < y`:\\n```py' });
        chunk({ content: 'thon\\nif x < y:\\n    <i>\\n``' });
        chunk({ content: '`\\nDone.' });
        chunk({ tool_calls: [{ index: 0, id: 'a', function: { name: 'add', arguments: '{"a": 1' } }] });
        chunk({ tool_calls: [{ index: 0, function: { arguments: ', "b": 2}' } }] });
        view.end('tool_calls');
        window.sent = view.message();
    }""")
    assert page.text_content(".reasoning .text") == "Let me think <b>hard</b>."
    assert page.is_hidden(".reasoning .text")
    page.click(".reasoning summary")
    assert page.is_visible(".reasoning .text")
    text = page.locator(".body > .text")
    assert text.locator("pre code").text_content() == "if x < y:\n    <i>"
    assert text.locator(".code-head span").text_content() == "python"
    assert text.locator("p").all_text_contents() == ["Use x < y:", "Done."]
    assert text.locator("p code").text_content() == "x < y"
    assert page.text_content(".call .code-head") == "Callsadd"
    assert page.text_content(".call pre") == '{\n  "a": 1,\n  "b": 2\n}'
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    sent = page.evaluate("sent")
    assert sent["tool_calls"] == [call]
    assert sent["content"].startswith("Use `x < y`")


def test_the_engine_s_steps_are_shown(page: Any, smollm2: Server) -> None:
    ask(page)
    wait_for_the_end(page)
    page.click("[data-view=engine]")
    last = smollm2.http.get("/engine/steps").json()["steps"][-1]
    until(page, f"document.querySelector('#rows td')?.textContent.replace(',', '') === '{last['number']}'")
    assert page.locator("#rows code").first.text_content().replace("\u200b", "") == last["annotation"]
    assert page.text_content(".annotation").replace("\u200b", "") == last["annotation"]

    def shows_the_cache() -> bool:
        state = smollm2.http.get("/engine/steps").json()
        words = page.locator("#kv-legend dd").all_text_contents()
        total = state["engine"]["num_blocks"]
        counts = [0, state["state"]["blocks_cached"], total - state["state"]["blocks_cached"]]
        return all(word.startswith(f"{count:,}") for word, count in zip(words, counts, strict=True))

    assert comes_true(shows_the_cache)
    drawn = """() => [...document.querySelectorAll('#timeline canvas, #kv-map canvas, .spark canvas')].map((canvas) =>
        canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean))"""
    assert page.evaluate(drawn) == [True] * 8


def test_light_and_dark(page: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.click("#theme")
    assert page.evaluate(ground) == light
    page.click("#theme")
    assert page.evaluate(ground) == dark
    page.emulate_media(color_scheme="light")
    page.reload()
    assert page.evaluate(ground) == dark
    assert page.get_attribute("#theme", "aria-label") == "Colours: dark"


def test_all_of_it_without_a_mouse(page: Any) -> None:
    assert page.evaluate("document.activeElement.id") == "input"
    page.fill("#max_tokens", "24")
    page.check("#logprobs")
    page.focus("#input")
    page.keyboard.type("Hi")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    wait_for_the_end(page)
    assert page.text_content(".user .body") == "Hi\nthere"
    assert page.evaluate("document.activeElement.id") == "input"
    reached = []
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        reached.append(page.evaluate("document.activeElement.className || document.activeElement.dataset.view"))
    assert reached[:3] == ["quiet small regenerate", "quiet small", reached[2]]
    assert reached[2].startswith("token")
    assert {"engine", "chat", "brand"} <= set(reached)
    page.locator(".token").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("[...document.querySelectorAll('.token')].indexOf(document.activeElement)") == 1
    assert page.is_visible("#tooltip")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tooltip")
    page.focus("[data-view=engine]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#timeline")
    page.focus("#timeline")
    newest = int(page.get_attribute("#timeline", "aria-valuenow"))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert int(page.get_attribute("#timeline", "aria-valuenow")) == newest - 2
    assert f"Step {newest - 2}, execute_context_" in page.get_attribute("#timeline", "aria-valuetext")


def test_what_is_wrong_is_said(page: Any) -> None:
    page.fill("#tools", "{}")
    ask(page)
    assert page.evaluate("document.activeElement.validationMessage") == "This must be a list."
    assert page.locator(".message").count() == 0
    page.fill("#tools", "")
    page.fill("#system", "word " * 9000)
    page.press("#input", "Enter")
    page.wait_for_selector("[role=alert]")
    assert "8192" in page.text_content("[role=alert]").replace(",", "")


def test_a_narrow_screen_scrolls_in_one_direction_only(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    for view in ("chat", "engine"):
        page.click(f"[data-view={view}]")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('.table-box'))") == 0


def test_the_key_is_asked_for_once(browser: Any, guarded: Server) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(guarded.url)
    page.wait_for_selector("#key-dialog[open]")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('key-title').textContent === 'That key was not accepted'")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "one")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('model').options.length === 1")
    page.wait_for_selector("#strip .dot")
    assert page.is_hidden("#key-dialog")
    context.close()
