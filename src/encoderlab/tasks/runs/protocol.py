"""Protocols of fine-tuning: recipe by task and size, grid, number of seeds, and the reported score.

The grid is searched on development data. :mod:`encoderlab.tasks.runs.published` has the papers' protocols;
:func:`encoderlab.tasks.runs.trials.run` runs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from encoderlab.config import override, parse_value
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models import FAMILIES
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.forms.table import FORMS
from encoderlab.tasks.runs.finetune import FinetuneRecipe

Report = Literal["median", "mean", "best"]
SHORT = {"lr": "optim.lr", "weight_decay": "optim.weight_decay", "max_length": "form.max_length"}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A way of fine-tuning and reporting.

    Fields of the recipe are given by path; ``tasks`` override ``widths``, and ``sizes`` override both.

    Args:
        recipe: for every task.
        tasks: fields by task name, or by form (``"form:span"``), which the name overrides.
        sizes: fields by published size (``deberta-base``) and task name, for models of that architecture.
        elsewhere: tasks that the source treats differently, with the name of the protocol for them.
        widths: fields by least width of the model; the largest width that is not above the model's applies.
        batches: examples per step by least number of training examples, as ``widths``.
        grid: values to try for fields, on the development set with ``search_seeds`` seeds.
        seeds: number of runs at the chosen point.
        report: which of the seeds' scores is reported; the best is that of the seed with the best development score.
    """

    name: str
    source: str
    recipe: FinetuneRecipe = FinetuneRecipe()
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    widths: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    batches: Mapping[int, int] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    search_seeds: int = 1
    seeds: int = 1
    report: Report = "median"

    def recipe_for(self, task: Task, model: Model, examples: int | None = None) -> FinetuneRecipe:
        """The recipe of one task for a model of this size and, if known, a number of training ``examples``.

        Sequences are at most as long as the model allows.

        Raises:
            ConfigError: another protocol has this task.
        """
        if task.name in self.elsewhere:
            raise ConfigError(
                f"protocol {self.name} does not cover {task.name}, which its source treats differently; "
                f"give --protocol {self.elsewhere[task.name]}"
            )
        batch = None if examples is None else _widest(self.batches, examples)
        fields: dict[str, Any] = {
            **({} if batch is None else {"batch": batch}),
            **(_widest(self.widths, model.config.encoder.width) or {}),
            **self.tasks.get(f"form:{task.form}", {}),
            **self.tasks.get(task.name, {}),
            **self.sizes.get(_size(model), {}).get(task.name, {}),
        }
        recipe = replace(self.recipe, form=FORMS[task.form].settings_of(self.recipe.form))
        recipe = override(recipe, fields) if fields else recipe
        limit = model.config.encoder.max_length
        if limit is not None and recipe.form.max_length > limit:
            recipe = replace(recipe, form=replace(recipe.form, max_length=limit))
        return recipe

    def says(self, recipe: FinetuneRecipe, model: Model, examples: int) -> str:
        """A line with the length of training on so many examples, the batch, the rate, and how they were chosen.

        Examples are counted as in the file, not as a form splits them.
        """
        updates = recipe.updates(examples)
        epochs, width = updates * recipe.batch / max(examples, 1), model.config.encoder.width
        lr, batch = (_widest(self.widths, width) or {}).get("optim.lr"), _widest(self.batches, examples)
        by_size = " (by the size of the data)" if recipe.batch == batch else ""
        by_width = f" (by the width, {width})" if recipe.optim.lr == lr else ""
        raised = ""
        if updates > replace(recipe, least_updates=0).updates(examples):
            raised = f", {recipe.epochs:g} raised towards at least {recipe.least_updates} updates"
        passes = f"{epochs:.3g}"
        return (
            f"{examples:,} examples in batches of {recipe.batch}{by_size}, {updates:,} updates (about {passes} "
            f"epoch{'' if passes == '1' else 's'}{raised}), rate {recipe.optim.lr:g}{by_width}"
        )


def _widest(table: Mapping[int, Any], size: int) -> Any:
    """The value of the largest key that is not above ``size``; None if all are."""
    return table[max(fitting)] if (fitting := [key for key in table if key <= size]) else None


def _size(model: Model) -> str:
    """The published size of the family with the model's shape, "" if there is none."""
    sizes = FAMILIES[model.config.family].sizes.items()
    own = _shape(model.config.encoder)
    return next((name for name, config in sizes if _shape(config.encoder) == own), "")


def _shape(encoder: EncoderConfig) -> tuple[Any, ...]:
    """The numbers that distinguish the published sizes of a family; DeBERTa's versions also differ in biases and
    convolution."""
    return encoder.layers, encoder.width, encoder.attention_biases, encoder.stem_conv is not None


def others_with(path: str, recipe: FinetuneRecipe) -> list[str]:
    """The forms that have the setting at ``path`` of a recipe, if the recipe's form has none of that name."""
    name, own = path.removeprefix("form."), FORMS.get(recipe.form.kind)
    if name == path or own is None or hasattr(own.settings_type, name):
        return []
    return [form.name for form in FORMS.values() if hasattr(form.settings_type, name)]


def at_point(recipe: FinetuneRecipe, point: Mapping[str, Any], *, where: str) -> FinetuneRecipe:
    """``recipe`` with the fields of ``point``; given epochs replace the steps, or the least updates, of a protocol.

    ``where`` is for messages.

    Raises:
        ConfigError: an unknown or a computed field, a field of another form, or a value out of range.
    """
    for path in point:
        if is_computed(path):
            raise ConfigError(f"{where}: {path} follows from epochs, steps, batch and the data; set these")
        if others := others_with(path, recipe):
            raise ConfigError(
                f"{where}: {path} is for {' and '.join(others)}, not for {recipe.form.kind}; leave it out"
            )
    free = {"steps": None, "least_updates": 0} if "epochs" in point else {}
    return override(recipe, {**free, **point}, where=where)


def is_computed(path: str) -> bool:
    """Whether the field ``path`` of a recipe follows from others (:class:`FinetuneRecipe`)."""
    return path.partition(".")[0] in ("budget", "phases", "evaluation")


def spelled_out(assignment: str) -> str:
    """The full path of a field that may have a short name, with or without ``=value``: ``lr`` is ``optim.lr``."""
    name, equals, value = assignment.partition("=")
    return SHORT.get(name, name) + equals + value


def parse_grid(words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """``["lr=5e-5,1e-4", "epochs=3,10"]`` as the grid of a protocol.

    Raises:
        ConfigError: a word without ``=`` or values, or two with one field.
    """
    fields = split_assignments(words, "--grid", "field=value,value, such as lr=5e-5,1e-4")
    return {field: parse_values(values) for field, values in fields}


def split_assignments(words: Sequence[str], flag: str, expected: str) -> Iterator[tuple[str, str]]:
    """The path of the field and the values of each ``field=values``; ``flag`` and ``expected`` are for the message.

    Raises:
        ConfigError: one has no field or no values, two have one field, or one is the seed.
    """
    seen = set()
    for word in words:
        name, _, values = word.partition("=")
        if not name or not values:
            raise ConfigError(f"{flag} {word}: expected {expected}")
        if name == "seed":
            raise ConfigError(f"{flag} {word}: every point gets the seeds of --seeds and --set seed=N; leave it out")
        if spelled_out(name) in seen:
            raise ConfigError(f"{flag} {word}: {name} is given twice; give all its values at once, {name}=value,value")
        seen.add(spelled_out(name))
        yield spelled_out(name), values


def parse_values(values: str) -> tuple[Any, ...]:
    """``"16,32"`` as ``(16, 32)``."""
    return tuple(parse_value(value) for value in values.split(","))
