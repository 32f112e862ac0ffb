"""``encoderlab convert``: a model from one format to another."""

from __future__ import annotations

import contextlib
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands import terminal
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import check_new, held_folder
from encoderlab.interchange.finetuned import best_seed, tokenizer_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from encoderlab.interchange.assemble import Models
    from encoderlab.interchange.load import Source


def convert(
    model: Path,
    out: Path,
    /,
    *,
    to: Literal["encoderlab", "hf"] = "encoderlab",
    source: Annotated[
        Literal["encoderlab", "hf", "pair", "tensorflow", "fairseq", "deberta", "transformer-xl"] | None,
        Parameter(name="--from"),
    ] = None,
    tokenizer: Path | None = None,
    both_heads: bool = False,
    allow_missing: bool = False,
) -> dict[str, Any]:
    """Convert a model folder or checkpoint to or from another library's format.

    Reads folders of encoderlab and of Hugging Face, TensorFlow checkpoints of BERT,
    ALBERT, ELECTRA, ConvBERT, XLNet and Transformer-XL, fairseq's RoBERTa,
    Microsoft's DeBERTa and Transformer-XL's PyTorch code. Two networks that were
    trained together become two folders, OUT/generator and OUT/discriminator. For a
    pretraining run that is not finished, the newest checkpoint is converted, or the
    one that you name; for several seeds of fine-tuning, the best.

    Example:
        encoderlab convert runs/wiki wiki-hf --to hf

    Parameters
    ----------
    model
        Model folder, run folder, or checkpoint.
    out
        New folder.
    to
        Format to write: encoderlab, or hf (Hugging Face).
    source
        Format to read. Default: detected.
    tokenizer
        Tokenizer file or folder, if the model has none.
    both_heads
        Also write DeBERTa's masked-LM head under its original names.
    allow_missing
        Fill missing encoder weights with random values instead of refusing.
    """
    from encoderlab.interchange import folder, huggingface
    from encoderlab.tasks.runs.folder import find_task

    notes: list[str] = []
    written = {}
    if both_heads and to != "hf":
        raise ConfigError("--both-heads is for DeBERTa in Hugging Face's format; give --to hf, or leave it out")
    with held_folder(out):
        check_new(out)
        model = best_seed(model, terminal.say)
        models, values = _read(model, source, whole=to == "hf", allow_missing=allow_missing)
        if tokenizer is not None:
            _give_tokenizer(models, tokenizer)
        task = find_task(model)
        if task is not None and to == "hf":
            notes.append(lost(task))
        with contextlib.ExitStack() as undo:  # of two networks both are written, or none
            for part, network in models.items():
                place = out if len(models) == 1 else out / part
                place.parent.mkdir(parents=True, exist_ok=True)
                settings = None if part == "generator" else model
                also = partial(_copy, settings, network.task is None, task if to == "encoderlab" else None)
                if to == "hf":
                    try:
                        notes += huggingface.save(network, place, both_heads=both_heads, also=also)
                    except DataError as error:
                        alone = "" if len(models) == 1 else "; to convert the other network alone, give its own folder"
                        raise DataError(f"{part}: {error}{alone}") from None
                else:
                    folder.save(network, place, values=values, also=also)
                undo.callback(shutil.rmtree, place)
                written[part] = str(place)
            undo.pop_all()
    for part, network in models.items():
        terminal.say(f"{network.config.family} {part} written to {written[part]}")
        if network.tokenizer is None:
            notes.append(f"{written[part]} has no tokenizer; give one with --tokenizer")
    for text in dict.fromkeys(notes):
        terminal.note(f"note: {text}")
    return {"to": to, "written": written, "notes": list(dict.fromkeys(notes))}


def _copy(place: Path | None, vectors: bool, task: Path | None, out: Path) -> None:
    """Copy into ``out`` the record of a task, and from the folder ``place`` sentence-transformers' settings of
    ``vectors``, or else the longest text and how a number is scored.
    """
    from encoderlab.deploy.sentence_transformers import copy_scoring, copy_settings
    from encoderlab.interchange.load import model_folder

    if task is not None:
        shutil.copyfile(task, out / task.name)
    if place is not None:
        (copy_settings if vectors else copy_scoring)(model_folder(place), out)


def _read(
    model: Path, source: Source | None, *, whole: bool, allow_missing: bool
) -> tuple[Models, Callable[[Tensor], Tensor] | None]:
    """The networks of a model, or of the newest checkpoint of an unfinished run.

    Without ``whole``, networks of a checkpoint have no values yet; the function that reads the values is returned too.
    """
    from encoderlab.interchange.load import read
    from encoderlab.train import checkpoint
    from encoderlab.train.pretraining import models_at, unread_models_at

    taken = checkpoint.found_in(model) if source is None else None
    if taken is None:
        return read(model, kind=source, allow_missing=allow_missing), None
    terminal.say(f"converting the weights in {taken}")
    return (models_at(taken), None) if whole else unread_models_at(taken)


def _give_tokenizer(models: Models, path: Path) -> None:
    from encoderlab.interchange import reading
    from encoderlab.interchange.load import find_tokenizer

    tokenizer = find_tokenizer(tokenizer_place(path, terminal.note), next(iter(models.values())).config.family)
    if tokenizer is None:
        raise ConfigError(f"{path}: is not a tokenizer; give vocab.txt, a .model, or a tokenizer folder")
    for network in models.values():
        reading.give_tokenizer(network, tokenizer, path)


def lost(task: Path) -> str:
    """What Hugging Face's format cannot store of the task that a model was fine-tuned on."""
    from encoderlab.tasks.forms.span import NULLABLE
    from encoderlab.tasks.forms.tagging import TaggingSettings
    from encoderlab.tasks.forms.texts import TextSettings
    from encoderlab.tasks.runs.folder import read_task

    trained = read_task(task.parent)
    assert trained is not None
    settings = trained.settings
    facts = [f"its task {trained.name!r}", "the columns of its files", f"max_length {settings.max_length}"]
    if isinstance(settings, TextSettings) and settings.windows > 1:
        facts.append(f"the windows (up to {settings.windows}) in which it reads longer texts")
    if isinstance(settings, TaggingSettings) and settings.context == "document":
        facts.append("the rest of the document, with which it reads a sentence")
    if trained.labels == NULLABLE:
        facts.append(f"the threshold {trained.threshold:g} of null odds above which a question has no answer")
    elif trained.threshold not in (0.0, 0.5):
        facts.append(f"the threshold {trained.threshold:g} above which a label is given")
    return f"transformers cannot store {', '.join(facts)}; they stay in {task}"
