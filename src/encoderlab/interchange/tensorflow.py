"""Checkpoints of the original TensorFlow code: BERT, ALBERT, ELECTRA, ConvBERT, XLNet and Transformer-XL.

If ``transformers`` computes other results from the same weights, we follow the original: BERT's GELU is the tanh
form, ConvBERT's heads are ``width / heads`` wide for every head ratio.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from encoderlab.errors import DataError
from encoderlab.interchange import configs, heads, name_tables, names, transformer_xl
from encoderlab.interchange.assemble import Models, assemble
from encoderlab.interchange.configs.fields import Fields
from encoderlab.interchange.files import fields_beside, read_json
from encoderlab.interchange.tensor_bundle import Checkpoint
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.embeddings import TiedMaps
from encoderlab.nn.heads import LM, RTD, Classification, Span
from encoderlab.nn.positions import Absolute
from encoderlab.nn.spanconv import SpanDynamic

XLNET_SCORES = re.compile(r"(model/(?:classification|regression)_[^/]+/logit|logits/dense)/kernel")


def read(path: Path, *, allow_missing: bool = False) -> Models:
    """The networks of a TensorFlow checkpoint; the names of its variables tell the family.

    The JSON configuration next to it (``bert_config.json``, ``albert_config.json``, ``xlnet_config.json``, ...) gives
    the settings that shapes do not; ELECTRA's and ConvBERT's releases have none, so everything is read from shapes.

    Raises:
        DataError: not a checkpoint of a known family, damaged, or without a configuration that it needs.
    """
    checkpoint = Checkpoint(path)
    folder = checkpoint.prefix.parent
    skipped = [re.compile(pattern) for pattern in names.IGNORED]
    weights = [name for name in checkpoint if not any(pattern.search(name) for pattern in skipped)]
    tensors = {name: torch.from_numpy(checkpoint.read(name)) for name in weights}
    source = checkpoint.index_path
    if any(name.startswith("electra/") for name in tensors):
        return _read_electra(tensors, source, allow_missing=allow_missing)
    made = partial(assemble, source=source, allow_missing=allow_missing)
    tensors = {name.removeprefix("module/"): tensor for name, tensor in tensors.items()}  # TF-Hub's scope
    if any(name.startswith("bert/encoder/transformer/group_") for name in tensors):
        config = _tanh_form(configs.read_as("albert", fields_beside(folder, "albert_config.json")))
        return {"model": made(_with_task(config, tensors), tensors, name_tables.ALBERT_TF)}
    if "bert/embeddings/word_embeddings" in tensors:
        config = _tanh_form(configs.read_as("bert", fields_beside(folder, "bert_config.json")))
        return {"model": made(_with_task(config, tensors), tensors, name_tables.BERT_TF)}
    if "model/transformer/word_embedding/lookup_table" in tensors:
        config, name_table = _xlnet(fields_beside(folder, "xlnet_config.json"), tensors)
        return {"model": made(config, tensors, name_table)}
    if any(name.startswith("transformer/adaptive_embed/") for name in tensors):
        config, tensors = _transformer_xl(fields_beside(folder, transformer_xl.CONFIG), tensors)
        assert config.encoder.adaptive is not None
        return {"model": made(config, tensors, name_tables.transformer_xl_tf(config.encoder.adaptive))}
    raise DataError(
        f"{source}: unknown family; only checkpoints of BERT, ALBERT, ELECTRA, ConvBERT, XLNet and Transformer-XL "
        "can be read"
    )


def _tanh_form(config: ModelConfig) -> ModelConfig:
    """BERT's and ALBERT's code computes GELU in the tanh form."""
    if config.encoder.activation != "gelu":
        return config
    return replace(config, encoder=replace(config.encoder, activation="gelu_tanh"))


def _with_task(config: ModelConfig, tensors: Mapping[str, Tensor]) -> ModelConfig:
    """The head that BERT's and ALBERT's ``run_squad.py`` and ``run_classifier.py`` train, if there is one."""
    if "cls/squad/output_weights" in tensors:
        return replace(config, task=Span())
    if "output_weights" in tensors:
        labels = len(tensors["output_weights"])
        return replace(config, task=Classification(labels=labels), labels=heads.unnamed(labels))
    return config


def _xlnet(fields: Fields, tensors: dict[str, Tensor]) -> tuple[ModelConfig, names.NameTable]:
    """The configuration from XLNet's own fields, with the head that its scripts train, and the names of the weights.

    Dropout was an option of the run, 0.1 in the published ones.
    """
    fields.data = dict(fields.data)
    fields.data.setdefault(
        "vocab_size", fields.take("n_token", len(tensors["model/transformer/word_embedding/lookup_table"]))
    )
    if fields.data.get("ff_activation") == "gelu":
        fields.data["ff_activation"] = "gelu_new"
    tied = fields.data.get("untie_r", False) is False
    config, name_table = configs.read_as("xlnet", fields), name_tables.XLNET_TF
    if tied:  # one tensor for all layers; XLNet's code ties by default
        for name in ("model/transformer/r_w_bias", "model/transformer/r_r_bias", "model/transformer/r_s_bias"):
            if name in tensors and tensors[name].ndim == 2:
                tensors[name] = tensors[name].expand(config.encoder.layers, -1, -1)
    if "start_logits/dense/kernel" in tensors:
        head = replace(config, task=Span(variant="beam", dropout=0.1))
        return head, replace(name_table, rules=(*name_table.rules, *name_tables.XLNET_TF_SPAN))
    scorers = [match[1] for name in tensors if (match := XLNET_SCORES.fullmatch(name))]
    if len(scorers) != 1 or "model/sequnece_summary/summary/kernel" not in tensors:
        return config, name_table
    count = tensors[f"{scorers[0]}/kernel"].shape[-1]
    labels = heads.CHOICES if scorers[0] == "logits/dense" else heads.unnamed(count)
    config = replace(config, task=Classification(labels=count, summary="dense"), labels=labels)
    return config, replace(name_table, rules=(*name_table.rules, *name_tables.xlnet_tf_classifier(scorers[0])))


def _read_electra(tensors: Mapping[str, Tensor], source: Path, *, allow_missing: bool) -> Models:
    """Both networks of a checkpoint, or one.

    A checkpoint with only the discriminator gives one network, as does a network that was trained as both and has both
    heads. The number of heads, which shapes do not show, may be given in ``generator_config.json`` and
    ``discriminator_config.json``.
    """
    models: Models = {}
    alone = not any(key.startswith("generator/encoder/") for key in tensors)
    joint = alone and any(key.startswith("generator_predictions/") for key in tensors)
    for name, scope in (("generator", "generator"), ("discriminator", "electra")):
        if not any(key.startswith(f"{scope}/encoder/") for key in tensors):
            continue
        untied = any(key.startswith(f"{scope}/embeddings/") for key in tensors)  # the generator has its own tables
        embeddings = scope if untied else "electra"
        try:
            config = _electra_config(tensors, scope, embeddings)
        except KeyError as error:
            raise DataError(f"{source}: has no {error.args[0]}; copy the checkpoint again from its source") from None
        beside = source.parent / f"{name}_config.json"
        if beside.exists():
            fields = Fields(read_json(beside), str(beside))
            count, dropout = fields.count("num_attention_heads"), fields.number("hidden_dropout_prob", 0.1)
            config = replace(config, encoder=replace(config.encoder, heads=count, dropout=dropout))
        if joint:
            config = replace(config, lm=LM())
        grouped = config.encoder.ff_groups > 1
        name_table = (name_tables.electra_tf_grouped if grouped else name_tables.electra_tf)(
            generator=scope == "generator", alone=alone, embeddings=embeddings
        )
        models[name] = assemble(config, tensors, name_table, source, allow_missing=allow_missing)
    if not models:
        raise DataError(f"{source}: has the embeddings of ELECTRA but no layers; copy it again from its source")
    return models if "generator" in models else {"model": models["discriminator"]}


def _electra_config(tensors: Mapping[str, Tensor], scope: str, embeddings: str) -> ModelConfig:
    """The sizes of one network from the shapes of its variables, under their two scopes.

    ELECTRA's heads are 64 wide, or there is one head if the width is smaller; ConvBERT's follow from its convolution
    kernels.
    """
    layer = f"{scope}/encoder/layer_0/"
    vocab, embed_width = tensors[f"{embeddings}/embeddings/word_embeddings"].shape
    width, inner = tensors[layer + "attention/self/query/kernel"].shape
    layers = 1 + max(int(match[1]) for name in tensors if (match := re.match(rf"{scope}/encoder/layer_(\d+)/", name)))
    num_heads, conv, groups = max(1, width // 64), None, 1
    depthwise = tensors.get(layer + "attention/self/conv_attn_key/depthwise_kernel")
    if depthwise is not None:
        kernel = depthwise.shape[0]
        kept = tensors[layer + "attention/self/conv_attn_kernel/kernel"].shape[1] // kernel
        num_heads = width * kept // inner
        ratio = num_heads // kept if num_heads > 1 else 2  # at least one head is kept for any ratio
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
        heads=num_heads,
        ff_width=ff_width,
        position=Absolute(length=len(tensors[f"{embeddings}/embeddings/position_embeddings"])),
        types=len(tensors[f"{embeddings}/embeddings/token_type_embeddings"]),
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


def _transformer_xl(fields: Fields, tensors: Mapping[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration, and the tensors with a map for every cluster. The output's maps tell which clusters are tied.

    Without ``proj_same_dim`` a cluster with the width of the layers has no map: here it gets the identity.
    """
    config = transformer_xl.read_config(fields, eps=1e-12)
    encoder, adaptive = config.encoder, config.encoder.adaptive
    assert adaptive is not None
    into, out_of = "transformer/adaptive_embed/cutoff_%d/proj_W", "transformer/adaptive_softmax/cutoff_%d/proj"
    clusters = range(len(adaptive.cutoffs) + 1)
    own = [out_of % i in tensors for i in clusters]
    tied: TiedMaps = "none" if any(own[1:]) else "all_but_first" if own[0] else "all"
    completed = dict(tensors)
    if adaptive.divisor > 1 and fields.data.get("proj_same_dim") is False:
        for i in clusters:
            if encoder.word_width // adaptive.divisor**i == encoder.width:
                for name in [into % i, *([out_of % i] if tied == "none" else [])]:
                    completed.setdefault(name, torch.eye(encoder.width))
    adaptive = replace(adaptive, tied_projections=tied)
    return replace(config, encoder=replace(encoder, adaptive=adaptive)), completed
