"""The cells of a study: its runs, their recipes and their cost; a study that cannot run is refused before any work."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from encoderlab import recipes
from encoderlab.config import flatten, override, value_at
from encoderlab.corpus.shards import Corpus
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import sha256
from encoderlab.measure.estimate import Estimate, estimate, teacher_of
from encoderlab.measure.pairs.evaluate import survey
from encoderlab.measure.pairs.reading import find
from encoderlab.measure.pairs.scorers import scorers_of
from encoderlab.model import count_parameters
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.study.file import Arm, Finetune, Measure, Pairs, Probe, Study, folder_name, read
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.infer import Given
from encoderlab.tasks.data.sources import Benchmark, described_source
from encoderlab.tasks.data.splits import check_splits, usable_splits
from encoderlab.tasks.data.task import Split, Task
from encoderlab.tasks.runs.protocol import at_point
from encoderlab.tasks.runs.published import protocol
from encoderlab.train.checks import check
from encoderlab.train.corpus_data import corpus_data
from encoderlab.train.networks import bare_objective, fit, full_operations
from encoderlab.train.recipe import Budget, Recipe

log = logging.getLogger(__name__)

VALIDATIONS = 5  # per run, if the study does not set it
Surveyed = dict[tuple[tuple[Path, ...], str], float]
"""The least length of a sentence that minimal pairs were found to fit, by files and tokenizer: 67,000 take seconds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One run. ``trial`` is the value that it tries for the tuned field; None for a run that is compared."""

    arm: str
    amount: float
    seed: int
    trial: float | None
    recipe: Recipe
    corpus: Path
    name: str


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A study and everything that follows from its file. Its paths are relative to ``base``."""

    study: Study
    arms: Mapping[str, Arm]
    base: Path

    @classmethod
    def read(cls, path: Path) -> StudyPlan:
        """The plan of a study's file, checked: every cell can run and be measured.

        Raises:
            ConfigError, DataError: names the arm or the measure that cannot.
        """
        study, arms = read(path)
        plan = cls(study=study, arms=arms, base=path.resolve().parent)
        plan.check()
        return plan

    # Recipes

    @cached_property
    def _recipes(self) -> dict[str, Recipe]:
        """The recipe of every arm at the largest budget, before tuning."""
        study, common, by_arm = self.study, {}, {}
        budget = Budget(amount=study.amounts[-1], unit=study.unit)
        for name, arm in self.arms.items():
            base = arm.recipe or study.recipe or ""
            if base not in common:  # so that it warns once, not for every arm
                with _named(f"arm {name!r}"):
                    named = recipes.recipe(base)
                common[base] = override(named.for_budget(budget), flatten(study.set), where="set")
            recipe = override(common[base], flatten(arm.set), where=f"arm {name!r}")
            by_arm[name] = replace(recipe, budget=budget)
        return by_arm

    def recipe(self, arm: str, amount: float, seed: int, value: float | None = None, *, trial: bool = False) -> Recipe:
        """The recipe of an arm at a budget, of which a ``trial`` has a share; ``value`` is for the tuned field."""
        tune = self.study.tune
        size = amount * tune.share if trial and tune else amount
        if self.study.unit == "steps":
            size = max(1, round(size))
        recipe = replace(self._recipes[arm], budget=Budget(amount=size, unit=self.study.unit), seed=seed)
        if value is not None and tune is not None:
            recipe = override(recipe, {tune.field: value}, where="tune")
        if "evaluation.every" not in {*flatten(self.study.set), *flatten(self.arms[arm].set)}:
            every = max(1, self._steps(arm, recipe) // VALIDATIONS)
            recipe = replace(recipe, evaluation=replace(recipe.evaluation, every=every))
        return recipe

    @cached_property
    def _operations(self) -> dict[str, float]:
        """FLOPs per token of every arm in its first phase."""
        costs = {}
        for arm, recipe in self._recipes.items():
            with _named(f"arm {arm!r}"):  # a teacher may be missing
                costs[arm] = full_operations(recipe, recipe.phases[0], teacher_of(recipe))
        return costs

    def _steps(self, arm: str, recipe: Recipe) -> int:
        """The approximate number of steps in the budget; if unknown, the usual distance of validations."""
        phase = recipe.phases[0]
        unit, amount = recipe.budget.unit, recipe.budget.amount
        if unit == "flops":
            amount /= max(self._operations[arm], 1.0)
        if unit == "hours":
            return VALIDATIONS * recipe.evaluation.every
        return int(amount if unit == "steps" else amount / (phase.rows * phase.length))

    @property
    def places(self) -> list[tuple[str, float]]:
        """Arms and budgets."""
        amounts = self.study.amounts
        return [
            (name, one) for name, arm in self.arms.items() for one in amounts if not arm.budgets or one in arm.budgets
        ]

    def arms_at(self, amount: float) -> list[str]:
        """The arms that are run with this budget."""
        return [arm for arm, one in self.places if one == amount]

    def corpus(self, arm: str) -> Path:
        return self.base / (self.arms[arm].corpus or self.study.corpus or "")

    def reads(self) -> list[Path]:
        """The corpora, and the files and folders of measures, that its runs read."""
        files = (file for measure in self.study.measures for file in _files(measure))
        return list(dict.fromkeys([*map(self.corpus, self.arms), *(self.base / file for file in files)]))

    @cached_property
    def data(self) -> dict[str, str]:
        """A hash of the data of every measure, by its title."""
        return {measure.title: data_hash(measure, self.base) for measure in self.study.measures}

    def measures(self, amount: float) -> list[Measure]:
        """The measures of runs with this budget."""
        return [measure for measure in self.study.measures if not measure.budgets or amount in measure.budgets]

    def base_value(self, arm: str) -> float:
        """The value of the tuned field in an arm's recipe."""
        assert self.study.tune is not None
        recipe = self.recipe(arm, self.study.amounts[0], 1)
        value = value_at(recipe, self.study.tune.field, where=f"arm {arm!r}: tune.field")
        if value == {}:  # there is no such field
            override(recipe, {self.study.tune.field: 1}, where=f"arm {arm!r}: tune.field")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value:
            raise ConfigError(
                f"arm {arm!r}: tune.field {self.study.tune.field!r} is {value!r}, expected a number above 0"
            )
        return float(value)

    # Cells

    @cached_property
    def trials(self) -> list[Cell]:
        """The runs that search the tuned field, the same number for every arm and budget, with the first seed."""
        tune = self.study.tune
        if tune is None:
            return []
        cells = []
        for arm, amount in self.places:
            base = self.base_value(arm)
            for factor in tune.factors:
                value = float(f"{base * factor:.6g}")
                with _named(f"arm {arm!r}, the trial of {tune.field} {value:g}"):
                    cells.append(self._cell(arm, amount, self.study.seed_numbers[0], value, trial=True))
        return cells

    @cached_property
    def detectors(self) -> dict[str, list[Cell]]:
        """The trials of each arm and budget that detect replaced tokens, whose discriminators are compared on the same
        text, by the name of the comparison.
        """
        groups: dict[str, list[Cell]] = {}
        for cell in self.trials:
            if isinstance(cell.recipe.objective, RTDSettings):
                groups.setdefault(f"trials/{self._folder(cell.arm, cell.amount)}/detectors", []).append(cell)
        return groups

    def cells(self, chosen: Mapping[tuple[str, float], float | None]) -> list[Cell]:
        """The runs to compare, with the values ``chosen`` by arm and budget; arms vary fastest, so that a study that is
        stopped early has whole comparisons. Arms and budgets without a choice are left out.
        """
        return [
            self._cell(arm, amount, seed, chosen[arm, amount])
            for amount in self.study.amounts
            for seed in self.study.seed_numbers
            for arm in self.arms
            if (arm, amount) in chosen
        ]

    def _cell(self, arm: str, amount: float, seed: int, value: float | None, *, trial: bool = False) -> Cell:
        """The run with ``value`` for the tuned field: one that is compared, or a ``trial``."""
        recipe, tune = self.recipe(arm, amount, seed, value, trial=trial), self.study.tune
        name, tried = self.cell_name(arm, amount, seed), None
        if trial and tune is not None:
            name, tried = f"trials/{self._folder(arm, amount)}/{tune.field.rpartition('.')[2]}-{value:g}", value
        return Cell(arm=arm, amount=amount, seed=seed, trial=tried, recipe=recipe, corpus=self.corpus(arm), name=name)

    def cell_name(self, arm: str, amount: float, seed: int) -> str:
        """The name of a run that is compared, and its folder within that of the study."""
        return f"cells/{self._folder(arm, amount)}/seed-{seed}"

    def _folder(self, arm: str, amount: float) -> str:
        return f"{folder_name(arm)}/{self.study.unit}-{amount:g}"

    # Checks

    def check(self) -> None:
        """Refuse a study with a cell that cannot run or be measured.

        Raises:
            ConfigError, DataError: names the cell.
        """
        tasks: dict[str, Task] = {}
        for measure in self.study.measures:
            if isinstance(measure, Finetune):
                with _named(f"measure {measure.title!r}"):
                    task, splits = labelled_data(measure, self.base, log.info)
                    check_splits(task, splits)
                tasks[measure.title] = task
        names = [cell.name for cell in (*self.cells(dict.fromkeys(self.places)), *self.trials)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(
                f"two runs would be called {twice}; budgets and factors must differ in their first six digits"
            )
        surveyed: Surveyed = {}
        for arm, amount in self.places:
            with _named(f"arm {arm!r} at {amount:g} {self.study.unit_name}"):
                self._check_arm(arm, amount, tasks, surveyed)

    def _check_arm(self, arm: str, amount: float, tasks: Mapping[str, Task], surveyed: Surveyed) -> None:
        study, path = self.study, self.corpus(arm)
        text = Corpus(path)
        tokenizer = text.tokenizer()
        if study.tune is not None:
            self.base_value(arm)
        recipe = self.recipe(arm, amount, study.seed_numbers[0])
        if recipe.evaluation.pairs is not None:
            raise ConfigError("evaluation.pairs is set; give minimal pairs under measures")
        check(recipe)
        recipe = fit(recipe, tokenizer)
        objective = bare_objective(recipe)
        if corpus_data(recipe, objective, path, tokenizer).validation is None:
            raise DataError(f"{path}: has no held-out text to compare by; build it with a larger validation share")
        models = objective.models()
        model = models["model"] if "model" in models else models["discriminator"]
        for one in models.values():
            one.tokenizer = tokenizer
        size = count_parameters(model.config)["total"]
        if size > (most := study.budget.get("parameters", float("inf"))):
            raise ConfigError(f"{size:,} parameters, budget.parameters is {most:,.0f}; make the model smaller")
        for measure in self.measures(amount):
            if isinstance(measure, Pairs):
                (scorer,) = scorers_of(model, models.get("generator"), official=True)
                files = tuple(find([self.base / place for place in measure.data]))
                longest = float("inf") if scorer.longest is None else scorer.longest
                known = surveyed.get(texts := (files, tokenizer.hash()))
                if known is None or longest < known:
                    survey(files, tokenizer, longest=scorer.longest)
                    surveyed[texts] = longest
            else:
                start = protocol(measure.protocol).recipe_for(tasks[measure.title], model)
                at_point(start, task_fields(measure), where=measure.title)

    def estimates(self) -> dict[tuple[str, float], Estimate]:
        """The cost of a run of every arm at every budget."""
        return {
            (arm, amount): estimate(fit(self.recipe(arm, amount, 1), Corpus(self.corpus(arm)).tokenizer()))
            for arm, amount in self.places
        }

    def fairness(self) -> list[str]:
        """Lines about what is equal for all arms and what differs."""
        study = self.study
        corpora = {Corpus(self.corpus(arm)).manifest.content for arm in self.arms}
        formats = {self.recipe(arm, study.amounts[0], 1).format.kind for arm in self.arms}
        same = "The same documents for every arm, in the same order for the same seed"
        remarks = [
            f"{same}." if len(corpora) == 1 else "The arms read different corpora; the order follows from the seed."
        ]
        if len(formats) > 1:
            remarks.append(f"They are packed into rows as each recipe has it: {', '.join(sorted(formats))}.")
        budgets = " or ".join(f"{amount:.3g}" for amount in study.amounts)
        seeds = ", ".join(map(str, study.seed_numbers))
        remarks.append(f"Every run has the same budget: {budgets} {study.unit_name}. Seeds of every arm: {seeds}.")
        for amount in study.amounts:
            if len(here := self.arms_at(amount)) < len(self.arms):
                remarks.append(f"At {amount:.3g} {study.unit_name} there are only {', '.join(here)}.")
        if study.tune is None:
            remarks.append("Nothing was tuned: every arm has the values of its recipe.")
        else:
            tune = study.tune
            remarks.append(
                f"{tune.field} was tuned for every arm and budget in the same way: {len(tune.factors)} trials "
                f"({', '.join(f'{factor:g}' for factor in tune.factors)} times the recipe's) at {tune.share:g} of the "
                "budget, the lowest held-out loss taken."
            )
            if self.detectors:
                remarks.append(
                    "Of arms that detect replaced tokens it is the discriminator's loss on the samples of the "
                    "generators of all the arm's trials."
                )
        return remarks


def task_fields(measure: Finetune) -> dict[str, Any]:
    """The fields of fine-tuning that a measure sets."""
    probe = {"frozen.layers": measure.layers, "frozen.lstm_layers": 0} if isinstance(measure, Probe) else {}
    return {**probe, **flatten(measure.set)}


def labelled_data(
    measure: Finetune, base: Path, say: Callable[[str], object] = log.debug
) -> tuple[Task, dict[str, Split]]:
    """The task of a measure and its splits; ``say`` gets a line about what is inferred of a file of labelled data.

    Raises:
        ConfigError, DataError: it names no benchmark and no file of labelled data, or they cannot be read.
    """
    data, dev = (None if name is None else base / name for name in (measure.data, measure.dev))
    if data is None and suites.find(measure.task):
        raise ConfigError(f"{measure.task} is a benchmark; give the folder of its files as data")
    source = described_source(measure.task if data else str(base / measure.task), data, Given())
    if isinstance(source, Benchmark):
        if dev is not None:
            raise ConfigError(f"{measure.task} is a benchmark with known files; leave out dev")
        return source.task, usable_splits(source.task, source.folder)
    return source.training(Given(), say, dev=dev)


def _files(measure: Measure) -> list[str]:
    """The files and folders that a measure reads."""
    if isinstance(measure, Pairs):
        return list(measure.data)
    return [name for name in (measure.data or measure.task, measure.dev) if name]


def data_hash(measure: Measure, base: Path) -> str:
    """The hash of the files that a measure reads."""
    if isinstance(measure, Pairs):
        hashes = [sha256(path) for path in find([base / place for place in measure.data])]
    else:
        _, splits = labelled_data(measure, base)
        hashes = [f"{name} {split.sha256}" for name, split in splits.items()]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """A context in which errors name the cell."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(f"{name}: {error}") from None
