"""Thresholds for a wanted precision or recall: the best there are, chosen on dev, kept with the model, applied."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.errors import ConfigError
from encoderlab.tasks.data.task import Text
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.classification import ClassificationForm, ClassificationSettings
from encoderlab.tasks.forms.multilabel import MultiLabelSettings
from encoderlab.tasks.runs.apply import predictor_of
from encoderlab.tasks.runs.finetune import FinetuneRecipe, finetune
from encoderlab.tasks.runs.predict import predict_ensemble
from encoderlab.tasks.scoring.metrics import precision_recall
from encoderlab.tasks.scoring.thresholds import Goal, threshold_for
from encoderlab.train.optim import AdamW
from tests.tasks.synthetic import data, split
from tests.tasks.tiny import model

RECIPE = FinetuneRecipe(epochs=3, batch=16, optim=AdamW(lr=2e-3, weight_decay=0.0))
PAIRS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.55, 0.9, 1.0]), st.booleans()), min_size=1, max_size=20
)


@settings(max_examples=150, deadline=None)
@given(PAIRS, st.sampled_from([0.2, 0.5, 0.75, 1.0]), st.booleans())
def test_no_other_threshold_is_better(pairs: list[tuple[float, bool]], least: float, for_recall: bool) -> None:
    p, right = (np.array(column) for column in zip(*pairs, strict=True))
    wanted = Goal(None, least) if for_recall else Goal(least, None)
    chosen = threshold_for(p, right, wanted)
    if not right.any():
        assert chosen.threshold == 0.5
        return

    def reached(threshold: float) -> tuple[float, float]:
        found = precision_recall(right, p > threshold)
        return found[::-1] if for_recall else found

    others = [reached(place) for place in (*p, *(p - 1e-9), -1.0) if (p > place).any()]
    first, second = reached(chosen.threshold) if chosen.threshold else reached(-1.0)
    assert {first, second} == {chosen.precision, chosen.recall}
    enough = [other for other in others if other[0] >= least]
    if enough:
        assert first >= least and second == max(other[1] for other in enough)
        assert "is not reached" not in chosen.told(wanted, "x")
    else:
        assert first == max(other[0] for other in others) and "is not reached" in chosen.told(wanted, "x")


def binary(count: int, seed: int):
    task, splits = data("single", train=count, dev=count // 2, seed=seed)
    named = {
        name: split(name, [replace(e, label="yes" if e.label == "red" else "no") for e in one.examples])
        for name, one in splits.items()
    }
    return replace(task, metrics=("accuracy", "f1")), named


@pytest.mark.parametrize("form", ["classification", "multilabel"])
def test_a_threshold_is_chosen_kept_and_applied(form: str, tmp_path) -> None:
    task, splits = binary(60, 1) if form == "classification" else data("several", train=60, dev=30)
    kind = ClassificationSettings if form == "classification" else MultiLabelSettings
    runs = {}
    for name, value in (("precision", 0.9), ("recall", 0.97)):
        recipe = replace(RECIPE, form=kind(max_length=24, **{name: value}))
        result = runs[name] = finetune(model(), task, splits, recipe, tmp_path / name)
        metric = name if form == "classification" else f"micro_{name}"
        said = " ".join(result.record["notes"])
        assert f"chosen on dev for {name} {value}" in said
        assert result.scores["dev"][metric] >= value or "is not reached" in said
        kept = json.loads((tmp_path / name / "model/task.json").read_text())
        assert kept["threshold"] == result.record["threshold"] > 0 and metric in kept["metrics"]
        again = predictor_of(tmp_path / name)
        assert again.predict(splits["dev"].examples).values == result.predictions["dev"].values
    assert runs["recall"].record["threshold"] != runs["precision"].record["threshold"]
    members = [predictor_of(tmp_path / name) for name in runs]
    together, each = predict_ensemble(members, splits["dev"].examples)
    assert together.threshold == pytest.approx(np.mean([one.threshold for one in each]))


def test_without_one_the_more_probable_label_is_predicted() -> None:
    task = replace(binary(8, 1)[0], labels=("no", "yes"))
    form = ClassificationForm(task, model().tokenizer, FormSettings())
    scores = [np.array([0.2, 0.1]), np.array([0.1, 0.2])]
    examples = [Text(id=str(i), text="") for i in range(2)]
    assert form.decode([], scores, examples).values == ["no", "yes"]
    form.threshold = 0.4
    assert form.decode([], scores, examples).values == ["yes", "yes"]


def test_what_cannot_be_chosen_is_refused(tmp_path) -> None:
    for wrong in ({"precision": 0.0}, {"recall": 1.5}, {"precision": 0.9, "recall": 0.9}):
        with pytest.raises(ConfigError, match="precision is 0.0|recall is 1.5|form.precision and form.recall"):
            ClassificationSettings(**wrong)
    recipe = replace(RECIPE, form=ClassificationSettings(precision=0.9))
    with pytest.raises(ConfigError, match="are for two labels, single has 3"):
        finetune(model(), *data("single", train=9, dev=9), recipe, tmp_path / "three")
    task, splits = binary(16, 1)
    with pytest.raises(ConfigError, match="choose a threshold on dev data"):
        finetune(model(), task, {"train": splits["train"]}, replace(recipe, select="last"), tmp_path / "none")
    assert not (tmp_path / "none").exists()
