"""Reduced precision: a processor without instructions for it is named, and computes exact products in good time."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from encoderlab import processor as processors
from encoderlab.train.precision import WideProducts, caution, instructions, products

CPU = torch.device("cpu")


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends another processor."""

    def pretend(*, amx: bool = False, avx512_bf16: bool = False, about: str = "") -> None:
        monkeypatch.setattr(processors, "description", lambda: about)
        monkeypatch.setattr(processors, "broken_amx", lambda: False)
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: False, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)

    return pretend


def test_a_precision_that_gives_no_speed_is_named(processor: Callable[..., None]) -> None:
    processor()
    assert not instructions("bf16", CPU) and instructions("fp32", CPU)
    assert "saves memory but no time" in str(caution("bf16", CPU))
    assert "precision=fp16 will be slower than fp32" in str(caution("fp16", CPU))
    assert caution("fp32", CPU) is None and caution("bf16", torch.device("cuda")) is None
    processor(amx=True)
    assert caution("bf16", CPU) is None


@pytest.mark.parametrize(
    ("about", "slow"),
    [
        ("vendor_id : GenuineIntel\nflags : avx512_bf16 avx512_fp16", True),
        ("vendor_id : GenuineIntel\nflags : avx512_bf16", False),
        ("vendor_id : AuthenticAMD\nflags : avx512_bf16", False),
    ],
)
def test_instructions_at_half_speed_are_not_used(about: str, slow: bool, processor: Callable[..., None]) -> None:
    processor(avx512_bf16=True, about=about)
    assert isinstance(products("bf16", CPU), WideProducts) == slow
    assert instructions("bf16", CPU)
    processor(avx512_bf16=True, about=about, amx=True)
    assert not isinstance(products("bf16", CPU), WideProducts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_wide_products_are_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)

    def whole(*shape: int) -> Tensor:  # numbers whose sums are exact, whatever their order
        return torch.randn(shape, generator=generator).mul(4).round().to(dtype)

    a, b, c, x, w = whole(3, 33, 33), whole(3, 33, 33), whole(3, 33, 33), whole(2, 6, 9), whole(6, 3, 3)
    forms = {
        "mm": lambda a, b, c: a[0] @ b[0],
        "bmm": lambda a, b, c: a @ b,
        "addmm": lambda a, b, c: torch.addmm(c[0], a[0], b[0], beta=0.5, alpha=2.0),
        "addmm of one number": lambda a, b, c: torch.addmm(c[0, 0, :1], a[0], b[0]),
        "baddbmm": lambda a, b, c: torch.baddbmm(c, a, b),
        "addmm_": lambda a, b, c: c[0].clone().addmm_(a[0], b[0]),
        "out": lambda a, b, c: torch.mm(a[0], b[0], out=torch.empty_like(c[0])),
        "einsum": lambda a, b, c: torch.einsum("hij,hkj->hik", a, b),
        "conv1d": lambda *given: torch.conv1d(
            *((x, w) if given[0].dtype == dtype else (x.float(), w.float())), groups=2
        ),
    }
    for name, form in forms.items():
        wanted = form(a.float(), b.float(), c.float()).to(dtype)
        with WideProducts():
            found = form(a, b, c)
        assert found.dtype == dtype and torch.equal(found, wanted), name


def test_gradients_and_other_types_pass() -> None:
    x, layer = torch.randn(5, 8, requires_grad=True), torch.nn.Linear(8, 4)
    whole = torch.randn(4, 4, dtype=torch.float64)
    layer(x).square().sum().backward()
    wanted, x.grad = x.grad, None
    with WideProducts():
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
        assert (whole @ whole).dtype == torch.float64
    assert x.grad is not None and wanted is not None
    torch.testing.assert_close(x.grad, wanted, rtol=0.05, atol=0.05)
