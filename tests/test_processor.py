"""A processor that announces AMX without describing its tiles is recognised, and oneDNN is kept from AMX there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from encoderlab import processor

FLAGS = "flags\t\t: avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"


@pytest.mark.parametrize(
    ("about", "broken"),
    [
        (f"{FLAGS}\ncpuid level\t: 28", True),
        (f"{FLAGS}\ncpuid level\t: 32", False),
        (FLAGS, False),
        ("flags\t\t: avx2\ncpuid level\t: 13", False),
        ("", False),
    ],
)
def test_broken_amx(about: str, broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "description", lambda: about)
    monkeypatch.setattr(os, "environ", {})
    assert processor.broken_amx() == broken
    processor.avoid_broken_amx()
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == ("AVX512_CORE_FP16" if broken else None)


def test_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "description", lambda: f"{FLAGS}\ncpuid level\t: 28")
    monkeypatch.setattr(os, "environ", {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    processor.avoid_broken_amx()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


def test_bfloat16_products_work_on_this_machine() -> None:
    code = "import encoderlab, torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a == 64).all()"
    subprocess.run([sys.executable, "-c", code], check=True)
