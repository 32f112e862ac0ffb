"""A run that is killed, stopped or finds a damaged checkpoint ends with the same bits as one that was left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from encoderlab.batches.batch import Batch
from encoderlab.errors import DataError, Stopped
from encoderlab.train import checkpoint
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Phase
from tests.train.toy import RECIPE, Rows, assert_same_run, metrics, run, start, tensors, toy_data, validation


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy run without interruption."""
    out = tmp_path_factory.mktemp("whole")
    run(out)
    return out


def test_killed_twice_and_resumed_is_bitwise_the_same(tmp_path: Path, whole_run: Path) -> None:
    # Killed in the first phase; then in the second phase, beyond a checkpoint; dropout and memory are on.
    for die_at in (8, 9):
        process = start(tmp_path, None, "--die-at", die_at)
        process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL
    assert run(tmp_path).step == 24
    assert_same_run(tmp_path, whole_run, 24)
    sessions = json.loads((tmp_path / "provenance.json").read_text())["sessions"]
    assert len(sessions) == 3


@pytest.mark.parametrize("steps", [1, 7, 12, 13, 20, 23])
def test_stopped_at_any_step_and_resumed_is_bitwise_the_same(tmp_path: Path, whole_run: Path, steps: int) -> None:
    with pytest.raises(Stopped) as stopped:
        run(tmp_path, session=Budget(amount=steps))
    assert stopped.value.code == 75
    run(tmp_path)
    assert_same_run(tmp_path, whole_run, 24)


def test_killed_before_the_first_checkpoint(tmp_path: Path, whole_run: Path) -> None:
    class Cut(Rows):
        def __next__(self):  # type: ignore[no-untyped-def]
            if self.next_row == 8 * 4:
                raise RuntimeError("power cut")
            return super().__next__()

    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, data=toy_data(source=Cut))
    assert [line["step"] for line in metrics(tmp_path)] == [0, 3]
    run(tmp_path)
    assert_same_run(tmp_path, whole_run, 24)


def test_how_it_is_computed_may_change_between_sessions(tmp_path: Path, whole_run: Path) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, session=Budget(amount=11))
    run(tmp_path, replace(RECIPE, checkpoints=Checkpoints(minutes=1.0, steps=None)))
    assert_same_run(tmp_path, whole_run, 24)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    first = run(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = run(tmp_path)
    assert (again.step, again.tokens, again.metrics) == (first.step, first.tokens, first.metrics)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert "resuming" not in (tmp_path / "run.log").read_text()


def test_a_run_that_resumes_names_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, session=Budget(amount=11))
    run(tmp_path)
    assert "resuming from" in (tmp_path / "run.log").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_write_a_checkpoint_and_give_their_exit_code(
    tmp_path: Path, whole_run: Path, number: signal.Signals, code: int
) -> None:
    process = start(tmp_path, {"checkpoints.steps": None}, "--slow", 0.05)
    deadline = time.monotonic() + 600
    while not (tmp_path / "metrics.jsonl").exists() or not metrics(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=600)
    assert process.returncode == code, said
    assert "run the same command again to resume" in said.splitlines()[-1]
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 1
    run(tmp_path)
    assert_same_run(tmp_path, whole_run, 24)


@pytest.mark.parametrize(("nth", "step"), [(1, 0), (2, 10), (4, 24)])
def test_a_signal_interrupts_a_validation_which_is_made_again(
    tmp_path: Path, whole_run: Path, nth: int, step: int
) -> None:
    begun: list[Phase] = []

    def interrupted(phase: Phase) -> Iterator[Batch]:
        begun.append(phase)
        for batch in validation(phase):
            if len(begun) == nth:
                signal.raise_signal(signal.SIGINT)
                raise AssertionError("the validation goes on")
            yield batch

    with pytest.raises(Stopped) as stopped:
        run(tmp_path, data=toy_data(validation=interrupted))
    assert stopped.value.code == 130 and (tmp_path / "checkpoints" / f"step-{step:06d}").is_dir()
    assert ("valid", step) not in [(line["split"], line["step"]) for line in metrics(tmp_path)]
    run(tmp_path)
    assert_same_run(tmp_path, whole_run, 24)


def test_a_signal_while_the_end_is_saved_stops_what_follows_the_run(
    tmp_path: Path, whole_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint.write

    def interrupted(folder: Path, snapshot: checkpoint.Snapshot) -> None:
        write(folder, snapshot)
        if folder.name == "step-000024":
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write", interrupted)
        with pytest.raises(Stopped, match="stopped by SIGTERM at step 24") as stopped:
            run(tmp_path)
    assert stopped.value.code == 143
    run(tmp_path)
    assert_same_run(tmp_path, whole_run, 24)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, session=Budget(amount=17))
    weights = tmp_path / "checkpoints" / "step-000017" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    capsys.readouterr()
    run(tmp_path)
    said = capsys.readouterr().err
    assert str(weights) in said and "continuing from step-000015" in said
    assert (tmp_path / "checkpoints" / "damaged-step-000017").is_dir()
    assert_same_run(tmp_path, whole_run, 24)


def test_damaged_best_weights_are_refused_and_missing_ones_chosen_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = replace(RECIPE, evaluation=Evaluation(every=5, best="loss"))
    with pytest.raises(Stopped):
        run(tmp_path, made, session=Budget(amount=11))
    best = tmp_path / "checkpoints" / "best"
    data = bytearray((best / "weights.safetensors").read_bytes())
    data[-100] ^= 1
    (best / "weights.safetensors").write_bytes(data)
    with pytest.raises(DataError, match="best/weights.safetensors: its bytes have changed .*; restore it, or delete"):
        run(tmp_path, made)
    shutil.rmtree(best)
    capsys.readouterr()
    outcome = run(tmp_path, made)
    assert "best: is missing; the best weights are chosen from step 11 on" in capsys.readouterr().err
    assert outcome.best is not None and json.loads((outcome.best / "state.json").read_text())["step"] > 11


def test_killed_between_a_checkpoint_and_its_link(tmp_path: Path) -> None:
    run(tmp_path)
    checkpoint.point(tmp_path / "checkpoints" / "latest", "step-000020")
    run(tmp_path)
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step-000024"


def test_without_a_whole_checkpoint_nothing_is_begun_anew_silently(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, session=Budget(amount=3))
    (tmp_path / "checkpoints" / "step-000003" / "state.json").unlink()
    with pytest.raises(DataError, match=r"step-000003/state.json: missing.*delete .*checkpoints to begin again"):
        run(tmp_path)
    assert (tmp_path / "checkpoints" / "step-000003").is_dir()


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_again(
    tmp_path: Path, whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, session=Budget(amount=8))
    for folder in (tmp_path / "checkpoints").glob("step-*"):
        shutil.rmtree(folder)
    with pytest.raises(DataError, match=r"latest: points to a missing checkpoint"):
        run(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    capsys.readouterr()
    run(tmp_path)
    assert "left no checkpoint; the run begins again at step 0" in capsys.readouterr().err
    assert_same_run(tmp_path, whole_run, 24)


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda lines: b"".join(lines)[:-7], slice(None, -1)),
        (lambda lines: b"".join([lines[0], lines[1][:20], *lines[2:]]), [0, *range(3, 7)]),
        (lambda lines: b"".join([*lines[:2], b"\n", *lines[2:]]), slice(None)),
        (lambda lines: b"", []),
        (lambda lines: b"".join([lines[0], lines[1].replace(b'"lr"', b'"ls"'), *lines[2:]]), [0, *range(2, 7)]),
    ],
    ids=["cut at the end", "cut inside", "a line too many", "emptied", "a key changed"],
)
def test_damaged_metrics_are_repaired_and_named(
    damage: Callable[[list[bytes]], bytes],
    kept: slice | list[int],
    tmp_path: Path,
    whole_run: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, session=Budget(amount=16))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    whole = metrics(tmp_path)
    path.write_bytes(damage(lines))
    run(tmp_path)
    assert f"{path} has changed since the checkpoint" in caplog.text
    expected = whole[kept] if isinstance(kept, slice) else [whole[i] for i in kept]
    assert metrics(tmp_path) == expected + metrics(whole_run)[len(whole) :]
    left, right = (tensors(out / "checkpoints" / "step-000024") for out in (tmp_path, whole_run))
    assert all(torch.equal(tensor, right[name]) for name, tensor in left.items())
