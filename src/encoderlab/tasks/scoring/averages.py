"""The averages over benchmarks that papers and leaderboards print.

They differ in tasks and metrics, so numbers of one must not be compared with those of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mean over columns; a column is one score, or the mean of several (``stsb``: of Pearson and Spearman)."""

    columns: tuple[tuple[tuple[str, str], ...], ...]  # ((task or task_split, metric), ...) per column
    source: str

    def of(self, scores: Mapping[tuple[str, str], float]) -> float | None:
        """The average of ``scores`` by (task, metric); None while one is missing."""
        if any(key not in scores for column in self.columns for key in column):
            return None
        means = [sum(scores[key] for key in column) / len(column) for column in self.columns]
        return sum(means) / len(means)


def _average(source: str, *columns: str) -> Average:
    """``columns`` as ``"task:metric"``, several of one column joined by ``+``."""
    return Average(
        source=source,
        columns=tuple(
            tuple((part.split(":")[0], part.split(":")[1]) for part in column.split("+")) for column in columns
        ),
    )


AVERAGES: Mapping[str, Average] = {
    "bert": _average(
        "Devlin et al., 2019, table 1: nine columns, both parts of MNLI, F1 of QQP and MRPC, no WNLI",
        "mnli:accuracy", "mnli_mismatched:accuracy", "qqp:f1", "qnli:accuracy", "sst2:accuracy", "cola:matthews",
        "stsb:spearman", "mrpc:f1", "rte:accuracy",
    ),
    "electra": _average(
        "Clark et al., 2020, and Jiang et al., 2020 (ConvBERT): eight tasks, accuracy of MRPC and QQP, no WNLI",
        "cola:matthews", "sst2:accuracy", "mrpc:accuracy", "stsb:spearman", "qqp:accuracy", "mnli:accuracy",
        "qnli:accuracy", "rte:accuracy",
    ),
    "distilbert": _average(
        "Sanh et al., 2019, table 1: nine tasks with WNLI; the mean of Pearson and Spearman for STS-B, F1 of MRPC",
        "cola:matthews", "mnli:accuracy", "mrpc:f1", "qnli:accuracy", "qqp:accuracy", "rte:accuracy", "sst2:accuracy",
        "stsb:pearson+stsb:spearman", "wnli:accuracy",
    ),
    "glue": _average(
        "gluebenchmark.com: nine tasks with WNLI; tasks with two metrics, and MNLI with two parts, count once",
        "cola:matthews", "sst2:accuracy", "mrpc:f1+mrpc:accuracy", "stsb:pearson+stsb:spearman", "qqp:f1+qqp:accuracy",
        "mnli:accuracy+mnli_mismatched:accuracy", "qnli:accuracy", "rte:accuracy", "wnli:accuracy",
    ),
    "superglue": _average(
        "super.gluebenchmark.com: eight tasks; tasks with two metrics count once",
        "boolq:accuracy", "cb:accuracy+cb:macro_f1", "copa:accuracy", "multirc:f1+multirc:exact",
        "record:f1+record:exact", "superglue_rte:accuracy", "wic:accuracy", "wsc:accuracy",
    ),
}  # fmt: skip
