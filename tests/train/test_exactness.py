"""The exactness of the loop with every objective of the project: dropout, sampling, orders and memory included."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from encoderlab.errors import DataError, Stopped
from encoderlab.interchange.folder import save
from encoderlab.train import checkpoint
from encoderlab.train.pretraining import models_at, unread_models_at
from encoderlab.train.recipe import Budget
from tests.train.real import CASES, SHARDED, STEPS, run
from tests.train.toy import assert_same_run, metrics, tensors

LAST = f"step-{STEPS:06d}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every objective in one process, one batch at a time."""
    out = tmp_path_factory.mktemp("alone")
    for case in CASES:
        run(case, out / case)
    return out


def start(*arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """``tests/train/real.py`` in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CI": "1"}
    command = [sys.executable, *launcher, "-m", "tests.train.real", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2])


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every objective in two processes under torchrun, in micro-batches, with DDP and with FSDP2."""
    out = tmp_path_factory.mktemp("two")
    done = start(out, launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"))
    assert done.returncode == 0, done.stderr[-5000:]
    return out


def assert_close(one: Path, other: Path) -> None:
    """Equal within float tolerance, the moments (sums of gradients) included."""
    left, right = tensors(one / "checkpoints" / LAST), tensors(other / "checkpoints" / LAST)
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(
            left[name], right[name], rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    for ours, theirs in zip(metrics(one), metrics(other), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["counts"] == theirs["counts"] and ours["tokens"] == theirs["tokens"]


@pytest.mark.parametrize("case", CASES)
def test_resumed_to_the_bit(tmp_path: Path, alone: Path, case: str) -> None:
    with pytest.raises(Stopped):
        run(case, tmp_path, session=Budget(amount=4))
    run(case, tmp_path)
    assert_same_run(tmp_path, alone / case, STEPS)


@pytest.mark.parametrize(("case", "die_at"), [("rtd", 1), ("causal", 4)])
def test_killed_and_resumed_to_the_bit(tmp_path: Path, alone: Path, case: str, die_at: int) -> None:
    """Before the first checkpoint, and after it."""
    assert start(tmp_path, case, die_at).returncode == -signal.SIGKILL
    run(case, tmp_path)
    assert_same_run(tmp_path, alone / case, STEPS)


@pytest.mark.parametrize("case", CASES)
def test_micro_batches(tmp_path: Path, alone: Path, case: str) -> None:
    run(case, tmp_path, micro_rows=3)
    assert_close(tmp_path, alone / case)


@pytest.mark.parametrize(
    ("case", "engine"), [*((case, "ddp") for case in CASES), *((case, "fsdp") for case in SHARDED)]
)
def test_two_processes(alone: Path, two_processes: Path, case: str, engine: str) -> None:
    assert_close(two_processes / f"{case}-{engine}", alone / case)


@pytest.mark.parametrize("case", ["average", "rtd-gdes"])
def test_parts_of_processes_become_a_model_one_tensor_at_a_time(tmp_path: Path, two_processes: Path, case: str) -> None:
    """The same bytes as from the weights in memory: with averaged weights, and with tables stored as differences."""
    last = two_processes / f"{case}-fsdp" / "checkpoints" / LAST
    assert len(list(last.glob("shard-*.safetensors"))) == 2 and not (last / checkpoint.WEIGHTS).exists()
    models, values = unread_models_at(last)
    for name, model in models_at(last).items():
        save(model, tmp_path / "whole" / name)
        assert {parameter.device.type for parameter in models[name].parameters()} == {"meta"}
        save(models[name], tmp_path / "parts" / name, values=values)
        whole, parts = (load_file(tmp_path / place / name / "model.safetensors") for place in ("whole", "parts"))
        assert whole.keys() == parts.keys() and all(torch.equal(whole[key], parts[key]) for key in whole)
    lost = next(shutil.copytree(last, tmp_path / LAST).glob("shard-00002-*"))
    lost.unlink()
    with pytest.raises(DataError, match=f"{lost.name}: missing from the checkpoint"):
        models_at(tmp_path / LAST)


@pytest.mark.parametrize("case", CASES)
def test_begun_with_two_processes_and_ended_with_one(
    tmp_path: Path, alone: Path, two_processes: Path, case: str
) -> None:
    out = shutil.copytree(two_processes / f"{case}-ddp", tmp_path / "run", symlinks=True)
    shutil.rmtree(out / "checkpoints" / LAST)
    stored = tensors(out / "checkpoints" / "step-000003")
    assert any(name.startswith("memory/") for name in stored) == (case in ("permutation", "causal"))
    run(case, out)
    assert_close(out, alone / case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["causal", "permutation"])
def test_three_processes_with_eight_rows(tmp_path: Path, alone: Path, case: str) -> None:
    """Memory of 2, 3 and 3 rows goes into one checkpoint."""
    never = 99  # the batch at which the script would be killed
    done = start(tmp_path, case, never, launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"))
    assert done.returncode == 0, done.stderr[-5000:]
    assert_close(tmp_path, alone / case)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled(tmp_path: Path, alone: Path) -> None:
    run("mlm", tmp_path, compile=True)
    assert_close(tmp_path, alone / "mlm")
