"""Search fields of the recipe on the development set with Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoderlab.config import Bounded, Count, parse_value, to_dict
from encoderlab.errors import ConfigError, Diverged, optional
from encoderlab.execution.workers import rank_and_size
from encoderlab.files import write_json
from encoderlab.interchange.finetuned import describe, folder_name
from encoderlab.messages import Say, silent
from encoderlab.model import Model
from encoderlab.tasks.data.task import Split, Task
from encoderlab.tasks.runs.protocol import Protocol, at_point, parse_values, split_assignments
from encoderlab.tasks.runs.trials import FRESH, Adjust, Origin, Program, Runs

STARTUP, ROUND = 10, 5  # trials that start together: the random ones at first, and those of each later round


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from ``low`` to ``high``: integers if both are, on a log scale if they span a factor of ten."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"range {self.low:g}:{self.high:g} is empty; give low:high")

    @property
    def logarithmic(self) -> bool:
        return self.low > 0 and self.high >= 10 * self.low


Space = Mapping[str, Range | tuple[Any, ...]]  # by the path of a field: a range, or values to choose from


@dataclass(frozen=True, kw_only=True)
class Search(Bounded):
    """A search space and the number of points to try.

    Raises:
        ConfigError: no trials.
    """

    space: Space
    trials: Count = 20

    def points(self) -> list[dict[str, Any]]:
        """Points with every value to choose from and both ends of every range, of each field in turn."""
        ends = {
            name: (values.low, values.high) if isinstance(values, Range) else values
            for name, values in self.space.items()
        }
        first = {name: values[0] for name, values in ends.items()}
        return [{**first, name: value} for name, values in ends.items() for value in values]


def parse_space(words: Sequence[str]) -> dict[str, Range | tuple[Any, ...]]:
    """``["lr=1e-5:1e-3", "batch=16,32"]`` as a space.

    Raises:
        ConfigError: a word without ``=`` or values, two with one field, a range without two numbers, or an empty one.
    """
    space: dict[str, Range | tuple[Any, ...]] = {}
    expected = "field=low:high or field=value,value, such as lr=1e-5:1e-3"
    for word, (field, values) in zip(words, split_assignments(words, "--tune", expected), strict=True):
        low, colon, high = values.partition(":")
        ends = (parse_value(low), parse_value(high)) if colon else ()
        if any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in ends):
            raise ConfigError(f"--tune {word}: a range has two numbers; expected {expected}")
        space[field] = Range(low=ends[0], high=ends[1]) if ends else parse_values(values)
    return space


def tune(
    protocol: Protocol,
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    out: Path,
    search: Search,
    *,
    origin: Origin = FRESH,
    adjust: Adjust = lambda recipe: recipe,
    say: Say = silent,
) -> Program[dict[str, Any]]:
    """The point with the best development score of all trials, which run with one seed and are stored in
    ``out/tune.json``.

    Only training and development examples are used. The search is deterministic for a seed, so an interrupted search
    reads its finished runs and continues. It does not depend on the number of processes either: the first
    :data:`STARTUP` points are drawn at random, then :data:`ROUND` at a time from the results so far. To score the point
    over seeds, give it to :func:`encoderlab.tasks.runs.trials.program` as a grid of one point; ``origin`` and
    ``adjust`` are explained there.

    Raises:
        ConfigError: a value out of range for its field.
        MissingDependency: Optuna is not installed.
        Diverged: all trials diverged.
    """
    with optional("optuna", "tune", "searching hyperparameters"):
        import optuna
    base = adjust(protocol.recipe_for(task, model, len(splits["train"])))
    for point in search.points():  # refuse a wrong one before any training
        at_point(base, point, where="--tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=base.seed, n_startup_trials=STARTUP)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    runs = Runs.of(protocol, model, task, out, origin, search="optuna")
    seen = {name: splits[name] for name in ("train", "dev")}
    say(f"{task.name}: {protocol.says(base, model, len(splits['train']))}")
    tried: list[dict[str, Any]] = []
    while len(tried) < search.trials:
        asked = [study.ask() for _ in range(min(ROUND if tried else STARTUP, search.trials - len(tried)))]
        points = [{name: _suggest(trial, name, values) for name, values in search.space.items()} for trial in asked]
        by_folder = {folder_name(point): point for point in points}  # one may be drawn twice
        results = yield [
            runs.attempt(at_point(base, point, where="--tune"), seen, folder, f"{task.name}: {describe(point)}")
            for folder, point in by_folder.items()
        ]
        result_by_folder = dict(zip(by_folder, results, strict=True))
        for trial, point in zip(asked, points, strict=True):
            result = result_by_folder[folder_name(point)]
            if isinstance(result, str):
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                tried.append({"point": point, "failed": result})
            else:
                score = result.scores["dev"][task.metric]
                study.tell(trial, score)
                tried.append({"point": point, "dev": score})
        if rank_and_size()[0] == 0:  # of several processes, the first one writes
            write_json(out / "tune.json", {"space": to_dict(search.space), "trials": tried})
    ended = [entry for entry in tried if "dev" in entry]
    if not ended:
        raise Diverged(f"{task.name}: all {search.trials} trials diverged; search lower rates")
    return max(ended, key=lambda entry: entry["dev"])["point"]


def _suggest(trial: Any, name: str, values: Range | tuple[Any, ...]) -> Any:
    if isinstance(values, tuple):
        return trial.suggest_categorical(name, values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(name, values.low, values.high, log=values.logarithmic)
    # Rounded to three digits, because the value becomes part of a folder's name.
    return float(f"{trial.suggest_float(name, values.low, values.high, log=values.logarithmic):.3g}")
