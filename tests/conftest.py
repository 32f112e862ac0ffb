from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():  # before anything imports Triton: its kernels run on the CPU, in its interpreter
    os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell starts background jobs so, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data and golden numbers that lies beside a developer's checkout."""
    path = Path(__file__).resolve().parents[1].parent / "shared"
    if not (path / "golden" / "README.md").is_file():  # any folder may have that name
        pytest.skip("reference data (../shared) is not present")
    return path


@pytest.fixture(autouse=True)
def plain_output() -> None:
    """Each test starts without the --json and -v of an earlier one in the same process."""
    from encoderlab.commands import terminal

    terminal.configure(json=False, verbose=False)


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model folders without checksums, as other libraries write them, for tests that change their files."""
    from encoderlab.interchange import checksums

    monkeypatch.setattr(checksums, "write", lambda folder: None)
