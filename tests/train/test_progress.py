"""What is shown: plain lines where there is no terminal, never more often than a person can read."""

from __future__ import annotations

import pytest

from encoderlab.train import progress
from encoderlab.train.progress import Display, facts

LINE = {
    "step": 1200,
    "loss": 2.31,
    "losses": {"mlm": 2.1, "next_sentence": 0.21, "replaced": 0.0},
    "accuracy": {"mlm": 0.453, "replaced": 0.9},
    "lr": 1e-4,
    "tokens_per_second": 8123.0,
    "peak_share": 0.62,
}


def test_facts() -> None:
    assert facts(LINE) == (
        "step 1200  loss 2.310  mlm 2.100 (45.3%)  next_sentence 0.210  replaced (90.0%)  lr 1.0e-04  "
        "8.12k tokens/s  62% of peak"
    )
    assert facts({"step": 3, "scores": {"f1": 0.5}}) == "step 3  f1 0.5000"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the display sees, in seconds, as a list of one."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_plain_lines_are_rare_and_the_last_one_is_shown(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("bert-tiny")
    for second in range(25):
        now[0] = float(second)
        display.update(LINE | {"step": second}, done=second / 24, left=24.0 - second)
    display.say("saved")
    display.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.split("step ")[1].split()[0] for line in lines[:-1]] == ["0", "10", "20", "24"]
    assert lines[1].startswith("bert-tiny  42%  step 10  loss 2.310") and lines[1].endswith("00:14 left")
    assert lines[-1] == "saved"


def test_other_processes_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("x", visible=False)
    display.update(LINE, done=1.0, left=0.0)
    display.say("quiet")
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    display = Display("bert-tiny")
    display.update(LINE, done=0.5, left=90.0)
    display.say("validation")
    display.close()
    said = capsys.readouterr().err
    assert "validation" in said and "8.12k tokens/s" in said and "01:30 left" in said
    assert "\x1b[3" not in said, "no colours with NO_COLOR"


def test_counts_show_the_first_and_the_last_of_each_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress.time, "monotonic", lambda: 5.0)
    display = Display("corpus")
    for done in range(0, 1500, 500):
        display.count("documents", done, 1000)
    for done in (7, 8):
        display.count("shards", done, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["corpus: documents 0 of 1,000", "corpus: documents 1,000 of 1,000", "corpus: shards 7"]


def test_an_overview_says_a_plain_line_when_it_changed(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("finetune")
    for second in range(60):
        now[0] = float(second)
        display.overview(0, 2, {"seed 1": (0.01 * (second // 30), "step 3")} if second >= 15 else {})
    assert capsys.readouterr().err.splitlines() == [
        "finetune: 0 of 2 runs",
        "finetune: 0 of 2 runs; seed 1 0%",
        "finetune: 0 of 2 runs; seed 1 1%",
    ]
