"""Published layouts, from small files written here, and what bad data says."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random

import pytest

from encoderlab.errors import DataError
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.readers import Columns, Conll, Squad, WordLists
from encoderlab.tasks.data.suites import TASKS, task
from encoderlab.tasks.data.task import Answer, Remarks, Task, is_unlabelled


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(encoding)) if path.suffix == ".gz" else text.encode(encoding))
    return path


def jsonl(path, *records):
    return write(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


SENTENCES = Task(
    name="sentences",
    form="classification",
    metrics=("accuracy",),
    layouts=(Columns(text="text"),),
    labels=("neg", "pos"),
)


def load(task, path, split="train"):
    return task.load(path, split)


# Layouts


def test_glue_files_keep_quotation_marks(tmp_path):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write(tmp_path / "MRPC/dev.tsv", header + '1\t1\t2\tHe said "no.\t"Yes" he said\n')
    split = task("MRPC").load(tmp_path, "dev")
    assert split.examples[0].text == 'He said "no.' and split.examples[0].pair == '"Yes" he said'
    assert split.examples[0].label == "1" and split.remarks == ()


def test_cola_with_and_without_header(tmp_path):
    write(tmp_path / "train.tsv.gz", "gj04\t1\t\tWe eat.\ngj04\t0\t*\tEat we the.\n")
    write(tmp_path / "test.tsv", "index\tsentence\n0\tShe left.\n")
    assert [(e.text, e.label) for e in task("cola").load(tmp_path, "train").examples] == [
        ("We eat.", "1"),
        ("Eat we the.", "0"),
    ]
    assert [(e.id, e.label) for e in task("cola").load(tmp_path, "test").examples] == [("0", None)]


def test_hugging_face_columns_hold_numbers_of_labels(tmp_path):
    jsonl(tmp_path / "validation_matched.jsonl", {"premise": "a", "hypothesis": "b", "label": 2, "idx": 7})
    example = task("mnli").load(tmp_path, "dev").examples[0]
    assert (example.label, example.id) == ("contradiction", "7")
    write(tmp_path / "rte/validation.csv", 'sentence1,sentence2,label,idx\n"a, b",c,1,0\n')
    assert task("rte").load(tmp_path, "dev").examples[0].label == "not_entailment"


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


def test_stsb_as_published_by_its_authors(tmp_path):
    write(
        tmp_path / "sts-dev.csv",
        "n\tf\t2012\t1\t5.000\tA man, here.\tA man.\nn\tf\t2012\t2\t2.4\tx\ty\turl\turl\n",
    )
    split = task("stsb").load(tmp_path, "dev")
    assert [e.label for e in split.examples] == [5.0, 2.4]
    assert "separated by tab, not by comma" in split.remarks[0]


def test_superglue_records(tmp_path):
    jsonl(tmp_path / "BoolQ/train.jsonl", {"question": "is it", "passage": "It is.", "idx": 0, "label": True})
    assert task("boolq").load(tmp_path, "train").examples[0].label == "true"
    target = {"span1_index": 0, "span1_text": "Ann", "span2_index": 4, "span2_text": "she"}
    wsc = {"text": "Ann met Sue because she called.", "target": target, "label": False}
    jsonl(tmp_path / "WSC/train.jsonl", wsc)
    assert task("wsc").load(tmp_path, "train").examples[0].text == "_Ann_ met Sue because [she] called."
    passage = {
        "text": "P.",
        "questions": [{"question": "q?", "idx": 3, "answers": [{"text": "a", "label": 1, "idx": 5}]}],
    }
    jsonl(tmp_path / "MultiRC/val.jsonl", {"idx": 2, "passage": passage})
    example = task("multirc").load(tmp_path, "dev").examples[0]
    assert (example.id, example.group, example.pair, example.label) == ("2-3-5", "2-3", "q? a", "1")
    copa = {"premise": "It rained.", "choice1": "a", "choice2": "b", "question": "effect", "label": 1, "idx": 0}
    jsonl(tmp_path / "COPA/train.jsonl", copa)
    assert task("copa").load(tmp_path, "train").examples[0].answers == (1,)
    record = {
        "passage": {"text": "Rome and Oslo.", "entities": [{"start": 0, "end": 3}, {"start": 9, "end": 12}]},
        "qas": [{"query": "@placeholder is south.", "idx": 4, "answers": [{"text": "Rome", "start": 0, "end": 3}]}],
    }
    jsonl(tmp_path / "ReCoRD/val.jsonl", record)
    example = task("record").load(tmp_path, "dev").examples[0]
    assert (example.options, example.answers, example.id) == (("Rome", "Oslo"), (0,), "4")


def test_multiple_choice_layouts(tmp_path):
    endings = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    write(tmp_path / "swag/train.csv", endings + "He sat.,He,ran,slept,ate,sang,2\n")
    assert task("swag").load(tmp_path, "train").examples[0].answers == (2,)
    write(tmp_path / "arc/arc_easy_dev.csv", '"Why, then?",a,b,c,d,B\nWhat?,a,b,c,d,1\nGone?,,,,,3\n')
    split = task("arc").load(tmp_path, "dev")
    assert [e.answers for e in split.examples] == [(1,), (0,)] and "fewer than two options" in split.remarks[0]
    arc = {"id": "x", "question": "q", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"}
    jsonl(tmp_path / "arc/dev.jsonl", arc)
    assert task("arc").read([tmp_path / "arc/dev.jsonl"], "dev").examples[0].answers == (1,)
    named = "{'text': array(['a', 'b'], dtype=object), 'label': array(['A', 'B'], dtype=object)}"  # as pandas writes it
    for cell in ("['a', 'b']", "['a' 'b']", '[""a"", ""b""]', named, "{'A': 'a', 'B': 'b'}"):
        write(tmp_path / "arc/train.csv", f'id,question,choices,answerKey\n1,Why?,"{cell}",B\n')
        example = task("arc").read([tmp_path / "arc/train.csv"], "train").examples[0]
        assert (example.options, example.answers) == (("a", "b"), (1,))
    race = {
        "article": "A.",
        "questions": ["q1", "q2"],
        "options": [["a", "b"], ["c", "d"]],
        "answers": ["B", "A"],
        "id": "h1",
    }
    jsonl(tmp_path / "race/dev.jsonl", race)
    assert [(e.id, e.answers) for e in task("race").load(tmp_path, "dev").examples] == [("h1-0", (1,)), ("h1-1", (0,))]
    c3 = [[["line 1", "line 2"], [{"question": "q", "choice": ["x", "y"], "answer": "y"}], "7-1"]]
    write(tmp_path / "c3/c3-d-train.json", json.dumps(c3, indent=1))
    example = task("c3").load(tmp_path, "train").examples[0]
    assert (example.context, example.answers) == ("line 1\nline 2", (1,))


def test_further_published_files(tmp_path):
    arc = {"question": {"stem": "q", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]}}
    path = jsonl(tmp_path / "arc/ARC-Easy-Train.jsonl", arc | {"id": "x", "answerKey": "2"})
    example = task("arc").load(tmp_path / "arc", "train").examples[0]
    assert (example.id, example.question, example.options, example.answers) == ("x", "q", ("a", "b"), (1,)), path
    race = {"answers": ["B"], "options": [["a", "b"]], "questions": ["q, x?"], "article": "A\tB.", "id": "high1.txt"}
    jsonl(tmp_path / "race/train/high/1.txt", race)
    example = task("race").load(tmp_path / "race", "train").examples[0]
    assert (example.id, example.question, example.answers) == ("high1.txt-0", "q, x?", (1,))
    flat = {"span1_text": "Tom", "span1_index": 0, "span2_text": "he", "span2_index": 2}
    path = jsonl(tmp_path / "wsc.jsonl", {"text": "Tom is he", "idx": 7, "label": 1} | flat)
    example = load(task("wsc"), path).examples[0]
    assert (example.id, example.text, example.label) == ("7", "_Tom_ is [he]", "true")
    sick = {"id": "5", "sentence_A": "a", "sentence_B": "b", "label": 1, "relatedness_score": 3.5}
    path = jsonl(tmp_path / "sick.jsonl", sick)
    assert [(e.id, e.label) for e in load(task("sick_entailment"), path).examples] == [("5", "NEUTRAL")]
    assert load(task("sick_relatedness"), path).examples[0].label == 3.5
    write(tmp_path / "msra/train.tsv", "text_a\tlabel\n张\x02三\tB-PER\x02I-PER\n")
    assert task("msra").load(tmp_path, "train").examples[0].words == ("张", "三")
    record = {"passage": "ab cd", "query": "@placeholder x", "entities": ["ab", "cd"], "answers": ["ab"]}
    path = jsonl(tmp_path / "record.jsonl", record | {"idx": {"passage": 0, "query": 3}})
    assert load(task("record"), path).examples[0].id == "3"


def test_a_few_examples_are_not_all_of_clue_s(tmp_path):
    jsonl(tmp_path / "tnews/train.json", {"sentence": "a", "label": "100"})
    with pytest.raises(DataError, match="tnews_few: no train file"):
        task("tnews_few").load(tmp_path, "train")


def test_hugging_face_s_c3_has_the_lines_of_a_text_as_a_list(tmp_path):
    record = {"id": 0, "context": ["one", "two"], "question": "q", "choice": ["1", "0"], "answer": "0"}
    path = jsonl(tmp_path / "train.jsonl", record, record | {"id": 1, "answer": "1"})
    examples = load(task("c3"), path).examples
    assert [(e.id, e.context, e.answers) for e in examples] == [("0", "one\ntwo", (1,)), ("1", "one\ntwo", (0,))]


def test_idioms_of_clue_have_their_answers_in_another_file(tmp_path):
    texts = {"candidates": ["a", "b", "c"], "content": ["x #idiom000001# y #idiom000002#", "z #idiom000003#"]}
    jsonl(tmp_path / "train.json", texts)
    write(tmp_path / "train_answer.json", json.dumps({"#idiom000001#": 2, "#idiom000002#": 0, "#idiom000003#": 1}))
    examples = task("clue_chid").load(tmp_path, "train").examples
    assert [(e.id, e.gap, e.answers) for e in examples] == [
        (f"#idiom00000{i}#", f"#idiom00000{i}#", (answer,)) for i, answer in ((1, 2), (2, 0), (3, 1))
    ]
    jsonl(tmp_path / "test1.0.json", texts)
    assert task("clue_chid").load(tmp_path, "test1.0").examples[0].answers is None


@pytest.mark.parametrize(
    ("name", "split", "file"),
    [("ax", "test", "AX.tsv"), ("msra", "test", "msra_test_bio.txt"), ("c3", "test", "test1.1.json"),
     ("c3", "test1.0", "test1.0.json"), ("tnews", "test1.0", "test1.0.json"),
     ("swag", "test", "test-00000-of-00001.parquet"), ("triviaqa", "dev", "squad-wikipedia-dev-4096.json"),
     ("triviaqa", "train", "train-v1.2.json")],
)  # fmt: skip
def test_published_names_are_found(tmp_path, name, split, file):
    assert task(name).find(write(tmp_path / file, "x").parent, split) == [tmp_path / file]


def test_of_two_published_forms_of_a_test_file_the_labelled_one_is_read(tmp_path):
    header = "pair_ID\tsentence_A\tsentence_B"
    write(tmp_path / "SICK_test.txt", f"{header}\n1\ta\tb\n")
    judged = f"{header}\trelatedness_score\tentailment_judgment\n1\ta\tb\t3.5\tNEUTRAL\n"
    write(tmp_path / "SICK_test_annotated.txt", judged)
    assert [e.label for e in task("sick_relatedness").load(tmp_path, "test").examples] == [3.5]


def test_one_file_of_sick_holds_all_its_sets(tmp_path):
    header = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set\n"
    rows = [f"{i}\ta {i}\tb\tNEUTRAL\t3.{i}\t{name}\n" for i, name in enumerate(("TRAIN", "TRIAL", "TEST", "TRAIN"))]
    write(tmp_path / "SICK.txt", header + "".join(rows))
    for split, ids in (("train", ["0", "3"]), ("dev", ["1"]), ("test", ["2"])):
        assert [e.id for e in task("sick_entailment").load(tmp_path, split).examples] == ids
    assert [e.label for e in task("sick_relatedness").load(tmp_path, "train").examples] == [3.0, 3.3]


def test_the_test_file_of_stsb_has_a_header_and_no_scores(tmp_path):
    names = "index genre filename year old_index source1 source2 sentence1 sentence2".split()
    row = ["0", "news", "MSRvid", "2012test", "0024", "none", "none", "A girl.", "A boy."]
    path = write(tmp_path / "test.tsv", "\t".join(names) + "\n" + "\t".join(row) + "\n")
    (example,) = task("stsb").read([path], "test").examples
    assert (example.text, example.pair, example.label) == ("A girl.", "A boy.", None)


def test_hugging_face_s_record_has_empty_answers_where_there_are_none(tmp_path):
    record = {"passage": "ab cd", "query": "@placeholder x", "entities": ["ab", "cd"], "answers": []}
    assert is_unlabelled(load(task("record"), jsonl(tmp_path / "test.jsonl", record), "test").examples[0])


def wsc(text, *spans):
    target = {f"span{i}_{key}": span[key == "index"] for i, span in enumerate(spans, 1) for key in ("text", "index")}
    return {"text": text, "target": target, "label": True, "idx": 0}


def test_spans_that_are_misplaced_are_marked_at_the_nearest_whole_words(tmp_path):
    path = jsonl(tmp_path / "train.jsonl", wsc("Then the man saw Bob when he left.", ("bob", 3), ("he", 5)))
    split = load(task("wsc"), path)
    assert split.examples[0].text == "Then the man saw _Bob_ when [he] left."
    assert "2 rows: a span is not at its offset; the nearest mention is marked" in split.remarks[0]
    path = jsonl(tmp_path / "train.jsonl", wsc("He left.", ("Ann", 1), ("He", 0)))
    split = load(task("wsc"), path)
    assert split.examples[0].text == "[He] left." and "nor anywhere else; it is not marked" in split.remarks[0]


def test_a_span_within_the_other_is_marked_within_it(tmp_path):
    path = jsonl(tmp_path / "train.jsonl", wsc("她的妈妈爱她", ("她的妈妈", 0), ("她", 0)))
    assert load(task("cluewsc"), path).examples[0].text == "_[她]的妈妈_爱她"
    path = jsonl(tmp_path / "train.jsonl", wsc("I saw his dog run", ("his dog", 2), ("dog", 3)))
    assert load(task("wsc"), path).examples[0].text == "I saw _his [dog]_ run"


def test_ids_of_cluewsc_are_those_of_the_file(tmp_path):
    target = {"span2_index": 3, "span1_index": 0, "span1_text": "他", "span2_text": "我"}
    for key in ("id", "idx"):
        path = jsonl(tmp_path / "test.json", {"target": target, "text": "他说了我", key: 49})
        assert task("cluewsc").read([path], "test").examples[0].id == "49"


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


def test_word_lists_and_nested_spans(tmp_path):
    jsonl(tmp_path / "train.jsonl", {"tokens": ["EU", "says"], "ner_tags": [3, 0]})
    assert load(task("conll2003"), tmp_path / "train.jsonl").examples[0].tags == ("B-ORG", "O")
    write(tmp_path / "msra/train.tsv", "text_a\tlabel\n在 北 京\tO B-LOC I-LOC\n")
    assert task("msra").load(tmp_path, "train").examples[0].tags == ("O", "B-LOC", "I-LOC")
    jsonl(tmp_path / "cluener/train.json", {"text": "看CSOL吧", "label": {"game": {"CSOL": [[1, 4]]}}})
    assert task("cluener").load(tmp_path, "train").examples[0].tags == ("O", "B-game", *["I-game"] * 3, "O")


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


def squad(tmp_path, answers, context="The cat sat on the mat.", **more):
    qa = {"id": "q1", "question": "Who sat?", "answers": answers} | more
    return write(
        tmp_path / "train-v2.0.json", json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [qa]}]}]})
    )


def test_squad_answers_are_moved_or_marked(tmp_path):
    path = squad(tmp_path, [{"text": "cat", "answer_start": 5}])
    split = task("squad2").load(path, "train")
    assert split.examples[0].answers == (Answer("cat", 4),) and "nearest mention" in split.remarks[0]
    split = task("squad2").load(squad(tmp_path, [{"text": "dog", "answer_start": 4}]), "train")
    assert split.examples[0].answers == (Answer("dog", -1),) and "not trained on" in split.remarks[0]
    assert task("squad2").load(squad(tmp_path, [], is_impossible=True), "train").examples[0].answers == ()
    with pytest.raises(DataError, match="'q1' has an empty passage"):
        task("squad2").load(squad(tmp_path, [], context=" "), "train")


def test_answers_of_triviaqa_are_in_lower_case(tmp_path):
    answer = {"text": "oslo", "answer_start": 0}
    split = task("triviaqa").load(squad(tmp_path, [answer], context="Oslo is in Norway"), "train")
    assert split.examples[0].answers == (Answer("oslo", 0),) and not split.remarks
    split = task("triviaqa").load(squad(tmp_path, [answer], context="In Norway is Oslo"), "train")
    assert split.examples[0].answers == (Answer("oslo", 13),) and "nearest mention" in split.remarks[0]


def test_remarks_count_questions_and_not_their_answers(tmp_path):
    path = squad(tmp_path, [{"text": "cat", "answer_start": 5}] * 3)
    (said,) = task("squad2").load(path, "train").remarks
    assert said.startswith("train-v2.0.json: 1 row: an answer is not at its offset")
    split = task("squad2").load(squad(tmp_path, [{"text": "cat"}], is_impossible="false"), "train")
    assert split.examples[0].answers == (Answer("cat", 4),) and not split.remarks  # it has no offset to be wrong


def test_cmrc_in_its_first_form(tmp_path):
    qas = [{"query_id": f"T_{i}", "query_text": "谁？", "answers": [text, "北京"]} for i, text in enumerate("京我")]
    write(tmp_path / "cmrc2018_dev.json", json.dumps([{"context_id": "T", "context_text": "我爱北京", "qas": qas}]))
    split = task("cmrc2018").load(tmp_path, "dev")
    assert [(e.id, e.passage, e.answers[0]) for e in split.examples] == [
        ("T_0", "我爱北京", Answer("京", 3)), ("T_1", "我爱北京", Answer("我", 0))
    ]  # fmt: skip


def test_answers_may_be_plain_texts(tmp_path):
    record = {"context": "It is red, red.", "question": "What?"}
    given = {"answer": "red"}, {"answers": ["red", "It"]}, {"answer": "red", "answer_start": 11}, {"answer": ""}, {}
    path = jsonl(tmp_path / "train.jsonl", *(record | answer for answer in given))
    red, it, later = Answer("red", 6), Answer("It", 0), Answer("red", 11)
    examples = load(task("squad1"), path, "test").examples
    assert [example.answers for example in examples] == [(red,), (red, it), (later,), (), None]
    lists = {"answers": ["red", "It"], "answer_starts": [11, 0]}, {"answers": {"text": "red", "answer_start": 11}}
    examples = load(task("squad1"), jsonl(tmp_path / "train.jsonl", *(record | answer for answer in lists))).examples
    assert [example.answers for example in examples] == [(later, it), (later,)]
    path = write(
        tmp_path / "train.csv", 'context,question,answers,answer_starts\n"It is red, red.",a,"[\'red\']",[11]\n'
    )
    assert load(task("squad1"), path).examples[0].answers == (later,)
    with pytest.raises(DataError, match=r"train.jsonl:1: .*the answer 0 is neither a text nor a list"):
        load(task("squad1"), jsonl(tmp_path / "train.jsonl", record | {"answer": 0}))


def test_squad_records_of_hugging_face(tmp_path):
    record = {
        "id": "a",
        "context": "It is red.",
        "question": "What?",
        "answers": {"text": ["red"], "answer_start": [6]},
    }
    path = jsonl(tmp_path / "train.jsonl", record, record | {"id": "b", "answers": {"text": [], "answer_start": []}})
    assert [e.answers for e in load(task("squad2"), path).examples] == [(Answer("red", 6),), ()]


@pytest.mark.parametrize(
    "fields",
    [
        {"answers": {"text": ["red"], "answer_start": [6]}, "is_impossible": True},  # plausible only
        {"answers": {"text": [""], "answer_start": [-1]}},
        {"answers": [""], "answer_starts": [-1], "is_impossible": True},  # DuReader
        {"answers": []},
    ],
)
def test_questions_without_an_answer(tmp_path, fields):
    record = {"id": "a", "context": "It is red.", "question": "What?"} | fields
    split = load(task("squad2"), jsonl(tmp_path / "train.jsonl", record))
    assert split.examples[0].answers == () and not split.remarks
    nested = {"data": [{"paragraphs": [{"context": "It is red.", "qas": [record]}]}]}
    split = load(task("squad2"), write(tmp_path / "train-v2.0.json", json.dumps(nested)))
    assert split.examples[0].answers == () and not split.remarks


@pytest.mark.parametrize(
    "cell",
    [
        "{'text': ['red'], 'answer_start': [6]}",  # Python
        "{'text': array(['red'], dtype=object), 'answer_start': array([6], dtype=int32)}",  # NumPy
        '{"text": ["red"], "answer_start": [6]}',  # JSON
        "['red']",
        "[{'text': 'red', 'answer_start': 6}]",
        "red",
    ],
)
def test_answers_in_a_cell_as_pandas_writes_them(tmp_path, cell):
    cells = cell.replace('"', '""')
    path = write(tmp_path / "train.csv", f'id,context,question,answers\n1,It is red.,What?,"{cells}"\n')
    split = load(task("squad1"), path)
    assert split.examples[0].answers == (Answer("red", 6),) and not split.remarks
    path = write(tmp_path / "train.csv", 'id,context,question,answers\n1,a {b} [1] c,What?,"{b}"\n2,a [1],What?,[1]\n')
    assert [e.answers[0].text for e in load(task("squad1"), path).examples] == ["{b}", "[1]"]


# Bad data: one line with file and row, or a counted remark.


@pytest.mark.parametrize(
    ("name", "file", "record", "shown"),
    [
        (
            "squad2",
            "train-v2.0.json",
            {"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1", "question": None, "answers": []}]}]}]},
            "None",
        ),
        ("c3", "d-train.json", [[["a"], [{"question": "q", "choice": ["a", ["b"]], "answer": "a"}], "1"]], r"\['b'\]"),
        ("race", "train.jsonl", {"article": 3, "questions": ["q"], "options": [["a", "b"]], "answers": ["A"]}, "3"),
        ("copa", "train.jsonl", {"premise": "a", "choice1": 1, "choice2": "b", "question": "cause", "label": 0}, "1"),
        ("multirc", "train.jsonl", {"paragraph": {}, "question": "q", "answer": "a", "label": 0, "idx": {}}, "{}"),
    ],
)
def test_what_stands_for_a_text_and_is_none_is_refused(tmp_path, name, file, record, shown):
    path = write(tmp_path / file, json.dumps(record))
    with pytest.raises(DataError, match=rf"{file}:1: {shown} is not a text; correct the row"):
        task(name).load(path, "train")


def test_words_without_their_sentences_are_said(tmp_path):
    path = write(tmp_path / "train.csv", "sentence,words,labels\n1,Sue,B-PER\n1,ran,O\n")
    layout = WordLists(words="words", tags="labels")
    one = Task(name="t", form="tagging", metrics=("f1",), layouts=(layout,))
    (said,) = one.read([path], "train").remarks
    assert "every row has one word" in said and "one row" in said
    write(path, "words,labels\nSue ran,B-PER O\nSue,B-PER\n")
    assert not one.read([path], "train").remarks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text\tlable\na\tpos\n", r"train.tsv:2: no label; train data needs one"),
        ("sentence\tlabel\na\tpos\n", r"no column 'text' among 'sentence', 'label'"),
        ("text\tlabel\na\tpos\nb\tmaybe\n", r"train.tsv:3: label 'maybe' is not one of neg, pos"),
        ("text\tlabel\na\tpos\nb\n", r"train.tsv:3: 1 columns, expected 2; check the separator \(tab\)"),
        ("text\tlabel\n", r"0 examples"),
        ("", r"train.tsv: has no rows; expected the columns text"),
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


def test_numbers_that_are_none_are_no_text_and_no_label(tmp_path):
    with pytest.raises(DataError, match=r"train.jsonl:1: 'text' is NaN, expected text"):
        load(SENTENCES, write(tmp_path / "train.jsonl", '{"text": NaN, "label": "pos"}\n'))
    free = Task(name="free", form="classification", metrics=("accuracy",), layouts=(Columns(text="text"),))
    with pytest.raises(DataError, match=r"train.csv:3: no label"):
        load(free, write(tmp_path / "train.csv", "text,label\na,pos\nb,nan\n"))


def test_bad_json(tmp_path):
    with pytest.raises(DataError, match=r"train.jsonl:1: not valid JSON .*one object per line"):
        load(SENTENCES, write(tmp_path / "train.jsonl", '{"text": "a", "label": "pos"},\n'))
    with pytest.raises(DataError, match=r"train.jsonl:2: not valid JSON"):
        load(SENTENCES, write(tmp_path / "train.jsonl", '{"text": "a", "label": "pos"}\n{"text": \n'))
    with pytest.raises(DataError, match=r"train.jsonl:1: int, expected an object"):
        list(Columns(text="text").read(write(tmp_path / "train.jsonl", "5\n6\n"), Remarks(tmp_path)))
    with pytest.raises(DataError, match=r"train.json: no field 'paragraphs'; expected Questions about passages"):
        load(task("squad1"), write(tmp_path / "train.json", '{"data": [{"text": "a"}]}'))


def test_labels_out_of_range(tmp_path):
    path = write(tmp_path / "train.tsv", "sentence1\tsentence2\tscore\na\tb\t5.5\n")
    with pytest.raises(DataError, match="label 5.5 is outside 0 to 5"):
        load(task("stsb"), path)
    path = jsonl(tmp_path / "train.jsonl", {"premise": "a", "hypothesis": "b", "label": 3})
    with pytest.raises(DataError, match="label '3' is not one of entailment, neutral"):
        load(task("mnli"), path)
    path = jsonl(tmp_path / "train.jsonl", {"premise": "a", "hypothesis": "b", "label": -1})
    assert task("mnli").load(path, "test").examples[0].label is None


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        (
            "race",
            {"article": "a", "questions": ["q"], "options": [["b", "c"]], "answers": ["E"]},
            "answer 4 is not one",
        ),
        (
            "copa",
            {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 2},
            "answer 2 is not one",
        ),
        ("chid", {"content": "x #idiom# y", "candidates": ["a", "b"], "answer": -3}, "answer -3 is not one of the 2"),
        ("clue_chid", {"content": "x #idiom# y", "candidates": ["a"]}, "'content' is one text, expected a list"),
    ],
)
def test_answers_that_are_no_option_are_refused(tmp_path, name, record, message):
    with pytest.raises(DataError, match=f"train.jsonl:1: .*{message}"):
        load(task(name), jsonl(tmp_path / "train.jsonl", record))


def test_duplicate_ids(tmp_path):
    record = {
        "id": "a",
        "context": "It is red.",
        "question": "What?",
        "answers": {"text": ["red"], "answer_start": [6]},
    }
    with pytest.raises(DataError, match=r"train.jsonl:2: id 'a' was used before at .*train.jsonl:1"):
        load(task("squad1"), jsonl(tmp_path / "train.jsonl", record, record))
    path = write(tmp_path / "train.csv", "sentence,label,index\nx,1,3\ny,0,3\nz,1,3\n")
    assert load(task("sst2"), path).remarks == ("train.csv: 2 rows: an id that occurs before (first: row 3)",)


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


def test_one_of_a_file_and_its_compressed_copy_is_read(tmp_path):
    for name in ("train.tsv", "train.tsv.gz"):
        write(tmp_path / name, "sentence\tlabel\na\t1\nb\t0\n")
    split = task("sst2").load(tmp_path, "train")
    assert len(split) == 2 and split.files == (str(tmp_path / "train.tsv"),)
    assert split.remarks == ("train.tsv: read, but not train.tsv.gz",)


def test_of_two_folders_of_a_task_one_is_read_and_the_other_named(tmp_path):
    record = {"id": "1", "question": "q", "choices": ["a", "b"], "answerKey": "A"}
    easy, hard = (jsonl(tmp_path / folder / "dev.jsonl", record) for folder in ("ARC-E", "ARC-C"))
    (said,) = task("arc").load(tmp_path, "dev").remarks
    assert said == f"{easy}: read, but not {hard}; give its folder with --data"
    assert task("arc").load(tmp_path / "ARC-C", "dev").remarks == ()


@pytest.mark.parametrize("value", ["NAN", "inf", "-inf"])
def test_numbers_must_be_finite(tmp_path, value):
    regression = Task(name="r", form="regression", metrics=("spearman",), layouts=(Columns(text="text"),))
    path = write(tmp_path / "train.csv", f"text,label\na,1.5\nb,{value}\n")
    with pytest.raises(DataError, match=f"train.csv:3: label '{value}' is not a finite number"):
        load(regression, path)


def test_labels_written_as_floats_or_capitalised(tmp_path):
    path = jsonl(tmp_path / "train.jsonl", {"sentence": "a", "label": 1.0, "idx": 0})
    assert load(task("sst2"), path).examples[0].label == "1"
    path = write(tmp_path / "train.csv", "sentence,label,idx\na,1.0,0\n")
    assert load(task("sst2"), path).examples[0].label == "1"
    path = jsonl(tmp_path / "train.jsonl", {"question": "a", "passage": "b", "label": "True", "idx": 0})
    assert load(task("boolq"), path).examples[0].label == "true"


def test_a_label_column_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"train.tsv:2: no label; .* no column 'label'; did you mean 'lable'; give"):
        load(SENTENCES, write(tmp_path / "train.tsv", "text\tlable\na\tpos\n"))
    with pytest.raises(DataError, match="no column 'choice2' among 'premise'"):
        load(task("copa"), jsonl(tmp_path / "train.jsonl", {"premise": "p", "choice1": "a", "question": "cause"}))
    with pytest.raises(DataError, match="no column 'abst' among 'id', 'keyword'"):
        load(task("csl"), jsonl(tmp_path / "train.jsonl", {"id": 1, "keyword": ["a"], "label": "0"}))


def test_field_errors_of_tables_name_their_row(tmp_path):
    path = write(tmp_path / "train.csv", "id,question,context,answers,answer_start\n1,q,abc,abc,0\n2,q,abc,abc,x\n")
    with pytest.raises(DataError, match=r"train.csv:3: a field of another kind"):
        load(task("squad1"), path)
    with pytest.raises(DataError, match=r"train.jsonl:1: 'text' is null"):
        load(SENTENCES, jsonl(tmp_path / "train.jsonl", {"text": None, "label": "pos"}))
    with pytest.raises(DataError, match=r"train.csv:1: two columns are called 'text'"):
        load(SENTENCES, write(tmp_path / "train.csv", "text,text,label\na,b,pos\n"))


def test_a_file_of_which_nothing_is_left_says_why(tmp_path):
    path = write(tmp_path / "train.csv", "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,,,,0\n")
    with pytest.raises(DataError, match=r"0 examples \(.*fewer than two options.* row 2\)"):
        load(task("swag"), path)


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


def test_empty_options_are_left_out_behind_the_answer(tmp_path):
    path = write(tmp_path / "train.csv", "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,ran,,ate,sang,2\n")
    example = load(task("swag"), path).examples[0]
    assert example.options == ("ran", "ate", "sang") and example.answers == (1,)


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


@pytest.mark.parametrize(
    ("name", "folder", "sizes"),
    [
        ("cola", "glue", {"train": 8551, "dev": 522}),
        ("sst2", "glue", {"dev": 436}),
        ("mrpc", "glue", {"train": 3668, "dev": 408}),
        ("stsb", "glue", {"train": 5749, "dev": 1500}),
        ("wnli", "glue", {"train": 635}),
        ("sick_relatedness", "glue", {"train": 4500, "dev": 500}),
        ("boolq", "superglue", {"train": 2470, "dev": 800}),
        ("conll2003", "ner", {"dev": 1856}),
        ("msra", "ner", {"dev": 2318}),
        ("resume", "ner", {"train": 3821, "dev": 463}),
        ("cluener", "ner", {"dev": 672}),
        ("cmrc2018", "clue", {"train": 2092, "dev": 482}),
        ("ocnli", "clue", {"dev": 1479}),
        ("chnsenticorp", "clue", {"dev": 1200}),
        ("cluewsc_few", "clue", {"train": 160, "dev": 159, "test_public": 488}),
        ("chid", "clue", {"train": 202, "test_public": 1001}),
        ("csldcp", "clue", {"train": 2036}),
        ("c3", "clue", {"dev": 3816}),
        ("squad1", "qa", {"dev": 1396}),
        ("squad2", "qa", {"dev": 2064}),
        ("arc", "multiple_choice", {"dev": 2147}),
    ],
)
def test_real_files_read_whole(shared, name, folder, sizes):
    for split, size in sizes.items():
        assert len(task(name).load(shared / "data" / folder, split)) == size


def test_every_task_has_metrics_and_layouts():
    for name, found in TASKS.items():
        assert found.name == name and found.metrics and found.layouts
        assert "train" in found.files or name == "ax"  # GLUE's diagnostic set has nothing to train on


@pytest.mark.parametrize(
    ("name", "record", "label"),
    [
        ("stsb", {"sentence1": "a", "sentence2": "b", "label": 2.5, "idx": 1}, 2.5),
        ("qqp", {"question1": "a", "question2": "b", "label": 1, "idx": 1}, "1"),
        ("mrpc", {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 1}, "1"),
        ("ax", {"premise": "a", "hypothesis": "b", "label": 2, "idx": 1}, "contradiction"),
    ],
)
def test_a_layout_with_the_label_goes_before_one_without(tmp_path, name, record, label):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(record) + "\n")
    assert task(name).read([path], "train").examples[0].label == label


RECORDS = {
    "ocnli": {"sentence1": "a", "sentence2": "b", "label": "neutral", "id": 1},
    "cluewsc": {"target": {"span2_index": 3, "span1_index": 0, "span1_text": "他", "span2_text": "我"},
                "label": "true", "text": "他说了我"},
    "csl": {"id": 1, "abst": "abc", "keyword": ["a", "b"], "label": "0"},
    "chid": {"id": 1, "candidates": ["a", "b"], "content": "x #idiom# y", "answer": 0},
    "cluener": {"text": "abc", "label": {"name": {"ab": [[0, 1]]}}},
    "conll2003": {"tokens": ["a", "b"], "ner_tags": ["B-PER", "O"]},
    "squad1": {"id": "1", "context": "abc def", "question": "q", "answers": {"text": ["abc"], "answer_start": [0]}},
    "copa": {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0},
    "multirc": {"idx": 0, "passage": {"text": "t", "questions": [
        {"idx": 0, "question": "q", "answers": [{"idx": 0, "text": "a", "label": 1}]}]}},
    "record": {"idx": 0, "passage": {"text": "ab cd", "entities": [{"start": 0, "end": 1}, {"start": 3, "end": 4}]},
               "qas": [{"idx": 0, "query": "@placeholder x", "answers": [{"text": "ab", "start": 0, "end": 1}]}]},
    "wic": {"word": "w", "sentence1": "a w", "sentence2": "b w", "label": True, "idx": 0},
    "wsc": {"text": "Tom is he", "label": True,
            "target": {"span1_index": 0, "span1_text": "Tom", "span2_index": 2, "span2_text": "he"}},
    "race": {"id": "x", "article": "a", "questions": ["q"], "options": [["a", "b"]], "answers": ["A"]},
    "swag": {"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d", "ending2": "e", "ending3": "f", "label": 1},
    "arc": {"id": "1", "question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
}  # fmt: skip


def broken(record, rng):
    """``record`` without one of its fields, or with something of another kind in it."""
    copy = json.loads(json.dumps(record))
    place, keys = copy, []
    while isinstance(place, (dict, list)) and place and (not keys or rng.random() < 0.7):
        keys.append((place, rng.choice(list(place) if isinstance(place, dict) else range(len(place)))))
        place = place[keys[-1][1]]
    holder, key = keys[-1]
    if isinstance(holder, dict) and rng.random() < 0.3:
        del holder[key]
    else:
        holder[key] = rng.choice([None, 7, -3, "", "xyz", [], {}, [1, 2], {"a": 1}, True, 3.5, [None]])
    return copy


@pytest.mark.parametrize("name", RECORDS)
def test_a_broken_record_is_one_line_with_its_row(tmp_path, name):
    path, rng = tmp_path / "train.jsonl", random.Random(name)
    good = json.dumps(RECORDS[name])
    path.write_text(good + "\n")
    assert task(name).read([path], "train").examples
    refused = 0
    for _ in range(60):
        path.write_text(f"{good}\n{json.dumps(broken(RECORDS[name], rng))}\n")
        try:
            task(name).read([path], "train")
        except DataError as error:
            refused += 1
            assert "\n" not in str(error) and f"{path}:2: " in str(error)
    assert refused
