from __future__ import annotations

import gzip
import json

import pytest

from encoderlab.tasks.scoring import answers


def questions(path):
    data = json.loads(gzip.open(path, "rt", encoding="utf-8").read())["data"]
    return {
        qa["id"]: [answer["text"] for answer in qa["answers"]]
        for article in data
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    }


@pytest.mark.parametrize(
    "system",
    [
        "squad_v1.1/{}/bert_ensemble",
        "squad_v1.1/{}/logistic_regression",
        "squad_v2.0/{}/bert_single",
        "squad_v2.0/{}/nlnet_single",
    ],
)
def test_squad_scores_equal_the_official_ones(shared, system):
    base = shared / "data/qa" / system.format("predictions")
    expected = json.loads(base.with_name(base.name + ".expected.json").read_text())
    predicted = json.loads(gzip.open(base.with_name(base.name + ".json.gz"), "rt").read())
    for part, scores in expected.items():
        gold = questions(base.parents[1] / f"{part}.json.gz")
        ours = answers.squad(gold, predicted)
        names = {"HasAns": "has_answer", "NoAns": "no_answer"}
        for name, value in scores.items():
            prefix, _, rest = name.rpartition("_")
            # Not to the last bit: since Python 3.12 `sum` compensates rounding, in the official program too.
            assert ours[f"{names[prefix]}_{rest}" if prefix else name] == pytest.approx(value, rel=1e-14), name


def test_token_f1_of_empty_answers():
    assert answers.token_f1("", "") == 1
    assert answers.token_f1("", "word") == answers.token_f1("word", "") == 0
    assert answers.token_f1("the", "") == 1  # only an article is left: it counts as empty, as in the official script
    assert answers.token_f1("New York City", "York City, the") == pytest.approx(0.8)


def test_words_of_chinese_answers_are_characters():
    """As MLQA's official script counts them."""
    gold = {"a": ["中国平安保险"], "b": ["1998年", "一九九八年"], "c": []}
    scores = answers.squad(gold, {"a": "中国平安,保险公司。", "b": "1998 年", "c": "不"})
    assert scores["has_answer_f1"] == pytest.approx(100 * (12 / 14 + 1) / 2) and scores["has_answer_exact"] == 50
    assert scores["no_answer_f1"] == 0
    english = {"a": ["Bank of China (中国银行)"], "b": ["Rome"]}
    assert answers.squad(english, {"a": "中国银行", "b": "Rome"})["f1"] == pytest.approx(100 * (2 / 5 + 1) / 2)


def test_null_odds_withdraw_answers_and_the_best_threshold_is_found():
    gold = {"a": ["Paris"], "b": [], "c": ["Rome"]}
    predicted = {"a": "Paris", "b": "Oslo", "c": "Rom"}
    odds = {"a": -5.0, "b": 1.0, "c": -1.0}
    scores = answers.squad(gold, predicted, null_odds=odds, threshold=0.0)
    assert scores["exact"] == pytest.approx(200 / 3) and scores["no_answer_exact"] == 100
    # The threshold -5 keeps "Paris" alone and withdraws the answer to "b": 2 of 3, as good as any later one.
    assert scores["best_exact"] == pytest.approx(200 / 3) and scores["best_exact_threshold"] == -5.0
    # Nothing beats withdrawing everything here, and then the official search reports threshold 0.
    assert answers.best_threshold({"b": 0}, {"b": "x"}, {"b": 3.0}, {"b": False}) == (100.0, 0.0)


def test_a_missing_prediction_scores_zero():
    assert answers.squad({"a": ["x"], "b": []}, {})["exact"] == 0


def test_trivia_separates_words_at_punctuation():
    gold = {"a": ["Sunset Blvd", "Sunset Boulevard"], "b": ["Hawai‘i"], "c": ["The_Beatles"]}
    scores = answers.triviaqa(gold, {"a": "sunset-boulevard", "b": "Hawai i", "c": "Beatles"})
    assert scores == {"exact": 100, "f1": 100, "total": 3}
    assert answers.squad(gold, {"a": "sunset-boulevard", "b": "Hawai i", "c": "Beatles"})["exact"] == 0
    assert answers.triviaqa(gold, {"a": "Sunset Strip"})["f1"] == pytest.approx(100 * 0.5 / 3)


def test_a_question_without_a_reference_is_answered_by_nothing():
    assert answers.cmrc({"1": [], "2": []}, {"1": "", "2": "北京"})["exact"] == 50


def test_cmrc_scores():
    gold = {"1": ["北京大学", "北京"], "2": ["2008年8月8日"], "3": ["NBA联盟"]}
    perfect = answers.cmrc(gold, {"1": "北京。", "2": "2008年8月8日", "3": "nba联盟"})
    assert perfect["exact"] == perfect["f1"] == perfect["average"] == 100
    scores = answers.cmrc(gold, {"1": "天津大学", "2": "8月8日", "3": ""})
    assert scores["exact"] == 0
    # 大学 is 2 of 4 and 2 of 4; 8 月 8 日 is the longest run: 4 of 4 segments and 4 of 6; the empty answer has none.
    assert scores["f1"] == pytest.approx(100 * (0.5 + 0.8 + 0) / 3)
    assert answers.mixed_segments("在New York的3.5%，x-y") == ["在", "new", "york", "的", "3.5", "%", "xy"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3d", "3d"), ("1980s", "1980s"), ("5g", "5g"), ("v2.0", "v2.0"), ("3.5%", "3.5 %"), ("1,000", "1,000"),
        ("don't", "do n't"), ("it's", "it 's"), ("they'll go", "they 'll go"), ("cannot", "can not"),
        ("o'neil", "o'neil"), ("u.s.a.", "u.s.a ."), ("q&a", "q & a"), ("c#", "c #"), ("wait...", "wait ..."),
        ("(yes)", "( yes )"), ('"yes"', "`` yes ''"), ("red, blue", "red , blue"), ("boys' toys", "boys ' toys"),
        ("a 'new world'", "a ' new world '"), ("2008–2010", "2008 – 2010"),
    ],
)  # fmt: skip
def test_latin_words_are_those_of_the_treebank(text, words):
    assert answers.treebank_words(text) == words.split()


def test_cmrc_f1_of_words_with_digits():
    assert answers.cmrc_f1("3d打印", "打印") == pytest.approx(0.8)
    assert answers.cmrc_f1("20世纪1980s", "1980s") == pytest.approx(0.4)


def test_names_that_normalisation_empties_count_as_in_the_script_of_record():
    """SQuAD 1.1's functions: an exact match of two empty texts is 1, F1 without a shared word 0; none is left out."""
    gold = {"a": ["The"], "b": ["A", "Rome"], "c": ["!"]}
    assert answers.record(gold, {"a": "the", "b": "an", "c": "x"}) == {"exact": pytest.approx(200 / 3), "f1": 0}
    assert answers.record(gold, {"a": "x", "b": "rome", "c": "y"})["f1"] == pytest.approx(100 / 3)
    assert answers.triviaqa({"a": ["The"]}, {"a": "a"}) == {"exact": 100, "f1": 0, "total": 1}
