from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.errors import DataError
from encoderlab.tasks.data.task import Task, Text
from encoderlab.tasks.forms.scores import score
from encoderlab.tasks.scoring import metrics

sklearn_metrics = pytest.importorskip("sklearn.metrics")

labelled = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 3), min_size=n, max_size=n).map(np.array)] * 2)
)


@given(labelled)
def test_classification_metrics_equal_scikit_learn(pair):
    gold, predicted = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metrics.accuracy(gold, predicted) == pytest.approx(sklearn_metrics.accuracy_score(gold, predicted))
        assert metrics.matthews(gold, predicted) == pytest.approx(sklearn_metrics.matthews_corrcoef(gold, predicted))
        macro = sklearn_metrics.f1_score(gold, predicted, average="macro", zero_division=0)
        assert metrics.f1(gold, predicted, average="macro") == pytest.approx(macro)
        binary = sklearn_metrics.f1_score(gold == 1, predicted == 1, zero_division=0)
        assert metrics.f1(gold, predicted) == pytest.approx(binary)


def test_classes_that_a_file_lacks_do_not_lower_its_macro_f1():
    task = Task(name="t", form="classification", metrics=("accuracy", "macro_f1"), layouts=(), labels=tuple("abcdefgh"))
    gold, predicted = "abcaab", "abcbcb"
    examples = [Text(id=str(i), text="x", label=label) for i, label in enumerate(gold)]
    scores, said = score(task, examples, list(predicted))
    assert scores["macro_f1"] == pytest.approx(sklearn_metrics.f1_score([*gold], [*predicted], average="macro"))
    assert not said


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-5, 5).map(lambda x: round(x, 1))), min_size=2, max_size=30))
def test_correlations_with_ties_equal_scipy(pairs):
    stats = pytest.importorskip("scipy.stats")
    gold, predicted = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    if np.ptp(gold) == 0 or np.ptp(predicted) == 0:
        with pytest.warns(metrics.MetricWarning, match="constant"):
            assert metrics.spearman(gold, predicted) == metrics.pearson(gold, predicted) == 0
        return
    assert metrics.pearson(gold, predicted) == pytest.approx(stats.pearsonr(gold, predicted).statistic, abs=1e-9)
    assert metrics.spearman(gold, predicted) == pytest.approx(stats.spearmanr(gold, predicted).statistic, abs=1e-9)


def test_a_correlation_of_huge_numbers_does_not_overflow():
    gold = [1.0, 2.0, 4.0, 3.0]
    assert metrics.pearson(gold, [1e300 * x for x in gold]) == pytest.approx(1.0)


def test_matthews_of_one_class_is_zero_and_said():
    with pytest.warns(metrics.MetricWarning, match="the predictions are constant"):
        assert metrics.matthews([0, 1, 1], [1, 1, 1]) == 0
    with pytest.warns(metrics.MetricWarning, match="the gold labels are constant"):
        assert metrics.matthews([1, 1, 1], [0, 1, 1]) == 0


def test_labels_never_seen_in_gold_count_as_wrong():
    assert metrics.accuracy(["a", "b"], ["a", "z"]) == 0.5
    assert metrics.matthews(["a", "b", "a"], ["a", "b", "z"]) == pytest.approx(
        sklearn_metrics.matthews_corrcoef(["a", "b", "a"], ["a", "b", "z"])
    )


def test_empty_and_unequal_inputs_are_refused():
    with pytest.raises(DataError, match="0 labelled examples"):
        metrics.accuracy([], [])
    with pytest.raises(DataError, match="2 predictions for 3 examples"):
        metrics.accuracy([1, 2, 3], [1, 2])


def test_grouped_exact_counts_whole_questions():
    assert metrics.grouped_exact([1, 0, 1, 1], [1, 0, 0, 1], ["q1", "q1", "q2", "q2"]) == 0.5


def test_mean_interval_equals_student_t():
    stats = pytest.importorskip("scipy.stats")
    for n in (2, 5, 31, 60):
        values = np.random.default_rng(0).normal(size=n)
        low, high = stats.t.interval(0.95, n - 1, values.mean(), values.std(ddof=1) / n**0.5)
        assert metrics.mean_interval(list(values)) == pytest.approx((low, high), rel=2e-3, abs=2e-3)
    assert metrics.mean_interval([0.5]) == (float("-inf"), float("inf"))


def test_many_absent_labels_are_not_all_named():
    labels = [f"l{i}" for i in range(30)]
    with pytest.warns(metrics.MetricWarning, match=r"F1 of l1, .*, l9 and 20 more is 0") as said:
        metrics.f1_of_sets([["l0"]], [["l0"]], labels, average="macro")
    assert len(said) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_have_no_correlation(value):
    for measure in (metrics.pearson, metrics.spearman):
        for gold, predicted, said in (
            ([1.0, 2.0, 3.0], [1.0, value, value], "2 of 3 predictions are not finite .first: number 2"),
            ([1.0, 2.0, value], [1.0, 2.0, 3.0], "1 of 3 gold values are not finite .first: number 3"),
        ):
            with pytest.warns(metrics.MetricWarning, match=said):
                assert np.isnan(measure(gold, predicted))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_f1_of_multirc_is_that_of_its_script(pairs):
    """Micro-averaged, with precision 1 where nothing is predicted and recall 1 where nothing is right."""
    gold, predicted = zip(*pairs, strict=True)
    both = sum(a and b for a, b in pairs)
    precision = both / sum(predicted) if sum(predicted) else 1.0
    recall = both / sum(gold) if sum(gold) else 1.0
    expected = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert metrics.f1(gold, predicted, positive=True, undefined=1.0) == pytest.approx(expected)


@given(labelled, st.data())
def test_classes_that_are_not_finite_count_as_wrong(pair, data):
    """As predictions of a class that the gold labels lack."""
    gold, predicted = pair[0].astype(float), pair[1].astype(float)
    at = data.draw(st.integers(0, len(gold) - 1))
    value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    strange, other = np.where(np.arange(len(gold)) == at, [[value], [9.0]], predicted)
    measures = [metrics.accuracy, metrics.f1, metrics.matthews, partial(metrics.f1, average="macro")]
    measures += [partial(metrics.grouped_exact, groups=np.arange(len(gold)) // 2)]
    for measure in measures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = measure(gold, other)
        with pytest.warns(metrics.MetricWarning, match=f"1 of {len(gold)} predictions are not finite .first: number "):
            assert measure(gold, strange) == expected
