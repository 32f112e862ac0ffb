"""Reduced precision: the context of a forward pass, and matrix products on processors without fast instructions."""

from __future__ import annotations

import contextlib
import platform
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from encoderlab import processor
from encoderlab.nn.kernels import build
from encoderlab.nn.kernels.cpu.products import product
from encoderlab.train.recipe import Precision

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.addmm_, aten.baddbmm, aten.convolution, aten.convolution_backward}


def precision(name: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context in which a forward pass computes: nothing for fp32, autocast otherwise."""
    if name == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if name == "bf16" else torch.float16)


def instructions(name: Precision, device: torch.device) -> bool:
    """Whether ``device`` has instructions for products in ``name``.

    Without them, torch's products take 10 to 40 times as long as in float32. Processors other than x86 are assumed to
    have them.
    """
    if name == "fp32" or device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return True
    cpu = torch.cpu
    if name == "bf16":
        return _amx() or cpu._is_avx512_bf16_supported()
    return getattr(cpu, "_is_amx_fp16_supported", lambda: False)() and not processor.broken_amx()


def widened(name: Precision, device: torch.device) -> bool:
    """Whether products in ``name`` are computed in float32 on this device, because that is faster."""
    slow = name == "bf16" and device.type == "cpu" and _at_half_speed()
    return slow or not instructions(name, device)


def _at_half_speed() -> bool:
    """Whether the bf16 instructions of AVX-512 are slower than float32 (84 against 160 GFLOP/s per core).

    So it is on Intel's cores with AVX512-FP16, which are built for AMX, if a virtual machine hides or breaks AMX.
    AMD's instructions are twice as fast as float32.
    """
    about = processor.description()
    return "GenuineIntel" in about and "avx512_fp16" in about and not _amx()


def _amx() -> bool:
    return torch.cpu._is_amx_tile_supported() and not processor.broken_amx()


def caution(name: Precision, device: torch.device) -> str | None:
    """A warning if the precision brings no speed on this device, or None."""
    if not widened(name, device):
        return None
    if name == "bf16":
        return "precision=bf16 saves memory but no time: this processor's products are fastest in fp32"
    return f"precision={name} will be slower than fp32: this processor has no {name} instructions; set precision=fp32"


def products(name: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context of forward and backward passes; products are :func:`widened` in it if that is faster."""
    return WideProducts() if widened(name, device) else contextlib.nullcontext()


class WideProducts(TorchDispatchMode):
    """Compute matrix products of bfloat16 and float16 tensors in float32 and round once, as hardware instructions do.

    Products of 8 or 11 bits are exact in float32, and so are sums up to its rounding. Products of bfloat16 matrices use
    a kernel; others use torch on float32 copies.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet not in PRODUCTS:
            return func(*args, **kwargs)
        narrow = args[0].dtype
        if narrow not in (torch.bfloat16, torch.float16):
            return func(*args, **kwargs)
        if narrow == torch.bfloat16 and build.available():
            if func is aten.mm.default:
                return product(*args)
            if func is aten.mm.out:
                return product(*args, **kwargs)
            if func is aten.addmm.default and not kwargs and args[0].shape == args[2].shape[1:]:
                return product(*args[1:], bias=args[0])
            if func is aten.addmm_.default and not kwargs:
                return product(*args[1:], out=args[0], add=True)
        wide = [x.float() if isinstance(x, Tensor) else x for x in args]
        out = args[0] if packet is aten.addmm_ else kwargs.get("out")
        kwargs = {name: value for name, value in kwargs.items() if name != "out"}
        if out is not None:
            plain = aten.mm if packet is aten.mm else aten.addmm
            return out.copy_(plain(*wide, **kwargs))
        made = func(*wide, **kwargs)
        if isinstance(made, Tensor):
            return made.to(narrow)
        return tuple(x if x is None else x.to(narrow) for x in made)
