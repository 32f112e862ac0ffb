"""One self-contained HTML page about a run: curves, guesses before and after, scores over seeds, cost, provenance.

The page needs no network and no library: its style, its script (``page/report.css``, ``page/report.js``) and its data
(one JSON object, at ``#data``) are inside the file. Text, tables and strip plots are HTML made here, so they survive
mail previews and printing; the script draws the curves, because their size and ticks follow the width of the window.

This module knows nothing of runs, tasks or models: :class:`Report` holds what is to be shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from encoderlab.files import write_text
from encoderlab.tasks.metrics import mean_interval

Tile = tuple[str, str, str]
MAX_POINTS = 500  # per curve: what a screen can show; keeps a page of many runs below a megabyte


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A quantity with a curve. ``kind`` is how its values are written: ``number`` or ``percent``."""

    key: str
    label: str
    kind: str = "number"
    references: tuple[tuple[str, float], ...] = ()  # horizontal lines: name, value
    from_zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """The curves of one run: rows of ``metrics.jsonl``, each with ``tokens``, ``time`` (seconds) and metric values."""

    name: str
    train: Sequence[Mapping[str, Any]] = ()
    valid: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Fill:
    """A text with one masked word, and the best guesses (word, probability) before and after training."""

    text: str
    mask: str
    answer: str | None = None
    before: Sequence[tuple[str, float]] = ()
    after: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, kw_only=True)
class Score:
    """A method's scores on a task, one per seed (a baseline without seeds has one). ``ours``: drawn in colour."""

    name: str
    scores: Sequence[float]
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """A fine-tuning task. ``compare`` names two methods: the first minus the second, paired by seed, is judged."""

    name: str
    about: str
    metric: str
    methods: Sequence[Score]
    compare: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A text and the (start, end) character spans of its tokens."""

    text: str
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything on the page; an empty part is left out of it.

    ``tiles`` are the key numbers (label, value, detail), ``compared`` those of several runs; ``tokenizer``, ``costs``
    and ``provenance`` are tables of name and value; ``limits`` says what the numbers do not show.
    """

    title: str
    verdict: str
    tiles: Sequence[Tile] = ()
    compared: Mapping[str, Sequence[Tile]] = field(default_factory=dict)
    runs: Sequence[Run] = ()
    metrics: Sequence[Metric] = ()
    strips: Sequence[Metric] = ()
    fills: Sequence[Fill] = ()
    fills_note: str = ""
    tasks: Sequence[TaskScores] = ()
    tasks_note: str = ""
    pieces: Sequence[Pieces] = ()
    tokenizer: Mapping[str, str] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)
    costs_note: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()
    limits: Sequence[str] = ()


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of the 95% interval of the mean over seeds (Student's t); the half is 0 for one score."""
    if len(scores) < 2:
        return scores[0], 0.0
    low, high = mean_interval(scores)
    return (low + high) / 2, (high - low) / 2


def difference(task: TaskScores) -> tuple[float, float] | None:
    """Mean and half width of the 95% interval of the paired difference that ``task.compare`` names."""
    if task.compare is None:
        return None
    scores = {method.name: method.scores for method in task.methods}
    first, second = scores[task.compare[0]], scores[task.compare[1]]
    if len(first) != len(second) or len(first) < 2:
        return None
    return interval([a - b for a, b in zip(first, second, strict=True)])


def write(report: Report, path: Path) -> None:
    """Write the page, atomically."""
    write_text(path, render(report))


def render(report: Report) -> str:
    """The page as HTML text."""
    page = files("encoderlab.measure") / "page"
    sections = [
        ("curves", "Learning curves", _curves(report)),
        ("words", "Fill in the blank", _fills(report)),
        ("tasks", "Fine-tuning", _tasks(report)),
        ("tokenizer", "Tokenizer", _tokenizer(report)),
        ("cost", "Cost", _table(report.costs, report.costs_note)),
        ("limits", "What this does not show", _limits(report)),
        ("provenance", "Provenance", _table(report.provenance)),
        ("again", "Run it again", _commands(report)),
    ]
    shown = [(anchor, title, body) for anchor, title, body in sections if body]
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title, _ in shown)
    bodies = "".join(
        f'<section id="{anchor}"><h2>{escape(title)}</h2>{body}</section>' for anchor, title, body in shown
    )
    script = (page / "report.js").read_text(encoding="utf-8")
    style = (page / "report.css").read_text(encoding="utf-8")
    data = json.dumps(_data(report), ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(report.title)}</title>
<link rel="icon" href="data:,">
<script>{_FIRST_THEME}</script>
<style>{style}</style>
</head>
<body>
<div class="frame">
<nav aria-label="Contents"><b>encoderlab</b><a href="#top">Summary</a>{links}</nav>
<main>
<header id="top">
<button class="theme" aria-label="Switch between light and dark">{_THEME_ICON}</button>
<h1>{escape(report.title)}</h1>
<p class="lede">{escape(report.verdict)}</p>
{_tiles(report.tiles)}{_comparison(report.compared)}
</header>
{bodies}
<footer class="small"><span>Written by encoderlab. This file is complete: it loads nothing from anywhere.</span>
<button id="save">Save the data of this page (JSON)</button></footer>
</main>
</div>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_FIRST_THEME = (  # before the first paint, so that a dark page does not flash white
    'document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";'
)
_THEME_ICON = (
    '<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="7.2" fill="none" stroke="currentColor" '
    'stroke-width="1.6"/><path d="M10 2.8a7.2 7.2 0 0 1 0 14.4z" fill="currentColor"/></svg>'
)


def _tiles(tiles: Sequence[Tile]) -> str:
    return f'<div class="tiles">{"".join(_tile(*tile) for tile in tiles)}</div>' if tiles else ""


def _tile(label: str, value: str, detail: str) -> str:
    shown = escape(value).replace("→", "<i>→</i>")
    return (
        f'<div class="tile"><div class="label">{escape(label)}</div><div class="value">{shown}</div>'
        f'<div class="detail">{escape(detail)}</div></div>'
    )


def _comparison(compared: Mapping[str, Sequence[Tile]]) -> str:
    """A row per run, a column per key number."""
    if not compared:
        return ""
    head, rows = columns(compared)
    cells = "".join(f'<th class="number">{escape(label)}</th>' for label in head)
    body = ""
    for run, row in rows.items():
        body += f"<tr><th>{escape(run)}</th>" + "".join(f'<td class="number">{escape(cell)}</td>' for cell in row)
        body += "</tr>"
    return (
        '<div class="panel scroll"><table class="compared">'
        f"<thead><tr><th>Run</th>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def columns(compared: Mapping[str, Sequence[Tile]]) -> tuple[list[str], dict[str, list[str]]]:
    """The labels of the key numbers of several runs, and those of each run at its end, a dash where it has none."""
    head = list(dict.fromkeys(label for tiles in compared.values() for label, _, _ in tiles))
    values = {run: {label: value.split(" → ")[-1] for label, value, _ in tiles} for run, tiles in compared.items()}
    return head, {run: [values[run].get(label, "–") for label in head] for run in compared}


def _curves(report: Report) -> str:
    if not report.metrics or not report.runs:
        return ""
    quantities = "".join(
        _button("metric", metric.key, metric.label, not place) for place, metric in enumerate(report.metrics)
    )
    log = _button("log", "no", "Linear", True) + _button("log", "yes", "Log", False)
    charts = "".join(
        f'<div class="panel"><h3>{title}</h3><div class="chart" data-x="{x}" data-height="290"></div></div>'
        for x, title in (("tokens", "Against tokens"), ("time", "Against time"))
    )
    strips = "".join(
        f'<div class="panel"><h3>{escape(metric.label)}</h3>'
        f'<div class="chart" data-x="tokens" data-metric="{escape(metric.key)}" data-height="130"></div></div>'
        for metric in report.strips
    )
    return (
        '<p class="sub">Thin: logged steps. Thick: running mean. Rings: held-out text. Point at a curve to read it.</p>'
        f'<div class="bar"><div class="choice" role="group" aria-label="Quantity">{quantities}</div>'
        '<div class="choice-label">Token axis'
        f'<div class="choice" role="group" aria-label="Token axis">{log}</div></div>'
        f'<div class="legend" id="curve-legend"></div></div><div class="two">{charts}</div>'
        f'<noscript><p class="sub">The curves need JavaScript, which this viewer has switched off.</p></noscript>'
        + (f'<div class="three">{strips}</div>' if strips else "")
    )


def _button(kind: str, value: str, label: str, pressed: bool) -> str:
    return f'<button data-{kind}="{escape(value)}" aria-pressed="{str(pressed).lower()}">{escape(label)}</button>'


def _fills(report: Report) -> str:
    return (f'<p class="sub">{escape(report.fills_note)}</p>' if report.fills_note else "") + "".join(
        f'<div class="panel fill"><blockquote>{_masked(fill)}</blockquote><div class="guesses">'
        f"{_guesses('Before pretraining', fill.before, fill.answer, 'before')}"
        f"{_guesses('After pretraining', fill.after, fill.answer, 'after')}</div></div>"
        for fill in report.fills
    )


def _masked(fill: Fill) -> str:
    left, _, right = fill.text.partition(fill.mask)
    return f"{escape(left)}<mark>{escape(fill.answer or '?')}</mark>{escape(right)}"


def _guesses(title: str, guesses: Sequence[tuple[str, float]], answer: str | None, kind: str) -> str:
    if not guesses:
        return ""
    rows = "".join(
        f'<div class="guess{" right" if answer is not None and word.strip().lower() == answer.lower() else ""}">'
        f'<span class="word" title="{escape(word)}">{escape(word)}</span>'
        f'<span class="track"><i style="width:{100 * share:.1f}%"></i></span>'
        f'<span class="share">{100 * share:.1f}%</span></div>'
        for word, share in guesses
    )
    return f'<div class="{kind}"><h4>{title}</h4>{rows}</div>'


def _tasks(report: Report) -> str:
    if not report.tasks:
        return ""
    panels = "".join(_task(task) for task in report.tasks)
    return f'<p class="sub">{escape(report.tasks_note)}</p>{panels}{_task_table(report.tasks)}'


def _task(task: TaskScores) -> str:
    low, high, ticks = _scale(*_focus(task.methods))

    def at(value: float) -> str:
        return f"{100 * (min(max(value, low), high) - low) / (high - low):.2f}%"

    rows, ours = [], sum(method.ours for method in task.methods)
    for method in task.methods:
        middle, half = interval(method.scores)
        ours -= method.ours
        hue = f"var(--series-{ours % 10})" if method.ours else "var(--muted)"
        seeds = (
            "".join(f'<i class="seed" style="left:{at(score)}"></i>' for score in method.scores)
            if len(method.scores) > 1
            else ""
        )
        span = (
            f'<i class="span" style="left:{at(middle - half)};right:calc(100% - {at(middle + half)})"></i>'
            if half
            else ""
        )
        spread = f" <small>± {100 * half:.1f}</small>" if half else ""
        mark = (
            f'<i class="mean" style="left:{at(middle)}"></i>'
            if middle >= low
            else '<i class="beyond">‹ off the scale</i>'
        )
        rows.append(
            f'<div class="row"><div class="name{" ours" if method.ours else ""}">{escape(method.name)}</div>'
            f'<div class="lane" style="--hue:{hue}">{span}{seeds}{mark}</div>'
            f'<div class="score">{100 * middle:.1f}{spread}</div></div>'
        )
    marks = "".join(f'<span style="left:{at(tick)}">{100 * tick:g}</span>' for tick in ticks)
    return (
        f'<div class="panel task"><h3>{escape(task.name)}{_judgement(task)}</h3>'
        f'<p class="small">{escape(task.about)}</p>'
        f'<div class="strip">{"".join(rows)}<div class="row axis"><div></div><div class="ticks">{marks}</div>'
        f'<div class="score small">{escape(task.metric)} × 100</div></div></div></div>'
    )


def _focus(methods: Sequence[Score]) -> tuple[float, float]:
    """The range of our models' scores and of the baselines near them; one far below would flatten the rest. Shares
    keep within 0 and 1, however wide their intervals are.
    """
    reach = {method.name: interval(method.scores) for method in methods}
    ends = {
        m.name: [reach[m.name][0] - reach[m.name][1], *m.scores, reach[m.name][0] + reach[m.name][1]] for m in methods
    }
    core = [end for m in methods if m.ours or not any(other.ours for other in methods) for end in ends[m.name]]
    margin = 4 * max(max(core) - min(core), 0.01)
    near = [end for m in methods for end in ends[m.name] if max(core) + margin > reach[m.name][0] > min(core) - margin]
    higher = [end for m in methods for end in ends[m.name] if reach[m.name][0] > max(core)]
    low, high = min(near), max(near + higher)
    shares = all(0 <= score <= 1 for m in methods for score in m.scores)
    return (max(low, 0.0), min(high, 1.0)) if shares else (low, high)


def _judgement(task: TaskScores) -> str:
    found = difference(task)
    if found is None or task.compare is None:
        return ""
    middle, half = found
    kind = "gain" if middle - half > 0 else "loss" if middle + half < 0 else ""
    words = (
        f"{100 * middle:+.1f} ± {100 * half:.1f} from pretraining" if kind else "no clear gain or loss from pretraining"
    )
    return f'<span class="verdict {kind}">{words}</span>'


def _task_table(tasks: Sequence[TaskScores]) -> str:
    """Tasks by methods: mean, 95% interval and the number of seeds; the best mean of a task in bold."""
    names = list(dict.fromkeys(method.name for task in tasks for method in task.methods))
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in names)
    rows = []
    for task in tasks:
        found = {method.name: method for method in task.methods}
        best = max(interval(method.scores)[0] for method in task.methods)
        cells = []
        for name in names:
            if name not in found:
                cells.append('<td class="number">–</td>')
                continue
            middle, half = interval(found[name].scores)
            spread = f" ± {100 * half:.1f} <small>({len(found[name].scores)})</small>" if half else ""
            cells.append(f'<td class="number{" best" if middle == best else ""}">{100 * middle:.1f}{spread}</td>')
        rows.append(f"<tr><th>{escape(task.name)}<br><small>{escape(task.metric)}</small></th>{''.join(cells)}</tr>")
    return (
        '<details><summary>The same as a table</summary><div class="panel scroll"><table>'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _scale(low: float, high: float) -> tuple[float, float, list[float]]:
    """A range that holds both values with some room, and round ticks inside it."""
    room = 0.07 * ((high - low) or abs(high) or 1.0)
    low, high = low - room, high + room
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return low, high, [round(n * step, 10) for n in range(first, math.floor(high / step) + 1)]


def _tokenizer(report: Report) -> str:
    if not report.pieces:
        return ""
    samples = "".join(f'<p class="pieces">{_coloured(pieces)}</p>' for pieces in report.pieces)
    return f'<p class="sub">One colour per token.</p><div class="panel">{samples}</div>{_table(report.tokenizer)}'


def _coloured(pieces: Pieces) -> str:
    parts, end = [], 0
    for place, (start, stop) in enumerate(pieces.spans):
        if stop <= start:
            continue
        parts.append(escape(pieces.text[end:start]))
        parts.append(f'<span class="c{place % 5}">{escape(pieces.text[start:stop])}</span>')
        end = stop
    return "".join(parts) + escape(pieces.text[end:])


def _table(rows: Mapping[str, str], note: str = "") -> str:
    if not rows:
        return ""
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    intro = f'<p class="sub">{escape(note)}</p>' if note else ""
    return f'{intro}<div class="panel scroll"><table><tbody>{body}</tbody></table></div>'


def _limits(report: Report) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in report.limits)
    return f'<div class="panel"><ul class="limits">{items}</ul></div>' if items else ""


def _commands(report: Report) -> str:
    if not report.commands:
        return ""
    # Each word in an element of its own: a browser would break lines after the hyphens of options.
    lines = (" ".join(f"<span>{escape(word)}</span>" for word in line.split(" ")) for line in report.commands)
    return f'<div class="command"><pre>{chr(10).join(lines)}</pre><button>Copy</button></div>'


def _data(report: Report) -> dict[str, Any]:
    """What the script needs, and what a reader may want to take away."""
    keys = [metric.key for metric in (*report.metrics, *report.strips)]
    return {
        "title": report.title,
        "verdict": report.verdict,
        "metrics": [_metric(metric) for metric in report.metrics],
        "strips": [_metric(metric) for metric in report.strips],
        "runs": [
            {"name": run.name, "train": _columns(run.train, keys, smooth=True), "valid": _columns(run.valid, keys)}
            for run in report.runs
        ],
        "fill_mask": [
            {"text": f.text, "answer": f.answer, "before": list(f.before), "after": list(f.after)} for f in report.fills
        ],
        "tasks": [
            {"name": t.name, "metric": t.metric, "methods": {m.name: list(m.scores) for m in t.methods}}
            for t in report.tasks
        ],
        "tokenizer": dict(report.tokenizer),
        "costs": dict(report.costs),
        "provenance": dict(report.provenance),
        "commands": list(report.commands),
        "limits": list(report.limits),
    }


def _metric(metric: Metric) -> dict[str, Any]:
    references = [{"name": name, "value": value} for name, value in metric.references]
    return {
        "key": metric.key,
        "label": metric.label,
        "kind": metric.kind,
        "references": references,
        "from_zero": metric.from_zero,
    }


def _columns(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str], *, smooth: bool = False
) -> dict[str, list[float | None]]:
    """``rows`` as columns, thinned to :data:`MAX_POINTS`; ``key~`` is the running mean of ``key`` before thinning.

    The mean is over a window centred on the row, a twentieth of the run wide, narrower at both ends: it has no lag.
    """
    keys = [key for key in keys if any(_number(row.get(key)) is not None for row in rows)]
    columns: dict[str, list[float | None]] = {
        key: [_number(row.get(key)) for row in rows] for key in ("tokens", "time", *keys)
    }
    if smooth and len(rows) > 20:
        columns |= {f"{key}~": _running_mean(columns[key], len(rows) // 40) for key in keys}
    if len(rows) > MAX_POINTS:
        chosen = sorted({round(place * (len(rows) - 1) / (MAX_POINTS - 1)) for place in range(MAX_POINTS)})
        columns = {key: [column[place] for place in chosen] for key, column in columns.items()}
    return {
        key: [value if value is None else float(f"{value:.5g}") for value in column] for key, column in columns.items()
    }


def _running_mean(values: Sequence[float | None], reach: int) -> list[float | None]:
    """The mean of the values at most ``reach`` rows away, on both sides alike; None where there is none."""
    sums, counts = [0.0], [0]
    for value in values:
        sums.append(sums[-1] + (value or 0.0))
        counts.append(counts[-1] + (value is not None))
    means: list[float | None] = []
    for place in range(len(values)):
        near = min(reach, place, len(values) - 1 - place)
        total, count = sums[place + near + 1] - sums[place - near], counts[place + near + 1] - counts[place - near]
        means.append(total / count if count else None)
    return means


def _number(value: Any) -> float | None:
    """A finite number, or None: a diverged run still gets its page."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
