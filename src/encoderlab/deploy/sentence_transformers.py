"""What sentence-transformers' files in a model's folder say of its vectors: pooling, scale, prompts and length."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.deploy.serve.texts import Refused
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import read_json
from encoderlab.inference import Pooling
from encoderlab.interchange import checksums, lengths
from encoderlab.interchange.folder import write_fields

log = logging.getLogger(__name__)

MODULES, GENERAL = "modules.json", "config_sentence_transformers.json"
RESTORE = "restore it, or export the model again"
IMPLEMENTED = ("Transformer", "Pooling", "Normalize")
COMPARISONS = ("cosine", "dot", "euclidean", "manhattan")
SCORING = ("sentence_transformers", "sbert_ce_default_activation_function")  # fields of a cross-encoder's config.json


@dataclass(frozen=True)
class Prompts:
    """What is put before texts, by name; ``default`` names the one of requests without a name."""

    named: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def before(self, name: str | None) -> str:
        """The prompt of a request.

        Raises:
            Refused: the model has none of that name.
        """
        name = self.default if name is None else name
        if name is None:
            return ""
        if name not in self.named:
            known = (
                f"it has {', '.join(self.named)}" if self.named else "it has none; write the prompt before each text"
            )
            raise Refused(f"the model has no prompt called {name!r}: {known}")
        return self.named[name]


@dataclass(frozen=True, kw_only=True)
class TextVectors:
    """How a text becomes a vector.

    Args:
        pooling: how the states of its tokens become one.
        normalize: whether it is scaled to length 1.
        longest: the most tokens that are read, special ones included; None: as many as the model reads.
        prompt: stands before each text.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    longest: int | None = None
    prompt: str = ""


def vectors_of(folder: Path) -> TextVectors:
    """The vectors that sentence-transformers' files ask for; without a list of modules, plain means.

    Raises:
        ConfigError, DataError: as :func:`pooling_of`, :func:`prompts_of` and :func:`longest_of`.
    """
    pooling, normalize = pooling_of(folder) if (folder / MODULES).is_file() else ("mean", False)
    prompt = prompts_of(folder).before(None)
    return TextVectors(pooling=pooling, normalize=normalize, longest=longest_of(folder), prompt=prompt)


def pooling_of(folder: Path) -> tuple[Pooling, bool]:
    """The pooling for the model in a folder, and whether vectors are scaled to length 1.

    Read from sentence-transformers' files if they exist, otherwise the mean, normalised.

    Raises:
        ConfigError: a pooling or module that is not implemented.
        DataError: a file of them is damaged or missing.
    """
    path = folder / MODULES
    if not path.is_file():
        return "mean", True
    places = _places(path)
    if strange := set(places).difference(IMPLEMENTED):
        raise ConfigError(f"{path}: module {sorted(strange)[0]} is not implemented; export the model without it")
    place = places.get("Pooling")
    if place is None:
        return "mean", "Normalize" in places
    checksums.verify_file(folder, f"{place}/config.json")
    data = read_json(folder / str(place) / "config.json", RESTORE)
    if data.get("include_prompt") is False and any(prompts_of(folder).named.values()):
        raise ConfigError(
            f"{folder / place}: include_prompt false is not implemented; use a model that pools prompts too"
        )
    modes = {
        name.removeprefix("pooling_mode_")
        for name, value in data.items()
        if name.startswith("pooling_mode_") and value is True
    }
    known: dict[str, Pooling] = {"mean_tokens": "mean", "cls_token": "first", "lasttoken": "last"}
    newer: dict[str, Pooling] = {"mean": "mean", "cls": "first", "lasttoken": "last"}
    pooling = newer.get(str(data.get("pooling_mode"))) or (known.get(next(iter(modes))) if len(modes) == 1 else None)
    if pooling is None:
        named = data.get("pooling_mode") or ", ".join(sorted(modes)) or "none"
        raise ConfigError(f"{folder / place}: pooling {named} is not implemented; use mean, cls or lasttoken")
    return pooling, "Normalize" in places


def _places(path: Path) -> dict[str, str]:
    """The folders of the modules that ``modules.json`` lists, by the kind of module.

    Raises:
        DataError: it is damaged, or names a folder elsewhere.
    """
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        places = {str(module["type"]).rpartition(".")[2]: module["path"] for module in modules}
        if not places or not all(re.fullmatch(r"(\w[\w.-]*)?", place) for place in places.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: is damaged; {RESTORE}") from None
    return places


def copy_settings(folder: Path, out: Path) -> None:
    """Copy sentence-transformers' files of a model's folder into the folder of the same model in another format.

    Of a model with a module that is not implemented, only the longest text is kept, with a warning, because the other
    files mean nothing without that module's weights.

    Raises:
        DataError: one of them is damaged.
    """
    places = _places(folder / MODULES) if (folder / MODULES).is_file() else {}
    if strange := sorted(set(places).difference(IMPLEMENTED)):
        log.warning(
            "%s: module %s is not implemented; the new folder has neither it nor the pooling and the prompts",
            folder / MODULES,
            strange[0],
        )
        lengths.copy(folder, out)
        return
    settings = [f"{place}/config.json" for kind, place in places.items() if kind != "Transformer"]
    for name in (MODULES, GENERAL, *settings):
        if (folder / name).is_file():
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, out / name)
    path, longest = lengths.sentences_file(folder), longest_of(folder)
    fields = {} if path is None else read_json(path, RESTORE)
    if fields or longest is not None:  # the tokenizer's file is written again
        name = "sentence_bert_config.json" if path is None else path.name
        write_fields(out / name, fields | {"max_seq_length": longest})


def scoring_of(folder: Path) -> dict[str, Any]:
    """The fields of ``config.json`` that say what sentence-transformers and vLLM make of a cross-encoder's number.

    Without them they take its sigmoid; most rankers ask for the number itself.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / "config.json"
    return {name: value for name, value in read_json(path, RESTORE).items() if name in SCORING} if path.exists() else {}


def copy_scoring(folder: Path, out: Path) -> None:
    """Copy the longest text and :func:`scoring_of` from a fine-tuned model's folder into that of the same model in
    another format; our own ``config.json`` has no place for the latter.

    Raises:
        DataError: one of the files is damaged.
    """
    lengths.copy(folder, out)
    config = read_json(out / "config.json", RESTORE)
    if "architectures" in config:
        write_fields(out / "config.json", config | scoring_of(folder))


def prompts_of(folder: Path) -> Prompts:
    """The prompts in sentence-transformers' files; without any, the model has none.

    Raises:
        DataError: they are no texts, or the one for every text is not among them.
    """
    path = folder / GENERAL
    if not path.is_file():
        return Prompts()
    data = read_json(path, RESTORE)
    named, default = data.get("prompts") or {}, data.get("default_prompt_name")
    if not isinstance(named, dict) or not all(isinstance(text, str) for text in named.values()):
        raise DataError(f"{path}: prompts is {named!r:.80}, expected texts by name; correct it")
    if default is not None and default not in named:
        raise DataError(f"{path}: default_prompt_name is {default!r}, expected one of {[*named]}; correct it")
    return Prompts(named, default)


def comparison_of(folder: Path) -> str:
    """The function by which sentence-transformers compares the vectors of the model in a folder.

    Raises:
        DataError: it has none of that name.
    """
    path = folder / GENERAL
    name = (read_json(path, RESTORE) if path.is_file() else {}).get("similarity_fn_name") or "cosine"
    if name not in COMPARISONS:
        raise DataError(f"{path}: similarity_fn_name is {name!r}, expected one of {', '.join(COMPARISONS)}; correct it")
    return str(name)


def longest_of(folder: Path) -> int | None:
    """The longest text in tokens by sentence-transformers' files, special tokens included; None if they name none.

    Since release 5.4 it is in the tokenizer's file.

    Raises:
        DataError: one of them is damaged.
    """
    return lengths.stated(folder) if (folder / MODULES).is_file() else lengths.of_sentences(folder)


def check_case(folder: Path, tokenizer: Tokenizer) -> None:
    """Refuse sentence-transformers' files that ask for lower case if the tokenizer distinguishes it.

    Raises:
        ConfigError: they do.
    """
    path = lengths.sentences_file(folder)
    if path is None or not read_json(path, RESTORE).get("do_lower_case"):
        return
    if list(tokenizer.encode("The").ids) != list(tokenizer.encode("the").ids):
        raise ConfigError(
            f"{path}: do_lower_case is not implemented for a tokenizer that distinguishes case; set it to false, "
            "and send texts in lower case"
        )
