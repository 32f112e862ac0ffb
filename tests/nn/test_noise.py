"""Dropout masks: the right rate, independent of each other, and a function of what they belong to alone."""

from __future__ import annotations

import math

import pytest
import torch

from encoderlab import build
from encoderlab.errors import ConfigError
from encoderlab.nn import noise
from encoderlab.nn.noise import Noise

LIMIT = 5.0  # standard deviations; every seed is fixed, so a test that passes once always passes


def seeds(count: int, *, step: int = 0, seed: int = 0) -> torch.Tensor:
    return Noise(seed, step, torch.arange(count)).seeds


def deviation(a: torch.Tensor, b: torch.Tensor) -> float:
    """The correlation of two equally long samples, in standard deviations of that of independent ones."""
    a, b = a.double().flatten(), b.double().flatten()
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.norm() * b.norm()) * math.sqrt(len(a)))


def test_values_are_those_of_the_definition():
    """The same integers by Python's own arithmetic, so that other implementations can be held against them."""

    def mix64(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    def word(stream: int, counter: int) -> int:
        x = (counter * 0x9E3779B9 + stream) % 2**32
        x = ((x ^ x >> 16) * 0x21F0AAAD + (stream >> 32)) % 2**32
        x = (x ^ x >> 15) * 0xD35A2D97 % 2**32
        return x ^ x >> 15

    for key, site in [(0, 0), (1, 3), (2**63 + 12345, 2**32 + 7), (2**64 - 1, 1)]:
        stream = mix64((key + (site + 1) * 0x9E3779B97F4A7C15) % 2**64)
        given = noise.stream(torch.tensor([noise.signed(key, 64)]), site)
        assert int(given) % 2**64 == stream
        counters = [0, 1, 2, 77, 2**16 + 5, 2**31 + 3, 2**32 - 1]
        values = noise.words(given, torch.tensor([noise.signed(c, 32) for c in counters], dtype=torch.int32))
        assert [int(v) % 2**32 for v in values] == [word(stream, c) for c in counters]


@pytest.mark.parametrize("p", [0.0, 1e-4, 0.1, 0.15, 0.5, 0.9])
def test_rate(p):
    kept = noise.kept(seeds(64), 0, (64, 128, 256), p)
    realised = 1 - ((noise.threshold(p) >> 16) + 32768) / 65536
    assert abs(realised - (1 - p)) < 1e-5
    error = kept.double().mean().item() - realised
    assert abs(error) <= LIMIT * math.sqrt(p * (1 - p) / kept.numel())


def test_rate_outside_its_range_is_an_error():
    for p in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"not in \[0, 1\)"):
            noise.threshold(p)


def test_means_of_rows_scatter_as_independent_ones_do():
    masks = (noise.kept(seeds(64), site, (64, 32, 256), 0.1) for site in range(16))
    means = torch.cat([mask.flatten(1).double().mean(1) for mask in masks])
    z = (means - 0.9) / math.sqrt(0.09 / (32 * 256))
    assert abs(z.std().item() - 1) < 0.1
    assert z.abs().max() < LIMIT


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_are_independent(p):
    """Chi-square of the 256 patterns of eight: in a row, 16 apart (halves of one word), and across positions."""
    kept = noise.kept(seeds(16), 3, (16, 256, 512), p)
    share = 1 - ((noise.threshold(p) >> 16) + 32768) / 65536
    groups = {
        "beside": kept.reshape(-1, 8),
        "16 apart": kept.view(-1, 8, 16).transpose(1, 2).reshape(-1, 8),
        "positions": kept.view(16, 32, 8, 512).transpose(2, 3).reshape(-1, 8),
    }
    ones = torch.tensor([bin(i).count("1") for i in range(256)]).double()
    for name, group in groups.items():
        pattern = (group.long() << torch.arange(8)).sum(1)
        counts = torch.bincount(pattern, minlength=256).double()
        expected = share**ones * (1 - share) ** (8 - ones) * len(group)
        enough = expected > 10
        chi2 = ((counts - expected) ** 2 / expected)[enough].sum().item()
        degrees = int(enough.sum()) - 1
        assert abs(chi2 - degrees) < LIMIT * math.sqrt(2 * degrees), name


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_no_lag_correlates(p):
    """Autocorrelation at every distance, by Fourier transform; without the Weyl step powers of two stand out."""
    signal = noise.kept(seeds(32), 1, (32, 1 << 16), p).float()
    signal -= signal.mean()
    n = signal.shape[1]
    spectrum = torch.fft.rfft(signal, 2 * n)
    correlation = torch.fft.irfft(spectrum * spectrum.conj(), 2 * n).sum(0)[1 : n // 2].double()
    pairs = len(signal) * (n - torch.arange(1, n // 2))
    z = correlation / (signal.var() * pairs.sqrt())
    assert abs(z.std().item() - 1) < 0.02
    assert z.abs().max() < LIMIT + 0.5  # the largest of 32767


def test_attention_masks_do_not_correlate_over_queries_and_keys():
    kept = noise.kept_pairs(seeds(16), 0, 4, 64, 128, 0.1).flatten(0, 1).float()
    kept -= kept.mean()
    spectrum = torch.fft.rfft2(kept, s=(128, 256))
    correlation = torch.fft.irfft2(spectrum * spectrum.conj(), s=(128, 256)).sum(0)
    rows, columns = torch.arange(-32, 32), torch.arange(64)
    pairs = len(kept) * (64 - rows.abs())[:, None] * (128 - columns)
    z = correlation[rows][:, :64] / (kept.var() * pairs.sqrt())
    z[32, 0] = 0
    z[:32, 0] = 0  # the same pairs as below
    assert z.abs().max() < LIMIT
    assert abs(z.std().item() - 1) < 0.05


def test_rows_sites_steps_seeds_and_layers_are_independent():
    shape = (16, 32, 128)
    masks = {f"site {s}": noise.kept(seeds(16), s, shape, 0.1) for s in range(8)}
    masks |= {f"step {s}": noise.kept(seeds(16, step=s), 0, shape, 0.1) for s in range(1, 8)}
    masks |= {f"seed {s}": noise.kept(seeds(16, seed=s), 0, shape, 0.1) for s in range(1, 8)}
    masks |= {f"layer {i}": noise.kept(Noise(0, 0, torch.arange(16)).layer(i), 0, shape, 0.1) for i in range(8)}
    masks |= {f"row {r}": masks["site 0"].roll(r, 0) for r in range(1, 8)}
    names = list(masks)
    for i, first in enumerate(names):
        for second in names[:i]:
            assert abs(deviation(masks[first], masks[second])) < LIMIT, (first, second)


def test_heads_are_independent():
    masks = noise.kept_pairs(seeds(16), 0, 6, 32, 64, 0.1).unbind(1)
    assert all(abs(deviation(masks[i], masks[j])) < LIMIT for i in range(6) for j in range(i))


def test_masks_do_not_depend_on_the_batch_split():
    rows = torch.tensor([5, 900, 3, 2**40])
    whole = noise.kept(Noise(1, 2, rows).seeds, 4, (4, 7, 33), 0.3)
    parts = [noise.kept(Noise(1, 2, rows[i : i + 1]).seeds, 4, (1, 7, 33), 0.3) for i in range(4)]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(whole.flip(0), noise.kept(Noise(1, 2, rows.flip(0)).seeds, 4, (4, 7, 33), 0.3))


def test_masks_do_not_depend_on_the_padded_length():
    assert torch.equal(noise.kept(seeds(2), 0, (2, 9, 40), 0.3)[:, :6], noise.kept(seeds(2), 0, (2, 6, 40), 0.3))
    long, short = (noise.kept_pairs(seeds(2), 0, 3, n, n, 0.3) for n in (70, 41))
    assert torch.equal(long[:, :, :41, :41], short)


def test_the_sinusoid_of_distances_is_dropped_once():
    """For all layers and both streams, as in the codes of Transformer-XL and XLNet; anew in every step."""
    model = build("xlnet-tiny", **{"encoder.vocab": 9}).train()
    seen = []
    for block in model.encoder.blocks:
        block.attention.term.project.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    ids, at = torch.arange(8)[None], torch.tensor([[3, 5]])
    for step in range(2):
        dropout = Noise(0, step, torch.arange(1))
        states = model.encoder(ids, noise=dropout)
        model.encoder.query_stream(states, torch.zeros(1, 2, 128), at, layers=range(2), noise=dropout)
    first, *same, other = seen[:5]
    assert all(torch.equal(rows, first) for rows in same) and not torch.equal(other, first)


def test_fresh_noise_follows_torch_s_generator():
    torch.manual_seed(3)
    one, two = Noise.fresh(4), Noise.fresh(4)
    torch.manual_seed(3)
    assert torch.equal(one.seeds, Noise.fresh(4).seeds)
    assert not torch.equal(one.seeds, two.seeds)
