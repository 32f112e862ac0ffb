"""Fine-tuning in two processes: each waits for what the other reads or deletes, and finds what one process finds."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks.tiny import model

RUN = ("--seeds", "2", "--epochs", "2", "--set", "select=best_epoch", "--json")


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    model(dropout=0.1).save(tmp_path / "tiny")
    with open(tmp_path / "reviews.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        table.writerows([f"film {n} is {'good' if n % 2 else 'awful'} {'one' * (n % 3)}", n % 2] for n in range(60))
    scores = []
    for name, launcher in (("one", ()), ("two", ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"))):
        words = ["encoderlab", "finetune", "reviews.csv", "--model", "tiny", "--out", name, *RUN]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CI": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *launcher, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        paths = sorted((tmp_path / name / "runs").glob("seed-*/score.json"))
        assert len(paths) == 2
        scores.append([json.loads(path.read_text())["scores"] for path in paths])
    assert scores[0] == scores[1]
