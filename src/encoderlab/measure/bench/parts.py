"""Where the time of a training step goes, from torch's own profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from encoderlab.measure.bench.families import Case

PARTS: list[tuple[str, tuple[str, ...]]] = [  # the first part with a matching fragment of the operator's name has it
    ("optimiser", ("adam", "zero_grad", "lamb")),
    ("attention", ("attend", "scaled_dot", "flash_attention", "softmaxdropout", "bmm", "_softmax", "skew")),
    ("dropout", ("dropout", "bernoulli", "noise")),
    ("norm", ("layer_norm", "addnorm")),
    ("activation", ("gelu", "tanh", "relu")),
    ("loss", ("log_softmax", "nll_loss", "cross_entropy", "argmax", "logsumexp", "binary_cross_entropy", "kl_div")),
    ("convolution", ("convolution", "conv1d", "conv_", "unfold", "im2col", "col2im", "spanconv")),
    ("embedding", ("embedding", "index_select")),
    (
        "copies and sums",
        ("copy_", "cat", "add", "sum", "mul", "fill", "zero", "clone", "contiguous", "gather", "where"),
    ),
]


def time_by_part(step: Callable[[], Any], case: Case) -> dict[str, float]:
    """Share of one step's time by part.

    Matrix products are told apart by their shapes: projections, feed-forward, head.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    seconds: dict[str, float] = {}
    for event in profiler.key_averages(group_by_input_shape=True):
        if event.self_cpu_time_total > 0:
            part = _part(event.key.lower(), event.input_shapes, case)
            seconds[part] = seconds.get(part, 0.0) + event.self_cpu_time_total
    total = sum(seconds.values())
    return {part: value / total for part, value in sorted(seconds.items(), key=lambda item: -item[1])}


def _part(name: str, shapes: Any, case: Case) -> str:
    if name.removeprefix("aten::") in ("mm", "addmm", "linear", "matmul", "mkldnn_linear"):
        sizes = {size for shape in shapes if isinstance(shape, (list, tuple)) for size in shape}
        for config in (case.model, case.second):
            if config is None:
                continue
            if config.encoder.vocab in sizes:
                return "head"
            if config.encoder.ff_width in sizes:
                return "feed-forward"
        return "projections"
    for part, fragments in PARTS:
        if any(fragment in name for fragment in fragments):
            return part
    return "other"
