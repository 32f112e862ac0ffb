"""The page of a report (:class:`encoderlab.measure.report.Report`), by the template ``run.html``."""

from __future__ import annotations

from encoderlab.measure.curves import page_data
from encoderlab.measure.report import Report, columns
from encoderlab.measure.strips import strip
from encoderlab.pages.template import render as fill


def render(report: Report) -> str:
    """The page as HTML text."""
    head, rows = columns(report.compared)
    return fill(
        "run.html",
        data=page_data(report),
        report=report,
        head=head,
        rows=rows,
        plots=[strip(task) for task in report.tasks],
        methods=list(dict.fromkeys(method.name for task in report.tasks for method in task.methods)),
    )
