"""The processor's description, and instructions that it announces but that do not work."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform

TILE_PALETTES = 0x1D  # the CPUID leaf that describes AMX's tiles


@functools.cache
def first_core() -> dict[str, str]:
    """The system's description of the first core; empty if there is none. Only one core, because it is read at every
    start.
    """
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in itertools.takewhile(str.strip, lines):
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    return fields


def description() -> str:
    """The processor's maker, name and instructions, which determine the meaning of a compiler's ``native``."""
    names = ("CPU part", "Features", "cpuid level", "flags", "model name", "vendor_id")
    known = [f"{name}: {first_core()[name]}" for name in names if name in first_core()]
    return "\n".join(known) or platform.processor()


def name() -> str:
    """The name of the processor, for people."""
    return first_core().get("model name") or platform.processor() or platform.machine()


def broken_amx() -> bool:
    """Whether the processor announces AMX without describing its tiles.

    Some virtual machines do. torch's products in bfloat16 then end the process (SIGILL), because oneDNN configures
    tiles of no size.
    """
    level = first_core().get("cpuid level")
    return "amx_tile" in first_core().get("flags", "").split() and level is not None and int(level) < TILE_PALETTES


def avoid_broken_amx() -> None:
    """Keep oneDNN from using broken AMX. Works until torch computes its first product."""
    if "ONEDNN_MAX_CPU_ISA" not in os.environ and broken_amx():
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
