"""Hugging Face folders: ``config.json``, ``model.safetensors`` (or shards, or a legacy ``.bin``), tokenizer files.

Names of weights are mapped by :mod:`encoderlab.interchange.name_tables`, configurations by
:mod:`encoderlab.interchange.configs`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encoderlab import files
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import checksums, configs, heads, name_tables, names, reading
from encoderlab.interchange import folder as folders
from encoderlab.interchange.assemble import assemble
from encoderlab.interchange.configs.fields import Fields
from encoderlab.interchange.files import SAFE, read_json, read_tensors, write_weights
from encoderlab.interchange.lengths import TOKENIZER
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.nn.heads import Classification
from encoderlab.nn.positions import Absolute
from encoderlab.nn.pruning import NO_HEAD, with_heads
from encoderlab.nn.spanconv import SpanDynamic

log = logging.getLogger(__name__)

INPUTS, SEGMENTS = "model_input_names", "token_type_ids"  # a field of the tokenizer's file, and an entry
GIVING_SEGMENTS = tuple(f"{stem}Tokenizer" for stem in ("Bert", "Electra", "ConvBert", "Deberta", "DebertaV2"))
NAME_TABLES = {
    "bert": name_tables.BERT,
    "roberta": name_tables.ROBERTA,
    "albert": name_tables.ALBERT,
    "distilbert": name_tables.DISTILBERT,
    "electra": name_tables.ELECTRA,
    "convbert": name_tables.CONVBERT,
    "deberta": name_tables.DEBERTA_V1,
    "deberta-v2": name_tables.DEBERTA_V2,
    "xlnet": name_tables.XLNET,
    "modernbert": name_tables.MODERNBERT,
}
USES = {  # the ending of a class name, and the Hub's name of its task
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
TIED = "tie_word_embeddings"  # a field of config.json


def load(folder: str | os.PathLike[str], *, allow_missing: bool = False) -> Model:
    """Load a Hugging Face folder, with the pretraining heads that its weights have and its fine-tuning head.

    Reads names with and without the family's prefix, ``module.``, ``gamma`` and ``beta``, and buffers of old files. A
    warning lists weights that are not used, and missing weights of heads, which get random values. ``allow_missing``
    also allows missing weights of the encoder.

    Raises:
        DataError: a file is missing or damaged, a weight is missing, has another shape or is not finite, or
            ``config.json`` needs something that is not implemented.
    """
    folder = Path(folder)
    checksums.verify(folder)
    data = read_json(folder / "config.json")
    source = str(folder / "config.json")
    untied = data.get(TIED) is False and data.get("model_type") != "transfo-xl"  # whose own field it is
    format, config = configs.read({**data, TIED: True} if untied else data, source)
    config = heads.read_task(data, source, format.model_type, config)
    model = assemble(
        config, read_tensors(folder), name_table_of(config, format.model_type), folder, allow_missing=allow_missing
    )
    if untied and model.config.lm is not None:  # without an LM head there is no output table to tie
        Fields(data, source).only(TIED, True)
    reading.give_tokenizer(model, _tokenizer(folder), folder)
    _check_summary(model, format.model_type, source, "load it as a bare encoder: remove 'architectures'")
    _warn_of_uncounted(model, source)
    _warn_of_segments(model, folder / TOKENIZER, data.get("tokenizer_class") or f"{format.stem}Tokenizer")
    return model


def _check_summary(model: Model, model_type: str, source: str, remedy: str) -> None:
    """Refuse a classifier of one token of a text if ``transformers`` reads another one: the last token in XLNet and the
    first one elsewhere, whatever the tokenizer or ``is_decoder``.

    Raises:
        DataError: it does.
    """
    config, tokenizer, head = model.config, model.tokenizer, model.config.task
    if not isinstance(head, Classification) or head.pooling == "mean":
        return
    if tokenizer is None and not config.encoder.causal:
        return
    table = heads.CHOICE if heads.chooses(config) else heads.SEQUENCE
    if model_type not in table:  # there is no such class, which is refused elsewhere
        return
    theirs = table[model_type].summary == "last"
    ours = config.encoder.causal or (tokenizer is not None and tokenizer.framing == "xlnet")
    if theirs != ours:
        names, why = ("first", "last"), "because it is left-to-right"
        if tokenizer is not None and not config.encoder.causal:
            why = f"where its tokenizer puts {tokenizer.token(tokenizer.special.cls)}"
        raise DataError(
            f"{source}: the classifier reads the {names[theirs]} token of a text in transformers, and the "
            f"{names[ours]} one here, {why}; {remedy}"
        )


def _warn_of_uncounted(model: Model, source: str) -> None:
    """Print if ``transformers`` counts no position at a token of texts: positions start after the padding id of the
    configuration (RoBERTa), and the tokenizer has another.
    """
    offset, tokenizer = model.config.encoder.position.offset, model.tokenizer
    if tokenizer is None or not 0 < offset <= tokenizer.vocab_size or offset == tokenizer.special.pad + 1:
        return
    token, pad = tokenizer.token(offset - 1), tokenizer.special.pad
    log.warning(
        "%s: pad_token_id is %d, but the tokenizer pads with %d: results of texts with its token %d (%s) differ from "
        "those of transformers, which counts no position there",
        *(source, offset - 1, pad, offset - 1, token),
    )


def _warn_of_segments(model: Model, path: Path, usual: str) -> None:
    """Print if ``transformers`` gives no segments to a model that has them. Both texts of a pair then have that of
    the first; in XLNet no token has one.

    Since release 5, only some classes give segments if the file does not ask for them. ``usual`` is the class if the
    file names none.
    """
    tokenizer, encoder = model.tokenizer, model.config.encoder
    segments = {"bert": encoder.types > 1, "xlnet": encoder.position.segments}
    if tokenizer is None or not segments.get(tokenizer.framing, False):
        return
    fields = files.read_json(path) if path.is_file() else {}
    inputs, kind = fields.get(INPUTS), fields.get("tokenizer_class") or usual  # read, so it may hold what nobody reads
    gives = SEGMENTS in inputs if isinstance(inputs, list) else str(kind).removesuffix("Fast") in GIVING_SEGMENTS
    if not gives:
        log.warning(
            "%s: transformers 5 gives no %s with this tokenizer, and the model has segments: results of %s differ from "
            "those of transformers",
            *(path.parent, SEGMENTS, "pairs of texts" if tokenizer.framing == "bert" else "all texts"),
        )


def name_table_of(config: ModelConfig, model_type: str) -> names.NameTable:
    """The names for a model of this configuration, including its fine-tuning head."""
    if model_type == "transfo-xl":
        assert config.encoder.adaptive is not None
        return name_tables.transformer_xl(config.encoder.adaptive, config.encoder.vocab, original=False)
    name_table = NAME_TABLES[model_type]
    return replace(name_table, rules=(*heads.task_rules(config, model_type), *name_table.rules))


HEADS = ("lm.", "pair.", "rtd.", "task.")  # what the names of their weights begin with


def save(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    both_heads: bool = False,
    also: Callable[[Path], None] | None = None,
) -> list[str]:
    """Write the model as a Hugging Face folder, whole or not at all; returns notes for the user.

    ``both_heads``: see :func:`prepared`; ``also`` writes further files into the folder, before it gets its name.

    Raises:
        DataError: the architecture or a head has no counterpart in ``transformers``, or the folder cannot be written.
        ConfigError: the folder is not empty.
    """
    folder = Path(folder)
    files.check_new(folder)
    fill, notes = prepared(model, both_heads=both_heads)

    def fill_all(aside: Path) -> None:
        fill(aside)
        if also is not None:
            also(aside)

    folders.write_whole(folder, fill_all)
    return notes


def prepared(model: Model, *, both_heads: bool = False, bare: bool = False) -> tuple[Callable[[Path], None], list[str]]:
    """What writes the model's files in the format of ``transformers`` into a folder, and notes for the user.

    Args:
        both_heads: write DeBERTa's masked-LM head also under its original names (``lm_predictions``), for programs that
            read those; ``transformers`` then reports them as unexpected.
        bare: write the encoder alone, without its heads and the prefix that they give to its names, as encoders of
            sentences are published: vLLM reads no other names.

    Raises:
        DataError: the architecture or a head has no counterpart in ``transformers``.
    """
    config, weights = model.config, folders.weights(model)
    if bare:
        config = replace(config, lm=None, pair=False, rtd=None, task=None, labels=())
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(HEADS)}
    elif config.task is not None:
        config, weights = _for_task(config, weights)
    if config.lm is not None and config.lm.next_token:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("lm.")}
        config = replace(config, lm=None)
    config, weights, given_back = _all_heads(config, weights)
    format = configs.format_of(config)
    model_type = format.model_type
    if config.task is not None:
        _check_summary(model, model_type, model_type, "fine-tune another model")
    if model_type == "roberta" and model.tokenizer is not None:
        config, weights = _count_from_padding(config, weights, model.tokenizer.special.pad)
    data = {**configs.write(config), **_more_fields(model, config, format)}
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{name} has values that are not finite; use an earlier checkpoint")
    ties = model_type == "transfo-xl"  # its last readers expect both names
    name_table = name_table_of(config, model_type)
    if both_heads and not any(rule.dialect for rule in name_table.rules):
        raise ConfigError(f"a head of {config.family} has one name in Hugging Face's folders; leave out --both-heads")
    tensors = names.write(name_table, weights, config.encoder, dialects=both_heads, ties=ties)
    tensors |= _additions(config, model_type)
    if bare:
        tensors = {name.removeprefix(name_table.prefix): tensor for name, tensor in tensors.items()}
    notes = _notes(config)
    if given_back:
        notes.append(
            f"{given_back} pruned heads of each layer are written as zeros, because {model_type} in transformers "
            "cannot have fewer heads; results are the same, the speed is that of all heads"
        )
    parts = () if bare else ("lm", "pair", "pooler", "rtd")
    lost = [head for head in parts if getattr(model.config, head) and not getattr(config, head)]
    if lost and model.config.task is not None:
        notes.append(f"left out, because classes with a task head in transformers have none: {', '.join(lost)}")
    elif lost:
        notes.append("left out: the LM head, which predicts the next token; no class in transformers does that")

    def fill(aside: Path) -> None:
        folders.write_fields(aside / "config.json", data)
        write_weights(aside / SAFE, tensors)
        if model.tokenizer is not None:
            model.tokenizer.save(aside)
            _fit_tokenizer(aside / TOKENIZER, config)
        (aside / folders.CARD).write_text(_card(config, data["architectures"][0], notes), encoding="utf-8")

    return fill, notes


def _card(config: ModelConfig, architecture: str, notes: list[str]) -> str:
    """The model card. Its metadata tell the Hub the model's task."""
    masked = config.task is None and config.lm is not None and not config.encoder.causal
    use = next((use for ending, use in USES.items() if architecture.endswith(ending)), None)
    use = use or ("fill-mask" if masked else "feature-extraction")
    metadata = ["---", "library_name: transformers", f"pipeline_tag: {use}", "---", ""]
    title = [f"# {config.family}", "", "Written by encoderlab in the format of transformers."]
    return "\n".join([*metadata, *title, *(f"- {note}" for note in notes)]) + "\n"


def _tokenizer(folder: Path) -> Tokenizer | None:
    known = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model")
    return Tokenizer.load(folder) if any((folder / name).exists() for name in known) else None


def _count_from_padding(
    config: ModelConfig, weights: dict[str, Tensor], pad: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """RoBERTa with a table of positions moved to the start that ``transformers`` uses: the padding id + 1."""
    position, name = config.encoder.position, "encoder.embeddings.positions"
    if not isinstance(position, Absolute) or position.sinusoidal or position.offset == pad + 1:
        return config, weights
    used = weights[name][position.offset :]
    table = torch.cat([used.new_zeros(pad + 1, used.shape[1]), used])  # the first rows are never read
    encoder = replace(config.encoder, position=replace(position, offset=pad + 1))
    return replace(config, encoder=encoder), weights | {name: table}


def _all_heads(config: ModelConfig, weights: dict[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor], int]:
    """A model with zeros for pruned heads, because ``transformers`` computes the number of heads from the width; and
    the number of these heads.
    """
    encoder = config.encoder
    missing, rest = divmod(encoder.width - encoder.heads * encoder.key_width, encoder.key_width)
    free = configs.format_of(config).model_type == "transfo-xl"  # the number of its heads and their width
    if free or encoder.conv is not None or missing < 1 or rest:
        return config, weights, 0
    kept = [[*range(encoder.heads), *[NO_HEAD] * missing]] * encoder.depth
    weights = with_heads(weights, kept, heads=encoder.heads, width=encoder.key_width)
    encoder = replace(encoder, heads=encoder.heads + missing, head_width=None)
    return replace(config, encoder=encoder), weights, missing


def _for_task(config: ModelConfig, weights: dict[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model without pretraining heads next to its fine-tuning head.

    Classes of ``transformers`` with a fine-tuning head have only the pooler, if the head reads it.
    """
    reads = isinstance(config.task, Classification) and config.task.summary == "pooler"
    left_out = ("lm.", "pair.", "rtd.") if reads else ("lm.", "pair.", "rtd.", "pooler.")
    pooler = config.pooler if reads else None
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(left_out)}
    return replace(config, lm=None, pair=False, rtd=None, pooler=pooler), weights


def _fit_tokenizer(path: Path, config: ModelConfig) -> None:
    """Write into the tokenizer's configuration the model's longest input, and whether it has segments.

    DeBERTa in ``transformers`` accepts rows longer than its span of distances, but computes other results than ours.
    """
    encoder, data = config.encoder, read_json(path)
    longest = encoder.max_length or encoder.position.span
    if longest is not None:
        data["model_max_length"] = longest
    if encoder.types < 2 and not encoder.position.segments:
        data[INPUTS] = ["input_ids", "attention_mask"]
    folders.write_fields(path, data)


def _additions(config: ModelConfig, model_type: str) -> dict[str, Tensor]:
    """Tensors that only ``transformers`` has, with values that have no effect."""
    encoder = config.encoder
    more = {}
    if isinstance(encoder.position, Absolute) and not encoder.types and model_type != "distilbert":
        name = f"{NAME_TABLES[model_type].prefix}embeddings.token_type_embeddings.weight"
        more[name] = torch.zeros(1, encoder.word_width)
    if model_type == "albert" and encoder.word_width == encoder.width and not encoder.embed_map:
        name = "albert.encoder.embedding_hidden_mapping_in"
        more |= {f"{name}.weight": torch.eye(encoder.width), f"{name}.bias": torch.zeros(encoder.width)}
    if model_type == "xlnet" and not config.mask_vector:  # only pretraining reads it
        more["transformer.mask_emb"] = torch.zeros(1, 1, encoder.width)
    if model_type == "transfo-xl":
        steps = torch.arange(0, encoder.width, 2, dtype=torch.float32)
        more["transformer.pos_emb.inv_freq"] = 10000.0 ** (-steps / encoder.width)
    return more


def _more_fields(model: Model, config: ModelConfig, format: configs.Format) -> dict[str, Any]:
    """Class name, ids of special tokens, and fields of the fine-tuning head."""
    more: dict[str, Any] = {}
    if model.config.task is not None:
        ending, more = heads.write_task(model.config, format.model_type)
    else:
        ending = _pretraining_class(config, format.model_type)
    stem = configs.STEMS.get(config.model_type or "", format.stem)
    return {"architectures": [stem + ending], "dtype": "float32", **_special_ids(model, format.model_type), **more}


def _special_ids(model: Model, model_type: str) -> dict[str, int | None]:
    """The ids of special tokens in ``config.json``; null for those that only a tokenizer could name.

    A guess would do harm: ``transformers`` trains no vector for the padding id.
    """
    position, tokenizer = model.config.encoder.position, model.tokenizer
    pad = bos = eos = None
    if tokenizer is not None:
        pad = tokenizer.special.pad
        if model_type in ("roberta", "albert", "modernbert"):
            bos, eos = tokenizer.special.cls, tokenizer.special.sep
        elif model_type == "xlnet":
            named = tokenizer.special_tokens.config()
            bos, eos = tokenizer.id(named["bos_token"]), tokenizer.id(named["eos_token"])
    elif isinstance(position, Absolute) and model_type == "roberta":
        pad = position.offset - 1
    more = {"cls_token_id": bos, "sep_token_id": eos} if model_type == "modernbert" else {}
    return {"pad_token_id": pad, "bos_token_id": bos, "eos_token_id": eos, **more}


def _pretraining_class(config: ModelConfig, model_type: str) -> str:
    """The ending of the name of the class with the model's pretraining heads, or most of them."""
    if config.rtd is not None and model_type == "electra":
        return "ForPreTraining"
    if config.lm is None:
        return "ForNextSentencePrediction" if config.pair and model_type == "bert" else "Model"
    if config.pair:
        return "ForPreTraining"
    if model_type in ("xlnet", "transfo-xl"):
        return "LMHeadModel"
    if config.encoder.causal:
        return "LMHeadModel" if model_type == "bert" else "ForCausalLM"
    return "ForMaskedLM"


def _notes(config: ModelConfig) -> list[str]:
    notes = []
    if config.mask_decoder:
        notes.append(
            "transformers has no enhanced mask decoder, which the masked-LM head needs, so its fill-mask gives wrong "
            "tokens; the encoder and fine-tuning are not affected"
        )
    conv = config.encoder.conv
    if isinstance(conv, SpanDynamic) and conv.mask_padding:
        notes.append("convolutions in transformers read padding, so outputs of padded rows differ from ours there")
    if config.rtd is not None and config.family != "electra":
        notes.append("transformers has no class for this family's detection head; the file still has its weights")
    if config.pooler is not None and config.lm is not None and not config.pair:
        notes.append("the masked-LM class in transformers has no pooler; the file still has its weights, for AutoModel")
    if rates := configs.other_rates(config):
        listed = ", ".join(f"{name} {theirs:g} instead of {mine:g}" for name, (mine, theirs) in rates.items())
        notes.append(f"further training in transformers has other dropout ({listed}); results are the same")
    if config.family == "transformer_xl":
        notes.append("transformers 5 no longer has Transformer-XL; releases 4.0 to 4.35 read this folder")
    return notes
