"""The benchmark of training compares the same work: equal losses from equal weights, in processes of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType

from encoderlab import models
from encoderlab.batches.permutation import Targets
from encoderlab.batches.rows import Row
from encoderlab.cli import main
from encoderlab.commands import bench
from encoderlab.errors import ConfigError, EncoderlabError
from encoderlab.measure.bench import train
from encoderlab.measure.bench.contenders import Ours
from encoderlab.measure.bench.families import FAMILIES, Case, case
from encoderlab.measure.bench.parts import kernels_by_part, time_by_part
from encoderlab.measure.bench.workers import Work, Worker
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.spanconv import SpanDynamic
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.train.precision import WideProducts

VOCAB = 60
VOCABULARY = Vocabulary(size=VOCAB, pad=0, mask=4, special=(0, 1, 2, 3, 4), counts=np.ones(VOCAB))


def tiny(name: str) -> Case:
    made = case(name, layers=1, width=128).with_dropout(0.0)
    second = None if made.second is None else resized(made.second, vocab=VOCAB)
    made = replace(made, model=resized(made.model, vocab=VOCAB), second=second)
    if isinstance(made.objective, PermutationSettings):
        made = replace(made, objective=replace(made.objective, targets=Targets(count=3)))
    return made


def rows() -> list[list[Row]]:
    """A batch of pairs that fill their rows."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(4):
        ids = rng.integers(5, VOCAB, 16)
        ids[[0, 8, 15]] = 2, 3, 3
        special = np.isin(np.arange(16), (0, 8, 15))
        segments = (np.arange(16) > 8).astype(np.int8)
        labels = {"next_sentence": i % 2}
        made.append(Row(ids, np.zeros(16, np.int32), segments, np.ones(16, bool), special, labels, (0, 0, i), i))
    return [made]


PUBLISHED = ["deberta-tiny", "distilbert-tiny", "convbert-tiny", "erlangshen-deberta-v2-tiny"]


@pytest.mark.parametrize("name", [*FAMILIES, *PUBLISHED])
def test_equal_weights_give_equal_losses(name: str) -> None:
    pytest.importorskip("transformers")
    from encoderlab.measure.bench.contenders import Ours, Theirs

    one = tiny(name)
    ours, theirs = Ours(one, VOCABULARY), Theirs(one, VOCABULARY)
    batch = ours.batches(rows())[0]
    mine, other = float(ours.loss(batch, 0).detach()), float(theirs.loss(theirs.arranged(batch), 0).detach())
    assert math.isclose(mine, other, rel_tol=1e-4), (mine, other)


@pytest.mark.parametrize(
    "name", ["roberta", "albert", "distilbert", "electra", "deberta-v1", "deberta-v2", "deberta-v3"]
)
def test_documents_side_by_side_have_the_losses_of_padded_ones(name: str) -> None:
    pytest.importorskip("transformers")
    from encoderlab.measure.bench.contenders import Ours, Theirs, apart

    one, packed = tiny(name), [replace(row, doc=np.repeat(np.int32([0, 1]), (11, 5))) for row in rows()[0]]
    ours, theirs = Ours(one, VOCABULARY), Theirs(one, VOCABULARY)
    batch = ours.batches([packed])[0]
    padded = apart(batch, VOCABULARY.pad)
    assert padded.ids.shape == (8, 11) and padded.num_tokens == batch.num_tokens
    assert int((padded.labels["positions"] >= 0).sum()) == int((batch.labels["positions"] >= 0).sum())
    mine, other = float(ours.loss(batch, 0).detach()), float(theirs.loss(theirs.arranged(batch), 0).detach())
    assert math.isclose(mine, other, rel_tol=1e-4), (mine, other)


def test_a_network_that_cannot_be_exported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from encoderlab.measure.bench.predict import _onnx

    def export(*_: object, **__: object) -> None:
        raise RuntimeError("no such operation\nand more")

    monkeypatch.setattr(torch.export, "export", export)
    with pytest.raises(EncoderlabError, match=r"cannot export Linear to ONNX \(RuntimeError: no such operation\)"):
        _onnx(torch.nn.Linear(2, 2), tmp_path / "model.onnx", 1, 16)


@pytest.mark.parametrize("name", ["bert", "deberta-v3"])
def test_contenders_of_prediction_give_the_same_states(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    pytest.importorskip("transformers")
    from encoderlab.measure.bench.predict import Contenders, PredictSetting

    model = Model(tiny(name).model).initialize(0).eval()
    rng = np.random.default_rng(0)
    framed = [(rng.integers(5, VOCAB, n), (np.arange(n) > n // 2).astype(np.int8)) for n in (100, 200)]
    others = Contenders(model, framed)
    setting = PredictSetting(against=("transformers", "onnxruntime"), threads=1)
    others.add(tmp_path, setting, torch.device("cpu"))
    assert list(others.calls) == ["transformers", "onnxruntime"] and not others.failed
    assert max(others.difference.values()) < 1e-5
    wrong = {
        "segments": lambda ids, mask, segments: model.encoder(segments).last,
        "no mask": lambda ids, mask, segments: model.encoder(ids, segments=segments).last,
        "mask as ids": lambda ids, mask, segments: model(mask, attention_mask=mask, segments=segments).last,
        "NaN": lambda ids, mask, segments: model.encoder(ids, segments=segments).last * torch.nan,
    }
    for other, call in wrong.items():
        others._admit(other, call)
        assert other not in others.calls and "its states differ from ours by" in others.failed[other]


def test_a_worker_trains_and_says_what_it_used() -> None:
    shared = {"case": tiny("bert"), "vocabulary": VOCABULARY, "rows": rows(), "threads": 1}
    worker = Worker(Work(contender="ours", precision="fp32", compile=False, **shared))
    try:
        seconds, tokens, losses = worker.call("steps", 3)
        assert seconds > 0 and tokens == 3 * 64 and losses[-1] < losses[0]
        best, sustained = worker.call("peak")
        assert best >= sustained > 1e6
        parts = worker.call("profile")
        assert {"feed-forward", "projections", "attention", "loss", "optimiser", "data"} <= parts.keys()
        assert 0 < sum(parts.values()) < 60
        with pytest.raises(EncoderlabError, match="ours failed: TypeError"):
            worker.call("steps", "many")
    finally:
        worker.close()
    assert worker.process.exitcode == 0


def test_kernels_belong_to_the_operators_that_launched_them() -> None:
    def event(name: str, shapes: list[list[int]], *kernels: tuple[str, float], gpu: float | None = None) -> Any:
        return SimpleNamespace(
            name=name,
            input_shapes=shapes,
            kernels=[SimpleNamespace(name=kernel, duration=duration) for kernel, duration in kernels],
            device_type=DeviceType.CPU if gpu is None else DeviceType.CUDA,
            is_user_annotation=False,
            time_range=SimpleNamespace(elapsed_us=lambda: gpu),
        )

    product, lambdas = "nvjet_tst_128x256", "void at::native::elementwise_kernel<gpu_kernel_impl::{lambda(int)#1}>"
    note = event("Optimizer.step#AdamW.step", [], gpu=1000.0)
    note.is_user_annotation = True  # a stretch of the device's time, no kernel
    events = [
        event("aten::linear", [[64, 128], [512, 128]]),
        event("aten::addmm", [[512], [64, 128], [128, 512]], (product, 30.0)),
        event("aten::mm", [[64, 128], [128, 60]], (product, 20.0)),
        event("aten::mm", [[64, 128], [128, 128]], (product, 10.0)),
        event("aten::erf", [[64]], (lambdas, 4.0)),
        event("AttendBackward", [], ("attend_backward", 7.0)),
        event("FeedForward", [], ("gelu_forward", 3.0)),
        event("aten::_fused_adamw_", [], (lambdas, 2.0)),
        *(event(product, [], gpu=time) for time in (30.0, 20.0, 10.0)),
        *(event(lambdas, [], gpu=time) for time in (4.0, 2.0)),
        event("attend_backward", [], gpu=7.0),
        event("gelu_forward", [], gpu=3.0),
        event("add_norm_forward", [], gpu=5.0),  # launched by no operator
        note,
    ]
    found = {part: 1e6 * seconds for part, seconds in kernels_by_part(events, tiny("bert")).items()}
    assert found == pytest.approx(
        {
            "feed-forward": 30.0,
            "head": 20.0,
            "projections": 10.0,
            "other": 4.0,
            "attention": 7.0,
            "activation": 3.0,
            "optimiser": 2.0,
            "norm": 5.0,
        }
    )


@pytest.mark.parametrize(
    ("inner", "outer", "part"), [(128, 128, "projections"), (512, 128, "feed-forward"), (32, 128, "feed-forward")]
)
def test_products_of_a_model_beside_a_narrower_one(inner: int, outer: int, part: str) -> None:
    """The generator's feed-forward width is the discriminator's width."""
    x, weight = torch.ones(64, inner), torch.ones(inner, outer)
    assert part in time_by_part(lambda: x @ weight, tiny("electra"), torch.device("cpu"))


def test_products_that_are_computed_in_float32_count_as_products() -> None:
    x, weight = torch.ones(1 << 15, 128).bfloat16(), torch.ones(128, 512).bfloat16()  # so large that it is most

    def step() -> None:
        with WideProducts():
            x @ weight

    step()
    found = time_by_part(step, tiny("bert"), torch.device("cpu"))
    assert max(found, key=lambda part: found[part]) == "feed-forward"


def test_on_a_gpu_every_turn_begins_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has given its memory back sees every batch again before time is taken."""
    called: list[tuple[str, int, int]] = []

    class Player:
        def __init__(self, work: Work) -> None:
            self.name, self.seconds = work.contender, 2.0 if work.contender == "ours" else 5.0

        def call(self, verb: str, *arguments: int) -> Any:
            if verb == "steps":
                count, before = (*arguments, 0)[:2]
                called.append((self.name, count, before))
                return self.seconds * count, 64.0 * count, [1.0] * count
            parts = {"head": 0.5, "loss": 0.5}
            return {"peak": (2e9, 1e9), "memory": 100, "device": "a GPU", "profile": parts}[verb]

        def close(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(train, "Worker", Player)
    monkeypatch.setattr(train, "real_rows", lambda *_: (VOCABULARY, rows() * 4))
    setting = train.TrainSetting(rows=4, length=16, turns=2, steps=20)
    result = train.run(tiny("bert"), Path(), setting, "transformers")
    both = [("ours", 1, 8), ("transformers", 1, 8)] + [("ours", 20, 4), ("transformers", 20, 4)] * 2
    assert called == [*both, ("ours", 20, 0), ("transformers", 20, 0)]  # the last compare losses
    assert result["ratio"]["fp32"] == 2.5 and result["device"] == "a GPU"
    assert result["busy"] == {"ours": 0.5, "transformers": 0.2}
    assert result["parts"]["ours"] == {"head": 0.5, "loss": 0.5}


def test_operations_of_documents_are_those_of_their_lengths() -> None:
    """Two documents side by side attend each to itself, as two short rows do."""
    one, alone = tiny("bert"), rows()
    halves = [[replace(row, doc=np.repeat(np.int32([0, 1]), 8)) for row in alone[0]]]
    short = train.operations_per_token(one, alone, train.TrainSetting(length=8))
    assert train.operations_per_token(one, halves, train.TrainSetting(length=16, documents=True)) == short
    assert train.operations_per_token(one, alone, train.TrainSetting(length=16, documents=True)) > short


def test_a_corpus_of_more_ids_than_the_model_is_refused() -> None:
    tiny("bert").check_ids(VOCAB)
    with pytest.raises(ConfigError, match="the corpus has 61 token ids, and bert only 60"):
        tiny("bert").check_ids(VOCAB + 1)


def test_rows_without_anything_to_predict_are_refused() -> None:
    fixed = [[replace(row, special=np.ones(16, bool)) for row in rows()[0]]]
    with pytest.raises(ConfigError, match="have nothing to predict; give longer or more rows"):
        Ours(tiny("bert"), VOCABULARY).batches(fixed)


def test_a_worker_that_cannot_begin_says_why() -> None:
    work = Work(
        contender="ours", case=tiny("bert"), vocabulary=VOCABULARY, rows=[], threads=1, precision="fp32", compile=False
    )
    worker = Worker(work)
    try:
        with pytest.raises(EncoderlabError, match="ours failed: ZeroDivisionError"):
            worker.call("peak")
        with pytest.raises(EncoderlabError, match="ended with code 0"):
            worker.call("peak")
    finally:
        worker.close()


@pytest.mark.parametrize(
    "command",
    [
        "train bert --corpus x --threads 0",
        "train bert --corpus x --turns 0",
        "predict bert --corpus x --texts 0",
        "predict bert --corpus x --rows -1",
        "scaling bert --corpus x --steps 0",
        "corpus x --workers 0",
        "corpus x --megabytes -1",
    ],
)
def test_less_than_one_of_something_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *command.split()]) == 2
    assert "give " in capsys.readouterr().err


def test_torch_compile_is_a_second_column(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {("ours", False): 2.0, ("transformers", False): 5.0, ("transformers", True): 4.0}

    class Player:
        def __init__(self, work: Work) -> None:
            self.seconds = seconds[work.contender, work.compile]

        def call(self, verb: str, *arguments: int) -> Any:
            found = {"steps": (self.seconds, 64.0, [1.0]), "peak": (2e9, 1e9), "memory": 100, "device": ""}
            return found.get(verb, {"head": 1.0})

        def close(self) -> None: ...

    monkeypatch.setattr(train, "Worker", Player)
    monkeypatch.setattr(train, "real_rows", lambda *_: (VOCABULARY, rows()))
    result = train.run(tiny("bert"), Path(), train.TrainSetting(turns=2, compile=True), "transformers")
    assert result["ratio"]["fp32"] == 2.5 and result["ratio_compiled"]["fp32"] == 2.0
    assert list(result["tokens_per_second"]) == ["ours", "transformers", "transformers compiled"]


def test_a_contender_that_fails_leaves_the_machine_to_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Player:
        def __init__(self, work: Work) -> None:
            self.name = work.contender

        def call(self, verb: str, *arguments: int) -> Any:
            if self.name not in closed and self.name == "transformers":
                raise EncoderlabError("transformers failed: OutOfMemoryError")
            assert self.name == "ours"
            found = {"steps": (2.0, 64.0, [1.0]), "peak": (2e9, 1e9), "memory": 100, "device": ""}
            return found.get(verb, {"head": 1.0})

        def close(self) -> None:
            closed.append(self.name)

    monkeypatch.setattr(train, "Worker", Player)
    monkeypatch.setattr(train, "real_rows", lambda *_: (VOCABULARY, rows()))
    result = train.run(tiny("bert"), Path(), train.TrainSetting(turns=2), "transformers")
    assert result["failed"] == {"transformers": "transformers failed: OutOfMemoryError"} and "ratio" not in result
    assert closed[0] == "transformers" and result["tokens_per_second"] == {"ours": 32.0}


def test_a_contender_that_fails_in_a_later_turn_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Player:
        def __init__(self, work: Work) -> None:
            self.name, self.turns = work.contender, 0

        def call(self, verb: str, *arguments: int) -> Any:
            self.turns += verb == "steps"
            if self.name == "transformers" and self.turns == 3:
                raise EncoderlabError("transformers failed: OutOfMemoryError")
            found = {"steps": (2.0, 64.0, [1.0]), "peak": (2e9, 1e9), "memory": 100, "device": ""}
            return found.get(verb, {"head": 1.0})

        def close(self) -> None: ...

    monkeypatch.setattr(train, "Worker", Player)
    monkeypatch.setattr(train, "real_rows", lambda *_: (VOCABULARY, rows()))
    result = train.run(tiny("bert"), Path(), train.TrainSetting(turns=3), "transformers")
    bench._show_training(result)
    assert "transformers: transformers failed: OutOfMemoryError" in capsys.readouterr().out
    assert result["tokens_per_second"].keys() == result["memory"].keys() == {"ours"}


@pytest.mark.parametrize("name", models.SIZES)
def test_a_published_name_is_that_model(name: str) -> None:
    published = models.config(name)
    if published.encoder.causal:
        with pytest.raises(ConfigError, match="reads from left to right"):
            case(name)
        return
    made = case(name)
    if published.family == "convbert":  # which transformers has without it
        assert isinstance(published.encoder.conv, SpanDynamic)
        published = resized(published, conv=replace(published.encoder.conv, mask_padding=False))
    assert made.model.encoder == published.encoder
    second = made.second
    assert second is None or second.encoder.vocab == published.encoder.vocab
    if name.startswith("distil"):
        assert second is not None and second.encoder.layers == 2 * published.encoder.layers
        assert isinstance(made.objective, DistillSettings)
    elif published.rtd is not None:
        assert second is not None and isinstance(made.objective, RTDSettings)


def test_unknown_names_and_widths() -> None:
    with pytest.raises(ConfigError, match="no benchmark of 'brt'; did you mean 'bert'?"):
        case("brt")
    with pytest.raises(ConfigError, match="a width of 32 does not divide into heads of 64; give a multiple"):
        case("bert", width=32)
