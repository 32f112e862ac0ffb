"""Change a Hugging Face folder, and expect that it is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from torch import Tensor

from encoderlab import load
from encoderlab.errors import DataError

WEIGHTS = "model.safetensors"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    safetensors.torch.save_file(change(safetensors.torch.load_file(folder / WEIGHTS)), folder / WEIGHTS)


def configure(folder: Path, **fields: Any) -> None:
    data = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(data))


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
