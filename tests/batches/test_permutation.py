from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.batches.permutation import Permuted, Targets, arrange, permute, sample_spans
from encoderlab.batches.rows import Framing, Row
from encoderlab.batches.streams import Stream, TokenLine, XLNetStreams
from encoderlab.corpus.shards import Document
from encoderlab.errors import ConfigError
from encoderlab.seeds import generator
from tests.batches.memory_corpus import MemoryCorpus

SEP, CLS = 4, 3  # of the golden case
HALF = 16


@pytest.fixture(scope="module")
def golden(shared: Path) -> dict[str, np.ndarray]:
    return dict(np.load(shared / "golden" / "xlnet_data_functions.npz"))


def hidden(permuted: Permuted) -> np.ndarray:
    """What each position may not see, (n, n)."""
    return permuted.query_rank[:, None] <= permuted.key_rank[None, :]


class LegacyNumpy:
    """The draws of the module-level functions of numpy.random."""

    def __init__(self, seed: int) -> None:
        self.state = np.random.RandomState(seed)

    def random(self) -> float:
        return self.state.random_sample()

    def integers(self, high: int) -> int:
        return self.state.randint(0, high)


class Python:
    """The draws of the standard library's random module."""

    def __init__(self, seed: int) -> None:
        self.state = random.Random(seed)

    def random(self) -> float:
        return self.state.random()

    def integers(self, high: int) -> int:
        return self.state.randrange(high)


def test_records_equal_the_release(golden: dict[str, np.ndarray]) -> None:
    """Splits into A and B, spans, quotas and both directions: all 76 records, from the same random numbers."""
    ids, sentence = golden["input/stream_tokens"], golden["input/stream_sent_ids"]
    starts = np.flatnonzero(np.diff(sentence, prepend=1 - int(sentence[0])))
    corpus = MemoryCorpus([Document(ids, starts, ids % 3 != 0)], 120)
    line = TokenLine(corpus, None)
    form = XLNetStreams(reuse=HALF, separator=False)
    framing = Framing(kind="xlnet", cls=CLS, sep=SEP)
    length = line.length // 2
    # The release has all forward rows first.
    streams = [Stream(line, start, length, backwards) for backwards in (False, True) for start in (0, length)]
    numpy_draws, python_draws = LegacyNumpy(601), Python(601)
    position: int | None = 0
    record = 0
    while position is not None:
        for stream in streams:
            row = form.row(stream, position, 2 * HALF, framing, python_draws)  # type: ignore[arg-type]
            assert np.array_equal(row.ids, golden["output/record.input"][record])
            assert np.array_equal(row.segments, golden["output/record.seg_id"][record])
            assert row.labels["next_sentence"] == 1 - golden["output/record.label"][record, 0]
            word_starts = row.ids % 3 != 0  # also of <cls>, whose id is a multiple of 3 here
            spans = [
                sample_spans(word_starts[part], 4, Targets(), numpy_draws, backwards=stream.backwards)
                for part in (slice(0, HALF), slice(HALF, None))
            ]
            assert np.array_equal(np.concatenate(spans), golden["output/record.is_masked"][record].astype(bool))
            record += 1
        _, position = form.window(2 * HALF, length, position, 0, 0)
    assert record == len(golden["output/record.input"])


def test_orders_equal_the_release(golden: dict[str, np.ndarray]) -> None:
    for record, ids in enumerate(golden["output/record.input"]):
        special = (ids == SEP) | (ids == CLS)
        orders = [golden[f"input/permutations_{half}_half"][record] for half in ("first", "second")]
        chosen = golden["output/record.is_masked"][record].astype(bool)
        permuted = arrange(ids, chosen, special, [HALF, HALF], orders)
        mask = hidden(permuted)
        assert np.array_equal(mask, golden["output/features.perm_mask"][record].astype(bool))
        count = len(permuted.positions)
        assert np.array_equal(golden["output/features.target_mask"][record], np.arange(8) < count)
        assert np.array_equal(golden["output/features.target"][record, :count], permuted.targets)
        mapping = golden["output/features.target_mapping"][record]
        assert np.array_equal(mapping[:count].argmax(1), permuted.positions)
        assert np.array_equal(np.flatnonzero(golden["output/features.input_q"][record]), permuted.positions)


def explicit_mask(chosen: np.ndarray, special: np.ndarray, reuse: int, order: list[np.ndarray]) -> np.ndarray:
    """Position by position: the definition in words."""
    n = len(chosen)
    time = np.zeros(n)
    for part, start in zip(order, (0, reuse), strict=True):
        size = reuse if start == 0 else n - reuse
        for place in range(size):
            time[start + place] = part[place % len(part)] + place // len(part) * len(part)
    blind = np.zeros((n, n), bool)
    for i in range(n):
        for j in range(n):
            same = (i < reuse) == (j < reuse)
            if not same:
                blind[i, j] = i < reuse
            elif not (chosen[j] or special[j]):
                blind[i, j] = False  # context is seen by all of its part
            elif not (chosen[i] or special[i]):
                blind[i, j] = True  # context sees nothing that comes later
            elif i == j:
                blind[i, j] = not special[i]
            else:
                blind[i, j] = time[i] < time[j]
    return blind


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(8, 8, 8), (8, 8, 4), (8, 12, 4), (12, 9, 5)]))
def test_order_against_explicit_construction(seed: int, shape: tuple[int, int, int]) -> None:
    first, second, block = shape
    rng = np.random.default_rng(seed)
    chosen, special = rng.random(first + second) < 0.3, rng.random(first + second) < 0.1
    orders = [rng.permutation(block), rng.permutation(block)]
    permuted = arrange(np.arange(first + second), chosen, special, [first, second], orders)
    mask = hidden(permuted)
    assert np.array_equal(mask, explicit_mask(chosen, special, first, orders))
    # No leak: over any number of layers of the content stream, a target does not reach its own query.
    content = (~mask | np.eye(len(mask), dtype=bool)).astype(float)
    reach = (~mask).astype(float) @ np.linalg.matrix_power(content, len(mask)) > 0
    assert not reach[permuted.positions, permuted.positions].any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_quota_is_met_exactly(seed: int, whole_words: bool, backwards: bool) -> None:
    rng = np.random.default_rng(seed)
    word_starts = rng.random(256) < 0.6
    chosen = sample_spans(word_starts, 43, Targets(whole_words=whole_words), rng, backwards=backwards)
    assert chosen.sum() == 43


def test_span_lengths_follow_one_over_n() -> None:
    """Long rows and no quota in the way: runs that are apart have the lengths that were drawn."""
    rng, counts = np.random.default_rng(0), np.zeros(6)
    for _ in range(40):
        chosen = sample_spans(np.ones(6000, bool), 250, Targets(context=20), rng)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]])))
        lengths = edges[1::2] - edges[::2]
        counts += np.bincount(np.minimum(lengths, 6), minlength=7)[1:]
    expected = 1 / np.arange(1, 6)
    share = counts[:5] / counts[:5].sum()
    assert np.abs(share - expected / expected.sum()).max() < 0.01


def test_whole_word_spans_end_with_words() -> None:
    rng = np.random.default_rng(3)
    starts = np.zeros(4096, bool)
    starts[::2] = True  # words of two tokens
    chosen = sample_spans(starts, 200, Targets(whole_words=True, context=30), rng)
    assert (chosen[0::2] == chosen[1::2]).mean() > 0.99


def make_row(length: int, seed: int = 0, backwards: int = 0) -> Row:
    rng = np.random.default_rng(seed)
    special = np.zeros(length, bool)
    special[[-1, -2, -length // 3]] = True
    return Row(
        ids=rng.integers(10, 99, length),
        doc=np.zeros(length, np.int32),
        segments=np.zeros(length, np.int8),
        word_starts=rng.random(length) < 0.7,
        special=special,
        labels={"backwards": backwards},
        key=(0, 0, seed),
    )


def test_permute_never_predicts_special_tokens_and_repeats_itself() -> None:
    targets = Targets(count=20, block=32)
    for seed in range(20):
        row = make_row(96, seed, seed % 2)
        one, two = (permute(row, targets, 32, generator(5, *row.key)) for _ in range(2))
        assert not row.special[one.positions].any()
        assert 14 <= len(one.positions) <= 20
        assert np.array_equal(one.targets, row.ids[one.positions])
        assert np.array_equal(one.query_rank, two.query_rank) and np.array_equal(one.positions, two.positions)


@pytest.mark.parametrize("length", [2, 5, 40])
def test_a_row_shorter_than_its_quota_keeps_half_of_its_tokens(length: int) -> None:
    order = permute(make_row(length, 0, 0), Targets(count=42), 0, generator(5))
    assert len(order.positions) <= length // 2


@pytest.mark.parametrize("name", ["count", "longest", "context", "block"])
def test_targets_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is 0; give at least 1"):
        Targets(**{name: 0})


def test_settings_that_leak_are_refused() -> None:
    with pytest.raises(ConfigError, match="longer than the 128 reused"):
        Targets(block=256).check(512, 128)
    with pytest.raises(ConfigError, match="too little context"):
        Targets(count=85).check(64, 32)
    Targets(block=256).check(512, 256)


@pytest.mark.parametrize(("length", "reuse"), [(64, 32), (33, 16), (33, 17), (8, 3), (9, 0)])
def test_the_most_targets_that_are_named_are_allowed(length: int, reuse: int) -> None:
    """At most half of each part; the first part has the odd one."""
    with pytest.raises(ConfigError, match="^85 targets") as refused:
        Targets().check(length, reuse)
    named = re.search(r"set objective\.targets\.count to at most (\d+)$", str(refused.value))
    assert named is not None
    most = int(named[1])
    Targets(count=most).check(length, reuse)
    first, rest = (most - most // 2, most // 2) if reuse else (0, most)
    assert 2 * first <= reuse and 2 * rest <= length - reuse
    with pytest.raises(ConfigError, match=f"at most {most}$"):
        Targets(count=most + 1).check(length, reuse)


def test_one_reused_token_has_no_half() -> None:
    with pytest.raises(ConfigError, match=r"set format\.reuse to at least 2$"):
        Targets(count=1).check(8, 1)
