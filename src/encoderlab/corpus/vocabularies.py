"""Existing vocabularies: ``tokenizer.json``, ``vocab.txt``, ``vocab.json`` with ``merges.txt``, ``.model``, folders."""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from encoderlab.corpus import sentencepiece_model
from encoderlab.corpus.special_tokens import FAMILIES, FRAMINGS, KINDS, FramingKind, SpecialTokens, guess
from encoderlab.errors import ConfigError, DataError, nearest

log = logging.getLogger(__name__)


@dataclass
class TokenizerParts:
    """A tokenizer of the library, its special tokens, and entries for ``tokenizer_config.json``."""

    backend: tokenizers.Tokenizer
    special_tokens: SpecialTokens
    options: dict[str, Any] = field(default_factory=dict)


def wordpiece(
    vocabulary: Iterable[str],
    *,
    unk: str = "[UNK]",
    lowercase: bool,
    strip_accents: bool | None = None,
    chinese: bool = True,
) -> tokenizers.Tokenizer:
    """BERT's tokenizer.

    By default accents are stripped if text is lower-cased; with ``chinese`` each CJK character is a word.
    """
    backend = tokenizers.Tokenizer(
        models.WordPiece({token: index for index, token in enumerate(vocabulary)}, unk_token=unk)
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def byte_bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], *, prefix_space: bool = False
) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE. A word at the start of a text has no leading-space marker, as in RoBERTa, unless there is
    ``prefix_space``.
    """
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def read(
    path: Path,
    *,
    merges: Path | None = None,
    family: str | None = None,
    lowercase: bool | None = None,
    add_special: bool = False,
) -> TokenizerParts:
    """Read a tokenizer folder, or one vocabulary file.

    Args:
        path: a folder (``tokenizer.json`` first, then the files below), ``tokenizer.json``, ``vocab.txt``,
            ``vocab.json``, or a SentencePiece ``.model``; each may end in ``.gz``.
        merges: the ``merges.txt`` of a ``vocab.json``, if it is not next to it.
        family: use the special tokens and normalisation of this family (a key of :data:`FAMILIES`) instead of those of
            the files.
        lowercase: lower-case the text (and strip accents), for ``vocab.txt`` and ``.model``; by default the folder's
            setting, else for ``vocab.txt`` whether the vocabulary has no upper-case letter, and for ALBERT yes.
        add_special: append special tokens that the vocabulary lacks, as new ids at its end.

    Raises:
        DataError: the file is missing, broken, or not a vocabulary.
        ConfigError: ``family`` is unknown, or ``lowercase`` cannot be chosen.
    """
    if family is not None and family not in FAMILIES:
        raise ConfigError(f"unknown tokenizer family {family!r}{nearest(family, FAMILIES)}")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; give a tokenizer folder, {_NAMES}")
    file, config = (_main_file(path), _folder_config(path)) if path.is_dir() else (path, _Config())
    suffix = file.name.removesuffix(".gz").rsplit(".", 1)[-1]
    if lowercase is None:
        lowercase = config.options.get("do_lower_case")
    elif suffix == "json" and lowercase != config.options.get("do_lower_case", False):
        raise ConfigError(f"{file}: already sets lower-casing; leave lowercase={lowercase} out")
    # WordPiece has BERT's tokens in every family: the vocabulary says it, as of ALBERT in Chinese.
    meant = family or (None if suffix == "txt" else config.family)
    if meant in _FAIRSEQ:
        config.fairseq, meant = meant, "roberta"
    if suffix == "txt" and config.kind in _OWN_WORDS:
        raise DataError(
            f"{file}: {config.kind} is not implemented, and BERT would find other tokens; give a folder with "
            f"tokenizer.json, or a copy without {file.name} to read the weights alone"
        )
    if suffix == "json":
        vocabulary = _read_json(file, merges, config)
    elif suffix == "txt":
        vocabulary = _read_wordpiece(file, lowercase, config)
    elif suffix == "model":
        vocabulary = _read_sentencepiece(file, meant, lowercase, config)
    else:
        raise DataError(f"{file}: not a vocabulary; give {_NAMES}")
    _add_tokens(vocabulary.backend, config, path)
    if family is None and vocabulary.framing is not None:
        config.framing = vocabulary.framing
    special_tokens = _special_tokens(vocabulary, config, meant)
    missing = [name for name in special_tokens.roles().values() if vocabulary.backend.token_to_id(name) is None]
    # DeBERTa's own loader appends [MASK] to its SentencePiece model.
    if missing and (
        add_special or (suffix == "model" and missing == [special_tokens.mask] and special_tokens.cls == "[CLS]")
    ):
        kind = KINDS[type(vocabulary.backend.model).__name__]
        vocabulary.backend.add_special_tokens(
            [token for token in special_tokens.added_tokens(kind) if token.content in missing]
        )
    as_it_is = not config.overrides or config.kind not in ("", *_CLASSES)
    if suffix == "json" and as_it_is and (path / "config.json").exists():
        _warn_of_other_frames(vocabulary.backend, special_tokens, file)
    return TokenizerParts(vocabulary.backend, special_tokens, vocabulary.options)


_NAMES = "vocab.txt, vocab.json with merges.txt, a SentencePiece .model, or tokenizer.json"
_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.txt.gz", "vocab.json", "vocab.json.gz", "spiece.model", "spm.model",
    "sentencepiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip

# Names in the folders of published models, and the family of their tokens and normalisation.
_CLASSES = {
    "BertTokenizer": "bert", "ElectraTokenizer": "bert", "DistilBertTokenizer": "bert", "ConvBertTokenizer": "bert",
    "RobertaTokenizer": "roberta", "GPT2Tokenizer": "roberta", "DebertaTokenizer": "deberta",
    "DebertaV2Tokenizer": "deberta-v2", "AlbertTokenizer": "albert", "XLNetTokenizer": "xlnet",
    "XLMRobertaTokenizer": "xlm-roberta", "CamembertTokenizer": "camembert",
}  # fmt: skip
_OF_BYTES = ("RobertaTokenizer", "GPT2Tokenizer", "DebertaTokenizer")
PREFIX_SPACE = "add_prefix_space"
# Classes with a vocab.txt that is not for BERT's words: those of MeCab or of jieba, or pieces of a BPE.
_OWN_WORDS = ("BertJapaneseTokenizer", "RoFormerTokenizer", "PhobertTokenizer", "BertweetTokenizer")
# Families that have RoBERTa's special tokens, and in a SentencePiece model the ids of fairseq: the tokens in front of
# the pieces, and the first of the pieces that are kept. <mask> comes last.
_FAIRSEQ = {
    "xlm-roberta": (("<s>", "<pad>", "</s>", "<unk>"), 3),
    "camembert": (("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), 1),
}  # fmt: skip
_MODEL_TYPES = {name: name for name in (*FAMILIES, *_FAIRSEQ)} | dict.fromkeys(
    ("electra", "distilbert", "convbert"), "bert"
)


@dataclass
class _VocabularyFile:
    """The content of a vocabulary file."""

    backend: tokenizers.Tokenizer
    options: dict[str, Any]
    control: tuple[str, ...] = ()  # pieces without text
    framing: FramingKind | None = None


@dataclass
class _Config:
    """The settings in a tokenizer folder's configuration files."""

    kind: str = ""  # the class in transformers
    overrides: bool = True  # whether that class, if it is one of a family, changes a tokenizer.json by its settings
    family: str | None = None
    tokens: dict[str, str] = field(default_factory=dict)  # role -> token
    added: list[tuple[AddedToken, int]] = field(default_factory=list)  # in the order of ids
    flagged: set[str] = field(default_factory=set)  # those of them whose flags are all stated
    framing: FramingKind | None = None
    options: dict[str, Any] = field(default_factory=dict)
    fairseq: str | None = None  # a key of _FAIRSEQ


_OPTIONS = (
    "do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents", "split_by_punct", PREFIX_SPACE,
)  # fmt: skip
_OF_NORMALIZER = {  # options of BERT's classes, their names in a tokenizer.json, and their defaults
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}


def _folder_config(folder: Path) -> _Config:
    files = ("tokenizer_config.json", "special_tokens_map.json", "config.json", "added_tokens.json")
    settings, names, model, added = (_json(folder / file) if (folder / file).exists() else {} for file in files)
    if not all(isinstance(index, int) for index in added.values()):
        raise DataError(f"{folder / 'added_tokens.json'}: not a mapping of tokens to ids; write it again")
    where = str(folder / "tokenizer_config.json")
    options = {key: settings[key] for key in _OPTIONS if key in settings}
    for key, value in options.items():
        if value is not None and not isinstance(value, bool):
            raise DataError(f"{where}: {key} is {value!r}, expected true or false; write it again")
    numbered = settings.get("added_tokens_decoder") or {}
    if not isinstance(numbered, dict) or not all(index.isdecimal() for index in numbered):
        raise DataError(f"{where}: added_tokens_decoder is not a mapping of ids to tokens; write it again")
    special = {
        _content(token, where)
        for fields in (settings, names)
        if isinstance(tokens := fields.get("additional_special_tokens"), list)
        for token in tokens
    }
    flagged = {
        token: (AddedToken(token, normalized=token not in special, special=token in special), index)
        for token, index in added.items()
    }
    flagged |= {_content(token, where): (_flagged(token, where), int(index)) for index, token in numbered.items()}
    whole = {token["content"] for token in numbered.values() if isinstance(token, dict) and {*_FLAGS} <= token.keys()}
    tokens = {}
    for role in ("pad", "unk", "cls", "sep", "mask", "eod"):
        value = settings.get(f"{role}_token") or names.get(f"{role}_token")
        if value:
            tokens[role] = _content(value, where)
    kind = str(settings.get("tokenizer_class") or model.get("tokenizer_class") or "").removesuffix("Fast")
    framing = settings.get("framing")
    if framing is not None and framing not in FRAMINGS:
        raise DataError(f"{where}: unknown framing {framing!r}{nearest(str(framing), FRAMINGS)}")
    return _Config(
        kind=kind,
        overrides=kind != "ConvBertTokenizer" and model.get("model_type") != "modernbert",
        family=_CLASSES.get(kind) or _MODEL_TYPES.get(str(model.get("model_type", ""))),
        tokens=tokens,
        added=sorted(flagged.values(), key=lambda item: item[1]),
        flagged=whole,
        framing=framing,
        options=options,
    )


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _flagged(token: Any, where: str) -> AddedToken:
    """An entry of ``added_tokens_decoder``, which says how the token is found in a text."""
    flags = {name: isinstance(token, dict) and token.get(name) is True for name in _FLAGS}
    return AddedToken(_content(token, where), **flags)


def _add_tokens(backend: tokenizers.Tokenizer, config: _Config, path: Path) -> None:
    """Add the added tokens of the folder at ``path`` under their ids. :class:`Tokenizer` adds those with a role.

    Flags in ``tokenizer_config.json`` come before those in ``tokenizer.json``, as in ``transformers``. SentencePiece's
    normaliser marks spaces, and the mark before a token that is found after it would be a piece.
    """
    roles = {name for family in FAMILIES.values() for name in family.special_tokens.roles().values()}
    roles |= set(config.tokens.values())
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token, index in config.added:
        name, there = token.content, backend.token_to_id(token.content)
        if name in known and name in config.flagged and there == index:
            backend.add_tokens([token])
        if name in known or (there is not None and (name in roles or there != index)):
            continue
        if name in roles:
            token = AddedToken(name, normalized=False)
        elif isinstance(backend.model, models.Unigram):
            token = AddedToken(name, **{flag: getattr(token, flag) for flag in _FLAGS} | {"normalized": False})
        backend.add_tokens([token])
        if backend.token_to_id(name) != index:
            raise DataError(f"{path}: the added token {name!r} has id {index}, expected {backend.token_to_id(name)}")


def _special_tokens(vocabulary: _VocabularyFile, config: _Config, family: str | None) -> SpecialTokens:
    """The family's special tokens, with the folder's names; from the vocabulary if neither is known."""
    special_tokens = FAMILIES[family].special_tokens if family else guess(vocabulary.backend)
    special_tokens = dataclasses.replace(special_tokens, **config.tokens)  # type: ignore[arg-type]
    if config.framing:
        special_tokens = dataclasses.replace(special_tokens, framing=config.framing)
    if special_tokens.eod is not None and vocabulary.backend.token_to_id(special_tokens.eod) is None:
        special_tokens = dataclasses.replace(special_tokens, eod=None)
    added = sorted(vocabulary.backend.get_added_tokens_decoder().items())
    special = (*vocabulary.control, *(token.content for _, token in added if token.special))
    others = tuple(dict.fromkeys(name for name in special if name not in special_tokens.roles().values()))
    return dataclasses.replace(special_tokens, others=others)


def _read_json(file: Path, merges: Path | None, config: _Config) -> _VocabularyFile:
    """A ``tokenizer.json``, or a ``vocab.json`` with its ``merges.txt``."""
    data = _json(file)
    if isinstance(data.get("model"), dict):
        _apply_options(data, config)
        return _VocabularyFile(_library(file, data), config.options, framing=_framing(data.get("post_processor")))
    spaced = config.options.get(PREFIX_SPACE) is True
    backend = _read_bpe(file, data, merges or _beside(file), prefix_space=spaced)
    return _VocabularyFile(backend, {PREFIX_SPACE: True} if spaced else {})


def _apply_options(data: dict[str, Any], config: _Config) -> None:
    """Change a ``tokenizer.json`` as the classes of BERT, RoBERTa and DeBERTa in ``transformers`` do, for which the
    settings in ``tokenizer_config.json`` come first, and their defaults if it has none.
    """
    normalizer = data.get("normalizer")
    of_bert = config.overrides and config.family == "bert" and config.kind in ("", *_CLASSES)
    if of_bert and isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        for option, (name, usual) in _OF_NORMALIZER.items():
            asked = config.options.get(option)
            normalizer[name] = usual if asked is None else asked
    splitter = data.get("pre_tokenizer")
    spaced = config.options.pop(PREFIX_SPACE, None) is True
    if isinstance(splitter, dict) and splitter.get("type") == "ByteLevel":
        of_bytes = config.kind in _OF_BYTES or (not config.kind and config.family in ("roberta", "deberta"))
        if config.overrides and of_bytes:
            splitter[PREFIX_SPACE] = spaced
        if splitter.get(PREFIX_SPACE) is True:
            config.options[PREFIX_SPACE] = True


def _read_wordpiece(file: Path, lowercase: bool | None, config: _Config) -> _VocabularyFile:
    lines = _text(file).split("\n")
    if not lines[-1]:
        lines.pop()
    vocabulary = [line.rstrip("\r") for line in lines]
    if not vocabulary:
        raise DataError(f"{file}: empty; give a vocabulary with one token per line")
    if lowercase is None:
        lowercase = not any(token.isascii() and token.lower() != token for token in vocabulary if token[:1] != "[")
    accents, chinese = config.options.get("strip_accents"), config.options.get("tokenize_chinese_chars") is not False
    unk = config.tokens.get("unk", "[UNK]")
    backend = wordpiece(vocabulary, unk=unk, lowercase=lowercase, strip_accents=accents, chinese=chinese)
    options = {"do_lower_case": lowercase, "strip_accents": accents, "tokenize_chinese_chars": chinese}
    return _VocabularyFile(backend, options)


def _read_bpe(file: Path, data: dict[str, Any], merges_file: Path, *, prefix_space: bool) -> tokenizers.Tokenizer:
    if not data or not all(isinstance(index, int) and index >= 0 for index in data.values()):
        raise DataError(f"{file}: not a vocabulary; expected a mapping of tokens to ids")
    names = {index: token for token, index in data.items()}
    # RoBERTa's released vocabulary leaves out three unused ids before <mask>; fairseq calls them so.
    gaps = [index for index in range(max(names)) if index not in names]
    if len(gaps) > 1000:
        raise DataError(f"{file}: {len(gaps)} ids of {max(names) + 1} have no token; expected ids without gaps")
    vocabulary = data | {f"madeupword{number:04d}": index for number, index in enumerate(gaps)}
    lines = _text(merges_file).split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    if not all(len(pair) == 2 for pair in merges):
        raise DataError(f"{merges_file}: not a merges file; expected two tokens per line")
    try:
        return byte_bpe(vocabulary, merges, prefix_space=prefix_space)  # type: ignore[arg-type]
    except Exception as error:  # the library raises bare exceptions
        raise DataError(
            f"{merges_file}: does not fit {file.name} ({error}); give the two files of one tokenizer"
        ) from None


def _read_sentencepiece(file: Path, family: str | None, lowercase: bool | None, config: _Config) -> _VocabularyFile:
    try:
        model = sentencepiece_model.parse(_bytes(file))
    except (ValueError, UnicodeDecodeError, struct.error) as error:
        raise DataError(f"{file}: not a SentencePiece model ({error}); fetch it again") from None
    if config.fairseq is not None:
        front, first = _FAIRSEQ[config.fairseq]
        model = sentencepiece_model.with_ids_of_fairseq(model, front, first)
    if model.model_type != sentencepiece_model.UNIGRAM:
        raise DataError(f"{file}: a SentencePiece model of type {model.model_type}, expected 1 (Unigram)")
    for setting, is_set in (
        ("treat_whitespace_as_suffix", model.space_after),
        ("split_by_whitespace false, with pieces of several words,", model.across_words),
    ):
        if is_set:
            raise DataError(f"{file}: {setting} is not supported; give a folder with tokenizer.json")
    if config.options.get("split_by_punct"):
        raise DataError(
            f"{file.parent / 'tokenizer_config.json'}: split_by_punct is not supported; no published model sets it"
        )
    lowercase = family == "albert" if lowercase is None else lowercase
    keep_accents = bool(config.options.get("keep_accents", False))
    before = unigram_normalizers(family, lowercase=lowercase, keep_accents=keep_accents)
    try:
        backend = sentencepiece_model.unigram(model, before=before, split_numbers=family in ("albert", "xlnet"))
    except Exception as error:  # the library raises bare exceptions
        raise DataError(f"{file}: not a SentencePiece model ({error}); fetch it again") from None
    return _VocabularyFile(backend, {"do_lower_case": lowercase, "keep_accents": keep_accents}, model.control())


def unigram_normalizers(
    family: str | None, *, lowercase: bool, keep_accents: bool = False
) -> list[normalizers.Normalizer]:
    """A family's changes to text before sentencepiece sees it: none for DeBERTa, or without a family."""
    steps: list[normalizers.Normalizer] = []
    if family in ("albert", "xlnet"):
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not keep_accents:
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    return steps


def unigram_cleaning() -> list[normalizers.Normalizer]:
    """NFKC, control characters removed, runs of white space to one space: for tokenizers that are trained here.

    The characters are those of sentencepiece's ``nmt_nfkc``, whose map itself the two libraries apply differently.
    """
    return [
        normalizers.NFKC(),
        normalizers.Replace(Regex(r"[\x00-\x08\x0B\x0E-\x1F\x7F-\x84\x86-\x9F]"), ""),
        normalizers.Replace(Regex(r"[\s\x85\u1680\u200B-\u200F\u2028\u2029\u2581\uFEFF\uFFFD]+"), " "),
        normalizers.Replace(Regex("^ | $"), ""),
    ]


def _library(file: Path, data: dict[str, Any]) -> tokenizers.Tokenizer:
    kind = data["model"].get("type")
    if kind is not None and kind not in ("WordPiece", "BPE", "Unigram"):
        raise DataError(f"{file}: a {kind} tokenizer; expected WordPiece, BPE or Unigram")
    if kind == "Unigram" and data["model"].get("unk_id") is None:
        raise DataError(f"{file}: names no unk_id, the piece for unknown characters; write it again or fetch it again")
    vocabulary = data["model"].get("vocab")
    unk = data["model"].get("unk_token")
    if kind == "WordPiece" and isinstance(vocabulary, dict) and isinstance(unk, str) and unk not in vocabulary:
        raise DataError(f"{file}: its vocabulary lacks {unk}, the token for unknown words; fetch it again")
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises bare exceptions
        raise DataError(
            f"{file}: not a tokenizer ({str(error).splitlines()[0]}); write it again or fetch it again"
        ) from None
    if undefined := _undefined(data.get("post_processor")):  # the library panics at the first text
        raise DataError(
            f"{file}: its post_processor does not define {min(undefined)}; write it again or fetch it again"
        )
    return backend


_FRAMINGS: dict[str, FramingKind] = {"sTsTs": "bert", "sTssTs": "roberta", "TsTss": "xlnet"}


def _framing(processor: Any) -> FramingKind | None:
    """The framing of a pair of texts by the post-processor of a ``tokenizer.json``; None if it is not one of ours."""
    kind = processor.get("type") if isinstance(processor, dict) else None
    if kind == "Sequence":
        return next(filter(None, map(_framing, processor["processors"])), None)
    if kind == "TemplateProcessing":
        return _FRAMINGS.get("".join("T" if "Sequence" in piece else "s" for piece in processor["pair"]))
    return {"BertProcessing": _FRAMINGS["sTsTs"], "RobertaProcessing": _FRAMINGS["sTssTs"]}.get(str(kind))


def _undefined(processor: Any) -> set[str]:
    """The special tokens that a template of the post-processor of a ``tokenizer.json`` puts around texts without naming
    their ids.
    """
    kind = processor.get("type") if isinstance(processor, dict) else None
    if kind == "Sequence":
        return set().union(*map(_undefined, processor["processors"]))
    if kind != "TemplateProcessing":
        return set()
    pieces = (piece.get("SpecialToken", {}) for piece in (*processor["single"], *processor["pair"]))
    return {str(piece["id"]) for piece in pieces if piece} - processor["special_tokens"].keys()


def _warn_of_other_frames(backend: tokenizers.Tokenizer, special_tokens: SpecialTokens, file: Path) -> None:
    """Of a model's folder: print if ``transformers``, which takes the file as it is, puts other special tokens around a
    text than rows have here.
    """
    backend.no_padding()
    backend.no_truncation()
    frame = backend.encode("")
    theirs = list(compress(frame.tokens, frame.special_tokens_mask))
    ours = [special_tokens.cls, special_tokens.sep]
    if theirs != (ours[::-1] if special_tokens.framing == "xlnet" else ours):
        log.warning(
            "%s: puts %s around a text, and rows have %s and %s here: results differ from those of transformers",
            file,
            " and ".join(theirs) or "no special tokens",
            *ours,
        )


def find_file(folder: Path) -> Path | None:
    """The main file of the tokenizer in a folder; None without any."""
    models_here = sorted(folder.glob("*.model"))
    files = (folder / name for name in _FILES)
    return next((file for file in files if file.is_file()), models_here[0] if len(models_here) == 1 else None)


def _main_file(folder: Path) -> Path:
    if (file := find_file(folder)) is None:
        raise DataError(f"{folder}: no tokenizer in this folder; expected {_NAMES}")
    return file


def _beside(file: Path) -> Path:
    for name in ("merges.txt", "merges.txt.gz"):
        if (file.parent / name).is_file():
            return file.parent / name
    raise DataError(f"{file}: merges.txt is missing next to it; byte-level BPE needs both files")


def _bytes(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if file.name.endswith(".gz") else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{file}: cannot be read ({getattr(error, 'strerror', None) or error}); check the file"
        ) from None


def _text(file: Path) -> str:
    try:
        return _bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 at byte {error.start}; expected a text file") from None


def _json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not valid JSON ({error}); write it again or fetch it again") from None
    if not isinstance(data, dict):
        raise DataError(f"{file}: contains {type(data).__name__}, expected an object")
    return data


def _content(token: Any, file: str) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise DataError(f"{file}: a token is {token!r}, expected a text; write it again")
    return content
