"""Hugging Face folders: ``config.json``, ``model.safetensors`` (or shards, or a legacy ``.bin``), tokenizer files."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import configs, heads, names, tables
from encoderlab.interchange import folder as folders
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.nn.heads import Classification
from encoderlab.nn.positions import Absolute
from encoderlab.nn.spanconv import SpanDynamic

log = logging.getLogger("encoderlab")

LAYOUTS = {
    "bert": tables.BERT,
    "roberta": tables.ROBERTA,
    "albert": tables.ALBERT,
    "distilbert": tables.DISTILBERT,
    "electra": tables.ELECTRA,
    "convbert": tables.CONVBERT,
    "deberta": tables.DEBERTA_V1,
    "deberta-v2": tables.DEBERTA_V2,
    "xlnet": tables.XLNET,
}
# Ids that config.json repeats where the model has no tokenizer of its own: pad, bos, eos.
TOKEN_IDS = {"roberta": (1, 0, 2), "albert": (0, 2, 3), "xlnet": (5, 1, 2)}
SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def load(folder: str | os.PathLike[str], *, allow_missing: bool = False) -> Model:
    """The model in a Hugging Face folder, with the heads that its weights have and the one that it was fine-tuned for.

    Names with and without the family's prefix, ``module.``, ``gamma`` and ``beta``, and buffers of old files are
    understood. Weights that the model has no use for are listed in a warning; so are missing ones of a head, which
    start from random values. With ``allow_missing`` this goes for the encoder too.

    Raises:
        DataError: a file is missing or damaged, a weight is missing, has another shape or is not finite, or
            ``config.json`` asks for something that is not implemented.
    """
    folder = Path(folder)
    data = read_json(folder / "config.json")
    source = str(folder / "config.json")
    form, config = configs.read(data, source)
    config = heads.read_task(data, source, form.model_type, config)
    model = assemble(
        config, read_tensors(folder), layout_of(config, form.model_type), folder, allow_missing=allow_missing
    )
    folders.give_tokenizer(model, _tokenizer(folder), folder)
    return model


def layout_of(config: ModelConfig, model_type: str) -> names.Layout:
    """The names of a model of this configuration, the head of fine-tuning included."""
    if model_type == "transfo-xl":
        assert config.encoder.adaptive is not None
        return tables.transformer_xl(config.encoder.adaptive, config.encoder.vocab, original=False)
    layout = LAYOUTS[model_type]
    return replace(layout, rules=(*heads.task_rules(config, model_type), *layout.rules))


def assemble(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    layout: names.Layout,
    source: Path,
    *,
    allow_missing: bool = False,
) -> Model:
    """The model of ``config`` out of foreign ``tensors``; pretraining heads that they lack are left out of it.

    Raises:
        DataError: weights are missing, have another shape or are not finite.
    """
    folders.check_depth(config, len(tensors), source)
    expected = _shapes(_unfilled(config))
    reading = names.read(layout, tensors, expected, config.encoder, source=str(source))
    config = heads.without(config, reading.missing, expected)
    config = _settle(config, reading, tensors, source)
    model = _unfilled(config)
    expected = _shapes(model)
    state = {name: tensor for name, tensor in reading.weights.items() if name in expected}
    missing = [name for name in expected if name not in state]
    dropped = layout.bound(sorted(reading.weights.keys() - state.keys()), config.encoder)
    left = [name for rule in dropped for name in rule.theirs if not names.is_ignored(layout, name)]
    unused = reading.unexpected + left
    if unused:
        log.warning("%s: unexpected weights, not used: %s", source, ", ".join(unused))
    if missing:
        theirs = {rule.ours: " + ".join(rule.theirs) for rule in layout.bound(missing, config.encoder)}
        named = [theirs.get(name, name) for name in missing]
        if not allow_missing and any(name.startswith("encoder.") for name in missing):
            raise DataError(
                f"{source}: weights are missing: {folders.some(named)}; copy the file again, or allow missing weights"
            )
        log.warning("%s: missing weights, initialised at random: %s", source, ", ".join(named))
        fresh = dict(Model(config).initialize(0).named_parameters())
        state |= {name: fresh[name].detach() for name in missing}
    folders.fill(model, state, source)
    return model.eval()


def save(model: Model, folder: str | os.PathLike[str], *, both_heads: bool = False) -> list[str]:
    """Write the model as a Hugging Face folder, whole or not at all; returns what a user should know about it.

    Args:
        both_heads: DeBERTa's masked-LM head under its original names too (``lm_predictions``), for readers of those;
            ``transformers`` then reports them as unexpected.

    Raises:
        DataError: the architecture or a head has no counterpart in ``transformers``.
        ConfigError: the folder is not empty.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not empty; choose another folder")
    config, weights = model.config, folders.weights(model)
    if config.task is not None:
        config, weights = _for_task(config, weights)
    form = configs.format_of(config)
    if form.model_type == "roberta" and model.tokenizer is not None:
        config, weights = _count_from_padding(config, weights, model.tokenizer.special.pad)
    data = {**configs.write(config), **_more_fields(model, form)}
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{name} holds values that are not finite; take an earlier checkpoint")
    ties = form.model_type == "transfo-xl"  # its last readers expect both names
    layout = layout_of(config, form.model_type)
    tensors = names.write(layout, weights, config.encoder, dialects=both_heads, ties=ties)
    tensors |= _additions(config, form.model_type)
    notes = _notes(config)
    lost = [
        head for head in ("lm", "pair", "pooler", "rtd") if getattr(model.config, head) and not getattr(config, head)
    ]
    if lost:
        notes.append(f"left out, as classes of transformers with a task head have none: {', '.join(lost)}")

    def fill(aside: Path) -> None:
        (aside / "config.json").write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        safetensors.torch.save_file(tensors, aside / SAFE, metadata={"format": "pt"})
        if model.tokenizer is not None:
            model.tokenizer.save(aside)
            _fit_tokenizer(aside / "tokenizer_config.json", config)
        card = [
            f"# {config.family}",
            "",
            "Written by encoderlab in the format of transformers.",
            *(f"- {n}" for n in notes),
        ]
        (aside / "README.md").write_text("\n".join(card) + "\n", encoding="utf-8")

    folders.write_whole(folder, fill)
    return notes


# Reading files
# ----------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataError: missing, unreadable, or not an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path.parent}: holds no {path.name}; give a model folder") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({str(error).splitlines()[0]}); restore it") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: holds {type(data).__name__}, expected an object of fields; restore it")
    return data


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder: ``model.safetensors``, its shards, or the same as a legacy ``pytorch_model.bin``.

    Raises:
        DataError: a file is missing, damaged, or holds more than weights.
    """
    for whole, index in ((SAFE, SAFE_INDEX), (PICKLED, PICKLED_INDEX)):
        if (folder / whole).exists():
            return read_file(folder / whole)
        if (folder / index).exists():
            return _read_shards(folder, folder / index)
    raise DataError(f"{folder}: holds no {SAFE}, {SAFE_INDEX} or {PICKLED}; give a model folder")


def read_pickled(path: Path) -> Any:
    """The contents of a PyTorch file, read by a loader that builds tensors and plain containers only.

    Raises:
        DataError: missing or damaged, or it would have to run code to be read.
    """
    try:
        folders.refuse_text(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how old the file's pickle protocol is
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path}: does not exist") from None
    except DataError:
        raise
    except Exception as error:  # a foreign file makes the reader fail in any way
        if "Unsupported" in str(error) or "unsafe" in str(error).lower():
            raise DataError(
                f"{path}: holds more than weights and would run code when read; save its state dict as safetensors"
            ) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{path}: is damaged ({reason}); copy it again from its source") from None


def read_state(path: Path) -> dict[str, Tensor]:
    """The weights in a PyTorch file, by name.

    Raises:
        DataError: as for :func:`read_pickled`, or it holds anything else.
    """
    data = read_pickled(path)
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise DataError(f"{path}: holds no dictionary of weights; save model.state_dict()")
    return data


def read_file(path: Path) -> dict[str, Tensor]:
    """The weights in a PyTorch or safetensors file, by name.

    Raises:
        DataError: as for :func:`read_state`.
    """
    return folders.read_weights(path) if path.suffix == ".safetensors" else read_state(path)


def _read_shards(folder: Path, index: Path) -> dict[str, Tensor]:
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise DataError(f"{index}: has no weight_map; restore it")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        if Path(file).name != file:
            raise DataError(f"{index}: names {file!r}, which is not a file of this folder; restore it")
        tensors |= read_file(folder / file)
    lost = sorted(name for name in where if name not in tensors)
    if lost:
        raise DataError(f"{index}: {lost[0]} is not in {where[lost[0]]}; copy the folder again from its source")
    return tensors


def _tokenizer(folder: Path) -> Tokenizer | None:
    known = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model")
    return Tokenizer.load(folder) if any((folder / name).exists() for name in known) else None


# What single families need
# ----------------------------------------------------------------------------------------------


def _unfilled(config: ModelConfig) -> Model:
    with torch.device("meta"):
        return Model(config)


def _shapes(model: Model) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _settle(config: ModelConfig, reading: names.Reading, tensors: Mapping[str, Tensor], source: Path) -> ModelConfig:
    """Choices that depend on the weights themselves."""
    encoder = config.encoder
    types = reading.weights.get("encoder.embeddings.types")
    absolute = isinstance(encoder.position, Absolute)
    if absolute and types is not None and len(types) == 1 and not bool(types.any()):
        config = replace(config, encoder=replace(encoder, types=0))
        del reading.weights["encoder.embeddings.types"]
    start = reading.weights.get("mask_vector")
    if start is not None and not bool(start.any()):  # see _additions
        config = replace(config, mask_vector=False)
        del reading.weights["mask_vector"]
    if config.family == "albert" and encoder.word_width == encoder.width:
        name = "encoder.embedding_hidden_mapping_in"
        found = {key: value for key, value in tensors.items() if f"{name}." in key}
        reading.unexpected = [key for key in reading.unexpected if f"{name}." not in key]
        for key, value in found.items():
            neutral = torch.eye(encoder.width) if key.endswith("weight") else torch.zeros(encoder.width)
            if not torch.equal(value.float(), neutral):
                raise DataError(f"{source}: {key} maps embeddings of the layers' own width, which is not implemented")
    return config


def _count_from_padding(
    config: ModelConfig, weights: dict[str, Tensor], pad: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """RoBERTa with its positions moved to where ``transformers`` starts to count them: the padding id + 1."""
    position, name = config.encoder.position, "encoder.embeddings.positions"
    assert isinstance(position, Absolute)
    if position.offset == pad + 1:
        return config, weights
    used = weights[name][position.offset :]
    table = torch.cat([used.new_zeros(pad + 1, used.shape[1]), used])  # the rows in front are never read
    encoder = replace(config.encoder, position=replace(position, offset=pad + 1))
    return replace(config, encoder=encoder), weights | {name: table}


def _for_task(config: ModelConfig, weights: dict[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Without the pretraining heads that original checkpoints keep beside a head of fine-tuning: classes of
    ``transformers`` with such a head have the pooler, where it reads that, and no other.
    """
    reads = isinstance(config.task, Classification) and config.task.summary == "pooler"
    left_out = ("lm.", "pair.", "rtd.") if reads else ("lm.", "pair.", "rtd.", "pooler.")
    pooler = config.pooler if reads else None
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(left_out)}
    return replace(config, lm=None, pair=False, rtd=None, pooler=pooler), weights


def _fit_tokenizer(path: Path, config: ModelConfig) -> None:
    """What readers of the tokenizer need to know of its model: how many tokens it takes, and whether segments.

    DeBERTa takes more than its span of distances, but computes something else there than it does here.
    """
    encoder, data = config.encoder, read_json(path)
    longest = encoder.max_length or getattr(encoder.position, "span", None)
    if longest is not None:
        data["model_max_length"] = longest
    if encoder.types < 2 and not getattr(encoder.position, "segments", False):
        data["model_input_names"] = ["input_ids", "attention_mask"]
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _additions(config: ModelConfig, model_type: str) -> dict[str, Tensor]:
    """Tensors that ``transformers`` has and we lack, at the values that change nothing."""
    encoder = config.encoder
    found = {}
    if isinstance(encoder.position, Absolute) and not encoder.types and model_type != "distilbert":
        name = f"{LAYOUTS[model_type].prefix}embeddings.token_type_embeddings.weight"
        found[name] = torch.zeros(1, encoder.word_width)
    if model_type == "albert" and encoder.word_width == encoder.width:
        name = "albert.encoder.embedding_hidden_mapping_in"
        found |= {f"{name}.weight": torch.eye(encoder.width), f"{name}.bias": torch.zeros(encoder.width)}
    if model_type == "xlnet" and not config.mask_vector:  # which pretraining alone reads
        found["transformer.mask_emb"] = torch.zeros(1, 1, encoder.width)
    if model_type == "transfo-xl":
        steps = torch.arange(0, encoder.width, 2, dtype=torch.float32)
        found["transformer.pos_emb.inv_freq"] = 10000.0 ** (-steps / encoder.width)
    return found


def _more_fields(model: Model, form: configs.Format) -> dict[str, Any]:
    """Class name, ids of special tokens, and what the head of fine-tuning needs."""
    config = model.config
    pad, bos, eos = TOKEN_IDS.get(form.model_type, (0, None, None))
    if model.tokenizer is not None:
        special = model.tokenizer.special
        pad = special.pad
        if form.model_type in TOKEN_IDS:
            bos, eos = (special.cls, special.sep) if form.model_type != "xlnet" else (bos, eos)
    elif isinstance(config.encoder.position, Absolute) and form.model_type == "roberta":
        pad = config.encoder.position.offset - 1
    more: dict[str, Any] = {}
    if config.task is not None:
        ending, more = heads.write_task(config, form.model_type)
    elif config.rtd is not None and form.model_type == "electra":
        ending = "ForPreTraining"
    elif config.lm is None:
        ending = "ForNextSentencePrediction" if config.pair and form.model_type == "bert" else "Model"
    elif config.pair:
        ending = "ForPreTraining"
    elif form.model_type in ("xlnet", "transfo-xl"):
        ending = "LMHeadModel"
    elif config.encoder.causal:
        ending = "LMHeadModel" if form.model_type == "bert" else "ForCausalLM"
    else:
        ending = "ForMaskedLM"
    ids = {"pad_token_id": pad, "bos_token_id": bos, "eos_token_id": eos}
    return {"architectures": [form.stem + ending], "dtype": "float32", **ids, **more}


def _notes(config: ModelConfig) -> list[str]:
    notes = []
    if config.mask_decoder:
        notes.append(
            "transformers has no enhanced mask decoder: the masked-LM head was trained behind it, so masks filled "
            "there are nonsense; the encoder and fine-tuning are not affected"
        )
    conv = config.encoder.conv
    if isinstance(conv, SpanDynamic) and conv.mask_padding:
        notes.append("convolutions in transformers read padding, so outputs of padded rows differ from ours there")
    if config.rtd is not None and config.family != "electra":
        notes.append("transformers has no class for this family's detection head; its weights are kept in the file")
    if config.pooler is not None and config.lm is not None and not config.pair:
        notes.append("the class for masked tokens in transformers has no pooler; its weights are kept, for AutoModel")
    if isinstance(config.task, Classification) and config.family == "transformer_xl":
        notes.append("transformers 5 no longer has Transformer-XL")
    elif config.family == "transformer_xl":
        notes.append("transformers 5 no longer has Transformer-XL; releases 4.0 to 4.35 read this folder")
    return notes
