"""On a GPU nothing is mixed with tensors of the CPU, and what comes back is the same: on a pretended one, or a real one
where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encoderlab import inference
from encoderlab.measure.bench.contenders import objective_of
from encoderlab.measure.bench.families import FAMILIES
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Objective
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.runs.predict import Predictor
from tests import pretended
from tests.measure.test_bench import VOCABULARY, rows, tiny
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

REAL = torch.cuda.is_available()
EXACT = 1e-4 if REAL else 1e-5  # relative; a pretended one has the same arithmetic


@torch.no_grad()
def losses(objective: Objective, device: str) -> dict[str, float]:
    batch = objective.make_batch(rows()[0], seed=0).to(device)
    assert batch.rows is not None
    terms, _ = objective.to(device)(batch, noise=Noise(0, 0, batch.rows))
    assert {term.sum.device.type for term in terms.values()} == {device}
    return {name: float(term.sum) for name, term in terms.items()}


@pytest.mark.skipif(REAL, reason="there is a real one")
def test_the_pretended_device_refuses_what_cuda_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended.cuda(monkeypatch):
        there = torch.ones(3, device="cuda")
        assert there.is_cuda and (there + torch.tensor(1.0)).tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            there + torch.ones(3)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_losses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = objective_of(tiny(name).with_dropout(0.1), VOCABULARY).train()
    here = losses(objective, "cpu")
    with pretended.cuda(monkeypatch):
        there = losses(objective, "cuda")
    assert there == pytest.approx(here, rel=EXACT)


@pytest.mark.parametrize("name", ["single", "tagged", "question", "choice"])
def test_predictions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, splits = data(name, train=8, dev=8)
    form = form_of(completed(task, splits["train"]), network := model(), FormSettings(max_length=48))
    network, _ = with_head(network, form, seed=0)
    predictor = Predictor(TaskObjective(network, form))
    examples = splits["dev"].examples
    here = predictor.predict(examples).values
    with pretended.cuda(monkeypatch):
        network.to("cuda")
        assert predictor.tokens == inference.GPU_BATCH_TOKENS
        assert predictor.predict(examples).values == here


@pytest.mark.parametrize("size", ["bert-tiny", "deberta-tiny", "deberta-v2-tiny", "xlnet-tiny"])
def test_vectors_and_guesses(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = model(size).eval()
    text = inference.tokenizer_of(network)
    lines = ("red blue", "the cat sat on the mat .")
    masked = f"red {text.token(text.special.mask)} cat"
    # not in inference mode, whose tensors cannot be pretended
    fill_mask, encode = inference.fill_mask.__wrapped__, inference.encode_parts.__wrapped__
    with torch.no_grad():
        here = [next(encode(network, lines, pooling=pooling)) for pooling in ("mean", "first", "last")]
        guesses = fill_mask(network, masked)
    with pretended.cuda(monkeypatch):
        network.to("cuda")
        there = [next(encode(network, lines, pooling=pooling)) for pooling in ("mean", "first", "last")]
        assert [guess.token for guess in fill_mask(network, masked)[0]] == [guess.token for guess in guesses[0]]
    np.testing.assert_allclose(there, here, atol=1e-5 if REAL else 1e-6)
