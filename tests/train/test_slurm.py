"""The job file for Slurm, run by stand-ins of sbatch, srun and scontrol that do what Slurm's manual says."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

from encoderlab.train.folder import METRICS
from tests.train.test_distributed import small_corpus

JOB = Path(__file__).parents[2] / "benchmarks" / "cluster" / "pretrain.sbatch"
PAGE = JOB.parents[2] / "docs" / "scaling.md"
SRUN = """#!{python}
# srun: every task with its number; the signals of the job reach the tasks, the code is the largest of theirs.
import os, subprocess, sys
words = sys.argv[1:]
assert words.pop(0) == "--kill-on-bad-exit=1"
tasks = []
for number in range(int(os.environ["SLURM_NTASKS"])):
    own = dict(os.environ, SLURM_PROCID=str(number), SLURM_LOCALID=str(number))
    tasks.append(subprocess.Popen(words, env=own))
open("tasks", "w").write(" ".join(str(task.pid) for task in tasks))
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """#!/bin/bash
case "$1 $2" in
  "show hostnames") echo 127.0.0.1 ;;
  requeue*) echo "$2" >> requeued ;;
esac
"""
ENCODERLAB = """#!/bin/bash
exec {python} -m encoderlab "$@"
"""


def test_a_job_whose_time_ends_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    assert JOB.read_text() in PAGE.read_text(), "docs/scaling.md shows the file"
    corpus, out = small_corpus(tmp_path), tmp_path / "run"
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "encoderlab": ENCODERLAB}.items():
        (commands / name).write_text(text.format(python=sys.executable) if "{python}" in text else text)
        (commands / name).chmod(0o755 | stat.S_IXUSR)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", JOB.read_text(), re.M))
    sent, before = options["signal"].split("@")
    assert int(before) >= 60 and "requeue" in options and options["open-mode"] == "append"
    words = ["bert-tiny", "--corpus", str(corpus), "--out", str(out), "--steps", "120"]
    for setting in ("phases=[{length: 16, rows: 4}]", "log_every=1", "execution.device=cpu", "evaluation.every=1000"):
        words += ["--set", setting]
    own = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "node1"}
    own |= {"PATH": f"{commands}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "CI": "1"}
    command = ["bash", str(JOB), *words]  # sbatch: the script in a shell, with the job's numbers
    job = subprocess.Popen(command, cwd=tmp_path, env=os.environ | own, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 300
    while not any(line["split"] == "train" for line in _lines(out)):
        assert job.poll() is None and time.monotonic() < end, job.communicate()[1]
        time.sleep(0.05)
    for task in (tmp_path / "tasks").read_text().split():
        os.kill(int(task), getattr(signal, f"SIG{sent}"))
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 75 and "stopped by SIGUSR1 at step" in said and "Traceback" not in said, said
    assert (tmp_path / "requeued").read_text().split() == [own["SLURM_JOB_ID"]]
    reached = _lines(out)[-1]["step"]
    again = subprocess.run(command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert f"resuming from {out / 'checkpoints' / f'step-{reached:06d}'}" in again.stderr
    assert _lines(out)[-1]["step"] == 120 and (out / "model" / "model.safetensors").exists()
    assert len((tmp_path / "requeued").read_text().split()) == 1, "a finished job is not queued again"


def _lines(out: Path) -> list[dict]:
    path = out / METRICS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
