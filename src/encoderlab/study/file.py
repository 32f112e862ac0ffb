"""The file of a study: arms, budget, seeds and measures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from encoderlab.config import Bounded, Count, NonNegative, Positive, PositiveShare, flatten, from_dict, read_file
from encoderlab.errors import ConfigError, nearest

Unit = Literal["steps", "tokens", "flops", "hours"]
UNITS: tuple[Unit, ...] = get_args(Unit)
LONGEST = 255  # bytes of a folder's name


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One setting that is compared: a recipe with some of its fields set, at ``budgets`` alone (none: at all).

    Missing fields are the study's.
    """

    recipe: str | None = None
    corpus: str | None = None
    set: dict[str, Any] = field(default_factory=dict)
    budgets: tuple[Positive, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tune(Bounded):
    """A field that is searched for every arm and budget, with the same number of trials for each.

    Args:
        field: of the recipe.
        factors: multiples of the value in the arm's recipe.
        share: of the budget for a trial. The value of the trial with the lowest held-out loss is taken; of detectors of
            replaced tokens, the one whose discriminator has it on the same text (:mod:`encoderlab.study.detectors`).
    """

    field: str = "optim.lr"
    factors: tuple[Positive, ...] = (0.5, 1.0, 2.0)
    share: PositiveShare = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.factors or len(set(self.factors)) < len(self.factors):
            raise ConfigError(f"tune.factors {list(self.factors)}; give different numbers above 0")


@dataclass(frozen=True, kw_only=True)
class Pairs(Bounded):
    """Accuracy on minimal pairs: all of ``data``, or a sample of ``size``, at ``budgets`` alone (none: at all)."""

    kind: Literal["pairs"] = "pairs"
    name: str = "minimal pairs"
    data: Annotated[tuple[str, ...], Field(min_length=1)]
    size: Count | None = None
    budgets: tuple[Positive, ...] = ()

    @property
    def title(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Finetune(Bounded):
    """The development score after full fine-tuning on a task, the mean over ``seeds``.

    Args:
        task: a benchmark's name, with ``data`` the folder of its files; or a file of labelled data, of which a tenth
            is held out to score on, if ``dev`` is not another file.
        protocol: how it is fine-tuned.
        set: fields of the recipe of fine-tuning; ``{frozen: {}}`` trains on the activations of the frozen encoder.
        budgets: at which runs are measured; none: at all.
    """

    kind: Literal["finetune"] = "finetune"
    name: str = ""
    task: str
    data: str | None = None
    dev: str | None = None
    protocol: str = "plain"
    seeds: Count = 1
    set: dict[str, Any] = field(default_factory=dict)
    budgets: tuple[Positive, ...] = ()

    @property
    def title(self) -> str:
        return self.name or Path(self.task).name


@dataclass(frozen=True, kw_only=True)
class Probe(Finetune):
    """A linear map from the activations of a layer of the frozen encoder to the labels of a task."""

    kind: Literal["probe"] = "probe"  # type: ignore[assignment]
    layers: str = "last"

    @property
    def title(self) -> str:
        return self.name or f"{super().title} probe"


Measure = Pairs | Finetune | Probe
KINDS: dict[str, type[Measure]] = {"pairs": Pairs, "finetune": Finetune, "probe": Probe}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim to test: arm ``better`` is better ``than`` another arm ``by`` a measure (None: by every one).

    ``text`` is the claim, and ``source`` says who makes it and with which numbers.
    """

    better: str
    than: str
    by: str | None = None
    text: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Study(Bounded):
    """The content of a study's file.

    Args:
        corpus, recipe, set: defaults for arms without their own.
        budget: one unit (``flops``, ``tokens``, ``steps``, ``hours``) with one amount or several; also ``parameters``,
            the largest number for an arm.
        seeds: number of seeds, starting at 1, or a list.
        arms: by name.
        vary: values of fields by path; every combination is an arm, for each of ``arms`` if there are any.
        tune: the field to search for every arm; null searches nothing.
        measures: further measures; the held-out loss, bits per byte, speed and memory are always measured.
        baseline: every other arm is compared with this one; by default the first. ``claims`` list other comparisons.
        margins: by measure, the least difference that matters, of scores as a share; if the interval excludes it, a
            claim does not hold.
        threads: of one run. The last bits of its results depend on it, so it belongs to the study.
    """

    name: str = ""
    corpus: str | None = None
    recipe: str | None = None
    set: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, Any]
    seeds: int | tuple[int, ...] = 3
    arms: dict[str, Any] = field(default_factory=dict)
    vary: dict[str, Any] = field(default_factory=dict)
    tune: Tune | None = Tune()
    measures: tuple[Measure, ...] = ()
    baseline: str | None = None
    claims: tuple[Claim, ...] = ()
    margins: dict[str, NonNegative] = field(default_factory=dict)
    threads: Count = 1

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        return tuple(range(1, self.seeds + 1)) if isinstance(self.seeds, int) else self.seeds

    @property
    def unit(self) -> Unit:
        return next(unit for unit in UNITS if unit in self.budget)

    @property
    def unit_name(self) -> str:
        """The unit as readers write it."""
        return "FLOPs" if self.unit == "flops" else self.unit

    @property
    def amounts(self) -> tuple[float, ...]:
        """The budgets, ascending."""
        values = self.budget[self.unit]
        return tuple(sorted(map(float, values if isinstance(values, (list, tuple)) else [values])))


def read(path: Path) -> tuple[Study, dict[str, Arm]]:
    """The study in a YAML or JSON file, and its arms by name. Relative paths start at the file's folder.

    Raises:
        ConfigError: a key is wrong.
    """
    where = str(path)
    study = from_dict(Study, read_file(path), where=where)
    _check_budget(study, where)
    seeds = study.seed_numbers
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{where}: seeds {study.seeds}, expected at least 1 seed, each once")
    arms = _arms(study, where)
    _check_fields(study, arms, where)
    for name in [study.baseline, *(name for claim in study.claims for name in (claim.better, claim.than))]:
        if name is not None and name not in arms:
            raise ConfigError(f"{where}: there is no arm {name!r}{nearest(name, arms)}")
    if same := [claim.than for claim in study.claims if claim.better == claim.than]:
        raise ConfigError(f"{where}: a claim compares {same[0]!r} with itself; name two arms")
    titles = [measure.title for measure in study.measures]
    known = ("loss", "bits per byte", *titles)
    if len(set(known)) < len(known):
        raise ConfigError(f"{where}: measures {titles}: give each a name of its own, not loss or bits per byte")
    chosen = {f"measure {measure.title!r}": measure.budgets for measure in study.measures}
    for what, budgets in (chosen | {f"arm {name!r}": arm.budgets for name, arm in arms.items()}).items():
        if other := sorted(set(budgets) - set(study.amounts)):
            has = ", ".join(f"{amount:g}" for amount in study.amounts)
            raise ConfigError(f"{where}: {what} is of budget {other[0]:g}; the study has {has}")
    for amount in study.amounts:
        if all(arm.budgets and amount not in arm.budgets for arm in arms.values()):
            raise ConfigError(f"{where}: no arm is of budget {amount:g}; add it to the budgets of one, or leave it out")
    folders = [measure.title for measure in study.measures if isinstance(measure, Finetune)]
    for title in folders:
        _check_folder("measure", title, where)
    if len({folder_name(title) for title in folders}) < len(folders):
        raise ConfigError(f"{where}: measures {folders} differ only in spaces; give each a name of its own")
    for name in (*study.margins, *(claim.by for claim in study.claims if claim.by)):
        if name not in known:
            raise ConfigError(f"{where}: there is no measure {name!r}{nearest(name, known)}")
    for name, margin in study.margins.items():
        if name in titles and margin >= 1:
            raise ConfigError(f"{where}: margins.{name} is {margin:g}; scores are shares, so give 0.01 for a point")
    return study, arms


def _check_budget(study: Study, where: str) -> None:
    units = [unit for unit in UNITS if unit in study.budget]
    if unknown := sorted(set(study.budget) - {*UNITS, "parameters"}):
        raise ConfigError(f"{where}: unknown key 'budget.{unknown[0]}'{nearest(unknown[0], (*UNITS, 'parameters'))}")
    if len(units) != 1:
        raise ConfigError(f"{where}: budget has {', '.join(units) or 'no unit'}; give one of {', '.join(UNITS)}")
    for key, value in study.budget.items():
        amounts = value if isinstance(value, (list, tuple)) else [value]
        several = key != "parameters"
        fits = all(isinstance(one, (int, float)) and not isinstance(one, bool) and 0 < one < 1e40 for one in amounts)
        if not amounts or not fits or len(set(amounts)) < len(amounts) or not several and amounts != [value]:
            raise ConfigError(f"{where}: budget.{key} is {value!r}, expected numbers above 0, each once")
        if key == "steps" and any(one % 1 for one in amounts):
            raise ConfigError(f"{where}: budget.steps is {value!r}, expected whole numbers")


def _overlap(one: str, other: str) -> bool:
    """Whether two paths are of one field, or one of them is of a field inside the other's."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _arms(study: Study, where: str) -> dict[str, Arm]:
    """The arms of the file, times the combinations of what varies."""
    arms = {
        str(name): from_dict(Arm, data if data is not None else {}, where=f"{where}: arms.{name}")
        for name, data in study.arms.items()
    }
    for path, values in study.vary.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: vary.{path} is {values!r}, expected a list of values")
    labels = _labels(list(study.vary))
    combined: dict[str, Arm] = {}
    named = [list(zip(_short_names(values), values, strict=True)) for values in study.vary.values()]
    for chosen in itertools.product(*named):
        word = " ".join(f"{labels[path]}={name}" for path, (name, _) in zip(study.vary, chosen, strict=True))
        fields = {path: value for path, (_, value) in zip(study.vary, chosen, strict=True)}
        for name, arm in (arms or {"": Arm()}).items():
            title = " ".join(filter(None, (name, word)))
            if title in combined:
                raise ConfigError(f"{where}: two arms are called {title!r}; give each combination once")
            combined[title] = replace(arm, set={**arm.set, **fields})
    if not study.vary:
        combined = arms
    varied: dict[str, str] = {}  # fields that vary, and the path of each under vary
    for path, values in study.vary.items():
        here = {field for value in values for field in flatten({path: value})}
        for one, other in itertools.product(sorted(here), varied):
            if _overlap(one, other):
                raise ConfigError(
                    f"{where}: vary.{path} and vary.{varied[other]} both set {one!r}; leave it out of one"
                )
        varied |= dict.fromkeys(here, path)
    if study.tune and any(_overlap(study.tune.field, field) for field in varied):
        raise ConfigError(
            f"{where}: {study.tune.field!r} varies and is tuned, so arms would run with other values than their names "
            "say; write tune: null, or leave it out of vary"
        )
    for name, arm in arms.items():
        for path in flatten(arm.set):
            if any(_overlap(path, field) for field in varied):
                raise ConfigError(f"{where}: arm {name!r} sets {path!r}, which also varies; leave it out of one")
    if not combined or combined == {"": Arm()}:
        raise ConfigError(f"{where}: nothing to compare; give arms, or fields that vary")
    if len({folder_name(name) for name in combined}) < len(combined):
        raise ConfigError(f"{where}: arms {list(combined)} differ only in spaces; give each a name of its own")
    for name, arm in combined.items():
        _check_folder("arm", name, where)
        for missing in ("recipe", "corpus"):
            if getattr(arm, missing) is None and getattr(study, missing) is None:
                raise ConfigError(f"{where}: arm {name!r} has no {missing}; give it one, or one for the study")
    return combined


def folder_name(name: str) -> str:
    """The folder of an arm or a measure."""
    return name.replace(" ", "_")


def _check_folder(what: str, name: str, where: str) -> None:
    letters = r"[^/\\\x00-\x1f\ud800-\udfff]"
    fits = re.fullmatch(rf"(?!\.){letters}{{1,80}}", name) and name == name.strip()
    if not fits or len(name.encode()) > LONGEST:
        raise ConfigError(f"{where}: {what} {name!r}: give a name of 1 to 80 letters that can name a folder")


def _check_fields(study: Study, arms: Mapping[str, Arm], where: str) -> None:
    """Refuse fields of recipes that the study itself gives to every run."""
    fields = {f"arm {name!r}": flatten({**study.set, **arm.set}) for name, arm in arms.items()}
    fields["tune"] = {study.tune.field: None} if study.tune else {}
    for what, paths in fields.items():
        for path in paths:
            if own := {"seed": "seeds", "budget": "budget"}.get(path.partition(".")[0]):
                raise ConfigError(f"{where}: {what} sets {path!r}, which every run has from {own!r}; leave it out")


def _labels(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path, or more parts if those are equal."""
    labels = {}
    for path in paths:
        parts = path.split(".")
        endings = (f".{'.'.join(parts[-n:])}" for n in range(1, len(parts)))
        alone = (n for n, ending in enumerate(endings, 1) if sum(f".{p}".endswith(ending) for p in paths) == 1)
        size = next(alone, len(parts))
        labels[path] = ".".join(parts[-size:])
    return labels


def _short_names(values: Sequence[Any]) -> list[str]:
    """Values of a field as parts of names; options of one kind are told apart by their fields."""
    names = [_short(value) for value in values]
    return names if len(set(names)) == len(names) else [_short(value, whole=True) for value in values]


def _short(value: Any, *, whole: bool = False) -> str:
    if isinstance(value, Mapping):
        if "kind" in value and not whole:
            return str(value["kind"])
        return "-".join(str(item) if key == "kind" else f"{key}-{_short(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "+".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else re.sub(r"[^\w.\-]", "-", str(value))
