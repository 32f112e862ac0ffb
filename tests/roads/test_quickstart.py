from __future__ import annotations

import json
import shlex
from statistics import fmean

import pytest
from markupsafe import escape

from encoderlab.commands import quickstart_stages
from encoderlab.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("60s", 60), ("5m", 300), ("5 min", 300), ("1h", 3600), ("0.5h", 1800)]
)
def test_a_budget_is_a_time(text, seconds):
    assert quickstart_stages.parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "five", "5 days", "-3s", "1e3"])
def test_a_budget_that_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match="such as 60s, 5m or 1h"):
        quickstart_stages.parse_time(text)


def test_a_budget_too_short_to_learn_is_refused():
    with pytest.raises(ConfigError, match="at least 30s"):
        quickstart_stages.plan(5)


def test_larger_budgets_buy_larger_models():
    assert [quickstart_stages.plan(seconds).recipe for seconds in (60, 300, 3600)] == [
        "bert-tiny",
        "bert-mini",
        "bert-small",
    ]


def test_the_road_from_text_to_report_and_again(tmp_path, monkeypatch, capsys):
    """A walk of seconds: every stage runs on real text; the second walk finds everything done."""
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "cache"))
    plan = quickstart_stages.QuickstartPlan(
        recipe="bert-tiny",
        pretraining=2.0,
        examples=(16, 16, 32),
        seeds={"roles": 2, "match": 1, "area": 1},
        size="stdlib",
    )
    out = tmp_path / "the road"
    summary = quickstart_stages.walk(plan, out, 1, "encoderlab quickstart --budget 2s")
    assert set(summary["tasks"]) == {"Role tags", "Name and description", "Area of the library"}
    for task, methods in summary["tasks"].items():
        assert {"majority", "without pretraining", "pretrained"} <= set(methods), task
        assert ("small-en" in methods) == (task == "Role tags")
        assert all(0 <= score <= 1 for scores in methods.values() for score in scores)
    assert len(summary["tasks"]["Role tags"]["pretrained"]) == 2
    tags, gain = summary["tasks"]["Role tags"], summary["differences"]["Role tags"]
    assert gain["mean"] == pytest.approx(fmean(tags["pretrained"]) - fmean(tags["without pretraining"]), abs=1e-9)
    assert summary["differences"]["Area of the library"] is None  # of one seed
    page = (out / "report.html").read_text(encoding="utf-8")
    for anchor in ("curves", "words", "tasks", "tokenizer", "cost", "limits", "provenance", "again"):
        assert f'<section id="{anchor}">' in page
    assert page.count('<div class="panel fill">') == 6
    commands = page.replace("<span>", "").replace("</span>", "")
    assert f"fill-mask {escape(shlex.quote(str(out / 'pretrain')))} " in commands  # a command for the shell
    shown = capsys.readouterr().out
    assert "without pretraining" in shown and "report.html" in shown
    again = quickstart_stages.walk(plan, out, 1, "encoderlab quickstart --budget 2s")
    assert again["tasks"] == summary["tasks"]
    assert json.loads((out / "summary.json").read_text())["pretraining"]["steps"] == summary["pretraining"]["steps"]
