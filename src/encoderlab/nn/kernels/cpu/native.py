"""Calls into the compiled library, and the arguments that describe a tensor."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from encoderlab.nn.kernels import build

CHUNKS = 32  # as in vectors.h: rows of partial sums
SMALL = 1 << 15  # elements below which one thread does the work

functions: dict[str, Any] = {}


def call(name: str, *args: Any) -> None:
    """Call ``encoderlab_NAME``: tensors, bytes and None become pointers, floats C floats, ints and bools int64."""
    values = [x.data_ptr() if isinstance(x, Tensor) else x for x in args]
    function = functions.get(name)
    if function is None:
        library = build.load()
        assert library is not None
        function = getattr(library, f"encoderlab_{name}")
        function.argtypes, function.restype = [argument_type(x) for x in args], None
        functions[name] = function  # last, because another thread may call the function from here on
    function(*values)


def argument_type(value: Any) -> Any:
    if isinstance(value, float):
        return ctypes.c_float
    return ctypes.c_int64 if isinstance(value, int) else ctypes.c_void_p


def threads(x: Tensor) -> int:
    """Number of threads for work on x."""
    return 1 if x.numel() < SMALL else torch.get_num_threads()


def sizes(x: Tensor) -> tuple[int, int, int]:
    """Rows of the batch, positions per row, width."""
    batch, width = x.shape[0], x.shape[-1]
    return batch, x.numel() // (batch * width), width


def half(x: Tensor) -> bool:
    """Whether x is bfloat16; the library has each function for bfloat16 and float32."""
    return x.dtype == torch.bfloat16
