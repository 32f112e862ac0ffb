"""Optimisers against their formulas written out, parameter groups by kind of module, rates by layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.nn.architecture import EncoderConfig, Sharing
from encoderlab.nn.embeddings import Adaptive
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.positions import RelativeShift
from encoderlab.train.optim import (
    AdamW,
    BertAdam,
    Lamb,
    LayerDecay,
    Muon,
    Optim,
    Optimizer,
    StableAdamW,
    global_norm,
    group_parameters,
    orthogonalised,
)
from tests.objectives.small import small

STEPS, LR = 5, 0.01


def written_out(optim: Optim, weight: Tensor, grads: list[Tensor], decay: float, whole: bool) -> Tensor:
    """The published update in double precision; ``whole``: LAMB scales this tensor."""
    (b1, b2), m, v = optim.betas, torch.zeros_like(weight), torch.zeros_like(weight)
    for t, g in enumerate(grads, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        rate = LR
        if isinstance(optim, (AdamW, StableAdamW)):
            direction = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + optim.eps)
            if isinstance(optim, StableAdamW):
                surprise = (g * g / (v / (1 - b2**t)).clamp(min=optim.eps**2)).mean().sqrt()
                rate = LR / max(1.0, float(surprise))
        else:
            direction = m / (v.sqrt() + optim.eps)
        direction = direction + decay * weight
        ratio = weight.norm() / direction.norm() if isinstance(optim, Lamb) and whole and weight.any() else 1.0
        weight = weight - rate * ratio * direction
    return weight


@pytest.mark.parametrize(
    "optim",
    [AdamW(betas=(0.9, 0.98)), BertAdam(), Lamb(eps=1e-3), Lamb(weight_decay=0.1), AdamW(no_decay=()),
     StableAdamW(betas=(0.9, 0.8), weight_decay=0.1), StableAdamW(no_decay=())],
)  # fmt: skip
def test_formula(optim: Optim) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Embedding(3, 5))
    nn.init.zeros_(module[2].weight)  # type: ignore[arg-type]  # LAMB: a norm of 0
    names = dict(module.named_parameters())
    start = {name: p.detach().double() for name, p in names.items()}
    grads = [{name: torch.randn_like(p) for name, p in names.items()} for _ in range(STEPS)]
    optimizer = Optimizer(group_parameters(module, optim), optim)
    for i in range(STEPS):
        for name, p in names.items():
            p.grad = 8 * grads[i][name]
        optimizer.step(LR, grad_scale=torch.tensor(8.0), skip=torch.tensor(0.0))
    for name, p in names.items():
        small = name.endswith("bias") or name.startswith("1.")
        decay = optim.weight_decay if not small or not optim.no_decay else 0.0
        expected = written_out(optim, start[name], [g[name].double() for g in grads], decay, not small)
        torch.testing.assert_close(p.double(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("optim", [AdamW(weight_decay=0.0), BertAdam(weight_decay=0.0)])
def test_update_ratio_is_how_far_the_last_step_went(optim: Optim) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 2))
    optimizer = Optimizer(group_parameters(module, optim), optim)
    matrices = [p for p in module.parameters() if p.ndim > 1]
    for _ in range(STEPS):
        for p in module.parameters():
            p.grad = torch.randn_like(p)
        before = [p.detach().clone() for p in matrices]
        optimizer.step(LR)
    moved = sum((p - b).square().sum() for p, b in zip(matrices, before, strict=True))
    length = sum(p.square().sum() for p in matrices)
    torch.testing.assert_close(optimizer.update_ratio(LR), (moved / length).sqrt().detach(), rtol=1e-4, atol=0)


def test_update_ratio_before_any_update_is_zero() -> None:
    """As where the first steps of a run in fp16 overflow and are left out."""
    for optim in (AdamW(), BertAdam()):
        assert Optimizer(group_parameters(nn.Linear(7, 5), optim), optim).update_ratio(LR) == 0


def test_a_broken_gradient_changes_nothing() -> None:
    for optim in (AdamW(), BertAdam(), Lamb(), StableAdamW()):
        module = nn.Linear(3, 2)
        optimizer = Optimizer(group_parameters(module, optim), optim)
        before = [p.clone() for p in module.parameters()]
        for p in module.parameters():
            p.grad = torch.full_like(p, torch.nan)
        optimizer.step(LR, grad_scale=torch.tensor(torch.nan), skip=torch.tensor(1.0))
        assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
        assert all(not state.any() for states in optimizer.state.values() for state in states.values())


def test_a_parameter_without_gradient_is_left_alone() -> None:
    module = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
    optimizer = Optimizer(group_parameters(module, AdamW()), AdamW())
    before = [p.clone() for p in module[1].parameters()]
    module[0](torch.ones(1, 3)).sum().backward()
    optimizer.step(LR)
    assert all(torch.equal(a, b) for a, b in zip(before, module[1].parameters(), strict=True))


def test_lamb_scales_queries_keys_and_values_each_by_their_own_ratio() -> None:
    whole, parts = nn.Module(), nn.Module()
    torch.manual_seed(0)
    whole.qkv = nn.Parameter(torch.randn(6, 4) * torch.tensor([1.0, 1, 10, 10, 100, 100])[:, None])
    parts.three = nn.ParameterList(whole.qkv.detach().clone().chunk(3))
    grad = torch.randn(6, 4)
    whole.qkv.grad = grad
    for p, g in zip(parts.three, grad.clone().chunk(3), strict=True):
        p.grad = g
    for module in (whole, parts):
        Optimizer(group_parameters(module, Lamb()), Lamb()).step(LR)
    torch.testing.assert_close(whole.qkv, torch.cat(list(parts.three)))


def small_encoder(**changes: Any) -> Encoder:
    return Encoder(EncoderConfig(**{"vocab": 11, "layers": 3, "width": 8, "heads": 2, "ff_width": 12} | changes))


def adaptive_model() -> nn.Module:
    config = small("transformer-xl-tiny")
    return Model(replace(config, encoder=replace(config.encoder, adaptive=Adaptive(cutoffs=(12, 30)))))


def test_decay_is_decided_by_kind_of_module() -> None:
    # Names such as r_w_bias deceive: XLNet's biases of the attention scores are decayed (spec 2.4), norms of any name
    # are not.
    encoder = small_encoder(position=RelativeShift(segments=True))
    groups = group_parameters(encoder, BertAdam())
    decayed = {name for group in groups if group.weight_decay for name in group.names}
    everything = {name for group in groups for name in group.names}
    assert everything == {name for name, _ in encoder.named_parameters()}
    assert sum(len(group.names) for group in groups) == len(everything)
    assert {name for name in everything - decayed} == {
        name for name in everything if "norm" in name or name.endswith("bias")
    }
    assert {name for name in decayed if name.split(".")[-1] in ("u", "v", "s")}, "the biases of the scores"
    for others in (small_encoder(norm="normformer"), adaptive_model()):
        for group in group_parameters(others, AdamW()):
            assert all(group.matrices == (parameter.ndim > 1) for parameter in group.parameters)
            assert bool(group.weight_decay) == group.matrices
    assert "embeddings.words" in decayed
    assert not [group for group in group_parameters(encoder, BertAdam(no_decay=())) if not group.weight_decay]


def test_tied_and_frozen_parameters() -> None:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Linear(4, 4))
    module[1].weight = module[0].weight  # type: ignore[assignment]
    module[2].requires_grad_(False)
    assert [group.names for group in group_parameters(module, AdamW())] == [("0.weight",)]


@pytest.mark.parametrize(("offset", "exponents"), [(2, (5, 4, 2)), (1, (4, 3, 1)), (0, (3, 2, 0))])
def test_layer_wise_rates(offset: Any, exponents: tuple[int, int, int]) -> None:
    module = nn.ModuleDict({"encoder": small_encoder(), "head": nn.Linear(8, 2)})
    groups = group_parameters(module, AdamW(layer_decay=LayerDecay(decay=0.8, offset=offset)))
    rates = {name: group.rate for group in groups for name in group.names}
    assert (
        rates["encoder.embeddings.words"] == rates["encoder.embeddings.norm.bias"] == pytest.approx(0.8 ** exponents[0])
    )
    assert rates["encoder.blocks.0.attention.qkv"] == pytest.approx(0.8 ** exponents[1])
    assert rates["encoder.blocks.2.feed_forward.up.bias"] == pytest.approx(0.8 ** exponents[2])
    assert rates["head.weight"] == rates["head.bias"] == 1.0
    optimizer = Optimizer(groups, BertAdam())
    before = {name: p.clone() for name, p in module.named_parameters()}
    for p in optimizer.parameters:
        p.grad = torch.ones_like(p)
    optimizer.step(LR)
    moved = {name: (before[name] - p).abs().max().item() for name, p in module.named_parameters()}
    assert moved["encoder.blocks.0.attention.bias"] == pytest.approx(moved["head.bias"] * 0.8 ** exponents[1], rel=1e-3)


def test_layer_wise_rates_that_cannot_be() -> None:
    optim = AdamW(layer_decay=LayerDecay())
    with pytest.raises(ConfigError, match="layers that share weights"):
        group_parameters(small_encoder(sharing=Sharing()), optim)
    with pytest.raises(ConfigError, match="this model has none"):
        group_parameters(nn.Linear(2, 2), optim)
    encoder = small_encoder()
    encoder.extra = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="'extra.weight' of the encoder belongs to no layer"):
        group_parameters(encoder, optim)


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"betas": (0.9, 1.0)}])
def test_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give"):
        AdamW(**wrong)


def test_global_norm() -> None:
    module = nn.Linear(3, 2)
    module(torch.randn(4, 3)).square().sum().backward()
    expected = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]).norm()
    torch.testing.assert_close(global_norm(list(module.parameters())), expected)


def test_muon_brings_singular_values_near_one_and_keeps_singular_vectors() -> None:
    torch.manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(12, 5, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    values = torch.tensor([3.0, 1.0, 0.3, 0.1, 0.03], dtype=torch.float64)
    matrix = (u * values) @ v.T
    for shape in (matrix, matrix.T):
        result = orthogonalised(torch.stack([shape, 0 * shape]).float())
        assert not result[1].any()
        left, right = (u, v) if shape is matrix else (v, u)
        inner = left.T @ result[0].double() @ right
        assert 0.6 < inner.diagonal().min() and inner.diagonal().max() < 1.3
        assert (inner - inner.diagonal().diag()).abs().max() < 1e-4


def test_muon_follows_its_formula_in_the_layers_and_adamw_elsewhere() -> None:
    torch.manual_seed(0)
    module, other = (nn.ModuleDict({"encoder": small_encoder(), "head": nn.Linear(8, 3)}) for _ in range(2))
    for weight in module.parameters():
        nn.init.normal_(weight)
    other.load_state_dict(module.state_dict())
    muon = Muon(weight_decay=0.1, momentum=0.9, betas=(0.9, 0.98))
    optimizer = Optimizer(group_parameters(module, muon), muon)
    adamw = AdamW(weight_decay=0.1, betas=(0.9, 0.98))
    rest = Optimizer(group_parameters(other, adamw), adamw)
    theirs, moments = dict(other.named_parameters()), {}
    matrices = {name for name in theirs if ".blocks." in name and theirs[name].ndim == 2}
    assert {name.split(".", 3)[-1] for name in matrices} == {
        "attention.qkv", "attention.out.weight", "feed_forward.up.weight", "feed_forward.down.weight"
    }  # fmt: skip
    expected = {name: theirs[name].detach().double() for name in matrices}
    for _ in range(3):
        for name, p in module.named_parameters():
            p.grad = torch.randn_like(p)
            theirs[name].grad = p.grad.clone()
            if name in matrices:
                moments[name] = 0.9 * moments.get(name, 0) + p.grad.double()
                wanted = p.grad.double() + 0.9 * moments[name]
                parts = wanted.chunk(3) if name.endswith("qkv") else [wanted]
                step = [0.2 * max(g.shape) ** 0.5 * orthogonalised(g[None].float())[0].double() for g in parts]
                expected[name] = expected[name] * (1 - LR * 0.1) - LR * torch.cat(step)
        optimizer.step(LR, grad_scale=torch.tensor(1.0), skip=torch.tensor(0.0))
        rest.step(LR)
    for name, p in module.named_parameters():
        target = expected[name] if name in matrices else theirs[name].double()
        torch.testing.assert_close(p.double(), target, rtol=1e-5, atol=1e-6)
    assert all(list(optimizer.state[name]) == ["exp_avg"] for name in matrices)
    sizes = [(8, 8)] * 4 + [(8, 12)] * 2
    assert optimizer.operations == 3 * sum(5 * (4 * m * m * n + 2 * m**3) for m, n in sizes)
    assert rest.operations == 0


@pytest.mark.parametrize("broken", [False, True])
def test_muon_leaves_out_a_step_with_a_broken_gradient(broken: bool) -> None:
    module = small_encoder()
    for weight in module.parameters():
        nn.init.normal_(weight)
    optimizer = Optimizer(group_parameters(module, Muon()), Muon())
    before = [p.clone() for p in module.parameters()]
    for p in module.parameters():
        p.grad = torch.full_like(p, torch.nan if broken else 1.0)
    optimizer.step(LR, grad_scale=torch.tensor(torch.nan if broken else 1.0), skip=torch.tensor(float(broken)))
    same = [torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)]
    assert all(same) if broken else not any(same)
    assert all(moment.isfinite().all() for state in optimizer.state.values() for moment in state.values())


def test_a_sudden_gradient_moves_stable_adamw_less() -> None:
    """After gradients of one size, one a hundred times as large: the step is shortened to what is usual."""
    moved = {}
    for optim in (AdamW(weight_decay=0.0, betas=(0.9, 0.99)), StableAdamW(weight_decay=0.0, betas=(0.9, 0.99))):
        torch.manual_seed(0)
        module = nn.Linear(8, 8, bias=False)
        optimizer = Optimizer(group_parameters(module, optim), optim)
        for size in (*[1.0] * 30, 100.0):
            module.weight.grad = torch.randn(8, 8) * size
            before = module.weight.detach().clone()
            optimizer.step(LR)
        moved[optim.kind] = float((module.weight.detach() - before).norm())
    assert moved["stable_adamw"] < 0.2 * moved["adamw"]


def test_stable_adamw_with_a_tiny_eps_leaves_weights_without_gradient_finite() -> None:
    module = nn.Linear(4, 4)
    optimizer = Optimizer(group_parameters(module, optim := StableAdamW(eps=1e-30)), optim)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(LR)
    assert all(parameter.isfinite().all() for parameter in module.parameters())
