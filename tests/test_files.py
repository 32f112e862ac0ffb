"""Locks on files and folders."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab import files, sealed
from encoderlab.errors import ConfigError
from encoderlab.files import check_new, json_line, locked, replace_file


def test_one_holder(tmp_path: Path) -> None:
    script = f"import pathlib, encoderlab.files as f; f.locked(pathlib.Path({str(tmp_path)!r})).__enter__()"
    with locked(tmp_path):
        with pytest.raises(BlockingIOError), locked(tmp_path):
            pass
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert "BlockingIOError" in other.stderr
    with locked(tmp_path):
        pass


def test_a_new_folder_is_absent_or_empty(tmp_path: Path) -> None:
    check_new(tmp_path / "new")
    check_new(tmp_path)
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="exists and is not empty; choose another folder"):
            check_new(taken)


@pytest.mark.parametrize("held", ["file", "folder"])
def test_temporary_files_of_killed_processes_are_removed(held: str, tmp_path: Path) -> None:
    """Those of running processes, and files with other names, stay."""
    done = subprocess.Popen(["true"])
    done.wait()
    running = os.getppid()
    for name in ("a[1].txt", "b"):
        for pid in (done.pid, os.getpid(), 10**30, running):
            (tmp_path / f".{name}.{pid}.tmp").touch()
    (tmp_path / f".model.{done.pid}.tmp").mkdir()
    (tmp_path / f".model.{done.pid}.tmp" / f".a.{done.pid}.tmp").touch()
    others = {".a[1].txt.old.tmp", f".b.{running}.tmp", f".a[1].txt.{running}.tmp", "b.1.tmp"}
    for name in others:
        (tmp_path / name).touch()
    with files.held_file(tmp_path / "a[1].txt") if held == "file" else files.held_folder(tmp_path):
        pass
    left = {path.name for path in tmp_path.iterdir()} - others
    kept = {f".b.{pid}.tmp" for pid in (done.pid, os.getpid(), 10**30)} | {f".model.{done.pid}.tmp"}
    assert left == (kept if held == "file" else set())


def test_what_cannot_be_written_has_the_name_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "nowhere" / "a.txt"):
        with pytest.raises(OSError) as error, replace_file(path) as file:
            file.write(b"x")
        assert error.value.filename == str(path) and error.value.filename2 is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_has_the_name_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)  # as a file system does that became read-only
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error, replace_file(tmp_path / "a.txt") as file:
            file.write(b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.filename == str(tmp_path / "a.txt")


def no_flock(*args: Any) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("system", ["windows", "network"])
def test_without_locks_the_work_goes_on_and_says_so(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from encoderlab.train.folder import RunFolder

    if system == "windows":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr("fcntl.flock", no_flock)
    with caplog.at_level(logging.WARNING, "encoderlab"), locked(tmp_path):
        RunFolder(tmp_path, {}, {}).close()
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"{place}: cannot be locked" for place in (tmp_path, tmp_path / ".lock")
    ]


def test_the_package_imports_without_modules_that_windows_lacks() -> None:
    code = (
        "import sys; sys.modules.update(fcntl=None, resource=None)\n"
        "import encoderlab.commands.quickstart_stages, encoderlab.corpus.build, encoderlab.train.folder"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_all_json_is_read_by_a_strict_parser(tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]) -> None:
    """Null for NaN and infinities, which JSON does not have; a record with them has the checksum of what is written."""
    line = json_line(value)
    read = json.loads(line, parse_constant=pytest.fail)
    assert read == files.finite(value) and line.count("\n") == 1
    path = tmp_path_factory.getbasetemp() / "record.json"
    sealed.write_record(path, value)
    written = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert written.pop(sealed.CHECKSUM) == sealed.digest(written)
