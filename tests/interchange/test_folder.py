"""Model folders are written whole or not at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from encoderlab import load
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import folder, huggingface
from encoderlab.model import Model
from tests.interchange.tiny_models import CONFIGS, make, same_weights


def test_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    model = make(CONFIGS["bert"])
    huggingface.save(model, tmp_path / "out")
    assert (tmp_path / "out").is_symlink() and same_weights(model, load(tmp_path / "disk"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "out"]


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    for save in (folder.save, huggingface.save):
        with pytest.raises(ConfigError, match="out: .*; choose a"):
            save(make(CONFIGS["bert"]), tmp_path / "out")


def test_two_folders_whose_names_begin_alike(tmp_path: Path) -> None:
    """Writing one leaves what another process writes of the other."""

    def fill(aside: Path) -> None:
        folder.save(make(CONFIGS["bert"]), tmp_path / "out")
        (aside / "whole").touch()

    folder.write_whole(tmp_path / "out.int8", fill)
    assert (tmp_path / "out.int8" / "whole").exists()


def test_an_existing_folder_is_not_overwritten(bert: tuple[Model, Path]) -> None:
    with pytest.raises(ConfigError, match="not empty"):
        huggingface.save(*bert)


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    model = make(CONFIGS["bert"])
    with torch.no_grad():
        model.words[3, 4] = float("inf")
    with pytest.raises(DataError, match="not finite"):
        huggingface.save(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_further_files_come_with_the_model_or_neither_does(tmp_path: Path) -> None:
    def write(aside: Path) -> None:
        (aside / "task.json").write_text("{}")

    def killed(aside: Path) -> None:
        write(aside)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.save(make(CONFIGS["bert"]), tmp_path / "out", also=killed)
    assert not list(tmp_path.iterdir())
    folder.save(make(CONFIGS["bert"]), tmp_path / "out", also=write)
    assert (tmp_path / "out" / "task.json").exists() and load(tmp_path / "out").config.family == "bert"


@pytest.mark.parametrize("save", [huggingface.save, folder.save])
def test_a_full_disk_is_named_and_nothing_is_lost(save: Callable[..., Any], tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # as a full disk, the system refuses to write on
    try:
        with pytest.raises(DataError, match=r"out: could not be written .*; check permissions and space"):
            save(make(CONFIGS["bert"]), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_swept_up(tmp_path: Path) -> None:
    def killed(aside: Path) -> None:
        (aside / "half").touch()
        os._exit(9)

    child = os.fork()
    if not child:
        folder.write_whole(tmp_path / "out", killed)
    os.waitpid(child, 0)
    assert list(tmp_path.glob(".out.*.tmp/half"))
    folder.save(make(CONFIGS["bert"]), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_kill_between_the_two_renamings_loses_nothing(tmp_path: Path) -> None:
    model = make(CONFIGS["bert"])
    folder.save(model, tmp_path / "out")
    (tmp_path / "out" / "README.md").write_text("# Mine\n")
    (tmp_path / "out").rename(tmp_path / ".out.1.old")
    with pytest.raises(ZeroDivisionError):
        folder.write_whole(tmp_path / "out", lambda aside: 1 / 0)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # it alone holds the model
    (tmp_path / "out").rename(tmp_path / ".out.1.old")
    folder.save(model, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "README.md").read_text() == "# Mine\n"
