from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import shutil
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from encoderlab.corpus import blocks, documents
from encoderlab.corpus.blocks import read_blocks
from encoderlab.corpus.documents import parse_block, read_documents
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.markdown import markdown_paragraphs
from encoderlab.corpus.sources import Reading
from encoderlab.errors import ConfigError, DataError, MissingDependency

# Paragraphs as the readers give them: single spaces inside, none at the ends, nothing that cleaning changes.
CLEAN = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs", "Zs", "Zl", "Zp", "Cn"]), min_size=1)
PARAGRAPH = st.lists(CLEAN, min_size=1, max_size=6).map(" ".join)
DOCUMENTS = st.lists(st.lists(PARAGRAPH, min_size=1, max_size=4), min_size=1, max_size=12)
many_files = hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pytest.importorskip("zstandard").compress(data),
}


def write(path: Path, made: list[list[str]], format: str, end: str = "\n") -> None:
    """``made`` documents in a format, compressed as the suffix of ``path`` says."""
    texts = ["\n".join(paragraphs) for paragraphs in made]
    if format == "text":
        text = f"{end}{end}".join(end.join(paragraphs) for paragraphs in made)
    elif format == "jsonl":
        text = "".join(json.dumps({"id": 1, "text": text}, ensure_ascii=len(text) % 2 == 0) + end for text in texts)
    elif format == "csv":
        file = io.StringIO(newline="")
        csv.writer(file).writerows([["id", "text"], *([number, text] for number, text in enumerate(texts))])
        text = file.getvalue()
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"id": list(range(len(texts))), "text": texts}), path, row_group_size=3)
        return
    data = text.encode()
    path.write_bytes(COMPRESS[path.suffix if path.suffix in COMPRESS else ""](data))


def read(*patterns, **reading) -> list[list[str]]:
    how = Reading(**reading)
    return [
        document for source in find_sources(list(map(str, patterns)), how) for document in read_documents(source, how)
    ]


@many_files
@given(DOCUMENTS, st.sampled_from(["text", "jsonl", "csv", "parquet"]), st.sampled_from([7, 64, 1 << 20]), st.data())
def test_what_is_written_is_read(tmp_path_factory, made, format, block, data):
    folder = tmp_path_factory.mktemp("documents")
    suffix = data.draw(st.sampled_from(list(COMPRESS))) if format != "parquet" else ""
    suffixes = {"text": ".txt", "jsonl": ".jsonl", "csv": ".csv", "parquet": ".parquet"}
    path = folder / f"a{suffixes[format]}{suffix}"
    write(path, made, format, data.draw(st.sampled_from(["\n", "\r\n"])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", block)
        patch.setattr(blocks, "RANGE", 1 << 20)
        assert read(path) == made
        # Reading can go on at the end of any block.
        (source,) = find_sources([str(path)], Reading())
        found = list(read_blocks(source))
        middle = found[len(found) // 2]
        assert list(read_blocks(source, middle.end)) == found[len(found) // 2 + 1 :]


@many_files
@given(st.binary(max_size=300), st.sampled_from([5, 40]))
def test_any_bytes_are_read_in_any_blocks(tmp_path_factory, data, block):
    """Whatever the bytes, and wherever the cuts fall between documents, the same clean documents come out."""
    folder = tmp_path_factory.mktemp("documents")
    path = folder / "a.txt"
    path.write_bytes(b"some text " * 200 + b"\n\n" + data + b"\n")
    whole = read(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", block)
        patch.setattr(blocks, "RANGE", 1 << 20)
        assert read(path) == whole
    for document in whole:
        for paragraph in document:
            assert paragraph and paragraph == " ".join(paragraph.split())
            assert not documents._DROPPED.search(paragraph)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028"])
def test_line_ends_and_cleaning(tmp_path, end):
    lines = ["\ufeffone \t two\u00a0three ", "fo\u00adur\x00 five\x1f\u200b", "  ", "", "", "six\u3000seven"]
    (tmp_path / "a.txt").write_bytes(end.join(lines).encode())
    assert read(tmp_path / "a.txt") == [["one two three", "four five"], ["six seven"]]
    (source,) = find_sources([str(tmp_path / "a.txt")], Reading())
    counts = sum((parse_block(block, Reading())[1] for block in read_blocks(source)), Counter())
    assert counts["control_characters"] == 4


def test_short_lines_are_left_out(tmp_path):
    (tmp_path / "a.txt").write_text("ab\nabcdef\n\nabc\n\nabcdefgh\n")
    assert read(tmp_path / "a.txt", min_line_chars=4) == [["abcdef"], ["abcdefgh"]]


def test_long_lines_and_documents_are_cut_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_LINE", 50)
    monkeypatch.setattr(documents, "MAX_DOCUMENT", 120)
    text = " ".join(f"word{number}" for number in range(100)) + " " + "x" * 130
    (tmp_path / "a.txt").write_text(text)
    (source,) = find_sources([str(tmp_path / "a.txt")], Reading())
    found, counts = parse_block(next(read_blocks(source)), Reading())
    paragraphs = [paragraph for document in found for paragraph in document]
    assert max(map(len, paragraphs)) <= 50
    assert max(sum(map(len, document)) for document in found) <= 120
    assert "".join(paragraphs).replace(" ", "") == text.replace(" ", "")
    assert counts["cut_lines"] == 1 and counts["cut_documents"] == 1
    assert all(paragraph.startswith("word") for paragraph in paragraphs[:10])


@pytest.mark.parametrize("text", ["é" * 400, "ab " * 400, "ab\n" * 300])
def test_a_text_without_documents_is_cut_between_characters(tmp_path, monkeypatch, text):
    monkeypatch.setattr(blocks, "BLOCK", 31)
    monkeypatch.setattr(blocks, "RANGE", 62)
    (tmp_path / "a.txt").write_text(text)
    found = read(tmp_path / "a.txt")
    assert len(found) > 5
    assert "".join("".join(document) for document in found).replace(" ", "") == "".join(text.split())


def test_files_folders_and_globs_in_order(tmp_path):
    for name in ["b.txt", "a.txt", "sub/c.md", "sub/d.jsonl", ".hidden/e.txt", "sub/.f.txt", "program.py", "empty.txt"]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        content = {"sub/d.jsonl": '{"text": "d"}\n', "empty.txt": ""}.get(name, path.stem)
        path.write_text(content)
    assert read(tmp_path) == [["a"], ["b"], ["c"], ["d"]]
    assert read(tmp_path / "b.txt", tmp_path) == [["b"], ["a"], ["c"], ["d"]]  # each file once
    assert read(str(tmp_path / "*.txt").replace("a.txt", "")[:-5] + "[ab].txt") == [["a"], ["b"]]
    assert read(str(tmp_path / "**" / "*.md")) == [["c"]]
    assert read(tmp_path / "program.py") == [["program"]]  # named


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.txt.gz", gzip.compress(b"", mtime=0)),
        ("b.jsonl", b"\n \n\n"),
        ("b.csv", b""),
        ("b.csv.gz", gzip.compress(b"", mtime=0)),
        ("b.csv", b"\n\n"),
    ],
)
def test_empty_files_are_passed_over_in_folders_and_archives(tmp_path, name, content):
    for folder in ("data", "alone"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(content)
    (tmp_path / "data" / "a.txt").write_text("a")
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr(name, content)
        archive.writestr("c.txt", "c")
    assert read(tmp_path / "data", tmp_path / "c.zip") == [["a"], ["c"]]
    with pytest.raises(DataError, match="alone: (its files are empty|a folder without readable files)"):
        read(tmp_path / "alone")
    with pytest.raises(DataError, match=f"{name}: .*; give a file with text"):
        read(tmp_path / "data" / name)


def test_links_in_folders(tmp_path):
    for name in ("data/a.txt", "elsewhere/b.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(Path(name).stem)
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "a2.txt").symlink_to("a.txt")
    assert read(tmp_path / "data") == [["a"], ["b"]]
    (tmp_path / "elsewhere" / "c.txt").symlink_to("nowhere.txt")
    with pytest.raises(DataError, match=r"linked/c.txt: a link to nowhere.txt, which is missing"):
        read(tmp_path / "data")


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "sub").mkdir()
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="sub: cannot be read .Permission denied"):
        read(tmp_path)


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_files_of_several_frames(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\n\ntw") + COMPRESS[suffix](b"o\n\nthree"))
    assert read(path) == [["one"], ["two"], ["three"]]


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_what_follows_a_compressed_stream_is_another_one(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    one, two = COMPRESS[suffix](b"one\n\n"), COMPRESS[suffix](b"two")
    path.write_bytes(one + bytes(40_000) + two + bytes(10))
    assert read(path) == [["one"], ["two"]]
    for rest in (b"x" + two[1:], b"<html>", two[:-3]):
        path.write_bytes(one + rest)
        with pytest.raises(
            DataError, match=r"a.txt.\w+: (no gzip, or damaged|damaged|cannot be read|.* ends too early)"
        ):
            read(path)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_members_of_an_archive(tmp_path, suffix):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(f"a.txt{suffix}", COMPRESS[suffix](b"one\n\ntwo"))
    assert read(tmp_path / "a.zip") == [["one"], ["two"]]


def test_zip_archives(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("two.txt", "b\n\nc")
        archive.writestr("one.jsonl.gz", gzip.compress(b'{"text": "a"}\n'))
        archive.writestr("picture.png", b"\x89PNG")
        archive.writestr("__MACOSX/._two.txt", b"x")
    assert read(tmp_path / "a.zip") == [["a"], ["b"], ["c"]]
    assert [source.name for source in find_sources([str(tmp_path)], Reading())] == [
        f"{tmp_path / 'a.zip'}!one.jsonl.gz",
        f"{tmp_path / 'a.zip'}!two.txt",
    ]


@pytest.mark.parametrize(
    ("content", "field", "expected"),
    [
        ('{"title": "t", "content": "c"}', None, "c"),
        ('{"title": "t", "content": "c"}', "title", "t"),
        ('{"label": "x", "review": "a long text", "n": 1}', None, "a long text"),
        ('{"paragraphs": ["a", "b"], "title": "long title here"}', None, "a|b"),
        ('{"id": "abc", "text": null}\n{"id": "def", "text": "t"}', None, "t"),
        ('"plain"', None, "plain"),
        ('{"text": "half \\ud800 pair\\nline"}', None, "half \ufffd pair|line"),
        ('\ufeff{"text": "mark"}', None, "mark"),
    ],
)
def test_json_lines(tmp_path, content, field, expected):
    (tmp_path / "a.jsonl").write_text(content + "\n\n")
    assert read(tmp_path / "a.jsonl", field=field) == [expected.split("|")]


@pytest.mark.parametrize(
    ("name", "content", "field", "expected"),
    [
        ("a.csv", 'id,text\n1,"x, ""y""\nz"\n', None, ['x, "y"|z']),
        ("a.csv", "id;satz\n1;eins\n2;zwei drei\n", None, ["eins", "zwei drei"]),
        ("a.csv", "id,text\n1,a\n2,b\n", "id", ["1", "2"]),
        ("a.csv", "id,text\n1,a\n", "0", ["id", "1"]),
        ("a.tsv", 'label\tsentence\n0\tsaid "hi\n1\t"yes" and\n', None, ['said "hi', '"yes" and']),
        ("a.tsv", "a long first sentence that cannot be a header at all\t1\nshort\t0\n", None, None),
        ("a.csv", "text\nonly\n", None, ["only"]),
        ("a.csv", "id,title\n", None, []),
        ("a.csv", '\ufefftext,n\n"mark",1\n', None, ["mark"]),
        ("a.csv", "\n\nid;text\n1;blank lines first\n", None, ["blank lines first"]),
        ("a.csv", '"name; first; last",text\nx,quoted\n', None, ["quoted"]),
    ],
)
def test_tables(tmp_path, name, content, field, expected):
    (tmp_path / name).write_text(content, encoding="utf-8")
    if expected is None:
        expected = ["a long first sentence that cannot be a header at all", "short"]
    assert read(tmp_path / name, field=field) == [text.split("|") for text in expected]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text\nfine\nHello, world\n", "line 3 has 2 columns, the header has 1"),
        ("a.csv", "text,label\nHello, world,1\n", "line 2 has 3 columns, the header has 2"),
        ("a.tsv", "label\ttext\n1\ta\tb\n", "line 2 has 3 columns, the header has 2"),
        ("a.csv", "id,text,label\nline of a text,y\n", "line 2 has 2 columns, the header has 3"),
        ("a.csv", "label,text\n1\n", r"line 2 has 1 columns, the text is in column 1 \(from 0\)"),
    ],
)
def test_rows_that_the_header_does_not_fit_lose_no_text(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{message}; correct it, or --invalid-records skip"):
        read(tmp_path / name)
    (source,) = find_sources([str(tmp_path / name)], Reading())
    found, counts = parse_block(next(read_blocks(source)), Reading(invalid_records="skip"))
    assert found == [["fine"]] * ("fine" in content) and counts["skipped_records"] == 1
    (tmp_path / "ends.csv").write_text("text,n\na,1,\nb,2,\n")  # nothing after the last delimiter
    assert read(tmp_path / "ends.csv") == [["a"], ["b"]]


def test_a_row_with_a_quote_of_its_own_can_be_skipped(tmp_path):
    (tmp_path / "a.csv").write_text('text,n\n"said "no" twice",1\n"fine",2\n')
    with pytest.raises(DataError, match="line 2: ',' expected after '\"'; .*correct it, or --invalid-records skip"):
        read(tmp_path / "a.csv")
    (source,) = find_sources([str(tmp_path / "a.csv")], Reading())
    found, counts = parse_block(next(read_blocks(source)), Reading(invalid_records="skip"))
    assert found == [["fine"]] and counts["skipped_records"] == 1
    (tmp_path / "a.csv").write_text('text,n\n"never closed,1\nrest,2\n')  # no row can be told from the next
    with pytest.raises(DataError, match="is a quote left open"):
        read(tmp_path / "a.csv", invalid_records="skip")


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [("a.csv", b"text\nfine\na\xffb\n", "line 3"), ("a.jsonl", b'"fine"\n"\\ud800"\n', "line 2")],
)
def test_a_refusal_of_bytes_names_the_record(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: {place}: invalid UTF-8"):
        read(tmp_path / name, invalid_utf8="refuse")


@pytest.mark.parametrize("first", ['{"n": 1}', "no JSON", "null"])
def test_the_first_line_may_be_skipped_where_the_field_is_named(tmp_path, first):
    (tmp_path / "a.jsonl").write_text(first + '\n{"text": "t"}\n')
    with pytest.raises(DataError, match="first line"):
        read(tmp_path / "a.jsonl", field="text")
    assert read(tmp_path / "a.jsonl", field="text", invalid_records="skip") == [["t"]]


def test_an_array_of_json_is_named_on_one_line_too(tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "t"}]')
    with pytest.raises(DataError, match="a JSON array: write one object per line"):
        read(tmp_path / "a.json")


def test_a_name_that_begins_like_a_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("~draft.txt").write_text("a")
    assert [source.path for source in find_sources(["~draft.txt"], Reading())] == [Path("~draft.txt")]
    with pytest.raises(DataError, match="~nobody/a.txt: no such file or folder"):
        find_sources(["~nobody/a.txt"], Reading())


def test_invalid_bytes_in_a_table_are_counted(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\na\xff\xfeb\n")
    (source,) = find_sources([str(tmp_path / "a.csv")], Reading())
    found, counts = parse_block(next(read_blocks(source)), Reading())
    assert found == [["a\ufffd\ufffdb"]] and counts["invalid_utf8"] == 2
    with pytest.raises(DataError, match="invalid UTF-8"):
        read(tmp_path / "a.csv", invalid_utf8="refuse")


def test_a_header_that_is_no_utf8_is_found_again(tmp_path):
    (tmp_path / "a.csv").write_bytes("Nr;Übersetzung\n1;Öl\n".encode("cp1252"))
    assert read(tmp_path / "a.csv") == [["\ufffdl"]]


@pytest.mark.parametrize(("module", "name"), [("zstandard", "a.txt.zst"), ("pyarrow", "a.parquet")])
def test_missing_optional_packages_are_named(tmp_path, monkeypatch, module, name):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.parquet", None)
    with pytest.raises(MissingDependency, match=rf"{module}.*pip install 'encoderlab\[data\]'"):
        read(tmp_path / name)


def test_few_long_texts_of_parquet_are_held_at_a_time(tmp_path, monkeypatch):
    """A thousand rows are read at once where they are short; of books that would be gigabytes."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sizes = []
    real = parquet.ParquetFile.iter_batches

    def measured(self, **options):
        for batch in real(self, **options):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", measured)
    for length, most in ((10, 1024), (90_000, 47)):
        texts = [f"{number} " + "x" * length for number in range(1100)]
        parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=100)
        sizes.clear()
        assert read(tmp_path / "a.parquet") == [[text] for text in texts]
        assert sum(sizes) == 1100 and max(sizes) <= most and len(sizes) <= 3 * 1100 / most


@pytest.mark.parametrize("batches", [0, 1, 2])
@pytest.mark.parametrize("form", ["file", "stream"])
def test_both_formats_of_arrow(tmp_path, form, batches):
    pyarrow = pytest.importorskip("pyarrow")
    batch = pyarrow.record_batch({"n": [1, 2], "text": ["one", None]})
    with getattr(pyarrow.ipc, f"new_{form}")(tmp_path / "a.arrow", batch.schema) as file:
        for _ in range(batches):
            file.write(batch)
    assert read(tmp_path / "a.arrow") == [["one"]] * batches


def test_parquet_with_bytes_that_are_no_utf8(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = pyarrow.array([b"good", b"caf\xe9", None, b"more"]).view(pyarrow.string())
    lists = pyarrow.ListArray.from_arrays([0, 2, 2, 4], texts)
    for column, expected in [
        (texts, [["good"], ["caf\ufffd"], ["more"]]),
        (texts.dictionary_encode(), [["good"], ["caf\ufffd"], ["more"]]),
        (lists.slice(0, 1), [["good", "caf\ufffd"]]),
    ]:
        parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
        assert read(tmp_path / "a.parquet") == expected
    with pytest.raises(DataError, match=r"a.parquet: row 1: invalid UTF-8.*--invalid-utf8 replace"):
        read(tmp_path / "a.parquet", invalid_utf8="refuse")


def test_parquet_with_two_columns_of_one_name(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    twice = pyarrow.Table.from_arrays([pyarrow.array(["x"]), pyarrow.array(["y"])], names=["text", "text"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    for field in (None, "text"):
        with pytest.raises(DataError, match="a.parquet: two columns are called 'text'; rename one of them"):
            read(tmp_path / "a.parquet", field=field)


def test_parquet_columns(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"title": ["t", None], "summary": ["s", "r"], "n": [1, 2]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"which column holds the text.*title \(string\), summary \(string\)"):
        read(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", field="title") == [["t"]]
    for names in (["text", "body"], ["body", "text"], ["only"]):
        parquet.write_table(pyarrow.table({name: [name] for name in names}), tmp_path / "b.parquet")
        assert read(tmp_path / "b.parquet") == [["text" if "text" in names else "only"]]
    with pytest.raises(
        DataError, match=r"no text column 'n'; it has title \(string\), summary \(string\), n \(int64\)"
    ):
        read(tmp_path / "a.parquet", field="n")
    category = pyarrow.array(["x", "y", "x", None]).dictionary_encode()
    lists = pyarrow.array([["p", "q"], [], None, ["r"]])
    for columns, expected in [
        ({"kind": category, "text": category}, [["x"], ["y"], ["x"]]),
        ({"kind": category, "n": [1, 2, 3, 4]}, [["x"], ["y"], ["x"]]),
        ({"kind": category, "review": list("abcd")}, [["a"], ["b"], ["c"], ["d"]]),
        ({"title": list("abcd"), "paragraphs": lists}, [["p", "q"], ["r"]]),
    ]:
        parquet.write_table(pyarrow.table(columns), tmp_path / "c.parquet")
        assert read(tmp_path / "c.parquet") == expected
    parquet.write_table(pyarrow.table({"n": [1], "m": [[1]]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match="which column holds the text.*; text is of type string, or a list of strings"):
        read(tmp_path / "c.parquet")
    for name in ("A.PARQUET", "0a1b2c"):
        shutil.copy(tmp_path / "a.parquet", tmp_path / name)
        assert read(tmp_path / name, format="parquet", field="title") == [["t"]]
    (tmp_path / "a.parquet.gz").write_bytes(b"x")
    with pytest.raises(DataError, match="Parquet or Arrow within an archive; unpack it first"):
        read(tmp_path / "a.parquet.gz")


def test_markdown(tmp_path):
    text = """---
title: x
---
# Heading *one* #

First **bold** and _soft_ line
of a [link](http://a.b) with `code` and snake_case_name. <b>Tag</b> ![image](x.png)

* item one
* item two
  goes on
1. numbered

> quoted
> text

| a | b |
|---|---|
| 1 | 2 |

```python
x = 1
```
<!-- a comment
over lines -->
---
\\*not emphasis\\* 2 * 3 * 4

[ref]: http://a.b
Last ~~old~~ [one][ref].
"""
    expected = [
        "Heading one",
        "First bold and soft line of a link with code and snake_case_name. Tag image",
        "item one",
        "item two goes on",
        "numbered",
        "quoted text",
        "a b",
        "1 2",
        "x = 1",
        "*not emphasis* 2 * 3 * 4",
        "Last old one.",
    ]
    assert markdown_paragraphs(text) == expected
    (tmp_path / "a.md").write_text(text)
    (tmp_path / "b.md").write_text("plain\n\ntext")
    assert read(tmp_path) == [expected, ["plain", "text"]]


@pytest.mark.parametrize(
    "unit",
    ["**kw ", "***kw ", "__kw ", "~~x ", "[a ", "![a ", "[a](b ", "[", "<http://a", "`", "``a ` ", "-", " "],
)
def test_markup_that_is_never_closed_takes_no_time_that_grows_with_its_square(unit):
    """Minutes each, if it did."""
    text = unit * (100_000 // len(unit))
    for lines in (f"{text}x", f"x {text}"):
        assert len(markdown_paragraphs(lines)) <= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**a *b* c** __d__ ***e***", "a b c d e"),
        ("[![alt](a.png)](b.md) [x [y](z)", "alt [x y"),
        (f"![plot](data:image/png;base64,{'A' * 9000}) end", "plot end"),
        ("[a](b [c] d) `` x`y `` ~~z~~", "a x`y z"),
        ("   > # head", "head"),
        ("  - - -\n  --|--", None),
    ],
)
def test_inline_markdown(text, expected):
    assert markdown_paragraphs(text) == ([expected] if expected else [])


@given(st.text(alphabet="ab *_`[]()#>-|<!\\\n~1.", max_size=120))
def test_markdown_never_fails(text):
    for paragraph in markdown_paragraphs(text):
        assert paragraph.strip()


def test_no_source():
    with pytest.raises(ConfigError, match="no source; give files"):
        find_sources([], Reading())
