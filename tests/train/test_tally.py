from __future__ import annotations

import platform

import pytest
import torch

from encoderlab.train.tally import emulated


def test_a_precision_without_instructions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert "precision=bf16 will be slower" in str(emulated("bf16", cpu))
    assert emulated("fp32", cpu) is None and emulated("bf16", torch.device("cuda")) is None
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert emulated("bf16", cpu) is None
