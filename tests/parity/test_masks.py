"""``attention_mask`` means what it means in ``transformers`` 5, for every pattern of ones and zeros."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encoderlab import load
from encoderlab.model import Model
from encoderlab.nn.positions import Disentangled
from tests.interchange.tiny_models import CONFIGS, make
from tests.parity.test_huggingface import CASES, VOCAB, theirs_of

LENGTH = 12
PAD = {"roberta": 1, "xlm": 1, "camembert": 1, "xlnet": 5}
LAID_OUT = {
    "full": [1] * LENGTH,
    "right": [1] * 7 + [0] * 5,
    "left": [0] * 5 + [1] * 7,
    "gap": [1] * 3 + [0] * 4 + [1] * 5,
    "hole": [1] * 5 + [0] + [1] * 6,
    "first": [0] + [1] * 11,
    "comb": [1, 0] * 6,
    "one": [0] * 6 + [1] + [0] * 5,
    "empty": [0] * LENGTH,
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Model]:
    theirs = theirs_of(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return request.param, getattr(theirs, theirs.base_model_prefix), load(folder)


KINDS = (torch.long, torch.int32, torch.uint8, torch.bool, torch.float32)


def agree(pair: tuple[str, Any, Model], mask: Tensor, *, pads: bool, kind: torch.dtype = torch.long) -> None:
    """States of all layers are equal where the mask has ones; where its zeros are compared too, see below."""
    case, theirs, ours = pair
    # The padding's id may stand in a text as well: RoBERTa gives it the position of padding.
    ids = torch.randint(0, VOCAB, mask.shape, generator=torch.Generator().manual_seed(0))
    if pads:  # padding has its id, as after a tokenizer; else the mask alone says so
        ids = torch.where(mask.bool(), ids, PAD.get(case.partition("-")[0], 0))
    more = {"use_mems": False} if "xlnet" in case else {}
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask, output_hidden_states=True, **more).hidden_states
        states = ours(ids, attention_mask=mask.to(kind)).layers
    # DeBERTa's code shows padding nothing, and a softmax of nothing is what the implementation makes of it. The same
    # goes for rows without a one, which is no text: transformers' own kinds of attention differ there.
    compared = mask.bool()
    if not isinstance(ours.config.encoder.position, Disentangled) and not ours.config.encoder.causal:
        compared = mask.any(dim=1, keepdim=True).expand_as(compared)
    for mine, other in zip(states, expected, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine[compared], other[compared], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("pads", [True, False], ids=["padding ids", "any ids"])
def test_known_patterns(pair: tuple[str, Any, Model], pads: bool) -> None:
    agree(pair, torch.tensor(list(LAID_OUT.values())), pads=pads)


@settings(max_examples=15)
@given(
    rows=st.lists(st.lists(st.integers(0, 1), min_size=9, max_size=9), min_size=1, max_size=4),
    pads=st.booleans(),
    kind=st.sampled_from(KINDS),
)
def test_every_pattern(pair: tuple[str, Any, Model], rows: list[list[int]], pads: bool, kind: torch.dtype) -> None:
    agree(pair, torch.tensor(rows), pads=pads, kind=kind)


@settings(max_examples=25)
@given(rows=st.lists(st.lists(st.integers(0, 1), min_size=9, max_size=9), min_size=1, max_size=4))
def test_every_pattern_of_transformer_xl(rows: list[list[int]]) -> None:
    """Which ``transformers`` 5 no longer has: what the mask hides is hidden, and distances are those of columns."""
    model, mask = make(CONFIGS["transformer-xl"]), torch.tensor(rows)
    ids = torch.randint(6, 50, mask.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = model(ids, attention_mask=mask).layers
        expected = model(ids, visible=mask.bool()[:, None].expand(-1, 9, -1)).layers
    for mine, other in zip(states, expected, strict=True):
        torch.testing.assert_close(mine[mask.bool()], other[mask.bool()])
