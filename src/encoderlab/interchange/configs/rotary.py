"""Configurations of the families with rotary positions: ModernBERT."""

from __future__ import annotations

from typing import Any

from encoderlab.errors import DataError
from encoderlab.interchange.configs.fields import THEIR_ACTIVATION, Fields
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.heads import LM, Prediction
from encoderlab.nn.norms import LayerNormalization
from encoderlab.nn.positions import Rotary
from encoderlab.nn.scope import Local

FULL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers


def read_modernbert(f: Fields) -> ModelConfig:
    layers = f.count("num_hidden_layers", 22)
    theta = _theta(f, FULL, "global_rope_theta", 160_000.0)
    local_theta = _theta(f, LOCAL, "local_rope_theta", 10_000.0)
    # The output of attention has the dropout rate of its weights; the output of feed-forward has no dropout.
    attention_dropout = f.number("attention_dropout", 0.0)
    encoder = EncoderConfig(
        vocab=f.count("vocab_size", 50368),
        layers=layers,
        width=f.count("hidden_size", 768),
        heads=f.count("num_attention_heads", 12),
        ff_width=f.count("intermediate_size", 1152),
        position=Rotary(theta=theta, length=f.count("max_position_embeddings", 8192)),
        local=_local(f, layers, local_theta),
        ff_gated=True,
        ff_biases=f.switch("mlp_bias", False),
        types=0,
        norm="pre_but_first",
        normalization=LayerNormalization(bias=f.switch("norm_bias", False)),
        eps=f.number("norm_eps", 1e-5),
        activation=f.activation("hidden_activation", "gelu"),
        attention_biases="all" if f.switch("attention_bias", False) else "none",
        dropout=attention_dropout,
        embed_dropout=f.number("embedding_dropout", 0.0),
        ff_output_dropout=0.0,
        attention_dropout=attention_dropout,
        ff_dropout=f.number("mlp_dropout", 0.0),
        init_std=f.number("initializer_range", 0.02),
        truncated_init=True,
        scaled_init=True,
    )
    f.only("head_dim", encoder.key_width, None)
    f.switch("deterministic_flash_attn", False)  # speed of attention
    f.switch("sparse_prediction", False)  # skips the logits of unmasked tokens
    for name in _INERT:
        f.take(name, None)
    prediction = read_prediction(f)
    lm = LM(
        activation=None if prediction.activation == encoder.activation else prediction.activation,
        dense_bias=prediction.bias,
        output_bias=f.switch("decoder_bias", True),
    )
    return ModelConfig(family="modernbert", encoder=encoder, lm=lm)


_INERT = (  # initial weights, losses, speed; or unused
    "initializer_cutoff_factor", "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad",
    "layer_norm_eps", "position_embedding_type", "classifier_pooling",
)  # fmt: skip


def read_prediction(f: Fields) -> Prediction:
    """The prediction head of the masked LM and of all tasks."""
    return Prediction(activation=f.activation("classifier_activation", "gelu"), bias=f.switch("classifier_bias", False))


def _local(f: Fields, layers: int, theta: float) -> Local | None:
    """The local layers from ``layer_types``, or from the fields of older files; None if there are none."""
    reach, every = f.count("local_attention", 128, least=0) // 2, f.count("global_attn_every_n_layers", 3)
    kinds = f.take("layer_types", None)
    if kinds is None:
        kinds = [LOCAL if layer % every else FULL for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (FULL, LOCAL) for kind in kinds):
        raise DataError(
            f"{f.source}: layer_types is {kinds!r}, expected {FULL!r} or {LOCAL!r} for each of {layers} layers; "
            "restore the file"
        )
    if LOCAL not in kinds:
        return None
    period = next(p for p in range(1, layers + 1) if all(kinds[i] == kinds[i % p] for i in range(layers)))
    full = tuple(layer for layer in range(period) if kinds[layer] == FULL)
    return Local(reach=reach, period=period, full=full, theta=theta)


def _theta(f: Fields, kind: str, older: str, usual: float) -> float:
    """The base of rotary positions in layers of ``kind``, from ``rope_parameters`` or the field of older files."""
    f.only("rope_scaling", None)
    parameters = f.take("rope_parameters", None) or {}
    if not isinstance(parameters, dict) or not set(parameters) <= {FULL, LOCAL}:
        raise DataError(f"{f.source}: rope_parameters is {parameters!r}, expected entries for {FULL!r} and {LOCAL!r}")
    of_kind = parameters.get(kind) or {}
    if not isinstance(of_kind, dict):
        raise DataError(f"{f.source}: rope_parameters: {kind} is {of_kind!r}, expected fields; restore the file")
    inner = Fields(of_kind, f"{f.source}: rope_parameters: {kind}")
    inner.only("rope_type", "default")
    unknown = set(inner.data) - {"rope_type", "rope_theta"}
    if unknown:
        raise DataError(f"{inner.source}: {', '.join(sorted(unknown))} is not implemented; it cannot be ignored safely")
    return inner.number("rope_theta", f.number(older, usual, least=1), least=1)


def write_modernbert(config: ModelConfig) -> dict[str, Any]:
    encoder, lm = config.encoder, config.lm or LM(dense_bias=False)
    position = encoder.position
    if not isinstance(position, Rotary):
        raise DataError(f"positions of kind {position.kind!r} are not part of ModernBERT in transformers")
    if not isinstance(encoder.normalization, LayerNormalization):
        raise DataError(f"a norm of kind {encoder.normalization.kind!r} is not part of ModernBERT in transformers")
    local = encoder.local
    kinds = [FULL if encoder.sees_all(layer) else LOCAL for layer in range(encoder.layers)]
    local_theta = position.theta if local is None or local.theta is None else local.theta
    older: dict[str, Any] = {"global_rope_theta": position.theta, "local_rope_theta": local_theta}  # releases 4.48 on
    every = local.period if local is not None else 1
    if kinds == [LOCAL if layer % every else FULL for layer in range(encoder.layers)]:
        older["global_attn_every_n_layers"] = every
    return {
        "vocab_size": encoder.vocab,
        "hidden_size": encoder.width,
        "intermediate_size": encoder.ff_width,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "hidden_activation": THEIR_ACTIVATION[encoder.activation],
        "max_position_embeddings": position.length,
        "initializer_range": encoder.init_std,
        "initializer_cutoff_factor": 2.0,  # the default; text-embeddings-inference reads no file without it
        "norm_eps": encoder.eps,
        "norm_bias": encoder.normalization.bias,
        "attention_bias": encoder.attention_biases != "none",
        "attention_dropout": encoder.attention_dropout,
        "layer_types": kinds,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": position.theta},
            LOCAL: {"rope_type": "default", "rope_theta": local_theta},
        },
        "local_attention": 2 * (local.reach if local is not None else 64),
        "embedding_dropout": encoder.dropout if encoder.embed_dropout is None else encoder.embed_dropout,
        "mlp_bias": encoder.ff_biases,
        "mlp_dropout": encoder.ff_dropout,
        "decoder_bias": lm.output_bias,
        "classifier_bias": lm.dense_bias,
        "classifier_activation": THEIR_ACTIVATION[lm.activation or encoder.activation],
        **older,
    }
