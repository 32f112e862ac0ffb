"""``encoderlab export``: a model for other libraries and servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands import terminal
from encoderlab.errors import ConfigError


def export(
    model: Path,
    out: Path,
    /,
    *,
    use: Annotated[Literal["task", "states", "fill-mask"] | None, Parameter(name="--as")] = None,
    to: Annotated[list[Literal["onnx", "pt2"]] | None, Parameter(negative=())] = None,
    pooling: Literal["mean", "first", "last"] = "mean",
    normalize: Annotated[bool, Parameter(negative="--no-normalize")] = True,
    length: int | None = None,
) -> dict[str, Any]:
    """Export a model for other libraries and servers.

    Writes one folder that transformers, sentence-transformers, ONNX Runtime,
    transformers.js, text-embeddings-inference and vLLM can open, if they support the
    architecture. The exported graph is compared with the model at short, long
    and odd lengths, padded on either side; if they differ, nothing is written. The
    folder's README shows the code for each tool.

    Example:
        encoderlab export runs/reviews reviews-onnx

    Parameters
    ----------
    model
        Model folder, run folder, name of an installed model, or org/name of the Hugging Face Hub.
    out
        New folder.
    use
        What to export: the fine-tuned head (task), token states to make text
        vectors (states), or predictions of masked words (fill-mask).
        Default: task, or states if the model has no fine-tuned head.
    to
        Format of the graph: onnx (default), or torch's archive pt2 (repeatable).
    pooling
        For states, the vector of a text: the mean over its tokens, its first, or its last.
    normalize
        Scale the vectors of texts to length 1.
    length
        The longest text in tokens. Default: the model's limit, up to 512.
    """
    from encoderlab.deploy.export.folder import ExportSettings
    from encoderlab.deploy.export.folder import export as write
    from encoderlab.deploy.export.trace import require
    from encoderlab.deploy.graph import use_of
    from encoderlab.files import held_folder
    from encoderlab.inference import tokenizer_of
    from encoderlab.interchange.load import load
    from encoderlab.tasks.runs.folder import find_task
    from encoderlab.tasks.runs.trials import best_seed

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists and is not empty; choose another folder")
    require("onnx", "onnxscript", "onnxruntime")
    place = best_seed(model, terminal.say)
    network = load(place)
    tokenizer_of(network)
    found = use_of(network, use)
    settings = ExportSettings(to=tuple(to or ("onnx",)), pooling=pooling, normalize=normalize, length=length)
    task = find_task(place) if found not in ("states", "fill-mask") else None
    with held_folder(out):
        record = write(network, found, out, settings, task=task, say=terminal.note)
    for text in record["notes"]:
        terminal.note(f"note: {text}")
    largest = {name: max(one["largest"] for one in checked) for name, checked in record["checked"].items()}
    files = ", ".join(f"{name} ({value:.1e} from the model)" for name, value in largest.items())
    terminal.say(f"{network.config.family}, {found}, written to {out}: {files}; see {out / 'README.md'}")
    return {"model": model, "out": out, "use": found, "format": record["format"], "difference": largest}
