"""``encoderlab describe``: an architecture or a saved model, as a tree with its cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.tree import Tree

from encoderlab.commands import terminal
from encoderlab.commands.settings import Count
from encoderlab.errors import ConfigError
from encoderlab.interchange.places import installed

if TYPE_CHECKING:
    from encoderlab.measure.describe import Node


def describe(
    name: str | None = None,
    /,
    *,
    list_: Annotated[bool, Parameter(name="--list")] = False,
    length: Count = 128,
    rows: Count = 32,
) -> dict[str, Any]:
    """Show an architecture: shapes, parameters, FLOPs per token, memory, and its differences from BERT.

    Example: encoderlab describe convbert-small --length 512

    Parameters
    ----------
    name
        A published architecture (bert-base, electra-small-generator, ...), a model folder, or the name of a model.
    list_
        Print all names.
    length
        Tokens per row.
    rows
        Rows per batch, to estimate the memory for training.
    """
    from encoderlab import models

    if list_:
        if name is not None:
            raise ConfigError(f"--list shows all names, not {name!r} alone; leave one of them out")
        names = [*models.SIZES, *(f"{name}-generator" for name in models.GENERATORS)]
        for family in models.FAMILIES.values():
            terminal.say(f"{family.name}: " + ", ".join(family.sizes))
        return {"names": names}
    if name is None:
        raise ConfigError("describe needs a name or a model folder; --list shows all names")
    from encoderlab.measure.describe import facts, tree

    if Path(name).is_dir() or "/" in name or name in installed():
        from encoderlab.interchange.load import load

        config = load(name).config
    else:
        config = models.config(name)
    described = facts(name, config, length=length, rows=rows)
    _show(described, tree(config))
    return described


def _show(described: dict[str, Any], root: Node) -> None:
    picture = Tree(f"{described['name']}  {root.parameters:,} parameters")
    _grow(picture, root)
    terminal.console().print(picture)
    parameters, flops, memory = described["parameters"], described["flops"], described["memory"]
    heads = ", ".join(f"{part} {count:,}" for part, count in parameters["heads"].items())
    terminal.table(
        "Parameters",
        ["part", "count"],
        [
            ("encoder", f"{parameters['encoder']:,}"),
            ("  embeddings", f"{parameters['embeddings']:,}"),
            ("  layers", f"{parameters['layers']:,}"),
            ("with its heads", f"{parameters['pretraining']:,}"),
        ],
        caption=f"heads: {heads}" if heads else None,
    )
    rows = [(part, f"{count / 1e6:.2f}", f"{3 * count / 1e6:.2f}") for part, count in flops["forward"].items()]
    rows.append(("total", f"{flops['forward_total'] / 1e6:.2f}", f"{flops['training_total'] / 1e6:.2f}"))
    other, lm = flops["electra_convention"], "lm" in parameters["heads"]
    predicted = f", LM head on {flops['predicted']:.0%} of tokens" if lm else ""
    terminal.table(
        f"Million operations per token, rows of {flops['length']}",
        ["part", "forward", "training"],
        rows,
        caption=f"a multiply-add is 2, backward is twice forward{predicted}; ELECTRA's convention: "
        f"{other['forward'] / 1e6:.2f} forward, {other['training'] / 1e6:.2f} training",
    )
    parts = ("weights", "gradients", "optimizer", "activations")
    causes = ", ".join(f"{part} {memory[part] / 2**20:,.0f}" for part in parts)
    terminal.say(
        f"Memory of training {memory['rows']} rows of {memory['length']} tokens in single precision with Adam, "
        f"estimated for our kernels: {memory['total'] / 2**20:,.0f} MiB ({causes})"
    )
    terminal.say()
    terminal.say(re.sub(r"(:\w+:)?`+([^`]+)`+", r"\2", described["about"]))  # without the marks of docstrings


def _grow(branch: Any, node: Node) -> None:
    for child in node.children:
        times = f" x {child.times}" if child.times > 1 else ""
        line = f"{child.name}{times}  {child.parameters:,}" + (f"  {child.shapes}" if child.shapes else "")
        _grow(branch.add(line), child)
