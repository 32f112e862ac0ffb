"""A report as one HTML file, which needs no network and no library.

Its style, its script (``page/report.css``, ``page/report.js``) and its data (one JSON object, at ``#data``) are inside
the file. Text, tables and strip plots are HTML made here, so they survive mail previews and printing; the script draws
the curves, because their size and ticks follow the width of the window.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from encoderlab.files import write_text
from encoderlab.measure.curves import page_data
from encoderlab.measure.report import Fill, Pieces, Report, Score, TaskScores, Tile, columns, difference, interval


def write(report: Report, path: Path) -> None:
    """Write the page, atomically."""
    write_text(path, render(report))


def render(report: Report) -> str:
    """The page as HTML text."""
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
    summary = _tiles(report.tiles) + _comparison(report.compared)
    return shell(report.title, report.verdict, summary, sections, page_data(report))


Section = tuple[str, str, str]
"""Anchor, title and body; without a body it is left out."""


def shell(
    title: str, verdict: str, summary: str, sections: Sequence[Section], data: Mapping[str, Any], style: str = ""
) -> str:
    """A whole page around sections made elsewhere. ``summary`` stands below the verdict; ``data`` is what the script
    draws and saves, see :func:`page_data`; ``style`` is added to the page's own.
    """
    page = files("encoderlab.measure") / "page"
    shown = [(anchor, name, body) for anchor, name, body in sections if body]
    links = "".join(f'<a href="#{anchor}">{escape(name)}</a>' for anchor, name, _ in shown)
    bodies = "".join(f'<section id="{anchor}"><h2>{escape(name)}</h2>{body}</section>' for anchor, name, body in shown)
    script = (page / "report.js").read_text(encoding="utf-8")
    style = (page / "report.css").read_text(encoding="utf-8") + style
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # so that no text in it ends the script element
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
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
<h1>{escape(title)}</h1>
<p class="lede">{escape(verdict)}</p>
{summary}
</header>
{bodies}
<footer class="small"><span>Written by encoderlab. This file is complete: it loads nothing from anywhere.</span>
<button id="save">Save the data of this page (JSON)</button></footer>
</main>
</div>
<script type="application/json" id="data">{text}</script>
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
    """A strip plot: a row for each method with its seeds, their mean and its interval, on one axis."""
    axis = _axis(*_focus(task.methods))
    colours = iter(range(sum(method.ours for method in task.methods) - 1, -1, -1))  # the last of ours has the first one
    rows = "".join(
        _lane(method, axis, f"var(--series-{next(colours) % 10})" if method.ours else "var(--muted)")
        for method in task.methods
    )
    marks = "".join(f'<span style="left:{axis.at(tick)}">{100 * tick:g}</span>' for tick in axis.ticks)
    return (
        f'<div class="panel task"><h3>{escape(task.name)}{_judgement(task)}</h3>'
        f'<p class="small">{escape(task.about)}</p>'
        f'<div class="strip">{rows}<div class="row axis"><div></div><div class="ticks">{marks}</div>'
        f'<div class="score small">{escape(task.metric)} × 100</div></div></div></div>'
    )


def _lane(method: Score, axis: _Axis, hue: str) -> str:
    """The row of one method in the colour ``hue``."""
    middle, half = interval(method.scores)
    several = method.scores if len(method.scores) > 1 else ()
    seeds = "".join(f'<i class="seed" style="left:{axis.at(score)}"></i>' for score in several)
    span = spread = ""
    if half:
        ends = axis.at(middle - half), axis.at(middle + half)
        span = f'<i class="span" style="left:{ends[0]};right:calc(100% - {ends[1]})"></i>'
        spread = f" <small>± {100 * half:.1f}</small>"
    mark = f'<i class="mean" style="left:{axis.at(middle)}"></i>'
    if middle < axis.low:
        mark = '<i class="beyond">‹ off the scale</i>'
    return (
        f'<div class="row"><div class="name{" ours" if method.ours else ""}">{escape(method.name)}</div>'
        f'<div class="lane" style="--hue:{hue}">{span}{seeds}{mark}</div>'
        f'<div class="score">{100 * middle:.1f}{spread}</div></div>'
    )


def _focus(methods: Sequence[Score]) -> tuple[float, float]:
    """The range of our models' scores and of the baselines near them or above; one far below would flatten the rest.
    Shares keep within 0 and 1, however wide their intervals are.
    """
    means, lows, highs = [], [], []  # of each method, with its interval and its seeds
    for method in methods:
        middle, half = interval(method.scores)
        means.append(middle)
        lows.append(min(middle - half, *method.scores))
        highs.append(max(middle + half, *method.scores))
    ours = [i for i, method in enumerate(methods) if method.ours] or range(len(methods))
    low, high = min(lows[i] for i in ours), max(highs[i] for i in ours)
    margin = 4 * max(high - low, 0.01)
    near = [i for i, mean in enumerate(means) if low - margin < mean < high + margin]
    above = [i for i, mean in enumerate(means) if mean > high]
    low, high = min(lows[i] for i in near), max(highs[i] for i in [*near, *above])
    shares = all(0 <= score <= 1 for method in methods for score in method.scores)
    return (max(low, 0.0), min(high, 1.0)) if shares else (low, high)


@dataclass(frozen=True)
class _Axis:
    """The range of a strip plot, and round numbers inside it."""

    low: float
    high: float
    ticks: list[float]

    def at(self, value: float) -> str:
        """The place of ``value`` in CSS; what lies outside stands at the end."""
        return f"{100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low):.2f}%"


def _axis(low: float, high: float) -> _Axis:
    """An axis that holds both values with some room."""
    room = 0.07 * ((high - low) or abs(high) or 1.0)
    low, high = low - room, high + room
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return _Axis(low, high, [round(n * step, 10) for n in range(first, math.floor(high / step) + 1)])


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
