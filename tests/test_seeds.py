"""Random numbers that belong to a path: equal everywhere, different for every other path."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from encoderlab.seeds import derive, generator, mix, uniform

characters = st.characters(codec=None, exclude_categories=())  # with halves of surrogate pairs, as in JSON
parts = st.integers(-(2**63), 2**63 - 1) | st.text(characters, max_size=5)
keys = st.lists(parts, max_size=4).map(tuple)


def test_the_numbers_are_those_of_every_release() -> None:
    """A change here changes every corpus, mask and initial weight."""
    assert derive(1, "mask", 3) == 6478303211032001836
    assert generator(1, "mask", 3).integers(0, 1000, 4).tolist() == [596, 615, 272, 573]
    assert abs(uniform(np.array([derive(2)], np.uint64), np.array([5]))[0] - 0.59396291) < 1e-8


@given(keys, keys)
def test_paths_differ_where_their_parts_do(one: tuple, two: tuple) -> None:
    assert (derive(*one) == derive(*two)) == (one == two)
    assert 0 <= derive(*one) < 2**64


def test_a_part_is_not_its_text_and_parts_do_not_run_together() -> None:
    assert len({derive(1), derive("1"), derive(1, 1), derive("1", "1"), derive("11"), derive(11), derive()}) == 7


def test_another_process_draws_the_same() -> None:
    """Python's own hash of text is salted anew for each process; these are not."""
    code = "from encoderlab.seeds import derive, generator; print(derive(7, 'a'), generator(7, 'a').random())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(derive(7, "a")), str(generator(7, "a").random())]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 20))
def test_uniform_numbers_depend_on_key_and_index_alone(key: int, first: int, count: int) -> None:
    index = first + np.arange(count)
    together = uniform(np.full(count, key, np.uint64), index)
    assert ((together >= 0) & (together < 1)).all()
    alone = [uniform(np.array([key], np.uint64), index[i : i + 1])[0] for i in range(count)]
    np.testing.assert_array_equal(together, np.array(alone))


def test_uniform_numbers_are_uniform() -> None:
    numbers = uniform(np.full(100_000, derive(5), np.uint64), np.arange(100_000))
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 150  # chi square of 99 degrees of freedom; p = 0.0007
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.015


def test_mix_is_a_bijection_of_few_bits_onto_all() -> None:
    mixed = mix(np.arange(1 << 16, dtype=np.uint64))
    assert len(np.unique(mixed)) == 1 << 16
    assert all(0.48 < ((mixed >> np.uint64(bit)) & np.uint64(1)).mean() < 0.52 for bit in range(64))
