"""Transformer-XL's PyTorch code: what is read, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from encoderlab.errors import DataError
from encoderlab.interchange import (
    configs,
    folder,
    huggingface,
    name_tables,
    names,
    tensorflow,
    transformer_xl,
)
from encoderlab.interchange.load import kind_of, load, read
from encoderlab.models.base import resized
from encoderlab.nn.embeddings import Adaptive
from tests.interchange.tiny_models import CONFIGS, lacking, make, same_weights


def test_transformer_xl_state(tmp_path: Path) -> None:
    model = make(CONFIGS["transformer-xl-adaptive"])
    adaptive = model.config.encoder.adaptive
    assert adaptive is not None
    name_table = name_tables.transformer_xl(adaptive, model.config.encoder.vocab, original=True)
    torch.save(names.write(name_table, folder.weights(model), model.config.encoder), tmp_path / "model_state.pt")
    config = configs.write(model.config)
    config["n_token"] = config.pop("vocab_size")
    del config["model_type"]
    (tmp_path / "transformer_xl_config.json").write_text(json.dumps(config))
    assert kind_of(tmp_path) == "transformer-xl"
    assert same_weights(read(tmp_path)["model"], model)
    (tmp_path / "transformer_xl_config.json").write_text(json.dumps(config | {"n_layer": 3}))
    lacking(tmp_path)
    torch.save({"model": [1]}, tmp_path / "model_state.pt")
    with pytest.raises(DataError, match="not a dictionary of weights"):
        read(tmp_path)


@pytest.mark.parametrize("tied", ["all", "all_but_first", "none"])
@pytest.mark.parametrize(("divisor", "width"), [(1, 24), (1, 32), (2, 32), (2, 24)])
def test_tables_of_the_softmax_that_are_its_own(
    divisor: int, width: int, tied: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``--not_tied`` of the original, and ``transformers`` without tied tables: both directions, and what is computed:
    with equal tables the losses of the tied model, and other ones with others.
    """
    adaptive = Adaptive(cutoffs=(10, 30), divisor=divisor, tied_projections=tied, tied_tables=False)
    model = make(resized(CONFIGS["transformer-xl"], adaptive=adaptive, embed_width=width))
    vocab, encoder = model.config.encoder.vocab, model.config.encoder
    state = names.write(
        name_tables.transformer_xl(adaptive, vocab, original=True), folder.weights(model), encoder, ties=True
    )
    own = [f"crit.out_layers.{i}.weight" for i in range(3 if divisor > 1 else 1)]
    assert all(not torch.equal(state[name], state[f"word_emb.emb_layers.{i}.weight"]) for i, name in enumerate(own))
    torch.save(state, tmp_path / "model_state.pt")
    config = configs.write(model.config)
    given = {name: value for name, value in config.items() if name not in ("model_type", "tie_weight")}
    del given["tie_word_embeddings"]
    (tmp_path / "transformer_xl_config.json").write_text(json.dumps(given | {"not_tied": True, "tied": False}))
    assert same_weights(read(tmp_path)["model"], model) and not caplog.records
    huggingface.save(model, tmp_path / "hf")
    assert same_weights(load(tmp_path / "hf"), model)

    plain = make(resized(model.config, adaptive=replace(adaptive, tied_tables=True)))
    plain.load_state_dict({name: w for name, w in model.state_dict().items() if not name.startswith("lm.tables")})
    x, targets = torch.randn(6, encoder.width), torch.tensor([0, 9, 10, 29, 30, vocab - 1])
    wanted = plain.lm.losses(x, targets, plain.encoder.embeddings)
    assert not torch.allclose(model.lm.losses(x, targets, model.encoder.embeddings), wanted)
    with torch.no_grad():
        for mine, theirs in zip(model.lm.tables, model.encoder.embeddings.clusters.tables, strict=True):
            mine.copy_(theirs)
    torch.testing.assert_close(model.lm.losses(x, targets, model.encoder.embeddings), wanted)


@pytest.mark.parametrize("tied", ["all", "all_but_first", "none"])
@pytest.mark.parametrize(("divisor", "width"), [(1, 24), (1, 32), (2, 32), (2, 24)])
def test_maps_of_transformer_xl(
    divisor: int, width: int, tied: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """State dictionaries name a tied map once for every cluster, also where all share the one of the input."""
    mapped = divisor > 1 or width != 32
    adaptive = Adaptive(cutoffs=(10, 30), divisor=divisor, tied_projections=tied)
    model = make(resized(CONFIGS["transformer-xl"], adaptive=adaptive, embed_width=width))
    vocab, encoder = model.config.encoder.vocab, model.config.encoder
    state = names.write(
        name_tables.transformer_xl(adaptive, vocab, original=True), folder.weights(model), encoder, ties=True
    )
    assert [f"crit.out_projs.{i}" in state for i in range(3)] == [mapped] * 3
    torch.save(state, tmp_path / "model_state.pt")
    config = configs.write(model.config)
    del config["model_type"]
    (tmp_path / "transformer_xl_config.json").write_text(json.dumps(config))
    assert same_weights(read(tmp_path)["model"], model)
    assert not caplog.records
    found = names.write(name_tables.transformer_xl_tf(adaptive), folder.weights(model), encoder)
    fields = configs.Fields({name: value for name, value in config.items() if "proj" not in name}, "TF")
    again, _ = tensorflow._transformer_xl(fields, found)  # told by the variables
    assert not mapped or again.encoder.adaptive == adaptive


@pytest.mark.usefixtures("unrecorded")
def test_shared_biases_stand_in_every_layer_of_transformers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make(CONFIGS["transformer-xl"])
    huggingface.save(model, tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    for name in ("r_w_bias", "r_r_bias"):
        tensors |= {f"transformer.layers.{i}.dec_attn.{name}": tensors[f"transformer.{name}"].clone() for i in range(2)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    assert same_weights(load(tmp_path), model) and not caplog.records


@pytest.mark.parametrize(
    ("arguments", "cutoffs", "tied"),
    [
        ({"dataset": "wt103", "adaptive": True}, (20000, 40000, 200000), "all_but_first"),
        ({"dataset": "lm1b", "adaptive": True, "div_val": 4}, (60000, 100000, 640000), "none"),
        ({"dataset": "enwik8", "adaptive": False}, (), "all_but_first"),
    ],
)
def test_arguments_of_transformer_xl_scripts(arguments: dict[str, Any], cutoffs: tuple[int, ...], tied: str) -> None:
    """All that ``train.py`` was called with; what it derives from them is derived here too."""
    given = {
        "n_layer": 2, "d_model": 32, "d_embed": -1, "n_head": 4, "d_head": 8, "d_inner": 48, "n_token": 700000,
        "lr": 0.00025, "optim": "adam", "max_step": 200000, "batch_size": 60, "cuda": True, "not_tied": False,
        "tied": True, "same_length": False, "clamp_len": -1, "mem_len": 150, "pre_lnorm": False, "attn_type": 0,
    }  # fmt: skip
    found = transformer_xl.read_config(configs.Fields(given | arguments, "args"), eps=1e-5).encoder
    assert found.adaptive is not None
    assert (found.adaptive.cutoffs, found.adaptive.tied_projections) == (cutoffs, tied)
    for name, value in {"attn_type": 1, "unheard_of": 1}.items():
        with pytest.raises(DataError, match=name):
            transformer_xl.read_config(configs.Fields(given | arguments | {name: value}, "args"), eps=1e-5)


def test_norms_before_attention_and_feed_forward(tmp_path: Path) -> None:
    """``pre_lnorm``, by the formulas of the published code: no norm follows the last layer."""
    config = resized(CONFIGS["transformer-xl"], norm="pre_but_last")
    model = make(config)
    huggingface.save(model, tmp_path / "hf")
    assert load(tmp_path / "hf").config.encoder.norm == "pre_but_last" and same_weights(load(tmp_path / "hf"), model)
    adaptive = config.encoder.adaptive
    assert adaptive is not None
    name_table = name_tables.transformer_xl(adaptive, config.encoder.vocab, original=True)
    weights = names.write(name_table, folder.weights(model), config.encoder)
    torch.save(weights, tmp_path / "model_state.pt")
    fields = {"n_layer": 2, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "n_token": 50, "cutoffs": []}
    (tmp_path / "transformer_xl_config.json").write_text(json.dumps(fields | {"pre_lnorm": True}))
    assert same_weights(read(tmp_path / "model_state.pt")["model"], model)

    ids = torch.randint(0, 50, (1, 7), generator=torch.Generator().manual_seed(0))
    memory = [torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(layer)) for layer in range(2)]
    heads, width, past, length = 4, 8, 4, 7
    distance = torch.arange(past + length - 1, -1, -1.0)[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)
    positions = torch.cat([distance.sin(), distance.cos()], dim=1)  # the largest distance first
    x = weights["word_emb.emb_layers.0.weight"][ids[0]] * 32**0.5
    for layer in range(2):
        own = {n.removeprefix(f"layers.{layer}."): w for n, w in weights.items() if n.startswith(f"layers.{layer}.")}

        def norm(part: str, states: torch.Tensor, own: dict[str, torch.Tensor] = own) -> torch.Tensor:
            scale, shift = own[f"{part}.layer_norm.weight"], own[f"{part}.layer_norm.bias"]
            return torch.nn.functional.layer_norm(states, (32,), scale, shift, 1e-5)

        seen = norm("dec_attn", torch.cat([memory[layer][0], x]))
        q, k, v = (seen @ own["dec_attn.qkv_net.weight"].T).unflatten(1, (3, heads, width)).unbind(1)
        r = (positions @ own["dec_attn.r_net.weight"].T).unflatten(1, (heads, width))
        outputs = []
        for i in range(length):
            content = torch.einsum("hk,jhk->hj", q[past + i] + weights["r_w_bias"], k[: past + i + 1])
            place = torch.einsum("hk,jhk->hj", q[past + i] + weights["r_r_bias"], r[length - 1 - i :])
            share = ((content + place) / width**0.5).softmax(-1)
            outputs.append(torch.einsum("hj,jhk->hk", share, v[: past + i + 1]).flatten())
        x = x + torch.stack(outputs) @ own["dec_attn.o_net.weight"].T
        inner = norm("pos_ff", x) @ own["pos_ff.CoreNet.0.weight"].T + own["pos_ff.CoreNet.0.bias"]
        x = x + inner.relu() @ own["pos_ff.CoreNet.3.weight"].T + own["pos_ff.CoreNet.3.bias"]
    with torch.no_grad():
        torch.testing.assert_close(model(ids, memory=memory).last[0], x, atol=2e-5, rtol=2e-5)
