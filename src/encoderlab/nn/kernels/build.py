"""Find out which kernels this machine can run, and compile those for its CPU.

CPU: ``cpp/ops.cpp`` is compiled once per machine with the system compiler and loaded through ctypes. That takes about
five seconds; later processes load the file from the cache folder. The library links against no part of torch; it uses
the OpenMP runtime that torch has loaded, hence torch's pool of threads. GPU: Triton compiles each kernel when it first
runs. Where neither is possible (or with ``ENCODERLAB_KERNELS=off``) the plain versions run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from encoderlab import processor
from encoderlab.files import cache_folder, find_hashed, hashed_name, kernels_wanted

FOLDER = Path(__file__).parent / "cpp"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden")
MATH = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi")

log = logging.getLogger(__name__)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock on ``path``, so that processes on one machine do not compile at the same time."""
    import fcntl

    with path.open("w") as file:
        with suppress(OSError):  # on a file system without locks each compiles, and one result stays
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_library(compiler: str) -> Path:
    """The path of the compiled library; compile it if the cache folder does not have it.

    The name ends with the hash of the file. A damaged file no longer matches its hash and is compiled again, because
    loading it could kill the process (SIGBUS, SIGSEGV).
    """
    sources = [path.read_text() for path in sorted(FOLDER.iterdir())]
    key = "\n".join((*sources, compiler, *FLAGS, *MATH, platform.machine(), processor.description()))
    folder = cache_folder() / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"ops-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if (library := find_hashed(folder, stem, ".so")) is not None:
        return library
    with one_at_a_time(folder / "lock"):
        if (library := find_hashed(folder, stem, ".so")) is not None:
            return library
        log.info("compiling the kernels with %s, once on this machine", compiler)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / f"{stem}.so"
            command = [*shlex.split(compiler), *FLAGS, *MATH, str(FOLDER / "ops.cpp"), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
            library = folder / hashed_name(stem, made)
            os.replace(made, library)
    return library


def open_library(compiler: str) -> ctypes.CDLL:
    """The loaded library; compile it again if the file in the cache folder cannot be loaded."""
    library = compile_library(compiler)
    try:
        return _opened(library)
    except OSError as error:
        log.info("%s; compiling it again", error)
        library.unlink(missing_ok=True)
        return _opened(compile_library(compiler))


def _opened(library: Path) -> ctypes.CDLL:
    """Load a copy of the file in memory, if the system has such files, so that later changes of the file in the cache
    folder, even truncation, have no effect here.

    Raises:
        OSError: the file does not match the hash in its name, or is not a library.
    """
    content = library.read_bytes()
    if not library.stem.endswith(hashlib.sha256(content).hexdigest()[:16]):
        raise OSError(f"{library} has changed")
    if not hasattr(os, "memfd_create"):
        return ctypes.CDLL(str(library))
    handle = os.memfd_create(library.name)  # never closed: the loader knows the library by this number
    with open(handle, "wb", closefd=False) as copy:
        copy.write(content)
    loaded = ctypes.CDLL(f"/proc/self/fd/{handle}")
    loaded._name = str(library)
    return loaded


@functools.cache
def load() -> ctypes.CDLL | None:
    """The compiled kernels, or None if they are switched off or cannot be compiled."""
    if not kernels_wanted():
        return None
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        log.warning("no C++ compiler found, so the slower plain kernels run; install g++")
        return None
    try:
        return open_library(compiler)
    except (OSError, ImportError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        log.warning("the kernels cannot be compiled, so the slower plain kernels run: %s", *reason or [error])
        return None


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the compiled kernels can be used; the first call may compile them."""
    return load() is not None


@functools.cache
def find_triton() -> bool:
    """Whether Triton kernels run on the current GPU.

    Needs compute capability 8.0 or later, Triton (part of torch's CUDA builds) and a C compiler.
    """
    if not kernels_wanted():
        return False
    try:
        if torch.cuda.get_device_capability() < (8, 0):
            raise RuntimeError("the GPU's compute capability is below 8.0")
        return importlib.import_module("triton").runtime.driver.active.utils is not None
    except Exception as error:  # Triton raises many types
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        log.warning("no kernels for this GPU, so the slower plain kernels run: %s", reason)
        return False


@torch.compiler.assume_constant_result
def triton_available() -> bool:
    """Whether the GPU kernels can be used."""
    return find_triton()
