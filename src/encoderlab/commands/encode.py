"""``encoderlab fill-mask`` and ``encoderlab encode``: using a pretrained model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands.outputs import output
from encoderlab.commands.terminal import progress, say, table
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import replace_file
from encoderlab.tasks.data.records import RECORDS, lines, suffix

Pooling = Literal["mean", "first", "last"]

if TYPE_CHECKING:
    import numpy as np

    from encoderlab.model import Model


def fill_mask(
    model: Path, texts: list[str], /, *, top: Annotated[int, Parameter(name=["--top", "-k"])] = 5
) -> dict[str, Any]:
    """Predict the masked words of texts.

    Write [MASK] for each masked word, whatever the model's own mask token is.

    Example:
        encoderlab fill-mask small-en "The cats [MASK] sleeping on the sofa."

    Parameters
    ----------
    model
        Folder of a model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
    texts
        Texts, each with at least one [MASK].
    top
        Number of candidates per mask.
    """
    network = _load(model)
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
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    out: Path | None = None,
    pooling: Pooling = "mean",
) -> dict[str, Any]:
    """Turn texts into vectors, one per text.

    Texts come from the command line, or from a file with one text per line
    ("-": standard input). The vectors go to a NumPy file, or are printed.

    Example:
        encoderlab encode small-en --file texts.txt --out vectors.npy

    Parameters
    ----------
    model
        Folder of a model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
    texts
        Texts.
    file
        File with one text per line.
    out
        NumPy file to write: (n, width) float32.
    pooling
        The vector of a text: the mean over its tokens, its first token, or its last token.
    """
    if (file is None) == (not texts):
        raise ConfigError("encode takes either texts or --file FILE (one text per line)")
    if texts and len(texts) == 1 and os.path.isfile(texts[0]):
        raise ConfigError(f"{texts[0]}: is a file; give it with --file")
    with output(out, "vectors", *([file] if file else [])):
        return _encode(model, texts, file, out, pooling)


def _encode(
    model: Path, texts: list[str] | None, file: Path | None, out: Path | None, pooling: Pooling
) -> dict[str, Any]:
    """Print the vectors, or write them to ``out``."""
    import numpy as np

    from encoderlab.inference import encode_parts

    network = _load(model)
    lines = iter(texts or ()) if file is None else _lines(file)
    if (first := next(lines, None)) is None:
        raise DataError(f"{file}: is empty; give a file with one text per line")
    parts = encode_parts(network, chain([first], lines), pooling=pooling)
    width = network.config.encoder.width
    if out is not None:
        count = _write_vectors(out, parts, width)
        say(f"{count:,} vectors of {width} numbers written to {out}")
        return {"model": model, "texts": count, "width": width, "out": out}
    vectors = np.concatenate(list(parts))
    for vector in vectors:
        say(" ".join(f"{number:.6g}" for number in vector))
    return {"model": model, "texts": len(vectors), "width": width, "vectors": vectors}


def _write_vectors(out: Path, parts: Iterator[np.ndarray], width: int) -> int:
    """Write parts of an array (n, width) as one NumPy file and return n.

    The header contains n and is at the start of the file: it is written first with n = 0, and again with the true n at
    the end.
    """
    import numpy as np

    out.parent.mkdir(parents=True, exist_ok=True)
    with progress("encode") as show, replace_file(out) as file:
        header = {"descr": "<f4", "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, header | {"shape": (0, width)})
        count = 0
        for part in parts:
            file.write(part.astype("<f4", copy=False).tobytes())
            count += len(part)
            show("texts", count, None)
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header | {"shape": (count, width)})
    return count


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, compressed or not, or of standard input for ``-``."""

    if str(path) == "-":
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield line.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                raise DataError(f"standard input: line {number} is not UTF-8; convert it with iconv") from None
        return
    if suffix(path) in RECORDS:
        raise DataError(f"{path}: is a table; give a text file with one text per line")
    yield from (line for _, line in lines(path))


def _load(folder: Path) -> Model:
    """The model in a folder, on the GPU if there is one."""
    from encoderlab.inference import usual_device
    from encoderlab.interchange.load import load

    return load(folder).to(usual_device())
