"""Layouts of words with tags."""

from __future__ import annotations

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data.readers import Conll, Squad, TextSpans, WordLists
from encoderlab.tasks.data.suites import task
from encoderlab.tasks.data.task import Remarks, Task
from tests.tasks.data.written import jsonl, load, write


def test_column_files_give_documents_and_convert_schemes(tmp_path):
    path = write(
        tmp_path / "train.txt",
        "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n-DOCSTART- -X- O O\n\nSue NNP I-NP I-PER\n"
        "Ann NNP I-NP B-PER\n",
    )
    split = load(task("conll2003"), path)
    assert [e.document for e in split.examples] == [0, 1]
    assert [e.tags for e in split.examples] == [("B-ORG", "O"), ("B-PER", "B-PER")]
    path = write(tmp_path / "x.bmes.gz", "吴 B-NAME\n重 M-NAME\n阳 E-NAME\n， O\n女 S-X\n\n")
    assert load(task("resume"), path).examples[0].tags == ("B-NAME", "I-NAME", "I-NAME", "O", "B-X")


@pytest.mark.parametrize("comment", ["# id 3d4f domain=en", "# id 3d4f\tdomain=en"])
def test_ids_of_sentences_are_no_words(tmp_path, comment):
    words = "Sue _ _ B-PER\nran _ _ O\n# _ _ O\n"
    path = write(tmp_path / "en.conll", f"{comment}\n{words}\n{comment}\n{words}")
    found = list(Conll().read(path, Remarks(path)))
    assert [(one.words, one.row) for one in found] == [(("Sue", "ran", "#"), 2), (("Sue", "ran", "#"), 7)]


def test_word_lists_and_nested_spans(tmp_path):
    jsonl(tmp_path / "train.jsonl", {"tokens": ["EU", "says"], "ner_tags": [3, 0]})
    assert load(task("conll2003"), tmp_path / "train.jsonl").examples[0].tags == ("B-ORG", "O")
    write(tmp_path / "msra/train.tsv", "text_a\tlabel\n在 北 京\tO B-LOC I-LOC\n")
    assert task("msra").load(tmp_path, "train").examples[0].tags == ("O", "B-LOC", "I-LOC")
    jsonl(tmp_path / "cluener/train.json", {"text": "看CSOL吧", "label": {"game": {"CSOL": [[1, 4]]}}})
    assert task("cluener").load(tmp_path, "train").examples[0].tags == ("O", "B-game", *["I-game"] * 3, "O")


SPANS = Task(name="t", form="tagging", metrics=("f1",), layouts=(TextSpans(),))


def test_entities_by_their_characters(tmp_path):
    text = "Bob-Lee met Ann in 北京, not."
    spans = [[12, 15, "PER"], {"start": 0, "end": 7, "label": "PER"}, {"start": 19, "end": 21, "type": "LOC"}]
    path = jsonl(tmp_path / "train.jsonl", {"text": text, "label": spans}, {"text": "no", "label": []})
    first, second = load(SPANS, path).examples
    assert first.words == ("Bob-Lee", "met", "Ann", "in", "北", "京", ",", "not", ".")
    assert first.tags == ("B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC", "O", "O", "O") and second.tags == ("O",)
    path = jsonl(tmp_path / "train.jsonl", {"text": text, "label": [[0, 3, "PER"], [3, 11, "X"], [4, 11, "ORG"]]})
    split = load(SPANS, path)
    assert split.examples[0].tags[:3] == ("B-X", "I-X", "O")
    assert split.remarks == (
        "train.jsonl: 3 rows: an entity begins or ends within a word; the whole word counts (first: row 1)",
        "train.jsonl: 2 rows: mentions overlap; the first and longest is kept (first: row 1)",
    )
    for wrong in ([0, 99, "PER"], [3, 3, "PER"], [0, 3], "PER"):
        with pytest.raises(DataError, match="train.jsonl:1: .* is no span in 27 characters; correct it"):
            load(SPANS, jsonl(tmp_path / "train.jsonl", {"text": text, "label": [wrong]}))


@pytest.mark.parametrize(
    ("words", "tags", "expected"),
    [
        ("['EU', \"it's\"]", "['B-ORG', 'O']", ("B-ORG", "O")),  # Python
        ("['EU', \"it's\"]", "[3, 0]", ("3", "0")),
        ("['EU' \"it's\"]", "['B-ORG'\n 'O']", ("B-ORG", "O")),  # NumPy
        ("['EU' \"it's\"]", "[ 3  0]", ("3", "0")),
        ('["EU", "it\'s"]', "[3, 0]", ("3", "0")),  # JSON
        ("EU it's", "3 0", ("3", "0")),
    ],
)
def test_lists_in_a_cell_as_pandas_writes_them(tmp_path, words, tags, expected):
    cells = ",".join('"{}"'.format(cell.replace('"', '""')) for cell in (words, tags))
    path = write(tmp_path / "t.csv", f"tokens,ner_tags\n{cells}\n")
    (sentence,) = WordLists().read(path, Remarks(path))
    assert (sentence.words, sentence.tags) == (("EU", "it's"), expected)


def test_quoted_cells_between_tabs(tmp_path):
    path = write(tmp_path / "t.tsv", "tokens\tner_tags\n\"['EU', '\"\"']\"\t['B-ORG', 'O']\n")
    (sentence,) = WordLists().read(path, Remarks(path))
    assert sentence.words == ("EU", '"')
    write(path, 'tokens\tner_tags\n" EU\tO B-ORG\n')  # without quoting: a word
    (sentence,) = WordLists().read(path, Remarks(path))
    assert sentence.words == ('"', "EU")


def test_words_without_their_sentences_are_said(tmp_path):
    path = write(tmp_path / "train.csv", "sentence,words,labels\n1,Sue,B-PER\n1,ran,O\n")
    layout = WordLists(words="words", tags="labels")
    one = Task(name="t", form="tagging", metrics=("f1",), layouts=(layout,))
    (said,) = one.read([path], "train").remarks
    assert "every row has one word" in said and "one row" in said
    write(path, "words,labels\nSue ran,B-PER O\nSue,B-PER\n")
    assert not one.read([path], "train").remarks


def test_spaces_around_a_tag(tmp_path):
    path = write(tmp_path / "train.conll", "EU\tB-ORG \nit\tO \n\na\tO\n")
    assert [e.tags for e in Conll().read(path, Remarks(path))] == [("B-ORG", "O"), ("O",)]


def test_bad_tags(tmp_path):
    with pytest.raises(DataError, match=r"train.txt:3: 1 columns, the lines before have 2"):
        load(task("resume"), write(tmp_path / "train.txt", "a O\nb O\nc\n"))
    with pytest.raises(DataError, match="2 tags for 1 words"):
        load(task("conll2003"), jsonl(tmp_path / "train.jsonl", {"tokens": ["a"], "ner_tags": ["O", "O"]}))
    with pytest.raises(DataError, match=r"train.txt:\d+: tags mix the prefixes I and M"):
        load(task("resume"), write(tmp_path / "train.txt", "a B-X\nb M-X\n\na B-X\nb I-X\n"))
    split = load(task("resume"), write(tmp_path / "train.txt", "a B-X\nb O\nc I-X\n\nd B-X\n"))
    assert split.examples[0].tags == ("B-X", "O", "B-X") and "1 I tags open an entity" in split.remarks[0]


def test_words_whose_tags_no_tab_or_space_separates_are_told_so(tmp_path):
    (tmp_path / "t.conll").write_text("Sue;B-PER\nran;O\n")
    words = Task(name="ner", form="tagging", metrics=("f1",), layouts=(Conll(),))
    with pytest.raises(DataError, match="t.conll:1: no label; .* in a column behind the word, after a tab or a space"):
        words.read([tmp_path / "t.conll"], "train")


def test_tags_are_reported_at_their_line(tmp_path):
    with pytest.raises(DataError, match="train.txt:3: tag 'B-DATE' is not one of"):
        load(task("conll2003"), write(tmp_path / "train.txt", "a N N O\nb N N O\nc N N B-DATE\n"))
    with pytest.raises(DataError, match="train.txt:1: tag '²' is not one of"):
        load(task("conll2003"), write(tmp_path / "train.txt", "a N N ²\n"))
    with pytest.raises(DataError, match="train.txt:2: tag 'o' has no prefix"):
        load(task("conll2003"), write(tmp_path / "train.txt", "a N N B-PER\nb N N o\n"))
    split = load(task("resume"), write(tmp_path / "train.txt", "a B-X\nb M-X\nc O\n\nd S-X\n"))
    assert split.remarks == (
        "train.txt: BMES tags, but 1 tags break the scheme (first: row 1); read as conlleval does",
    )


def test_a_wide_space_is_a_word(tmp_path):
    split = load(task("resume"), write(tmp_path / "train.txt", "张 B-X\n\u3000 O\n"))
    assert split.examples[0].words == ("张", "\u3000")


def test_layouts_read_records_in_order(tmp_path):
    assert [e.words for e in Conll().read(write(tmp_path / "t.txt", "a\nb\n\nc\n"), Remarks(tmp_path))] == [
        ("a", "b"),
        ("c",),
    ]
    assert not Squad().matches(("text",)) and WordLists().matches(("tokens",))
