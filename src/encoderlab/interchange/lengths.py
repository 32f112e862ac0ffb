"""The longest text that the files of a model's folder state, in tokens, special ones included."""

from __future__ import annotations

from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.interchange.files import read_json
from encoderlab.interchange.folder import write_fields

TOKENIZER = "tokenizer_config.json"
ENDLESS = 10**9  # tokens; transformers writes 1e30 where a tokenizer has no longest text


def stated(folder: Path) -> int | None:
    """By sentence-transformers' file, else by the tokenizer's; None if neither states a length.

    Raises:
        DataError: the file is damaged.
    """
    longest = of_sentences(folder)
    return of_tokenizer(folder) if longest is None else longest


def of_sentences(folder: Path) -> int | None:
    """By sentence-transformers' file.

    Raises:
        DataError: it is damaged.
    """
    path = sentences_file(folder)
    return None if path is None else _checked(path, "max_seq_length")


def sentences_file(folder: Path) -> Path | None:
    """sentence-transformers' file with the longest text, which is named after a family in old folders."""
    return min(folder.glob("sentence_*_config.json"), default=None)


def of_tokenizer(folder: Path) -> int | None:
    """By the tokenizer's file.

    Raises:
        DataError: it is damaged.
    """
    path = folder / TOKENIZER
    return _checked(path, "model_max_length") if path.is_file() else None


def _checked(path: Path, name: str) -> int | None:
    longest = read_json(path).get(name)
    if isinstance(longest, (int, float)) and longest > ENDLESS:
        return None
    if longest is not None and (type(longest) is not int or longest < 2):
        raise DataError(f"{path}: {name} {longest!r}, expected a number of tokens from 2; correct it")
    return longest


def copy(folder: Path, out: Path) -> None:
    """State the longest text of the model in ``folder`` in the tokenizer's file in ``out``, unless that states less."""
    path, longest = out / TOKENIZER, stated(folder)
    if longest is not None and path.is_file():
        write_fields(path, read_json(path) | {"model_max_length": min(longest, of_tokenizer(out) or longest)})
