"""Long texts in windows: what they cover, the mean of their scores in losses and predictions, a rule at the end."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.errors import ConfigError
from encoderlab.interchange.load import load
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Task, Text
from encoderlab.tasks.forms.batching import pack
from encoderlab.tasks.forms.classification import ClassificationForm, ClassificationSettings
from encoderlab.tasks.forms.features import Frozen
from encoderlab.tasks.forms.multilabel import MultiLabelSettings
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.regression import RegressionSettings
from encoderlab.tasks.runs.finetune import FinetuneRecipe, finetune
from encoderlab.tasks.runs.folder import read_task
from encoderlab.tasks.runs.predict import Predictor
from encoderlab.train.optim import AdamW
from tests.tasks.synthetic import COLOURS, FILLERS, data, split
from tests.tasks.tiny import WORDS, model, tokenizer

TEXT = tokenizer()
SETTINGS = {"single": ClassificationSettings, "number": RegressionSettings, "several": MultiLabelSettings}


@settings(max_examples=150, deadline=None)
@given(
    first=st.integers(0, 50),
    second=st.none() | st.integers(0, 50),
    length=st.integers(8, 30),
    windows=st.integers(2, 9),
)
def test_windows_cover_the_text_and_share_a_quarter(first: int, second: int | None, length: int, windows: int) -> None:
    task = Task(name="t", form="classification", metrics=("accuracy",), layouts=(), labels=("a", "b"))
    words = [" ".join(WORDS[:count]) for count in (first, second or 0)]  # which differ, so that their places are known
    example = Text(id="0", text=words[0], pair=None if second is None else words[1])
    form = ClassificationForm(task, TEXT, ClassificationSettings(max_length=length, windows=windows))
    (item,) = form.items([example])
    whole = [TEXT.encode(text).ids.tolist() for text in (example.text, example.pair) if text is not None]
    extra = len(TEXT.frame(*[[]] * len(whole))[0])
    read = [[part.tolist() for part in _parts(sequence.ids, len(whole))] for sequence in item.sequences]
    assert all(len(sequence) <= length for sequence in item.sequences) and len(read) <= windows
    assert form.cut == (form.most([len(text) for text in whole]) < sum(map(len, whole)))
    assert not form.cut or f"longer than {windows} windows of {length} tokens" in form.cut_note("text", str(length))
    if sum(map(len, whole)) + extra <= length:
        assert read == [whole] and form.cut == 0
        return
    long = max(range(len(whole)), key=lambda i: len(whole[i]))
    beside = [text[: (length - extra) // 2] for i, text in enumerate(whole) if i != long]
    assert all([part for i, part in enumerate(parts) if i != long] == beside for parts in read)
    size, covered = length - extra - sum(map(len, beside)), 0
    for number, parts in enumerate(read):
        assert len(parts[long]) == size  # every window is full
        begin = whole[long].index(parts[long][0])
        assert parts[long] == whole[long][begin : begin + size]
        assert covered - begin >= size // 4 if number else begin == 0
        covered = begin + size
    assert form.cut == (covered + sum(map(len, beside)) < sum(map(len, whole)))
    assert form.most([len(text) for text in whole]) == covered + sum(map(len, beside))
    if windows * (size - size // 4) >= len(whole[long]):
        assert covered == len(whole[long])


def _parts(ids: np.ndarray, count: int) -> list[np.ndarray]:
    """The texts of a framed sequence: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""
    ends = np.flatnonzero(ids == TEXT.special.sep)
    return [ids[1 : ends[0]], ids[ends[0] + 1 : ends[1]]] if count == 2 else [ids[1 : ends[0]]]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_score_of_a_text_is_the_mean_over_its_windows(name: str) -> None:
    """In losses, their gradients, their counts and in predictions, however the batch is packed and cut."""
    task, splits = data(name, train=9)
    examples = [replace(e, text=" ".join([e.text] * (1 + 3 * (i % 3)))) for i, e in enumerate(splits["train"].examples)]
    start, how = model(), SETTINGS[name](max_length=16, windows=4)
    form = form_of(completed(task, splits["train"]), start, how)
    network = with_head(start, form, seed=1)[0]
    objective = TaskObjective(network, form)
    items = form.items(examples, train=True)
    assert {1, 2} <= {len(item.sequences) for item in items}
    means = []
    for item in items:
        rows = [torch.from_numpy(sequence.ids.astype(np.int64)) for sequence in item.sequences]
        states = [network.pooler(network.encoder(row[None]).last[:, 0], None) for row in rows]
        means.append(torch.cat([network.task(state, None) for state in states]).mean(0))
    target = torch.tensor([item.sequences[0].labels["target"] for item in items])
    scores = torch.stack(means)
    wanted = {
        "single": lambda: F.cross_entropy(scores, target, reduction="sum"),
        "number": lambda: ((scores[:, 0] - target) ** 2).sum(),
        "several": lambda: F.binary_cross_entropy_with_logits(scores, target, reduction="sum"),
    }[name]()
    wanted.backward()
    gradients = [p.grad.clone() for p in objective.parameters() if p.grad is not None]
    for mode in ("packed", "dynamic"):
        batch = pack(items, pad=0, room=40, mode=mode)
        objective.zero_grad()
        found = 0.0
        for begin in range(0, len(batch), 2):
            part = batch.slice(begin, min(begin + 2, len(batch)))
            (term,) = objective(part)[0].values()
            assert term.count == objective.counts(part)[form.name]
            term.sum.backward()
            found += term.sum.item()
        assert found == pytest.approx(wanted.item(), rel=1e-5)
        ours = [p.grad for p in objective.parameters() if p.grad is not None]
        torch.testing.assert_close(ours, gradients, rtol=1e-4, atol=1e-6)
    outputs = Predictor(objective).outputs(items)
    np.testing.assert_allclose(np.stack(outputs), scores.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_what_stands_at_the_end_of_long_texts_is_learned(tmp_path) -> None:
    rng = random.Random(1)
    task = data("single")[0]

    def long(i: int) -> Text:
        colour = rng.choice(COLOURS)
        words = [*(rng.choice(FILLERS) for _ in range(18)), colour]
        return Text(id=str(i), text=" ".join(words), label=colour)

    splits = {name: split(name, [long(i) for i in range(count)]) for name, count in (("train", 128), ("dev", 24))}
    recipe = FinetuneRecipe(epochs=15, batch=16, optim=AdamW(lr=2e-3, weight_decay=0.0))
    how = ClassificationSettings(max_length=16, windows=4)
    result = finetune(model(), task, splits, replace(recipe, form=how), tmp_path / "run")
    assert result.scores["dev"]["accuracy"] == 1.0 and result.record["cut"] == 0
    kept = read_task(tmp_path / "run")
    assert kept.settings.windows == 4
    again = Predictor.of(load(tmp_path / "run"), completed(task, splits["train"]), kept.settings)
    assert again.predict(splits["dev"].examples).values == result.predictions["dev"].values
    cut = finetune(model(), task, splits, replace(recipe, epochs=1, form=replace(how, windows=1)), tmp_path / "cut")
    assert cut.record["cut"] == 128


def test_windows_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="windows is 0"):
        ClassificationSettings(windows=0)
    with pytest.raises(ConfigError, match="windows is 5000"):
        ClassificationSettings(windows=5000)
    task, splits = data("single", train=9)
    with pytest.raises(ConfigError, match="frozen encoder have no windows"):
        FinetuneRecipe(frozen=Frozen(layers="last"), form=ClassificationSettings(windows=2)).suited(
            task, splits["train"]
        )
