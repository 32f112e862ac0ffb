"""``encoderlab export``: a model for other libraries and servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands import terminal
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import check_new, held_folder
from encoderlab.interchange.finetuned import best_seed
from encoderlab.tasks.data.records import RECORDS, lines, suffix

if TYPE_CHECKING:
    from encoderlab.deploy.export.fidelity import Check
    from encoderlab.deploy.graph import Graph, Use
    from encoderlab.deploy.sentence_transformers import TextVectors


def export(
    model: Path,
    out: Path,
    /,
    *,
    use: Annotated[Literal["task", "states", "fill-mask"] | None, Parameter(name="--as")] = None,
    to: Annotated[list[Literal["onnx", "pt2"]] | None, Parameter(negative=())] = None,
    pooling: Literal["mean", "first", "last"] | None = None,
    normalize: Annotated[bool | None, Parameter(negative="--no-normalize")] = None,
    length: int | None = None,
    int8: bool = False,
    check: Path | None = None,
    tolerance: float | None = None,
) -> dict[str, Any]:
    """Export a model for other libraries and servers.

    Writes one folder that transformers, sentence-transformers, ONNX Runtime,
    transformers.js, text-embeddings-inference and vLLM can open, if they support the
    architecture. The exported graph is compared with the model at short, long
    and odd lengths, padded on either side; if they differ, nothing is written. The
    folder's README shows the code for each tool.

    --int8 also writes a graph with weights of 8 bits, if it does nearly as well on your texts.

    Example:
        encoderlab export runs/reviews reviews-onnx --int8 --check dev.tsv

    Parameters
    ----------
    model
        Folder of a model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
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
        Default: that of the folder's sentence-transformers' files, or mean.
    normalize
        Scale the vectors of texts to length 1. Default: as those files say, or yes.
    length
        The longest text to read, in tokens; by default as long as those files say and the model can, up to 512.
    int8
        Also write onnx/model_quantized.onnx if it loses no more than --tolerance; otherwise print its loss.
    check
        Labelled data of the task, or a file with one text per line, on which int8 is judged.
    tolerance
        How much of its score the int8 graph may lose, or without labels how often it may disagree, as a share.
        Default: 0.005.
    """
    from encoderlab.deploy.export.folder import ExportSettings
    from encoderlab.deploy.export.folder import export as write
    from encoderlab.deploy.export.trace import require
    from encoderlab.deploy.graph import use_of
    from encoderlab.deploy.sentence_transformers import (
        TextVectors,
        check_case,
        comparison_of,
        longest_of,
        pooling_of,
        prompts_of,
        scoring_of,
    )
    from encoderlab.inference import limit, tokenizer_of
    from encoderlab.interchange import lengths
    from encoderlab.interchange.load import load, model_folder
    from encoderlab.tasks.runs.folder import find_task

    check_new(out)
    if int8 != (check is not None):
        raise ConfigError("--int8 is judged on your own texts; give both --int8 and --check FILE, or neither")
    if tolerance is not None and not int8:
        raise ConfigError("--tolerance is for --int8; give --int8 and --check FILE too, or leave it out")
    tolerance = 0.005 if tolerance is None else tolerance
    if not 0 <= tolerance < 1:
        raise ConfigError(f"--tolerance {tolerance:g}, expected a share from 0 to 1; 0.005 is half a percent")
    require("onnx", "onnxscript", "onnxruntime")
    place = best_seed(model, terminal.say)
    network = load(place)
    tokenizer, kind = tokenizer_of(network), use_of(network, use)
    settings = ExportSettings(to=tuple(to or ("onnx",)), length=length, tolerance=tolerance)
    own, task = model_folder(place), find_task(place) if kind not in ("states", "fill-mask") else None
    if kind == "states":
        if pooling is None or normalize is None:
            usual, scaled = pooling_of(own)
            pooling, normalize = pooling or usual, scaled if normalize is None else normalize
        check_case(own, tokenizer)
        if length is None and (longest := longest_of(own)) is not None:
            length = min(longest, limit(network))
        settings = replace(
            settings,
            pooling=pooling,
            normalize=normalize,
            length=length,
            prompts=prompts_of(own),
            comparison=comparison_of(own),
        )
    elif pooling is not None or normalize is not None:
        option = "--normalize" if pooling is None else "--pooling"
        raise ConfigError(f"{option} is for vectors of texts, not for --as {kind}; leave it out, or give --as states")
    elif length is None and kind != "fill-mask" and task is None and (longest := lengths.stated(own)) is not None:
        settings = replace(settings, length=min(longest, limit(network)))
    if kind not in ("states", "fill-mask"):
        settings = replace(settings, scoring=scoring_of(own))
    vectors = TextVectors(pooling=settings.pooling, prompt=settings.prompts.before(None))
    with held_folder(out):
        texts = None if check is None else texts_of(check, place, kind, vectors)
        record = write(network, kind, out, settings, task=task, check_int8=texts, say=terminal.note)
    for text in record["notes"]:
        terminal.note(f"note: {text}")
    largest = {name: max(one["largest"] for one in checked) for name, checked in record["checked"].items()}
    files = ", ".join(f"{name} ({value:.1e} from the model)" for name, value in largest.items())
    terminal.say(f"{network.config.family}, {kind}, written to {out}: {files}; see {out / 'README.md'}")
    shown = {"model": model, "out": out, "use": kind, "format": record["format"], "difference": largest}
    if "int8" in record:
        terminal.say(_verdict(record["int8"]))
        shown["int8"] = record["int8"]
    return shown


def texts_of(file: Path, place: Path, use: Use, vectors: TextVectors) -> Callable[[Graph, int], Check]:
    """A function that reads the texts of a file for the exported graph; texts of a task are read at once. ``vectors``
    are those of the use ``states``.

    Raises:
        DataError: the file cannot be read, or has fewer than two texts.
    """
    from encoderlab.deploy.export.fidelity import MaskCheck, TaskCheck, VectorCheck
    from encoderlab.tasks.data.infer import Given
    from encoderlab.tasks.data.readers.words import is_word_per_line
    from encoderlab.tasks.data.task import is_unlabelled
    from encoderlab.tasks.runs.apply import predictor_of, task_of_file, unlabelled_task_of_file

    if not file.is_file():
        raise DataError(f"{file}: no such file; give labelled data, or a file with one text per line")
    if use in ("states", "fill-mask"):
        if suffix(file) in RECORDS:
            raise DataError(f"{file}: is a table; give a file with one text per line")
        texts = [line for _, line in lines(file) if line.strip()]
        _enough(file, len(texts))
        if use == "states":
            return lambda graph, longest: VectorCheck(graph, texts, longest, vectors.pooling, vectors.prompt)
        return lambda graph, longest: MaskCheck(graph, texts, longest)
    predictor = predictor_of(place, terminal.note)
    own = predictor.form.task
    plain = suffix(file) == ".txt" and predictor.form.columns in ("texts", "words")
    if plain and not (predictor.form.columns == "words" and is_word_per_line(file, own.labels or ())):
        task = unlabelled_task_of_file(file, predictor, None, None, terminal.note)
    else:
        task = task_of_file(file, own, Given(form=own.form), terminal.note)
    examples = task.read([file], "test").examples
    _enough(file, len(examples))
    if missing := sum(map(is_unlabelled, examples)):
        terminal.note(f"{file}: {missing:,} of {len(examples):,} examples have no label, so agreement is what counts")
    return lambda graph, longest: TaskCheck(predictor, task, examples)


def _enough(file: Path, count: int) -> None:
    if count < 2:
        raise DataError(f"{file}: {count} texts, expected at least 2; a few hundred show what int8 costs")


def _verdict(int8: dict[str, Any]) -> str:
    """A sentence about whether the int8 graph was written, and its loss."""
    if int8["kept"] is None:
        least = min(one["fall"] for one in int8["tried"])
        return (
            f"int8 is not written: every attempt loses more than {100 * int8['tolerance']:g} %, the best one "
            f"{100 * least:.2f} %; use onnx/model.onnx (fp32)"
        )
    size, times = int8["bytes"], int8["milliseconds"]
    return (
        f"onnx/model_quantized.onnx: {int8['kept']}; {size['int8'] / 1e6:.1f} MB instead of {size['fp32'] / 1e6:.1f}, "
        f"{times['int8']:.2f} ms per text instead of {times['fp32']:.2f}"
    )
