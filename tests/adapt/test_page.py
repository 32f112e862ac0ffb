"""The page of an adaptation."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoderlab.adapt import measure, page
from tests.adapt.small import SHORT
from tests.terminal import answer


def test_the_page_names_the_step_of_the_weights_and_the_rate(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """Also where the loss is lowest before the first step, whose weights are not kept."""
    monkeypatch.setattr(measure, "PIECES", 2)
    words = ["adapt", str(place / "model"), str(place / "law.txt"), *SHORT, "--set", "optim.lr=1e-9"]
    warm = ["--set", "schedule.kind=constant", "--set", "schedule.warmup=3"]
    for name, more, best in (("a", warm, 2), ("b", ["--set", "evaluation.best=null"], 6)):
        more = [*more, "--set", "evaluation.patience=null"]
        found, _ = answer(capsys, *words, "--out", str(tmp_path / name), *more)
        assert found["training"]["best"] == best and found["training"]["held"][0][0] == 0
        page = (tmp_path / name / "report.html").read_text()
        assert f"6 of 6; the weights are of step {best}" in page
        rate = "3 steps, then constant" if more[:4] == warm else "6% of the budget, then to 0"
        assert f"1e-09, warmed up over {rate}" in page


@pytest.mark.parametrize(("measured", "kind", "said"), [("not_replaced", "new", 1), ("pll_word", "new", 0)])
def test_a_measure_that_does_not_compare_vocabularies_says_so(measured: str, kind: str, said: int) -> None:
    one = {"measure": measured, "pieces": 40, "bytes": 9000, "unknown": [0.0, 0.0]}
    lines = page._limits({"gains": {"domain": one}, "vocabulary": {"kind": kind}})
    assert sum("whether the other vocabulary is better" in line for line in lines) == said
