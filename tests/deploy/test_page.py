"""The page of a server in a real browser: what it shows, how it is used without a mouse, and what it never does."""

from __future__ import annotations

import ast
import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from encoderlab.deploy.serve import page as files  # noqa: E402
from encoderlab.deploy.serve.app import BESIDE, Server  # noqa: E402
from encoderlab.deploy.serve.engine import lanes  # noqa: E402
from encoderlab.deploy.serve.http import Guard  # noqa: E402
from encoderlab.deploy.serve.service import Service  # noqa: E402
from encoderlab.nn.heads import Classification, Span, Tagging  # noqa: E402
from tests.deploy.chromium import Page, browser  # noqa: E402
from tests.deploy.served import KEY, Asked, serving, with_head  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402

RESULT = "document.querySelector('.result')"
LABELS = ("good", "bad", "so-so")
BARS = """[...document.querySelectorAll(".bars li")].map((row) => {
  const [track, bar] = [".track", ".track *"].map((one) => row.querySelector(one).getBoundingClientRect().width);
  return [bar / track, row.querySelector(".value").textContent];
})"""
CONTRAST = """(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length === 3) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest(".skip") || element.closest(".piece")) continue;
    const [a, b] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push(`${element.className} ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return bad;
})()"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


def classes() -> Any:
    predictor = with_head(Classification(labels=3), LABELS)
    return serving(predictor.model, predictor)


def shown(page: Page, asked: Asked, **how: Any) -> None:
    page.open(f"http://127.0.0.1:{asked.port}/", **how)
    page.wait(f"{RESULT}.children.length || document.querySelector('.problem').textContent")


def said(page: Page, selector: str = ".result") -> str:
    found: str = page.run(f"document.querySelector('{selector}').innerText")
    return found


def check_names(page: Page) -> None:
    """Everything that can be used has a name for a screen reader."""
    tree = page.send("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "textbox", "combobox", "spinbutton", "link", "table")
    nodes = [node for node in tree if node.get("role", {}).get("value") in roles and not node.get("ignored")]
    nameless = [node for node in nodes if not node.get("name", {}).get("value", "").strip()]
    assert len(nodes) > 5 and not nameless


def test_labels_move_as_one_writes(page: Page) -> None:
    with classes() as asked:
        page.events.clear()
        shown(page, asked)
        page.type("#text-0", "the film is good")
        wanted = asked("/predict", {"inputs": "the film is good"})[1]
        first = f"{100 * wanted[0]['score']:.1f} %"
        page.wait(f"{RESULT}.innerText.includes('{first}')")
        assert said(page).split("\n")[0] == wanted[0]["label"]
        assert "6 tokens" in said(page, ".meta")
        code = said(page, "#code")
        assert f"curl http://127.0.0.1:{asked.port}/predict" in code and '{"inputs":"the film is good"}' in code
        page.click("#languages button:nth-child(2)")
        python = said(page, "#code")
        assert "urllib.request" in python
        run = functools.partial(subprocess.run, capture_output=True, text=True, check=True)
        assert ast.literal_eval(run([sys.executable, "-c", python]).stdout) == wanted
        if shutil.which("curl"):
            assert json.loads(run(["sh", "-c", code]).stdout) == wanted

        # A word is hidden by the keyboard alone.
        page.run("document.querySelector('.words li:nth-child(4) button').focus()")
        page.enter()
        masked = asked("/predict", {"inputs": "the film is [MASK]"})[1]
        page.wait(f"{RESULT}.innerText.includes('{100 * masked[0]['score']:.1f} %')")
        assert page.run("document.activeElement.textContent") == "good"
        assert page.run("document.activeElement.getAttribute('aria-pressed')") == "true"

        page.click(".why summary")
        page.wait("document.querySelector('.note').textContent.includes('is missing for the whole difference')")
        assert page.run("document.querySelectorAll('.reason .piece').length") >= 3
        page.run("document.querySelector('.method').value = 'attention'")
        page.run("document.querySelector('.method').dispatchEvent(new Event('change'))")
        page.wait("document.querySelector('.reason table')")
        assert "not the reason" in said(page, ".note")
        check_names(page)
        page.click("#sides button:nth-child(2)")
        page.wait("document.querySelectorAll('.pane').length === 2")
        page.wait("document.querySelectorAll('.result')[1].children.length")
        assert page.complaints() == []
        own = f"http://127.0.0.1:{asked.port}/"
        assert all(url.startswith((own, "data:", "about:")) for url in page.requested())


def test_text_is_never_markup(page: Page) -> None:
    with classes() as asked:
        page.events.clear()
        shown(page, asked)
        page.type("#text-0", "<img src=x onerror=alert(1)> good <script>alert(2)</script>")
        page.wait("document.querySelector('.words').innerText.includes('onerror')")
        page.click(".why summary")
        page.wait("document.querySelectorAll('.reason .piece').length")
        assert page.run("document.querySelectorAll('img, .pane script').length") == 0
        assert page.complaints() == []
        _, _, headers = asked("/", method="GET")
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        for path, (file, kind) in files.FILES.items():
            status, _, headers = asked(path, method="GET")
            assert status == 200 and headers["content-type"].startswith(kind) and file.is_file()
        assert asked("/page/../app.py", method="GET")[0] == 404


@pytest.mark.parametrize(("width", "dark"), [(400, False), (400, True), (1400, False), (1400, True)])
def test_narrow_and_dark(page: Page, width: int, dark: bool) -> None:
    with classes() as asked:
        shown(page, asked, width=width, dark=dark)
        page.click(".why summary")
        page.wait("document.querySelector('.note').textContent")
        assert page.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(CONTRAST) == []


def test_tags_and_answers_are_marked_in_the_text(page: Page) -> None:
    predictor = with_head(Tagging(labels=3), ("O", "B-CITY", "I-CITY"))
    with serving(predictor.model, predictor) as asked:
        shown(page, asked)
        page.type("#text-0", "sue runs in oslo")
        found = asked("/", {"inputs": "sue runs in oslo"})[1]
        marks = "document.querySelectorAll('.result mark').length"
        page.wait(f"{marks} === {len(found)} && {RESULT}.innerText.includes('sue runs')")
    predictor = with_head(Span(), ())
    with serving(predictor.model, predictor) as asked:
        shown(page, asked)
        page.type("#question-0", "where ?")
        page.type("#context-0", "sue runs in oslo .")
        best = asked("/", {"inputs": {"question": "where ?", "context": "sue runs in oslo ."}})[1]["answer"]
        page.wait(f"document.querySelector('.result mark')?.textContent === {best!r}")
        assert page.complaints() == []


def test_masks_and_near_texts(page: Page) -> None:
    with serving(tiny("bert-tiny").eval()) as asked:
        shown(page, asked)
        page.type("#text-0", "the red cat sat")
        page.wait("document.querySelector('.words').innerText.includes('cat')")
        page.click(".words li:nth-child(3) button")
        page.wait("document.querySelectorAll('.bars button').length === 8")
        assert page.run("document.querySelector('#text-0').value") == "the red [MASK] sat"
        for share, shown_as in page.run(BARS):
            assert share == pytest.approx(float(shown_as.removesuffix(" %")) / 100, abs=2e-3)
        page.click(".why summary")
        page.wait("document.querySelector('.note').textContent.includes('is missing')")
        guess = page.run("document.querySelector('.bars button').textContent")
        page.click(".bars button")
        assert page.run("document.querySelector('#text-0').value") == f"the red {guess} sat"
        page.click("#tasks button:nth-child(2)")
        page.wait("document.querySelector('#others-0')")
        page.type("#text-0", "one dog")
        page.type("#others-0", "rome is big\none dog\nsue sat")
        page.wait("document.querySelector('.bars li .label')?.textContent === 'one dog'")
        assert said(page).split("\n")[1] == "1.000"


def test_two_models_side_by_side(page: Page) -> None:
    first, second = with_head(Classification(labels=3), LABELS), with_head(Classification(labels=2), ("no", "yes"))
    with serving(first.model, first) as asked:
        other = Service(second.model, second, name="other", pooling="mean", normalize=True)
        asked.server.engine.compute = lanes({"": asked.server.service.compute, BESIDE: other.compute})
        beside = Server(other, asked.server.engine, lane=BESIDE)
        beside.ready = True
        both = Server(asked.server.service, asked.server.engine, beside=beside)
        both.ready = True
        asked.server.app.app = both.app.app  # type: ignore[attr-defined]
        found = asked(f"{BESIDE}/predict", {"inputs": "good"})[1]
        assert {one["label"] for one in found} == {"no", "yes"}
        assert asked(f"{BESIDE}/predict", {"inputs": 1})[0] == 422
        assert 'te_request_count{method="beside/predict"}' in asked("/metrics")[1]
        shown(page, asked)
        page.wait("document.querySelectorAll('.pane').length === 2")
        page.wait("document.querySelectorAll('.result')[1].innerText.includes('yes')")
        assert page.run("document.querySelector('#model-1').value") == "other"


def test_a_key_is_asked_for(page: Page) -> None:
    predictor = with_head(Classification(labels=3), LABELS)
    guard = Guard(keys=(KEY.encode(),), pages=tuple(files.FILES))
    with serving(predictor.model, predictor, guard=guard) as asked:
        assert asked("/", {"inputs": "good"})[0] == 401
        page.send("Page.navigate", url=f"http://127.0.0.1:{asked.port}/")
        page.wait("document.querySelector('#key-row')?.hidden === false")
        page.type("#key", KEY)
        page.run("document.querySelector('#key').dispatchEvent(new Event('change'))")
        page.wait("document.querySelector('.result')?.innerText.includes('%')")
        assert KEY not in said(page, "#code") and "$KEY" in said(page, "#code")


def test_a_page_of_the_other_origin_sends_what_its_client_adds_and_reads_the_answer(page: Page) -> None:
    """OpenAI's client for JavaScript has headers of its own, and waits as long as ``Retry-After`` says."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{other.server_port}"
        guard = Guard(keys=(KEY.encode(),), cors=origin, rate=0.01)
        with serving(tiny("bert-tiny").eval(), guard=guard) as asked:
            page.open(f"{origin}/nothing", ready="location.port !== ''")
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", "x-stainless-lang": "js"}
            sent = json.dumps({"method": "POST", "headers": headers, "body": json.dumps({"input": "a"})})
            url = f"http://127.0.0.1:{asked.port}/v1/embeddings"
            fetched = f"fetch('{url}', {sent}).then((r) => [r.status, r.headers.get('retry-after')])"
            assert page.run(fetched) == [200, None]
            assert page.run(fetched) == [429, "100"]
        other.shutdown()
