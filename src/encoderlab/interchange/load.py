"""Load models from every folder and checkpoint that this project can read."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal

import torch

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import deberta, fairseq, huggingface, reading, tensorflow, transformer_xl
from encoderlab.interchange import folder as ours
from encoderlab.interchange.assemble import Models
from encoderlab.interchange.files import PICKLED, PICKLED_INDEX, SAFE, SAFE_INDEX, read_json
from encoderlab.interchange.finetuned import best_seed
from encoderlab.interchange.places import resolve
from encoderlab.model import Model

log = logging.getLogger(__name__)

Source = Literal["encoderlab", "hf", "pair", "tensorflow", "fairseq", "deberta", "transformer-xl"]
BPE = "bpe_encoder.bin"
UNNAMED = ("albert", "xlnet", "roberta")  # families whose vocabulary files do not name the family


def load(path: str | os.PathLike[str], *, allow_missing: bool = False) -> Model:
    """Load the model at ``path``: a folder of encoderlab, a run folder (its ``model/``, or that of the best seed of a
    fine-tuning), or a Hugging Face folder.

    ``path`` may also be the name of a model, installed or of the Hugging Face Hub
    (:func:`encoderlab.interchange.places.resolve`). Of two networks that were trained together, the discriminator is
    loaded. With ``allow_missing``, missing encoder weights of a Hugging Face folder get random values instead of an
    error.

    Raises:
        DataError: the folder is missing, damaged, or of an unsupported kind.
        ConfigError: no right to read a model of the Hub, or ``path`` is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"load got {path!r:.40}, expected the folder or the name of a model, such as 'small-en'")
    folder = resolve(path)
    if not folder.is_dir():
        what = "is a file" if folder.is_file() else "no such folder"
        raise DataError(f"{folder}: {what}; give a model folder, or a run folder with model/")
    if ours.is_ours(place := model_folder(folder)):
        return reading.load(place)
    if (place / "config.json").exists():
        return huggingface.load(place, allow_missing=allow_missing)
    if (best := best_seed(folder, log.info)) != folder:
        return load(best, allow_missing=allow_missing)
    kind = kind_of(folder)
    if kind is not None:
        raise DataError(f"{folder}: is a {kind!r} checkpoint; run: encoderlab convert {folder} OUT")
    if (folder / "model" / "config.json").exists():
        read_json(folder / "model" / "config.json")  # refuses a damaged one
    if (folder / "checkpoints").is_dir():
        raise DataError(
            f"{folder}: is an unfinished run; finish it, or take its newest checkpoint: encoderlab convert {folder} OUT"
        )
    if folder.resolve().parent.name == "checkpoints":
        raise DataError(f"{folder}: is a checkpoint, not a model; run: encoderlab convert {folder} OUT")
    raise DataError(f"{folder}: has no config.json; give a model folder, or a run folder with model/")


def model_folder(folder: Path) -> Path:
    """The folder within ``folder`` whose model :func:`load` reads, without best seeds; itself if it has none."""
    pairs = (folder / "discriminator", folder / "model" / "discriminator")
    ours_at = next((place for place in (folder, folder / "model", *pairs) if ours.is_ours(place)), None)
    return ours_at or next((place for place in (folder, pairs[0]) if (place / "config.json").exists()), folder)


def load_pair(path: str | os.PathLike[str]) -> tuple[Model, Model | None]:
    """The model at ``path``, and its generator if two networks were trained together, else None."""
    folder = resolve(path)
    for candidate in (folder, folder / "model"):
        if is_pair(candidate):
            models = read_pair(candidate)
            return models["discriminator"], models["generator"]
    return load(folder), None


def is_pair(folder: Path) -> bool:
    """Whether the folder has ``generator/`` and ``discriminator/``."""
    return all((folder / part / "config.json").exists() for part in ("generator", "discriminator"))


def read_pair(folder: Path, *, allow_missing: bool = False) -> Models:
    """Read ``generator/`` and ``discriminator/``, in our format or Hugging Face's.

    In ELECTRA and ConvBERT, equal embeddings become shared again; if they differ, each network has its own, with a
    warning.
    """
    models = {part: load(folder / part, allow_missing=allow_missing) for part in ("generator", "discriminator")}
    generator, discriminator = models["generator"], models["discriminator"]
    if generator.config.family in ("electra", "convbert"):
        one, two = generator.encoder.embeddings, discriminator.encoder.embeddings
        own, others = dict(one.named_parameters()), dict(two.named_parameters())
        names = [name for name in own if not name.startswith("map.")]
        differ = [name for name in names if name not in others or not torch.equal(own[name], others[name])]
        if differ:
            log.warning("%s: generator and discriminator have separate embeddings (%s)", folder, ", ".join(differ))
            return models
        one.words, one.positions, one.types, one.norm = two.words, two.positions, two.types, two.norm
    return models


def kind_of(path: Path) -> Source | None:
    """The kind of model in a folder, or at the prefix of a TensorFlow checkpoint; None if unknown."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and (ours.is_ours(path) or ours.is_ours(path / "model")):
        return "encoderlab"
    if path.is_dir() and any(is_pair(candidate) for candidate in (path, path / "model")):
        return "pair"
    if _is_huggingface(path):
        return "hf"
    if (path.is_dir() and any(path.glob("*.index"))) or Path(f"{path}.index").exists():
        return "tensorflow"
    if path.suffix == ".index":
        return "tensorflow"
    if (folder / transformer_xl.CONFIG).exists():
        return "transformer-xl"
    if (folder / "dict.txt").exists() and (path.suffix == ".pt" or (folder / "model.pt").exists()):
        return "fairseq"
    if path.is_dir() and (path / "config.json").exists() and "model_type" in read_json(path / "config.json"):
        return "hf"
    if path.suffix != ".safetensors" and any((folder / name).exists() for name in ("config.json", "model_config.json")):
        return "deberta"
    return None


def _is_huggingface(path: Path) -> bool:
    """Whether a folder has Hugging Face's weights, as some have besides a TensorFlow checkpoint.

    Old folders lack ``model_type``; so do those of DeBERTa's own code, which have ``relative_attention``.
    """
    if not any((path / name).exists() for name in (SAFE, SAFE_INDEX, PICKLED, PICKLED_INDEX)):
        return False
    if not (path / "config.json").exists():
        return False
    fields = read_json(path / "config.json")
    return "model_type" in fields or "relative_attention" not in str(fields)


def read(path: Path, *, kind: Source | None = None, allow_missing: bool = False) -> Models:
    """The networks in a folder or checkpoint of any :data:`Source`: ``{"model": ...}``, or ``generator`` and
    ``discriminator``.

    Raises:
        DataError: the kind is unknown, or a file is damaged.
    """
    path = resolve(path)
    kind = kind or kind_of(path)
    if kind == "pair":
        return read_pair(path if is_pair(path) else path / "model", allow_missing=allow_missing)
    if kind in ("encoderlab", "hf"):
        return {"model": load(path, allow_missing=allow_missing)}
    if kind is None:
        raise DataError(
            f"{path}: no known model format; expected a folder of encoderlab or Hugging Face, a TensorFlow checkpoint, "
            "fairseq's model.pt with dict.txt, DeBERTa's .bin with config.json, or Transformer-XL's .pt with "
            "transformer_xl_config.json"
        )
    readers = {
        "tensorflow": tensorflow.read,
        "fairseq": fairseq.read,
        "deberta": deberta.read,
        "transformer-xl": transformer_xl.read,
    }
    try:
        models = readers[kind](path, allow_missing=allow_missing)
    except ConfigError as error:  # the checkpoint's configuration is not valid
        raise DataError(f"{path}: {error}") from None
    family = next(iter(models.values())).config.family
    tokenizer = find_tokenizer(path if path.is_dir() else path.parent, family)
    for model in models.values():
        reading.give_tokenizer(model, tokenizer, path)
    return models


def find_tokenizer(path: Path, family: str) -> Tokenizer | None:
    """The tokenizer in a file or folder, or None.

    fairseq's is GPT-2's vocabulary next to ``dict.txt``; DeBERTa v1 may have ``bpe_encoder.bin``.
    """
    if path.name == BPE:
        return deberta.tokenizer(path)
    known = family if family in UNNAMED else None
    if path.is_file():
        return Tokenizer.load(path, family=None if ".txt" in path.suffixes else known)
    if (path / "dict.txt").exists():
        has_vocabulary = (path / "encoder.json").exists() or (path / "vocab.json").exists()
        return fairseq.tokenizer(path / "dict.txt", path) if has_vocabulary else None
    files = [path / "tokenizer.json", path / "vocab.txt", path / "vocab.json", *sorted(path.glob("*.model"))]
    file = next((file for file in files if file.exists()), None)
    if file is None:
        return deberta.tokenizer(path / BPE) if (path / BPE).exists() else None
    if file.suffix == ".txt":  # BERT's tokens, as ALBERT in Chinese has them
        known = None
    return Tokenizer.load(file if file.suffix == ".model" else path, family=known)
