"""Random numbers that belong to something: a seed, an epoch, a row, a step, a layer; never to the order of execution."""

from __future__ import annotations

import hashlib
import struct

import numpy as np


def derive(*key: int | str) -> int:
    """A 64-bit seed from a path such as ``(seed, "mask", epoch, row)``; equal paths give equal seeds on every machine."""
    digest = hashlib.blake2b(digest_size=8)
    for part in key:
        if isinstance(part, str):
            text = part.encode()
            digest.update(b"s" + struct.pack("<q", len(text)) + text)
        else:
            digest.update(b"i" + struct.pack("<q", int(part)))
    return int.from_bytes(digest.digest(), "little")


def generator(*key: int | str) -> np.random.Generator:
    """A NumPy generator seeded by :func:`derive`; making one costs about 15 microseconds."""
    return np.random.Generator(np.random.SFC64(derive(*key)))
