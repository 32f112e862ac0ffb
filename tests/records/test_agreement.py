"""Corpora and tasks read the same records of every file, or both refuse it."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import lzma
import random
import re
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from encoderlab.corpus.blocks import read_blocks
from encoderlab.corpus.sources import Reading, Source, inspect_source
from encoderlab.errors import DataError
from encoderlab.records import reading
from encoderlab.records.opening import File
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.examples import Remarks

CHARACTERS = 'ab"",;|\t\n\r é中\u2028\x0b\x85\0\ufeff'
CELLS = st.text(alphabet=CHARACTERS, max_size=12)
SUFFIXES = {".csv": "csv", ".tsv": "tsv"}
_NUMBERS = itertools.count()


def of_corpora(path: Path, kind: str, field: str | int) -> list[tuple[int, object]] | str:
    """Line and text of each record that has a text, as a corpus reads the file; the error if it does not."""
    reading = Reading(format=kind, field=field)
    try:
        source = inspect_source(Source(path=path, format=kind, name=str(path)), reading)
        assert source.field == field
        records = []
        for block in read_blocks(source):
            lines = block.lines or itertools.count(block.line(0))
            for line, data in zip(lines, block.data.decode("utf-8-sig").split("\n"), strict=False):
                value = json.loads(data) if data.strip() else ""
                if kind == "jsonl":
                    value = value[field] if value else None
                    records += [] if value is None else [(line, value)]
                    continue
                if isinstance(value, dict):
                    return value["problem"]
                value.encode()  # halves of surrogate pairs stand for bytes that are not UTF-8
                records.append((line, value))
        return records
    except (DataError, UnicodeError) as error:
        return str(error)


def of_tasks(path: Path, field: str | int) -> list[tuple[int, object]] | str:
    """The same as a task reads it; where a task counts a row and leaves it out, or cuts it, a corpus refuses it."""
    remarks = Remarks(path)
    try:
        if tables.suffix(path) in (".csv", ".tsv"):
            names = tables.columns(path, Remarks(path)) if isinstance(field, str) else None
            needed = 0 if isinstance(field, str) else field + 1
            rows = [(r.row, r.fields[str(field)]) for r in tables.table(path, names, remarks, needed=needed)]
            return next((line for line in remarks.lines() if "columns;" in line), rows)
        return [(record.row, record.fields[field]) for record in tables.records(path)]
    except DataError as error:
        return str(error)
    except KeyError:
        return "no such column"


def compressed(data: bytes, suffix: str) -> bytes:
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](data)


def fresh(folder: Path, suffix: str) -> Path:
    """A path that no file had before; what is found out about a file is kept by its name, size and time."""
    return folder / f"{next(_NUMBERS)}{suffix}"


@given(
    st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=12),
    st.sampled_from([".csv", ".tsv"]),
    st.sampled_from("\t,;|"),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, None]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.sampled_from(["", ".gz", ".xz"]),
)
def test_written_tables(tmp_path_factory, table, suffix, separator, quoting, end, mark, compression):
    """Of any cells, written by csv's writer or joined as they are, with a header."""
    written = io.StringIO(newline="")
    rows = [["id", "text"], *table]
    if quoting is None:
        written.write(end.join(separator.join(row) for row in rows))
    else:
        csv.writer(written, delimiter=separator, quoting=quoting, lineterminator=end).writerows(rows)
    path = fresh(tmp_path_factory.mktemp("tables"), suffix + compression)
    path.write_bytes(compressed(written.getvalue().encode("utf-8-sig" if mark else "utf-8"), compression))
    corpus, task = of_corpora(path, SUFFIXES[suffix], "text"), of_tasks(path, "text")
    same(corpus, task)
    if quoting == csv.QUOTE_ALL and end == "\n" and separator == ("\t" if suffix == ".tsv" else ","):
        assert isinstance(corpus, str) or [text for _, text in corpus] == [row[1] for row in table]


def same(corpus: object, task: object) -> None:
    """Equal, or refused by both. One alone may refuse what is a matter of the form: rows of other lengths than the
    header (a task counts some), no such column, bytes that are not UTF-8 in a column that is not read."""
    if isinstance(corpus, str) != isinstance(task, str):
        problem = corpus if isinstance(corpus, str) else task
        assert re.search("column|no rows|is empty|not UTF-8|surrogates", str(problem)), (corpus, task)
    elif not isinstance(corpus, str):
        assert corpus == task


@given(st.binary(max_size=80), st.sampled_from([".csv", ".tsv", ".jsonl"]))
@example(b'""', ".jsonl")
def test_any_bytes(tmp_path_factory, content, suffix):
    """What both take, they take alike; neither fails otherwise than by a DataError."""
    path = fresh(tmp_path_factory.mktemp("bytes"), suffix)
    path.write_bytes(content)
    field = "text" if suffix == ".jsonl" else 0
    corpus, task = of_corpora(path, suffix[1:], field), of_tasks(path, field)
    if suffix != ".jsonl":  # of which corpora take strings, and tasks lists
        same(corpus, task)
    elif not isinstance(corpus, str) and not isinstance(task, str):
        assert corpus == task


@given(st.text(alphabet='a"\t,\n\r;é', max_size=60), st.sampled_from([".csv", ".tsv"]), st.integers(0, 1))
def test_any_text_without_a_header(tmp_path_factory, content, suffix, column):
    path = fresh(tmp_path_factory.mktemp("text"), suffix)
    path.write_text(content, newline="")
    same(of_corpora(path, suffix[1:], column), of_tasks(path, column))


@given(st.lists(st.one_of(CELLS, st.none()), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_json_lines(tmp_path_factory, texts, end):
    path = fresh(tmp_path_factory.mktemp("json"), ".jsonl")
    path.write_text(end.join(json.dumps({"text": text, "n": 1}) for text in texts), newline="")
    assume(texts[0] is not None)
    corpus, task = of_corpora(path, "jsonl", "text"), of_tasks(path, "text")
    assert not isinstance(corpus, str) and [(line, text) for line, text in task if text is not None] == corpus


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_in_any_system(end, tmp_path):
    path = tmp_path / "t.txt"
    path.write_text(end.join(["one", "two words", ""]), newline="")
    assert list(reading.lines(File(path))) == [(1, "one"), (2, "two words")]


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = ["one", "two\nlines", 'a "quote"', "", "é"] * 700
    parquet.write_table(arrow.table({"n": list(range(len(texts))), "text": texts}), tmp_path / "a.parquet")
    corpus = of_corpora(tmp_path / "a.parquet", "parquet", "text")
    assert corpus == of_tasks(tmp_path / "a.parquet", "text") == list(enumerate(texts, 1))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('id\ttext\n1\t"a ""fine"" day"\n2\t"two\nlines"\n', ['a "fine" day', "two\nlines"]),
        ('id\ttext\n1\t"a" day\n2\t"never closed\n', ['"a" day', '"never closed']),
        ('"id"\t"text"\n"1"\t"plain"\n', ["plain"]),
        ('id\ttext\n1\t"plain"\n', ['"plain"']),
        ("id\ttext\r1\ta\r2\tb\r", ["a", "b"]),
        ("id\ttext\n1\ta\rb\n", ["a\rb"]),
    ],
)
def test_quotes_and_line_ends_of_tsv(content, expected, tmp_path):
    """A TSV is quoted where the file shows it; a carriage return ends a line where nothing else does."""
    (tmp_path / "a.tsv").write_text(content, newline="")
    corpus = of_corpora(tmp_path / "a.tsv", "tsv", "text")
    assert corpus == of_tasks(tmp_path / "a.tsv", "text") and [text for _, text in corpus] == expected


@pytest.mark.parametrize("first", ["sep={0}", '"sep={0}"'])
@pytest.mark.parametrize("separator", ",;|\t")
def test_excels_first_line_names_the_separator(separator, first, tmp_path):
    lines = [first.format(separator), f"id{separator}text", f"1{separator}one", f"2{separator}two"]
    (tmp_path / "a.csv").write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
    expected = [(3, "one"), (4, "two")]
    assert of_corpora(tmp_path / "a.csv", "csv", "text") == of_tasks(tmp_path / "a.csv", "text") == expected


REFUSED = [
    "text,label\n".encode("utf-16"),
    "text,label\na,b\n".encode("utf-16-le"),
    "text,label\n".encode("utf-32"),
    gzip.compress(b"text,label\na,b\n", mtime=0),
    b"PK\x03\x04\x14\0\0\0",
    b"%PDF-1.7 text,label\n",
    bytes(range(256)) * 10,
    b'text,label\n"never closed,b\n',
]


@pytest.mark.parametrize("content", REFUSED)
def test_both_refuse_with_the_same_words(content, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as corpus:
        list(read_blocks(inspect_source(Source(path=path, format="csv", name=str(path)), Reading(field=0))))
    with pytest.raises(DataError) as task:
        list(tables.table(path, tables.columns(path, Remarks(path)), Remarks(path)))
    assert str(corpus.value) == str(task.value)


def test_a_long_table_is_read_alike_in_blocks(tmp_path, monkeypatch):
    from encoderlab.corpus import blocks

    monkeypatch.setattr(blocks, "BLOCK", 1000)
    rng = random.Random(0)
    table = [[str(number), "".join(rng.choices('ab "\n,é', k=30))] for number in range(500)]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *table])
    corpus = of_corpora(tmp_path / "a.csv", "csv", "text")
    assert corpus == of_tasks(tmp_path / "a.csv", "text")
    assert [text for _, text in corpus] == [text for _, text in table]
