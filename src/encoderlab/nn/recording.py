"""Record the kernels of an encoder's layers once, as CUDA graphs, and replay them for every batch of that shape.

A layer launches about forty kernels in training. Each launch costs the processor tens of microseconds, more than a
small layer's kernel costs a GPU: of a step of 12 layers x 256 a GPU waited for two thirds. A replay is one launch.
Embeddings, heads and losses, whose shapes change with the number of masked tokens, are launched as usual.

A recording belongs to one shape of batch. It keeps inputs, activations and gradients at fixed addresses. So a forward
pass must be followed by its backward pass, and gradients must be used before the next one.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from encoderlab.nn.attention import Keyed

if TYPE_CHECKING:
    from encoderlab.nn.block import Block
    from encoderlab.nn.scope import Scope

WARM = 2  # passes before recording, in which kernels are compiled and loaded


class Recordings:
    """The recorded layers of one encoder.

    Args:
        shapes: (rows, length) of the batches whose layers are recorded; others run as usual. Nothing else decides, so
            a resumed run computes the same bits.
    """

    def __init__(self, shapes: Collection[tuple[int, int]]) -> None:
        self.shapes = frozenset(shapes)
        self.ready = False  # set before a forward pass whose backward pass comes before the next forward pass
        self._replayed = False  # whether the layers of this forward pass are, so that its query stream may be
        self._recorded: dict[Any, Recorded] = {}

    def of(self, x: Tensor, blocks: Sequence[Block], scopes: Sequence[Scope], *, chained: bool) -> Recorded | None:
        """The recording of ``blocks`` for states x (B, L, D), for one forward and backward pass; None where this pass
        runs as usual. ``chained``: each layer reads what the layer before it has written.
        """
        fits = tuple(x.shape[:2]) in self.shapes
        self._replayed = bool(blocks) and fits and self.ready and x.requires_grad and torch.is_grad_enabled()
        if not self._replayed:
            return None
        self.ready = False
        layers = [Layer(block, scope, None) for block, scope in zip(blocks, scopes, strict=True)]
        return self._find("layers", x, layers, chained)

    def of_queries(
        self, x: Tensor, blocks: Sequence[Block], scopes: Sequence[Scope], sources: Sequence[Tensor | Keyed]
    ) -> Recorded | None:
        """The recording of a query stream x (B, T, D) over the ``sources`` of each layer; None where the layers that
        made these ran as usual. The number T of queries should be the same in every batch.
        """
        if not (self._replayed and x.requires_grad):
            return None
        self._replayed = False
        return self._find("queries", x, list(map(Layer, blocks, scopes, sources)), True)

    def _find(self, stream: str, x: Tensor, layers: Sequence[Layer], chained: bool) -> Recorded:
        device = x.device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        shape = (stream, tuple(x.shape))
        key = (shape, x.dtype, autocast, tuple(layer.key() for layer in layers))
        if key not in self._recorded:
            # A phase of other rows has ended, and its activations would stay allocated.
            self._recorded = {
                known: kept for known, kept in self._recorded.items() if known[0] == shape or known[0][0] != stream
            }
            self._recorded[key] = Recorded(x, layers, autocast, chained=chained)
        self._recorded[key].read([layer.tensors for layer in layers])
        return self._recorded[key]


class Layer:
    """A layer to record: its block, and its scope and the source of its keys and values taken :func:`apart`.

    ``source`` None: the states that the layer reads.
    """

    def __init__(self, block: Block, scope: Scope, source: Tensor | Keyed | None) -> None:
        self.block = block
        self.tensors, self.rest = apart(replace(scope, nearby=None, keep_keyed=scope.keep_keyed and source is None))
        if isinstance(source, Keyed):
            self.tensors |= source._asdict()
        elif source is not None:
            self.tensors["source"] = source

    def key(self) -> Any:
        """What a recording depends on, besides the numbers in the tensors."""
        shapes = ((name, x.shape, x.dtype, x.requires_grad) for name, x in self.tensors.items())
        return id(self.block), repr(self.rest), tuple(shapes)


class Recorded:
    """Layers recorded for states of the shape of x (B, L, D)."""

    def __init__(self, x: Tensor, layers: Sequence[Layer], autocast: torch.dtype | None, *, chained: bool) -> None:
        shared = {id(t): t.clone() for layer in layers for t in layer.tensors.values() if not t.requires_grad}
        self.fixed = [
            {name: shared[id(t)] for name, t in layer.tensors.items() if not t.requires_grad} for layer in layers
        ]
        self.replays: list[Replay] = []
        states = x
        for layer, fixed in zip(layers, self.fixed, strict=True):
            replay = Replay(layer, leaf(states), fixed, autocast)
            states = replay.warm()
            self.replays.append(replay)
        following = [*self.replays[1:], None] if chained else [None] * len(self.replays)
        pairs = list(zip(self.replays, following, strict=True))
        gc.collect()
        torch.cuda.synchronize()
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(torch.cuda.Stream()):
            # In the order in which they will run, because they share memory.
            for replay, after in pairs:
                replay.record_forward(pool, after)
            for replay, after in reversed(pairs):
                replay.record_backward(pool, after)
        torch.cuda.synchronize()

    def read(self, tensors: Sequence[Mapping[str, Tensor]]) -> None:
        """Copy the tensors without gradient to where the recording reads them."""
        copies = {
            id(place): (place, given[name])
            for given, fixed in zip(tensors, self.fixed, strict=True)
            for name, place in fixed.items()
        }
        torch._foreach_copy_([place for place, _ in copies.values()], [given for _, given in copies.values()])
        self.others = [[x for x in given.values() if x.requires_grad] for given in tensors]

    def __call__(self, index: int, x: Tensor) -> tuple[Tensor, Keyed | None]:
        """Layer ``index`` (from 0) for states x (B, L, D), as a :class:`Block` returns it."""
        out, *keyed = Replayed.apply(self.replays[index], x, *self.others[index])
        return out, Keyed(*keyed) if keyed else None


class Replay:
    """The two graphs of one layer, and the memory that they read and write.

    ``given`` are the inputs that other parts have computed, with gradients: the states, then tensors of the scope.
    """

    def __init__(self, layer: Layer, x: Tensor, fixed: Mapping[str, Tensor], autocast: torch.dtype | None) -> None:
        self.block, self.rest, self.x, self.autocast = layer.block, layer.rest, x, autocast
        self.grads: Sequence[Tensor | None] = ()
        self.tensors = {name: fixed[name] if name in fixed else leaf(t) for name, t in layer.tensors.items()}
        trained = {name: p for name, p in layer.block.named_parameters() if p.requires_grad}
        self.parameters = list(trained.values())
        # In the same memory. A backward pass would wait for the stream that has used the parameters themselves, as a
        # content stream does before its query stream is recorded, and no recording may wait for another stream.
        self.leaves = {name: p.detach().requires_grad_() for name, p in trained.items()}

    @property
    def given(self) -> list[Tensor]:
        return [self.x, *(t for t in self.tensors.values() if t.requires_grad)]

    @property
    def inputs(self) -> list[Tensor]:
        """What has a gradient: the given inputs and the block's parameters."""
        return [*self.given, *self.leaves.values()]

    def run(self) -> tuple[Tensor, ...]:
        """The layer's output, and its keys and values if the scope keeps them."""
        scope, tensors = together(self.rest, self.tensors), self.tensors
        source = Keyed(tensors["key"], tensors["value"]) if "key" in tensors else tensors.get("source", self.x)
        device = self.x.device.type
        # Without a cache, whose casts would belong to another recording.
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None, cache_enabled=False):
            out, keyed = functional_call(self.block, self.leaves, (self.x, source, scope))
        return (out,) if keyed is None else (out, *keyed)

    def warm(self) -> Tensor:
        """The output of a pass that is not recorded."""
        for _ in range(WARM):
            outs = self.run()
            torch.autograd.grad(outs, self.inputs, [torch.zeros_like(out) for out in outs], allow_unused=True)
        return outs[0].detach()

    def record_forward(self, pool: Any, following: Replay | None) -> None:
        """Record the forward pass; ``following`` reads its output where it lies."""
        with captured(pool) as self.forward:
            self.tails = self.run()
        self.keep(following)

    def keep(self, following: Replay | None) -> None:
        self.outs = tuple(out.detach() for out in self.tails)
        if following is not None:
            following.x = self.outs[0].detach().requires_grad_()

    def record_backward(self, pool: Any, following: Replay | None) -> None:
        """Record the backward pass, which reads the gradient of its output where ``following`` leaves it."""
        self.make_slopes(following)
        with captured(pool) as self.backward:
            self.grads = self.differentiate(self.slopes)
        del self.tails

    def differentiate(self, slopes: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients of the inputs; a parameter's has its strides, as fused optimizers want it."""
        given = len(self.given)
        grads: list[Tensor | None] = [*torch.autograd.grad(self.tails, self.inputs, slopes, allow_unused=True)]
        for index, (leaf, grad) in enumerate(zip(self.inputs[given:], grads[given:], strict=True), given):
            if grad is not None and grad.stride() != leaf.stride():
                grads[index] = torch.empty_like(leaf).copy_(grad)
        return grads

    def make_slopes(self, following: Replay | None) -> None:
        self.slopes = [torch.empty_like(out) for out in self.outs]
        if following is not None:
            assert following.grads[0] is not None
            self.slopes[0] = following.grads[0]

    def collect(self) -> list[Tensor | None]:
        """Add what the backward pass left to the parameters' gradients; returns the gradients of the given inputs."""
        given = len(self.given)
        for parameter, grad in zip(self.parameters, self.grads[given:], strict=True):
            if parameter.grad is None:
                parameter.grad = grad
            elif grad is not None:  # a shared layer, or a query stream
                parameter.grad.add_(grad)
        return [None if grad is None else grad.detach() for grad in self.grads[:given]]


class Replayed(Function):
    """A recorded layer in autograd. Copies what is not yet where the recording reads it.

    Parameters are no inputs of it, because passing sixteen of them through autograd costs the processor 0.07 ms a
    layer. So every backward pass through the layer adds to their gradients, whatever it was asked for.
    """

    @staticmethod
    def forward(ctx: Any, replay: Replay, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.replay = replay
        for place, given in zip(replay.given, inputs, strict=True):
            put(place.detach(), given)
        replay.forward.replay()
        return tuple(out.detach() for out in replay.outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        for place, given in zip(ctx.replay.slopes, slopes, strict=True):
            put(place, given)
        ctx.replay.backward.replay()
        return None, *ctx.replay.collect()


@contextmanager
def captured(pool: Any) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of the kernels that are launched inside by this thread; others prepare batches meanwhile. After an error,
    such as a lack of memory, the stream can be used again.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield graph
    except BaseException:
        with suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()


def put(place: Tensor, given: Tensor) -> None:
    if place.data_ptr() != given.data_ptr():
        place.copy_(given)


def leaf(x: Tensor) -> Tensor:
    """A copy of x that collects gradients."""
    return x.detach().clone().requires_grad_()


def apart(part: Any, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """A dataclass as its tensors by name, and the same dataclass without them; nested ones too."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for field in fields(part):
        name, value = prefix + field.name, getattr(part, field.name)
        if isinstance(value, Tensor):
            tensors[name], rest[field.name] = value, None
        elif is_dataclass(value):
            inner, rest[field.name] = apart(value, f"{name}.")
            tensors |= inner
    return tensors, replace(part, **rest)


def together(rest: Any, tensors: Mapping[str, Tensor], prefix: str = "") -> Any:
    """The inverse of :func:`apart`."""
    values = {}
    for field in fields(rest):
        name, value = prefix + field.name, getattr(rest, field.name)
        if name in tensors:
            values[field.name] = tensors[name]
        elif is_dataclass(value):
            values[field.name] = together(value, tensors, f"{name}.")
    return replace(rest, **values)
