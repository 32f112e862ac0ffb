from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def warnings_only(plain_output: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """``caplog`` gets what a user should worry about, and not that a folder from elsewhere has no checksums."""
    monkeypatch.setattr(logging.getLogger("encoderlab"), "level", logging.WARNING)
