"""``--precision int8`` of verbs that predict: its loss on the user's own texts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from encoderlab.commands import terminal
from encoderlab.commands.export import texts_of
from encoderlab.errors import ConfigError
from encoderlab.interchange.finetuned import best_seed

if TYPE_CHECKING:
    from encoderlab.deploy.sentence_transformers import TextVectors

Precision = Literal["fp32", "int8"]
Pooling = Literal["mean", "first", "last"]
TOLERANCE = 0.005  # share of the score, or of the agreement, that int8 may lose; as in export


def judge(
    model: Path, file: Path | None, precision: Precision, *, vectors: TextVectors | None = None
) -> dict[str, Any]:
    """Compare the model in int8 with itself in fp32 on the texts of ``file``, print the result, and return it as
    ``int8``.

    Without a file, nothing is compared. With ``vectors``, those of texts are compared, otherwise the answers of the
    fine-tuned head.

    Raises:
        ConfigError: a file without int8, or int8 loses more than :data:`TOLERANCE`.
    """
    if file is None:
        return {}
    if precision != "int8":
        raise ConfigError("--check compares int8 with fp32; give --precision int8 too")
    from encoderlab.deploy.export.check import own
    from encoderlab.deploy.export.int8 import milliseconds, told
    from encoderlab.deploy.graph import Graph, use_of
    from encoderlab.deploy.sentence_transformers import TextVectors
    from encoderlab.inference import placed
    from encoderlab.interchange.load import load

    place = best_seed(model, terminal.note)
    network = load(place)
    whole = Graph(network, use_of(network, "task" if vectors is None else "states"))
    small = Graph(placed(copy.deepcopy(whole.model), precision), whole.use)
    how = vectors or TextVectors()
    check = texts_of(file, place, whole.use, how)(whole, min(how.longest or whole.longest, whole.longest))
    before, after = own(whole), own(small)
    verdict = check.verdict(check.answers(before), check.answers(after))
    size = {name: _bytes(graph) for name, graph in (("fp32", whole), ("int8", small))}
    times = milliseconds(check, before, after)
    terminal.note(f"int8: {told(verdict)}")
    terminal.note(
        f"{size['int8'] / 1e6:.1f} MB instead of {size['fp32'] / 1e6:.1f}, {times['int8']:.2f} ms per text instead of "
        f"{times['fp32']:.2f}"
    )
    if not verdict.fall <= TOLERANCE:  # also NaN
        raise ConfigError(
            f"int8 loses {100 * verdict.fall:.2f} % on {file}, more than {100 * TOLERANCE:g} %; leave out --precision "
            "int8, or leave out --check to accept the loss"
        )
    return {"int8": {"tolerance": TOLERANCE, **vars(verdict), "bytes": size, "milliseconds": times}}


def _bytes(network: Any) -> int:
    """The memory of a network's weights."""
    return sum(x.numel() * x.element_size() for x in (*network.parameters(), *network.buffers()))
