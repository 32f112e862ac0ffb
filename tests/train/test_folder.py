"""The run folder: one holder, one recipe, one data set; provenance; metrics cut back to the checkpoint."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from encoderlab.config import to_dict
from encoderlab.errors import ConfigError, DataError
from encoderlab.recipes import recipe
from encoderlab.train.folder import RunFolder, compare
from encoderlab.train.optim import AdamW
from encoderlab.train.recipe import Execution
from tests.tasks.tiny import tokenizer
from tests.train.toy import RECIPE, run, toy_data


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    held = RunFolder(tmp_path, {}, {})
    script = f"import pathlib, encoderlab.train.folder as f; f.RunFolder(pathlib.Path({str(tmp_path)!r}), {{}}, {{}})"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"is in use by process {os.getpid()}" in other.stderr
    with pytest.raises(ConfigError, match="in use"):
        RunFolder(tmp_path, {}, {})
    held.close()
    RunFolder(tmp_path, {}, {}).close()


def test_another_recipe_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(ConfigError, match=r"optim.lr was 0.0001, now 0.5; seed was 1, now 2\)") as error:
        run(tmp_path, replace(RECIPE, seed=2, optim=AdamW(lr=0.5)))
    assert error.value.code == 2
    with pytest.raises(ConfigError, match='data corpus was "toy", now "other"'):
        run(tmp_path, data=toy_data(hashes={"corpus": "other"}))
    assert all(path.read_bytes() == content for path, content in before.items())
    run(tmp_path, replace(RECIPE, execution=Execution(micro_rows=2)))


def test_a_lost_recipe_is_found_in_a_checkpoint(tmp_path: Path) -> None:
    run(tmp_path)
    recipe, metrics = tmp_path / "recipe.json", (tmp_path / "metrics.jsonl").read_bytes()
    recipe.unlink()
    with pytest.raises(ConfigError, match=r"recipe.json: is missing; every folder in .*checkpoints has a copy"):
        run(tmp_path)
    recipe.write_bytes((tmp_path / "checkpoints" / "latest" / "recipe.json").read_bytes())
    run(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="is not empty and not a run folder .found 'thesis.tex'"):
        run(tmp_path)


def trained(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"split": "train", "step": 3, "losses": {}}\n')


def test_a_start_that_was_refused_does_not_bind_the_folder(tmp_path: Path) -> None:
    """Neither its recipe nor its data; a step of training does."""
    RunFolder(tmp_path, {"seed": 1}, {"corpus": "a"}).close()
    (tmp_path / "metrics.jsonl").write_text('{"split": "valid", "step": 0}\n')
    RunFolder(tmp_path, {"seed": 2}, {"corpus": "b"}).close()
    assert json.loads((tmp_path / "recipe.json").read_text()) == {"seed": 2}
    (session,) = json.loads((tmp_path / "provenance.json").read_text())["sessions"]
    assert session["data"] == {"corpus": "b"}
    trained(tmp_path)
    with pytest.raises(ConfigError, match="another recipe"):
        RunFolder(tmp_path, {"seed": 3}, {"corpus": "b"})


def test_a_run_from_before_a_field_resumes(tmp_path: Path) -> None:
    now = recipe("deberta-v3-tiny")
    RunFolder(tmp_path, now, {}).close()
    before = to_dict(now)
    del before["duplicates"], before["execution"]["tensorboard"]
    (tmp_path / "recipe.json").write_text(json.dumps(before))
    trained(tmp_path)
    with pytest.raises(ConfigError, match=r"another recipe \(seed was 1, now 9\)"):
        RunFolder(tmp_path, replace(now, seed=9), {})
    RunFolder(tmp_path, now, {}).close()
    assert json.loads((tmp_path / "recipe.json").read_text()) == json.loads(json.dumps(to_dict(now)))


def test_a_trained_run_whose_data_are_not_recorded_is_refused(tmp_path: Path) -> None:
    """Else it would go on with a corpus that was replaced."""
    for _ in range(2):  # the second time as after a kill at the start
        RunFolder(tmp_path, {"seed": 1}, {"corpus": "one"}).close()
        (tmp_path / "provenance.json").unlink()
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match="provenance.json: is missing; restore the file"):
        RunFolder(tmp_path, {"seed": 1}, {"corpus": "two"})


@pytest.mark.parametrize(
    "text", ["{}", '{"sessions": 3}', '{"sessions": []}', '{"sessions": [{}]}', '{"sessions": [{"data": 3}]}']
)
def test_provenance_without_data_is_named(text: str, tmp_path: Path) -> None:
    RunFolder(tmp_path, {"seed": 1}, {}).close()
    (tmp_path / "provenance.json").write_text(text)
    with pytest.raises(ConfigError, match="provenance.json: names no data; restore the file"):
        RunFolder(tmp_path, {"seed": 1}, {})


@pytest.mark.parametrize("file", ["recipe.json", "provenance.json"])
@pytest.mark.parametrize("text", ["", '{"seed"', "3"])
def test_a_damaged_record_is_named(file: str, text: str, tmp_path: Path) -> None:
    RunFolder(tmp_path, {"seed": 1}, {}).close()
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=f"{file}: not a JSON object; restore the file"):
        RunFolder(tmp_path, {"seed": 1}, {})


def test_a_folder_that_cannot_be_written() -> None:
    for place in ("/proc/run", "/sys/run", "/dev/null/run"):
        with pytest.raises(ConfigError, match=f"{place}: cannot be written .*permissions, or choose another") as error:
            run(Path(place))
        assert error.value.code == 2


@pytest.mark.parametrize("file", ["run.log", "metrics.jsonl"])
def test_a_file_of_the_run_that_cannot_be_written(file: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    (tmp_path / file).mkdir()
    with pytest.raises(ConfigError, match="cannot be written .*permissions, or choose another"):
        RunFolder(tmp_path, {}, {}).open_metrics(0, 0, None)
    (tmp_path / file).rmdir()
    RunFolder(tmp_path, {}, {}).close()  # nobody holds it


@pytest.mark.parametrize("file", ["recipe.json", "provenance.json", "tokenizer.json"])
def test_a_session_killed_while_it_claimed_the_folder(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one takes the folder, and sweeps up what was written aside."""

    def killed(source: Path, target: Path) -> None:
        if Path(target).name == file:
            os._exit(9)
        os.rename(source, target)

    child = os.fork()
    if not child:
        monkeypatch.setattr(os, "replace", killed)
        RunFolder(tmp_path, {"seed": 1}, {}).keep(tokenizer())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list(tmp_path.rglob(f".{file}.*.tmp"))
    RunFolder(tmp_path, {"seed": 1}, {}).close()
    assert not list(tmp_path.rglob(".*.tmp"))
    assert json.loads((tmp_path / "recipe.json").read_text()) == {"seed": 1}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        run(tmp_path / "run")


def test_provenance(tmp_path: Path) -> None:
    run(tmp_path)
    (session,) = json.loads((tmp_path / "provenance.json").read_text())["sessions"]
    assert session["data"] == {"corpus": "toy"}
    assert {"encoderlab", "python", "torch", "numpy"} <= session["versions"].keys()
    assert session["hardware"]["threads"] == 1
    assert json.loads((tmp_path / "recipe.json").read_text())["optim"]["kind"] == "adamw"
    assert "validation" in (tmp_path / "run.log").read_text()


def test_metrics_end_where_the_checkpoint_ends(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {}, {})
    folder.open_metrics(0, 0, None)
    folder.write_metrics({"step": 1, "loss": float("nan"), "losses": {"a": float("inf"), "b": 0.1}})
    state = folder.metrics_state()
    folder.write_metrics({"step": 2})
    folder.close()
    folder = RunFolder(tmp_path, {}, {})
    folder.open_metrics(1, *state.values())
    folder.write_metrics({"step": 3})
    folder.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "loss": None, "losses": {"a": None, "b": 0.1}}, {"step": 3}]


def test_a_full_disk_is_named_and_the_folder_let_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path, {}, {})
    folder.open_metrics(0, 0, None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # as a full disk, the system refuses to write on
    try:
        with pytest.raises(DataError, match=r"metrics.jsonl: could not be written \(File too large\); make room"):
            folder.write_metrics({"step": "1" * 200})
        logging.getLogger("encoderlab").warning("2" * 200)
        folder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    RunFolder(tmp_path, {}, {}).close()
    assert "Logging error" not in capsys.readouterr().err


def test_a_run_on_a_full_disk_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    RunFolder(tmp_path, {}, {}).close()
    with monkeypatch.context() as patched:
        patched.setattr("encoderlab.train.folder.write_json", write)
        with pytest.raises(DataError, match=r"cannot be written \(No space left on device\); make room and run again$"):
            RunFolder(tmp_path, {}, {})
    RunFolder(tmp_path, {}, {}).close()


def test_compare() -> None:
    before = {"a": {"b": 1, "c": [1, 2]}, "execution": {"compile": False}, "log_every": 1}
    assert compare(before, {"a": {"b": 1, "c": [1, 2]}, "execution": {"compile": True}, "log_every": 5}) == []
    assert compare(before, {"a": {"b": 2}, "d": None}) == ["a.b was 1, now 2", "a.c was [1, 2], now null"]


def test_another_recipe_by_name_is_said_first_and_the_rest_counted(tmp_path: Path) -> None:
    RunFolder(tmp_path, {"name": "one"} | {f"a{n}": n for n in range(9)}, {}).close()
    trained(tmp_path)
    with pytest.raises(ConfigError, match=r'name was "one", now "two"; a0 was .*; a3 was 3, now null; 5 more\)'):
        RunFolder(tmp_path, {"name": "two"}, {})
