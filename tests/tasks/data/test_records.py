"""Tables, JSON and Parquet: what they hold, and one line with file and row for what is wrong."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.data.suites import task
from encoderlab.tasks.data.task import Remarks
from tests.tasks.data.written import SENTENCES, jsonl, load, write


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    rows = pyarrow.table({"sentence": ["good", "bad"], "label": [1, 0], "idx": [0, 1]})
    parquet.write_table(rows, tmp_path / "train-00000-of-00001.parquet")
    assert [e.label for e in task("sst2").load(tmp_path, "train").examples] == ["1", "0"]


def test_texts_that_parquet_holds_as_bytes(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["café".encode()], "label": [b"pos"]}), tmp_path / "train.parquet")
    (example,) = load(SENTENCES, tmp_path / "train.parquet").examples
    assert (example.text, example.label) == ("café", "pos")
    parquet.write_table(arrow.table({"text": [b"caf\xe9"], "label": ["pos"]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"train.parquet:1: not UTF-8"):
        load(SENTENCES, tmp_path / "train.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text\tlable\na\tpos\n", r"train.tsv:2: no label; train data needs one"),
        ("sentence\tlabel\na\tpos\n", r"no column 'text' among 'sentence', 'label'"),
        ("text\tlabel\na\tpos\nb\tmaybe\n", r"train.tsv:3: label 'maybe' is not one of neg, pos"),
        ("text\tlabel\na\tpos\nb\n", r"train.tsv:3: 1 columns, expected 2; check the separator \(tab\)"),
        ("text\tlabel\n", r"0 examples"),
        ("", r"train.tsv: has no rows; expected a table or JSON records with text"),
    ],
)
def test_bad_tables_are_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        load(SENTENCES, write(tmp_path / "train.tsv", text))
    assert "\n" not in str(caught.value)


def test_a_short_row_among_many_is_left_out_and_counted(tmp_path):
    rows = "".join(f"text {i}\tpos\n" for i in range(300))
    split = load(SENTENCES, write(tmp_path / "train.tsv", "text\tlabel\n" + rows + "broken\n"))
    assert len(split) == 300 and split.remarks == ("train.tsv: 1 row: fewer than 2 columns; left out (first: row 302)",)


def test_further_columns_and_empty_texts_are_counted(tmp_path):
    split = load(SENTENCES, write(tmp_path / "train.tsv", "text\tlabel\na\tpos\textra\n\tneg\n"))
    assert [e.text for e in split.examples] == ["a", ""]
    assert split.remarks[0].startswith("train.tsv: 1 row: more than 2 columns")
    assert split.remarks[1] == "train.tsv: 1 row: empty text (first: row 3)"


def test_a_header_with_too_few_names_is_refused(tmp_path):
    path = write(tmp_path / "train.csv", "text,label\na,pos,1\nb,neg,2\nc,pos\n")
    with pytest.raises(DataError, match=r"train.csv: 2 of 3 rows have more columns than the 2 of the header; .*comma"):
        load(SENTENCES, path)


def test_csv_with_quotes_newlines_and_bom(tmp_path):
    text = '\ufefftext,label\n"two\nlines, ""quoted""",pos\nplain,neg\n'
    split = load(SENTENCES, write(tmp_path / "train.csv", text))
    assert [(e.text, e.row) for e in split.examples] == [('two\nlines, "quoted"', 2), ("plain", 4)]
    with pytest.raises(DataError, match=r"train.csv:2: .*close the quotation"):
        load(SENTENCES, write(tmp_path / "train.csv", 'text,label\n"open,pos\nplain,neg\n'))


def test_quoted_tab_separated_file_is_noticed(tmp_path):
    split = load(SENTENCES, write(tmp_path / "train.tsv", 'text\tlabel\n"two\nlines"\tpos\nplain\tneg\n'))
    assert [e.text for e in split.examples] == ["two\nlines", "plain"]
    split = load(SENTENCES, write(tmp_path / "all.tsv", '"text"\t"label"\n"a cat"\t"pos"\n'))
    assert [(e.text, e.label) for e in split.examples] == [("a cat", "pos")]


def test_separator_that_the_name_does_not_say(tmp_path):
    split = load(SENTENCES, write(tmp_path / "train.csv", "text;label\na, b;pos\nc;neg\n"))
    assert split.examples[0].text == "a, b" and "separated by semicolon" in split.remarks[0]


def test_encodings(tmp_path):
    with pytest.raises(DataError, match="UTF-16"):
        load(SENTENCES, write(tmp_path / "train.tsv", "text\tlabel\na\tpos\n", "utf-16"))
    with pytest.raises(DataError, match="UTF-32, expected UTF-8; convert it: iconv"):
        load(SENTENCES, write(tmp_path / "train.tsv", "text\tlabel\na\tpos\n", "utf-32"))
    with pytest.raises(DataError, match=r":\d+: not UTF-8"):
        load(SENTENCES, write(tmp_path / "train.tsv", "text\tlabel\ncafé\tpos\n", "latin-1"))
    with pytest.raises(DataError, match="every other byte is NUL, as in UTF-16"):
        load(SENTENCES, write(tmp_path / "train.tsv", "text\tlabel\na\tpos\n", "utf-16-le"))
    with pytest.raises(DataError, match="UTF-16"):
        load(SENTENCES, write(tmp_path / "train.tsv.gz", "text\tlabel\na\tpos\n", "utf-16"))
    with pytest.raises(DataError, match="does not exist"):
        load(SENTENCES, tmp_path / "none.tsv")
    broken = write(tmp_path / "train.tsv.gz", "text\tlabel\n" + "a\tpos\n" * 9999)
    broken.write_bytes(broken.read_bytes()[:-20])
    with pytest.raises(DataError, match="train.tsv.gz: the compressed data ends too early"):
        load(SENTENCES, broken)


@pytest.mark.parametrize("name", ["a.csv", "a.ndjson", "a.TXT", "a.conll", "a.conllu.gz", "a.bio", "a.bmes", "a.zip"])
def test_names_of_files_are_no_texts(name):
    assert tables.is_file_name(name) and not tables.is_file_name(name.replace(".", ""))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zst"])
def test_compressed_files(suffix, tmp_path):
    path, text = tmp_path / f"train.csv{suffix}", b"text,label\na cat,pos\na dog,neg\n"
    if suffix == ".zst":
        path.write_bytes(pytest.importorskip("zstandard").compress(text))
    else:
        path.write_bytes({".gz": gzip, ".xz": lzma, ".bz2": bz2}[suffix].compress(text))
    assert tables.suffix(path) == ".csv" and tables.is_file_name(path.name)
    assert [(e.text, e.label) for e in load(SENTENCES, path).examples] == [("a cat", "pos"), ("a dog", "neg")]


@pytest.mark.parametrize("whole", [b"", gzip.compress(b"text\tlabel\n" + b"a\tpos\n" * 9999)], ids=["start", "end"])
@pytest.mark.parametrize("quoted", [True, False])
def test_a_compressed_file_that_is_damaged(whole, quoted, tmp_path):
    path = tmp_path / "train.tsv.gz"
    damaged = bytearray(gzip.compress(b"a\tpos\n" * 99))
    damaged[10] = 0xFF  # a kind of block that there is none of
    path.write_bytes(whole + damaged)
    with pytest.raises(DataError, match=r"train.tsv.gz: damaged \(Error -3"):
        list(tables.rows(path, tables.Dialect(separator="\t", quoted=quoted)))


@pytest.mark.parametrize("compression", ["snappy", "gzip"])
def test_damaged_parquet(compression, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, rows = tmp_path / "train.parquet", 2000
    table = arrow.table({"text": [f"text {i % 97}" for i in range(rows)], "label": ["pos", "neg"] * (rows // 2)})
    parquet.write_table(table, path, compression=compression, use_dictionary=False)
    whole = bytearray(path.read_bytes())
    for i in range(100, 500):
        whole[i] ^= 0x55
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"train.parquet: cannot be read \("):
        load(SENTENCES, path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04\x14\0\0\0", "a ZIP archive or an Excel sheet; unpack it, or save the sheet as CSV"),
        (
            gzip.compress(b"text,label\na,pos\n", mtime=0),
            "compressed with gzip, but its name does not end in .gz; rename it",
        ),
    ],
)
def test_files_that_are_no_text_say_what_they_are(tmp_path, content, message):
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(SENTENCES, path)


def test_nul_characters_are_counted(tmp_path):
    split = load(SENTENCES, write(tmp_path / "train.tsv", "text\tlabel\na\0b\tpos\nc\tneg\n"))
    assert split.remarks == ("train.tsv: 1 row: a NUL character in a field; kept (first: row 2)",)


def test_bad_json(tmp_path):
    with pytest.raises(DataError, match=r"train.jsonl:1: not valid JSON .*one object per line"):
        load(SENTENCES, write(tmp_path / "train.jsonl", '{"text": "a", "label": "pos"},\n'))
    with pytest.raises(DataError, match=r"train.jsonl:2: not valid JSON"):
        load(SENTENCES, write(tmp_path / "train.jsonl", '{"text": "a", "label": "pos"}\n{"text": \n'))
    with pytest.raises(DataError, match=r"train.jsonl:1: int, expected an object"):
        list(Columns(text="text").read(write(tmp_path / "train.jsonl", "5\n6\n"), Remarks(tmp_path)))
    with pytest.raises(DataError, match=r"train.json: no field 'qas'; expected Questions about passages"):
        load(task("squad1"), write(tmp_path / "train.json", '{"data": [{"paragraphs": [{"context": "a"}]}]}'))
    with pytest.raises(DataError, match=r"train.json: has no rows; expected a table or JSON records with text"):
        load(SENTENCES, write(tmp_path / "train.json", '{"text": "a",\n"label": "pos"}'))


@pytest.mark.parametrize("indent", [None, 1])
def test_records_in_the_list_data_of_an_object(tmp_path, indent):
    records = [{"text": "a", "label": "pos"}, {"text": "b", "label": "neg"}]
    path = write(tmp_path / "train.json", json.dumps({"version": "1", "data": records}, indent=indent))
    assert tables.columns(path, Remarks(path)) == ("text", "label")
    assert [example.label for example in load(SENTENCES, path).examples] == ["pos", "neg"]


def test_one_of_a_file_and_its_compressed_copy_is_read(tmp_path):
    for name in ("train.tsv", "train.tsv.gz"):
        write(tmp_path / name, "sentence\tlabel\na\t1\nb\t0\n")
    split = task("sst2").load(tmp_path, "train")
    assert len(split) == 2 and split.files == (str(tmp_path / "train.tsv"),)
    assert split.remarks == ("train.tsv: read, but not train.tsv.gz",)


def test_a_quoted_line_end_is_noticed_wherever_it_is(tmp_path):
    rows = "a\tpos\n" * 300
    split = load(SENTENCES, write(tmp_path / "train.tsv", f'text\tlabel\n{rows}"two\nlines"\tneg\n'))
    assert len(split) == 301 and split.examples[-1].text == "two\nlines"
    split = load(SENTENCES, write(tmp_path / "train.tsv", f'text\tlabel\n"a\tpos\n{rows}b"\tneg\n'))
    assert len(split) == 302 and split.examples[0].text == '"a'


def test_ids_count_the_rows_of_all_files(tmp_path):
    rows = "".join("broken\n" if i == 3 else f"t{i}\tpos\n" for i in range(200))
    split = load(SENTENCES, write(tmp_path / "train.tsv", "text\tlabel\n" + rows))
    assert [e.id for e in split.examples][:5] == ["0", "1", "2", "4", "5"]
    paths = [jsonl(tmp_path / f"{i}.jsonl", *[{"text": "a", "label": "pos"}] * 2) for i in range(2)]
    split = SENTENCES.read(paths, "train")
    assert [e.id for e in split.examples] == ["0", "1", "2", "3"] and split.remarks == ()
    conll = [write(tmp_path / f"{i}.txt", "a O\n\nb O\n") for i in range(2)]
    assert [e.id for e in task("resume").read(conll, "train").examples] == ["0", "1", "2", "3"]
