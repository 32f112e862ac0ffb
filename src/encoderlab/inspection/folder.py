"""Write an inspection as files: ``inspect.json``, ``attention.npz`` and the page ``index.html``."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.files import write_bytes, write_json, write_text
from encoderlab.inspection.attention import Attended
from encoderlab.inspection.patterns import RELATIONS, Patterns
from encoderlab.inspection.probe import Probed
from encoderlab.pages.charts import Chart, Point, Series, chart
from encoderlab.pages.template import render

NUMBERS, WEIGHTS = "inspect.json", "attention.npz"
SHOWN = 4  # number of texts whose maps are stored


@dataclass(frozen=True, kw_only=True)
class Look:
    """The measurements of one model.

    Attributes:
        name, family: of the model.
        texts: the weights for the first texts.
        patterns: averages over all texts.
        neighbours: the nearest words of the tokens, with their cosines.
        attending: number of attention heads; the others convolve.
        importance: of every head to the loss of pretraining, (layers, H), if it was measured.
        probes: scores of linear probes for tags, by layer.
    """

    name: str
    family: str
    texts: Sequence[Attended]
    patterns: Patterns
    neighbours: Mapping[str, Sequence[tuple[str, float]]]
    attending: int
    importance: np.ndarray | None = None
    probes: Sequence[Probed] = ()


def write(looks: Sequence[Look], out: Path) -> None:
    """Write the folder ``out``; several models are shown next to each other on one page. Arrays of further models from
    an earlier command are deleted.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("attention-[0-9].npz"):
        old.unlink()
    write_json(out / NUMBERS, {"models": [record(look) for look in looks]})
    for number, look in enumerate(looks):
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays(look))  # type: ignore[arg-type]
        write_bytes(out / (WEIGHTS if not number else f"attention-{number + 1}.npz"), buffer.getvalue())
    write_text(out / "index.html", page(looks))


def record(look: Look) -> dict[str, Any]:
    """The numbers of a model as plain data."""
    summary = look.patterns.summary()
    if look.importance is not None:
        summary["importance"] = look.importance.tolist()
    attending, heads = look.attending, look.patterns.heads
    diagonal = {"attention heads": look.patterns.diagonal(0, attending)}
    if heads > attending:
        diagonal["convolution heads"] = look.patterns.diagonal(attending, heads)
    return {
        "model": look.name,
        "family": look.family,
        "layers": look.patterns.layers,
        "heads": {"attention": attending, "convolution": heads - attending},
        "queries": look.patterns.queries,
        "texts": [{"tokens": text.tokens, "memory": text.memory} for text in look.texts],
        "diagonal_concentration": diagonal,
        "strongest": strongest(look),
        "by_head": summary,
        "neighbours": look.neighbours,
        "probes": [vars(probed) for probed in look.probes],
    }


def strongest(look: Look) -> dict[str, dict[str, Any]]:
    """For each relation that the texts have, the head with the most weight on it."""
    heads = {}
    for name, shares in look.patterns.shares().items():
        if shares.size and shares.max() > 0:  # no token may occur twice
            layer, head = np.unravel_index(int(shares.argmax()), shares.shape)
            heads[name] = {"layer": int(layer), "head": int(head), "weight": float(shares[layer, head])}
    return heads


def arrays(look: Look) -> dict[str, np.ndarray]:
    """Float32 arrays by name: ``layer_0`` (H, L, M) and so on for the first text, ``text_1_layer_0`` for the next ones,
    and ``mean_layer_0`` (H, 64, 64) over all texts.
    """
    maps: dict[str, np.ndarray] = {}
    for number, text in enumerate(look.texts):
        prefix = f"text_{number}_" if number else ""
        maps |= {f"{prefix}layer_{layer}": weights for layer, weights in enumerate(text.layers)}
    return maps | {f"mean_layer_{layer}": mean for layer, mean in enumerate(look.patterns.average())}


def page(looks: Sequence[Look]) -> str:
    """The page: one file that loads no others."""
    data = {"relations": RELATIONS, "models": [_shown(look) for look in looks]}
    title = " and ".join(look.name for look in looks)
    return render("inspect.html", data=data, title=title, probes=_probe_charts(looks))


def _probe_charts(looks: Sequence[Look]) -> list[tuple[str, str, Chart | None]]:
    """For each task its name, its measure, and the score of every layer of every model, with those of baselines."""
    charts = []
    for number, one in enumerate(looks[0].probes if looks else ()):
        series = []
        for colour, look in enumerate(looks):
            scores = [100 * layer[one.measure] for layer in look.probes[number].layers]
            names = [f"{look.name}, {'layer ' * (layer > 0)}{layer or 'embeddings'}" for layer in range(len(scores))]
            points = [Point(at, s, s, s, f"{names[at]}: {s:.1f}") for at, s in enumerate(scores)]
            series.append(Series(name=look.name, colour=colour, points=points, line=True))
        deepest = max(len(look.probes[number].layers) for look in looks) - 1
        for colour, (name, guessed) in enumerate(one.baselines.items(), len(looks)):
            value = 100 * guessed[one.measure]
            ends = [Point(layer, value, value, value, f"{name}: {value:.1f}") for layer in (0, deepest)]
            series.append(Series(name=name, colour=colour, points=ends, line=True, faint=True))
        learned, scored = one.words
        about = f"{one.measure} × 100; {one.labels} tags, {learned:,} words to learn from, {scored:,} scored"
        charts.append((one.task, about, chart(series, x="layer (0: embeddings)", y=one.measure)))
    return charts


def _shown(look: Look) -> dict[str, Any]:
    """The data of the page: maps as one byte per weight."""

    def bytes_of(weights: np.ndarray) -> list[str]:
        levels = np.rint(np.clip(weights, 0, 1) * 255).astype(np.uint8)
        return [base64.b64encode(head.tobytes()).decode() for head in levels]

    texts = [
        {
            "tokens": text.tokens,
            "memory": text.memory,
            "special": [bool(word < 0) for word in text.words],
            "layers": [bytes_of(weights) for weights in text.layers],
        }
        for text in look.texts
    ]
    size = int((look.patterns.seen.diagonal() > 0).sum())
    mean = [bytes_of(layer[:, :size, :size]) for layer in look.patterns.average()]
    return record(look) | {"texts": texts, "mean": {"size": size, "layers": mean}}
