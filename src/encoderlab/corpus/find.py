"""Files, folders and globs to the sources of a corpus."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from encoderlab.corpus.manifest import COUNTS, MANIFEST
from encoderlab.corpus.opening import errors_of
from encoderlab.corpus.output import MERGE, PLAN, WORK
from encoderlab.corpus.sources import SUFFIXES, EmptyFile, Reading, Source, format_of, inspect_source
from encoderlab.errors import ConfigError, DataError


def find_sources(patterns: Sequence[str], reading: Reading) -> list[Source]:
    """Files, folders (searched to any depth) and globs, in the order given, the files of a folder or glob by name.

    A file that is named is read whatever it is called; within folders only names with a known suffix count, and what is
    hidden, empty, or part of a corpus is passed over. Links to folders are followed.

    Raises:
        ConfigError: no pattern is given.
        DataError: nothing there, an empty file, a folder without readable files or with a link to nothing, or binary
            data.
    """
    if not patterns:
        raise ConfigError("no source; give files, folders or globs, for example: encoderlab corpus build wiki.txt.gz")
    sources: dict[tuple[Path, str | None], Source] = {}
    for pattern in map(str, patterns):
        folder = os.path.isdir(os.path.expanduser(pattern))
        found = list(_expand(pattern, reading))
        empty = 0
        for source in found:
            key = (source.path.resolve(), source.member)
            try:
                sources[key] = sources.get(key) or inspect_source(source, reading)
            except EmptyFile:
                if not folder and source.member is None:
                    raise
                empty += 1
        if empty == len(found):
            raise DataError(f"{pattern}: its files are empty ({empty}); give files with text")
    return list(sources.values())


def _expand(pattern: str, reading: Reading) -> Iterator[Source]:
    """The sources that a path, a folder or a glob stands for.

    Raises:
        DataError: there are none, or the folder is a corpus.
    """
    path = Path(os.path.expanduser(pattern))  # unlike Path.expanduser it takes a name such as ~draft.txt as it is
    if path.is_dir():
        if _is_corpus(path):
            raise DataError(f"{path}: is a corpus already; give the text that another is to be built of")
        files = _files_below(path)
        found = [item for item in files if format_of(item.name) and item.stat().st_size]
        if not found:
            known = f"{len(files)} files, none of {' '.join(SUFFIXES)}"
            raise DataError(f"{path}: a folder without readable files ({known}); give the files by name: '{path}/*'")
        for item in found:
            yield from _members(item, reading)
    elif path.exists():
        yield from _members(path, reading)
    elif glob.has_magic(pattern):
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        found = [item for item in found if item.is_file()]
        if not found:
            raise DataError(f"{pattern}: no file matches; check the pattern (** stands for any folders)")
        for item in found:
            yield from _members(item, reading)
    else:
        raise DataError(f"{pattern}: no such file or folder; give existing files, folders or globs")


def _is_corpus(folder: Path) -> bool:
    """Whether a corpus, or a part of one, lies in ``folder``, or is being built there."""
    if (folder / MANIFEST).exists() and (folder / COUNTS).exists():
        return True
    for plan in (folder / PLAN, folder / WORK / PLAN, folder / WORK / MERGE):
        with contextlib.suppress(OSError, ValueError, TypeError):
            if "num_shards" in json.loads(plan.read_bytes()):
                return True
    return False


def _files_below(folder: Path) -> list[Path]:
    """The files below ``folder`` that are neither hidden nor in a corpus, by name; also behind links to folders, each
    folder once."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None

    found: list[Path] = []
    seen = set()
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(place)) in seen or _is_corpus(Path(place)):
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place, name) for name in names if not name.startswith(".")]
    for item in found:
        if not item.exists():
            raise DataError(f"{item}: a link to {os.readlink(item)}, which is missing; fetch that, or delete the link")
    return sorted(item for item in found if item.is_file())


def _members(path: Path, reading: Reading) -> Iterator[Source]:
    if not path.is_file():
        raise DataError(f"{path}: a pipe or a device, which cannot be read twice; write it to a file first")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; give a file with text")
    if path.suffix.lower() != ".zip":
        yield Source(path=path, format=reading.format or format_of(path.name) or "text", name=str(path))
        return
    with errors_of(str(path)), zipfile.ZipFile(path) as archive:
        members = {item.filename: item.file_size for item in archive.infolist() if not item.is_dir() and item.file_size}
    known = sorted(name for name in members if format_of(name) and "__MACOSX" not in name)
    if not known:
        raise DataError(f"{path}: none of the {len(members)} files in the archive ends in {' '.join(SUFFIXES)}")
    for name in known:
        kind = reading.format or format_of(name) or "text"
        yield Source(path=path, format=kind, member=name, name=f"{path}!{name}", member_bytes=members[name])
