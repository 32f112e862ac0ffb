"""``encoderlab fill-mask`` and ``encoderlab encode``: using a pretrained model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from encoderlab.commands.outputs import output
from encoderlab.commands.precision import Pooling, Precision, judge
from encoderlab.commands.settings import Count
from encoderlab.commands.terminal import json_mode, note, progress, say, table
from encoderlab.commands.use import places_of
from encoderlab.commands.workers import HERE, ModelWork, WorkerOptions, for_each_file
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import replace_file
from encoderlab.interchange.finetuned import best_seed
from encoderlab.messages import Say, silent
from encoderlab.tasks.data.records import RECORDS, lines, suffix

if TYPE_CHECKING:
    import numpy as np

    from encoderlab.deploy.sentence_transformers import TextVectors
    from encoderlab.model import Model


def fill_mask(
    model: Path, texts: list[str], /, *, top: Annotated[Count, Parameter(name=["--top", "-k"])] = 5
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
    file: Annotated[list[Path] | None, Parameter(allow_leading_hyphen=True)] = None,
    out: Path | None = None,
    pooling: Pooling | None = None,
    precision: Precision = "fp32",
    check: Path | None = None,
    where: WorkerOptions = HERE,
) -> dict[str, Any]:
    """Turn texts into vectors, one per text.

    Texts come from the command line, or from a file with one text per line
    ("-": standard input). The vectors go to a NumPy file, or are printed.
    For a folder or several files, --out is a folder with a NumPy file for each, and several
    processes can share the work.

    Example:
        encoderlab encode small-en --file texts.txt --out vectors.npy
        encoderlab encode small-en --file texts/ --out vectors/ --workers 8

    Parameters
    ----------
    model
        Folder of a model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
    texts
        Texts.
    file
        File with one text per line, or a folder of such files; repeatable.
    out
        NumPy file to write: (n, width) float32. For several files, a folder: FOLDER/NAME.npy for each.
    pooling
        The vector of a text: the mean over its tokens, its first token, or its last token. Default: the mean, or what
        sentence-transformers' files in the model's folder say. Their length, prompt and scale always count.
    precision
        Arithmetic of the matrix products in the layers: fp32, or int8 (8 bits; two to three times as
        fast on processors with VNNI).
    check
        File with one text per line, on which int8 is compared with fp32 first; a loss of more than 0.5 % is refused.
    """
    if (file is None) == (not texts):
        raise ConfigError("encode takes either texts or --file FILE (one text per line)")
    if texts and (places := places_of(texts, out)) is not None:
        raise ConfigError(f"{places[0]}: is a {'folder' if places[0].is_dir() else 'file'}; give it with --file")
    if file and (len(file) > 1 or file[0].is_dir()):
        work = EncodeFile(model=model, pooling=pooling, precision=precision)

        def judged() -> dict[str, Any]:
            return judge(model, check, precision, vectors=_vectors_of(model, pooling, note))

        return for_each_file(work, file, out, where, judge=judged)
    if where.several:
        raise ConfigError("--workers, --on and the like are for several files or a folder; leave them out")
    with output(out, "vectors", *(file or ())):
        vectors = _vectors_of(model, pooling, note)
        verdict = judge(model, check, precision, vectors=vectors)
        return _encode(model, texts, file[0] if file else None, out, vectors, precision) | verdict


@dataclass(frozen=True, kw_only=True)
class EncodeFile(ModelWork["tuple[Model, TextVectors]"]):
    """Encodes the texts of files. The weights, and so the identity of the model, differ by precision."""

    verb, suffix, unit, product = "encode", ".npy", "texts", "vectors of {width} numbers"
    pooling: Pooling | None
    precision: Precision

    def load(self, say: Say) -> tuple[tuple[Model, TextVectors], str]:
        from encoderlab.inference import tokenizer_of
        from encoderlab.model import model_hash

        network = _encoder(self.model, self.precision)
        identity = model_hash(network, network.config, tokenizer_of(network))
        return (network, _vectors_of(self.model, self.pooling)), identity

    def asked(self) -> dict[str, Any]:
        return vars(_vectors_of(self.model, self.pooling))

    def about(self, loaded: tuple[Model, TextVectors]) -> dict[str, Any]:
        return {"width": loaded[0].config.encoder.width}

    def __call__(self, source: Path, out: Path, say: Say) -> dict[str, Any]:
        network, vectors = self.loaded()
        parts = _parts(network, _lines(source), vectors, source)
        return {"texts": _write_vectors(out, parts, network.config.encoder.width)}


def _vectors_of(model: Path, pooling: Pooling | None, say: Say = silent) -> TextVectors:
    """How the model makes vectors; ``say`` is told if sentence-transformers' files say so."""
    from encoderlab.deploy.sentence_transformers import TextVectors, vectors_of
    from encoderlab.interchange.load import model_folder

    own = vectors_of(model_folder(best_seed(model, silent)))
    vectors = own if pooling is None else replace(own, pooling=pooling)
    if own != TextVectors():
        scaled = ", scaled to length 1" if vectors.normalize else ""
        longest = f", at most {vectors.longest} tokens" if vectors.longest else ""
        before = f", {vectors.prompt!r} before each text" if vectors.prompt else ""
        say(f"vectors as sentence-transformers makes them: {vectors.pooling}{scaled}{longest}{before}")
    return vectors


def _encoder(model: Path, precision: Precision) -> Model:
    """The model, whose tokenizer does what sentence-transformers' files ask for."""
    from encoderlab.deploy.sentence_transformers import check_case
    from encoderlab.inference import tokenizer_of
    from encoderlab.interchange.load import model_folder

    network = _load(model, precision)
    check_case(model_folder(best_seed(model, silent)), tokenizer_of(network))
    return network


def _encode(
    model: Path, texts: list[str] | None, file: Path | None, out: Path | None, how: TextVectors, precision: Precision
) -> dict[str, Any]:
    """Print the vectors, or write them to ``out``."""
    import numpy as np

    network = _encoder(model, precision)
    parts = _parts(network, iter(texts or ()) if file is None else _lines(file), how, file)
    width = network.config.encoder.width
    if out is not None:
        with progress("encode") as show:
            count = _write_vectors(out, parts, width, lambda done: show("texts", done, None))
        say(f"{count:,} vectors of {width} numbers written to {out}")
        return {"model": model, "texts": count, "width": width, "out": out}
    vectors = np.concatenate(list(parts))
    for vector in () if json_mode() else vectors:
        say(" ".join(f"{number:.6g}" for number in vector))
    return {"model": model, "texts": len(vectors), "width": width, "vectors": vectors}


def _parts(network: Model, texts: Iterator[str], how: TextVectors, file: Path | None) -> Iterator[np.ndarray]:
    """The vectors of texts, in batches; refuses a file without texts."""
    from encoderlab.inference import encode_parts

    if (first := next(texts, None)) is None:
        raise DataError(f"{file}: is empty; give a file with one text per line")
    return encode_parts(network, chain([first], texts), **vars(how))


def _write_vectors(
    out: Path, parts: Iterator[np.ndarray], width: int, show: Callable[[int], None] = lambda count: None
) -> int:
    """Write parts of an array (n, width) as one NumPy file and return n; ``show`` is told how many are written.

    The header contains n and is at the start of the file: it is written first with n = 0, and again with the true n at
    the end.
    """
    import numpy as np

    out.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(out) as file:
        header = {"descr": "<f4", "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, header | {"shape": (0, width)})
        count = 0
        for part in parts:
            file.write(part.astype("<f4", copy=False).tobytes())
            count += len(part)
            show(count)
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header | {"shape": (count, width)})
    return count


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, compressed or not, or of standard input for ``-``."""

    if str(path) == "-":
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise DataError(f"standard input: line {number} is not UTF-8; convert it with iconv") from None
        return
    if suffix(path) in RECORDS:
        raise DataError(f"{path}: is a table; give a text file with one text per line")
    yield from (line for _, line in lines(path))


def _load(folder: Path, precision: Precision = "fp32") -> Model:
    """The model in a folder, on the GPU if there is one."""
    from encoderlab.inference import placed
    from encoderlab.interchange.load import load

    return placed(load(folder), precision)
