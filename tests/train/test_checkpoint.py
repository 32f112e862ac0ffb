"""A checkpoint is whole or absent, whatever happens while it is written, and damage is found and named."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from encoderlab.errors import DataError
from encoderlab.files import read_json
from encoderlab.interchange.places import PROVENANCE
from encoderlab.train import checkpoint
from encoderlab.train.checkpoint import Snapshot, Writer
from encoderlab.train.stored import StoredTensors


def snapshot(step: int = 1, size: int = 1000) -> Snapshot:
    return Snapshot(
        weights={"flag": torch.tensor([True]), "w": torch.full((size,), float(step)), "empty": torch.zeros(0, 3)},
        carried={"exp_avg/w": torch.arange(size).bfloat16(), "count": torch.tensor(step)},
        state={"step": step},
        recipe={"seed": 1},
    )


def save(folder: Path, *steps: int, keep: int = 5) -> None:
    writer = Writer(folder, keep=keep)
    for step in steps:
        writer.save(checkpoint.name(step), snapshot(step))
    writer.wait()


def test_round_trip_in_the_library_s_format(tmp_path: Path) -> None:
    save(tmp_path, 3)
    folder = tmp_path / "step-000003"
    for file, tensors in ((checkpoint.WEIGHTS, snapshot(3).weights), (checkpoint.CARRIED, snapshot(3).carried)):
        stored = StoredTensors(folder)
        for read in (load_file(folder / file), {name: stored[name] for name in tensors}):
            assert read.keys() == tensors.keys() <= stored.keys()
            for name, tensor in tensors.items():
                assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)
    assert read_json(folder / checkpoint.STATE) == {"step": 3}
    assert (tmp_path / "latest").resolve() == folder.resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-000003"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 9, 99, 999999, 1000000, 1000001, keep=2)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-1000000", "step-1000001"]
    assert checkpoint.newest(tmp_path) == (tmp_path / "step-1000001", [])


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 5)
    writer = Writer(tmp_path, keep=1)
    writer.save("step-000005", snapshot(7))
    writer.wait()
    assert read_json(tmp_path / "step-000005" / checkpoint.STATE) == {"step": 7}


@pytest.mark.parametrize("file", [checkpoint.WEIGHTS, checkpoint.CARRIED, checkpoint.STATE, checkpoint.RECIPE])
def test_every_kind_of_damage_is_named_and_the_one_before_is_found(tmp_path: Path, file: str) -> None:
    save(tmp_path, 1, 2, 3)
    older, newer = tmp_path / "step-000002" / file, tmp_path / "step-000003" / file
    data = bytearray(newer.read_bytes())
    data[len(data) // 2] ^= 0x10
    newer.write_bytes(data)
    os.truncate(older, older.stat().st_size - 1)
    found, damaged = checkpoint.newest(tmp_path)
    assert found == tmp_path / "step-000001"
    assert [folder.name for folder, _ in damaged] == ["step-000003", "step-000002"]
    assert str(newer) in damaged[0][1] and "bytes have changed" in damaged[0][1]
    assert str(older) in damaged[1][1] and "truncated" in damaged[1][1]
    newer.unlink()
    with pytest.raises(DataError, match=f"{file}: missing from the checkpoint; restore it$"):
        checkpoint.verify(newer.parent, "restore it")


def test_a_model_from_an_older_checkpoint_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path / "checkpoints", 1, 2)
    state = tmp_path / "checkpoints" / "step-000002" / checkpoint.STATE
    state.write_text("{}")
    assert checkpoint.found_in(tmp_path) == tmp_path / "checkpoints" / "step-000001"
    assert f"{state}: has 2 bytes" in caplog.text and "step-000001 is used" in caplog.text


def test_what_may_not_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the run would go back to an older checkpoint, or begin again."""
    save(tmp_path / "checkpoints", 1, 2)
    folder, read, listed = tmp_path / "checkpoints", Path.read_bytes, os.listdir

    def refused(path: Path, *, at: Path, otherwise: Callable) -> Any:
        if path == at:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return otherwise(path)

    manifest = folder / "step-000002" / checkpoint.MANIFEST
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda path: refused(path, at=manifest, otherwise=read))
        with pytest.raises(PermissionError):
            checkpoint.newest(folder)
    monkeypatch.setattr(os, "listdir", lambda path: refused(path, at=folder, otherwise=listed))
    with pytest.raises(PermissionError):
        checkpoint.found_in(tmp_path)


def test_a_link_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(target: str, link: Path, *more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", target, str(link))

    monkeypatch.setattr(os, "symlink", refused)
    with pytest.raises(PermissionError) as caught:
        checkpoint.point(tmp_path / "latest", "step-000001")
    assert caught.value.filename == str(tmp_path / "latest")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"state.json": 5}}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-000001" / checkpoint.MANIFEST).write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json: missing or damaged"):
        checkpoint.verify(tmp_path / "step-000001")


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"b\xfcch")
    writer = Writer(folder, keep=1)
    writer.save("step-000001", replace(snapshot(), recipe={"init_from": str(folder)}))
    writer.wait()
    found, damaged = checkpoint.newest(folder)
    assert found is not None and not damaged
    stored = StoredTensors(found)
    assert (
        torch.equal(stored["w"], snapshot().weights["w"])
        and str(folder) == read_json(found / checkpoint.RECIPE)["init_from"]
    )


def test_tensors_that_were_not_saved_there_are_not_read(tmp_path: Path) -> None:
    save(tmp_path, 1)
    copy = tmp_path / "step-000001" / "weights (copy).safetensors"
    copy.write_bytes((tmp_path / "step-000001" / checkpoint.WEIGHTS).read_bytes())
    with pytest.raises(DataError, match=r"weights \(copy\)\.safetensors: is not part of the checkpoint"):
        checkpoint.verify(tmp_path / "step-000001")


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    save(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # as a full disk, the system refuses to write on
    try:
        with pytest.raises(
            DataError, match=r"step-000002: could not be written \(File too large.*step-000001 is intact"
        ) as error:
            save(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-000001"]
    assert checkpoint.newest(tmp_path) == (tmp_path / "step-000001", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        save(disk, 1)
        with pytest.raises(DataError, match="No space left on device.*0 MB are free.*step-000001 is intact"):
            writer = Writer(disk, keep=2)
            writer.save("step-000002", snapshot(2, size=100_000))
            writer.wait()
        assert checkpoint.newest(disk) == (disk / "step-000001", [])
    finally:
        subprocess.run(["umount", disk], check=True)


def test_killed_while_saving(tmp_path: Path) -> None:
    # A process that saves without end is killed at many moments; afterwards every checkpoint there is is whole.
    script = tmp_path / "save.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from pathlib import Path
            sys.path.insert(0, sys.argv[2])
            from tests.train.test_checkpoint import save
            step = 0
            while True:
                step += 1
                save(Path(sys.argv[1]), step, keep=2)
                print(step, flush=True)
            """
        )
    )
    folder = tmp_path / "checkpoints"
    command = [sys.executable, str(script), str(folder), str(Path(__file__).parents[2])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    seen: set[str] = set()
    looks = 0
    while looks < 20 or len(seen) < 4:  # stopped, looked at, and let go on: as good as killed for what lies on disk
        looks += 1
        time.sleep(0.013)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.002)
        found, damaged = checkpoint.newest(folder)
        assert found is not None and not damaged
        seen.add(found.name)
        os.kill(process.pid, signal.SIGCONT)
    process.kill()
    process.wait()
    Writer(folder, keep=2)
    assert not list(folder.glob(".partial-*"))
    for path in folder.glob("step-*"):
        checkpoint.verify(path)


def test_a_copy_that_followed_links_goes_on(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "latest").unlink()
    shutil.copytree(tmp_path / "step-000001", tmp_path / "latest")
    save(tmp_path, 2)
    assert (tmp_path / "latest").is_symlink() and (tmp_path / "latest").resolve().name == "step-000002"


def test_checkpoints_may_lie_on_another_disk(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "disk" / "deep" / "checkpoints"
    run.mkdir()
    (run / PROVENANCE).write_text("{}")
    (elsewhere / "step-000002").mkdir(parents=True)
    (run / "checkpoints").symlink_to(elsewhere)
    checkpoint.point(elsewhere / "latest", "step-000002")
    (tmp_path / "best").symlink_to(run / "checkpoints" / "step-000002")
    for name in ("step-000002", "latest"):
        assert checkpoint.run_of(run / "checkpoints" / name) == run
    (run / "checkpoints").unlink()
    elsewhere.rename(run / "checkpoints")
    assert checkpoint.run_of(tmp_path / "best") == run  # a link to a checkpoint


def test_killed_while_replacing(tmp_path: Path) -> None:
    """What was there before is back, and nothing else is left."""
    save(tmp_path, 1, 2)
    (tmp_path / "step-000001").rename(tmp_path / f"{checkpoint.PARTIAL}step-000001-77-old")
    (tmp_path / f"{checkpoint.PARTIAL}step-000002-77-old").mkdir()
    (tmp_path / f"{checkpoint.PARTIAL}step-000001-77").mkdir()
    (tmp_path / f"{checkpoint.PARTIAL}latest-77").symlink_to("step-000002")
    Writer(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-000001", "step-000002"]
    assert read_json(tmp_path / "step-000001" / checkpoint.STATE) == {"step": 1}
    assert checkpoint.newest(tmp_path) == (tmp_path / "step-000002", [])


def test_a_step_that_is_damaged_twice_is_kept_twice(tmp_path: Path) -> None:
    for _ in range(3):
        save(tmp_path, 1)
        checkpoint.put_aside(tmp_path / "step-000001")
    assert {path.name for path in tmp_path.glob("damaged-*")} == {f"damaged-step-000001{n}" for n in ("", "-1", "-2")}


def test_state_is_readable_json(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert json.loads((tmp_path / "step-000001" / "manifest.json").read_text())["files"].keys() == {
        checkpoint.WEIGHTS,
        checkpoint.CARRIED,
        checkpoint.STATE,
        checkpoint.RECIPE,
    }
