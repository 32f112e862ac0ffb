from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from encoderlab.errors import ConfigError, DataError
from encoderlab.models import FAMILIES
from encoderlab.nn.heads import Classification
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms import features
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.batching import pack
from encoderlab.tasks.forms.features import Frozen, Store
from encoderlab.tasks.forms.objective import TaskObjective, form_of
from encoderlab.tasks.runs.distill import Teaching
from encoderlab.tasks.runs.finetune import EXCLUSIVE, FinetuneRecipe, finetune
from encoderlab.tasks.runs.sift import SiFT
from encoderlab.train.optim import AdamW
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

LSTM = Frozen(layers="weighted_all", lstm_layers=1, lstm_width=16, dtype="float32")
RECIPE = FinetuneRecipe(
    epochs=15, batch=8, optim=AdamW(lr=1e-2, weight_decay=0.0), form=FormSettings(max_length=32), frozen=LSTM
)


@pytest.mark.parametrize(
    ("name", "frozen", "wanted"),
    [
        ("tagged", LSTM, 0.99),
        ("tagged", Frozen(layers="embeddings", lstm_layers=0), 0.9),
        ("single", replace(LSTM, layers="last", lstm_layers=0), 0.9),
        ("number", replace(LSTM, layers="second_to_last", lstm_layers=0), 0.9),
    ],
)
def test_features_are_enough_for_simple_rules(tmp_path, name, frozen, wanted):
    task, splits = data(name, train=120, dev=30)
    start = model()
    before = {key: value.clone() for key, value in start.state_dict().items()}
    result = finetune(start, task, splits, replace(RECIPE, frozen=frozen), tmp_path / "run")
    assert result.scores["dev"][task.metric] >= wanted
    assert all(torch.equal(value, before[key]) for key, value in start.state_dict().items())
    assert "of the frozen encoder" in result.record["head"]
    assert (tmp_path / "run/model/head.safetensors").exists()


def store_of(folder, name="tagged", frozen=LSTM):
    task, splits = data(name, train=12)
    start = model()
    form = form_of(completed(task, splits["train"]), start, FormSettings(max_length=32))
    return Store(folder, start, frozen, "hash"), form, splits


def rows(store, form, splits):
    return store.rows_of(form.items(splits["train"].examples), form.columns == "words", 32)


@pytest.mark.parametrize("how", ["flip", "cut", "longer"])
def test_damaged_activations_are_named_and_computed_again(tmp_path, caplog, how):
    store, form, splits = store_of(tmp_path)
    rows(store, form, splits)
    (path,) = tmp_path.glob("*.npy")
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[-7] ^= 1
    path.write_bytes({"flip": bytes(changed), "cut": whole[:-9], "longer": whole + b"x"}[how])
    again, form, splits = store_of(tmp_path)
    rows(again, form, splits)
    assert f"{path}: has changed since it was written" in caplog.text
    assert [one.read_bytes() for one in tmp_path.glob("*.npy")] == [whole]


def test_what_killed_processes_left_is_deleted(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    here, stem = platform.node(), "0" * 32
    kept = [f".{stem}-{here}-{os.getppid()}.npy", f".{stem}-another-node-{dead.pid}.npy"]
    for name in (*kept, f".{stem}-{here}-{dead.pid}.npy"):
        (tmp_path / name).touch()
    store, form, splits = store_of(tmp_path)
    rows(store, form, splits)
    assert {path.name for path in tmp_path.glob(".*")} == {*kept}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_an_error_of_one_line(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        store, form, splits = store_of(disk)
        with pytest.raises(DataError, match=r"disk: the activations .*No space left.* MB are needed\); make room"):
            rows(store, form, splits)
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)


def test_stored_activations_are_those_of_the_encoder(tmp_path):
    store, form, splits = store_of(tmp_path)
    items = rows(store, form, splits)
    plain = form.items(splits["train"].examples)
    for item, original in zip(items, plain, strict=True):
        sequence = original.sequences[0]
        states = store.model.encoder(torch.from_numpy(sequence.ids.astype(np.int64))[None])
        expected = torch.stack(states.layers[1:], 2)[0][torch.from_numpy(sequence.marks["word"] >= 0)]
        found = store.read(item.sequences[0].ids)
        assert np.allclose(found, expected.detach().numpy(), atol=1e-5)
        assert item.sequences[0].marks["target"].tolist() == [t for t in sequence.marks["target"] if t >= 0]


def test_activations_are_computed_once(tmp_path, monkeypatch):
    store, form, splits = store_of(tmp_path)
    rows(store, form, splits)
    monkeypatch.setattr(features.Store, "_compute", lambda *a: pytest.fail("computed again"))
    again, form, _ = store_of(tmp_path)
    first = rows(again, form, splits)
    second = rows(again, form, splits)  # the same list again: other rows, the same file
    assert np.array_equal(again.read(first[3].sequences[0].ids), again.read(second[3].sequences[0].ids))
    assert second[0].sequences[0].ids[0] > first[-1].sequences[0].ids[-1]
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_networks_that_read_the_same_layers_share_their_activations(tmp_path, monkeypatch):
    store, form, splits = store_of(tmp_path)
    rows(store, form, splits)
    monkeypatch.setattr(features.Store, "_compute", lambda *a: pytest.fail("computed again"))
    for other in (replace(LSTM, lstm_width=8), replace(LSTM, lstm_layers=0)):
        again, form, _ = store_of(tmp_path, frozen=other)
        ids = rows(again, form, splits)[0].sequences[0].ids
        assert np.array_equal(again.read(ids), store.read(ids))


def test_sentences_of_a_packed_row_are_read_alone(tmp_path):
    store, form, splits = store_of(tmp_path)
    items = rows(store, form, splits)
    small = features.FrozenModel(store, LSTM, form.head(FAMILIES["bert"]), form.head_labels(), 1)
    losses = [
        TaskObjective(small, form)(pack(items, pad=0, room=64, mode=mode))[0]["tagging"]
        for mode in ("packed", "dynamic")
    ]
    assert losses[0].count == losses[1].count
    torch.testing.assert_close(losses[0].sum, losses[1].sum)


def test_layers_and_forms_that_do_not_fit_are_refused(tmp_path):
    assert Frozen(layers="concatenated_last_four").numbers(12) == (9, 10, 11, 12)
    assert Frozen(layers="weighted_all").numbers(3) == (1, 2, 3)
    with pytest.raises(ConfigError, match="needs 4 layers, the model has 2"):
        Frozen().numbers(2)
    task, splits = data("choice", train=4, dev=4)
    with pytest.raises(ConfigError, match="choice tasks do not support frozen"):
        finetune(model(), task, splits, RECIPE, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("first", "second"), EXCLUSIVE)
def test_ways_of_training_that_exclude_each_other_are_refused_before_any_work(first, second):
    ways = {"frozen": LSTM, "sift": SiFT(), "distill": Teaching(teacher="x"), "head": Classification()}
    with pytest.raises(ConfigError, match=f"{first} and {second} exclude each other"):
        FinetuneRecipe(**{first: ways[first], second: ways[second]})
