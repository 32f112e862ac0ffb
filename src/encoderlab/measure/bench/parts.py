"""The time of a training step by part, from torch's own profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from encoderlab.measure.bench.families import Case

PARTS: list[tuple[str, tuple[str, ...]]] = [  # the first part with a fragment of the name (without underscores) counts
    ("optimiser", ("adam", "zerograd", "lamb")),
    ("loss", ("logsoftmax", "nllloss", "crossentropy", "argmax", "logsumexp", "kldiv")),
    ("attention", ("attend", "attention", "scaleddot", "bmm", "softmax", "skew")),
    ("dropout", ("dropout", "bernoulli", "noise")),
    ("norm", ("layernorm", "addnorm")),
    ("activation", ("gelu", "tanh", "relu", "feedforward")),
    ("convolution", ("conv", "unfold", "im2col", "col2im", "depthwise", "dynamic")),
    ("embedding", ("embedding", "indexselect")),
    ("copies and sums", ("copy", "cat", "add", "sum", "mul", "fill", "zero", "clone", "contiguous", "gather", "where")),
]

DISPATCH = "PythonDispatchMode"  # inside an operator that encoderlab.train.precision replaces


def time_by_part(step: Callable[[], Any], case: Case, device: torch.device) -> dict[str, float]:
    """Seconds of one step by part: the time of operators on a CPU, of kernels on a GPU, so that waiting does not count.

    Matrix products are distinguished by their shapes: projections, feed-forward, head.
    """

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=activities, record_shapes=True) as profiler:
        step()
    events = profiler.events()
    seconds = kernels_by_part(events, case) if device.type == "cuda" else _operators_by_part(events, case)
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _operators_by_part(events: Iterable[Any], case: Case) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for event in events:
        if event.self_cpu_time_total > 0:
            owner = event
            while owner.name == DISPATCH and owner.cpu_parent is not None:
                owner = owner.cpu_parent
            part = _part(owner.name, owner.input_shapes, case)
            seconds[part] = seconds.get(part, 0.0) + event.self_cpu_time_total / 1e6
    return seconds


def kernels_by_part(events: Iterable[Any], case: Case) -> dict[str, float]:
    """Seconds by part from kernels: the operator that launched a kernel decides its part; without an operator, as for
    Triton's kernels, its own name.
    """
    seconds: dict[str, float] = {}
    alone: dict[str, float] = {}  # microseconds by name, of kernels without operator

    def add(part: str, microseconds: float) -> None:
        seconds[part] = seconds.get(part, 0.0) + microseconds / 1e6

    for event in events:
        for kernel in event.kernels:
            add(_part(event.name, event.input_shapes, case, kernel.name), kernel.duration)
            alone[kernel.name] = alone.get(kernel.name, 0.0) - kernel.duration
        if event.device_type != torch.autograd.DeviceType.CPU and not event.is_user_annotation:
            alone[event.name] = alone.get(event.name, 0.0) + event.time_range.elapsed_us()
    for name, microseconds in alone.items():
        if microseconds > 1e-3:
            add(_part("", (), case, name), microseconds)
    return seconds


def _part(operator: str, shapes: Any, case: Case, kernel: str = "") -> str:
    operator = operator.lower()
    if operator.removeprefix("aten::") in ("mm", "addmm", "linear", "matmul", "mkldnn_linear"):
        sizes = {size for shape in shapes if isinstance(shape, (list, tuple)) for size in shape}
        for config in (case.model, case.second):
            if config is None:
                continue
            if config.encoder.vocab in sizes:
                return "head"
            if {config.encoder.width, config.encoder.ff_width} <= sizes:
                return "feed-forward"
        return "projections"
    names = [operator] + ([kernel.lower()] if kernel.isidentifier() else [])  # not a C++ template of many names
    for name in names:
        for part, fragments in PARTS:
            if any(fragment in name.replace("_", "") for fragment in fragments):
                return part
    return "other"
