"""What processor this is, and instructions that it announces but that do not work."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

TILE_PALETTES = 0x1D  # the CPUID leaf that describes AMX's tiles


@functools.cache
def description() -> str:
    """The processor's maker, name and instructions, which decide what a compiler's ``native`` means."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = ("vendor_id", "model name", "flags", "Features", "CPU part", "cpuid level")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in names}))


def broken_amx() -> bool:
    """Whether the processor announces AMX without describing its tiles.

    Some virtual machines do. torch's products in bfloat16 then end the process (SIGILL), because oneDNN configures
    tiles of no size.
    """
    lines = [line.partition(":") for line in description().splitlines()]
    fields = {name.strip(): value.split() for name, _, value in lines}
    level = fields.get("cpuid level", [])
    return "amx_tile" in fields.get("flags", []) and bool(level) and int(level[0]) < TILE_PALETTES


def avoid_broken_amx() -> None:
    """Keep oneDNN from AMX where it is broken. Works until torch computes its first product."""
    if "ONEDNN_MAX_CPU_ISA" not in os.environ and broken_amx():
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
