"""The product of parts: every legal combination builds, back-propagates, and ignores padding and packing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from encoderlab.errors import ConfigError
from encoderlab.nn import kernels
from encoderlab.nn.architecture import EncoderConfig, Sharing
from encoderlab.nn.embeddings import Adaptive
from encoderlab.nn.encoder import Chosen, Encoder
from encoderlab.nn.init import initialize
from encoderlab.nn.kernels import plain
from encoderlab.nn.noise import Noise
from encoderlab.nn.norms import LayerNormalization, Normalization, RootMeanSquare
from encoderlab.nn.positions import Absolute, Disentangled, Position, RelativeShift, Rotary, Shaw
from encoderlab.nn.scope import Local
from encoderlab.nn.spanconv import Bottleneck, Convolution, DepthwiseSeparable, Dynamic, Light, SpanDynamic
from encoderlab.nn.stem import StemConvolution

BASE = EncoderConfig(
    vocab=50, layers=3, width=24, heads=4, ff_width=32, position=Absolute(length=32), init_std=0.4, eps=1e-5
)
POSITIONS = [
    Absolute(length=32),
    RelativeShift(segments=True),
    Disentangled(span=16),
    Disentangled(span=16, buckets=8, share_projections=True, norm=True, terms=("c2p",)),
    Rotary(theta=50.0, length=32),
]
CONVS = [
    None,
    Bottleneck(),
    SpanDynamic(kernel=3),
    SpanDynamic(kernel=5, share_value=True, head_ratio=1),
    Dynamic(kernel=7, head_ratio=4),
    Light(kernel=5),
    DepthwiseSeparable(kernel=3),
]
SHARINGS = [
    None,
    Sharing(),
    Sharing(groups=2, inner=2),
    Sharing(parts=("attention",)),
    Sharing(parts=("feed_forward",)),
]

PRODUCT = [
    replace(
        BASE, position=position, conv=conv, ff_groups=groups, norm=norm, embed_width=embed, stem_conv=stem,
        attention_biases="query_value" if isinstance(position, Disentangled) else "all",
    )
    for position, conv, groups, norm, embed, stem in itertools.product(
        POSITIONS, CONVS, (1, 2), ("post", "pre"), (None, 16), (None, StemConvolution())
    )
]  # fmt: skip
NORMALIZATIONS = [LayerNormalization(), LayerNormalization(bias=False), RootMeanSquare()]
PRODUCT += [
    replace(BASE, position=position, local=local, causal=causal)
    for position, local, causal in itertools.product(
        (*POSITIONS[:3], Rotary(theta=50.0), Shaw(span=4)),
        (Local(reach=2, period=3, full=(1,)), Local(reach=0, period=1, full=())),
        (False, True),
    )
    if not (causal and isinstance(position, Disentangled))
]
PRODUCT += [
    replace(BASE, position=Rotary(theta=50.0), local=Local(reach=3, theta=9.0), conv=conv, norm="pre_but_first")
    for conv in CONVS
]
PRODUCT += [
    replace(BASE, ff_gated=gated, ff_biases=biases, ff_groups=groups, activation=act, norm="post" if biases else "pre")
    for gated, biases, groups, act in itertools.product((False, True), (False, True), (1, 2), ("gelu_tanh", "silu"))
]
PRODUCT += [
    replace(BASE, normalization=normalization, norm=norm, embed_norm="width", embed_width=16)
    for normalization, norm in itertools.product(NORMALIZATIONS, ("post", "pre", "pre_but_first", "pre_but_last"))
]
PRODUCT += [
    replace(BASE, norm=norm, position=position, conv=conv, normalization=normalization, ff_gated=conv is None)
    for norm, position, conv, normalization in itertools.product(
        ("ltg", "normformer"), POSITIONS, (None, SpanDynamic(kernel=3)), (LayerNormalization(), RootMeanSquare())
    )
]
PRODUCT += [replace(BASE, sharing=sharing, norm="normformer") for sharing in SHARINGS]
PRODUCT += [replace(BASE, sharing=sharing, norm=norm) for sharing in SHARINGS for norm in ("post", "pre")]
PRODUCT += [replace(BASE, position=p, causal=True) for p in (Absolute(length=32), RelativeShift(), Shaw(span=4))]
PRODUCT += [
    replace(BASE, position=position, embed_norm=norm, embed_width=embed, adaptive=adaptive)
    for position, norm, embed, adaptive in itertools.product(
        (Absolute(length=32), Absolute(sinusoidal=True)),
        ("embedding", "width", "none"),
        (None, 16),
        (None, Adaptive(cutoffs=(9,))),
    )
]
PRODUCT += [replace(BASE, position=replace(POSITIONS[2], terms=("p2c",)), attention_biases=b) for b in ("all", "none")]


def test_every_part_is_in_the_product() -> None:
    for union, used in (
        (Position, {type(config.position) for config in PRODUCT}),
        (Convolution, {type(config.conv) for config in PRODUCT}),
        (Normalization, {type(config.normalization) for config in PRODUCT}),
    ):
        assert set(get_args(union)) <= used


def test_every_kind_of_position_tells_the_order() -> None:
    torch.manual_seed(0)
    ids = torch.randperm(50)[None, :9]
    for position in (*POSITIONS, Absolute(sinusoidal=True), Shaw(span=4)):
        encoder = make(replace(BASE, position=position)).eval()
        assert not torch.allclose(encoder(ids).last, encoder(ids.flip(1)).last.flip(1), atol=1e-3), position


def make(config: EncoderConfig) -> Encoder:
    encoder = Encoder(config)
    initialize(encoder, encoder, seed=1)
    for parameter in encoder.parameters():  # biases too must be seen to work
        if parameter.ndim == 1:
            parameter.data += torch.randn_like(parameter) * 0.1
    return encoder


@pytest.mark.parametrize("part", range(8))
def test_padding_and_packing_do_not_matter(part: int) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (3, 17))
    segments = torch.randint(0, 2, (3, 17))
    doc = torch.zeros(3, 17, dtype=torch.int32)
    doc[1, 11:] = -1  # a padded row
    doc[2, 5:] = 1  # a packed row of two documents, the second followed by padding
    doc[2, 13:] = -1
    alone = [(0, 0, 17), (1, 0, 11), (2, 0, 5), (2, 5, 13)]
    for config in PRODUCT[part::8]:
        encoder = make(config)
        used = segments if config.types or isinstance(config.position, RelativeShift) else None
        out = encoder.train()(ids, doc=doc, segments=used)
        out.last[doc >= 0].square().sum().backward()
        missing = [name for name, p in encoder.named_parameters() if p.grad is None]
        assert not missing, (config, missing)
        encoder.eval()
        with torch.no_grad():
            batch = encoder(ids, doc=doc, segments=used).last
            assert batch.isfinite().all(), config
            for row, start, stop in alone:
                one = slice(start, stop)
                single = encoder(
                    ids[row : row + 1, one], segments=None if used is None else used[row : row + 1, one]
                ).last
                torch.testing.assert_close(
                    batch[row, one], single[0], atol=2e-5, rtol=1e-5, msg=lambda m, c=config: f"{c}\n{m}"
                )


def test_published_convbert_reads_padding() -> None:
    """The switch that loads its weights keeps its behaviour; the default does not have it."""
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (1, 12))
    padded = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], dim=1)
    doc = torch.tensor([[0] * 12 + [-1] * 4], dtype=torch.int32)
    for masked in (True, False):
        encoder = make(replace(BASE, conv=SpanDynamic(kernel=5, mask_padding=masked))).eval()
        same = torch.allclose(encoder(ids).last, encoder(padded, doc=doc).last[:, :12], atol=1e-5)
        assert same is masked


def test_dropout_is_the_same_for_any_batch_split() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (4, 9))
    rounding = {torch.float32: 1e-4, torch.float64: 1e-12}  # of products of other sizes, through three layers
    for position, dtype in itertools.product(POSITIONS, rounding):
        config = replace(BASE, position=position, dropout=0.3, attention_dropout=0.2)
        encoder = make(config).to(dtype).train()
        rows = torch.arange(100, 104)
        whole = encoder(ids, noise=Noise(3, 7, rows)).last
        parts = [encoder(ids[i : i + 1], noise=Noise(3, 7, rows[i : i + 1])).last for i in range(4)]
        torch.testing.assert_close(whole, torch.cat(parts), atol=rounding[dtype], rtol=rounding[dtype])
        assert not torch.allclose(whole, encoder(ids, noise=Noise(3, 8, rows)).last, atol=1e-3)


@pytest.mark.parametrize("native", [True, False])
def test_autocast_trains_every_part(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are those of single precision up to rounding; and where the compiled kernels run, all of them do."""
    if native and not kernels.build.available():
        pytest.skip("no C++ compiler")
    plain_calls: list[str] = []
    for name in ("attend", "attend_packed", "dropout", "dropout_add_norm", "feed_forward", "dynamic_convolution"):
        twin = getattr(plain, name)
        monkeypatch.setattr(plain, name, lambda *a, n=name, f=twin, **k: plain_calls.append(n) or f(*a, **k))
    if not native:
        monkeypatch.setattr(kernels.build, "available", lambda: False)
    ids, doc = torch.randint(0, 50, (4, 31)), torch.zeros(4, 31, dtype=torch.int32)
    doc[0, 20:], doc[1, 9:] = -1, 1
    torch.manual_seed(0)
    base = replace(BASE, width=64, ff_width=128, head_width=16, init_std=0.1, ff_dropout=0.1)
    configs = [replace(base, position=p, causal=p == Shaw(span=4)) for p in (*POSITIONS, Shaw(span=4))]
    configs += [replace(base, conv=conv, stem_conv=StemConvolution()) for conv in CONVS]
    configs += [replace(base, norm="pre"), replace(base, ff_groups=2, embed_width=32)]
    configs += [replace(base, position=Rotary(), local=Local(reach=5, period=2))]
    for config in configs:
        encoder, gradients = make(config).train(), []
        for autocast in (False, True):
            plain_calls.clear()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                last = encoder(ids, doc=doc, noise=Noise(0, 1, torch.arange(4))).last
            encoder.zero_grad()
            last.float()[doc >= 0].pow(3).sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None]))
        assert last.dtype == torch.bfloat16 or not native or config.norm == "pre", config
        assert F.cosine_similarity(*gradients, dim=0) > 0.99, config
        assert not (native and plain_calls), (config, plain_calls)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_extreme_logits_and_hidden_rows(dtype: torch.dtype, autocast: bool) -> None:
    ids = torch.randint(0, 50, (2, 9))
    doc = torch.zeros(2, 9, dtype=torch.int32)
    doc[1] = -1  # a row that is nothing but padding
    for position in POSITIONS:
        encoder = make(replace(BASE, position=position)).eval()
        for block in encoder.blocks:
            block.attention.qkv.data *= 1000 if autocast else 100
        encoder = encoder if autocast else encoder.to(dtype)
        with torch.autocast("cpu", dtype, enabled=autocast):
            assert encoder(ids, doc=doc).last.isfinite().all(), position


def test_the_last_layer_at_chosen_places_is_the_last_layer() -> None:
    torch.manual_seed(0)
    ids, segments = torch.randint(0, 50, (3, 17)), torch.randint(0, 2, (3, 17))
    doc = torch.zeros(3, 17, dtype=torch.int32)
    doc[0, 11:], doc[1, 6:14], doc[1, 14:] = -1, 1, -1
    at, rows, slots = torch.tensor([[0, 10, 0], [3, 7, 13], [0, 0, 0]]), [0, 0, 1, 1, 1], [0, 1, 0, 1, 2]
    chosen = Chosen(at, torch.tensor(rows), torch.tensor(slots))  # none of row 2
    padding = [replace(BASE, conv=SpanDynamic(mask_padding=False, share_value=shared)) for shared in (True, False)]
    for config in [*PRODUCT, *padding]:
        encoder = make(config).eval()
        whole = encoder(ids, doc=doc, segments=segments).last[chosen.rows, chosen.places]
        states = encoder(ids, doc=doc, segments=segments, depth=encoder.depth - 1)
        torch.testing.assert_close(encoder.last_layer_at(states, chosen), whole, atol=1e-4, rtol=1e-4)
        assert encoder.splits_last_layer


@pytest.mark.parametrize("kernel", [0, 2, 4])
def test_a_stem_without_a_middle_is_refused(kernel: int) -> None:
    with pytest.raises(ConfigError, match=f"kernel (is )?{kernel}(; give at least 1| has no token in its middle)"):
        StemConvolution(kernel=kernel)


@pytest.mark.parametrize("part", [{"conv": conv} for conv in CONVS[2:]] + [{"stem_conv": StemConvolution()}])
def test_a_convolution_of_later_tokens_is_refused_from_left_to_right(part: dict) -> None:
    with pytest.raises(ConfigError, match="convolutions read later tokens"):
        replace(BASE, causal=True, **part)
    assert replace(BASE, causal=True, conv=Bottleneck()).attention_heads == 2


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("conv", CONVS[2:])
def test_memory_is_attended_to_and_not_convolved(
    conv: Convolution, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With values that only depend on the row, what convolutions add is the same with a memory as without."""
    if not native:
        monkeypatch.setattr(kernels.build, "available", lambda: False)
    encoder = make(replace(BASE, position=RelativeShift(), conv=conv, layers=1)).eval()
    attention, seen = encoder.blocks[0].attention, []
    attention.conv.register_forward_hook(lambda module, inputs, output: seen.append(output))
    ids, memory = torch.randint(0, 50, (2, 9)), torch.randn(2, 70, 24)
    encoder(ids, memory=(memory,))
    encoder(ids, memory=(-memory,))
    assert torch.equal(seen[0], seen[1]) and seen[0].isfinite().all() and seen[0].shape[1] == 9


@pytest.mark.parametrize("conv", CONVS[2:])
def test_a_query_stream_beside_a_convolution_is_refused(conv: Convolution) -> None:
    encoder = make(replace(BASE, conv=conv)).eval()
    states = encoder(torch.randint(0, 50, (2, 9)))
    with pytest.raises(ConfigError, match="no neighbours for a convolution"):
        encoder.query_stream(states, states.last[:, :2], torch.tensor([[0, 1], [3, 4]]), layers=(2,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"doc": torch.zeros(2, 8)}, r"doc of shape \[2, 8\], expected \[2, 9\] for ids \[2, 9\]"),
        ({"doc": torch.zeros(9)}, r"doc of shape \[9\], expected \[2, 9\]"),
        ({"doc": torch.ones(2, 9).bool()}, r"doc is torch.bool, .* give a mask of ones and zeros as attention_mask"),
        ({"segments": torch.zeros(3, 9).long()}, r"segments of shape \[3, 9\], expected \[2, 9\]"),
        ({"visible": torch.ones(2, 8, 9).bool()}, r"visible of shape \[2, 8, 9\], expected \[2, 9, 9\]"),
        ({"visible": torch.ones(2, 9, 9)}, "visible is torch.float32, expected torch.bool"),
        ({"reverse": torch.zeros(1).bool()}, r"reverse of shape \[1\], expected \[2\]"),
    ],
)
def test_tensors_that_do_not_fit_the_rows_are_refused(given: dict[str, torch.Tensor], message: str) -> None:
    """Kernels would read beyond their end."""
    encoder = make(replace(BASE, position=RelativeShift(segments=True))).eval()
    with pytest.raises(ConfigError, match=message):
        encoder(torch.randint(0, 50, (2, 9)), **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": Rotary(), "width": 20}, "rotary positions need an even head width"),
        ({"local": Local(theta=9.0)}, "local.theta 9 without rotary positions"),
        ({"norm": "pre_but_first", "embed_norm": "none"}, "norm pre_but_first needs an unshared first layer"),
        ({"norm": "pre_but_first", "sharing": Sharing()}, "norm pre_but_first needs an unshared first layer"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(BASE, **changes)
    with pytest.raises(ConfigError, match="give numbers from 0 below it"):
        Local(period=2, full=(2,))


def test_the_dropout_of_embeddings_and_feed_forward_can_differ() -> None:
    """Of embeddings alone, of attention's output alone, of feed-forward's output alone: each acts where it says."""
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 9))
    still = {"dropout": 0.0, "embed_dropout": 0.0, "ff_output_dropout": 0.0, "attention_dropout": 0.0}
    for changes, embedded in (
        ({"embed_dropout": 0.5}, False),
        ({"dropout": 0.5}, True),
        ({"ff_output_dropout": 0.5}, True),
    ):
        for norm in ("post", "pre"):
            encoder = make(replace(BASE, norm=norm, **still | changes)).train()
            noisy, quiet = encoder(ids).layers, encoder.eval()(ids).layers
            assert torch.equal(noisy[0], quiet[0]) is embedded
            assert not torch.allclose(noisy[1], quiet[1], atol=1e-3)
    encoder = make(replace(BASE, **still))
    assert torch.equal(encoder.train()(ids).last, encoder.eval()(ids).last)


def test_local_layers_see_what_is_within_reach() -> None:
    """A change at one place moves the states of one local layer within its reach, and no others."""
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (1, 30))
    other = ids.clone()
    other[0, 14] = (ids[0, 14] + 1) % 50
    for layers, reach in ((1, 4), (2, 8)):
        local = Local(reach=4, period=1, full=())
        encoder = make(replace(BASE, position=Rotary(), local=local, layers=layers)).eval()
        moved = (encoder(ids).last - encoder(other).last).abs().amax(-1)[0] > 1e-6
        assert moved.nonzero()[:, 0].tolist() == list(range(14 - reach, 15 + reach))


def test_given_rotary_positions_count_as_differences() -> None:
    """Moved by a constant they change nothing, and otherwise something; so with local layers and at chosen places."""
    torch.manual_seed(0)
    ids, places = torch.randint(0, 50, (2, 12)), torch.arange(12)[None]
    encoder = make(replace(BASE, position=Rotary(theta=50.0, length=64), local=Local(reach=4, theta=9.0))).eval()
    plain_states = encoder(ids).last
    torch.testing.assert_close(encoder(ids, positions=places + 40).last, plain_states, atol=1e-4, rtol=1e-4)
    spread = torch.stack([places[0] * 3, places[0] * 2])
    whole = encoder(ids, positions=spread).last
    assert not torch.allclose(whole, plain_states, atol=1e-2)
    chosen = Chosen.among_all(torch.tensor([0, 0, 1]), torch.tensor([1, 9, 5]), 2, 12)
    for given in (None, spread):
        states = encoder(ids, positions=given, depth=2)
        expected = (plain_states if given is None else whole)[chosen.rows, chosen.places]
        torch.testing.assert_close(encoder.last_layer_at(states, chosen), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ConfigError, match="exceed the model's 64 positions"):
        encoder(torch.randint(0, 50, (1, 65)))
    doc = torch.arange(2).repeat_interleave(40)[None]
    assert encoder(torch.randint(0, 50, (1, 80)), doc=doc).last.isfinite().all()
