"""Print the results of ``encoderlab finetune``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encoderlab.commands.terminal import note, table
from encoderlab.interchange.finetuned import describe
from encoderlab.measure.finetuning import PRETRAINED
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.runs.protocol import Protocol
from encoderlab.tasks.runs.trials import ProtocolResult, ResultRow, baseline_rows, system_row
from encoderlab.tasks.scoring.averages import AVERAGES

MOST_LABELS = 50  # in a table; --json has all


@dataclass(frozen=True, kw_only=True)
class Finished:
    """One finished task: the protocol's result by system."""

    systems: Mapping[str, ProtocolResult]

    @property
    def task(self) -> Task:
        return self.pretrained.task

    @property
    def pretrained(self) -> ProtocolResult:
        return self.systems[PRETRAINED]

    def rows(self) -> list[ResultRow]:
        """The lines of a table: for each split with scores the baselines, then the systems."""
        record = self.pretrained.record
        return [
            row
            for split in record["scores"]
            for row in (
                *baseline_rows(self.task, record["baselines"].get(split, {}), split),
                *(system_row(outcome, system, split) for system, outcome in self.systems.items()),
            )
        ]


def show(finished: Sequence[Finished], protocol: Protocol) -> None:
    """Print the scores by split, what a search tried, and remarks; failed seeds are counted and listed."""
    cells = [
        [
            row.task,
            row.split,
            row.metric,
            row.system,
            f"{100 * row.median:.1f}",
            f"{100 * row.mean:.1f}",
            *([f"{100 * row.best:.1f}"] if protocol.report == "best" else []),
            "" if row.sd is None else f"{100 * row.sd:.1f}",
            f"{row.n or ''}" + (f" ({row.failed} failed)" if row.failed else ""),
        ]
        for run in finished
        for row in run.rows()
    ]
    best = ["best"] if protocol.report == "best" else []
    head = ["task", "split", "metric", "system", "median", "mean", *best, "sd", "seeds"]
    table(f"scores × 100; protocol {protocol.name}", head, cells)
    for one in finished:
        show_search(one)
        for system, outcome in one.systems.items():
            for seed, entry in outcome.record["seeds"].items():
                if "failed" in entry:
                    note(f"{one.task.name}, {system}: seed {seed} failed: {entry['failed']}")
        for remark in dict.fromkeys(remark for run in one.pretrained.runs for remark in run.record["notes"]):
            note(f"{one.task.name}: {remark}")


def show_search(one: Finished) -> None:
    """Print the points that were tried on the development set, best first, and which one was taken."""
    record = one.pretrained.record
    tried = sorted(record["search"], key=lambda entry: -max(entry["dev"], default=-1e9))
    rows = [
        [
            describe(entry["point"]),
            ", ".join(f"{100 * score:.1f}" for score in entry["dev"]) or "failed",
            "taken" if entry["point"] == record["chosen"] else "",
        ]
        for entry in tried
    ]
    if rows:
        table(f"{one.task.name}: tried on the development set", ["point", f"{record['metric']} × 100", ""], rows)


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
    averages = {name: average.of(reported) for name, average in AVERAGES.items()}
    return {name: value for name, value in averages.items() if value is not None}


def show_statistics(task: str, splits: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the statistics of a task's splits (:func:`encoderlab.commands.finetune_stages.statistics`)."""
    labels = Counter[str]()
    for counts in splits.values():
        labels.update(counts["labels"])
    shown = [label for label, _ in labels.most_common(MOST_LABELS)] if len(labels) > MOST_LABELS else list(labels)
    rows = [["examples", *(f"{counts['examples']:,}" for counts in splits.values())]]
    rows += [
        [f"label {label}", *(f"{counts['labels'].get(label, 0):,}" for counts in splits.values())] for label in shown
    ]
    if len(shown) < len(labels):
        rows.append([f"and {len(labels) - len(shown):,} less frequent labels", *("" for _ in splits)])
    rows += [
        [f"tokens: {name}", *(f"{counts['tokens'][name]:,}" for counts in splits.values())]
        for name in ("median", "95%", "longest")
    ]
    room = next(iter(splits.values()))["max_length"]
    rows.append([f"longer than a sequence of {room:,}", *(f"{counts['cut']:,}" for counts in splits.values())])
    table(f"{task}: nothing is trained", ["", *splits], rows)
