"""``encoderlab inspect``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from encoderlab.commands.settings import Count, CountOrZero
from encoderlab.commands.terminal import note, progress, say, table
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import check_own, held_folder
from encoderlab.inspection.texts import sentences
from encoderlab.interchange.places import resolve

if TYPE_CHECKING:
    import numpy as np

    from encoderlab.commands.finetune_stages import TaskWithSplits
    from encoderlab.inspection.folder import Look
    from encoderlab.inspection.texts import Sentence
    from encoderlab.model import Model


def inspect(
    model: Path,
    text: str,
    /,
    *,
    out: Path,
    against: Path | None = None,
    texts: Count = 200,
    memory: CountOrZero = 0,
    probe: Annotated[list[str] | None, Parameter(consume_multiple=1)] = None,
    data: Path | None = None,
) -> dict[str, Any]:
    """Show on one page what every attention head reads, and write the numbers.

    Works for every family, with windows, relative positions and convolution heads. The page shows the first texts of a
    file, and averages over all of them: entropy, distance, diagonal concentration, and what each head attends to
    (neighbours, special tokens, the same word; in a .conllu treebank also the words of its trees). For a file, also how
    important each head is to the loss of pretraining.

    Example:
        encoderlab inspect small-en "The cat sat because it was tired." --out seen

    Parameters
    ----------
    model
        Folder of a model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
    text
        A text, or a file with one text per line, or a .conllu file.
    out
        Folder to write: index.html, inspect.json, attention.npz.
    against
        Another model, shown next to the first.
    texts
        Largest number of texts to read from a file.
    memory
        Number of first tokens to read as memory (Transformer-XL).
    probe
        Files of tagged words, folders that Hugging Face's datasets wrote (save_to_disk), or benchmarks of tagging: a
        linear probe shows what each layer knows of their tags. FILE:1 takes the tags of the second column.
    data
        Folder with the files of a benchmark.
    """
    from encoderlab.inspection import folder
    from encoderlab.measure.runs import names

    if against is not None:
        resolve(against)  # refuse it before the first model is read
    read = sentences(text, texts)
    tagged = [_tagged(name, data) for name in probe or ()]
    if data is not None and all(Path(name).is_file() for name in probe or ()):
        raise ConfigError("--data is for benchmarks named by --probe; leave it out")
    with held_folder(out):
        check_own(out, folder.NUMBERS, folder.WEIGHTS)
        places = [model] if against is None else [model, against]
        runs = [(place.parent if place.name == "model" else place).resolve() for place in places]
        distinct = list(dict.fromkeys(runs))
        called = dict(zip(distinct, names(distinct), strict=True))
        file = text if os.path.isfile(text) else None
        looks = [_look(place, called[at], read, memory, tagged, file) for place, at in zip(places, runs, strict=True)]
        folder.write(looks, out)
    for look in looks:
        rows = [
            [folder.RELATIONS[name], str(best["layer"]), str(best["head"]), f"{100 * best['weight']:.1f}%"]
            for name, best in folder.strongest(look).items()
        ]
        table(look.name, ["most weight on", "layer", "head", "weight"], rows)
        for curve in look.probes:
            scores = [*enumerate(layer[curve.measure] for layer in curve.layers)]
            lines = [[str(layer) if layer else "embeddings", f"{100 * value:.2f}"] for layer, value in scores]
            lines += [[name, f"{100 * baseline[curve.measure]:.2f}"] for name, baseline in curve.baselines.items()]
            table(f"{look.name}: probe of {curve.task}", ["layer", curve.measure], lines)
    say(f"page written to {out / 'index.html'}")
    return {"out": out, "texts": len(read), "models": [folder.record(look) for look in looks]}


def _tagged(name: str, data: Path | None) -> TaskWithSplits:
    """The tagging task of a file, with a held-out part, or of a benchmark in the folder ``data``."""
    from encoderlab.adapt.text import remedies_of
    from encoderlab.commands.finetune_stages import TaskWithSplits, files_job
    from encoderlab.tasks.data.infer import Given
    from encoderlab.tasks.data.sources import Files, source_of
    from encoderlab.tasks.data.splits import usable_splits

    file, _, column = name.rpartition(":")
    if not Path(file).is_file() or Path(name).is_file():
        file, column = name, ""
    source = source_of(file, data)
    if isinstance(source, Files):
        with remedies_of("options of finetune; give a file that needs none"):
            job = files_job(source, None, None, Given(form="tagging", label=column or None))
        called = f"{job.task.name}, column {column}" if column else job.task.name
        return replace(job, task=replace(job.task, name=called))
    task = source.task
    if task.form != "tagging":
        raise ConfigError(f"{name} is {task.form}; a probe reads the tags of words, give a benchmark of tagging")
    return TaskWithSplits(task=task, splits=usable_splits(task, source.folder))


def _look(
    place: Path, name: str, read: list[Sentence], memory: int, tagged: Sequence[TaskWithSplits], file: str | None
) -> Look:
    """One model: what its heads read in the texts, their importance on ``file``, and what its layers know about
    tags.
    """
    from encoderlab.inspection.attention import each_attention
    from encoderlab.inspection.folder import SHOWN, Look
    from encoderlab.inspection.neighbours import nearest
    from encoderlab.inspection.patterns import Patterns
    from encoderlab.inspection.probe import probe
    from encoderlab.interchange.load import load_pair

    network, generator = load_pair(place)
    config = network.config.encoder
    shown, counted = [], None
    with progress("inspect") as show:
        texts = each_attention(network, [sentence.text for sentence in read], memory=memory)
        for number, (sentence, one) in enumerate(zip(read, texts, strict=True)):
            if counted is None:
                counted = Patterns(len(one.layers), len(one.layers[0]), config.attention_heads)
            counted.add(one, sentence.heads)
            if number < SHOWN:
                shown.append(one)
            show("texts", number + 1, len(read))
        probes = [probe(network, one.task, one.splits["train"], one.splits["dev"], progress=show) for one in tagged]
    assert counted is not None
    words = [token for token, word in zip(shown[0].tokens, shown[0].words, strict=True) if word >= 0]
    near = {} if network.encoder.embeddings.words is None else nearest(network, words)
    return Look(
        name=name,
        family=network.config.family,
        texts=shown,
        patterns=counted,
        neighbours=near,
        attending=config.attention_heads,
        importance=None if file is None else _importance(network, generator, file, max(len(read), 2)),
        probes=probes,
    )


def _importance(network: Model, generator: Model | None, file: str, rows: int) -> np.ndarray | None:
    """The importance of every head to the loss of pretraining, (layers, H). Without such a loss None, and a note."""
    import numpy as np

    from encoderlab.inspection.heads import attentions, importance
    from encoderlab.inspection.language import batches_of, objective_of

    try:
        objective = objective_of(network, generator)
        batches = batches_of(objective, network, file, rows)
    except (ConfigError, DataError) as error:
        note(f"no importance of heads: {error}")
        return None
    encoder, shared = network.encoder, attentions(network.encoder)
    scores = importance(objective, encoder, batches)
    return np.stack([scores[shared.index(encoder.block(layer).attention)] for layer in range(encoder.depth)])
