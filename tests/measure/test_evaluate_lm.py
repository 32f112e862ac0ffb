from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from encoderlab.errors import ConfigError, DataError
from encoderlab.measure.evaluate_lm import (
    LMProtocol,
    clamped,
    context_losses,
    evaluate_lm,
    relative_effective_context,
)
from encoderlab.model import Model
from encoderlab.nn.heads import AdaptiveLMHead
from tests.batches.memory_corpus import MemoryCorpus, random_corpus
from tests.tasks import tiny


@pytest.fixture(scope="module")
def model() -> Model:
    """With weights so large that everything matters."""
    made = tiny.model("transformer-xl-tiny", width=32).eval()
    for parameter in made.parameters():
        if parameter.ndim > 1:
            parameter.data *= 10
    return made


class Text(MemoryCorpus):
    @property
    def num_bytes(self) -> int:
        return 3 * self.num_tokens


@pytest.fixture(scope="module")
def text(model: Model) -> Text:
    made = random_corpus(1, documents=4, vocab=model.config.encoder.vocab)
    return Text(made.documents, made.vocab_size)


def line(text: Text) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([document.ids.astype(np.int64) for document in text.documents]))[None]


@torch.no_grad()
def at_once(model: Model, ids: torch.Tensor, window: int | None = None) -> float:
    """The loss of one pass over everything."""
    states = model.encoder(ids[:, :-1], window=window).last[0]
    assert isinstance(model.lm, AdaptiveLMHead)
    return model.lm.losses(states, ids[0, 1:], model.encoder.embeddings).double().sum().item()


def plain(**changes: int | bool) -> LMProtocol:
    return LMProtocol(**{"streams": 1, "separator": False} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [7, 50, 64])
def test_a_long_memory_is_one_pass_over_the_text(model: Model, text: Text, window: int) -> None:
    score = evaluate_lm(model, text, plain(window=window, memory=text.num_tokens))
    assert score.tokens == text.num_tokens - 1, "the short last window counts too"
    assert score.nats == pytest.approx(at_once(model, line(text)), rel=1e-5)


@pytest.mark.parametrize("window", [5, 16])
def test_same_length_shows_every_token_as_many_keys(model: Model, text: Text, window: int) -> None:
    score = evaluate_lm(model, text, plain(window=window, memory=20, same_length=True))
    assert score.nats == pytest.approx(at_once(model, line(text), window=20), rel=1e-5)


def test_without_memory_windows_are_alone(model: Model, text: Text) -> None:
    ids = line(text)[:, :41]
    first = Text(text.documents, text.vocab_size)
    score = evaluate_lm(model, first, plain(window=10, memory=0))
    begin = sum(at_once(model, ids[:, start : start + 11]) for start in range(0, 40, 10))
    rest = sum(at_once(model, line(text)[:, start : start + 11]) for start in range(40, text.num_tokens - 1, 10))
    assert score.nats == pytest.approx(begin + rest, rel=1e-5)


def test_streams_start_without_memory(model: Model, text: Text) -> None:
    score = evaluate_lm(model, text, plain(window=8, memory=500, streams=2))
    half = text.num_tokens // 2
    parts = [line(text)[:, :half], line(text)[:, half : 2 * half]]
    assert score.tokens == 2 * (half - 1)
    assert score.nats == pytest.approx(sum(at_once(model, part) for part in parts), rel=1e-5)


def test_clamping_leaves_the_model_alone(model: Model, text: Text) -> None:
    limited = clamped(model, 4)
    assert next(limited.parameters()).data_ptr() == next(model.parameters()).data_ptr(), "no copy of the weights"
    protocol = plain(window=16, memory=32)
    free, short = evaluate_lm(model, text, protocol), evaluate_lm(model, text, plain(window=16, memory=32, clamp=4))
    assert short.nats != pytest.approx(free.nats, rel=1e-6)
    assert short.nats == evaluate_lm(limited, text, protocol).nats
    assert evaluate_lm(model, text, plain(window=16, memory=32, clamp=1000)).nats == pytest.approx(free.nats, rel=1e-6)


def test_units(model: Model, text: Text) -> None:
    score = evaluate_lm(model, text, plain())
    assert score.perplexity == pytest.approx(math.exp(score.nats / score.tokens))
    assert score.bits_per_token == pytest.approx(math.log2(score.perplexity))
    assert score.bits_per_byte == pytest.approx(
        score.bits_per_token / 3 * text.num_tokens / score.tokens * score.tokens / text.num_tokens
    )


def test_what_makes_no_sense_is_refused(model: Model, text: Text) -> None:
    bert = tiny.model("bert-tiny", width=32)
    with pytest.raises(ConfigError, match="must not see later tokens"):
        evaluate_lm(bert, text, plain(memory=0))
    with pytest.raises(ConfigError, match="clamp 4 limits sinusoidal distances"):
        evaluate_lm(bert, text, plain(clamp=4))
    with pytest.raises(DataError, match="streams"):
        evaluate_lm(model, text, plain(streams=text.num_tokens))


def test_losses_given_some_context(model: Model, text: Text) -> None:
    losses = context_losses(model, text, [20, 33, 47], separator=False)
    ids = line(text)
    wanted = [at_once(model, ids[:, p - 12 : p + 1]) - at_once(model, ids[:, p - 12 : p]) for p in (20, 33, 47)]
    assert losses(12) == pytest.approx(wanted, abs=1e-4)
    with pytest.raises(DataError, match="fewer than 30 tokens"):
        losses(30)


def test_relative_effective_context() -> None:
    """A loss that falls by 5% of perplexity per step until a length, then no more."""

    def until(length: int, floor: float = 4.0) -> object:
        return lambda context: np.full(50, floor - 0.05 * min(context, length) / 100)

    assert relative_effective_context({"long": until(700), "short": until(300)}) == {"long": 700, "short": 300}  # type: ignore[dict-item]
    assert relative_effective_context({"long": until(5000)}, most=600) == {"long": 600}  # type: ignore[dict-item]
    # The weak model improves, yet never beats what the strong one does with the shorter context.
    group = {"strong": until(300, floor=2.0), "weak": until(900)}
    assert relative_effective_context(group)["weak"] == 100  # type: ignore[arg-type]


def test_only_the_hardest_positions_count() -> None:
    hard = np.arange(100) >= 90
    found = {"model": lambda context: np.where(hard, 6 - 0.1 * min(context, 500) / 100, 1.0)}
    assert relative_effective_context(found, hardest=0.1) == {"model": 500}
    assert relative_effective_context(found, hardest=1.0) == {"model": 100}, "a tenth of the gain"
    assert relative_effective_context(found, hardest=1.0, threshold=0.005) == {"model": 500}
    with pytest.raises(ConfigError, match="hardest is 0"):
        relative_effective_context(found, hardest=0.0)
