"""Turn a kernel into a torch operation: a version for ``torch.compile``, and a gradient.

Every raw function of :mod:`.cpu` and :mod:`.gpu` takes and returns tensors, and mutates none unless declared.
``@operation`` gives it a second form for ``torch.compile``, a custom torch operation with shapes for tracing. Eager
code calls the function itself, which costs 5 instead of 30 microseconds.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import library as custom_operations
from torch.autograd import Function

from encoderlab.nn import noise

GPU = "encoderlab_gpu"  # namespace of operations that launch Triton kernels


def operation(
    shapes: Callable[..., Any], schema: str | None = None, space: str = "encoderlab"
) -> Callable[[Callable], Callable]:
    """Register a raw function as ``SPACE::NAME`` with ``shapes`` as its meta version; returns the function to call.

    ``schema``: types of arguments and results in torch's notation, where ``Tensor(a!)`` is overwritten; None reads the
    annotations.
    """

    def wrap(function: Callable) -> Callable:
        if space == GPU:
            function = on_its_device(function)
        mutates = re.findall(r"!\) (\w+)", schema or "")
        custom = custom_operations.custom_op(
            f"{space}::{function.__name__}", function, mutates_args=mutates, schema=schema
        )
        custom.register_fake(shapes)

        def call(*args: Any) -> Any:
            return custom(*args) if torch.compiler.is_compiling() else function(*args)

        return call

    return wrap


def exporting() -> bool:
    """Whether ``torch.export`` traces this code, whose graph must work without our kernels and at any length.

    ``torch.compiler.is_exporting`` is this flag, but under ``torch.compile`` of torch 2.11 it is always true.
    """
    return torch.compiler._is_exporting_flag


def on_its_device(function: Callable) -> Callable:
    """``function`` with the GPU of its first tensor as the current device, because Triton launches there."""

    @functools.wraps(function)
    def run(x: Tensor, *args: Any) -> Any:
        with torch.cuda.device_of(x):
            return function(x, *args)

    return run


class Unrecorded:
    """A dummy context for a Function whose result needs no gradient."""

    needs_input_grad = (False,) * 16

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply``, without its overhead if no gradient is recorded."""
    return function.apply(*args) if torch.is_grad_enabled() else function.forward(Unrecorded(), *args)


def scaling(seeds: Tensor | None, p: float) -> tuple[int, float]:
    """The threshold of dropout's masks, and the factor for kept elements."""
    return (0, 1.0) if seeds is None else (noise.threshold(p), 1.0 / (1.0 - p))
