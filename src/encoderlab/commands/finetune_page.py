"""Print the results of ``encoderlab finetune``, and write them as sections of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encoderlab.commands.terminal import note, table
from encoderlab.measure.report import MethodScores, Report, TaskScores, interval
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.runs.protocol import Protocol
from encoderlab.tasks.runs.trials import ProtocolResult, ResultRow, baseline_rows, system_row
from encoderlab.tasks.scoring.averages import AVERAGES


@dataclass(frozen=True, kw_only=True)
class Finished:
    """One finished task: scores of simple baselines by metric, and the protocol's result by system."""

    task: Task
    about: str
    baselines: Mapping[str, Mapping[str, float]]
    systems: Mapping[str, ProtocolResult]

    @property
    def pretrained(self) -> ProtocolResult:
        return self.systems["pretrained"]

    def rows(self) -> list[ResultRow]:
        """The lines of a table: the baselines, then the systems."""
        ours = [system_row(outcome, system) for system, outcome in self.systems.items()]
        return baseline_rows(self.task, self.baselines) + ours

    def scores(self) -> TaskScores:
        """The section of the report. Systems are compared on the seeds that both have; failed ones are listed."""
        metric = self.task.metric
        simple = [
            MethodScores(name=row.system, scores=[row.mean]) for row in self.rows() if row.system in self.baselines
        ]
        ours = [
            MethodScores(name=system, scores=[run.scores["dev"][metric] for run in outcome.runs], ours=True)
            for system, outcome in self.systems.items()
        ]
        seeds = {system: outcome.record["seeds"] for system, outcome in self.systems.items()}
        scored = {tuple(seed for seed, entry in tried.items() if "scores" in entry) for tried in seeds.values()}
        failed: dict[str, list[str]] = {}
        for system, tried in seeds.items():
            for seed, entry in tried.items():
                if "failed" in entry:
                    failed.setdefault(f"{system} ({entry['failed']}), seeds", []).append(seed)
        return TaskScores(
            name=self.task.name,
            about=self.about + "".join(f" Failed: {what} {', '.join(which)}." for what, which in failed.items()),
            metric=metric,
            methods=simple + ours,
            compare=("pretrained", "without pretraining") if len(ours) > 1 and len(scored) == 1 else None,
        )


def show(finished: Sequence[Finished], protocol: Protocol) -> None:
    """Print the scores on the development sets; failed seeds are listed."""
    lines = [row for found in finished for row in found.rows()]
    cells = [
        [
            row.task,
            row.metric,
            row.system,
            f"{100 * row.median:.1f}",
            f"{100 * row.mean:.1f}",
            *([f"{100 * row.best:.1f}"] if protocol.report == "best" else []),
            "" if row.sd is None else f"{100 * row.sd:.1f}",
            f"{row.n or ''}" + (f" ({row.failed} failed)" if row.failed else ""),
        ]
        for row in lines
    ]
    title = f"development sets, × 100; protocol {protocol.name}"
    best = ["best"] if protocol.report == "best" else []
    table(title, ["task", "metric", "system", "median", "mean", *best, "sd", "seeds"], cells)
    for found in finished:
        for system, outcome in found.systems.items():
            for seed, entry in outcome.record["seeds"].items():
                if "failed" in entry:
                    note(f"{found.task.name}, {system}: seed {seed} failed: {entry['failed']}")
        for remark in dict.fromkeys(remark for run in found.pretrained.runs for remark in run.record["notes"]):
            note(f"{found.task.name}: {remark}")


def averages_of(outcomes: Sequence[ProtocolResult]) -> dict[str, float]:
    """The averages of the literature that these tasks are sufficient for, from the protocol's numbers."""
    reported = {
        (outcome.task.name if split == "dev" else f"{outcome.task.name}_{split.removeprefix('dev_')}", metric): stats[
            outcome.record["report"]
        ]
        for outcome in outcomes
        for split, scores in outcome.record["scores"].items()
        for metric, stats in scores.items()
    }
    found = {name: average.of(reported) for name, average in AVERAGES.items()}
    return {name: value for name, value in found.items() if value is not None}


def report(title: str, finished: Sequence[Finished], protocol: Protocol) -> Report:
    """The report of all tasks."""
    tables = [found.scores() for found in finished]
    return Report(
        title=title,
        verdict=_verdict(tables),
        tasks=tables,
        tasks_note="Scores on the development sets. Dots are seeds, the line is their mean, the band its 95% interval. "
        f"Protocol: {protocol.name} ({protocol.source}).",
    )


def _verdict(tables: Sequence[TaskScores]) -> str:
    """One sentence per task: the model's score, and the best baseline's."""
    sentences = []
    for scores in tables:
        middle, half = interval(scores.methods[-1].scores)
        best = max((m for m in scores.methods if not m.ours), key=lambda m: m.scores[0], default=None)
        words = f"{scores.name}: {scores.metric} {100 * middle:.1f}" + (f" ± {100 * half:.1f}" if half else "")
        sentences.append(words + (f", against {100 * best.scores[0]:.1f} of {best.name}." if best else "."))
    return " ".join(sentences)


def show_statistics(task: str, splits: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the statistics of a task's splits (:func:`encoderlab.commands.finetune_stages.statistics`)."""
    labels = dict.fromkeys(label for found in splits.values() for label in found["labels"])
    rows = [["examples", *(f"{found['examples']:,}" for found in splits.values())]]
    rows += [
        [f"label {label}", *(f"{found['labels'].get(label, 0):,}" for found in splits.values())] for label in labels
    ]
    rows += [
        [f"tokens: {name}", *(f"{found['tokens'][name]:,}" for found in splits.values())]
        for name in ("median", "95%", "longest")
    ]
    room = next(iter(splits.values()))["max_length"]
    rows.append([f"longer than a sequence of {room:,}", *(f"{found['cut']:,}" for found in splits.values())])
    table(f"{task}: nothing is trained", ["", *splits], rows)
