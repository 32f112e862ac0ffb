"""The results of a study: scores by arm, budget and seed, comparisons with verdicts, and scaling of losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from encoderlab.corpus.shards import Corpus
from encoderlab.measure.report import interval
from encoderlab.study.file import Claim
from encoderlab.study.plan import Cell, StudyPlan
from encoderlab.study.statistics import Comparison, PowerLaw, compare, holm, power_law, verdict
from encoderlab.train.evidence import is_number

LOWER = ("loss", "bits per byte")  # is better


def at_edge(chosen: float | None, tried: Sequence[tuple[float, float | None]]) -> bool:
    """Whether the chosen value is the lowest or the highest of several that were tried, so a better one may exist."""
    values = [value for value, _ in tried]
    return chosen is not None and len(values) > 1 and chosen in (min(values), max(values))


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of a study's cells; None for a cell without a result.

    Args:
        chosen: the value of the tuned field, by arm and budget.
        tried: the values that were tried and their held-out losses, None of a trial that failed.
        trials: the results of the trials and of the comparisons of their detectors, by name.
    """

    plan: StudyPlan
    chosen: Mapping[tuple[str, float], float | None]
    tried: Mapping[tuple[str, float], Sequence[tuple[float, float | None]]]
    cells: Mapping[Cell, dict[str, Any] | None]
    trials: Mapping[str, dict[str, Any]]

    @property
    def fairness(self) -> list[str]:
        said = self.plan.fairness()
        if self.comparisons:
            said.append(
                f"{len(self.comparisons)} comparisons, paired by seed: 95% intervals of Student's t, p values "
                "corrected for their number (Holm)."
            )
        return said

    @property
    def missing(self) -> list[str]:
        """Names of trials and cells without a result, including those whose tuned value is unknown."""
        needed = {cell.name: cell for cell in self.plan.trials}
        needed |= {name: cells[0] for name, cells in self.plan.detectors.items()}
        trials = {name: cell for name, cell in needed.items() if name not in self.trials}
        waiting = {(cell.arm, cell.amount) for cell in trials.values()}
        return [
            *trials,
            *(cell.name for cell, result in self.cells.items() if result is None),
            *(self.plan.cell_name(*place, seed) for place in waiting for seed in self.plan.study.seed_numbers),
        ]

    @property
    def failed(self) -> dict[str, str]:
        """Errors by the name of the cell or trial."""
        every = {**self.trials, **{cell.name: result for cell, result in self.cells.items() if result is not None}}
        return {name: result["error"] for name, result in every.items() if result["status"] == "failed"}

    @property
    def done(self) -> dict[Cell, dict[str, Any]]:
        return {cell: result for cell, result in self.cells.items() if result and result["status"] == "done"}

    @cached_property
    def measures(self) -> list[str]:
        """Names of the measures, those of the loss first."""
        names = [measure.title for measure in self.plan.study.measures]
        return [name for name in (*LOWER, *names) if any(self.scores(arm, a, name) for arm, a in self.plan.places)]

    def scores(self, arm: str, amount: float, measure: str) -> dict[int, float]:
        """Scores by seed."""
        return {
            cell.seed: float(result["scores"][measure])
            for cell, result in self.done.items()
            if (cell.arm, cell.amount) == (arm, amount) and is_number(result["scores"].get(measure))
        }

    def number(self, arm: str, amount: float, name: str) -> float | None:
        """The mean over seeds of a number such as ``flops``; None without any."""
        numbers = [
            result["numbers"][name]
            for cell, result in self.done.items()
            if (cell.arm, cell.amount) == (arm, amount) and is_number(result["numbers"].get(name))
        ]
        return sum(numbers) / len(numbers) if numbers else None

    def mean(self, arm: str, amount: float, measure: str) -> tuple[float, float] | None:
        """Mean over seeds and half its 95% interval; None without scores."""
        scores = list(self.scores(arm, amount, measure).values())
        return interval(scores) if scores else None

    # Comparisons

    @cached_property
    def _claims(self) -> list[tuple[str, str, str]]:
        """The better arm, the other one and the measure of every claim."""
        study = self.plan.study
        baseline = study.baseline or next(iter(self.plan.arms))
        others = [arm for arm in self.plan.arms if arm != baseline]
        claims = study.claims or tuple(Claim(better=arm, than=baseline) for arm in others)
        every = ((one.better, one.than, by) for one in claims for by in self._measures_of(one))
        return list(dict.fromkeys(every))  # one that is named twice is one test

    def _measures_of(self, claim: Claim) -> list[str]:
        """The measure that a claim names, or every one; bits per byte are the loss in other units, not another
        comparison, where losses can be compared.
        """
        if claim.by:
            return [claim.by]
        twice = "loss" in self.measures and self._obstacle(claim.better, claim.than, "loss") is None
        return [name for name in self.measures if not (twice and name == "bits per byte")]

    def _obstacle(self, one: str, two: str, measure: str) -> str | None:
        """Why losses of two arms cannot be compared; None if they can.

        Losses must be of the same text and the same kind of prediction; losses per token also need the same tokens, so
        the same corpus.
        """
        if measure not in LOWER:
            return None
        asked = [{result["asked"] for cell, result in self.done.items() if cell.arm == arm} for arm in (one, two)]
        if len(asked[0] | asked[1]) > 1:
            return "they predict different things of the text"
        corpora = {self.plan.corpus(arm).resolve() for arm in (one, two)}
        if measure == "loss":
            return "their corpora differ" if len(corpora) > 1 else None
        texts = {(text.num_documents, text.num_bytes) for text in (Corpus(path, "validation") for path in corpora)}
        return "their held-out texts differ" if len(texts) > 1 else None

    @cached_property
    def not_compared(self) -> list[str]:
        """Claims that cannot be judged, and why; a line for all measures of a pair of arms."""
        compared = {(comparison.better, comparison.than, comparison.by) for comparison in self.comparisons}
        measures: dict[tuple[str, str, str], list[str]] = {}
        for better, than, by in self._claims:
            why = self._obstacle(better, than, by)
            if why is None and (better, than, by) not in compared:
                why = "no seed has results of both"
            if why:
                measures.setdefault((better, than, why), []).append(by)
        return [f"{better} and {than} by {' and '.join(by)}: {why}" for (better, than, why), by in measures.items()]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """All comparisons that share at least one seed, corrected as one family."""
        pairs: list[tuple[tuple[str, str, str], float, list[float]]] = []
        for better, than, by in self._claims:
            if self._obstacle(better, than, by):
                continue
            for amount in self.plan.study.amounts:
                one, two = (self.scores(arm, amount, by) for arm in (better, than))
                sign = -1 if by in LOWER else 1
                if seeds := sorted(one.keys() & two.keys()):
                    pairs.append(((better, than, by), amount, [sign * (one[seed] - two[seed]) for seed in seeds]))
        compared = []
        for (better, than, by), amount, differences in pairs:
            numbers: dict[str, Any] = compare(differences, len(pairs))
            compared.append(
                Comparison(better=better, than=than, by=by, amount=amount, seeds=len(differences), **numbers)
            )
        adjusted = holm([comparison.p for comparison in compared])
        margins = self.plan.study.margins
        return [
            replace(
                comparison,
                adjusted=p,
                verdict=verdict(comparison.difference, comparison.high, p, margins.get(comparison.by)),
            )
            for comparison, p in zip(compared, adjusted, strict=True)
        ]

    @cached_property
    def scaling(self) -> dict[str, PowerLaw]:
        """The power law of each arm's loss in its FLOPs, if there are three budgets or more."""
        laws = {}
        for arm in self.plan.arms:
            points = [
                (result["numbers"]["flops"], result["scores"]["loss"])
                for cell, result in self.done.items()
                if cell.arm == arm and is_number(result["scores"].get("loss"))
            ]
            budgets = {cell.amount for cell in self.done if cell.arm == arm}
            law = power_law(*zip(*points, strict=True)) if points and len(budgets) > 2 else None  # type: ignore[misc]
            if law is not None:
                laws[arm] = law
        return laws
