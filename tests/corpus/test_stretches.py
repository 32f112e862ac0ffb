"""Stretches of the input: whoever reads one reads what a reader of everything reads there, and little more."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trials
from hypothesis import strategies as st

from encoderlab.corpus import blocks, build, documents, pieces
from encoderlab.corpus.blocks import SourceBlock, read_blocks
from encoderlab.corpus.build import GivenTokenizer, NewTokenizer, build_corpus
from encoderlab.corpus.documents import read_documents
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.merge import merge_corpora
from encoderlab.corpus.pieces import PieceInput, piece_path, pieces_made, read_work
from encoderlab.corpus.sources import Reading
from encoderlab.corpus.stretches import divide
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.records import opening
from encoderlab.storage import streams
from tests.corpus.corpora import digests, sample_text, settings

many = trials(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
few = trials(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


def sizes(patch: pytest.MonkeyPatch, block: int, blocks_of_range: int, piece: int) -> None:
    patch.setattr(blocks, "BLOCK", block)
    patch.setattr(blocks, "RANGE", block * blocks_of_range)
    patch.setattr(pieces, "PIECE", piece)


def parts(work: list[PieceInput]) -> list[tuple[int, SourceBlock]]:
    return [block for piece in work for block in piece.blocks]


@st.composite
def files(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Names and bytes of some files of lines: many line ends, few of them, or none."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["txt", "txt", "jsonl", "md", "txt.gz"]))
        if kind == "jsonl":
            texts = draw(st.lists(st.text("ab é\n", max_size=60), min_size=1, max_size=40))
            data = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()
            data = data.removesuffix(b"\n") if draw(st.booleans()) else data
        else:
            words = draw(
                st.lists(st.sampled_from(["\n\n", "\n", "\r\n", "\r\n\r\n", " ", "é", "abc", "x" * 50, " y" * 90]))
            )
            data = b"a" + "".join(words).encode()
        made.append((f"{number}.{kind}", gzip.compress(data, mtime=0) if kind.endswith("gz") else data))
    return made


@many
@given(files(), st.sampled_from([3, 7, 20, 64]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 30, 200]))
def test_stretches_read_one_by_one_hold_what_lies_between_them(tmp_path_factory, files, block, ratio, piece):
    """In any order, and from the end of any piece on; nothing is read twice, and nothing is left out."""
    folder = tmp_path_factory.mktemp("stretches")
    for name, data in files:
        (folder / name).write_bytes(data)
    sources = find_sources([str(folder)], Reading())
    whole = [document for source in sources for document in read_documents(source, Reading())]
    with pytest.MonkeyPatch.context() as patch:
        sizes(patch, block, ratio, piece)
        stretches = divide(sources)
        assert [stretch.number for stretch in stretches] == list(range(len(stretches)))
        together = list(read_work(sources, stretches))
        alone = [list(read_work(sources, [stretch])) for stretch in reversed(stretches)]
        assert [work for each in reversed(alone) for work in each] == together
        for each in alone:
            assert [work.name.is_last for work in each] == [False] * (len(each) - 1) + [True]
            for done, work in enumerate(each[:-1], 1):
                stretch = stretches[work.name.stretch]
                assert list(read_work(sources, [stretch], work.end, done)) == each[done:]
        for number, source in enumerate(sources):
            data = b"".join(block.data for index, block in parts(together) if index == number)
            with source.file.open() as file:
                assert data == file.read()
            assert parts(together) and list(read_blocks(source)) == [
                block for index, block in parts(together) if index == number
            ]
    longest = max(sum(len(part.data) for index, part in parts(together) if index == n) for n in range(len(sources)))
    if longest < block * ratio:  # nothing was cut for want of an end
        assert whole == [
            document for _, block in parts(together) for document in build.parse_block(block, Reading())[0]
        ]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Any], list[int], bool]:
    """Texts of rows, the rows of each row group, and whether there are other columns."""
    kind = draw(st.sampled_from(["text", "lines"]))
    text = st.text("ab é\n", max_size=60)
    rows = draw(st.lists(st.none() | (text if kind == "text" else st.lists(text, max_size=3)), min_size=1, max_size=60))
    groups, left = [], len(rows)
    while left > 0:
        groups.append(min(left, draw(st.sampled_from([0, 1, 1, 2, 5, 40]))))
        left -= groups[-1]
    return rows, groups + draw(st.sampled_from([[], [0]])), draw(st.booleans())


def write_parquet(path: Path, rows: list[Any], groups: list[int], wide: bool = False) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lines = any(isinstance(row, list) for row in rows)
    kind = pyarrow.list_(pyarrow.string()) if lines else pyarrow.string()
    more = (
        {"text.id": pyarrow.array(range(len(rows))), "bytes": pyarrow.array([b"x" * 500] * len(rows))} if wide else {}
    )
    table = pyarrow.table({"text": pyarrow.array(rows, kind), **more})
    with parquet.ParquetWriter(path, table.schema) as writer:
        row = 0
        for size in groups:
            writer.write_table(table.slice(row, size), row_group_size=max(size, 1))
            row += size


@many
@given(tables(), st.sampled_from([7, 40, 200]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 60, 400]))
def test_stretches_of_parquet_hold_the_same_documents_in_the_same_order(tmp_path_factory, table, block, ratio, piece):
    """Of row groups of any size, empty ones too, and of any number of stretches; a stretch reads only its groups."""
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    write_parquet(path, *table)
    sources = find_sources([str(path)], Reading())
    assert [group.rows for group in sources[0].groups] == table[1]
    whole = list(read_documents(sources[0], Reading()))
    edges = [0, *itertools.accumulate(table[1])]
    with pytest.MonkeyPatch.context() as patch:
        sizes(patch, block, ratio, piece)
        stretches = divide(sources)
        assert {stretch.start or 0 for stretch in stretches} <= set(edges)
        together = list(read_work(sources, stretches))
        read: list[range] = []
        real = blocks.column_batches

        def column_batches(file: Any, columns: Any, groups: range, stop: int | None) -> Any:
            read.append(groups)
            return real(file, columns, groups, stop)

        patch.setattr(blocks, "column_batches", column_batches)
        alone = [list(read_work(sources, [stretch])) for stretch in reversed(stretches)]
        assert [work for each in reversed(alone) for work in each] == together
        full = [number for number, rows in enumerate(table[1]) if rows]
        assert [number for groups in reversed(read) for number in groups if number in full] == full
        for each in alone:
            for done, work in enumerate(each[:-1], 1):
                stretch = stretches[work.name.stretch]
                assert list(read_work(sources, [stretch], work.end, done)) == each[done:]
    found = [(block, build.parse_block(block, Reading())[0]) for _, block in parts(together)]
    assert [document for _, documents in found for document in documents] == whole
    assert [number for block, _ in found for number in block.lines] == list(range(1, len(table[0]) + 1))


class Anywhere:
    """A cluster's tasks in this process, done in any order."""

    def __init__(self, cores: int, seed: int) -> None:
        self.cores, self._draw = cores, random.Random(seed)
        self._calls: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = []
        self.ended: Callable[[str, Any], None] = lambda name, result: None

    def __enter__(self) -> Anywhere:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
        self._calls.append((name, function, args))

    def share(self, value: Any) -> Any:
        return value

    def wait(self) -> None:
        if self._calls:
            name, function, args = self._calls.pop(self._draw.randrange(len(self._calls)))
            self.ended(name, function(*args))

    def finish(self) -> None:
        while self._calls:
            self.wait()


@pytest.fixture(scope="module")
def given_tokenizer(tmp_path_factory) -> GivenTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train("wordpiece", [sample_text(50)], 300).save(folder)
    return GivenTokenizer(path=str(folder))


@few
@given(
    data=st.data(),
    seed=st.integers(0, 5),
    block=st.sampled_from([700, 2000]),
    ratio=st.sampled_from([2, 4]),
    piece=st.sampled_from([1000, 5000]),
    place=st.sampled_from(["workers", "cluster", "cluster", "shards", "shards"]),
)
def test_a_corpus_has_the_same_bytes_wherever_its_parts_are_read(
    tmp_path_factory, given_tokenizer, data, seed, block, ratio, piece, place
):
    """For any number of shards, workers and cores, and for ranges and pieces of any size."""
    folder = tmp_path_factory.mktemp("corpora")
    text = folder / "text"
    text.mkdir()
    for number in range(data.draw(st.integers(1, 3), label="files")):
        made = sample_text(
            data.draw(st.sampled_from([1, 4, 30] if number else [30]), label="documents"), seed=seed + number
        ).encode()
        kind = data.draw(st.sampled_from(["txt", "txt.gz", "jsonl", "parquet"]), label="kind")
        if kind == "parquet":
            rows = made.decode().split("\n\n")
            size = data.draw(st.integers(1, 20), label="rows of a group")
            write_parquet(text / f"{number}.parquet", rows, [size] * (len(rows) // size) + [len(rows) % size])
            continue
        if kind == "jsonl":
            made = b"".join(json.dumps({"text": part.decode()}).encode() + b"\n" for part in made.split(b"\n\n"))
        (text / f"{number}.{kind}").write_bytes(gzip.compress(made, mtime=0) if kind == "txt.gz" else made)
    chosen = settings(text, tokenizer=given_tokenizer, selection={"drop_lines": seed % 2 == 1})
    build_corpus(chosen, folder / "whole")
    with pytest.MonkeyPatch.context() as patch:
        sizes(patch, block, ratio, piece)
        if place == "workers":
            build_corpus(chosen, folder / "out", workers=1)
        elif place == "cluster":
            cores = data.draw(st.sampled_from([1, 2, 8]), label="cores")
            build_corpus(chosen, folder / "out", cluster=lambda sees: Anywhere(cores, seed))
        else:
            number = data.draw(st.integers(2, 5), label="shards")
            for index in range(number):
                build_corpus(chosen, folder / f"part{index}", shard_index=index, num_shards=number)
            merge_corpora([folder / f"part{index}" for index in range(number)], folder / "out")
    assert digests(folder / "out") == digests(folder / "whole")


def test_a_file_is_hashed_once_by_who_reads_it_whole_or_else_first(tmp_path, monkeypatch, given_tokenizer):
    sizes(monkeypatch, 4000, 4, 4000)
    text = tmp_path / "text"
    text.mkdir()
    (text / "long.txt").write_text(sample_text(300))
    (text / "a.txt.gz").write_bytes(gzip.compress(sample_text(20).encode(), mtime=0))
    with zipfile.ZipFile(text / "b.zip", "w") as archive:
        for number in range(3):
            archive.writestr(f"{number}.txt", sample_text(100, seed=number))
    real, submitted, hashed = build.sha256, [], Counter[str]()

    class Recorded(Anywhere):
        def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
            if function in (build._hash, build._make_stretch):
                submitted.append([path.name for path in args[0]] if function is build._hash else "stretch")
            super().submit(function, *args, name=name)

    def sha256(path: Path) -> str:
        hashed[path.name] += path.parent == text
        return real(path)

    chosen = settings(text, tokenizer=given_tokenizer)
    build_corpus(chosen, tmp_path / "whole")
    monkeypatch.setattr(build, "sha256", sha256)
    build_corpus(chosen, tmp_path / "out", cluster=lambda sees: Recorded(2, seed=0))
    assert submitted[:2] == [["b.zip"], ["long.txt"]] and set(submitted[2:]) == {"stretch"} and len(submitted) > 5
    assert hashed == {"a.txt.gz": 1, "b.zip": 1, "long.txt": 1}
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


class Counted(io.FileIO):
    """A file that counts what is read of it."""

    read_bytes: Counter[str] = Counter()

    def readinto(self, buffer: Any) -> int | None:
        size = super().readinto(buffer)
        Counted.read_bytes[os.path.basename(str(self.name))] += size or 0
        return size


@pytest.mark.parametrize("kind", ["given", "trained"])
def test_a_machine_reads_its_share_of_the_sources(tmp_path, monkeypatch, given_tokenizer, kind):
    """Of a long text a part, and one machine all of it to hash it; a compressed file is read by one machine.

    Besides, each reads the beginnings of all files, and the sample for the tokenizer.
    """
    sizes(monkeypatch, 4000, 4, 4000)
    monkeypatch.setattr(blocks, "_LOOK", 256)
    monkeypatch.setattr(opening, "HEAD", 500)
    monkeypatch.setattr(documents, "LOOK", 2)
    text = tmp_path / "text"
    text.mkdir()
    (text / "long.txt").write_text(sample_text(1500))
    for number in range(6):
        (text / f"{number:02}.txt.gz").write_bytes(gzip.compress(sample_text(900, seed=number + 1).encode(), mtime=0))
    small = NewTokenizer(vocab_size=300, sample_bytes=16_000)
    chosen = settings(text, tokenizer=given_tokenizer if kind == "given" else small)
    build_corpus(chosen, tmp_path / "whole")

    def counted(path: Path, stop: int | None = None) -> Any:
        return io.BufferedReader(Counted(path), 512)

    parts = [tmp_path / f"part{index}" for index in range(4)]
    read: list[Counter[str]] = []
    with monkeypatch.context() as patch:
        patch.setattr(opening, "open_file", counted)
        patch.setattr(streams, "open_file", counted)
        patch.setattr(opening.gzip, "open", lambda path: gzip.GzipFile(fileobj=counted(path)))
        patch.setattr(gzip, "READ_BUFFER_SIZE", 8192, raising=False)  # 128 KiB since Python 3.12, more than a file here
        for index, part in enumerate(parts):
            Counted.read_bytes.clear()
            build_corpus(chosen, part, shard_index=index, num_shards=4)
            read.append(Counted.read_bytes.copy())
    for path in text.iterdir():
        shares = sorted(each[path.name] / path.stat().st_size for each in read)
        if path.name == "long.txt":
            assert all(0.2 < share < 0.4 for share in (*shares[:3], shares[3] - 1)), shares
        else:
            assert 2 <= shares[3] < 2.9, shares  # parsed, hashed
            assert all(share < 0.6 for share in shares[:3]), (path, shares)
    merge_corpora(parts, tmp_path / "merged")
    assert digests(tmp_path / "merged") == digests(tmp_path / "whole")


def test_a_message_names_the_line_of_the_file_in_any_stretch(tmp_path, monkeypatch, given_tokenizer):
    sizes(monkeypatch, 50, 2, 100)
    rows = [json.dumps({"text": f"number {number}"}) for number in range(100)]
    rows[70] = "no JSON"
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    chosen = settings(tmp_path / "a.jsonl", tokenizer=given_tokenizer)
    with pytest.raises(DataError, match="a.jsonl: line 71: not JSON; correct it"):  # in the part of one or the other
        for index in range(2):
            build_corpus(chosen, tmp_path / f"out{index}", shard_index=index, num_shards=2)


def test_quoted_cells_and_compressed_files_are_not_divided(tmp_path, monkeypatch):
    sizes(monkeypatch, 100, 2, 100)
    (tmp_path / "a.csv").write_text("text\n" + '"two\nlines"\n' * 100)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(random.Random(0).randbytes(1000).hex().encode(), mtime=0))
    (tmp_path / "c.txt").write_text("one\n\n" * 100)
    (tmp_path / "d.txt").write_text("small")
    (tmp_path / "e.txt").write_text("small")
    made = divide(find_sources([str(tmp_path)], Reading()))
    assert [(one.first, one.end, one.start, one.is_long) for one in made] == [
        (0, 1, None, True),
        (1, 2, None, True),
        (2, 3, 0, False),
        (2, 3, 200, False),
        (2, 3, 400, False),
        (3, 5, None, False),
    ]


@many
@given(st.lists(st.integers(0, 5)), st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=8))
def test_pieces_of_a_stretch_are_found_without_the_others(tmp_path_factory, sizes, missing):
    """Up to the first one that is missing."""
    part = tmp_path_factory.mktemp("part")
    (part / "pieces").mkdir()
    for stretch, size in enumerate(sizes):
        for place in range(size):
            if (stretch, place) not in missing:
                piece_path(part, pieces.PieceName(stretch, place, place == size - 1)).touch()
    for stretch, size in enumerate([*sizes, 0]):
        there = next((place for place in range(size) if (stretch, place) in missing), size)
        names = [pieces.PieceName(stretch, place, place == size - 1) for place in range(there)]
        assert pieces_made(part, stretch) == [piece_path(part, name) for name in names]


def test_a_stretch_whose_pieces_are_there_is_not_read_again(tmp_path):
    (tmp_path / "a.txt").write_text("One text.\n\nTwo texts.\n")
    sources = build.resolve_sources([str(tmp_path / "a.txt")], Reading())
    (stretch,) = divide(sources)
    made = []

    def make_piece(path, work):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        made.append(path.name)

    for _ in range(2):  # the task of a node that was lost before it could report is run again
        build._make_stretch(stretch, sources, tmp_path / "part", make_piece)
    assert made == ["000000-00000-last.safetensors"]
