"""Reading a model from any folder that this project understands."""

from __future__ import annotations

import os
from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.interchange import folder as ours
from encoderlab.model import Model


def load_pair(path: str | os.PathLike[str]) -> tuple[Model, Model | None]:
    """The model in ``path`` and, where two networks were trained together, its generator."""
    folder = Path(path)
    for candidate in (folder, folder / "model"):
        if ours.is_ours(candidate / "discriminator"):
            return ours.load(candidate / "discriminator"), ours.load(candidate / "generator")
    return load(folder), None


def load(path: str | os.PathLike[str]) -> Model:
    """The model in ``path``: a folder of ours, a run folder (its ``model/``), or a Hugging Face folder.

    Raises:
        DataError: the folder is missing, broken, or of a kind that is not supported.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give a model folder, or a run folder with model/")
    for candidate in (folder, folder / "model", folder / "discriminator", folder / "model" / "discriminator"):
        if ours.is_ours(candidate):
            return ours.load(candidate)
    from encoderlab.interchange import huggingface

    return huggingface.load(folder)
