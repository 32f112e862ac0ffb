"""Files of pairs: every format, and what is wrong with one, with file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.errors import DataError
from encoderlab.measure.pairs.reading import Pair, find, read, read_all, sample

RECORD = {"sentence_good": "She left.", "sentence_bad": "She leave.", "UID": "agreement", "linguistics_term": "verbs"}


def test_json_lines_with_a_paradigm_and_without(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.gz"
    with gzip.open(path, "wt") as file:
        plain = {"sentence_good": "你好。", "sentence_bad": "好你。", "phenomenon": "order"}
        file.write(f"{json.dumps(RECORD)}\n\n{json.dumps(plain)}\n")
    first, second = read(path)
    assert first == Pair("She left.", "She leave.", "agreement", "verbs", f"{path}:1")
    assert second == Pair("你好。", "好你。", "one order", "order", f"{path}:3")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'sentence_good,sentence_bad,UID\n"One, two",x,u\nb,c,\n'),
        ("a.tsv", "good\tbad\tUID\nOne, two\tx\tu\nb\tc\t\n"),
        ("a.json", json.dumps([{"good": "One, two", "bad": "x", "UID": "u"}, {"good": "b", "bad": "c"}])),
        ("a.tsv", "idx\tsen\twrong_sen\tUID\n1\tOne, two\tx\tu\n2\tb\tc\t\n"),
        ("a.csv", 'ungrammatical,grammatical,UID\nx,"One, two",u\nc,b,\n'),
        ("a.txt", '{"good": "One, two", "bad": "x", "UID": "u"}\n{"good": "b", "bad": "c"}\n'),
    ],
)
def test_other_records(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    found = [(pair.good, pair.bad, pair.paradigm) for pair in read(tmp_path / name)]
    assert found == [("One, two", "x", "u"), ("b", "c", "a")]


def test_files_of_one_name_in_two_folders_are_two_paradigms(tmp_path: Path) -> None:
    """As MultiBLiMP's ``eng/data.tsv`` and ``deu/data.tsv``. A UID names its paradigm in every file."""
    for place in ("eng/data", "deu/data", "deu/other"):
        path = tmp_path / f"{place}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"good": "g", "bad": "b"}\n{"good": "g", "bad": "b", "UID": "u"}')
    pairs = read_all(find([tmp_path]))
    assert [pair.paradigm for pair in pairs] == ["deu/data", "u", "other", "u", "eng/data", "u"]
    (tmp_path / "eng" / "data.txt").write_text("g\nb")
    assert {pair.paradigm for pair in read_all(find([tmp_path / "eng"]))} == {"data", "u"}


def test_a_pair_on_two_lines_in_either_order(tmp_path: Path) -> None:
    path = tmp_path / "zorro.txt"
    path.write_text("good one\nbad one\n\n\ngood two\nbad two")
    assert [(p.good, p.bad, p.place) for p in read(path)] == [
        ("good one", "bad one", f"{path}:1"),
        ("good two", "bad two", f"{path}:5"),
    ]
    assert next(read(path, bad_first=True)).good == "bad one"
    named = tmp_path / "named.jsonl"
    named.write_text('{"sentence_bad": "b", "sentence_good": "g"}')
    assert next(read(named, bad_first=True)).good == "g"  # the names say which is which


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"sentence_good": "a"}', "a.jsonl:1: no field 'sentence_bad'; a pair has"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": " "}', "a.jsonl:1: sentence_bad is ' ', expected a sent"),
        ("a.jsonl", '{"sentence_good": 3, "sentence_bad": "b"}', "a.jsonl:1: sentence_good is 3"),
        ("a.jsonl", '\n{"sentence_good": ', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", "[]", None),
        ("a.csv", "text,label\na,b\n", "a.csv:2: no field 'sentence_good'; .* has text, label; correct the record"),
        (
            "a.csv",
            "good,bad\na,b\nHe left, she said.,He leave\na,b\n",
            "a.csv:3: number of columns 3, .* a comma ",
        ),
        (
            "a.tsv",
            "good\tbad\n" + "a\tb\n" * 150 + "a\n",
            "a.tsv:152: number of columns 1, expected 2 .* a tab ",
        ),
        ("a.txt", "a\n\nb\n", "a.txt:2: is empty, expected the second sentence"),
        ("a.txt", "sentence_good\tsentence_bad\na\tb\nc\td\n", "a.txt:1: is a row of a table .* call the file .tsv"),
        ("a.txt", "sentence_good,sentence_bad\na,b\n", "a.txt:1: is a row of a table"),
        ("a.txt", "a\nb\nc\td\ne\tf\n", "a.txt:3: is a row of a table"),
        ("a.txt", "a\nb\nc\n", "a.txt:3: the second sentence of the last pair is missing"),
    ],
)
def test_a_damaged_pair_is_refused_with_its_line(name: str, text: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    if message is None:
        assert list(read(tmp_path / name)) == []
    else:
        with pytest.raises(DataError, match=message):
            list(read(tmp_path / name))


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", ".hidden.jsonl", "README.md", "deep/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [path.name for path in find([tmp_path])] == ["a.jsonl.gz", "b.jsonl", "c.csv"]
    assert find([tmp_path / "README.md"]) == [tmp_path / "README.md"]  # what is named is read, whatever its name
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no file of pairs"):
        find([tmp_path / "empty"])
    with pytest.raises(DataError, match="no such file or folder"):
        find([tmp_path / "absent"])
    with pytest.raises(DataError, match=r"c.csv: given twice, so its pairs would count twice"):
        find([tmp_path, tmp_path / "deep" / ".." / "deep" / "c.csv"])


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 30))
def test_a_sample_has_as_many_of_each_paradigm(names: list[str], size: int) -> None:
    pairs = [Pair(str(n), "x", name, "", "") for n, name in enumerate(names)]
    chosen = sample(pairs, size)
    assert len(chosen) == min(size, len(pairs)) and chosen == [pair for pair in pairs if pair in chosen]
    counts = {name: sum(pair.paradigm == name for pair in chosen) for name in set(names)}
    for name, count in counts.items():
        assert count >= min(names.count(name), max(counts.values()) - 1)


JUNK = st.one_of(
    st.text(max_size=80), st.lists(st.sampled_from(["good", "bad", ",", "\n", '"', "{", "}", ":", "x"])).map("".join)
)


@given(text=JUNK, name=st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt"]))
def test_any_file_gives_pairs_or_an_error_of_one_line(
    text: str, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("junk") / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        for pair in read(path):
            assert pair.good.strip() and pair.bad.strip() and pair.paradigm
    except DataError as error:
        assert name in str(error) and "\n" not in str(error)


def test_a_paradigm_of_number_0_and_two_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"sentence_good": "a b", "sentence_bad": "b a", "UID": 0}\n')
    assert [pair.paradigm for pair in read(tmp_path / "p.jsonl")] == ["0"]
    (tmp_path / "p.csv").write_text("sentence_good,sentence_bad,sentence_good\na b,b a,c\n")
    with pytest.raises(DataError, match="two columns are called 'sentence_good'"):
        list(read(tmp_path / "p.csv"))
