"""How a compiled function becomes a torch operation: its call, its form for ``torch.compile``, its gradient.

Every raw function of this package takes and returns tensors and mutates nothing (or says so). ``@operation`` gives it
a second form, a custom operation of torch with shapes for tracing, which is used inside ``torch.compile``; eager code
calls the function itself, which costs 5 rather than 30 microseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import library as custom_operations
from torch.autograd import Function

from encoderlab.nn import noise
from encoderlab.nn.kernels import build

CHUNKS = 32  # as in vectors.h: rows of partial sums
SMALL = 1 << 15  # elements below which one thread does the work


def operation(shapes: Callable[..., Any], mutates: tuple[str, ...] = ()) -> Callable[[Callable], Callable]:
    """Registers a raw function as ``encoderlab::NAME``, ``shapes`` its meta version; returns the function to call."""

    def wrap(function: Callable) -> Callable:
        custom = custom_operations.custom_op(f"encoderlab::{function.__name__}", function, mutates_args=mutates)
        custom.register_fake(shapes)

        def call(*args: Any) -> Any:
            return custom(*args) if torch.compiler.is_compiling() else function(*args)

        return call

    return wrap


functions: dict[str, Any] = {}


def call(name: str, *args: Any) -> None:
    """Calls ``encoderlab_NAME``: tensors, bytes and None are pointers, floats C floats, ints and bools int64."""
    values = [x.data_ptr() if isinstance(x, Tensor) else x for x in args]
    function = functions.get(name)
    if function is None:
        library = build.load()
        assert library is not None
        function = getattr(library, f"encoderlab_{name}")
        function.argtypes, function.restype = [argument_type(x) for x in args], None
        functions[name] = function  # last: another thread may call it from here on
    function(*values)


def argument_type(value: Any) -> Any:
    if isinstance(value, float):
        return ctypes.c_float
    return ctypes.c_int64 if isinstance(value, int) else ctypes.c_void_p


class Unrecorded:
    """Stands for the context of a Function whose result needs no gradient."""

    needs_input_grad = (False,) * 16

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply``, without its cost where nothing is recorded."""
    return function.apply(*args) if torch.is_grad_enabled() else function.forward(Unrecorded(), *args)


def threads(x: Tensor) -> int:
    return 1 if x.numel() < SMALL else torch.get_num_threads()


def layout(x: Tensor) -> tuple[int, int, int]:
    """Rows of the batch, positions of a row, width."""
    batch, width = x.shape[0], x.shape[-1]
    return batch, x.numel() // (batch * width), width


def half(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16


def scaling(keys: Tensor | None, p: float) -> tuple[int, float]:
    return (0, 1.0) if keys is None else (noise.threshold(p), 1.0 / (1.0 - p))
