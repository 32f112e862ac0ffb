"""Where predictions go wrong: counts by class against scikit-learn, texts that are cut, and every form's mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.config import from_dict, to_dict
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.scores import score
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.predict import Predictor
from encoderlab.tasks.scoring.analysis import SHOWN, WORST, Analysis, by_class, confusion, shortened
from tests.tasks.synthetic import TASKS, data
from tests.tasks.tiny import model

LABELS = st.sampled_from("abc")


@given(st.lists(st.tuples(LABELS, LABELS), min_size=1, max_size=30))
def test_counts_by_class_are_those_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    gold, guess = zip(*pairs, strict=True)
    found = by_class([[one] for one in gold], [[one] for one in guess], "abc")
    expected = metrics.precision_recall_fscore_support(gold, guess, labels=list("abc"), zero_division=0)
    for i, name in enumerate("abc"):
        counts = found[name]
        assert [counts.precision, counts.recall, counts.f1] == pytest.approx([one[i] for one in expected[:3]])
        assert counts.gold == expected[3][i]
    table = metrics.confusion_matrix(gold, guess, labels=list("abc"))
    assert {(a, b): count for a, b, count in confusion(gold, guess)} == {
        ("abc"[i], "abc"[j]): table[i, j] for i in range(3) for j in range(3) if table[i, j]
    }


@given(st.text(max_size=2 * SHOWN), st.integers(-1, 3 * SHOWN))
def test_a_text_is_cut_around_a_place(text: str, around: int) -> None:
    shown = shortened(text, around)
    assert shown.removeprefix("… ").removesuffix(" …") in text and len(shown) <= SHOWN + 4
    assert shown == text or 0 > around or around >= len(text) or text[around] in shown


@pytest.mark.parametrize("name", TASKS)
def test_the_mistakes_of_every_form_are_those_that_its_scores_count(name: str) -> None:
    task, splits = data(name, train=12, dev=24)
    task, examples = completed(task, splits["train"]), splits["dev"].examples
    form = form_of(task, model(), FormSettings(max_length=48))
    network, _ = with_head(model(), form, seed=0)
    found = Predictor(TaskObjective(network, form)).predict(examples)
    analysis = FORMS[task.form].analysed(task, examples, found)
    assert from_dict(Analysis, to_dict(analysis)) == analysis and analysis.examples == 24
    scores, _ = score(task, examples, found.values)
    if task.form == "regression":
        assert analysis.wrong is None and len(analysis.points) == 24 and len(analysis.worst) == 24
        distance = [abs(float(one.gold) - float(one.predicted)) for one in analysis.worst]
        assert distance == sorted(distance, reverse=True)
        return
    assert analysis.wrong is not None and analysis.wrong, "an untrained model is wrong"
    assert set(analysis.wrong) >= {one.place for one in analysis.worst}
    assert len(analysis.worst) == min(WORST, len(analysis.wrong))
    alone = [score(task, [example], [value])[0] for example, value in zip(examples, found.values, strict=True)]
    right = (
        "accuracy" if task.form in ("classification", "tagging", "choice") else "f1" if task.form == "span" else "exact"
    )
    assert list(analysis.wrong) == [i for i, one in enumerate(alone) if one[right] < 1]
    if task.form == "tagging":
        of_gold = {f"f1_{kind}": counts.f1 for kind, counts in analysis.classes.items() if counts.gold}
        assert of_gold == {key: value for key, value in scores.items() if key.startswith("f1_")}
    if task.form == "multilabel":
        assert np.mean([one.f1 for one in analysis.classes.values()]) == pytest.approx(scores["macro_f1"])
