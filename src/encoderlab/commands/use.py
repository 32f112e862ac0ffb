"""Using a model: ``evaluate``, ``predict``, ``fill-mask``, ``encode``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands.terminal import note, say, table
from encoderlab.errors import ConfigError, DataError

CHUNK = 8192  # texts held at a time


def fill_mask(
    model: Path, texts: list[str], /, *, top: Annotated[int, Parameter(name=["--top", "-k"])] = 5
) -> dict[str, Any]:
    """Guess the masked words of texts.

    Write [MASK] where a word is to be guessed, whatever the mask token of the model is.

    Example:
        encoderlab fill-mask runs/quickstart/pretrain "The [MASK] of a list."

    Parameters
    ----------
    model
        Model folder, or run folder.
    texts
        Texts, each with at least one [MASK].
    top
        Guesses per mask.
    """
    from encoderlab.interchange.load import load

    network = load(model)
    mask = network.tokenizer.token(network.tokenizer.special.mask) if network.tokenizer else "[MASK]"
    answers = []
    for text in texts:
        masks = network.fill_mask(text.replace("[MASK]", mask), top=top)
        answers.append({"text": text, "masks": [[vars(guess) for guess in guesses] for guesses in masks]})
        for number, guesses in enumerate(masks, 1):
            title = text if len(masks) == 1 else f"{text}  (mask {number})"
            table(
                title, ["word", "probability", "text"], [[g.token_str, f"{g.score:.4f}", g.sequence] for g in guesses]
            )
    return {"model": model, "answers": answers}


def encode(
    model: Path,
    texts: list[str] | None = None,
    /,
    *,
    file: Path | None = None,
    out: Path | None = None,
    pooling: Literal["mean", "first", "last"] = "mean",
) -> dict[str, Any]:
    """Turn texts into vectors, one per text.

    Texts come from the command line, or from a file with one text per line
    ("-": standard input). The vectors go to a NumPy file, or are printed.

    Example:
        encoderlab encode runs/wiki --file texts.txt --out vectors.npy

    Parameters
    ----------
    model
        Model folder, or run folder.
    texts
        Texts.
    file
        File with one text per line.
    out
        NumPy file (n, width) float32 to write.
    pooling
        What stands for a text: the mean over its tokens, its first token, or its last.
    """
    import numpy as np

    from encoderlab.interchange.load import load

    if (file is None) == (not texts):
        raise ConfigError("encode takes either texts or --file FILE (one text per line)")
    network = load(model)
    lines = iter(texts or ()) if file is None else _lines(file)
    chunks, count = [], 0
    while chunk := list(islice(lines, CHUNK)):
        chunks.append(network.encode(chunk, pooling=pooling))
        count += len(chunk)
        if file is not None:
            note(f"{count:,} texts encoded")
    if not count:
        raise DataError(f"{file}: holds no text; give a file with one text per line")
    vectors = np.concatenate(chunks)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("wb") as target:
            np.save(target, vectors, allow_pickle=False)
        say(f"{count:,} vectors of {vectors.shape[1]} numbers written to {out}")
        return {"model": model, "texts": count, "width": vectors.shape[1], "out": out}
    for vector in vectors:
        say(" ".join(f"{number:.6g}" for number in vector))
    return {"model": model, "texts": count, "width": vectors.shape[1], "vectors": vectors}


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, or of standard input for ``-``."""
    if str(path) == "-":
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line.rstrip("\n") for line in file)
