from __future__ import annotations

import logging
from pathlib import Path

import pytest

from encoderlab.interchange import huggingface
from encoderlab.model import Model
from tests.interchange.tiny_models import CONFIGS, make


@pytest.fixture(autouse=True)
def warnings_only(plain_output: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """``caplog`` gets what a user should worry about, and not that a folder from elsewhere has no checksums."""
    monkeypatch.setattr(logging.getLogger("encoderlab"), "level", logging.WARNING)


@pytest.fixture
def bert(tmp_path: Path, unrecorded: None) -> tuple[Model, Path]:
    model = make(CONFIGS["bert"])
    huggingface.save(model, tmp_path / "bert")
    return model, tmp_path / "bert"
