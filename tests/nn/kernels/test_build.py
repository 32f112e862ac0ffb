"""The compiled library: built once, checked before it is loaded, and left out with one line where it fails."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from encoderlab.errors import ConfigError
from encoderlab.nn.kernels import build
from tests.nn.twins import compiled


def test_kernels_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("ENCODERLAB_KERNELS", "off")
    assert build.load.__wrapped__() is None
    monkeypatch.setenv("ENCODERLAB_KERNELS", "banana")
    with pytest.raises(ConfigError, match="ENCODERLAB_KERNELS is 'banana'; set it to off"):
        build.load.__wrapped__()


def test_library_is_compiled_once_for_many_processes(tmp_path, monkeypatch):
    """By a compiler command with arguments, as ``ccache g++`` in CXX."""
    calls = tmp_path / "calls"
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho call >> {calls}\nsleep 0.3\nfor last; do :; done\ntouch $last\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        made = {future.result() for future in [pool.submit(build.compile_library, f"env {compiler}") for _ in range(4)]}
    assert len(made) == 1 and made.pop().exists()
    assert calls.read_text() == "call\n"


@compiled
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"\x7fELF cut short",
        lambda data: data[: len(data) // 2],
        lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    ],
    ids=["emptied", "replaced", "cut", "flipped"],
)
def test_a_damaged_library_is_compiled_again(damage, tmp_path, monkeypatch):
    """As a machine leaves it that stops while it writes; ``g++`` here copies what is there already."""
    good = build.load()._name
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\ncp {shlex.quote(good)} "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(compiler))
    library = build.compile_library(str(compiler))
    library.write_bytes(damage(library.read_bytes()))  # to load a part of it would end the process with SIGBUS
    library = build.load.__wrapped__()
    assert library is not None and library.encoderlab_dropout


@compiled
@pytest.mark.parametrize("how", ["cut", "zeros"])
def test_a_library_that_changes_while_it_is_used_changes_nothing(how, tmp_path):
    """Another process cuts or overwrites the file in the cache folder; tried in a process of its own."""
    library = Path(build.load()._name)
    (tmp_path / "kernels").mkdir()
    shutil.copy(library, tmp_path / "kernels")
    content = "b''" if how == "cut" else "bytes(path.stat().st_size)"
    code = (
        "import encoderlab, torch; from pathlib import Path; from encoderlab.nn.kernels import build\n"
        f"path = Path(build.load()._name); path.write_bytes({content})\n"
        "states = encoderlab.build('bert-tiny').eval()(torch.ones(1, 7, dtype=torch.long))\n"
        "print(path.parent.parent, states.last.isfinite().all().item())"
    )
    environment = os.environ | {"ENCODERLAB_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == f"{tmp_path} True\n", done.stderr


@pytest.mark.parametrize("fault", ["quote", "home"])
def test_what_is_wrong_with_the_environment_leaves_the_plain_twins(fault, tmp_path, monkeypatch, caplog):
    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")  # of a user without entry in a container

    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))
    if fault == "quote":
        monkeypatch.setenv("CXX", "g++ 'unclosed")
    else:
        monkeypatch.setattr(Path, "expanduser", no_home)
    with caplog.at_level(logging.WARNING):
        assert build.load.__wrapped__() is None
    assert len(caplog.records) == 1 and "plain kernels run" in caplog.records[0].getMessage()


def test_a_compiler_that_fails_leaves_the_plain_twins_and_one_line(tmp_path, monkeypatch, caplog):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'ops.cpp:1: error: no' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert build.load.__wrapped__() is None
    assert len(caplog.records) == 1 and "error: no" in caplog.records[0].getMessage()
