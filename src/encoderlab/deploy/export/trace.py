"""A graph as a file: ONNX, and torch's own archive."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encoderlab.deploy.graph import Graph
from encoderlab.errors import ConfigError, EncoderlabError, MissingDependency

OPSET = 20
LARGEST = 2**31 - 2**20  # bytes: a file of ONNX is one message of protocol buffers


def example(graph: Graph, rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """Inputs of a graph, each a separate tensor, because the same tensor given twice would become one input."""
    inputs = {name: torch.zeros(rows, length, dtype=torch.long) for name in graph.inputs}
    inputs["attention_mask"] += 1
    inputs["attention_mask"][-1, length // 2 :] = 0
    return inputs


def trace(graph: Graph) -> torch.export.ExportedProgram:
    """The graph for any number of rows, of 1 token up to the model's positions.

    torch refuses to trace an operation that is valid only for some lengths, so the graph does not depend on the
    example.

    Raises:
        EncoderlabError: torch cannot trace it.
    """
    longest = graph.model.config.encoder.max_length or 2**20
    inputs = example(graph, length=min(9, longest))
    size = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length", min=1, max=longest)}
    shapes = {name: size for name in inputs}
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(graph, (), kwargs=inputs, dynamic_shapes=shapes)
    except Exception as error:  # of many kinds
        raise EncoderlabError(f"torch cannot trace the model: {_first_line(error)}") from error


def write_onnx(program: torch.export.ExportedProgram, graph: Graph, path: Path) -> None:
    """Write a traced graph as one file of ONNX, weights included.

    Raises:
        MissingDependency: onnx or onnxscript is not installed.
        ConfigError: the weights are too large for a file of ONNX.
        EncoderlabError: an operation has no counterpart.
    """
    require("onnx", "onnxscript")
    size = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    if size > LARGEST:
        raise ConfigError(
            f"the weights have {size / 1e9:.1f} GB, a file of ONNX holds 2.1; write torch's archive instead (--to pt2)"
        )
    try:
        with _quiet():
            torch.onnx.export(
                program,
                (),
                path,
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # of many kinds
        raise EncoderlabError(f"torch cannot write the model as ONNX: {_first_line(error)}") from error


def require(*packages: str) -> None:
    """Refuse to continue without ``packages``, which are of the extra ``export``.

    Raises:
        MissingDependency: one of them is not installed.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(package, "export", "ONNX")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A context without the exporters' messages for their developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [(logger, logger.level) for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in levels:
                logger.setLevel(level)


def _first_line(error: Any) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()  # without its colours
    return f"{type(error).__name__}: {plain}".splitlines()[0][:200]
