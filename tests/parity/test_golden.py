"""Equality with the original implementations: recorded weights, inputs, states, losses and gradients of tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.interchange import configs, deberta, fairseq, name_tables, names, tensorflow, transformer_xl
from encoderlab.model import Model
from encoderlab.nn.encoder import Chosen, States, update_memory
from encoderlab.nn.heads import AdaptiveLMHead, ClassificationHead
from encoderlab.nn.kernels import plain
from encoderlab.objectives.rtd import share_embeddings

TF, PT = "tf_checkpoints", "fairseq_checkpoints"
Arrays = dict[str, Tensor]


class Golden:
    """One recorded case: ``output/...``, ``input/...``, ``grad/...`` as tensors, and what its JSON says."""

    def __init__(self, folder: Path, case: str) -> None:
        self.case, self.folder = case, folder
        self.about: dict[str, Any] = json.loads((folder / f"{case}.json").read_text())
        with np.load(folder / f"{case}.npz") as arrays:
            self.arrays = {name: torch.from_numpy(arrays[name]) for name in arrays}

    def __getitem__(self, name: str) -> Tensor:
        value = self.arrays[name]
        return value if value.is_floating_point() else value.long()

    def under(self, prefix: str) -> Arrays:
        return {n.removeprefix(prefix): t for n, t in self.arrays.items() if n.startswith(prefix)}

    def close(self, ours: Tensor, name: str, where: Tensor | None = None, *, atol: float = 2e-5) -> None:
        theirs = self[f"output/{name}"]
        if where is not None:
            ours, theirs = ours[where], theirs[where]
        torch.testing.assert_close(
            ours.detach().float(), theirs.float(), atol=atol, rtol=1e-5, msg=lambda text: f"{name}: {text}"
        )

    def same_gradients(self, given: Arrays, kind: str = "grad") -> None:
        """Each recorded gradient within 1e-6 + 1e-4 of its largest entry."""
        recorded = self.under(f"{kind}/")
        assert recorded
        for name, theirs in recorded.items():
            assert name in given, name
            difference = float((given[name].reshape(theirs.shape) - theirs).abs().max())
            assert difference <= 1e-6 + 1e-4 * float(theirs.abs().max()), f"{kind} of {name}: {difference:.2e}"


@pytest.fixture
def golden(shared: Path, request: pytest.FixtureRequest) -> Golden:
    return Golden(shared / "golden", request.param)


def case(*names: str) -> Any:
    return pytest.mark.parametrize("golden", names, indirect=True)


def gradients(model: Model, name_table: names.NameTable, **options: bool) -> Arrays:
    """The gradients of ``model`` under foreign names and in foreign layouts."""
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    return names.write(name_table, grads, model.config.encoder, **options)


def real_places(mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), 0, -1)


# BERT, ALBERT


@case("bert_pretraining", "albert_pretraining")
def test_bert_and_albert(golden: Golden) -> None:
    model = tensorflow.read(golden.folder / TF / golden.case)["model"]
    real = golden["input/input_mask"].bool()
    states = model.encoder(golden["input/input_ids"], doc=real_places(real), segments=golden["input/segment_ids"])
    if golden.case == "bert_pretraining":
        golden.close(states.layers[0], "embedding_output", real)
    for i, layer in enumerate(states.layers[1:]):
        golden.close(layer, f"layer.{i}", real)
    assert model.pooler is not None and model.pair is not None and model.lm is not None
    pooled = model.pooler(states.last[:, 0])
    golden.close(pooled, "pooled")
    places = golden["input/masked_lm_positions"]
    rows = torch.arange(len(places))[:, None].expand_as(places)
    log_probs = model.lm(states.last[rows.flatten(), places.flatten()], model.words).log_softmax(-1)
    golden.close(log_probs, "mlm_log_probs")
    nll = -log_probs.gather(1, golden["input/masked_lm_ids"].view(-1, 1)).squeeze(1)
    weights = golden["input/masked_lm_weights"].flatten()
    mlm = (nll * weights).sum() / (weights.sum() + 1e-5)
    golden.close(mlm, "mlm_loss", atol=1e-5)
    sentence_log_probs = model.pair(pooled).log_softmax(-1)
    golden.close(sentence_log_probs, "sentence_log_probs")
    sentence = F.nll_loss(sentence_log_probs, golden["input/sentence_labels"].flatten())
    golden.close(mlm + sentence, "total_loss", atol=1e-5)
    (mlm + sentence).backward()
    golden.same_gradients(
        gradients(model, name_tables.BERT_TF if golden.case == "bert_pretraining" else name_tables.ALBERT_TF)
    )


# ELECTRA, ConvBERT


@case("electra_small_step", "convbert_ratio2_k9_groups1_step", "convbert_ratio2_k9_groups2_onehead_generator_step")
def test_electra_and_convbert(golden: Golden) -> None:
    models = tensorflow.read(golden.folder / TF / golden.case)
    generator, discriminator = models["generator"], models["discriminator"]
    assert torch.equal(generator.words, discriminator.words)
    share_embeddings(generator, discriminator, "block")
    real = golden["input/input_mask"].bool()
    given = {"doc": real_places(real), "segments": golden["input/segment_ids"]}

    states = generator.encoder(golden["input/input_ids_masked"], **given)
    check_layers(golden, states, "generator.", real)
    places = golden["input/masked_lm_positions"]
    rows = torch.arange(len(places))[:, None].expand_as(places)
    assert generator.lm is not None and discriminator.rtd is not None
    logits = generator.lm(states.last[rows.flatten(), places.flatten()], generator.words).view(*places.shape, -1)
    weights = golden["input/masked_lm_weights"]
    told = weights.bool()
    golden.close(logits, "generator.mlm_logits", told)
    nll = F.cross_entropy(logits.transpose(1, 2), golden["input/masked_lm_ids"], reduction="none")
    mlm = (nll * weights).sum() / (weights.sum() + 1e-6)
    golden.close(mlm, "mlm_loss", atol=1e-5)

    states = discriminator.encoder(golden["output/discriminator.input_ids"], **given)
    check_layers(golden, states, "discriminator.", real)
    detected = discriminator.rtd(states.last)
    golden.close(detected, "discriminator.logits", real)
    labels = golden["output/discriminator.labels"].float()
    loss = F.binary_cross_entropy_with_logits(detected, labels, reduction="none")
    rtd = (loss * real).sum() / (1e-6 + real.sum())
    golden.close(rtd, "disc_loss", atol=1e-5)
    golden.close(mlm + 50 * rtd, "total_loss", atol=1e-4)

    grouped = discriminator.config.encoder.ff_groups > 1
    name_table = name_tables.electra_tf_grouped if grouped else name_tables.electra_tf
    for kind, value in (("grad_disc_only", rtd), ("grad", mlm + 50 * rtd)):
        for model in models.values():
            model.zero_grad()
        value.backward(retain_graph=True)
        both = gradients(generator, name_table(generator=True)) | gradients(discriminator, name_table(generator=False))
        golden.same_gradients(both, kind)


def check_layers(golden: Golden, states: States, prefix: str, real: Tensor) -> None:
    golden.close(states.layers[0], f"{prefix}embedding_output", real)
    for i, layer in enumerate(states.layers[1:]):
        golden.close(layer, f"{prefix}layer.{i}", real)


# RoBERTa


@case("roberta_fairseq", "roberta_fairseq_old_layout")
def test_roberta(golden: Golden) -> None:
    folder = golden.folder / PT / golden.case
    model = fairseq.read(folder)["model"]
    assert len(fairseq.read_dictionary(folder / "dict.txt")) == model.config.encoder.vocab
    ids, target = golden["input/tokens"], golden["input/target"]
    real = ids != 1
    states = model.encoder(ids, doc=real_places(real))
    for i, layer in enumerate(states.layers):
        golden.close(layer, f"inner_states.{i}", real)
    assert model.lm is not None and (model.task is None) == ("old" in golden.case)  # that file has no head
    if isinstance(model.task, ClassificationHead):
        golden.close(model.task(states.last[:, 0]), "classification_logits")
    rows, places = (target != 1).nonzero(as_tuple=True)
    logits = model.lm(states.last[rows, places], model.words)
    golden.close(logits, "mlm_logits")
    loss = F.cross_entropy(logits, target[rows, places], reduction="sum")
    golden.close(loss, "loss_sum", atol=1e-4)
    what = golden.about["gradients_of"]
    (loss / len(rows) if "mean" in what else loss).backward()
    model.task = None
    golden.same_gradients(gradients(model, name_tables.ROBERTA_FAIRSEQ, dialects=True, ties=True))


# DeBERTa


@case("deberta_v1_mlm", "deberta_v1_released_layout_mlm", "deberta_v2_conv_mlm", "deberta_v3_mlm_log_buckets")
@pytest.mark.parametrize("released", [False, True])
def test_deberta(golden: Golden, released: bool) -> None:
    weights = golden.under("weight/")
    name_table = name_tables.DEBERTA_V2
    if released:
        if "released" not in golden.case:
            pytest.skip("recorded in one name_table")
        own = golden.under("weight_v1_layout/")
        weights = {n: t for n, t in weights.items() if "attention.self" not in n} | own
        name_table = name_tables.DEBERTA_V1
    model = deberta.networks(golden.about["config"], weights, Path(golden.case))["model"]
    real = golden["input/input_mask"].bool()
    states = model.encoder(golden["input/input_ids"], doc=real_places(real))
    golden.close(states.layers[0], "embeddings", real)
    for i, layer in enumerate(states.layers[1:]):
        golden.close(layer, f"hidden_states.{i}", real)
    rows, places = (golden["input/labels"] > 0).nonzero(as_tuple=True)
    chosen = Chosen.among_all(rows, places, *real.shape)
    decoded = model.decode_masks(states, chosen)
    torch.testing.assert_close(decoded, golden["output/emd.layer.1"][rows, places], atol=2e-5, rtol=1e-5)
    logits = model.token_logits(states, chosen)
    golden.close(logits, "mlm_logits", atol=5e-5)
    loss = F.cross_entropy(logits, golden["input/labels"][rows, places])
    golden.close(loss, "loss", atol=1e-5)
    if not released:
        loss.backward()
        golden.same_gradients(gradients(model, name_table, dialects=True))


@case("deberta_rtd_gdes")
def test_deberta_step_with_disentangled_embeddings(golden: Golden) -> None:
    models = deberta.networks(golden.about["config"], golden.under("weight/"), Path(golden.case))
    generator, discriminator = models["generator"], models["discriminator"]
    golden.close(discriminator.words, "discriminator.word_embeddings.effective_weight", atol=0)
    share_embeddings(generator, discriminator, "disentangled")
    delta = golden["weight/discriminator.deberta.embeddings.word_embeddings._weight"]
    with torch.no_grad():
        assert discriminator.encoder.embeddings.words is not None
        discriminator.encoder.embeddings.words.copy_(delta)
    real = golden["input/input_mask"].bool()
    labels, doc = golden["input/labels"], real_places(real)

    states = generator.encoder(golden["input/input_ids"], doc=doc)
    golden.close(states.layers[0], "generator.embeddings", real)
    for i, layer in enumerate(states.layers[1:]):
        golden.close(layer, f"generator.hidden_states.{i}", real)
    rows, places = (labels > 0).nonzero(as_tuple=True)
    logits = generator.token_logits(states, Chosen.among_all(rows, places, *real.shape))
    golden.close(logits, "generator.mlm_logits", atol=5e-5)
    mlm = F.cross_entropy(logits, labels[rows, places])
    golden.close(mlm, "mlm_loss", atol=1e-5)

    states = discriminator.encoder(golden["output/discriminator.input_ids"], doc=doc)
    golden.close(states.layers[0], "discriminator.embeddings", real)
    for i, layer in enumerate(states.layers[1:]):
        golden.close(layer, f"discriminator.hidden_states.{i}", real)
    assert discriminator.rtd is not None
    chosen, first = states.last[real], states.last[:, :1].expand_as(states.last)[real]
    detected = discriminator.rtd(chosen, first)
    torch.testing.assert_close(detected, golden["output/discriminator.logits"][real], atol=2e-5, rtol=1e-5)
    replaced = golden["output/discriminator.labels"].float()
    rtd = F.binary_cross_entropy_with_logits(detected, replaced)
    golden.close(rtd, "rtd_loss", atol=1e-5)
    weight = golden.about["config"]["rtd_lambda"]
    golden.close(mlm + weight * rtd, "total_loss", atol=1e-4)

    for kind, value in (("grad_mlm", mlm), ("grad_rtd", rtd), ("grad_total", mlm + weight * rtd)):
        for model in models.values():
            model.zero_grad()
        value.backward(retain_graph=True)
        found = {f"generator.{n}": g for n, g in gradients(generator, name_tables.DEBERTA_V2, dialects=True).items()}
        found |= {f"discriminator.{n}": g for n, g in gradients(discriminator, name_tables.DEBERTA_V2).items()}
        name = "discriminator.deberta.embeddings.word_embeddings."
        found[name + "_weight"] = found.pop(name + "weight")
        found[name + "_weight"][0] = 0  # the original's padding row is frozen
        golden.same_gradients(found, kind)


# Transformer-XL


@case("transformer_xl_div1", "transformer_xl_div2_adaptive_same_length", "transformer_xl_tf_untied_uv")
def test_transformer_xl(golden: Golden) -> None:
    config = golden.about["config"]
    from_tensorflow = "initial_mems" in str(golden.arrays.keys())
    if from_tensorflow:
        model = tensorflow.read(golden.folder / TF / golden.case)["model"]
        memory = tuple(part.transpose(0, 1) for part in golden["input/initial_mems"])
    else:
        fields = configs.Fields({k: v for k, v in config.items() if k != "dropatt"} | {"dropatt": 0.0}, golden.case)
        model = transformer_xl.network(
            transformer_xl.read_config(fields, eps=1e-5), golden.under("weight/"), Path(golden.case)
        )
        memory = None
    adaptive = model.config.encoder.adaptive
    assert isinstance(model.lm, AdaptiveLMHead) and adaptive is not None
    window = config["mem_len"] if config["same_length"] else None
    tokens = golden["input/tokens"].T
    total, start = torch.zeros(()), 0
    for segment, length in enumerate(golden.about["segment_lengths"]):
        ids, targets = tokens[:, start : start + length], tokens[:, start + 1 : start + length + 1]
        states = model.encoder(ids, memory=memory, window=window)
        for i, layer in enumerate(states.layers[1:]):
            golden.close(layer.transpose(0, 1), f"segment{segment}.layer.{i}")
        memory = update_memory(memory, states.layers[:-1], config["mem_len"])
        assert memory is not None
        kind = "new_mems" if from_tensorflow else "mems_after"
        for i, remembered in enumerate(memory):
            golden.close(remembered.transpose(0, 1), f"segment{segment}.{kind}.{i}")
        losses = model.lm.losses(states.last.flatten(0, 1), targets.flatten(), model.encoder.embeddings)
        name = "nll" if from_tensorflow else "nll_token_order"
        golden.close(losses.view_as(targets).T, f"segment{segment}.{name}", atol=5e-5)
        total = total + losses.mean()
        start += length
    golden.close(total, "loss_sum" if from_tensorflow else "loss_sum_of_segment_means", atol=5e-5)
    total.backward()
    vocab = model.config.encoder.vocab
    name_table = (
        name_tables.transformer_xl_tf(adaptive)
        if from_tensorflow
        else name_tables.transformer_xl(adaptive, vocab, original=True)
    )
    golden.same_gradients(gradients(model, name_table))


# XLNet


@case("xlnet_finetune_forward")
def test_xlnet_content_stream(golden: Golden) -> None:
    model = tensorflow.read(golden.folder / TF / golden.case)["model"]
    real = golden["input/segment0.input_mask"].T == 0
    states = model.encoder(
        golden["input/segment0.input_k"].T, doc=real_places(real), segments=golden["input/segment0.seg_id"].T
    )
    for i, layer in enumerate(states.layers[1:]):
        golden.close(layer.transpose(0, 1), f"segment0.h.layer.{i}", real.T)
    weights = golden.under("weight/summ_last/model/sequnece_summary/summary/")
    summary = torch.tanh(states.last[:, -1] @ weights["kernel"] + weights["bias"])
    golden.close(summary, "segment0.summary.last")


@case("xlnet_two_stream_memory_bi_data")
def test_xlnet_two_streams(golden: Golden) -> None:
    model = tensorflow.read(golden.folder / TF / golden.case)["model"]
    run = golden.about["config"]["run_config"]
    batch = golden.about["config"]["batch"]
    reverse = torch.arange(batch) >= batch // 2
    memory, total = None, torch.zeros(())
    assert model.mask_vector is not None and model.lm is not None
    for segment in (0, 1):
        given = {n: t.long() for n, t in golden.under(f"input/segment{segment}.").items()}
        ids, segments = given["input_k"].T, given["seg_id"].T
        seen = given["perm_mask"].permute(2, 0, 1) == 0  # (B, L, L)
        itself = torch.eye(ids.shape[1], dtype=torch.bool)
        states = model.encoder(ids, segments=segments, visible=seen | itself, memory=memory, reverse=reverse)
        for i, layer in enumerate(states.layers[1:]):
            golden.close(layer.transpose(0, 1), f"segment{segment}.h.layer.{i}")
        told = given["target_mask"].T.bool()
        at = given["target_mapping"].permute(2, 0, 1).argmax(-1)  # (B, T)
        for depth in range(1, model.encoder.depth + 1):
            predicted = model.encoder.query_stream(
                states,
                model.mask_vector.expand(*at.shape, -1),
                at,
                layers=range(depth),
                visible=seen.gather(1, at[:, :, None].expand(-1, -1, ids.shape[1])),
                memory=memory,
            )
            golden.close(predicted.transpose(0, 1), f"segment{segment}.g.layer.{depth - 1}", told.T)
        golden.close(predicted.transpose(0, 1), f"segment{segment}.output", told.T)
        losses = F.cross_entropy(model.lm(predicted[told], model.words), given["target"].T[told], reduction="none")
        theirs = golden[f"output/segment{segment}.lm_nll"].T[told]
        torch.testing.assert_close(losses, theirs, atol=5e-5, rtol=1e-5)
        golden.close(losses.mean(), f"segment{segment}.loss", atol=1e-5)
        total = total + losses.mean()
        memory = update_memory(memory, states.layers[:-1], run["mem_len"], reuse=run["reuse_len"])
        assert memory is not None
        for i, remembered in enumerate(memory):
            golden.close(remembered.transpose(0, 1), f"segment{segment}.new_mems.{i}")
    golden.close(total, "loss_sum", atol=2e-5)
    total.backward()
    golden.same_gradients(gradients(model, name_tables.XLNET_TF))


# Light and dynamic convolution


@case("fairseq_light_dynamic_conv")
@pytest.mark.parametrize(
    "name",
    [
        "light_k5_same_softmax",
        "light_k7_causal_plain",
        "dynamic_k5_same_softmax",
        "dynamic_k3_causal_renorm",
        "dynamic_k5_in_proj",
    ],
)
def test_light_and_dynamic_convolution(golden: Golden, name: str) -> None:
    """Our taps are centred, so a causal kernel of k taps is a centred one of 2 k - 1 with zeros on the right."""
    about = golden.about["cases"][name]
    heads, kernel, left = about["num_heads"], about["kernel_size"], about["padding_l"]
    weights = {n: t.clone().requires_grad_() for n, t in golden.under(f"weight/{name}/").items()}
    given = golden[f"input/{name}/x"].clone().requires_grad_()
    x = given.transpose(0, 1)  # (B, L, C)
    batch, length, _ = x.shape
    if about["kind"] == "light":
        logits = weights["weight"].squeeze(1).expand(batch, length, heads, kernel)
    else:
        logits = F.linear(x, weights["weight_linear.weight"], weights.get("weight_linear.bias"))
        if about.get("in_proj"):
            x, logits = logits.split([x.shape[2], heads * kernel], dim=2)
        logits = logits.unflatten(2, (heads, kernel))
    if about.get("renorm_padding"):
        reads = torch.arange(length)[:, None] + torch.arange(kernel) - left
        logits = logits.masked_fill(((reads < 0) | (reads >= length))[None, :, None], float("-inf"))
    taps = logits.softmax(-1) if about["weight_softmax"] else logits
    taps = F.pad(taps, (0, 2 * left + 1 - kernel))
    out = plain.convolve(x.unflatten(2, (heads, -1)), taps).flatten(2)
    bias = weights.get("bias" if about["kind"] == "light" else "conv_bias")
    out = (out if bias is None else out + bias).transpose(0, 1)
    golden.close(out, f"{name}/expanded", atol=1e-5)
    (out * golden[f"input/{name}/grad_out"]).sum().backward()
    for parameter, theirs in golden.under(f"grad/{name}/").items():
        mine = given.grad if parameter == "x" else weights[parameter].grad
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
