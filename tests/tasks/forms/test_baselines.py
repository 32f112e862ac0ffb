from __future__ import annotations

import random
from dataclasses import replace

from encoderlab.tasks.data.suites import task
from encoderlab.tasks.data.task import Choice, Question, Split, Text
from encoderlab.tasks.forms.baselines import words
from encoderlab.tasks.forms.scores import baselines
from tests.tasks.synthetic import TASKS, data


def corpus(n: int = 300, seed: int = 0) -> tuple[list[str], list[str]]:
    rng = random.Random(seed)
    topics = {"cats": "cat purr claw milk", "cars": "car wheel road fuel", "tea": "tea cup leaf milk"}
    texts, labels = [], []
    for _ in range(n):
        label = rng.choice(list(topics))
        vocabulary = topics[label].split() + "the a of is was it and".split()
        texts.append(" ".join(rng.choice(vocabulary) for _ in range(12)))
        labels.append(label)
    return texts, labels


def split(examples) -> Split:
    return Split(name="x", examples=tuple(examples), files=("x",), sha256="")


def test_baselines_by_form():
    texts, labels = corpus(400)
    examples = [Text(id=str(i), text=t, label=label) for i, (t, label) in enumerate(zip(texts, labels, strict=True))]
    found = baselines(TASKS["single"][0], split(examples[:300]), split(examples[300:]))
    assert found["TF-IDF + logistic regression"]["accuracy"] > 0.9 > 0.5 > found["majority"]["accuracy"]
    assert "word overlap" not in found  # there is one text only
    pairs = [
        Text(id=str(i), text=a, pair=a if i % 2 else "other words here", label=str(i % 2)) for i, a in enumerate(texts)
    ]
    found = baselines(task("mrpc"), split(pairs[:300]), split(pairs[300:]))
    assert found["word overlap"]["accuracy"] == 1 and found["majority"]["accuracy"] == 0.5
    one = [replace(pair, label="1") for pair in pairs[:30]]
    assert {name: values["accuracy"] for name, values in baselines(task("mrpc"), split(one), split(one)).items()} == {
        "majority": 1, "TF-IDF + logistic regression": 1, "word overlap": 1
    }  # fmt: skip
    for name in ("number", "tagged", "question", "choice"):
        form, splits = data(name, train=80, dev=40)
        assert len(baselines(form, splits["train"], splits["dev"])) >= 1


def test_overlap_finds_options_and_sentences():
    choice = Choice(id="0", context="the cat sat", question="who sat", options=("a dog", "the cat"), answers=(1,))
    found = baselines(task("swag"), split([choice]), split([choice]))
    assert found["word overlap"]["accuracy"] == 1
    question = Question(id="0", question="where is rome", passage="Oslo is cold. Rome is in Italy.", answers=())
    assert baselines(task("squad1"), split([question]), split([question]))["majority"]["exact"] == 1


def test_words_of_two_scripts():
    assert list(words("我爱NBA, ok?")) == ["我", "爱", "nba", ",", "ok", "?"]
