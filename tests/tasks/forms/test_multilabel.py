"""Several labels per text: inferred, scored, decided by a threshold, exchanged, averaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.errors import DataError
from encoderlab.nn.heads import Classification
from encoderlab.tasks.data.infer import Given, task_of
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Text
from encoderlab.tasks.forms.base import FormSettings, Predictions
from encoderlab.tasks.forms.multilabel import MultiLabelForm, best_threshold
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.scores import baselines, score
from encoderlab.tasks.runs.predict import Predictor, predict_ensemble, task_of_model
from encoderlab.tasks.scoring.linear import LogisticRegression, TfIdf
from encoderlab.tasks.scoring.metrics import MetricWarning
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

LABELS = ("a", "b", "c")
SETS = st.lists(st.tuples(st.sets(st.sampled_from(LABELS)), st.sets(st.sampled_from(LABELS))), min_size=1, max_size=12)


def lines(path: Path, *labels: object) -> Path:
    rows = [{"text": f"text {i}", "labels": label} for i, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, *cells: str) -> Path:
    path.write_text("text,labels\n" + "".join(f'text {i},"{cell}"\n' for i, cell in enumerate(cells)))
    return path


# Data


CELLS = [
    ("a|b", "a", "b", ""),
    ("a; c", "c", "a"),
    ("a|b", "b|c", "a|c"),
    ("[]", '[""a"", ""b""]', '[""a""]'),
    ("['a']", "[]"),
]


@pytest.mark.parametrize("cells", CELLS)
def test_cells_with_several_labels_are_known_by_their_separator(tmp_path: Path, cells: tuple[str, ...]) -> None:
    task, said = task_of(table(tmp_path / "t.csv", *cells))
    assert task.form == "multilabel" and "any number of labels" in said
    found = task.read([tmp_path / "t.csv"], "train")
    plain = [cell.replace(";", ",").replace("|", ",").split(",") for cell in cells]
    expected = [tuple(part.strip(" '[]\"") for part in parts) for parts in plain]
    assert [example.label for example in found.examples] == [tuple(filter(None, labels)) for labels in expected]


@pytest.mark.parametrize(
    "cell", ["['Arts, Crafts', \"it's\"]", "['Arts, Crafts' \"it's\"]", "['Arts, Crafts', None, \"it's\"]"]
)
def test_a_list_as_pandas_writes_it_keeps_commas_in_names(tmp_path: Path, cell: str) -> None:
    task, _ = task_of(table(tmp_path / "t.csv", cell.replace('"', '""'), "[]"))
    assert [one.label for one in task.read([tmp_path / "t.csv"], "train").examples] == [("Arts, Crafts", "it's"), ()]


def test_lists_of_json_are_labels(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", ["b", "a"], [], [1, "a", "a"])
    task, _ = task_of(path)
    split = task.read([path], "train")
    assert [example.label for example in split.examples] == [("b", "a"), (), ("1", "a")]
    assert completed(task, split).labels == ("1", "a", "b")


def test_vectors_of_zeros_and_ones_are_not_names(tmp_path: Path) -> None:
    vectors = ([1, 0, 0], [0, 1, 0]), ([1.0, 0.0], [0.0, 1.0]), ([True, False], [True, True])
    files = [lines(tmp_path / f"{number}.jsonl", *labels) for number, labels in enumerate(vectors)]
    cells = ("[1, 0]", "[0, 0]"), ("[1 0 0]", "[0 1 0]"), ("[1. 0.]", "[0. 1.]"), ("1|0|0", "0|0|0")
    files += [table(tmp_path / f"{number}.csv", *labels) for number, labels in enumerate(cells)]
    for file in files:
        with pytest.raises(DataError, match="labels are vectors of 0 and 1, expected lists of names"):
            task_of(file, Given(form="multilabel"))
    some, _ = task_of(lines(tmp_path / "t.jsonl", [1, 0], [0], [1]))
    assert some.form == "multilabel"  # names that are numbers


def test_a_tag_for_each_character_is_no_list_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    records = [{"text": "北京很大", "labels": ["B-LOC", "I-LOC", "O", "O"]}, {"text": "好的", "labels": ["O", "O"]}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(DataError, match="as many labels as characters.*; for tags of characters write the text as a"):
        task_of(path)
    path.write_text("".join(json.dumps(record | {"text": list(record["text"])}) + "\n" for record in records))
    assert task_of(path)[0].form == "tagging"


@pytest.mark.parametrize(
    "cells", [("a|b", "c|d"), ("S|F", "S|T", "A|M"), ("a", "b", "a"), ("Fish, fresh", "Meat", "Fish, fresh", "Fish")]
)
def test_one_label_per_cell_stays_one(tmp_path: Path, cells: tuple[str, ...]) -> None:
    assert task_of(table(tmp_path / "t.csv", *cells))[0].form == "classification"
    task, _ = task_of(table(tmp_path / "t.csv", *cells), Given(form="multilabel"))
    assert task.form == "multilabel"


def test_a_list_where_one_label_is_wanted_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", ["a"], ["b"])
    task, _ = task_of(path, Given(form="classification"))
    with pytest.raises(DataError, match=r"t.jsonl:1: the label \['a'\] is a list; .* or --form multilabel"):
        task.read([path], "train")


def test_a_test_file_whose_texts_have_no_label_is_unlabelled(tmp_path: Path) -> None:
    train, test = lines(tmp_path / "t.jsonl", ["a"], ["b"]), lines(tmp_path / "x.jsonl", [], [])
    task, _ = task_of(train)
    assert {example.label for example in task.read([test], "test").examples} == {None}
    task = completed(task, task.read([train], "train"))
    with pytest.raises(DataError, match="label 'c' is not one of a, b"):
        task.read([lines(tmp_path / "d.jsonl", ["c"])], "dev")


# Scores


@settings(max_examples=60, deadline=None)
@given(SETS)
@pytest.mark.filterwarnings("ignore")
def test_scores_are_those_of_scikit_learn(pairs: list[tuple[set[str], set[str]]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    task = data("several")[0]
    gold = [Text(id=str(i), text="", label=tuple(sorted(one))) for i, (one, _) in enumerate(pairs)]
    guess = [tuple(sorted(other)) for _, other in pairs]
    found, _ = MultiLabelForm.score(completed_with(task), gold, guess)
    sets = [example.label for example in gold], guess
    sides = [np.array([[label in one for label in LABELS] for one in side]) for side in sets]
    for average in ("micro", "macro"):
        wanted = sklearn.f1_score(*sides, average=average, zero_division=0)
        assert found[f"{average}_f1"] == pytest.approx(wanted)
    assert found["exact"] == pytest.approx(sklearn.accuracy_score(*sides))


def completed_with(task):
    from dataclasses import replace

    return replace(task, labels=LABELS)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.55, 0.9]), st.booleans()), min_size=1, max_size=20))
def test_the_threshold_has_the_best_micro_f1(pairs: list[tuple[float, bool]]) -> None:
    p, right = (np.array(column)[:, None] for column in zip(*pairs, strict=True))

    def f1(threshold: float) -> float:
        given = p > threshold
        return 2 * (given & right).sum() / max(given.sum() + right.sum(), 1)

    if not right.any():
        assert best_threshold(p, right) == 0.5
    else:
        assert f1(best_threshold(p, right)) == pytest.approx(max(map(f1, [0, *p.ravel(), *(p.ravel() - 1e-9)])))


def test_baselines_read_the_words() -> None:
    task, splits = data("several", train=200, dev=60)
    found = baselines(completed(task, splits["train"]), splits["train"], splits["dev"])
    assert found["TF-IDF + logistic regression"]["micro_f1"] > 0.9 > found["majority"]["micro_f1"] + 0.2


def test_the_regressions_of_several_labels_are_those_of_each() -> None:
    rng = np.random.default_rng(0)
    documents = [[f"w{i}" for i in rng.integers(0, 9, 6)] for _ in range(40)]
    rows = TfIdf(documents)(documents)
    target = rng.integers(0, 2, (40, 3))
    scores = LogisticRegression(3, several=True).fit(rows, target).scores(rows)
    linear = pytest.importorskip("sklearn.linear_model")
    dense = np.zeros((40, 1 + max(int(columns.max()) for columns, _ in rows)))
    for row, (columns, values) in zip(dense, rows, strict=True):
        row[columns] = values
    for label in range(3):
        theirs = linear.LogisticRegression(tol=1e-8, max_iter=1000).fit(dense, target[:, label])
        np.testing.assert_allclose(scores[:, label], theirs.decision_function(dense), atol=2e-3)


# Models


def ready(seed: int = 1):
    task, splits = data("several", train=12, dev=8)
    task = completed(task, splits["train"])
    start = model()
    form = form_of(task, start, FormSettings(max_length=32))
    network, _ = with_head(start, form, seed=seed)
    return task, splits, network


def test_the_loss_is_binary_cross_entropy_of_every_label() -> None:
    task, splits, network = ready()
    assert isinstance(network.config.task, Classification) and network.config.task.several
    predictor = Predictor.of(network, task, FormSettings(max_length=32))
    items = predictor.form.items(splits["train"].examples, train=True)
    scores = np.array(predictor.outputs(items))
    target = np.array([[label in example.label for label in task.labels] for example in splits["train"].examples])
    from encoderlab.tasks.forms.batching import pack

    batch = pack(items, pad=0, room=48)
    (term,) = TaskObjective(network, predictor.form)(batch)[0].values()
    wanted = -(np.log(1 / (1 + np.exp(-scores))) * target + np.log(1 / (1 + np.exp(scores))) * ~target).sum()
    assert float(term.sum.detach()) == pytest.approx(wanted, rel=1e-4)
    assert term.count == predictor.form.counts(batch)["multilabel"] == target.size


def test_imitation_and_divergence_are_zero_where_models_agree_and_never_below() -> None:
    _, _, network = ready()
    task, splits, _ = ready()
    form = form_of(task, network, FormSettings())
    torch.manual_seed(0)
    first, second = torch.randn(7, 3), torch.randn(7, 3)
    assert float(form.imitation(first, first, 2.0, 0.5).sum) == pytest.approx(0, abs=1e-4)
    assert float(form.imitation(first, second, 2.0, 0.5).sum) > 0.1
    p, q = first.double().sigmoid(), second.double().sigmoid()
    crossed = -(p * q.log() + (1 - p) * (1 - q).log()).sum() - (q * p.log() + (1 - q) * (1 - p).log()).sum()
    assert float(form.divergence(first, second)) == pytest.approx(float(crossed), rel=1e-4)


def test_an_ensemble_averages_probabilities_and_thresholds() -> None:
    task, splits, network = ready()
    members = [Predictor.of(one, task, FormSettings(max_length=32)) for one in (network, ready(seed=2)[2])]
    members[0].form.threshold, members[1].form.threshold = 0.4, 0.6
    together, own = predict_ensemble(members, splits["dev"].examples)
    for one, *others in zip(together.details, *(member.details for member in own), strict=True):
        means = np.mean([list(other["probabilities"].values()) for other in others], axis=0)
        np.testing.assert_allclose(list(one["probabilities"].values()), means)
        assert tuple(one["probabilities"]) == task.labels
    assert together.threshold == pytest.approx(0.5)


def test_a_model_without_a_task_is_known_by_its_head() -> None:
    task, _, network = ready()
    assert task_of_model(network).form == "multilabel" and task_of_model(network).labels == task.labels


@pytest.mark.parametrize("label", ["choice", "number"])  # the labels of heads for options and for numbers
def test_a_single_label_may_have_any_name(label: str) -> None:
    head = Classification(labels=1, several=True)
    assert task_of_model(model().with_task(head, (label,), 0)).form == "multilabel"


def test_no_predicted_label_scores_zero_with_a_warning() -> None:
    task, splits = data("several", dev=6)
    found, notes = score(completed(task, splits["train"]), splits["dev"].examples, [()] * 6)
    assert found["micro_f1"] == 0 and not notes
    nothing = [Text(id="0", text="", label=())]
    with pytest.warns(MetricWarning):
        assert MultiLabelForm.measures(completed(task, splits["train"]), nothing, [()])["exact"] == 1


def test_the_threshold_is_chosen_and_kept() -> None:
    task, splits, network = ready()
    form = form_of(task, network, FormSettings())
    examples = [Text(id="0", text="", label=("red",)), Text(id="1", text="", label=())]
    probabilities = [np.array([0.1, 0.1, 0.3]), np.array([0.1, 0.1, 0.2])]
    details = [{"probabilities": dict(zip(task.labels, one, strict=True))} for one in probabilities]
    said = form.choose_threshold(examples, Predictions(values=[(), ()], details=details))
    assert form.threshold == pytest.approx(0.25) and "above probability 0.2500, chosen on dev" in said
