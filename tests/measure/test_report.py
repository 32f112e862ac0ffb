from __future__ import annotations

import dataclasses
import html.parser
import json
import math
import random
import re
import shutil
import subprocess

import pytest

from encoderlab.files import write_text
from encoderlab.measure.curves import MAX_POINTS
from encoderlab.measure.html_page import render
from encoderlab.measure.report import Fill, MethodScores, Metric, Pieces, Report, Run, TaskScores, difference, interval


def example() -> Report:
    """A page with every part, from invented numbers with the shape of a real quickstart."""
    rng = random.Random(0)
    train, valid = [], []
    for step in range(1, 1201):
        loss = 5.05 + 4.0 * math.exp(-step / 130) + 0.05 * rng.gauss(0, 1) + 0.4 * math.exp(-step / 700)
        row = {"step": step, "tokens": step * 4096, "time": step * 0.2, "loss": loss, "bpb": loss * 0.31}
        row |= {
            "lr": 1e-3 * min(1, step / 120, (1260 - step) / 1140),
            "grad_norm": 1 + 2 * math.exp(-step / 90) + 0.1 * rng.random(),
        }
        train.append(row | {"tokens_per_second": 20400 + 300 * rng.gauss(0, 1)})
        if step % 100 == 0:
            accuracy = 0.26 * (1 - math.exp(-step / 400))
            valid.append(
                {
                    "step": step,
                    "tokens": step * 4096,
                    "time": step * 0.2,
                    "loss": loss + 0.06,
                    "accuracy": accuracy,
                    "bpb": loss * 0.315,
                }
            )
    text = "Return the number of non-overlapping occurrences of substring sub in string S[start:end]."
    spans = [match.span() for match in re.finditer(r"[A-Za-z]{1,5}|[^\sA-Za-z]", text)]
    return Report(
        title="A BERT of 3.2 million parameters, pretrained in four minutes",
        verdict="It reads 4.9 million tokens of Python documentation and fills 26% of masked words; "
        "fine-tuned from it, tagging gains 2.1 ± 0.6 points over the same model without pretraining.",
        tiles=[
            ("Masked words right", "0.1% → 26%", "validation, 15% masked"),
            ("Loss", "9.0 → 4.9", "nats per masked token"),
            ("Parameters", "3.2 M", "4 layers × 256"),
            ("Tokens read", "4.9 M", "1.2 epochs"),
            ("Time", "4 min 5 s", "20,400 tokens/s, 2 cores"),
        ],
        runs=[Run(name="bert-mini", train=train, valid=valid)],
        metrics=[
            Metric(key="loss", label="Loss", references=(("uniform guess, ln 8000", 8.99), ("word frequencies", 6.24))),
            Metric(key="accuracy", label="Masked accuracy", kind="percent", from_zero=True),
            Metric(key="bpb", label="Bits per byte"),
        ],
        strips=[
            Metric(key="lr", label="Learning rate", from_zero=True),
            Metric(key="grad_norm", label="Gradient norm", from_zero=True),
            Metric(key="tokens_per_second", label="Tokens per second", from_zero=True),
        ],
        fills=[
            Fill(
                text="Return the [MASK] of items in the list.",
                mask="[MASK]",
                answer="number",
                before=[("##ully", 0.001), ("defer", 0.001), ("<b>", 0.001), ("zip", 0.0009), ("axis", 0.0009)],
                after=[("number", 0.412), ("name", 0.12), ("list", 0.06), ("value", 0.031), ("index", 0.022)],
            ),
            Fill(
                text="If the file does not [MASK], an error is raised.",
                mask="[MASK]",
                answer="exist",
                before=[("the", 0.001), ("tensor", 0.001), ("odd", 0.001), ("lines", 0.0009), ("x", 0.0009)],
                after=[("be", 0.3), ("have", 0.18), ("exist", 0.09), ("match", 0.04), ("support", 0.02)],
            ),
        ],
        fills_note="Held-out sentences; the word that stood there is marked. Bars are probabilities.",
        tasks=[
            TaskScores(
                name="Role tags",
                about="Which words of a paragraph are code? 2,000 training paragraphs, split by module.",
                metric="F1",
                methods=[
                    MethodScores(name="majority", scores=[0.0]),
                    MethodScores(name="word list", scores=[0.541]),
                    MethodScores(name="without pretraining", scores=[0.603, 0.611, 0.607, 0.598, 0.612], ours=True),
                    MethodScores(name="pretrained", scores=[0.624, 0.631, 0.629, 0.618, 0.634], ours=True),
                ],
                compare=("pretrained", "without pretraining"),
            ),
            TaskScores(
                name="Area of the library",
                about="Which of nine areas does a description come from?",
                metric="accuracy",
                methods=[
                    MethodScores(name="majority", scores=[0.339]),
                    MethodScores(name="TF-IDF + logistic regression", scores=[0.532]),
                    MethodScores(name="without pretraining", scores=[0.545, 0.561, 0.53], ours=True),
                    MethodScores(name="pretrained", scores=[0.549, 0.565, 0.538], ours=True),
                ],
                compare=("pretrained", "without pretraining"),
            ),
        ],
        tasks_note="Dots are seeds, the line their mean, the band its 95% interval.",
        pieces=[
            Pieces(text=text, spans=spans),
            Pieces(text="naïve <script>alert(1)</script>", spans=[(0, 5), (6, 14)]),
        ],
        tokenizer={"Kind": "WordPiece, 8,000 pieces", "Fertility": "1.42 tokens per word"},
        costs={"Parameters": "3.2 M (2.1 M embeddings)", "FLOPs": "4.1e13", "Peak memory": "1.1 GB"},
        costs_note="Multiply-add counts 2, the backward pass twice the forward pass.",
        provenance={"encoderlab": "0.1.0", "torch": "2.13.0", "Corpus": "sha256 9f2c…"},
        commands=[
            "encoderlab quickstart --budget 5m --out runs/quickstart",
            "encoderlab fill-mask runs/quickstart/model 'The [MASK]'",
        ],
        limits=["4.9 million tokens are 0.15% of what BERT read.", "The tasks are derived from the same kind of text."],
    )


class Shape(html.parser.HTMLParser):
    """Collects ids and external references, and checks that tags close in order."""

    VOID = {"meta", "link", "br", "path", "circle", "i/"}

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links = [], set(), []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.add(attrs["id"])
        self.links += [attrs[key] for key in ("src", "href") if key in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return render(example())


def test_the_page_is_whole_and_refers_to_nothing_outside(page):
    shape = Shape()
    shape.feed(page)
    assert shape.open == []
    assert {
        "curves",
        "words",
        "tasks",
        "tokenizer",
        "cost",
        "limits",
        "provenance",
        "again",
        "data",
        "save",
    } <= shape.ids
    assert all(link.startswith(("#", "data:")) for link in shape.links)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert len(page.encode()) < 2_000_000


def test_text_is_escaped_everywhere(page):
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    hostile = dataclasses.replace(example(), title="</script><b>", commands=["a </script> <!--"])
    text = render(hostile)
    assert text.count("</script>") == page.count("</script>")


def test_commands_break_between_their_words():
    text = render(dataclasses.replace(example(), commands=["encoderlab pretrain --set 'a=<b>'", "second"]))
    shown = re.search(r'<div class="command"><pre>(.*?)</pre>', text, re.S)[1]
    assert "<span>--set</span> <span>&#39;a=&lt;b&gt;&#39;</span>" in shown
    assert re.sub("</?span>", "", shown) == "encoderlab pretrain --set &#39;a=&lt;b&gt;&#39;\nsecond", "what is copied"


def test_the_data_of_the_page_can_be_read_back(page):
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])
    run = data["runs"][0]
    assert len(run["train"]["loss"]) == MAX_POINTS == len(run["train"]["loss~"]) == len(run["train"]["tokens"])
    assert run["train"]["tokens"][-1] == pytest.approx(1200 * 4096, rel=1e-3)
    assert len(run["valid"]["accuracy"]) == 12
    assert data["tasks"][0]["methods"]["pretrained"] == [0.624, 0.631, 0.629, 0.618, 0.634]


def test_a_diverged_run_still_has_a_page():
    rows = [
        {"tokens": 1, "time": 1, "loss": 9.0},
        {"tokens": 2, "time": 2, "loss": float("nan")},
        {"tokens": 3, "time": 3},
    ]
    text = render(
        Report(title="x", verdict="y", runs=[Run(name="r", train=rows)], metrics=[Metric(key="loss", label="Loss")])
    )
    assert '"loss":[9.0,null,null]' in text


def test_empty_parts_are_left_out():
    text = render(Report(title="x", verdict="y"))
    assert "<section" not in text and "<h1>x</h1>" in text


def test_the_interval_of_a_single_score_is_the_score():
    assert interval([0.5]) == (0.5, 0.0)
    middle, half = interval([0.61, 0.64, 0.60, 0.66])
    assert middle == pytest.approx(0.6275) and half == pytest.approx(0.0438, abs=1e-3)


def test_the_difference_is_paired_by_seed():
    task = example().tasks[0]
    middle, half = difference(task)
    assert middle == pytest.approx(0.021, abs=1e-3) and half < 0.004


def test_the_scale_of_shares_ends_at_0_and_1():
    methods = [MethodScores(name="a", scores=[0.4, 0.6], ours=True), MethodScores(name="b", scores=[0.9])]  # 0.5 ± 1.27
    text = render(Report(title="x", verdict="y", tasks=[TaskScores(name="t", about="", metric="f", methods=methods)]))
    ticks = [float(tick) for tick in re.findall(r'<span style="left:[\d.]+%">(-?[\d.]+)</span>', text)]
    assert 0 <= min(ticks) and max(ticks) <= 100
    assert re.search(r'class="span" style="left:0.00%;right:calc\(100% - 100.00%\)"', text)


def test_write_replaces_the_file_in_one_step(tmp_path):
    write_text(tmp_path / "report.html", render(example()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


USE = """<script>
const chart = document.querySelector('.chart svg'), frame = chart.getBoundingClientRect();
chart.dispatchEvent(new PointerEvent('pointermove', {clientX: frame.left + frame.width / 2, clientY: frame.top + 50}));
const said = document.querySelector('.readout').textContent;
for (const button of document.querySelectorAll('.choice button')) button.click();
document.querySelector('.theme').click();
document.body.dataset.said = said;
</script></body>"""


chromium = pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")


@chromium
def test_a_browser_draws_it_without_errors(tmp_path, page):
    dom = browse(page, tmp_path)
    assert 'data-ready="yes"' in dom  # set by the last line of the script
    assert dom.count('class="reference-label"') == 4  # two levels in two charts
    assert len(re.findall(r"<path d=\"M[\d. L]{1000,}", dom)) >= 5
    assert len(re.findall(r"<circle [^>]*fill=\"var\(--panel\)\"", dom)) >= 24  # validation rings
    used = browse(page.replace("</body>", USE), tmp_path)
    assert re.search(r'data-said="2.*M tokens.*training 5\..*validation 5\.', used)
    assert len(re.findall(r'<button[^>]*aria-pressed="true"', used)) == 2 and 'data-theme="dark"' in used
    with pytest.raises(AssertionError, match="missing is not defined"):
        browse(page.replace('"use strict";', '"use strict"; missing();'), tmp_path)


def browse(page, tmp_path) -> str:
    """The page's DOM after its script ran; fails on any message of the browser's console."""
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    command = ["chromium", *options, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console, console
    return done.stdout
