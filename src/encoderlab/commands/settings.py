"""Options of several verbs: numbers, labelled files of the user, and fields of a recipe.

Fields are set in this order: defaults < recipe < file < environment < command line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from encoderlab.errors import ConfigError
from encoderlab.files import VARIABLES

if TYPE_CHECKING:
    from encoderlab.tasks.data.infer import Given

T = TypeVar("T")
PREFIX = "ENCODERLAB_"

Set = Annotated[
    list[str] | None,
    Parameter(name="--set", help="Set a field of the recipe, such as --set optim.lr=3e-4 (repeatable)."),
]
Config = Annotated[
    list[Path] | None,
    Parameter(name="--config", help="YAML or JSON file with fields of the recipe (repeatable; later files win)."),
]


def _where(fits: Callable[[float], bool], remedy: str) -> Parameter:
    """Refuse other numbers; :mod:`encoderlab.commands.usage` adds the option to the message."""

    def check(kind: Any, value: float | None) -> None:
        if value is not None and not fits(value):
            raise ValueError(f"is {value:g}; give {remedy}")

    return Parameter(validator=check)


Count = Annotated[int, _where(lambda count: count >= 1, "at least 1")]
CountOrZero = Annotated[int, _where(lambda count: count >= 0, "at least 0")]
Amount = Annotated[float, _where(lambda amount: 0 < amount < math.inf, "a number above 0")]
Share = Annotated[float, _where(lambda share: 0 <= share <= 1, "a share from 0 to 1")]
AmountOrZero = Annotated[float, _where(lambda amount: 0 <= amount < math.inf, "0, or a number above it")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """What a labelled file of the user holds.

    Parameters
    ----------
    form
        Kind of task in your own file, if it cannot be inferred: classification, regression, multilabel,
        tagging, span or choice.
    text
        In your own file, the column of the text, passage or context.
    pair
        In your own file, the column of the second text, or of the question.
    label
        In your own file, the column of the label, tags or answer; for several labels per text, columns
        of 0 and 1, separated by commas.
    options
        For multiple choice, the columns of the options, separated by commas: 1,2,3,4.
    """

    form: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    options: str | None = None

    def given(self, *, skip_unlabelled: bool = False) -> Given:
        """The same for reading the file."""
        from encoderlab.tasks.data.infer import Given

        options = tuple(self.options.split(",")) if self.options else ()
        return Given(**(vars(self) | {"options": options}), skip_unlabelled=skip_unlabelled)


OWN_FILE = OwnFile()


def resolve(recipe: T, *, files: Sequence[Path] = (), assignments: Sequence[str] = ()) -> T:
    """``recipe`` with the fields of all :func:`sources`.

    Raises:
        ConfigError: an unknown key (the message gives the nearest one), a wrong type, or an unreadable file.
    """
    from encoderlab import config  # imports pydantic, which --help can do without

    for where, fields in sources(files, assignments):
        recipe = config.override(recipe, fields, where=where)
    return recipe


def sources(files: Sequence[Path], assignments: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The fields that the user sets, by path, and their source.

    Sources are files, ``ENCODERLAB_A__B=value`` variables and ``a.b=value`` assignments; later ones take precedence.

    Raises:
        ConfigError: the unit of the budget is set and its amount is not, so the recipe's amount would be in that unit.
    """
    from encoderlab import config

    by_source = [(str(path), config.flatten(config.read_file(path))) for path in files]
    if variables := environment(os.environ):
        by_source.append(("environment", config.flatten(_mappings(variables))))
    if assignments:
        by_source.append(("--set", config.flatten(_mappings(parse(assignments)))))
    names = {name for _, fields in by_source for name in fields}
    if "budget.unit" in names and "budget.amount" not in names:
        raise ConfigError("budget.unit is set without budget.amount, which is in the recipe's unit; set both")
    return by_source


def _mappings(fields: Mapping[str, str]) -> dict[str, Any]:
    """``fields`` with values that are written ``{...}`` parsed."""
    from encoderlab.config import parse_value

    return {path: parse_value(text) if text.lstrip().startswith("{") else text for path, text in fields.items()}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The fields set by variables such as ``ENCODERLAB_OPTIM__LR=3e-4``; two underscores stand for the dot."""
    return {
        name.removeprefix(PREFIX).lower().replace("__", "."): value
        for name, value in sorted(variables.items())
        if name.startswith(PREFIX) and name not in VARIABLES
    }


def parse(assignments: Sequence[str]) -> dict[str, str]:
    """``["optim.lr=3e-4"]`` as ``{"optim.lr": "3e-4"}``."""
    fields = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {assignment}: expected path=value, such as --set optim.lr=3e-4")
        fields[path.strip()] = value
    return fields
