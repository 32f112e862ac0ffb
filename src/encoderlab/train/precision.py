"""Reduced precision: the context of a forward pass, and matrix products where a processor lacks the instructions."""

from __future__ import annotations

import contextlib
import platform
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from encoderlab.train.recipe import Precision

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.addmm_, aten.baddbmm, aten.convolution, aten.convolution_backward}


def precision(name: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context in which a forward pass computes: nothing for fp32, autocast otherwise."""
    if name == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if name == "bf16" else torch.float16)


def emulated(name: Precision, device: torch.device) -> str | None:
    """What to say where ``device`` has no instructions for the precision, so that it is slower than single precision.

    None where it has them, or where that is unknown (processors other than x86).
    """
    if name == "fp32" or device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return None
    cpu = torch.cpu
    has = {
        "bf16": cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported(),
        "fp16": getattr(cpu, "_is_amx_fp16_supported", lambda: False)(),
    }
    if has[name]:
        return None
    return f"precision={name} will be slower than fp32: this processor has no {name} instructions; set precision=fp32"


def products(name: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context of forward and backward passes in which products in ``name`` are nearly as fast as in single
    precision where the processor has no instructions for them (torch alone is 10 to 40 times slower there)."""
    return WideProducts() if emulated(name, device) else contextlib.nullcontext()


class WideProducts(TorchDispatchMode):
    """Matrix products of bfloat16 and float16 tensors are computed in float32 and rounded once, which is what such
    instructions do: products of 8 or 11 bits are exact in float32, and so are sums, up to its rounding."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        narrow = args[0].dtype if args and isinstance(args[0], Tensor) else None
        if func.overloadpacket not in PRODUCTS or narrow not in (torch.bfloat16, torch.float16):
            return func(*args, **kwargs)
        wide = [x.float() if isinstance(x, Tensor) else x for x in args]
        out = args[0] if func.overloadpacket is aten.addmm_ else kwargs.pop("out", None)
        if out is not None:
            plain = aten.mm if func.overloadpacket is aten.mm else aten.addmm
            return out.copy_(plain(*wide, **kwargs))
        made = func(*wide, **kwargs)
        if isinstance(made, Tensor):
            return made.to(narrow)
        return tuple(x if x is None else x.to(narrow) for x in made)
