"""Checkpoints of the original code: TensorFlow (BERT, ALBERT, ELECTRA, ConvBERT, XLNet, Transformer-XL), fairseq
RoBERTa, Microsoft's DeBERTa, and Transformer-XL's PyTorch code.

Where ``transformers`` computes something else from the same weights, the original is followed: BERT's GELU is the tanh
form, ConvBERT's heads are ``width / heads`` wide for every head ratio.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encoderlab.corpus.layouts import FAMILIES
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange import configs, fairseq, heads, huggingface, names, tables
from encoderlab.interchange.tensorflow import Checkpoint
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.nn.embeddings import TiedMaps
from encoderlab.nn.encoder import EncoderConfig
from encoderlab.nn.heads import LM, RTD, Classification, Span, Tagging
from encoderlab.nn.positions import Absolute
from encoderlab.nn.spanconv import SpanDynamic

log = logging.getLogger("encoderlab")
XLNET_SCORES = re.compile(r"(model/(?:classification|regression)_[^/]+/logit|logits/dense)/kernel")
Models = dict[str, Model]  # {"model": ...}, or "generator" and "discriminator" of a joint checkpoint


# TensorFlow
# -------------------------------------------------------------------------------------------------------------


def read_tensorflow(path: Path, *, allow_missing: bool = False) -> Models:
    """The networks of a TensorFlow checkpoint; its family is told from the names of its variables.

    The JSON configuration beside it (``bert_config.json``, ``albert_config.json``, ``xlnet_config.json``, ...) gives
    what shapes do not tell; ELECTRA's and ConvBERT's releases have none, so everything is taken from the shapes there.

    Raises:
        DataError: not a checkpoint of a known family, damaged, or without the configuration that it needs.
    """
    checkpoint = Checkpoint(path)
    folder = checkpoint.prefix.parent
    skipped = [re.compile(pattern) for pattern in names.IGNORED]
    wanted = [name for name in checkpoint if not any(pattern.search(name) for pattern in skipped)]
    tensors = {name: torch.from_numpy(checkpoint.read(name)) for name in wanted}
    source = checkpoint.index_path
    if "electra/embeddings/word_embeddings" in tensors:
        return _electra_tf(tensors, source, allow_missing=allow_missing)
    assemble = partial(huggingface.assemble, allow_missing=allow_missing)
    tensors = {name.removeprefix("module/"): tensor for name, tensor in tensors.items()}  # TF-Hub's scope
    if any(name.startswith("bert/encoder/transformer/group_") for name in tensors):
        config = _albert_tf(_config_beside(folder, "albert_config.json"))
        return {"model": assemble(_with_task(config, tensors), tensors, tables.ALBERT_TF, source)}
    if "bert/embeddings/word_embeddings" in tensors:
        config = _bert_tf(_config_beside(folder, "bert_config.json"))
        return {"model": assemble(_with_task(config, tensors), tensors, tables.BERT_TF, source)}
    if "model/transformer/word_embedding/lookup_table" in tensors:
        config, layout = _xlnet_tf(_config_beside(folder, "xlnet_config.json"), tensors)
        return {"model": assemble(config, tensors, layout, source)}
    if any(name.startswith("transformer/adaptive_embed/") for name in tensors):
        config, tensors = _txl_tf(_config_beside(folder, "transformer_xl_config.json"), tensors)
        assert config.encoder.adaptive is not None
        layout = tables.transformer_xl_tf(config.encoder.adaptive)
        return {"model": assemble(config, tensors, layout, source)}
    raise DataError(
        f"{source}: its variables belong to no known family; BERT, ALBERT, ELECTRA, ConvBERT, XLNet and Transformer-XL "
        "are read"
    )


def _config_beside(folder: Path, name: str) -> configs.Fields:
    path = folder / name
    if not path.exists():
        found = sorted(folder.glob("*config*.json"))
        if len(found) != 1:
            raise DataError(
                f"{folder}: holds no {name}; the checkpoint's sizes are unknown, copy its configuration there"
            )
        path = found[0]
    return configs.Fields(huggingface.read_json(path), str(path))


def _finished(fields: configs.Fields, config: ModelConfig) -> ModelConfig:
    fields.finish()
    return config


def _tanh_form(config: ModelConfig) -> ModelConfig:
    """BERT's and ALBERT's code computes GELU in the tanh form."""
    if config.encoder.activation != "gelu":
        return config
    return replace(config, encoder=replace(config.encoder, activation="gelu_tanh"))


def _bert_tf(fields: configs.Fields) -> ModelConfig:
    return _finished(fields, _tanh_form(configs.FORMATS["bert"].read(fields)))


def _albert_tf(fields: configs.Fields) -> ModelConfig:
    return _finished(fields, _tanh_form(configs.FORMATS["albert"].read(fields)))


def _with_task(config: ModelConfig, tensors: Mapping[str, Tensor]) -> ModelConfig:
    """The head that BERT's and ALBERT's ``run_squad.py`` and ``run_classifier.py`` train, where there is one."""
    if "cls/squad/output_weights" in tensors:
        return replace(config, task=Span())
    if "output_weights" in tensors:
        labels = len(tensors["output_weights"])
        return replace(config, task=Classification(labels=labels), labels=heads.unnamed(labels))
    return config


def _xlnet_tf(fields: configs.Fields, tensors: Mapping[str, Tensor]) -> tuple[ModelConfig, names.Layout]:
    """XLNet's own names of fields, and the head that its scripts train, where there is one. Dropout was an option of
    the run, 0.1 in the published ones.
    """
    fields.data = dict(fields.data)
    fields.data.setdefault(
        "vocab_size", fields.take("n_token", len(tensors["model/transformer/word_embedding/lookup_table"]))
    )
    if fields.data.get("ff_activation") == "gelu":
        fields.data["ff_activation"] = "gelu_new"
    config, layout = _finished(fields, configs.FORMATS["xlnet"].read(fields)), tables.XLNET_TF
    if "start_logits/dense/kernel" in tensors:
        head = replace(config, task=Span(form="beam", dropout=0.1))
        return head, replace(layout, rules=(*layout.rules, *tables.XLNET_TF_SPAN))
    found = [match[1] for name in tensors if (match := XLNET_SCORES.fullmatch(name))]
    if len(found) != 1 or "model/sequnece_summary/summary/kernel" not in tensors:
        return config, layout
    count = tensors[f"{found[0]}/kernel"].shape[-1]
    labels = heads.CHOICES if found[0] == "logits/dense" else heads.unnamed(count)
    config = replace(config, task=Classification(labels=count, summary="dense"), labels=labels)
    return config, replace(layout, rules=(*layout.rules, *tables.xlnet_tf_classifier(found[0])))


def _electra_tf(tensors: Mapping[str, Tensor], source: Path, *, allow_missing: bool) -> Models:
    """Both networks of a joint checkpoint; one that holds the discriminator alone gives one. The number of heads,
    which shapes do not tell, may be given in ``generator_config.json`` and ``discriminator_config.json``.
    """
    found: Models = {}
    for name, scope in (("generator", "generator"), ("discriminator", "electra")):
        if not any(key.startswith(f"{scope}/encoder/") for key in tensors):
            continue
        config = _electra_config(tensors, scope)
        beside = source.parent / f"{name}_config.json"
        if beside.exists():
            fields = configs.Fields(huggingface.read_json(beside), str(beside))
            heads, dropout = fields.count("num_attention_heads"), fields.number("hidden_dropout_prob", 0.1)
            config = replace(config, encoder=replace(config.encoder, heads=heads, dropout=dropout))
        grouped = config.encoder.ff_groups > 1
        layout = (tables.electra_tf_grouped if grouped else tables.electra_tf)(generator=scope == "generator")
        found[name] = huggingface.assemble(config, tensors, layout, source, allow_missing=allow_missing)
    return found if "generator" in found else {"model": found["discriminator"]}


def _electra_config(tensors: Mapping[str, Tensor], scope: str) -> ModelConfig:
    """The sizes of one network from the shapes of its variables. ELECTRA's heads are 64 wide, or one where none would
    fit; ConvBERT's are told by its convolution kernels.
    """
    layer = f"{scope}/encoder/layer_0/"
    vocab, embed_width = tensors["electra/embeddings/word_embeddings"].shape
    width, inner = tensors[layer + "attention/self/query/kernel"].shape
    layers = 1 + max(int(match[1]) for name in tensors if (match := re.match(rf"{scope}/encoder/layer_(\d+)/", name)))
    heads, conv, groups = max(1, width // 64), None, 1
    depthwise = tensors.get(layer + "attention/self/conv_attn_key/depthwise_kernel")
    if depthwise is not None:
        kernel = depthwise.shape[0]
        kept = tensors[layer + "attention/self/conv_attn_kernel/kernel"].shape[1] // kernel
        heads = width * kept // inner
        ratio = heads // kept if heads > 1 else 2  # one head is kept whatever the ratio
        conv = SpanDynamic(head_ratio=ratio, kernel=kernel, mask_padding=False)
    grouped = tensors.get(layer + "intermediate/g_dense/kernel")
    if grouped is not None:
        groups, ff_width = grouped.shape[0], grouped.shape[0] * grouped.shape[2]
    else:
        ff_width = tensors[layer + "intermediate/dense/kernel"].shape[1]
    encoder = EncoderConfig(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        ff_width=ff_width,
        position=Absolute(length=len(tensors["electra/embeddings/position_embeddings"])),
        types=len(tensors["electra/embeddings/token_type_embeddings"]),
        embed_width=embed_width,
        conv=conv,
        ff_groups=groups,
        truncated_init=True,
        glorot_map=True,
    )
    family = "electra" if conv is None else "convbert"
    if scope == "generator":
        return ModelConfig(family=family, encoder=encoder, lm=LM())
    return ModelConfig(family=family, encoder=encoder, rtd=RTD())


# Options of the original scripts that say how to train or to run, and nothing of the model.
_TXL_RUN = frozenset(
    "data dataset optim lr mom scheduler warmup_step decay_rate lr_min clip clip_nonemb max_step batch_size "
    "batch_chunk eval_tgt_len seed cuda varlen multi_gpu gpu0_bsz log_interval eval_interval work_dir restart "
    "restart_dir debug eta_min max_eval_steps patience finetune_v2 finetune_v3 fp16 static_loss_scale "
    "dynamic_loss_scale emb_init emb_init_range n_all_param n_nonemb_param".split()
)
_TXL_CUTOFFS = {"wt103": [20000, 40000, 200000], "lm1b": [60000, 100000, 640000]}  # of train.py, by data set


def transformer_xl_config(fields: configs.Fields, *, eps: float) -> ModelConfig:
    """The arguments of the original training scripts, as a dictionary; what the scripts derive from them may be left
    out.
    """
    given = fields.data
    fields.data = data = {name: value for name, value in given.items() if name not in _TXL_RUN}
    data.setdefault("vocab_size", fields.take("n_token", None))
    data.setdefault("untie_r", False)
    data.setdefault("clamp_len", -1)
    data.setdefault("layer_norm_epsilon", eps)
    fields.only("not_tied", False)
    fields.only("tied", True)
    if data.pop("adaptive", True) is False:
        data["cutoffs"] = []  # the original's plain softmax is the adaptive one of a single cluster
    elif "cutoffs" not in data:
        data["cutoffs"] = _TXL_CUTOFFS.get(given.get("dataset", ""), [])
        data.setdefault("proj_share_all_but_first", given.get("dataset") != "lm1b")
    if data.get("d_embed") == -1:
        del data["d_embed"]
    fields.take("proj_same_dim", None)
    return _finished(fields, configs.FORMATS["transfo-xl"].read(fields))


def _txl_tf(fields: configs.Fields, tensors: Mapping[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The output's maps tell which clusters are tied. Without ``proj_same_dim`` a cluster as wide as the layers has no
    map: here it has one that changes nothing.
    """
    config = transformer_xl_config(fields, eps=1e-12)
    encoder, adaptive = config.encoder, config.encoder.adaptive
    assert adaptive is not None
    into, out_of = "transformer/adaptive_embed/cutoff_%d/proj_W", "transformer/adaptive_softmax/cutoff_%d/proj"
    clusters = range(len(adaptive.cutoffs) + 1)
    own = [out_of % i in tensors for i in clusters]
    tied: TiedMaps = "none" if any(own[1:]) else "all_but_first" if own[0] else "all"
    found = dict(tensors)
    if adaptive.divisor > 1 and fields.data.get("proj_same_dim") is False:
        for i in clusters:
            if encoder.word_width // adaptive.divisor**i == encoder.width:
                for name in [into % i, *([out_of % i] if tied == "none" else [])]:
                    found.setdefault(name, torch.eye(encoder.width))
    adaptive = replace(adaptive, tied_projections=tied)
    return replace(config, encoder=replace(encoder, adaptive=adaptive)), found


# PyTorch
# ----------------------------------------------------------------------------------------------------------------


def read_transformer_xl(path: Path, *, allow_missing: bool = False) -> Models:
    """A state dictionary of Transformer-XL's PyTorch code (``model_state.pt``) with the script's arguments beside it as
    ``transformer_xl_config.json``. The original saves whole pickled modules (``model.pt``), which are refused.
    """
    path = _weights_file(path)
    tensors = huggingface.read_file(path)
    config = transformer_xl_config(_config_beside(path.parent, "transformer_xl_config.json"), eps=1e-5)
    return {"model": transformer_xl(config, tensors, path, allow_missing=allow_missing)}


def transformer_xl(
    config: ModelConfig, tensors: Mapping[str, Tensor], source: Path, *, allow_missing: bool = False
) -> Model:
    """Transformer-XL out of the tensors of its PyTorch code."""
    assert config.encoder.adaptive is not None
    layout = tables.transformer_xl(config.encoder.adaptive, config.encoder.vocab, original=True)
    return huggingface.assemble(config, tensors, layout, source, allow_missing=allow_missing)


def read_fairseq(path: Path, *, allow_missing: bool = False) -> Models:
    """RoBERTa from fairseq's ``model.pt``, in the names of any release, with the head of classification that it was
    fine-tuned with; of several none is used.

    Raises:
        DataError: damaged, unsafe, not RoBERTa, or an argument of the model that is missing or not implemented.
    """
    weights, settings = fairseq.read(path)
    layout = tables.ROBERTA_FAIRSEQ
    source = path / "model.pt" if path.is_dir() else path
    renamed = names.normalized(layout, weights, set(), source=str(source))
    words = renamed.get("encoder.sentence_encoder.embed_tokens.weight")
    positions = renamed.get("encoder.sentence_encoder.embed_positions.weight")
    if words is None or positions is None:
        raise DataError(f"{source}: holds no RoBERTa encoder (arch {settings.get('arch')!r}); RoBERTa is read")
    fields = configs.Fields(settings, str(source))
    for name in ("encoder_normalize_before", "untie_weights_roberta"):
        fields.only(name, False)
    dictionary = (path if path.is_dir() else path.parent) / "dict.txt"
    if dictionary.exists() and len(fairseq.read_dictionary(dictionary)) > len(words):
        raise DataError(
            f"{dictionary}: has more symbols than the checkpoint's {len(words)}; it belongs to another model"
        )
    offset = fairseq.FIRST_SYMBOLS.index("<pad>") + 1
    encoder = EncoderConfig(
        vocab=len(words),
        layers=fields.count("encoder_layers"),
        width=words.shape[1],
        heads=fields.count("encoder_attention_heads"),
        ff_width=fields.count("encoder_ffn_embed_dim"),
        position=Absolute(length=len(positions) - offset, offset=offset),
        types=0,
        eps=1e-5,
        activation=fields.activation("activation_fn"),
        dropout=fields.number("dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", 0.1),
        ff_dropout=fields.number("activation_dropout", 0.0),
    )
    config = ModelConfig(family="roberta", encoder=encoder, lm=LM())
    found = [
        match[1] for name in weights if (match := re.fullmatch(r"(classification_heads\..+)\.out_proj\.weight", name))
    ]
    if len(found) == 1:
        dropout = fields.number("pooler_dropout", 0.0)
        task = Classification(
            labels=len(weights[f"{found[0]}.out_proj.weight"]),
            summary="dense",
            activation=fields.activation("pooler_activation_fn", "tanh"),
            input_dropout=dropout,
            dropout=dropout,
        )
        config = replace(config, task=task, labels=heads.unnamed(task.labels))
        layout = replace(layout, rules=(*layout.rules, *tables.fairseq_head(found[0])))
    return {"model": huggingface.assemble(config, weights, layout, source, allow_missing=allow_missing)}


def read_deberta(path: Path, *, allow_missing: bool = False) -> Models:
    """DeBERTa from Microsoft's own files: ``pytorch_model.bin`` (or another ``.bin``, ``.pt`` or ``.safetensors``)
    beside ``config.json`` or ``model_config.json``, in the released layout of version 1 or the code's. A joint file of
    replaced token detection (``generator.``, ``discriminator.``) gives both networks; the discriminator's word table
    is the generator's plus its difference. ``pytorch_model.generator.bin`` of version 3 lies beside the
    discriminator's configuration, and has half its layers.
    """
    file = _weights_file(path)
    tensors = huggingface.read_file(file)
    for name in ("config.json", "model_config.json"):
        if (file.parent / name).exists():
            data = huggingface.read_json(file.parent / name)
            if file.name.endswith(".generator.bin") and isinstance(data.get("num_hidden_layers"), int):
                data["num_hidden_layers"] //= 2
            return deberta(data, tensors, file, allow_missing=allow_missing)
    raise DataError(f"{file.parent}: holds no config.json or model_config.json; the checkpoint's sizes are unknown")


def deberta(
    data: dict[str, Any], tensors: Mapping[str, Tensor], source: Path, *, allow_missing: bool = False
) -> Models:
    """DeBERTa out of the tensors and the configuration of its own code."""
    if any(name.startswith("discriminator.") for name in tensors):
        tensors = materialized(tensors)
        parts = {
            part: {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(f"{part}.")}
            for part in ("generator", "discriminator")
        }
        return {
            part: deberta(data.get(part, data), found, source, allow_missing=allow_missing)["model"]
            for part, found in parts.items()
        }
    released = any(name.endswith("attention.self.in_proj.weight") for name in tensors)
    left_out = ("backbone", "embedding_sharing", "rtd_lambda", "pooling")
    fields = configs.Fields({name: value for name, value in data.items() if name not in left_out}, str(source))
    config = configs.FORMATS["deberta" if released else "deberta-v2"].read(fields)
    fields.finish()
    layout = tables.DEBERTA_V1 if released else tables.DEBERTA_V2
    # A discriminator saved alone has its tables beside their differences to the generator's.
    ignored = (*layout.ignored, r"embeddings\.position_embeddings\.weight$", r"_embeddings\._weight$")
    layout = replace(layout, ignored=ignored)
    if "classifier.weight" in tensors:
        config, rules = _deberta_task(config, data.get("pooling"), tensors, str(source))
        layout = replace(layout, rules=(*layout.rules, *rules))
    return {"model": huggingface.assemble(config, tensors, layout, source, allow_missing=allow_missing)}


def _deberta_task(
    config: ModelConfig, pooling: Any, tensors: Mapping[str, Tensor], source: str
) -> tuple[ModelConfig, tables.Rules]:
    """The head that its code fine-tunes: of one vector per text (``pooler``), or of every token (``proj``)."""
    count = len(tensors["classifier.weight"])
    out = tables.linear("task.out", "classifier")
    if "proj.weight" in tensors:
        config = replace(config, task=Tagging(labels=count, dense=True), labels=heads.numbered(count))
        return config, (*tables.linear("task.dense", "proj"), *out)
    fields = configs.Fields(pooling if isinstance(pooling, dict) else {}, source)
    task = Classification(
        labels=count,
        summary="dense",
        activation=fields.activation("hidden_act"),
        input_dropout=fields.number("dropout", 0.0),
    )
    config = replace(config, task=task, labels=heads.unnamed(count))
    return config, (*tables.linear("task.dense", "pooler.dense"), *out)


def deberta_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of DeBERTa v1 in ``bpe_encoder.bin``: GPT-2's pieces and merges, and their order in the model.

    Raises:
        DataError: as for :func:`huggingface.read_pickled`, or it holds anything else.
    """
    data = huggingface.read_pickled(path)
    try:
        words = [str(word) for word, _ in data["dict_map"]]
        merges = [(str(first), str(second)) for first, second in data["vocab"]]
        vocabulary = {str(token): int(index) for token, index in data["encoder"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{path}: holds no dict_map, vocab and encoder; restore it from its source") from None
    family = FAMILIES["deberta"]
    return fairseq.reordered([*family.first, *words, *family.last], vocabulary, merges, family.layout)


def materialized(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradient-disentangled tables (``_weight``, a difference to the generator's) as plain ones."""
    result = dict(tensors)
    for name in tensors:
        if name.startswith("discriminator.") and name.endswith("._weight"):
            plain = name.removesuffix("_weight") + "weight"
            result[plain] = tensors["generator." + plain.removeprefix("discriminator.")] + result.pop(name)
    return result


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    if (path / huggingface.PICKLED).exists():  # a release has its vocabulary and its generator beside it
        return path / huggingface.PICKLED
    found = sorted(file for kind in ("*.bin", "*.pt", "*.safetensors") for file in path.glob(kind))
    if len(found) != 1:
        raise DataError(f"{path}: holds {len(found)} .bin, .pt or .safetensors files; name the one to read")
    return found[0]
