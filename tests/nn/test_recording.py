"""Recorded layers compute what layers compute as usual. Without a GPU, a graph is imitated: a replay computes the
recorded calls again, from and into the same memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from encoderlab.nn import recording
from encoderlab.nn.architecture import Sharing
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.noise import Noise
from encoderlab.nn.positions import Disentangled, RelativeShift, Rotary, Shaw
from encoderlab.nn.recording import Recordings, Replay
from encoderlab.nn.scope import Local
from encoderlab.nn.spanconv import SpanDynamic
from encoderlab.nn.stem import StemConvolution
from encoderlab.train.distributed import World
from encoderlab.train.engine import records
from encoderlab.train.recipe import Execution, Training
from tests.nn.test_product import BASE, make
from tests.nn.twins import DEVICE

B, L = 3, 17
SMALL = replace(BASE, layers=3, heads=2, dropout=0.3, attention_dropout=0.2, ff_dropout=0.1)
ENCODERS = {
    "bert": SMALL,
    "albert": replace(SMALL, sharing=Sharing()),
    "convbert": replace(SMALL, conv=SpanDynamic(kernel=3)),
    "transformer-xl": replace(SMALL, position=RelativeShift(shared_biases=True), causal=True),
    "xlnet": replace(SMALL, position=RelativeShift(segments=True)),
    "deberta": replace(SMALL, position=Disentangled(span=16, buckets=8, norm=True), attention_biases="query_value"),
    "deberta with stem": replace(SMALL, position=Disentangled(span=16), stem_conv=StemConvolution()),
    "shaw": replace(SMALL, position=Shaw(span=4), causal=True),
    "modernbert": replace(SMALL, position=Rotary(theta=100.0), local=Local(reach=3, theta=10.0), norm="pre"),
}


class Imitated:
    """A graph whose replay computes the recorded call again; the memory of its results is overwritten."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def replay(self) -> None:
        self.call()


class ImitatedReplay(Replay):
    """Records no kernels: forward and backward are calls into fixed memory."""

    def record_forward(self, pool: Any, following: Replay | None) -> None:
        self.tails = self.run()
        self.keep(following)

        def again() -> None:
            with torch.enable_grad():
                self.tails = self.run()
            for place, out in zip(self.outs, self.tails, strict=True):
                place.copy_(out.detach())

        self.forward = Imitated(again)  # type: ignore[assignment]

    def record_backward(self, pool: Any, following: Replay | None) -> None:
        self.make_slopes(following)
        slopes = [torch.ones_like(out) for out in self.outs]
        self.grads = self.differentiate(slopes)

        def again() -> None:
            grads = self.differentiate(self.slopes)
            for place, grad in zip(self.grads, grads, strict=True):
                if place is not None:
                    place.copy_(grad)

        self.backward = Imitated(again)  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def imitated(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        return
    monkeypatch.setattr(recording, "Replay", ImitatedReplay)
    for name in ("synchronize", "graph_pool_handle", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())


def batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids, segments = (torch.randint(0, top, (B, L), generator=generator).to(DEVICE) for top in (50, 2))
    doc = torch.zeros(B, L, dtype=torch.int32, device=DEVICE)
    doc[1, 5:] = 1
    doc[2, 10 + seed :] = -1
    return {"ids": ids, "segments": segments, "doc": doc}


def step(encoder: Encoder, number: int) -> list[Tensor]:
    """The last states of a batch, and all gradients, of the last states and of a middle layer."""
    inputs = batch(number)
    real = inputs["doc"] >= 0
    noise, two = Noise(3, number, torch.arange(B, device=DEVICE)), encoder.config.conv_branch is None
    states = encoder(**inputs, noise=noise, keep_keyed=two)
    loss = states.last[real].square().sum() + states.layers[1][real].pow(3).sum()
    if two:  # a query stream over the keys and values of the recorded layers
        at = torch.arange(3, device=DEVICE).expand(B, -1)
        queries = states.layers[0][:, :3]
        loss = loss + encoder.query_stream(states, queries, at, layers=range(encoder.depth), noise=noise).sum()
    loss.backward()
    for name, parameter in encoder.named_parameters():  # as the fused optimizers want it
        if parameter.grad is not None:
            assert parameter.grad.stride() == parameter.stride() and parameter.grad.dtype == parameter.dtype, name
    found = [states.last[real].detach().clone(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)]
    for parameter in encoder.parameters():
        parameter.grad = None
    return found


@pytest.mark.parametrize("name", ENCODERS)
def test_steps(name: str) -> None:
    torch.manual_seed(0)
    usual = make(ENCODERS[name]).train().to(DEVICE)
    replayed = deepcopy(usual)
    replayed.recordings = Recordings({(B, L)})
    for number in range(3):  # the second and third batch replay what the first has recorded
        replayed.recordings.ready = True
        for got, want in zip(step(replayed, number), step(usual, number), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * max(1.0, float(want.abs().max())))
        streams = {key[0][0] for key in replayed.recordings._recorded}
        assert not replayed.recordings.ready and len(replayed.recordings._recorded) == len(streams)
        assert streams == ({"layers"} if usual.config.conv_branch else {"layers", "queries"})
        with torch.no_grad():  # weights change in place
            for one, other in zip(usual.parameters(), replayed.parameters(), strict=True):
                one.mul_(0.9)
                other.mul_(0.9)


def test_a_new_shape_replaces_the_old_one() -> None:
    encoder = make(SMALL).train().to(DEVICE)
    encoder.recordings = Recordings({(B, L), (B, L - 1)})
    for length in (L, L - 1):
        encoder.recordings.ready = True
        inputs = {name: x[:, :length] for name, x in batch(0).items()}
        encoder(**inputs, noise=Noise(3, 0, torch.arange(B, device=DEVICE))).last.sum().backward()
        assert [key[0][1][1] for key in encoder.recordings._recorded] == [length]


def test_other_passes_run_as_usual() -> None:
    """Another shape, no gradient, and a second pass before the backward pass."""
    encoder = make(SMALL).train().to(DEVICE)
    encoder.recordings = Recordings({(B, L + 1)})
    encoder.recordings.ready = True
    step(encoder, 0)
    assert not encoder.recordings._recorded
    encoder.recordings = Recordings({(B, L)})
    with torch.no_grad():
        encoder.recordings.ready = True
        encoder(**batch(0))
    assert not encoder.recordings._recorded
    noise = Noise(3, 0, torch.arange(B, device=DEVICE))
    first = encoder(**batch(0), noise=noise).last
    kept = first.detach().clone()
    second = encoder(**batch(1), noise=noise).last  # not ready: it must leave the first one's states alone
    assert len(encoder.recordings._recorded) == 1
    torch.testing.assert_close(first, kept, rtol=0, atol=0)
    (first.sum() + second.sum()).backward()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the graph in autograd is gone after it is recorded")
def test_no_recording_waits_for_the_stream_of_another() -> None:
    """A backward pass waits for the stream that first used a leaf, and the content stream has used the parameters when
    its query stream is recorded. So a recording has leaves of its own."""
    encoder = make(ENCODERS["xlnet"]).train()
    encoder.recordings = Recordings({(B, L)})
    encoder.recordings.ready = True
    step(encoder, 0)
    used = {id(parameter) for parameter in encoder.parameters()}
    for recorded in encoder.recordings._recorded.values():
        for replay in recorded.replays:
            leaves = leaves_of([out.grad_fn for out in replay.tails])
            assert leaves and not used & leaves


def leaves_of(nodes: list[Any]) -> set[int]:
    """The identities of the tensors at which the backward pass from ``nodes`` ends."""
    seen: set[Any] = set()
    leaves: set[int] = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
            if hasattr(node, "variable"):
                leaves.add(id(node.variable))
    return leaves


def test_micro_batches_are_not_recorded() -> None:
    """The gradients of one would overwrite those of the one before it."""
    for micro_rows, recorded in ((None, True), (4, False)):
        training = Training(execution=Execution(micro_rows=micro_rows))
        assert records(training, World(0, 1, torch.device("cuda"))) == recorded


def test_an_error_while_recording_ends_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it every later kernel would fail, instead of a message about memory."""
    said: list[str] = []

    class Graph:
        def capture_begin(self, **how: Any) -> None:
            said.append(how["capture_error_mode"])

        def capture_end(self) -> None:
            said.append("end")
            if len(said) > 2:
                raise RuntimeError("the capture is broken")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with recording.captured(None):
        pass
    with pytest.raises(MemoryError), recording.captured(None):
        raise MemoryError
    assert said == ["thread_local", "end"] * 2
