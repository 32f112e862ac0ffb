"""Folders of Hugging Face's ``datasets``: those of ``save_to_disk`` (Arrow files), and files named by their split, as
on the Hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.files import read_json
from encoderlab.records.opening import INFO, RESTORE

SPLITS, STATE = "dataset_dict.json", "state.json"
_SPLIT_NAMES = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test", "testing", "eval", "evaluation"},
}
_SUFFIXES = (".parquet", ".json", ".jsonl", ".csv", ".tsv")  # of the data files of a data set on the Hub


def is_dataset(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote the folder: splits by name, or one of them."""
    return (folder / SPLITS).is_file() or ((folder / STATE).is_file() and (folder / INFO).is_file())


def labelled_files(folder: Path) -> dict[str, list[Path]]:
    """The data files of a folder by split: those of :func:`dataset_files`, or those that are named by their split as on
    the Hub. Empty where the folder has neither form.
    """
    if is_dataset(folder):
        return dataset_files(folder)
    if not folder.is_dir():
        return {}
    files = [path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file()]
    inside = [path.relative_to(folder) for path in files]  # the folder's own name says nothing of its files
    splits = splits_of(path for path in inside if not any(part.startswith(".") for part in path.parts))
    files_by_split = {split: [folder / path for path in paths] for split, paths in splits.items()}
    return files_by_split if "train" in files_by_split or "test" in files_by_split else {}


def dataset_files(folder: Path) -> dict[str, list[Path]]:
    """The Arrow files of a dataset by split, in the order of the rows; one without splits is ``train``.

    Raises:
        DataError: a damaged or missing file, or a selection of rows that was not written out.
    """
    if not (folder / SPLITS).is_file():
        return {"train": _files(folder)}
    names = read_json(folder / SPLITS, RESTORE).get("splits")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{folder / SPLITS}: names no splits; {RESTORE}")
    return {name: _files(folder / name) for name in names}


def splits_of(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Data files by split, from their names or those of their folders, as ``datasets`` reads them on the Hub:
    ``data/train-00000-of-00002.parquet``, ``test.jsonl``, ``validation/part.json``. Empty if one of them names no
    split.
    """
    splits: dict[str, list[Path]] = {}
    for file in sorted(files):
        words = [set(re.split(r"[^a-z]+", part.lower())) for part in (file.name, file.parent.name)]
        named = next((split for part in words for split, names in _SPLIT_NAMES.items() if part & names), None)
        if named is None:
            return {}
        splits.setdefault(named, []).append(file)
    return splits


def _files(folder: Path) -> list[Path]:
    state = read_json(folder / STATE, RESTORE)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(f"{folder}: a selection of rows of another dataset; save it after flatten_indices()")
    entries = state.get("_data_files")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{folder / STATE}: names no data files; {RESTORE}")
    files = [folder / str(entry.get("filename")) for entry in entries]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise DataError(f"{missing}: no such file, which {folder / STATE} names; {RESTORE}")
    return files
