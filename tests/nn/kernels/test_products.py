"""Products of bfloat16 matrices in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from encoderlab.nn.kernels import cpu
from tests.nn.twins import compiled, normal


@compiled
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 80),
    columns=st.integers(1, 80),
    depth=st.integers(0, 80),
    turned=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    with_bias=st.booleans(),
    add=st.booleans(),
)
@example(700, 1200, 600, (False, True, False), True, False)  # several blocks each way
@example(600, 1100, 700, (True, False, False), False, True)
def test_products_of_bfloat16_are_rounded_once(rows, columns, depth, turned, with_bias, add):
    def whole(m: int, n: int, seed: int, turn: bool = False) -> Tensor:  # whole numbers, whose sums are exact
        x = (normal(n, m, seed=seed) if turn else normal(m, n, seed=seed)).mul(3).round().bfloat16()
        return x.T if turn else x

    a, b = whole(rows, depth, 0, turned[0]), whole(depth, columns, 1, turned[1])
    bias = whole(1, columns, 2)[0] if with_bias else None
    out = torch.full((rows, columns + 5), 7.0, dtype=torch.bfloat16)  # rows that are longer than what is written
    wanted = a.double() @ b.double()
    wanted += 0 if bias is None else bias.double()
    wanted += 7 if add else 0
    found = cpu.products.product(a, b, bias=bias, out=out[:, :columns], add=add)
    assert torch.equal(found, wanted.bfloat16())
    assert (out[:, columns:] == 7).all()
    if bias is None and not add:
        assert torch.equal(cpu.products.product(a, b), found)


@compiled
def test_products_that_do_not_fit_are_refused():
    a, b, out = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((3, 4), (4, 6), (6, 3)))
    for left, right, into in ((a, b.T, None), (a, b, out), (a, b, out.T), (a.float(), b.float(), None)):
        with pytest.raises(ValueError, match="with dense rows"):
            cpu.products.product(left, right, out=into)
