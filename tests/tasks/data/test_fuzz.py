"""Any labelled file is a task or an error of one line: random tables, delimiters, quotes, blank lines, encodings."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from encoderlab.errors import ConfigError, DataError
from encoderlab.tasks.data.infer import Given, task_of
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms.table import FORMS

HEADERS = (
    "text", "label", "sentence1", "sentence2", "tokens", "ner_tags", "question", "context", "answers", "options", "a",
    "b", "c", "id", "score", "keyword", "abst", "stem", "Wort", "", "0", "text",
)  # fmt: skip
cells = st.one_of(
    st.sampled_from(["", " ", "a b c", "B-PER O O", "O", "0", "1", "-1", "1.5", "1,5", "nan", "x\ny", 'say "no"', "北京", "\u3000", "\x00", "[1]", "-DOCSTART-", "#", "\ufeff", "1e999", "a\tb", "a,b", "\\N"]),  # noqa: E501
    st.text(max_size=12),
)  # fmt: skip
values = st.recursive(
    st.one_of(cells, st.none(), st.booleans(), st.integers(-5, 10**20), st.floats()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(HEADERS), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """The name and the bytes of a file."""
    kind = draw(st.sampled_from([".csv", ".tsv", ".txt", ".jsonl", ".json", ".conll", ""]))
    header = draw(st.lists(st.sampled_from(HEADERS), min_size=1, max_size=5))
    count = draw(st.integers(0, 8))
    if kind in (".jsonl", ".json"):
        records = [draw(st.dictionaries(st.sampled_from(header), values, max_size=5)) for _ in range(count)]
        text = "\n".join(map(json.dumps, records)) if draw(st.booleans()) else json.dumps(records)
    else:
        separator = draw(st.sampled_from([",", "\t", ";", "|", " "]))
        rows = [draw(st.lists(cells, min_size=1, max_size=5)) for _ in range(count)]
        file = io.StringIO()
        quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        table = csv.writer(file, delimiter=separator, quoting=quoting, lineterminator=draw(st.sampled_from("\n\r")))
        table.writerows([header, *rows] if draw(st.booleans()) else rows)
        text = file.getvalue()
        for _ in range(draw(st.integers(0, 3))):  # blank lines, and harm
            place = draw(st.integers(0, len(text)))
            text = text[:place] + draw(st.sampled_from(["\n", "\n\n", '"', separator])) + text[place:]
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    return f"mine{kind}", text.encode(encoding, errors="replace" if encoding == "latin-1" else "surrogatepass")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(file=("mine.csv", b"label,label\n"), form=None, text=None)
@given(file=files(), form=st.none() | st.sampled_from(sorted(FORMS)), text=st.none() | st.sampled_from(HEADERS))
def test_a_file_is_a_task_or_an_error_of_one_line(file, form, text, tmp_path: Path) -> None:
    path = tmp_path / file[0]
    path.write_bytes(file[1])
    try:
        task, said = task_of(path, Given(form=form, text=text))
        for part in ("train", "test"):
            split = task.read([path], part, skip_unlabelled=True)
            if part == "train":
                task = completed(task, split)
    except (DataError, ConfigError) as error:
        assert "\n" not in str(error) and len(str(error)) > 10
    else:
        assert "\n" not in said and len(split) > 0
    path.unlink()


# A table is the same task wherever it has blank lines.


def reviews(count: int = 30) -> list[str]:
    rng = random.Random(1)
    return [f"{' '.join(rng.choice(['good', 'bad', 'film']) for _ in range(4))}\t{i % 2}" for i in range(count)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.integers(1, 30), max_size=4),
    end=st.integers(0, 4),
    header=st.sampled_from(["text\tlabel", "sentence\tclass", "Review\tStars"]),
    name=st.sampled_from(["a.tsv", "a.txt"]),
)
def test_blank_lines_make_no_words_of_a_table(places, end, header, name, tmp_path: Path) -> None:
    lines = reviews()
    for place in places:
        lines.insert(place, "")
    (tmp_path / name).write_text("\n".join([header, *lines]) + "\n" * end)
    task, _ = task_of(tmp_path / name)
    assert task.form == "classification"
    assert len(task.read([tmp_path / name], "test")) == 30


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=30), name=st.sampled_from(["text_a", "text", "sentence"])
)
def test_texts_with_a_tag_for_each_word_are_tagged(lengths, name, tmp_path: Path) -> None:
    """MSRA's layout, by any name of the columns."""
    rows = [f"{' '.join(['北'] * n)}\t{' '.join(['B-LOC'] + ['O'] * (n - 1))}" for n in lengths]
    (tmp_path / "a.tsv").write_text("\n".join([f"{name}\tlabel", *rows]) + "\n")
    task, said = task_of(tmp_path / "a.tsv")
    assert task.form == "tagging" and f"words = {name!r}" in said
    assert [len(one.words) for one in task.read([tmp_path / "a.tsv"], "test").examples] == lengths


@pytest.mark.parametrize("rows", [25, 200])
def test_nearly_as_many_classes_as_rows_are_a_question(rows, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"text {i},name {i % (rows - 5)}\n" for i in range(rows)))
    with pytest.raises(
        DataError, match=r"different labels in .* rows, .* are these classes\? .* --form classification"
    ):
        task_of(path)
    assert task_of(path, Given(form="classification"))[0].form == "classification"


def test_options_of_a_file_without_header_are_named_by_number(tmp_path: Path) -> None:
    path = tmp_path / "arc.csv"
    path.write_text("".join(f"what is it {i}?,red,blue,green,one,{'ABCD'[i % 4]}\n" for i in range(8)))
    task, said = task_of(path, Given(form="choice", text="0", label="5", options=("1", "2", "3", "4")))
    examples = task.read([path], "train").examples
    assert [one.answers for one in examples] == [(i % 4,) for i in range(8)] and "options = 1, 2, 3, 4" in said
    assert examples[0].options == ("red", "blue", "green", "one")
    with pytest.raises(ConfigError, match="no column 'x'"):
        task_of(path, Given(form="choice", text="0", label="5", options=("x", "2")))


def test_keyword_lists_of_csl_are_known_by_their_columns(tmp_path: Path) -> None:
    records = [{"id": i, "abst": "the cat", "keyword": ["cat", "dog"], "label": str(i % 2)} for i in range(4)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, records)))
    task, said = task_of(tmp_path / "mine.jsonl")
    assert "keywords and an abstract" in said
    assert task.read([tmp_path / "mine.jsonl"], "train").examples[0].text == "cat dog"
