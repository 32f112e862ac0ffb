"""A search over fields of the recipe by Optuna's tree-structured Parzen estimator, on the development set alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from encoderlab.config import parse_value
from encoderlab.errors import ConfigError, Diverged, MissingDependency
from encoderlab.files import write_json
from encoderlab.model import Model
from encoderlab.tasks.base import Split, Task
from encoderlab.tasks.encodings import Encodings
from encoderlab.tasks.finetune import Recipe, finetune
from encoderlab.tasks.objective import model_hash
from encoderlab.tasks.protocol import Protocol, at_point, spelled_out
from encoderlab.tasks.trials import describe, folder_name


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from ``low`` to ``high``: whole ones if both are, by their logarithm if they span a factor of ten."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"range {self.low:g}:{self.high:g} is empty; give low:high")

    @property
    def logarithmic(self) -> bool:
        return self.low > 0 and self.high >= 10 * self.low


def parse_space(words: Sequence[str]) -> dict[str, Range | tuple[Any, ...]]:
    """``["lr=1e-5:1e-3", "batch=16,32"]``: a range or a list of values for each field.

    Raises:
        ConfigError: a word without ``=`` or values.
    """
    space: dict[str, Range | tuple[Any, ...]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not name or not values:
            raise ConfigError(f"--tune {word}: expected field=low:high or field=value,value, such as lr=1e-5:1e-3")
        if ":" in values:
            low, _, high = values.partition(":")
            space[spelled_out(name)] = Range(low=parse_value(low), high=parse_value(high))
        else:
            space[spelled_out(name)] = tuple(parse_value(value) for value in values.split(","))
    return space


def tune(
    protocol: Protocol,
    model: Model,
    task: Task,
    splits: Mapping[str, Split],
    out: Path,
    space: Mapping[str, Range | tuple[Any, ...]],
    *,
    trials: int = 20,
    after: Sequence[str] = (),
    trained: Mapping[str, Any] | None = None,
    adjust: Callable[[Recipe], Recipe] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The point of ``space`` that validates best in ``trials`` runs with one seed; all are in ``out/tune.json``.

    Only training and development examples are looked at. ``after``, ``trained``: see
    :func:`encoderlab.tasks.trials.run`.

    Deterministic for a seed, so a search that was interrupted reads its finished runs and goes on. Give the point to
    :func:`encoderlab.tasks.trials.run` as a grid of one point, which scores it over seeds.

    Raises:
        ConfigError: no trials, or a value that its field cannot have.
        MissingDependency: Optuna is not installed.
        Diverged: no trial ended.
    """
    if trials < 1:
        raise ConfigError(f"--trials {trials} is not positive; give at least 1")
    try:
        import optuna
    except ImportError:
        raise MissingDependency("optuna", "tune", "searching hyperparameters") from None
    base = protocol.recipe_for(task, model)
    base = adjust(base) if adjust is not None else base
    for name, values in space.items():  # a wrong one is refused before any training
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            at_point(base, {name: value}, where="--tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=base.seed))
    about = {"protocol": protocol.name, "model": model_hash(model), "search": "optuna", "after": list(after)}
    seen = {name: splits[name] for name in ("train", "dev")}
    encodings = Encodings()
    tried: list[dict[str, Any]] = []
    for _ in range(trials):
        trial = study.ask()
        point = {name: _suggest(trial, name, values) for name, values in space.items()}
        say(f"{task.name}: {describe(point)}")
        recipe = replace(at_point(base, point, where="--tune"), seed=base.seed)
        try:
            folder = out / folder_name(point)
            found = finetune(model, task, seen, recipe, folder, about=about, encodings=encodings, trained=trained)
            score = found.scores["dev"][task.metric]
            study.tell(trial, score)
            tried.append({"point": point, "dev": score})
        except Diverged as error:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            tried.append({"point": point, "failed": str(error)})
        write_json(out / "tune.json", {"space": _plain(space), "trials": tried})
    ended = [entry for entry in tried if "dev" in entry]
    if not ended:
        raise Diverged(f"{task.name}: all {trials} trials diverged; search lower rates")
    return max(ended, key=lambda entry: entry["dev"])["point"]


def _suggest(trial: Any, name: str, values: Range | tuple[Any, ...]) -> Any:
    if isinstance(values, tuple):
        return trial.suggest_categorical(name, values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(name, values.low, values.high, log=values.logarithmic)
    # Three digits are enough, and name a folder.
    return float(f"{trial.suggest_float(name, values.low, values.high, log=values.logarithmic):.3g}")


def _plain(space: Mapping[str, Range | tuple[Any, ...]]) -> dict[str, Any]:
    return {
        name: {"low": values.low, "high": values.high} if isinstance(values, Range) else list(values)
        for name, values in space.items()
    }
