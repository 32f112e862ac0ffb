"""Files, folders and globs to the sources of a corpus."""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from encoderlab.corpus.manifest import COUNTS, MANIFEST, TOKENIZER
from encoderlab.corpus.output import ASSEMBLY, MERGE, PIECES, PLAN, WORK
from encoderlab.corpus.sealed import SEAL
from encoderlab.corpus.sources import SUFFIXES, EmptyFile, Reading, Source, format_of, inspect_source
from encoderlab.errors import ConfigError, DataError
from encoderlab.records.dataset import dataset_files, is_dataset, splits_of
from encoderlab.records.opening import errors_of, refuse_pipe
from encoderlab.storage.places import find, identity, info, is_folder, url_of
from encoderlab.storage.streams import open_file

log = logging.getLogger(__name__)

DATASETS = "hf://datasets/"
_KINDS = {  # kinds of files that are not read, by suffix; for others, the suffix is the kind
    "PDF": ".pdf",
    "HTML": ".html .htm .xhtml .mhtml",
    "images": ".png .jpg .jpeg .gif .bmp .tif .tiff .webp .svg .ico .heic",
    "code": ".py .ipynb .js .ts .java .c .h .cc .cpp .hpp .cs .go .rs .rb .php .sh .r .sql .css .m .jl .kt .swift .lua",
    "office documents": ".doc .docx .odt .rtf .ppt .pptx .xls .xlsx .ods .odp .epub",
    "audio and video": ".mp3 .wav .flac .ogg .mp4 .avi .mkv .mov .webm",
    "archives": ".tar .tgz .tbz .txz .7z .rar .jar",
}


def find_sources(patterns: Sequence[str], reading: Reading) -> list[Source]:
    """Files, folders (searched to any depth) and globs, in the order given, the files of a folder or glob by name.

    A file that is named is read whatever its suffix; within folders only files with a known suffix are read, and those
    that are hidden, empty, or part of a corpus are left out. Links to folders are followed.

    Raises:
        ConfigError: no pattern is given.
        DataError: no such file, an empty file, a folder without readable files or with a broken link, or binary data.
    """
    if not patterns:
        raise ConfigError("no source; give files, folders or globs, for example: encoderlab corpus build wiki.txt.gz")
    sources: dict[tuple[str, str | None], Source] = {}
    for pattern in map(str, patterns):
        url = url_of(pattern)
        folder = os.path.isdir(os.path.expanduser(pattern)) if url is None else is_folder(url)
        candidates = [source for item in _files_of(pattern) for source in _members(item, reading)]
        empty = 0
        for source in candidates:
            place = (identity(source.path), source.member)
            try:
                sources[place] = sources.get(place) or inspect_source(source, reading)
            except EmptyFile:
                if not folder and source.member is None:
                    raise
                empty += 1
        if empty == len(candidates):
            raise DataError(f"{pattern}: its files are empty ({empty}); give files with text")
    return list(sources.values())


def _files_of(pattern: str) -> list[Path]:
    """The files of a path, a folder or a glob.

    Raises:
        DataError: there are none, or the folder is a corpus.
    """
    path = Path(os.path.expanduser(pattern))  # unlike Path.expanduser it takes a name such as ~draft.txt as it is
    if (url := url_of(pattern)) is not None:
        return _at_url(url)
    if path.is_dir():
        if _is_corpus(path):
            raise DataError(f"{path}: is a corpus already; give files of text")
        files = _files_below(path)
        readable = [item for item in files if format_of(item.name) and item.stat().st_size]
        if not readable:
            known = f"{len(files)} files, none of {' '.join(SUFFIXES)}"
            raise DataError(f"{path}: a folder without readable files ({known}); give the files by name: '{path}/*'")
        _say_passed_over(str(path), [item.name for item in files], len(readable))
        return readable
    if path.exists():
        return [path]
    if not glob.has_magic(pattern):
        raise DataError(f"{pattern}: no such file or folder; give existing files, folders or globs")
    matches = sorted(item for name in glob.glob(str(path), recursive=True) if (item := Path(name)).is_file())
    if not matches:
        raise DataError(f"{pattern}: no file matches; check the pattern (** stands for any folders)")
    return matches


def _at_url(url: str) -> list[Path]:
    """The readable files at a URL, in a folder at a URL, or of a pattern. Of a data set of the Hugging Face Hub whose
    files are named by splits, those of the training split.

    Raises:
        DataError: there are none, or the folder is a corpus.
    """
    pattern = glob.has_magic(url) and not url.startswith("http")
    if not pattern and not is_folder(url):
        return [Path(url)]
    files = [Path(item) for item in find(url)]
    if url.startswith(DATASETS):
        files = [item for item in files if item.name.lower() != "readme.md"]  # its card
    if pattern:
        if not files:
            raise DataError(f"{url}: no file matches; check the pattern (** stands for any folders)")
        return files
    if {str(Path(url) / MANIFEST), str(Path(url) / COUNTS)} <= set(map(str, files)):
        raise DataError(f"{url}: is a corpus already; give files of text")
    readable = [item for item in files if format_of(item.name) and info(item).size]
    if url.startswith(DATASETS) and (training := splits_of(readable).get("train")):
        log.info("%s: the training split is read, %d of %d files", url, len(training), len(readable))
        return training
    if not readable:
        known = f"{len(files)} files, none of {' '.join(SUFFIXES)}"
        raise DataError(f"{url}: a folder without readable files ({known}); give the URLs of files")
    _say_passed_over(url, [item.name for item in files], len(readable))
    return readable


def _is_corpus(folder: Path) -> bool:
    """Whether ``folder`` has a corpus or a part of one, finished or not."""
    if (folder / COUNTS).exists() and ((folder / MANIFEST).exists() or (folder / TOKENIZER).exists()):
        return True
    if any((folder / WORK / name).exists() for name in (PLAN, MERGE, PIECES, ASSEMBLY)):
        return True
    if (folder / PIECES).exists() and (folder / TOKENIZER / SEAL).exists():
        return True
    with contextlib.suppress(OSError, ValueError, TypeError):
        return "num_shards" in json.loads((folder / PLAN).read_bytes())
    return False


def _say_passed_over(place: str, names: Sequence[str], read: int) -> None:
    """Print how many files of each kind are not read, in a folder or an archive."""
    kinds: Counter[str] = Counter()
    for name in names:
        if format_of(name) is None:
            suffix = Path(name).suffix.lower()
            known = (kind for kind, suffixes in _KINDS.items() if suffix in suffixes.split())
            kinds[next(known, suffix or "without suffix")] += 1
    if empty := len(names) - kinds.total() - read:
        kinds["empty"] = empty
    if kinds:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(8))
        more = f", other {sum(count for _, count in kinds.most_common()[8:]):,}" if len(kinds) > 8 else ""
        log.info("%s: %s of %s files are read; passed over: %s%s", place, f"{read:,}", f"{len(names):,}", listed, more)


def _files_below(folder: Path) -> list[Path]:
    """The files below ``folder`` that are neither hidden nor in a corpus, by name; also behind links to folders, each
    folder once."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None

    files: list[Path] = []
    seen = set()
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(place)) in seen or _is_corpus(Path(place)):
            folders.clear()
            continue
        seen.add(real)
        if is_dataset(Path(place)):
            dataset = [file for split in dataset_files(Path(place)).values() for file in split]
            log.info("%s: a dataset of Hugging Face's datasets, %d files", place, len(dataset))
            files += dataset
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(place, name) for name in names if not name.startswith(".")]
    for item in files:
        if not item.exists():
            raise DataError(f"{item}: a link to {os.readlink(item)}, which is missing; fetch that, or delete the link")
    return sorted(item for item in files if item.is_file())


def _members(path: Path, reading: Reading) -> Iterator[Source]:
    url = url_of(path)
    refuse_pipe(path)
    if info(path).size == 0:
        raise DataError(f"{path}: the file is empty; give a file with text")
    if path.suffix.lower() != ".zip":
        yield Source(path=path, format=reading.format or format_of(path.name) or "text", name=url or str(path))
        return
    with errors_of(str(path)), open_file(path) as opened, zipfile.ZipFile(opened) as archive:
        files = [item for item in archive.infolist() if not item.is_dir() and "__MACOSX" not in item.filename]
    members = {item.filename: item.file_size for item in files if item.file_size}
    known = sorted(name for name in members if format_of(name))
    if not known:
        raise DataError(
            f"{path}: none of the {len(members)} files in the archive ends in {' '.join(SUFFIXES)}; unpack it"
        )
    twice = next((name for name, count in Counter(item.filename for item in files).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{path}: two files in the archive are called {twice}; unpack it, and give the folder")
    _say_passed_over(str(path), [item.filename for item in files], len(known))
    for name in known:
        kind = reading.format or format_of(name) or "text"
        yield Source(path=path, format=kind, member=name, name=f"{url or path}!{name}", member_bytes=members[name])
