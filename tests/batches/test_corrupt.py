from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.batches.corrupt import (
    Corrupted,
    Corruptor,
    Masking,
    NGrams,
    RareTokens,
    Spans,
    Tokens,
    Unit,
    WindowedNGrams,
    WordRuns,
    Words,
)
from encoderlab.batches.rows import Row
from encoderlab.config import from_dict, to_dict
from encoderlab.errors import ConfigError
from tests.batches.memory_corpus import CLS, MASK, ORDINARY, SEP, SPECIAL

VOCAB = 500
UNITS: list[Unit] = [
    Tokens(),
    Tokens(replacement=True),
    Words(),
    NGrams(),
    WindowedNGrams(),
    WindowedNGrams(longest=1),
    Spans(),
    RareTokens(),
]
unit_names = pytest.mark.parametrize("unit", UNITS, ids=repr)


def make_row(seed: int, length: int = 128, word_share: float = 0.7) -> Row:
    """[CLS] A [SEP] B [SEP] of random words."""
    rng = np.random.default_rng(seed)
    special = np.zeros(length, bool)
    special[[0, length // 2, -1]] = True
    ids = rng.integers(ORDINARY, VOCAB, length)
    ids[special] = [CLS, SEP, SEP]
    word_starts = rng.random(length) < word_share
    word_starts[special] = True
    segments = (np.arange(length) > length // 2).astype(np.int8)
    return Row(ids, np.zeros(length, np.int32), segments, word_starts, special, {}, (0, 0, seed))


def corruptor(masking: Masking) -> Callable[[Row, int], Corrupted]:
    rule = Corruptor(masking, vocab_size=VOCAB, mask_id=MASK, special_ids=SPECIAL, counts=np.arange(VOCAB))
    return lambda row, seed: rule([row], seed)[0]


def words_of(row: Row) -> np.ndarray:
    """The number of the word that each position belongs to; special tokens are words of their own."""
    opens = row.word_starts | row.special
    opens[1:] |= row.special[:-1]
    return np.cumsum(opens)


@unit_names
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**40), length=st.integers(6, 200), rate=st.floats(0.05, 0.6))
def test_only_chosen_tokens_change_and_no_special_one(unit: Unit, seed: int, length: int, rate: float) -> None:
    row = make_row(seed, length)
    hidden = corruptor(Masking(unit=unit, rate=rate))(row, seed)
    assert (np.diff(hidden.positions) >= (0 if unit == Tokens(replacement=True) else 1)).all()
    assert not row.special[hidden.positions].any()
    assert np.array_equal(hidden.targets, row.ids[hidden.positions])
    untouched = np.ones(length, bool)
    untouched[hidden.positions] = False
    assert np.array_equal(hidden.ids[untouched], row.ids[untouched])
    changed = hidden.ids[hidden.ids != row.ids]
    assert not np.isin(changed, [token for token in SPECIAL if token != MASK]).any()


@pytest.mark.parametrize("unit", [Tokens(), RareTokens(), Tokens(replacement=True)], ids=repr)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**40), length=st.integers(6, 200), rate=st.floats(0.05, 0.5))
def test_counts_are_exact(unit: Unit, seed: int, length: int, rate: float) -> None:
    row = make_row(seed, length)
    expected = max(1, round(rate * length))
    for most in (None, 5):
        hidden = corruptor(Masking(unit=unit, rate=rate, most=most))(row, seed)
        assert len(hidden.positions) == min(expected, length - 3, most or 999)


@pytest.mark.parametrize("unit", [Words(), NGrams(), Spans()], ids=repr)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_words_stay_whole(unit: Unit, seed: int) -> None:
    row = make_row(seed)
    words = words_of(row)
    hidden = corruptor(Masking(unit=unit))(row, seed)
    chosen = np.zeros(len(row), bool)
    chosen[hidden.positions] = True
    assert len(hidden.positions) <= 19
    for word in np.unique(words[hidden.positions]):
        assert chosen[words == word].all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_count_is_reached_with_single_token_words(seed: int) -> None:
    row = make_row(seed, word_share=1.1)
    for unit in (Words(), NGrams(), Spans()):
        assert len(corruptor(Masking(unit=unit))(row, seed).positions) == 19


def run_lengths(hidden_positions: np.ndarray) -> np.ndarray:
    ends = np.flatnonzero(np.diff(hidden_positions, append=10**9) > 1)
    return np.diff(ends, prepend=-1)


def test_ngram_lengths_follow_one_over_n() -> None:
    """At a low rate n-grams hardly touch, and only the last is shortened."""
    counts = np.zeros(8)
    for seed in range(300):
        row = make_row(seed, length=2000, word_share=1.1)
        positions = corruptor(Masking(unit=NGrams(longest=3), rate=0.02))(row, seed).positions
        counts += np.bincount(np.minimum(run_lengths(positions), 7), minlength=8)
    share = counts[1:4] / counts.sum()
    expected = np.array([1, 1 / 2, 1 / 3]) / (1 + 1 / 2 + 1 / 3)
    assert np.abs(share - expected).max() < 0.03


def test_span_lengths_are_geometric() -> None:
    lengths = []
    for seed in range(200):
        row = make_row(seed, length=3000, word_share=1.1)
        positions = corruptor(Masking(unit=Spans(), rate=0.03))(row, seed).positions
        lengths.append(run_lengths(positions))
    assert abs(np.concatenate(lengths).mean() - 3.8) < 0.4  # SpanBERT: mean 3.8


def test_runs_end_before_separators() -> None:
    """Positions 3 and 6 are special: runs of words that begin at 1, 2 end by 3, and so on."""
    candidates, opens = np.array([1, 2, 4, 5, 7, 8]), np.array([True, True, True, False, True, True])
    words = WordRuns(candidates, opens, np.array([0, 0, 0, 0, 0, 1]))
    assert words.first.tolist() == [0, 1, 2, 4, 5] and words.size.tolist() == [1, 1, 2, 1, 1]
    assert words.reach.tolist() == [2, 2, 3, 4, 5]


def test_windows() -> None:
    """One n-gram per window of 6n words: shares of 1/6 until the count is reached, so the end of a row is masked
    less."""
    chosen = np.zeros((400, 512))
    for seed in range(400):
        row = make_row(seed, length=512, word_share=1.1)
        chosen[seed, corruptor(Masking(unit=WindowedNGrams()))(row, seed).positions] = 1
    assert abs(chosen[:, 1:300].mean() - 1 / 6) < 0.005
    assert chosen[:, 490:510].mean() < 0.1
    assert abs(chosen.sum(1).mean() - 77) < 1
    for row in chosen[:50]:
        assert run_lengths(np.flatnonzero(row)).max() <= 6


def test_windows_above_a_rate_of_one_half_leave_no_gap() -> None:
    """As in the original, whose windows are then as long as their n-grams."""
    row = make_row(1, word_share=1.0)
    hidden = corruptor(Masking(rate=0.6, unit=WindowedNGrams(longest=1)))(row, 1)
    assert hidden.positions.tolist() == np.flatnonzero(~row.special)[: round(0.6 * len(row))].tolist()


def test_rare_tokens_are_masked_more_often() -> None:
    """The chance of a single draw is count^-0.7; with few draws the odds of two ids follow it."""
    ids = np.tile([10, 160], 100)  # counts 10 and 160: odds 16^0.7 = 6.96
    row = make_row(0, length=200)
    row = Row(ids, row.doc, row.segments, np.ones(200, bool), np.zeros(200, bool), {}, (0,))
    rule = corruptor(Masking(unit=RareTokens(), rate=0.01))
    drawn = np.concatenate([rule(row, seed).targets for seed in range(2000)])
    assert abs((drawn == 10).mean() - 6.96 / 7.96) < 0.02


def test_among_tokens_that_are_very_frequent_chance_decides() -> None:
    row = make_row(0, length=200)
    row = Row(np.full(200, 160), row.doc, row.segments, np.ones(200, bool), np.zeros(200, bool), {}, (0,))
    rule = corruptor(Masking(unit=RareTokens(power=10.0), rate=0.1))
    assert abs(np.concatenate([rule(row, seed).positions for seed in range(200)]).mean() - 99.5) < 3.0


def shares(masking: Masking, rows: int = 300) -> tuple[float, float, float]:
    masked, random, total = 0, 0, 0
    rule = corruptor(masking)
    for seed in range(rows):
        row = make_row(seed)
        hidden = rule(row, 7)
        shown = hidden.ids[hidden.positions]
        masked += (shown == MASK).sum()
        random += ((shown != MASK) & (shown != hidden.targets)).sum()
        total += len(shown)
    return masked / total, random / total, 1 - (masked + random) / total


# The six rows of BERT's ablation of the masking procedure (Devlin et al. 2019, table 8), as (mask, same, random).
@pytest.mark.parametrize(
    "mix", [(0.8, 0.1, 0.1), (1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0.2, 0.8), (0, 0, 1)], ids=str
)
@pytest.mark.parametrize("draw", ["piece", "word", "unit"])
def test_any_mix(mix: tuple[float, float, float], draw: str) -> None:
    mask, same, random = mix
    masking = Masking(unit=NGrams(), mask=mask, random=random, draw=draw)  # type: ignore[arg-type]
    found = shares(masking)
    repeated = random / (VOCAB - len(SPECIAL))  # a random token may be the one that was there
    assert np.abs(np.array(found) - [mask, random - repeated, same + repeated]).max() < 0.025


@pytest.mark.parametrize("draw", ["piece", "word", "unit"])
def test_what_is_drawn_together(draw: str) -> None:
    rule = corruptor(Masking(unit=Spans(), mask=0.5, random=0.0, draw=draw))  # type: ignore[arg-type]
    mixed_words, mixed_runs = 0, 0
    for seed in range(60):
        row = make_row(seed, word_share=0.4)
        hidden = rule(row, seed)
        masked = hidden.ids == MASK
        words = words_of(row)
        mixed_words += sum(len(set(masked[words == word])) > 1 for word in np.unique(words[hidden.positions]))
        runs = np.split(hidden.positions, np.cumsum(run_lengths(hidden.positions))[:-1])
        mixed_runs += sum(len(set(masked[run])) > 1 for run in runs)
    assert (mixed_words > 0) == (draw == "piece")
    assert mixed_runs > 0  # neighbouring spans may touch


def test_a_word_draws_once_however_often_it_was_chosen() -> None:
    rule = corruptor(Masking(unit=Tokens(replacement=True), rate=0.6, mask=0.5, random=0.0, draw="word"))
    for seed in range(30):
        row = make_row(seed, word_share=0.4)
        hidden = rule(row, seed)
        masked, words = hidden.ids[hidden.positions] == MASK, words_of(row)[hidden.positions]
        assert all(len(set(masked[words == word])) == 1 for word in np.unique(words))


def test_stochastic_count_has_the_rate_as_its_mean() -> None:
    row = make_row(0, length=50)
    rule = corruptor(Masking(count="stochastic", rate=0.15))
    counts = np.array([len(rule(row, seed).positions) for seed in range(1000)])
    assert set(counts) == {7, 8} and abs(counts.mean() - 7.5) < 0.06


@pytest.mark.parametrize(("rate", "final"), [(0.3, 0.1), (0.1, 0.3), (0.2, 0.2)])
@pytest.mark.parametrize("most", [None, 5, 20, 30, 200])
def test_the_mean_share_is_that_of_the_limited_counts(rate: float, final: float, most: int | None) -> None:
    rule = Masking(rate=rate, final_rate=final, most=most)
    row, number = make_row(0, length=100), 500
    chosen = sum(len(corruptor(rule)(replace(row, progress=n / number), 1).positions) for n in range(number))
    assert rule.mean_share(100) == pytest.approx(chosen / 100 / number, abs=1e-3)


@unit_names
def test_the_rate_changes_in_a_line(unit: Unit) -> None:
    """The row alone says where in the training it stands; a row outside training has the final rate."""
    rule = Masking(unit=unit, rate=0.4, final_rate=0.1)
    assert rule.mean_share(200) == 0.25 and Masking(rate=0.3).mean_share(200) == 0.3
    row = make_row(1, 200, word_share=1.0)
    for progress, rate in ((0.0, 0.4), (0.5, 0.25), (1.0, 0.1)):
        shown = corruptor(rule)(replace(row, progress=progress), 7)
        wanted = corruptor(Masking(unit=unit, rate=rate))(row, 7)
        assert np.array_equal(shown.positions, wanted.positions) and np.array_equal(shown.ids, wanted.ids)
    beside = [replace(row, progress=0.0), replace(row, progress=1.0)]
    both = Corruptor(rule, vocab_size=VOCAB, mask_id=MASK, special_ids=SPECIAL, counts=np.arange(VOCAB))(beside, 7)
    assert np.array_equal(both[1].positions, corruptor(rule)(row, 7).positions)
    assert len(both[0].positions) > 2 * len(both[1].positions)


def test_specials_where_the_original_did() -> None:
    rule = corruptor(Masking(specials=True, rate=0.5))
    assert any(row.special[rule(row, s).positions].any() for s in range(20) for row in [make_row(s)])


def test_random_tokens() -> None:
    row = make_row(0, length=400)
    every = Masking(rate=0.5, mask=0.0, random=1.0, random_from="all")
    drawn = np.concatenate([corruptor(every)(row, seed).ids for seed in range(300)])
    assert set(SPECIAL) <= set(drawn.tolist())
    assert drawn.max() < VOCAB


@unit_names
def test_same_generator_same_masks(unit: Unit) -> None:
    rule, row = corruptor(Masking(unit=unit)), make_row(3)
    one, two, other = (rule(row, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.ids, two.ids) and np.array_equal(one.positions, two.positions)
    assert not np.array_equal(one.positions, other.positions)


@unit_names
def test_rules_are_configuration(unit: Unit) -> None:
    masking = Masking(unit=unit, draw="word", most=20)
    assert from_dict(Masking, to_dict(masking)) == masking


def test_bad_rules_are_refused() -> None:
    with pytest.raises(ConfigError, match="^rate is 1.5; give less than 1"):
        Masking(rate=1.5)
    for shares in ({"mask": 0.9, "random": 0.2}, {"mask": math.nan}, {"random": math.nan}, {"random": -0.1}):
        with pytest.raises(ConfigError, match="add up to more than 1|give a finite number|give at least 0"):
            Masking(**shares)
    for most in (0, -1):
        with pytest.raises(ConfigError, match=f"^most is {most}; give at least 1, or null"):
            Masking(most=most)
    for kind in (NGrams, WindowedNGrams, Spans):
        with pytest.raises(ConfigError, match="^longest is 0; give at least 1"):
            kind(longest=0)
    with pytest.raises(ConfigError, match="^success is 1.5; give less than 1"):
        Spans(success=1.5)
    for power in (-1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="^power is .*; give at (least 0|most 10)"):
            RareTokens(power=power)
    with pytest.raises(ConfigError, match="token counts"):
        Corruptor(Masking(unit=RareTokens()), vocab_size=10, mask_id=4)


@unit_names
def test_rows_do_not_depend_on_their_neighbours(unit: Unit) -> None:
    rule = Corruptor(Masking(unit=unit), vocab_size=VOCAB, mask_id=MASK, counts=np.arange(VOCAB))
    rows = [make_row(seed, 20 + seed) for seed in range(40)]
    together, halves = rule(rows, 3), rule(rows[20:], 3) + rule(rows[:20], 3)
    for one, two in zip(together, halves[20:] + halves[:20], strict=True):
        assert np.array_equal(one.ids, two.ids) and np.array_equal(one.positions, two.positions)


@unit_names
def test_rows_without_text(unit: Unit) -> None:
    row = make_row(0)
    empty = Row(
        *(getattr(row, name)[:3] for name in ("ids", "doc", "segments", "word_starts")), np.ones(3, bool), {}, (0,)
    )
    rule = Corruptor(Masking(unit=unit), vocab_size=VOCAB, mask_id=MASK, counts=np.arange(VOCAB))
    assert [len(hidden.positions) > 0 for hidden in rule([empty, row, empty], 0)] == [False, True, False]
    assert len(rule([empty], 0)[0].positions) == 0
