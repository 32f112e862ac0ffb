"""A smaller and faster graph with weights of 8 bits, written only if it loses little on the user's own texts.

It tries in order (the ladder): all products and the word table with 8-bit numbers; the same without the parts that lose
most; 8-bit weights with products in fp32. If none is accurate enough, none is written.

Weights of products have 7 bits and a scale per output channel (``reduce_range``). Processors without VNNI add two
products of 8 bits in 16 bits, which overflow; with 7 bits they cannot, so results of one machine hold on all.
Activations are quantized during prediction, with a scale per tensor (``DynamicQuantizeLinear``). Products with several
matrices at once, as in grouped feed-forward and DeBERTa's convolution, stay in fp32: ONNX Runtime has none in 8 bits.
"""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab.deploy.export.fidelity import Check, Verdict
from encoderlab.deploy.graph import Run
from encoderlab.deploy.onnx import OnnxRun
from encoderlab.messages import Say

FIRST = 32  # texts by which the parts are ranked, and timed
TURNS = 5  # of timing
BLOCK = 64  # weights that share a scale if products stay in fp32
WEIGHTS_ONLY = 8  # bits


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A way of quantizing.

    Args:
        name: what is quantized.
        left: parts that stay in fp32.
        weights_only: products are computed in fp32.
    """

    name: str
    left: tuple[str, ...] = ()
    weights_only: bool = False


def quantize(path: Path, out: Path, check: Check, tolerance: float, say: Say) -> dict[str, Any]:
    """Write the first graph of the ladder that loses at most ``tolerance``, and return the results.

    ``kept`` of the result is the name of its rung; None if none is good enough, and then ``out`` does not exist.
    """
    before = OnnxRun(path)
    reference = check.answers(before)
    tried: list[dict[str, Any]] = []
    kept = None
    parts = _parts(path)
    for rung in _ladder(path, out, check, before, parts):
        _write(path, out, rung, parts)
        verdict = check.verdict(reference, check.answers(OnnxRun(out)))
        tried.append({"rung": rung.name, "left": list(rung.left), "bytes": out.stat().st_size} | vars(verdict))
        say(f"int8, {rung.name}: {told(verdict)}")
        if verdict.fall <= tolerance:
            kept = rung.name
            break
    record: dict[str, Any] = {
        "kept": kept,
        "tolerance": tolerance,
        "tried": tried,
        "bytes": {"fp32": path.stat().st_size},
    }
    if kept is None:
        out.unlink()
        return record
    record["bytes"]["int8"] = out.stat().st_size
    record["milliseconds"] = milliseconds(check, before, OnnxRun(out))
    return record


def told(verdict: Verdict) -> str:
    """A verdict as a sentence."""
    words = f"agreement {100 * verdict.agreement:.2f} %"
    if verdict.metric is not None and verdict.before is not None and verdict.after is not None:
        words += f", {verdict.metric} {100 * verdict.before:.2f} before and {100 * verdict.after:.2f} after"
    interval = f"{100 * verdict.low:+.2f} to {100 * verdict.high:+.2f}"
    words += f"; it falls by {100 * verdict.fall:.2f} (95 %: {interval}) on {verdict.texts:,} texts"
    return words + "".join(f"; {name} {value:.4f}" for name, value in verdict.more.items())


def _ladder(path: Path, out: Path, check: Check, before: OnnxRun, parts: dict[str, list[str]]) -> Iterator[Rung]:
    """The rungs in order; parts are ranked only if the first rung fails."""
    yield Rung(name="all products and the word table")
    ranked = _ranked(path, out, check, before, parts)
    count = 1
    while count <= len(parts) // 2:
        left = tuple(ranked[:count])
        yield Rung(name=f"all but {', '.join(left)}", left=left)
        count *= 2
    yield Rung(name="weights only", weights_only=True)


def _ranked(path: Path, out: Path, check: Check, before: OnnxRun, parts: dict[str, list[str]]) -> list[str]:
    """The parts of a graph, first those that change its outputs most when quantized alone."""
    reference = check.raw(before, FIRST)
    cost = {}
    for part in parts:
        _write(path, out, Rung(name=part, left=tuple(other for other in parts if other != part)), parts)
        difference = check.raw(OnnxRun(out), FIRST) - reference
        cost[part] = float(np.sqrt(np.mean(np.square(difference[np.isfinite(difference)]))))
    return sorted(parts, key=lambda part: -cost[part])


def _parts(path: Path) -> dict[str, list[str]]:
    """The products with one matrix and the look-ups of a graph, by the module that they belong to: names of nodes."""
    import onnx

    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    parts: dict[str, list[str]] = {}
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Gather") or not weights & set(node.input):
            continue
        scopes = next((entry.value for entry in node.metadata_props if entry.key.endswith("name_scopes")), "")
        block = re.search(r"blocks\.(\d+)", scopes)
        name = f"layer {int(block[1]) + 1}" if block else ("the word table" if node.op_type == "Gather" else "the head")
        parts.setdefault(name, []).append(node.name)
    return parts


def _write(path: Path, out: Path, rung: Rung, parts: dict[str, list[str]]) -> None:
    """Write the graph of a rung."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(path)
    # The quantizer transposes weights, which then contradict the shapes that the exporter noted for them.
    weights = {tensor.name for tensor in model.graph.initializer}
    noted = [info for info in model.graph.value_info if info.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(noted)
    stacked = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) > 2}
    excluded = [node for part in rung.left for node in parts[part]]
    excluded += [node.name for node in model.graph.node if stacked & set(node.input)]
    logger = logging.getLogger()  # onnxruntime logs its advice to the root logger
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        if rung.weights_only:
            quantizer = MatMulNBitsQuantizer(model, bits=WEIGHTS_ONLY, block_size=BLOCK, is_symmetric=True)
            quantizer.process()
            quantizer.model.save_model_to_file(str(out))
            return
        quantize_dynamic(
            model,
            out,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=excluded,
        )
    finally:
        logger.setLevel(level)


def milliseconds(check: Check, before: Run, after: Run) -> dict[str, float]:
    """Milliseconds of a text, the median of several turns in which both read the same texts."""
    count = min(FIRST, check.size)
    by_run: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS + 1):
        for times, run in zip(by_run, (before, after), strict=True):
            began = time.perf_counter()
            check.raw(run, FIRST)
            times.append(1000 * (time.perf_counter() - began) / count)
    fp32, int8 = (statistics.median(times[1:]) for times in by_run)
    return {"fp32": fp32, "int8": int8, "threads": float(torch.get_num_threads())}


def table(record: dict[str, Any]) -> str:
    """All attempts, as a table in Markdown."""
    lines = ["| quantized | MB | agreement | before | after | falls by (95 %) |", "|---|---:|---:|---:|---:|---:|"]
    rows: Sequence[dict[str, Any]] = record["tried"]
    for one in rows:
        scores = ["" if one[key] is None else f"{100 * one[key]:.2f}" for key in ("before", "after")]
        lines.append(
            f"| {one['rung']} | {one['bytes'] / 1e6:.1f} | {100 * one['agreement']:.2f} % | {scores[0]} | {scores[1]} "
            f"| {100 * one['fall']:.2f} ({100 * one['low']:.2f} to {100 * one['high']:.2f}) |"
        )
    return "\n".join(lines)
