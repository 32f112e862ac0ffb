from __future__ import annotations

import json
from dataclasses import replace

import pytest

from encoderlab.errors import ConfigError, DataError
from encoderlab.tasks.data.infer import Given, task_of
from encoderlab.tasks.data.task import Answer
from encoderlab.tasks.forms.table import form_named


@pytest.mark.parametrize(
    ("name", "text", "form", "said"),
    [
        ("reviews.csv", "text,stars\ngood,5\nbad,1\n", "classification", "text = 'text', label = 'stars'"),
        ("pairs.tsv", "sentence1\tsentence2\tlabel\na\tb\t1\n", "classification", "second text = 'sentence2'"),
        ("similar.csv", "text_a,text_b,score\na,b,1.5\nc,d,3\n", "regression", "a number for one or two texts"),
        ("any.csv", "message body,category\na,x\nb,y\n", "classification", "text = 'message body'"),
        ("评论.csv", "标签,文本\n好,很好看\n差,没意思\n", "classification", "text = '文本', label = '标签'"),
        ("pairs.csv", "句子1,句子2,标签\n甲,乙,1\n丙,丁,0\n", "classification", "second text = '句子2'"),
        ("ner.txt", "Sue B-PER\nran O\n\nto O\nOslo B-LOC\n", "tagging", "one word per line"),
        ("ner.jsonl", '{"tokens": ["Sue"], "tags": ["B-PER"]}\n', "tagging", "words = 'tokens', tags = 'tags'"),
        ("spans.jsonl", '{"text": "Sue", "label": {"PER": {"Sue": [[0, 2]]}}}\n', "tagging", "spans of characters"),
        ("doccano.jsonl", '{"text": "Sue ran", "label": [[0, 3, "PER"]]}\n', "tagging", "entities = 'label'"),
        ("spacy.jsonl", '{"text": "Sue", "spans": [{"start": 0, "end": 3, "type": "X"}]}\n', "tagging", "'spans'"),
        ("mood.jsonl", '{"text": "Sue", "label": "x", "entities": [[0, 3, "PER"]]}\n', "classification", "'label'"),
        ("qa.jsonl", '{"context": "a", "question": "b", "answers": []}\n', "span", "question about context"),
        ("qa.csv", "Context,Question,answer_text\na,b,a\n", "span", "Question about Context, answer = 'answer_text'"),
        ("qa.jsonl", '{"context": "甲乙丙", "question": "丁", "answers": ["乙"]}\n', "span", "F1 is over characters"),
        ("choice.jsonl", '{"question": "q", "choices": ["a", "b"], "answer": "A"}\n', "choice", "answer = 'answer'"),
        ("swag.csv", "context,ending0,ending1,label\na,b,c,0\n", "choice", "options = ending0, ending1"),
    ],
)
def test_forms_are_inferred_and_said(tmp_path, name, text, form, said):
    path = tmp_path / name
    path.write_text(text)
    task, words = task_of(path)
    assert task.form == form and said in words
    assert task.read([path], "train").examples


def test_entities_are_found_behind_many_texts_without_any(tmp_path):
    path = tmp_path / "late.jsonl"
    path.write_text('{"text": "to go", "label": []}\n' * 150 + '{"text": "Sue ran", "label": [[0, 3, "PER"]]}\n')
    task, said = task_of(path)
    assert task.form == "tagging" and "entities = 'label'" in said
    assert len(task.read([path], "train").examples) == 151


def test_decimal_commas_are_numbers_to_be_written_otherwise(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text;label\na;3,5\nb;4\n")
    task, said = task_of(path)
    assert task.form == "regression"
    with pytest.raises(DataError, match=r"t.csv:2: label '3,5' is not a number.*; write it with a decimal point, or"):
        task.read([path], "train")


def test_a_mark_instead_of_a_number_is_shown_and_no_reason_for_classes_alone(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,score\n" + "".join(f"text {i},{'NA' if i == 7 else i / 10}\n" for i in range(30)))
    with pytest.raises(DataError, match="such as 'NA': are these classes.*--form classification or --form regression"):
        task_of(path)
    with pytest.raises(DataError, match="t.csv:9: label 'NA' is not a number.*; correct the row, or leave its label"):
        task_of(path, Given(form="regression"))[0].read([path], "train")


def test_squad_file_is_recognised(tmp_path):
    path = tmp_path / "mine.json"
    qa = {"id": "1", "question": "q", "answers": [{"text": "a", "answer_start": 0}]}
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [qa]}]}]}))
    assert task_of(path)[0].form == "span"


def test_a_sign_that_is_no_number_is_no_column(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,x\nb,y\n")
    for given in (Given(text="²"), Given(label="²")):
        with pytest.raises(ConfigError, match=r"t.csv: no column '²'"):
            task_of(tmp_path / "t.csv", given)


def test_texts_without_labels_are_no_task(tmp_path):
    (tmp_path / "t.txt").write_text("a fine story\na dull one\n")
    with pytest.raises(DataError, match="has one column, 'a fine story'; give a table with a text and a label"):
        task_of(tmp_path / "t.txt")


def test_given_columns_win(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,subject,body,topic\n1,a,b,x\n2,c,d,y\n")
    with pytest.raises(DataError, match="which of the columns 'id', 'subject', 'topic'|which of the columns"):
        (tmp_path / "u.csv").write_text("subject,note,topic\na,b,x\n")
        task_of(tmp_path / "u.csv")
    task, _ = task_of(path, Given(text="subject", pair="body", label="topic"))
    example = task.read([path], "train").examples[0]
    assert (example.text, example.pair, example.label, example.id) == ("a", "b", "x", "1")
    with pytest.raises(ConfigError, match="no column 'bodi'; did you mean 'body'"):
        task_of(path, Given(text="bodi"))
    with pytest.raises(ConfigError, match="form 'tag'; did you mean 'tagging'"):
        task_of(path, Given(form="tag"))
    with pytest.raises(DataError, match="do not contain an answer within a passage; .*--text, --pair and --label"):
        task_of(path, Given(form="span"))


def test_columns_of_passages_are_given(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("page,asked,found\nit is red,what?,red\n")
    task, said = task_of(path, Given(form="span", text="page", pair="asked", label="found"))
    (example,) = task.read([path], "train").examples
    assert (example.passage, example.question, example.answers) == ("it is red", "what?", (Answer("red", 6),))
    assert "asked about page, answer = 'found'" in said
    path.write_text("1,it is red,what?,red\n2,it is blue,what?,\n")
    task, _ = task_of(path, Given(form="span", text="1", pair="2", label="3"))
    assert [e.answers for e in task.read([path], "train").examples] == [(Answer("red", 6),), ()]
    path.write_text("context,question,gold\na,b,a\n")
    with pytest.raises(DataError, match=r"t.csv:2: no label; .*no column 'answers'"):
        task_of(path)[0].read([path], "train")


def test_columns_without_a_header_are_numbers(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("x\tgood thing\nx\tbad thing\ny\tother\n")
    task, _ = task_of(str(path), Given(text="1", label="0"))
    assert [e.label for e in task.read([str(path)], "train").examples] == ["x", "x", "y"]


def test_a_header_is_no_row_although_columns_are_given_by_number(tmp_path):
    path = tmp_path / "t.csv"
    for header, given in (("Text,LABEL", Given(text="0", label="1")), ("id,Review", Given(text="1"))):
        path.write_text(f"{header}\na,x\nb,y\n")
        with pytest.raises(ConfigError, match=r"t.csv: the first row is a header \('.*'\); give its names"):
            task_of(path, given)
    path.write_text("text of a mail,label\na,x\nb,y\n")
    assert len(task_of(path, Given(text="0", label="1"))[0].read([path], "train")) == 3
    path.write_text("good thing,y\nbad thing,n\n")  # y is also a usual name of a column of labels
    for given in (Given(text="0"), Given(text="0", options=("0", "1"))):
        with pytest.raises(DataError, match="t.csv:1: no label; .* in the column whose number --label gives"):
            task_of(path, given)[0].read([path], "train")
    with pytest.raises(DataError, match="which of the columns 'good thing', 'y' is the text"):
        task_of(path, Given(label="1"))
    path = tmp_path / "t.jsonl"
    path.write_text(jsonl({"text": "a", "label": "x"}))
    with pytest.raises(ConfigError, match="t.jsonl: no column '0'; choose from: label, text"):
        task_of(path, Given(text="0", label="1"))


def test_names_and_numbers_of_columns_do_not_mix(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("first,label,2\na,x,p\nb,y,q\n")
    with pytest.raises(ConfigError, match="column 'label' is given by name and column 0 by number"):
        task_of(path, Given(text="0", label="label"))
    path.write_text("text,label,2\na,x,p\nb,y,q\n")
    assert task_of(path, Given(text="text", pair="2", label="label"))[0].form == "classification"


def test_questions_of_a_test_file_may_have_no_labels(tmp_path):
    path = tmp_path / "qa.jsonl"
    rows = [
        {"id": str(i), "context": "a b", "question": "c", "answers": {"text": [], "answer_start": []}} for i in "12"
    ]
    path.write_text(jsonl(*rows))
    task, _ = task_of(path)
    nullable = replace(task, labels=("answer", "no_answer"))
    assert [example.answers for example in task.read([path], "test").examples] == [None, None]
    assert task.read([path], "test").remarks == (
        "qa.jsonl: no question has an answer; read as a test file without labels",
    )
    assert [example.answers for example in nullable.read([path], "test").examples] == [(), ()]
    assert [example.answers for example in task.read([path], "dev").examples] == [(), ()]
    path.write_text(jsonl(rows[0], rows[1] | {"answers": {"text": ["b"], "answer_start": [2]}}))
    assert [len(example.answers) for example in task.read([path], "test").examples] == [0, 1]


def choices(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    task, said = task_of(path)
    return said, task.read([path], "train")


def jsonl(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_numbered_options_and_their_answers_are_read_by_the_whole_file(tmp_path):
    rows = "".join(f"q{i},a,b,c,d,{i % 4 + 1}\n" for i in range(8))
    said, split = choices(tmp_path, "four.csv", "question,option1,option2,option3,option4,answer\n" + rows)
    assert "(numbers from 1)" in said and [e.answers for e in split.examples][:4] == [(0,), (1,), (2,), (3,)]
    said, split = choices(
        tmp_path,
        "winogrande.jsonl",
        jsonl(
            {"sentence": "_ is big.", "option1": "trophy", "option2": "case", "answer": "1"},
            {"sentence": "_ is red.", "option1": "a", "option2": "b", "answer": "2"},
        ),
    )
    assert [(e.context, e.answers) for e in split.examples] == [("_ is big.", (0,)), ("_ is red.", (1,))]
    said, split = choices(
        tmp_path, "digits.csv", "question,ending0,ending1,ending2,ending3,label\nHow many,3,2,1,0,1\n"
    )
    assert "numbers from 0" in said and split.examples[0].answers == (1,)
    said, split = choices(tmp_path, "texts.csv", "question,choice_a,choice_b,answer\nq,2,9,9\nr,red,blue,red\n")
    assert "texts of options" in said and [e.answers for e in split.examples] == [(1,), (0,)]


def test_columns_of_options_are_numbered_without_holes_and_in_order(tmp_path):
    names = ",".join(f"option{i}" for i in range(1, 12))
    said, split = choices(tmp_path, "many.csv", f"question,{names},answer\nq,{','.join('abcdefghijk')},10\n")
    assert split.examples[0].options == tuple("abcdefghijk")
    path = tmp_path / "answers.csv"
    path.write_text("text,answered,answerer,label\nhello,1,bob,spam\nhi,0,sue,ham\n")
    assert task_of(path)[0].form == "classification"


def test_what_the_options_are_for_is_found_or_asked(tmp_path):
    said, split = choices(tmp_path, "h.jsonl", jsonl({"ctx": "A man sits.", "endings": ["a", "b"], "label": 1}))
    assert (split.examples[0].context, split.examples[0].answers) == ("A man sits.", (1,)) and "context = 'ctx'" in said
    record = {"question_stem": "The sun is", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}
    said, split = choices(tmp_path, "o.jsonl", jsonl(record))
    assert (split.examples[0].question, split.examples[0].answers) == ("The sun is", (1,))
    path = tmp_path / "p.csv"
    path.write_text("prompt,option1,option2,label\np,a,b,0\n")
    with pytest.raises(DataError, match="'prompt'.* are the options option1, option2 for.*--form choice --text COLUMN"):
        task_of(path)
    task, _ = task_of(path, Given(form="choice", text="prompt"))
    assert task.read([path], "train").examples[0].context == "p"


def test_given_options_are_those_of_multiple_choice(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("q,one,two,right\np,a,b,2\n")
    given = Given(text="q", label="right", options=("one", "two"))
    task, said = task_of(path, given)
    assert task.form == "choice" and "context = 'q', options = one, two" in said
    assert task.read([path], "train").examples[0].answers == (1,)
    with pytest.raises(ConfigError, match="--options are those of multiple choice, not of regression; leave out"):
        task_of(path, replace(given, form="regression"))


def test_a_header_with_spaces_names_its_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text, label\na, x\nb, y\n")
    assert [e.label for e in task_of(path)[0].read([path], "train").examples] == ["x", "y"]


def test_lists_of_labels_are_several_labels_and_lists_of_texts_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a", "labels": ["x", "y"]}\n')
    assert task_of(path)[0].form == "multilabel"
    path.write_text('{"text": "a", "labels": {"x": 1}}\n')
    with pytest.raises(DataError, match=r"t.jsonl:1: .*give one label for each row"):
        task_of(path)
    path.write_text('{"text": ["a", "b"], "labels": "x"}\n')
    with pytest.raises(DataError, match=r"t.jsonl:1: 'text' is a list, expected text"):
        task_of(path)
    path.write_text('{"text": {"en": "a"}, "labels": "x"}\n')
    with pytest.raises(DataError, match=r"t.jsonl:1: 'text' is an object, expected text"):
        task_of(path)
    (tmp_path / "lists.json").write_text('[["a", "x"], ["b", "y"]]')
    with pytest.raises(DataError, match=r"lists.json: no records; give an object for each"):
        task_of(tmp_path / "lists.json")[0].read([tmp_path / "lists.json"], "train")


@pytest.mark.parametrize("text", ["id,text\nx,Ann ran.\n", '{"id": "x", "content": "Ann ran."}\n'])
def test_texts_to_tag_are_cut_into_words(tmp_path, text):
    path = tmp_path / ("t.jsonl" if text.startswith("{") else "t.csv")
    path.write_text(text)
    task, said = task_of(path, Given(form="tagging"))
    (example,) = task.read([path], "test").examples
    assert (example.id, example.words, example.tags) == ("x", ("Ann", "ran", "."), None) and "the words of" in said


def test_columns_of_0_and_1_are_several_labels(tmp_path):
    path, test = tmp_path / "t.csv", tmp_path / "test.csv"
    path.write_text("id,comment,toxic,rude\nx,a,0,1\ny,b,0,0\nz,c,1.0,True\n")
    given = Given(text="comment", label="toxic,rude")
    task, said = task_of(path, given)
    assert task.form == "multilabel" and "label = 'toxic,rude'" in said
    split = task.read([path], "train")
    assert [one.label for one in split.examples] == [("rude",), (), ("toxic", "rude")]
    for text in ("id,comment\nx,a\n", "id,comment,toxic,rude\nx,a,-1,-1\n"):
        test.write_text(text)
        assert task.read([test], "test").examples[0].label is None
    test.write_text("id,comment,toxic,rude\nx,a,0,2\n")
    with pytest.raises(DataError, match=r"test.csv:2: 'rude' is '2', expected 0 or 1; correct the row"):
        task.read([test], "test")
    test.write_text("id,comment,toxic,rude\nx,a,1,0\ny,b,,\n")
    with pytest.raises(DataError, match="no label; dev data needs one in every row, in the columns toxic,rude;"):
        task.read([test], "dev")
    with pytest.raises(ConfigError, match="t.csv: no column 'toxic,rud'"):
        task_of(path, replace(given, label="toxic,rud"))
    with pytest.raises(ConfigError, match="t.csv: column 'comment' is both text and label"):
        task_of(path, replace(given, label="toxic,comment"))
    for other in (replace(given, form="tagging"), replace(given, options=("id", "comment"))):
        with pytest.raises(ConfigError, match="--label toxic,rude names several columns.*, not of .*; name one column"):
            task_of(path, other)
    with pytest.raises(DataError, match="two columns are called 'rude'"):
        path.write_text("comment,toxic,rude,rude\na,0,1,1\n")
        task_of(path, given)


def test_a_file_without_a_label_column_is_told_so(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,rubric\na,x\nb,y\n")
    with pytest.raises(DataError, match=r"t.csv:2: no label; .* no column among 'text', 'rubric' .*--label"):
        task_of(path)[0].read([path], "train")


def test_an_empty_file_is_told_so(tmp_path):
    (tmp_path / "t.csv").touch()
    with pytest.raises(DataError, match="t.csv: has no rows with columns"):
        task_of(tmp_path / "t.csv")


def test_a_column_is_text_or_label(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,target\na,x\nb,y\n")
    with pytest.raises(ConfigError, match="column 'text' is both text and label"):
        task_of(path, Given(label="text"))
    (layout,) = task_of(path, Given(text="target"))[0].layouts
    assert (layout.text, layout.label) == ("target", None)
    for columns, label, text in (
        ("text,a,b", "a,b", "text"),
        ("title,body", "body", "title"),
        ("text,a,b", "b", "text"),
    ):
        path.write_text(f"{columns}\nx{',1' * columns.count(',')}\n")
        (layout,) = task_of(path, Given(label=label))[0].layouts
        assert (layout.text, layout.pair, layout.label_column) == (text, None, label)


def test_choices_of_unimc_are_about_their_text(tmp_path):
    record = {"texta": "A car.", "textb": "", "question": "Which?", "choice": ["a", "b"], "answer": "b", "label": 1}
    _, split = choices(tmp_path, "u.jsonl", jsonl(record))
    (example,) = split.examples
    assert (example.context, example.question, example.answers) == ("A car.", "Which?", (1,))


def test_a_question_about_context_with_options_is_a_choice(tmp_path):
    record = {"context": "A car.", "question": "Which?", "options": ["a", "b"], "answer": 1}
    _, split = choices(tmp_path, "c.jsonl", jsonl(record))
    assert split.examples[0].answers == (1,)


def test_one_wrong_line_or_tag_among_many_is_named(tmp_path):
    right = "Sue B-PER\nran O\n\n" * 40
    path = tmp_path / "ner.txt"
    path.write_text(f"{right}alone\n\n")
    with pytest.raises(DataError, match=r"ner.txt:121: 1 columns, the lines before have 2"):
        task_of(path)
    path.write_text(f"{right}Oslo Z-LOC\n\n")
    with pytest.raises(DataError, match=r"ner.txt:121: tag 'Z-LOC' has no prefix"):
        task_of(path)[0].read([path], "train")
    words = {"tokens": ["a", "b"], "ner_tags": ["O", None]}
    (tmp_path / "ner.jsonl").write_text(json.dumps(words))
    with pytest.raises(DataError, match=r"ner.jsonl:1: 'tokens' or 'ner_tags' is not a list .*contains null"):
        task_of(tmp_path / "ner.jsonl")


def test_a_name_that_tells_nothing_is_looked_into_or_refused(tmp_path):
    for text, form in (("Sue B-PER\nran O\n\n", "tagging"), ('{"data": []}\n', "span")):
        (tmp_path / "mine.train").write_text(text)
        assert task_of(tmp_path / "mine.train")[0].form == form
    (tmp_path / "mine").write_text("text,label\na,b\n")
    with pytest.raises(DataError, match="mine: unknown format; rename the file to end in .csv.* or .txt"):
        task_of(tmp_path / "mine")


def test_options_of_a_table_whose_answers_are_called_as_those_of_arc(tmp_path):
    (tmp_path / "t.csv").write_text("question,A,B,C,answerKey\nWhy?,x,y,z,B\n")
    task, said = task_of(tmp_path / "t.csv")
    assert task.form == "choice" and "options = A, B, C, answer = 'answerKey'" in said


def test_options_under_letters(tmp_path):
    said, split = choices(tmp_path, "exam.csv", ",Question,A,B,C,D,Answer\n0,q,red,blue,one,two,C\n")
    assert "options = A, B, C, D" in said and split.examples[0].answers == (2,)


WIC = {"word": "bank", "sentence1": "A bank.", "sentence2": "The bank lent.", "start1": 2, "label": False, "idx": 0}
TARGET = {"span1_text": "Sue", "span1_index": 3, "span2_text": "her", "span2_index": 6}
MARKED = {"text": "Bob said that Sue saw that her cat ran.", "label": True, "idx": 0}
CLUEWSC = {"target": {"span1_text": "小明", "span1_index": 2, "span2_text": "他", "span2_index": 6}, "label": "true"}
PARAGRAPH = {"paragraph": "It rains.", "question": "Why?", "answer": "Clouds.", "label": 1}
GAP = {"text": "Bob met Ann.", "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}]}
ASKED = [{"query": "@placeholder left", "answers": [{"start": 8, "end": 10, "text": "Ann"}], "idx": 0}]
STEMMED = {"question": {"stem": "What?", "choices": [{"label": "A", "text": "a"}, {"label": "B", "text": "b"}]}}


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({**STEMMED, "answerKey": "B"}, ("What?", ("a", "b"), (1,))),
        ({"goal": "What?", "sol1": "a", "sol2": "b", "label": 1}, ("What?", ("a", "b"), (1,))),
        ({"uid": "u", "context": "It rains.", "hypothesis": "Wet.", "label": "e"}, ("It rains.", "Wet.", "e")),
        ({"question": "Is it?", "passage": "It is.", "idx": 0, "label": True}, ("Is it?", "It is.", "true")),
        (WIC, ("bank: A bank.", "The bank lent.", "false")),
        (MARKED | {"target": TARGET}, ("Bob said that _Sue_ saw that [her] cat ran.", None, "true")),
        (MARKED | TARGET, ("Bob said that _Sue_ saw that [her] cat ran.", None, "true")),
        (CLUEWSC | {"text": "昨天小明说了他走"}, ("昨天_小明_说了[他]走", None, "true")),
        (PARAGRAPH | {"idx": {"paragraph": 0, "question": 0, "answer": 0}}, ("It rains.", "Why? Clouds.", "1")),
        ({"passage": GAP, "qas": ASKED, "idx": 0}, ("@placeholder left", ("Bob", "Ann"), (1,))),
    ],
    ids=["OpenBookQA", "PIQA", "ANLI", "BoolQ", "WiC", "WSC", "WSC, flat", "CLUEWSC", "MultiRC", "ReCoRD"],
)
def test_published_records_are_known_by_their_fields(tmp_path, record, wanted):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record))
    task, _ = task_of(path)
    assert task.metrics == (("f1", "exact") if "paragraph" in record else form_named(task.form).metrics)
    first = task.read([path], "train").examples[0]
    names = ("question", "options", "answers") if task.form == "choice" else ("text", "pair", "label")
    assert tuple(getattr(first, name) for name in names) == wanted


def test_a_record_that_lacks_a_column_is_refused_although_it_is_the_first(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"sentence1": "a", "label": 1}\n{"sentence1": "a", "sentence2": "b", "label": 0}\n')
    with pytest.raises(DataError, match=r"a.jsonl:1: no 'sentence2' among sentence1, label; correct the row"):
        task_of(path)


COUNTED = "# a comment\n1\tOslo\tB-LOC\tO\n2\tis\tO\tO\n\n# another\n1\tAnn\tO\tB-PER\n"
# Universal Dependencies: words of two tokens and words that are not written have lines of their own, and words have
# spaces.
UNIVERSAL = (
    "# text = 10 000 vámonos al mar\n"
    "1\t10 000\t10000\tNUM\tZ\t_\t2\tnummod\t_\t_\n"
    "2-3\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_\n"
    "3\tnos\tnosotros\tPRON\tP\t_\t2\tobj\t_\t_\n"
    "3.1\tir\tir\tVERB\t_\t_\t_\t_\t_\t_\n"
    "4\tmar\tmar\tNOUN\tN\t_\t2\tobl\t_\tSpaceAfter=No\n\n"
)


@pytest.mark.parametrize(
    ("name", "text", "given", "words", "tags"),
    [
        ("a.conllu", UNIVERSAL, Given(), ("10 000", "vamos", "nos", "mar"), ("NUM", "VERB", "PRON", "NOUN")),
        ("a.conllu", UNIVERSAL, Given(label="4"), ("10 000", "vamos", "nos", "mar"), ("Z", "V", "P", "N")),
        ("a.conll", COUNTED, Given(), ("Oslo", "is"), ("O", "O")),
        ("a.conll", COUNTED, Given(label="2"), ("Oslo", "is"), ("B-LOC", "O")),
        ("a.conll", COUNTED, Given(text="1", label="2"), ("Oslo", "is"), ("B-LOC", "O")),
        ("a.txt", COUNTED, Given(form="tagging", text="1", label="2"), ("Oslo", "is"), ("B-LOC", "O")),
        ("a.txt", "Ann NNP B-PER\nran VBD O\n\nAnn NNP B-PER\n", Given(label="1"), ("Ann", "ran"), ("NNP", "VBD")),
        ("a.conll", "1 O\n2 B-X\n\n1 O\n", Given(), ("1", "2"), ("O", "B-X")),
        ("a.jsonl", '{"toks": ["a"], "pos": ["N"]}\n', Given(form="tagging", text="toks", label="pos"), ("a",), ("N",)),
    ],
)
def test_columns_of_words_and_tags_are_found_or_given(tmp_path, name, text, given, words, tags):
    path = tmp_path / name
    path.write_text(text)
    task, _ = task_of(path, given)
    first = task.read([path], "train").examples[0]
    assert task.form == "tagging" and (first.words, first.tags) == (words, tags)


def test_columns_of_words_have_numbers_that_exist(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Ann NNP B-PER\nran VBD O\n\nAnn NNP B-PER\n")
    with pytest.raises(DataError, match="a.txt:1: 3 columns, word and tag are expected in the first 8"):
        task_of(path, Given(label="7"))
    with pytest.raises(DataError, match="b.conll:1: 1 columns, word and tag are expected in the first 2"):
        (tmp_path / "b.conll").write_text("Ann\nran\n\n")
        task_of(tmp_path / "b.conll", Given(text="1"))
    path.write_text(path.read_text().replace(" ", "\t"))
    with pytest.raises(ConfigError, match="word columns have no names; give --label a number"):
        task_of(path, Given(label="NNP"))
