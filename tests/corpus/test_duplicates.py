"""Repeated numbers, against a set."""

from __future__ import annotations

import errno
import resource

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from encoderlab.corpus import duplicates
from encoderlab.corpus.duplicates import find_repeated


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=12), st.sampled_from([3, 10, 1000]))
@hypothesis_settings(suppress_health_check=list(HealthCheck), deadline=None)
def test_repeated_numbers_are_found_in_any_groups(tmp_path_factory, columns, bucket):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "BUCKET", bucket)
        arrays = [np.array(column, np.uint64) for column in columns]
        flags = find_repeated(arrays, sum(map(len, columns)), tmp_path_factory.mktemp("x") / "scratch")
    seen, expected = set(), []
    for number in [number for column in columns for number in column]:
        expected.append(number in seen)
        seen.add(number)
    assert flags.tolist() == expected


def test_a_full_disk_while_repeats_are_looked_for_has_its_number(tmp_path):
    """The build says what to do about it by the number; numpy's own writing gives none."""
    allowed, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        with pytest.raises(OSError) as error:
            find_repeated([], 100_000, tmp_path / "scratch")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, most))
    assert error.value.errno == errno.EFBIG
