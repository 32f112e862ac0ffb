"""A processor that announces AMX without describing its tiles is recognised, and oneDNN is kept from AMX there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from encoderlab import processor

FLAGS = "avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"


@pytest.mark.parametrize(
    ("about", "broken"),
    [
        ({"flags": FLAGS, "cpuid level": "28"}, True),
        ({"flags": FLAGS, "cpuid level": "32"}, False),
        ({"flags": FLAGS}, False),
        ({"flags": "avx2", "cpuid level": "13"}, False),
        ({}, False),
    ],
)
def test_broken_amx(about: dict[str, str], broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "first_core", lambda: about)
    monkeypatch.setattr(os, "environ", {})
    assert processor.broken_amx() == broken
    processor.avoid_broken_amx()
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == ("AVX512_CORE_FP16" if broken else None)


def test_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "first_core", lambda: {"flags": FLAGS, "cpuid level": "28"})
    monkeypatch.setattr(os, "environ", {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    processor.avoid_broken_amx()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


def test_bfloat16_products_work_on_this_machine() -> None:
    code = "import encoderlab, torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a == 64).all()"
    subprocess.run([sys.executable, "-c", code], check=True)
