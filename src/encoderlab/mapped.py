"""Files mapped into memory: reading past the end of a truncated file ends the process with an error line, not silently.

Such a read causes the signal SIGBUS, which cannot become an exception, because the reading thread cannot continue.
Sizes are checked before reads (:meth:`encoderlab.corpus.tensors.MappedTensors.check_size`); this is for a file that is
truncated between the check and the read.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from pathlib import Path

from encoderlab.errors import DataError

_sizes: dict[Path, int] = {}
_handlers: list[object] = []  # they live as long as the process


def truncated(path: Path, size: int, expected: int) -> DataError:
    return DataError(f"{path}: truncated while in use, {size:,} of {expected:,} bytes; restore it, or build it again")


def watch(path: Path, size: int) -> None:
    """Name ``path``, now mapped with ``size`` bytes, in the error line of a read past its end."""
    _sizes[path.absolute()] = size
    if not _handlers and hasattr(signal, "SIGBUS") and not faulthandler.is_enabled():
        if signal.getsignal(signal.SIGBUS) == signal.SIG_DFL:
            _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(_end))
            ctypes.CDLL(None).signal(signal.SIGBUS, _handlers[0])


def _end(number: int) -> None:
    """Write the line and end the process, as the command line does after a data error."""
    try:
        line = "a file mapped into memory cannot be read or written: it was truncated, or its disk is full"
        for path, size in list(_sizes.items()):
            if path.exists() and (now := path.stat().st_size) < size:
                line = str(truncated(path, now, size))
                break
        os.write(2, f"\nerror: {line}\n".encode(errors="replace"))
    finally:
        os._exit(DataError.code)
