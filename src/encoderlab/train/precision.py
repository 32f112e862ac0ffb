"""Reduced precision: the context of a forward pass, and matrix products where a processor has no fast ones."""

from __future__ import annotations

import contextlib
import platform
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
    """Whether ``device`` has instructions for products in ``name``; without, torch's own take 10 to 40 times as long as
    in single precision. Processors other than x86 are taken to have them."""
    if name == "fp32" or device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return True
    cpu = torch.cpu
    if name == "bf16":
        return cpu._is_amx_tile_supported() or cpu._is_avx512_bf16_supported()
    return getattr(cpu, "_is_amx_fp16_supported", lambda: False)()


def widened(name: Precision, device: torch.device) -> bool:
    """Whether matrix products in ``name`` are computed in float32 here, because there are no fast ones."""
    slow = name == "bf16" and device.type == "cpu" and _at_half_speed()
    return slow or not instructions(name, device)


def _at_half_speed() -> bool:
    """Whether the bf16 instructions of AVX-512 are slower than those of float32, 84 and 160 GFLOP/s a core: on Intel's
    cores with AVX512-FP16, which leave bf16 to AMX, where a virtual machine hides that. AMD's have twice the speed."""
    processor = build.processor()
    return "GenuineIntel" in processor and "avx512_fp16" in processor and not torch.cpu._is_amx_tile_supported()


def caution(name: Precision, device: torch.device) -> str | None:
    """What to say where the precision gives nothing that one may expect of it, or None."""
    if not widened(name, device):
        return None
    if name == "bf16":
        return "precision=bf16 saves memory but no time here: this processor's products are fastest in fp32"
    return f"precision={name} will be slower than fp32: this processor has no {name} instructions; set precision=fp32"


def products(name: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context of forward and backward passes in which products are :func:`widened` where they should be."""
    return WideProducts() if widened(name, device) else contextlib.nullcontext()


class WideProducts(TorchDispatchMode):
    """Matrix products of bfloat16 and float16 tensors are computed in float32 and rounded once, which is what such
    instructions do: products of 8 or 11 bits are exact in float32, and so are sums, up to its rounding. Those of
    bfloat16 matrices are a kernel's, the others torch's on copies in float32."""

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
