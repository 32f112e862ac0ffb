"""Read minimal pairs from files: JSON lines as in BLiMP and ZhoBLiMP, CSV, and text with a pair on two lines."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from encoderlab.errors import DataError
from encoderlab.records.opening import COMPRESSED
from encoderlab.records.reading import SEPARATORS
from encoderlab.seeds import generator
from encoderlab.tasks.data.examples import Remarks
from encoderlab.tasks.data.records import check_once, columns, dialect, lines, records, rows, starts_with, suffix

KINDS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".csv", ".tsv", ".txt")
SENTENCES = (
    ("sentence_good", "sentence_bad"), ("good_sentence", "bad_sentence"), ("good", "bad"), ("sen", "wrong_sen"),
    ("grammatical", "ungrammatical"), ("acceptable", "unacceptable"), ("correct", "incorrect"),
)  # fmt: skip
PARADIGM = ("UID", "paradigm")
PHENOMENON = ("phenomenon", "linguistics_term", "field")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences of which the first is acceptable; ``place`` is file and line."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    place: str


def find(places: Sequence[Path]) -> list[Path]:
    """The files of pairs in files and folders, each folder's in the order of their names.

    Raises:
        DataError: no such file, a folder without files of pairs, or a file that is given twice.
    """
    paths: list[Path] = []
    for place in places:
        if not place.exists():
            raise DataError(f"{place}: no such file or folder; give files of minimal pairs, such as BLiMP's .jsonl")
        files = (path for path in sorted(place.rglob("*")) if path.is_file() and suffix(path) in KINDS)
        shown = [path for path in files if "/." not in f"/{path.relative_to(place).as_posix()}"]
        inside = shown if place.is_dir() else [place]
        if not inside:
            raise DataError(f"{place}: has no file of pairs ({', '.join(KINDS)}); give a folder with such files")
        paths += inside
    times = Counter(os.path.abspath(path) for path in paths)
    if twice := next((path for path in paths if times[os.path.abspath(path)] > 1), None):
        raise DataError(f"{twice}: given twice, so its pairs would count twice; give each file once")
    return paths


def read_all(files: Sequence[Path], *, bad_first: bool = False) -> Iterator[Pair]:
    """The pairs of all files, as a stream: see :func:`read`. Files of one name are told apart by their folders."""
    for path, name in zip(files, _names(files), strict=True):
        yield from read(path, name, bad_first=bad_first)


def _names(files: Sequence[Path]) -> list[str]:
    """The files' names without suffix, with as many folders as tell those of one name apart."""
    places = [(*Path(os.path.abspath(path)).parent.parts, _stem(path)) for path in files]
    named: dict[str, set[tuple[str, ...]]] = {}
    for place in places:
        named.setdefault(place[-1], set()).add(place)
    depths = {
        name: next(n for n in itertools.count(1) if len({place[-n:] for place in same}) == len(same))
        for name, same in named.items()
    }
    return ["/".join(place[-depths[place[-1]] :]) for place in places]


def _stem(path: Path) -> str:
    name = path.name.removesuffix(path.suffix) if path.suffix.lower() in COMPRESSED else path.name
    return Path(name).stem


def read(path: Path, name: str | None = None, *, bad_first: bool = False) -> Iterator[Pair]:
    """The pairs of one file, as a stream.

    Records have ``sentence_good`` and ``sentence_bad`` (or other names of :data:`SENTENCES`), and may have a paradigm
    (``UID``) and a phenomenon (``phenomenon``, ``linguistics_term``). Other text has a sentence per line, without tabs,
    the acceptable one of each pair first (``bad_first``: second), and may have empty lines between pairs. The paradigm
    of a pair without one is ``name`` (the file's), with its phenomenon, because a paradigm is of one phenomenon.

    Raises:
        DataError: a field is missing, a sentence is empty or not text, a pair is not complete, a row of a table has
            more or fewer columns than the header, or is in a text; with file and line.
    """
    kind = suffix(path)
    stem = name or _stem(path)
    if kind in (".csv", ".tsv"):
        yield from (_of_record(fields, stem, path, row) for row, fields in _of_table(path))
    elif kind in KINDS[:5] or starts_with(path, "{"):
        yield from (_of_record(record.fields, stem, path, record.row) for record in records(path))
    else:
        for first, second, place in _on_two_lines(path):
            good, bad = (second, first) if bad_first else (first, second)
            yield Pair(good, bad, stem, "", place)


def _of_table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and fields of every row. None is left out or cut, because each counts."""
    remarks = Remarks(path)
    names = columns(path, remarks)
    check_once(path, names, [name for known in (*SENTENCES, PARADIGM, PHENOMENON) for name in known])
    style = dialect(path, remarks)
    for row, cells in islice(rows(path, style), 1, None):
        if len(cells) != len(names):
            raise DataError(
                f"{path}:{row}: number of columns {len(cells)}, expected {len(names)} as in the header; correct "
                f"the row (a sentence with a {SEPARATORS[style.separator]} needs quotes)"
            )
        yield row, dict(zip(names, cells, strict=True))


def _of_record(fields: Mapping[str, Any], stem: str, path: Path, row: int) -> Pair:
    place = f"{path}:{row}"
    good, bad = next((names for names in SENTENCES if names[0] in fields), SENTENCES[0])
    for name in (good, bad):
        if name not in fields:
            shown = ", ".join(map(str, fields))[:120]
            raise DataError(
                f"{place}: no field {name!r}; a pair has {good} and {bad}, this record has {shown}; correct the record"
            )
        if not isinstance(fields[name], str) or not fields[name].strip():
            raise DataError(
                f"{place}: {name} is {fields[name]!r:.60}, expected a sentence; complete or remove the pair"
            )
    phenomenon = next((str(fields[name]) for name in PHENOMENON if fields.get(name) not in (None, "")), "")
    of_file = f"{stem} {phenomenon}" if phenomenon else stem
    paradigm = next((str(fields[name]) for name in PARADIGM if fields.get(name) not in (None, "")), of_file)
    return Pair(fields[good], fields[bad], paradigm, phenomenon, place)


def _on_two_lines(path: Path) -> Iterator[tuple[str, str, str]]:
    """The two sentences of every pair, and its place."""
    first: str | None = None
    row = 0
    for row, line in lines(path):
        if "\t" in line.strip() or SENTENCES[0][0] in line:
            raise DataError(
                f"{path}:{row}: is a row of a table ({line.strip()!r:.60}), expected a sentence; call the file .tsv or "
                ".csv, with the columns sentence_good and sentence_bad, or write one sentence per line"
            )
        if first is None:
            first = line if line.strip() else None
        elif line.strip():
            yield first, line, f"{path}:{row - 1}"
            first = None
        else:
            raise DataError(f"{path}:{row}: is empty, expected the second sentence of a pair; complete the pair")
    if first is not None:
        raise DataError(f"{path}:{row}: the second sentence of the last pair is missing; complete the pair")


def sample(pairs: Sequence[Pair], size: int, *, seed: int = 0) -> list[Pair]:
    """``size`` of the pairs, in order, equally many of each paradigm if it has enough.

    Seed, paradigm and the order within it determine the choice.
    """
    members: dict[str, list[int]] = {}
    for number, pair in enumerate(pairs):
        members.setdefault(pair.paradigm, []).append(number)
    turns = [
        (turn, place, numbers[chosen])
        for place, (name, numbers) in enumerate(members.items())
        for turn, chosen in enumerate(generator(seed, "pairs", name).permutation(len(numbers)).tolist())
    ]
    return [pairs[number] for number in sorted(number for _, _, number in sorted(turns)[:size])]
