"""Position terms against references written with loops over explicit indices, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.attention import Attention
from encoderlab.nn.kernels.plain import relative_bias, skew
from encoderlab.nn.positions import (
    Disentangled,
    Position,
    RelativeShift,
    Shaw,
    log_bucket,
    places,
    sinusoid,
)
from encoderlab.nn.scope import Scope

B, L, D, H, K = 2, 6, 12, 3, 4


def attention(position: Position, biases: str = "all") -> tuple[Attention, nn.Module]:
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab=1,
        width=D,
        heads=H,
        position=position,
        attention_biases=biases,
        dropout=0.0,
        attention_dropout=0.0,
        eps=1e-7,
    )
    module, table = Attention(config).double(), position.make_table(config).double()
    for parameter in [*module.parameters(), *table.parameters()]:
        parameter.data = torch.randn_like(parameter)
    return module, table


def scores(module: Attention, table: nn.Module, x: Tensor, source: Tensor, **scope: object) -> Tensor:
    """Scaled scores before the softmax, as the module computes them."""
    shared = table(L, source.shape[1], causal=False, device=x.device, dtype=x.dtype)
    query, key, _ = module._project(x, source)
    q, k = module._split(query), module._split(key)
    content, terms = module._terms(q, k, Scope(doc=None, visible=None, distances=shared, **scope))
    plain = content @ k.transpose(-1, -2) * module.scale
    return plain + (relative_bias(q, k, terms["relative"], module.scale) if "relative" in terms else terms["bias"])


def projections(module: Attention, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    weight = module.qkv.view(3, H, K, D)
    bias = module.bias_of_all()
    bias = torch.zeros(3, H, K, dtype=x.dtype) if bias is None else bias.view(3, H, K)
    q = torch.einsum("hkd,bld->bhlk", weight[0], x) + bias[0][:, None]
    k = torch.einsum("hkd,bld->bhlk", weight[1], source) + bias[1][:, None]
    return q, k


def wave(distance: float) -> Tensor:
    angles = [distance / 10000 ** (2 * j / D) for j in range(D // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


@pytest.mark.parametrize("memory", [0, 4])
@pytest.mark.parametrize("clamp", [0, 3])
@pytest.mark.parametrize("backwards", [False, True])
def test_relative_shift(memory: int, clamp: int, backwards: bool) -> None:
    module, table = attention(RelativeShift(segments=True, clamp=clamp), "none")
    x = torch.randn(B, L, D, dtype=torch.float64)
    source = torch.cat([torch.randn(B, memory, D, dtype=torch.float64), x], dim=1)
    segments = torch.randint(0, 2, (B, L))
    padded = torch.cat([torch.zeros(B, memory, dtype=torch.long), segments], dim=1)
    different = (segments[:, :, None] != padded[:, None])[:, None]
    reverse = torch.tensor([backwards, False])
    got = scores(module, table, x, source, different=different, reverse=reverse)
    q, k = projections(module, x, source)
    term = module.term
    weight = term.project.weight.view(H, K, D)
    want = torch.empty_like(got)
    for b in range(B):
        for h in range(H):
            for i in range(L):
                for j in range(memory + L):
                    d = i + memory - j
                    d = max(-clamp, min(clamp, d)) if clamp else d
                    r = weight[h] @ wave(-d if backwards and b == 0 else d)
                    e = term.segment[int(different[b, 0, i, j]), h]
                    total = (
                        (q[b, h, i] + term.u[h]) @ k[b, h, j]
                        + (q[b, h, i] + term.v[h]) @ r
                        + (q[b, h, i] + term.s[h]) @ e
                    )
                    want[b, h, i, j] = total / math.sqrt(K)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)  # the sinusoid is computed in single precision


def test_shaw() -> None:
    module, table = attention(Shaw(span=3))
    x = torch.randn(B, L, D, dtype=torch.float64)
    got = scores(module, table, x, x)
    q, k = projections(module, x, x)
    want = torch.empty_like(got)
    for b in range(B):
        for h in range(H):
            for i in range(L):
                for j in range(L):
                    d = max(-3, min(3, i - j)) + 3
                    total = (q[b, h, i] + module.term.u[h]) @ k[b, h, j]
                    total = total + q[b, h, i] @ module.term.rows[d, h] + module.term.bias[d, h]
                    want[b, h, i, j] = total / math.sqrt(K)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "position",
    [
        Disentangled(span=4),
        Disentangled(span=16),
        Disentangled(span=16, terms=("c2p",)),
        Disentangled(span=16, terms=("p2c",)),
        Disentangled(span=8, buckets=4, share_projections=True, norm=True),
        Disentangled(span=8, buckets=4, share_projections=True, norm=True, terms=("p2c", "c2p")),
    ],
)
@pytest.mark.parametrize("biases", ["all", "query_value"])
def test_disentangled(position: Disentangled, biases: str) -> None:
    module, table = attention(position, biases)
    x = torch.randn(B, L, D, dtype=torch.float64)
    got = scores(module, table, x, x)
    q, k = projections(module, x, x)
    rows = table.table if table.norm is None else table.norm(table.table)
    term, bias = module.term, module.bias_of_all()
    weights = module.qkv.view(3, D, D)
    biases_ = torch.zeros(3, D, dtype=torch.float64) if bias is None else bias.view(3, D)
    if position.share_projections:
        key_rows, query_rows = rows @ weights[1].T + biases_[1], rows @ weights[0].T + biases_[0]
    else:
        key_rows = term.key(rows) if "c2p" in position.terms else None
        query_rows = term.query(rows) if "p2c" in position.terms else None
    want = torch.empty_like(got)
    for b in range(B):
        for h in range(H):
            for i in range(L):
                for j in range(L):
                    d = i - j
                    if position.buckets:
                        mid = position.buckets // 2
                        size = min(abs(d), position.span - 1)
                        far = mid + math.ceil(
                            math.log(max(size, 1) / mid) / math.log((position.span - 1) / mid) * (mid - 1)
                        )
                        d = int(math.copysign(size if size <= mid else far, d)) if d else 0
                    slot = max(0, min(2 * position.slots - 1, d + position.slots))
                    total = q[b, h, i] @ k[b, h, j]
                    if key_rows is not None and "c2p" in position.terms:
                        total = total + q[b, h, i] @ key_rows[slot].view(H, K)[h]
                    if query_rows is not None and "p2c" in position.terms:
                        total = total + k[b, h, j] @ query_rows[slot].view(H, K)[h]
                    want[b, h, i, j] = total / math.sqrt(K * (1 + len(position.terms)))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("position", [RelativeShift(segments=True), Shaw(span=3), Disentangled(span=8, buckets=4)])
def test_chosen_queries_have_the_rows_of_all(position: object) -> None:
    module, table = attention(position)
    x = torch.randn(B, L, D, dtype=torch.float64)
    at = torch.tensor([[4, 0, 5], [2, 2, 1]])
    segments = torch.randint(0, 2, (B, L))
    different = (segments[:, :, None] != segments[:, None])[:, None]
    whole = scores(module, table, x, x, different=different)
    picked = torch.stack([different[b, :, at[b]] for b in range(B)])
    chosen = torch.stack([x[b, at[b]] for b in range(B)])
    got = scores(module, table, chosen, x, at=at, different=picked)
    torch.testing.assert_close(got, torch.stack([whole[b][:, at[b]] for b in range(B)]))


def test_log_buckets_have_the_published_values() -> None:
    known = {129: 129, 133: 132, 200: 169, 255: 192, 256: 192, 300: 207, 400: 233, 500: 254, 510: 255, 511: 255}
    distance = torch.tensor([*known, 600, 5000, 0, 128])
    bucket = log_bucket(distance, 256, 512)
    assert bucket.tolist() == [*known.values(), 255, 255, 0, 128]
    assert log_bucket(-distance, 256, 512).tolist() == (-bucket).tolist()
    for buckets, span, border, lower in ((20, 81, 20, 13), (20, 81, 40, 16), (32, 129, 64, 26), (128, 126, 100, 106)):
        assert log_bucket(torch.tensor([border, border + 1]), buckets, span).tolist() == [lower, lower + 1]


def test_places_restart_with_each_document() -> None:
    doc = torch.tensor([[0, 0, 0, 1, 1, -1], [5, 5, 5, 5, 5, 5]], dtype=torch.int32)
    assert places(doc, 6, doc.device).tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]]
    assert places(None, 3, doc.device).tolist() == [[0, 1, 2]]


def test_sinusoid_halves_are_concatenated() -> None:
    torch.testing.assert_close(sinusoid(torch.tensor([3]), D)[0].double(), wave(3), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("columns", [5, 9])
def test_skew_and_its_gradient(columns: int) -> None:
    table = torch.randn(2, 5, columns, dtype=torch.float64, requires_grad=True)
    out = skew(table, 5)
    for i in range(5):
        for j in range(5):
            if 4 - i + j < columns:
                torch.testing.assert_close(out[:, i, j], table[:, i, 4 - i + j])
    visible = torch.ones(5, 5, dtype=torch.bool).tril() if columns == 5 else torch.ones(5, 5, dtype=torch.bool)
    torch.autograd.gradcheck(lambda t: skew(t, 5) * visible, table)


@pytest.mark.parametrize("position", [RelativeShift(segments=True), Shaw(span=3), Disentangled(span=8, buckets=4)])
def test_gradcheck(position: object) -> None:
    module, table = attention(position)
    x = torch.randn(1, L, D, dtype=torch.float64, requires_grad=True)
    parameters = [p for p in [*module.term.parameters(), *table.parameters()] if p.numel() < 200]
    torch.autograd.gradcheck(lambda x, *_: scores(module, table, x, x), (x, *parameters), atol=1e-4, rtol=1e-3)
