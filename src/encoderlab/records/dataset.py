"""Folders that Hugging Face's ``datasets`` writes (``save_to_disk``): Arrow files, one folder or one per split."""

from __future__ import annotations

from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.files import read_json

SPLITS, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
_REMEDY = "save the dataset again (save_to_disk)"


def is_dataset(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote the folder: splits by name, or one of them."""
    return (folder / SPLITS).is_file() or ((folder / STATE).is_file() and (folder / INFO).is_file())


def dataset_files(folder: Path) -> dict[str, list[Path]]:
    """The Arrow files of a dataset by split, in the order of the rows; one without splits is ``train``.

    Raises:
        DataError: a damaged or missing file, or rows that were chosen but not written.
    """
    if not (folder / SPLITS).is_file():
        return {"train": _files(folder)}
    names = read_json(folder / SPLITS, _REMEDY).get("splits")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{folder / SPLITS}: names no splits; {_REMEDY}")
    return {name: _files(folder / name) for name in names}


def _files(folder: Path) -> list[Path]:
    state = read_json(folder / STATE, _REMEDY)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(f"{folder}: a choice of rows of another dataset; save it after flatten_indices()")
    entries = state.get("_data_files")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{folder / STATE}: names no data files; {_REMEDY}")
    files = [folder / str(entry.get("filename")) for entry in entries]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise DataError(f"{missing}: no such file, which {folder / STATE} names; {_REMEDY}")
    return files
