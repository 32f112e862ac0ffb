from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from encoderlab.tasks import encodings
from encoderlab.tasks.encodings import Encodings
from encoderlab.tasks.finetune import completed, has_pairs
from encoderlab.tasks.form import FormSettings
from encoderlab.tasks.objective import form_of
from tests.tasks.synthetic import data
from tests.tasks.tiny import model


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "LEAST", 1)


def made(kind: str, max_length: int = 32):
    task, splits = data(kind, train=20, dev=6)
    settings = FormSettings(max_length=max_length, stride=8, pairs=has_pairs(splits["train"]))
    return form_of(completed(task, splits["train"].examples), model(), settings), splits["train"]


def same(one, other) -> bool:
    def flat(items):
        for item in items:
            yield item.example
            for sequence in item.sequences:
                for name, array in {"ids": sequence.ids, "segments": sequence.segments, **sequence.marks}.items():
                    yield name, array.dtype, array.tolist()
                yield from ((name, type(value), value) for name, value in sequence.labels.items())

    return sorted(map(str, flat(one))) == sorted(map(str, flat(other)))


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
