from __future__ import annotations

import logging
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms import encodings
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.encodings import Encodings
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.forms.span import SpanSettings
from encoderlab.tasks.runs.predict import Predictor
from tests.tasks.synthetic import data
from tests.tasks.tiny import model


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "LEAST", 1)


def made(kind: str, max_length: int = 32):
    task, splits = data(kind, train=20, dev=6)
    settings = FormSettings(max_length=max_length)
    if kind == "question":
        settings = SpanSettings(max_length=max_length, stride=8)
    return form_of(completed(task, splits["train"]), model(), settings), splits["train"]


def plain(value):
    """Every field of items, of whatever class, with the types of numbers and arrays."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    if is_dataclass(value):
        return type(value).__name__, {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return type(value).__name__, str(value)


def same(one, other) -> bool:
    return plain(one) == plain(other)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", ["single", "pair", "number", "tagged", "question", "choice"])
def test_what_is_kept_is_what_was_encoded(kind, train, tmp_path, monkeypatch):
    form, split = made(kind)
    items = Encodings(tmp_path).items(form, split, train=train)
    learned = {name: getattr(form, name) for name in form.learned}
    again, _ = made(kind)
    monkeypatch.setattr(type(again), "items", lambda *a, **k: pytest.fail("encoded again"))
    assert same(Encodings(tmp_path).items(again, split, train=train), items)
    if train:
        assert {name: getattr(again, name) for name in again.learned} == learned


def test_questions_are_answered_from_what_is_kept(tmp_path):
    form, split = made("question", max_length=16)  # two windows and more for a passage
    network, _ = with_head(model(), form, seed=1)
    found = []
    for _ in range(2):
        items = Encodings(tmp_path).items(form, split)
        assert len(items) > len(split)
        found.append(form.decode(items, Predictor(TaskObjective(network, form)).outputs(items), split.examples))
    assert found[0] == found[1]


def test_other_settings_are_other_files(tmp_path):
    for length in (32, 24):
        form, split = made("single", length)
        Encodings(tmp_path).items(form, split)
    assert len(list(tmp_path.iterdir())) == 2


def test_other_columns_of_the_same_file_are_other_examples(tmp_path):
    form, split = made("single")
    other = replace(split, examples=tuple(replace(example, text="two cats") for example in split.examples))
    first, second = (Encodings(tmp_path).items(form, one) for one in (split, other))
    assert not same(first, second) and same(second, form.items(other.examples))


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_file_is_encoded_again(damage, tmp_path, caplog):
    form, split = made("single")
    items = Encodings(tmp_path).items(form, split)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    else:
        content[-1] ^= 0xFF
    path.write_bytes(content)
    with caplog.at_level(logging.INFO):
        assert same(Encodings(tmp_path).items(form, split), items)
    assert "encoded again" in caplog.text
    assert same(Encodings(tmp_path).items(form, split), items) and np.array_equal(items[0].sequences[0].ids[:1], [2])


def test_a_folder_that_cannot_be_written_is_said(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    form, split = made("single")
    with caplog.at_level(logging.INFO):
        assert Encodings(tmp_path / "file").items(form, split)
    assert "not kept" in caplog.text
