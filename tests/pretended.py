"""A CUDA device that is not there: tensors that say ``cuda`` and compute on the CPU, but not with tensors of the CPU.

Without gradients only: autograd asks for more of a device than to be chosen. What is allowed between devices is what
CUDA allows: copies, numbers (tensors without dimensions), and indices on the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
BETWEEN = {aten.copy_, aten._to_copy, aten.index, aten.index_put, aten.index_put_, aten._pack_padded_sequence}
GUARD = """#include <c10/core/impl/DeviceGuardImplInterface.h>
constexpr auto CUDA = c10::DeviceType::CUDA;
static c10::impl::DeviceGuardImplRegistrar registered(CUDA, new c10::impl::NoOpDeviceGuardImpl<CUDA>());
"""


@functools.cache
def choosable() -> bool:
    """Lets torch choose the device, which does nothing; False where that takes a compiler that is not there."""
    compiler, home = shutil.which("g++"), Path(torch.__file__).parent
    if compiler is None:
        return False
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "guard.so"
        (source := made.with_suffix(".cpp")).write_text(GUARD)
        flags = ["-std=c++20", "-fPIC", "-shared", f"-I{home / 'include'}", f"-L{home / 'lib'}", "-lc10"]
        subprocess.run([compiler, str(source), "-o", str(made), *flags], check=True)
        ctypes.CDLL(str(made))
    return True


class Far(Tensor):
    """A tensor on the pretended device; ``near`` is what it holds."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        shape = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, near.shape, device=CUDA, **shape)
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, dict(kwargs or {}))


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    far = [x for x in tensors if isinstance(x, Far)]
    if far and func.overloadpacket not in BETWEEN and any(x.dim() for x in tensors if not isinstance(x, Far)):
        shapes = [(x.device.type, tuple(x.shape)) for x in tensors]
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, got {shapes}")
    there = bool(far) if func.overloadpacket is not aten.copy_ else isinstance(args[0], Far)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == "cuda"
        kwargs["device"] = CPU
    near_args, near_kwargs = tree_map_only(Far, lambda x: x.near, (args, kwargs))
    out = func(*near_args, **near_kwargs)
    same = {id(x.near): x for x in far}  # what an operation in place gives back
    return tree_map_only(Tensor, lambda x: same[id(x)] if id(x) in same else Far(x), out) if there else out


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, dict(kwargs or {}))


class _Calls(TorchFunctionMode):
    """What torch decides before it dispatches."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)
        if func is Tensor.tolist and isinstance(args[0], Far):
            return args[0].near.tolist()
        if func is Tensor.pin_memory:
            return args[0]
        args, kwargs = tree_map_only((str, torch.device), lambda x: CUDA if str(x) == "cuda" else x, (args, kwargs))
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


@contextmanager
def cuda(monkeypatch: Any) -> Iterator[None]:
    """``cuda`` exists inside, and no kernel of Triton is there for it; a real GPU is left as it is."""
    from encoderlab.nn import noise
    from encoderlab.nn.kernels import build

    if torch.cuda.is_available():
        with torch.no_grad():
            yield
        return
    if not choosable():
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(build, "triton_available", lambda: False)
    monkeypatch.setattr(noise, "MIXERS", {})
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with torch.no_grad(), _Calls(), _Dispatch():
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
