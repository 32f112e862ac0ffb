"""``encoderlab study``."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from encoderlab.cli import main
from encoderlab.errors import ConfigError
from tests.study.small import SMALL, written


def test_a_dry_run_prints_every_run_and_writes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(place, budget={"flops": [1e9, 2e9]})
    before = sorted(place.iterdir())
    capsys.readouterr()
    assert main(["study", str(path), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 2 * 2 * (2 + 2) and found["flops"] == pytest.approx(2 * 3e9 * (2 + 2 * 0.5))
    assert main(["study", str(written(place, budget={"hours": 1})), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["flops"] is None and found["seconds"] == 2 * 3600 * (2 + 2 * 0.5)
    assert sorted(place.iterdir()) == before
    assert main(["study", str(path)]) == 2 and "needs --out" in capsys.readouterr().err


def test_nodes_of_a_cluster_must_see_the_corpora_and_the_data(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def tasks_on(on: str, *, sees: Sequence[Path], **more: Any) -> None:
        asked.extend(sees)
        raise ConfigError("no cluster")

    monkeypatch.setattr("encoderlab.commands.study.tasks_on", tasks_on)
    assert main(["study", str(written(place)), "--out", str(place / "away"), "--on", "ray"]) == 2
    assert asked == [place / "away", place / SMALL["corpus"], place / "pairs.txt"] and not (place / "away").exists()


def test_the_command_runs_processes_and_stops_in_time(
    place: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    path = written(place, seeds=1, tune=None, measures=[])
    words = ["study", str(path), "--out", str(place / "command")]
    assert main([*words, "--hours", "1e-9"]) == 75
    assert "2 runs are left; run the same command again" in capsys.readouterr().err
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["status"] for one in found["cells"]] == ["done", "done"]
    assert json.loads((place / "command" / "results.json").read_text())["cells"] == found["cells"]
    assert (place / "command" / "study.html").stat().st_size > 10_000
