from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.errors import DataError
from encoderlab.tasks.scoring.entities import detect_scheme, entities, score_entities, write_tags

tag = st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"])
any_tag = st.sampled_from(["O", *[f"{prefix}-{kind}" for prefix in "BIES" for kind in "AB"]])


@st.composite
def sentences(draw):
    spans, position = [], 0
    while position < 12 and draw(st.booleans()):
        start = position + draw(st.integers(0, 2))
        end = start + draw(st.integers(1, 3))
        spans.append((draw(st.sampled_from("AB")), start, end))
        position = end
    return spans, position + draw(st.integers(0, 2))


@given(sentences(), st.sampled_from(["BIO", "IOB1", "BIOES", "BMES"]))
def test_every_scheme_writes_and_reads_the_same_entities(sentence, scheme):
    spans, length = sentence
    tags = write_tags(spans, length, scheme)
    assert entities(tags) == spans
    assert entities(write_tags(entities(tags), len(tags), "BIO")) == spans


def conlleval_counts(gold, predicted):
    """The incremental bookkeeping of conlleval, written from its description: chunk borders between neighbours, then
    counts.
    """

    def ends(a, b):
        (p, s), (q, t) = (x.partition("-")[::2] for x in (a, b))
        return (p in "BI" and q in "BSO") or (p in "ES") or (p != "O" and s != t)

    def starts(a, b):
        (p, s), (q, t) = (x.partition("-")[::2] for x in (a, b))
        return q in "BS" or (p in "ESO" and q in "EI") or (q != "O" and s != t)

    correct = found = wanted = 0
    inside = False
    last_gold = last_guess = "O"
    for right, guess in zip([*gold, "O"], [*predicted, "O"], strict=True):
        if inside:
            end_right, end_guess = ends(last_gold, right), ends(last_guess, guess)
            if end_right and end_guess:
                inside, correct = False, correct + 1
            elif end_right != end_guess or right[2:] != guess[2:]:
                inside = False
        start_right, start_guess = starts(last_gold, right), starts(last_guess, guess)
        inside = inside or (start_right and start_guess and right[2:] == guess[2:])
        wanted, found = wanted + start_right, found + start_guess
        last_gold, last_guess = right, guess
    return correct, found, wanted


@given(st.lists(st.tuples(any_tag, any_tag), max_size=15))
def test_counts_equal_conlleval(pairs):
    gold, predicted = [a for a, _ in pairs], [b for _, b in pairs]
    score, _ = score_entities([gold], [predicted])
    assert (score.correct, score.predicted, score.gold) == conlleval_counts(gold, predicted)


def test_scores_by_type():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O"]]
    predicted = [["B-PER", "I-PER", "O", "B-ORG"], ["B-LOC"]]
    every, scores = score_entities(gold, predicted)
    assert (scores["PER"].f1, scores["LOC"].f1, scores["ORG"].precision) == (1, 0, 0)
    assert every.precision == pytest.approx(1 / 3) and every.recall == 0.5
    assert score_entities([["O"]], [["O"]])[0].f1 == 0
    every, scores = score_entities([["B-all", "B-PER"]], [["B-all", "O"]])
    assert scores["all"].f1 == 1 and every.recall == 0.5, "a type may be called all"


def test_schemes_are_told_apart():
    assert detect_scheme([["B-A", "I-A", "O"]]) == ("BIO", 0)
    assert detect_scheme([["I-A", "I-A", "O", "I-A", "B-A"]]) == ("IOB1", 0)
    assert detect_scheme([["B-A", "I-A", "E-A", "S-A"]]) == ("BIOES", 0)
    assert detect_scheme([["B-A", "M-A", "E-A", "S-A"]]) == ("BMES", 0)
    assert detect_scheme([["B-A", "O", "I-A"]]) == ("BIO", 1)
    with pytest.raises(DataError, match="mix the prefixes I and M"):
        detect_scheme([["B-A", "M-A"], ["B-A", "I-A"]])
    with pytest.raises(DataError, match="'PER' has no prefix"):
        entities(["PER"])


def test_faults_of_four_letter_schemes_are_counted():
    assert detect_scheme([["B-A", "I-A", "O"], ["S-A", "B-A", "E-A"]]) == ("BIOES", 1)  # the first is BIO: not closed
    assert detect_scheme([["B-A", "M-A", "O"], ["B-A", "S-A", "E-A"]]) == ("BMES", 3)
    assert detect_scheme([["B-A", "I-A", "E-B"]]) == ("BIOES", 1)
