"""encoderlab: raw text to a pretrained, fine-tuned and measured text encoder, for the whole BERT family."""

from importlib import import_module
from typing import TYPE_CHECKING

from encoderlab.processor import avoid_broken_amx

if TYPE_CHECKING:
    from encoderlab.interchange.load import load
    from encoderlab.model import build

__version__ = "0.1.0"

__all__ = ["__version__", "build", "load"]

avoid_broken_amx()


def __getattr__(name: str) -> object:
    """Import ``build`` and ``load`` when they are first used, because they import torch."""
    if name not in ("build", "load"):
        raise AttributeError(f"module 'encoderlab' has no attribute {name!r}")
    module = import_module("encoderlab.model" if name == "build" else "encoderlab.interchange.load")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
