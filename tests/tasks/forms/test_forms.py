"""How examples become sequences, and answers of heads become predictions."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange.load import find_tokenizer
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.task import Answer, Choice, Question, TaggedWords, Task, Text
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.best_spans import Candidates, average_answers
from encoderlab.tasks.forms.choice import ChoiceForm, ChoiceSettings
from encoderlab.tasks.forms.classification import ClassificationForm, ClassificationSettings
from encoderlab.tasks.forms.regression import RegressionForm
from encoderlab.tasks.forms.span import SpanForm, SpanSettings
from encoderlab.tasks.forms.tagging import TaggingForm, TaggingSettings, first_tokens
from encoderlab.tasks.scoring.answers import cmrc, squad
from tests.tasks.tiny import tokenizer

BERT, XLNET = tokenizer(), tokenizer("xlnet")


def task(form: str, **more) -> Task:
    return Task(name="t", form=form, metrics=("accuracy",), layouts=(), **more)


def shown(sequence, text=BERT) -> str:
    return text.decode(sequence.ids, skip_special=False)


# Classification


def test_texts_and_pairs_are_framed_and_cut():
    form = ClassificationForm(task("classification", labels=("a", "b")), BERT, FormSettings(max_length=8))
    items = form.items(
        [Text(id="0", text="the red cat", label="b"), Text(id="1", text="one two three four cat dog mat in on")]
    )
    assert shown(items[0].sequences[0]) == "[CLS] the red cat [SEP]" and items[0].sequences[0].labels == {"target": 1}
    assert shown(items[1].sequences[0]) == "[CLS] one two three four cat dog [SEP]" and form.cut == 1
    pair = Text(id="0", text="one two three four", pair="the cat sat on", label="a")
    assert shown(form.items([pair])[0].sequences[0]) == "[CLS] one two three [SEP] the cat [SEP]"
    assert form.items([pair])[0].sequences[0].segments.tolist() == [0] * 5 + [1] * 3
    with pytest.raises(DataError, match="1 of 2 examples have no second text"):
        form.items([pair, Text(id="1", text="x")])


def test_swapped_order_doubles_training_only_where_the_task_allows_it():
    pair = Text(id="0", text="red", pair="cat", label="a")
    settings = ClassificationSettings(max_length=8, swap=True)
    form = ClassificationForm(task("classification", labels=("a", "b"), swap=True), BERT, settings)
    assert [shown(item.sequences[0]) for item in form.items([pair], train=True)] == [
        "[CLS] red [SEP] cat [SEP]",
        "[CLS] cat [SEP] red [SEP]",
    ]
    assert len(form.items([pair])) == 1
    assert (
        len(ClassificationForm(task("classification", labels=("a", "b")), BERT, settings).items([pair], train=True))
        == 1
    )


def test_numbers_are_learned_scaled_and_answered_raw():
    form = RegressionForm(task("regression", range=(0.0, 5.0)), BERT, FormSettings())
    assert form.items([Text(id="0", text="red", label=2.5)], train=True)[0].sequences[0].labels["target"] == 0.5
    assert form.decode([], [np.array([0.5])], []).values == [2.5]
    free = RegressionForm(task("regression"), BERT, FormSettings())
    targets = [
        item.sequences[0].labels["target"]
        for item in free.items([Text(id=str(i), text="red", label=float(i)) for i in (100, 300)], train=True)
    ]
    assert targets == [-1.0, 1.0] and free.decode([], [np.array([1.0])], []).values == [300.0]


# Tagging


def test_words_belong_to_their_first_token():
    words = ("Sue", "x1y", "runs", "\u200b", ".")
    encoding = BERT.encode(" ".join(words))
    found = first_tokens(words, encoding)
    tokens = [BERT.token(int(i)) for i in encoding.ids]
    assert [(tokens[i], int(word)) for i, word in enumerate(found) if word >= 0] == [
        ("sue", 0),
        (tokens[1], 1),
        ("runs", 2),
        (".", 4),
    ]


def test_a_long_sentence_is_cut_and_every_word_is_tagged():
    form = TaggingForm(task("tagging", labels=("O", "B-X")), BERT, FormSettings(max_length=6))
    sentence = TaggedWords(id="0", words=("red",) * 10, tags=("B-X",) * 10)
    items = form.items([sentence])
    assert [len(item) for item in items] == [6, 6, 4]
    assert sum(int((item.sequences[0].marks["target"] == 1).sum()) for item in items) == 10
    outputs = [np.tile([0.0, 1.0], (int((item.sequences[0].marks["word"] >= 0).sum()), 1)) for item in items]
    assert form.decode(items, outputs, [sentence]).values == [("B-X",) * 10]


def test_document_context_surrounds_the_sentence_without_labels():
    settings = TaggingSettings(max_length=9, context="document")
    form = TaggingForm(task("tagging", labels=("O", "B-X")), BERT, settings)
    sentences = [
        TaggedWords(id="0", words=("one", "two", "three"), tags=("O",) * 3, document=0),
        TaggedWords(id="1", words=("red", "cat"), tags=("O", "B-X"), document=0),
        TaggedWords(id="2", words=("four", "dog", "mat"), tags=("O",) * 3, document=0),
        TaggedWords(id="3", words=("oslo",), tags=("O",), document=1),
    ]
    items = form.items(sentences)
    assert shown(items[1].sequences[0]) == "[CLS] two three red cat four dog mat [SEP]"
    assert items[1].sequences[0].marks["target"].tolist() == [-100] * 3 + [0, 1] + [-100] * 4
    assert shown(items[0].sequences[0]) == "[CLS] one two three red cat four dog [SEP]"
    assert shown(items[3].sequences[0]) == "[CLS] oslo [SEP]"


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_a_sentence_within_its_document_is_the_text_of_the_document(shared, family):
    """Byte-level BPE has the space before a word within it: a sentence that follows another begins with one."""
    folder = shared / "data/vocab"
    text = {
        "bert": lambda: Tokenizer.load(folder / "bert-base-cased/vocab.txt", lowercase=False),
        "roberta": lambda: Tokenizer.load(
            folder / "roberta-base/vocab.json.gz", merges=folder / "gpt2/merges.txt.gz", family="roberta"
        ),
        "albert": lambda: find_tokenizer(folder / "albert-style-30k", "albert"),
    }[family]()
    lines = ("EU rejects German call .", "Peter Blackburn", "Çelik 's x")
    sentences = [
        TaggedWords(id=str(i), words=tuple(line.split()), tags=("O",) * len(line.split()), document=0)
        for i, line in enumerate(lines)
    ]
    form = TaggingForm(task("tagging", labels=("O", "B-X")), text, TaggingSettings(max_length=64, context="document"))
    whole, _ = text.frame(text.encode(" ".join(lines)).ids)
    for item, line in zip(form.items(sentences), lines, strict=True):
        assert item.sequences[0].ids.tolist() == whole.tolist()
        words = item.sequences[0].marks["word"]
        assert words[words >= 0].tolist() == list(range(len(line.split())))


# Choice


def test_options_follow_the_context_and_the_context_is_cut():
    form = ChoiceForm(task("choice"), BERT, FormSettings(max_length=12))
    example = Choice(
        id="0", context="one two three four cat dog mat", question="where ?", options=("oslo", "rome"), answers=(1,)
    )
    item = form.items([example])[0]
    assert [shown(sequence) for sequence in item.sequences] == [
        "[CLS] one two three four cat dog [SEP] where ? oslo [SEP]",
        "[CLS] one two three four cat dog [SEP] where ? rome [SEP]",
    ]
    assert [sequence.labels["right"] for sequence in item.sequences] == [0, 1] and form.cut == 1
    form = ChoiceForm(task("choice"), BERT, FormSettings(max_length=13))
    (item,) = form.items([example])
    assert all("cat dog mat [SEP]" in shown(sequence) for sequence in item.sequences) and form.cut == 0


def test_gaps_are_filled_or_held_open():
    form = ChoiceForm(task("choice"), BERT, FormSettings(max_length=16))
    query = Choice(
        id="0",
        context="red cat",
        question="@placeholder runs",
        options=("sue", "bob"),
        answers=(0,),
        gap="@placeholder",
    )
    assert shown(form.items([query])[0].sequences[0]) == "[CLS] red cat [SEP] sue runs [SEP]"
    cloze = Choice(
        id="0",
        context="one two three four cat dog #idiom# mat in on",
        question="",
        options=("sue", "bob"),
        answers=(0,),
        gap="#idiom#",
    )
    assert shown(form.items([cloze])[0].sequences[1]) == (
        "[CLS] bob [SEP] two three four cat dog [MASK] [MASK] [MASK] [MASK] mat in on [SEP]"
    )


def test_options_that_lose_tokens_count_as_cut():
    form = ChoiceForm(task("choice"), BERT, FormSettings(max_length=8))
    short = Choice(id="0", context="", question="who", options=("cat", "dog"), answers=(0,))
    form.items([short])
    assert form.cut == 0
    form.items([replace(short, options=("cat", "the big red cat sat on the mat"))])
    assert form.cut == 1


def test_options_and_gaps_as_clue_writes_them():
    settings = ChoiceSettings(max_length=16, choice="clue")
    form = ChoiceForm(task("choice"), BERT, settings)
    reading = Choice(id="0", context="one two", question="where ?", options=("oslo", "rome"), answers=(1,))
    first = form.items([reading])[0].sequences[0]
    assert shown(first) == "[CLS] one two [SEP] where ? [SEP] oslo [SEP]"
    assert first.segments.tolist() == [0] * 4 + [1] * 5
    cloze = Choice(
        id="0", context="one #idiom# cat #idiom#", question="", options=("sue", "bob"), answers=(0,), gap="#idiom#"
    )
    with pytest.raises(ConfigError, match=r"\[unused1\], which the vocabulary lacks; set choice=joined"):
        form.items([cloze])
    form = ChoiceForm(task("choice"), tokenizer(further=("[unused1]",)), settings)
    second = form.items([cloze])[0].sequences[1]
    assert shown(second, form.tokenizer) == "[CLS] bob [SEP] one [unused1] cat" + " [MASK]" * 4 + " [SEP]"
    numbered = replace(cloze, context="one #idiom000001# cat #idiom000002#", gap="#idiom000001#")
    assert shown(form.items([numbered])[0].sequences[1], form.tokenizer) == shown(second, form.tokenizer)
    assert not second.segments.any()


# Answers


def qa(passage="the cat is in oslo . the dog is in rome .", text="rome", start=35) -> Question:
    return Question(id="q", question="where ?", passage=passage, answers=(Answer(text, start),))


def windows(form, question, train=True):
    return [item.sequences[0] for item in form.items([question], train=train)]


def test_a_passage_that_fits_is_one_window_with_the_answer():
    form = SpanForm(task("span"), BERT, FormSettings(max_length=24))
    (window,) = windows(form, qa())
    start, end = int(window.labels["start"]), int(window.labels["end"])
    assert shown(window) == "[CLS] where ? [SEP] the cat is in oslo . the dog is in rome . [SEP]"
    assert BERT.decode(window.ids[start : end + 1]) == "rome" and window.labels["impossible"] == 0
    assert window.marks["allowed"].tolist() == [True, False, False, False] + [True] * 13


@pytest.mark.parametrize(
    ("name", "folder", "vocabulary", "wanted"),
    [
        ("squad1", "qa", "bert-base-uncased", 99.7),
        ("squad1", "qa", "bert-base-cased", 99.7),
        ("cmrc2018", "clue", "bert-base-chinese", 99.7),
    ],
)
def test_windows_of_real_passages_hold_the_answers(shared, name, folder, vocabulary, wanted):
    """Read back from the windows, the learned spans are the answers, but for a few that begin or end within a piece."""
    text = Tokenizer.load(shared / f"data/vocab/{vocabulary}/vocab.txt", lowercase=vocabulary.endswith("uncased"))
    dev = suites.task(name).load(shared / "data" / folder, "dev").examples[:500]
    form = SpanForm(task("span"), text, FormSettings(max_length=384))
    found = {}
    for item in form.items(dev, train=True):
        window, question = item.sequences[0], dev[item.example]
        if not window.labels["impossible"]:
            start, end = (int(window.labels[side]) - window.start for side in ("start", "end"))
            found[question.id] = question.passage[window.offsets[start][0] : window.offsets[end][1]]
    gold = {question.id: [question.answers[0].text] for question in dev if question.answers[0].start >= 0}
    scores = cmrc(gold, found) if name == "cmrc2018" else squad(gold, found)
    assert scores["exact"] >= wanted


def test_windows_overlap_and_only_the_most_central_counts():
    form = SpanForm(task("span"), BERT, SpanSettings(max_length=11, stride=3))
    found = windows(form, qa())
    assert [len(window.offsets) for window in found] == [6, 6, 6]
    central = sum(int(window.central.sum()) for window in found)
    assert central == 12  # every token once
    assert [bool(window.labels["impossible"]) for window in found] == [True, True, False]
    assert found[0].labels["start"] == found[0].labels["end"] == 0
    # A token in two windows belongs to the one where it is farther from the border.
    assert found[0].central.tolist() == [True] * 4 + [False] * 2 or found[0].central.tolist() == [True] * 5 + [False]


def unknown(length: int) -> Encoding:
    """A text of that many tokens."""
    ids, offsets = np.full(length, BERT.special.unk, np.int32), np.zeros((length, 2), np.int32)
    return Encoding(ids=ids, offsets=offsets, word_starts=np.ones(length, bool))


def test_the_central_window_of_a_token_is_the_one_with_most_context():
    chance = np.random.default_rng(0)
    for case in range(200):
        length, room, stride = (int(number) for number in chance.integers((0, 2, 1), (90, 30, 40)))
        form = SpanForm(task("span"), BERT, SpanSettings(max_length=room + 3, stride=stride))
        found = list(form._windows(unknown(0), unknown(length)))
        context = np.full((len(found), length), -1.0)  # of every token in every window
        for row, (window, first) in zip(context, found, strict=True):
            size = len(window.offsets)
            row[first : first + size] = np.minimum(np.arange(size), np.arange(size)[::-1]) + 0.01 * size
        for number, (window, first) in enumerate(found):
            wanted = context.argmax(0)[first : first + len(window.offsets)] == number
            assert window.central.tolist() == wanted.tolist(), (case, length, room, stride)


def test_the_windows_of_a_long_passage_take_little_memory():
    """A table of windows by tokens would take two gigabytes here."""
    length = 100_000
    form = SpanForm(task("span"), BERT, SpanSettings(max_length=384, stride=32))
    tracemalloc.start()
    central = sum(int(window.central.sum()) for window, _ in form._windows(unknown(3), unknown(length)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert central == length and peak < 50e6


def test_xlnet_reads_the_passage_first_and_answers_with_the_last_token():
    form = SpanForm(task("span"), XLNET, FormSettings(max_length=24))
    (window,) = windows(form, Question(id="q", question="where ?", passage="the cat .", answers=()), train=False)
    assert window.ids[-1] == XLNET.special.cls and window.start == 0
    assert window.labels["start"] == len(window) - 1 and window.labels["impossible"] == 1


def test_answers_that_cannot_be_learned_are_left_out_of_training_only():
    form = SpanForm(task("span"), BERT, FormSettings(max_length=24))
    lost = qa(text="lima", start=-1)
    assert form.items([lost], train=True) == [] and len(form.items([lost])) == 1


def test_an_answer_within_a_piece_is_covered_by_it():
    form = SpanForm(task("span"), BERT, FormSettings(max_length=24))
    (window,) = windows(form, qa(passage="in oslo.", text="slo.", start=4))
    assert BERT.decode(window.ids[int(window.labels["start"]) : int(window.labels["end"]) + 1]) == "oslo ."


def candidates(window, scores: dict[tuple[int, int], float], null: float, absolute=False) -> Candidates:
    """Candidates with the given passage spans (start, end) -> score."""
    starts = np.array([window.start + start for start, _ in scores])
    ends = np.array([[window.start + end] for _, end in scores])
    zeros = np.zeros((len(scores), 1))
    return Candidates(starts, np.array(list(scores.values())), ends, zeros, null, absolute)


def test_decoding_ranks_legal_spans():
    form = SpanForm(task("span"), BERT, SpanSettings(max_length=24, answer_length=3))
    question = qa()
    items = form.items([question])
    window = items[0].sequences[0]
    scores = {(4, 4): 2.0, (10, 10): 5.0, (5, 4): 9.0, (0, 5): 9.0, (-3, 0): 9.0, (3, 4): 1.0}
    found = form.decode(items, [candidates(window, scores, null=-4.0)], [question])
    assert found.values == ["rome"]
    assert [span["text"] for span in found.nbest["q"]] == ["rome", "oslo", "in oslo"]
    assert sum(span["probability"] for span in found.nbest["q"]) == pytest.approx(1)
    assert found.null_odds is None


def test_null_odds_and_threshold():
    form = SpanForm(task("span", labels=("answer", "no_answer")), BERT, FormSettings(max_length=24))
    question = qa()
    items = form.items([question])
    window = items[0].sequences[0]
    output = [candidates(window, {(10, 10): 5.0}, null=6.0)]
    assert form.decode(items, output, [question]).values == [""]
    assert form.decode(items, output, [question]).null_odds == {"q": 1.0}
    form.threshold = 1.5
    found = form.decode(items, output, [question])
    assert found.values == ["rome"] and [span["text"] for span in found.nbest["q"]] == ["rome", ""]
    absolute = form.decode(items, [candidates(window, {(10, 10): -0.5}, null=2.0, absolute=True)], [question])
    assert absolute.values == [""] and absolute.null_odds == {"q": 2.0}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    part=st.integers(1, 5),
    n_best=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_the_best_answers_of_all_windows_are_kept_part_by_part(sizes, part, n_best, seed, monkeypatch):
    """The best texts among all spans of all windows, of which so many as a part holds are made at a time."""
    form = SpanForm(task("span"), BERT, SpanSettings(max_length=16, stride=4, n_best=n_best))
    rng = np.random.default_rng(seed)
    words = ["cat", "dog", "mat", "a"]  # few, so that texts repeat themselves
    questions = [replace(qa(" ".join(rng.choice(words, size)), "cat", -1), id=str(i)) for i, size in enumerate(sizes)]
    made, spans = [], {question.id: [] for question in questions}

    def outputs(items):
        assert len(items) <= part
        made.extend(map(scored, items))
        return made[-len(items) :]

    def scored(item):
        window, places = item.sequences[0], rng.integers(-2, 14, (5, 2))
        found = candidates(window, {(int(a), int(b)): float(rng.integers(0, 4)) for a, b in places}, 0.0)
        for start, score, end in zip(
            found.starts - window.start, found.start_scores, found.ends[:, 0] - window.start, strict=True
        ):
            if 0 <= start <= end < len(window.offsets) and window.central[start]:
                text = questions[item.example].passage[window.offsets[start][0] : window.offsets[end][1]]
                spans[questions[item.example].id].append((-score, *window.offsets[[start, end], [0, 1]].tolist(), text))
        return found

    monkeypatch.setattr("encoderlab.tasks.forms.span.WINDOWS", part)
    monkeypatch.setattr("encoderlab.tasks.forms.span.CHARACTERS", 40)
    predictions = form.predicted(questions, outputs)
    for question in questions:
        best = {text: (-score, begin, end) for score, begin, end, text in sorted(spans[question.id], reverse=True)}
        ranked = sorted(best.items(), key=lambda pair: (-pair[1][0], pair[1][1:]))[:n_best]
        found = [one for one in predictions.nbest[question.id] if one["text"]]
        assert [(one["text"], (one["score"], one["start"], one["end"])) for one in found] == ranked
    whole = form.decode(form.items(questions), made, questions)
    assert (whole.values, whole.nbest) == (predictions.values, predictions.nbest)


def test_ensemble_of_answers_adds_probabilities_of_texts():
    form = SpanForm(task("span"), BERT, FormSettings(max_length=24))
    question = qa()
    items = form.items([question])
    window = items[0].sequences[0]
    first = form.decode(items, [candidates(window, {(10, 10): 2.0, (4, 4): 1.9}, 0.0)], [question])
    second = form.decode(items, [candidates(window, {(10, 10): 0.0, (4, 4): 4.0}, 0.0)], [question])
    assert first.values == ["rome"] and average_answers([first, second]).values == ["oslo"]


def test_settings_that_leave_no_room_are_refused():
    with pytest.raises(ConfigError, match="^max_length is 0; give at least 1"):
        FormSettings(max_length=0)
    with pytest.raises(ConfigError, match="leaves no room for the passage after a question"):
        SpanForm(task("span"), BERT, FormSettings(max_length=6)).items([qa()])
