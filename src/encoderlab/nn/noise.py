"""Dropout masks as a function of (seed, step, row, site, element): equal for any batch split, device, process count.

No random number depends on earlier ones and no mask is stored: the backward pass computes the mask again. Three levels:

    row seed   64 bits per row of the batch, from (seed, step, global row number)
    stream     64 bits per (row seed, site), and per head inside attention; a site is a small integer, one per place
    word       32 bits per (stream, counter); its two halves decide two elements, 16 apart

``mix64`` is the finaliser of SplitMix64 (Steele, Lea and Flood 2014). The word hash takes a Weyl sequence (one addition
per step of a loop) through a 32-bit permutation of two multiplications (constants from Wellons' hash prospector,
avalanche bias 0.1076). The second half of the stream is added between the two rounds; without that, two streams would
be windows of the same sequence. Two decisions cost eleven 32-bit operations and no 64-bit product, which suits vector
units and GPUs. Without the Weyl step, masks at distances of large powers of two were correlated (17 standard deviations
in 3e7 elements); with it, no lag up to 131072 stands out. The torch operations here, ``kernels/cpp`` and
``kernels/gpu`` give the same bits: tests/nn/test_noise.py and tests/nn/gpu check that, and tests/nn/test_noise.py
checks the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from encoderlab.errors import ConfigError
from encoderlab.seeds import derive

GOLDEN = 0x9E3779B97F4A7C15

# What computes mix64 in one launch, by type of device; kernels/gpu adds itself here when it is imported.
MIXERS: dict[str, Callable[[Tensor], Tensor]] = {}

# The sites of dropout in a layer. A new site takes the next number: renumbering would change the masks of all runs.
ATTENTION_WEIGHTS, ATTENTION_OUTPUT, FF_OUTPUT, DISTANCES, FF_HIDDEN, STEM = range(6)
# Where other ranges of sites begin, far enough apart that no two streams are equal: tokens of a row, further networks
# or passes on the same rows, layers, and the start and the second pass of SiFT (encoderlab.tasks.runs.sift).
TOKENS, BRANCHES, LAYERS, SIFT_START, SIFT_PASSES = 1 << 31, 3 << 30, 1 << 32, 3 << 32, 5 << 32


def signed(value: int, bits: int) -> int:
    """The low ``bits`` of ``value`` read as two's complement, because torch integers are signed."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def mix64(x: Tensor) -> Tensor:
    """A bijection of int64 with full avalanche."""
    if x.device.type in MIXERS and x.numel() > 0:
        return MIXERS[x.device.type](x.contiguous())
    x = (x ^ (x >> 30) & 0x3_FFFF_FFFF) * signed(0xBF58476D1CE4E5B9, 64)
    x = (x ^ (x >> 27) & 0x1F_FFFF_FFFF) * signed(0x94D049BB133111EB, 64)
    return x ^ (x >> 31) & 0x1_FFFF_FFFF


def stream(seeds: Tensor, site: int | Tensor) -> Tensor:
    """The random stream of each seed at ``site``: int64, of the shape to which ``seeds`` and ``site`` broadcast."""
    if isinstance(site, Tensor):
        return mix64(seeds + (site + 1) * signed(GOLDEN, 64))
    return mix64(seeds + signed((site + 1) * GOLDEN, 64))


def words(streams: Tensor, counters: Tensor) -> Tensor:
    """32 random bits, int32, for every (stream, counter); the two shapes broadcast, counters are int32."""
    x = counters * signed(GOLDEN >> 32, 32) + streams.to(torch.int32)
    x = (x ^ (x >> 16) & 0xFFFF) * signed(0x21F0AAAD, 32) + (streams >> 32).to(torch.int32)
    x = (x ^ (x >> 15) & 0x1FFFF) * signed(0xD35A2D97, 32)
    return x ^ (x >> 15) & 0x1FFFF


def threshold(p: float) -> int:
    """The number that an element's 16 bits, in the upper half of an int32, must reach for the element to be kept.

    The rate is exact to 2**-17.

    Raises:
        ConfigError: ``p`` is not in [0, 1).
    """
    if not 0.0 <= p < 1.0:
        raise ConfigError(f"dropout rate {p} is not in [0, 1); the published models use 0.1")
    return (min(round(p * 65536), 65535) - 32768) << 16


def decide(x: Tensor, width: int, p: float) -> Tensor:
    """Words (..., W) -> keep mask (..., width): of 32 neighbours, 16 use the low halves and 16 the high halves."""
    x = x.unflatten(-1, (-1, 16))
    return (torch.stack((x << 16, x), dim=-2).flatten(-3) >= threshold(p))[..., :width]


def kept(seeds: Tensor, site: int, shape: tuple[int, ...], p: float) -> Tensor:
    """The keep mask, bool, of a tensor of ``shape`` (B, ..., D) for the rows' ``seeds`` (B,).

    Counters of position t start at t * 16 * ceil(D / 32), so the masks of a row's first positions do not depend on the
    padded length.
    """
    width, positions = shape[-1], math.prod(shape[1:-1])
    per_position = 16 * math.ceil(width / 32)
    counters = torch.arange(positions * per_position, dtype=torch.int32, device=seeds.device)
    x = words(stream(seeds, site)[:, None, None], counters.view(positions, per_position))
    return decide(x, width, p).reshape(shape)


def kept_pairs(seeds: Tensor, site: int, heads: int, queries: int, keys: int, p: float) -> Tensor:
    """The keep mask (B, H, L, M) of attention weights, bool. Each head has a stream; counters of query i start at
    65536 i.
    """
    head = torch.arange(heads, device=seeds.device)
    streams = stream(stream(seeds, site)[:, None], head)[..., None, None]
    row = torch.arange(queries, dtype=torch.int32, device=seeds.device)[:, None] << 16
    counters = row + torch.arange(16 * math.ceil(keys / 32), dtype=torch.int32, device=seeds.device)
    return decide(words(streams, counters), keys, p)


class Noise:
    """The random seeds of one training step: ``seeds`` (B,) int64, one per row, and ``step`` (1,), one for all rows.

    ``rows`` (B,) are global row numbers (``Batch.rows``), so that 32 rows at once, four times 8 rows, or two ranks of
    16 rows get the same masks. A layer takes its seeds from :meth:`layer`; inside the layer, sites are small constants.
    """

    def __init__(self, seed: int, step: int, rows: Tensor) -> None:
        step_seed = signed(derive(seed, "dropout, all rows", step), 64)
        self.step = torch.full((1,), step_seed, device=rows.device)  # on the device: a copy would wait
        self.seeds = mix64(rows.long() * signed(GOLDEN, 64) + signed(derive(seed, "dropout", step), 64))

    @classmethod
    def fresh(cls, batch: int, device: torch.device | str | None = None) -> Noise:
        """Noise for a model that is called by hand in training mode: ``batch`` seeds from torch's default generator."""
        low, high = -(2**63), 2**63 - 1
        seeds = torch.randint(low, high, (batch,), device=device)
        return cls._of(seeds, torch.randint(low, high, (1,), device=device))

    @classmethod
    def _of(cls, seeds: Tensor, step: Tensor) -> Noise:
        noise = cls.__new__(cls)
        noise.seeds, noise.step = seeds, step
        return noise

    def layer(self, index: int) -> Tensor:
        """The seeds (B,) of layer ``index``; they differ from the seeds of every other layer and from ``seeds``."""
        return stream(self.seeds, LAYERS + index)

    def layers(self, indices: range) -> Tensor:
        """The seeds (N, B) of several layers, at the cost of one call."""
        return stream(self.seeds, self._sites(indices))

    def layers_shared(self, indices: range) -> Tensor:
        """One seed per layer (N, 1), for tensors without a row axis such as a table of relative positions."""
        return stream(self.step, self._sites(indices))

    def _sites(self, layers: range) -> Tensor:
        return LAYERS + torch.arange(layers.start, layers.stop, device=self.seeds.device)[:, None]

    def at(self, rows: Tensor, places: Tensor) -> Tensor:
        """One seed per chosen token, (S,): ``rows`` (S,) are indices into the batch, ``places`` (S,) indices into the
        row.
        """
        return stream(self.seeds[rows], TOKENS + places)

    def branch(self, index: int) -> Noise:
        """Independent noise for a second network on the same rows."""
        return self.derived(BRANCHES + index)

    def derived(self, site: int) -> Noise:
        """Independent noise for a further pass over the same rows; each ``site`` gives different noise."""
        return Noise._of(stream(self.seeds, site), stream(self.step, site))
