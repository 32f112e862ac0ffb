from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.batches.pack import (
    Chunks,
    ElectraSegments,
    FullSentences,
    PackedDocuments,
    RowFormat,
    SegmentPairs,
    SentencePairs,
    SingleDocuments,
)
from encoderlab.batches.rows import Framing, Row
from encoderlab.config import from_dict, to_dict
from encoderlab.errors import ConfigError, DataError
from encoderlab.seeds import generator
from tests.batches.memory_corpus import (
    BERT,
    CLS,
    ORDINARY,
    ROBERTA,
    SEP,
    XLNET,
    MemoryCorpus,
    numbered_corpus,
    random_corpus,
)

FORMATS: list[RowFormat] = [
    SegmentPairs(),
    SegmentPairs(relation="order"),
    SentencePairs(),
    ElectraSegments(),
    ElectraSegments(cross_documents=True),
    ElectraSegments(rule="convbert_release"),
    FullSentences(),
    FullSentences(cross_documents=False),
    FullSentences(separate=True),
    Chunks(),
    SingleDocuments(),
    SingleDocuments(overlong="crop"),
    PackedDocuments(),
]
WHOLE = [FullSentences, PackedDocuments, SingleDocuments]


def rows_of(
    corpus: MemoryCorpus, form: RowFormat, framing: Framing = BERT, seed: int = 0, length: int = 48
) -> list[Row]:
    plan = form.plan(corpus, np.arange(corpus.num_documents), generator(seed), framing, length)
    rows = plan.rows(np.arange(len(plan)), corpus, framing, (0, 0))
    assert [len(row) for row in rows] == plan.lengths(framing).tolist()
    return rows


def text(row: Row) -> np.ndarray:
    return row.ids[~row.special]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**40))
@pytest.mark.parametrize("form", FORMATS, ids=repr)
@pytest.mark.parametrize("framing", [BERT, ROBERTA, XLNET], ids=lambda framing: framing.kind)
def test_rows_are_well_formed(form: RowFormat, framing: Framing, seed: int) -> None:
    corpus = random_corpus(seed, 12, words=(1, 70))
    for row in rows_of(corpus, form, framing, seed):
        n = len(row)
        assert n <= 48
        assert all(len(array) == n for array in (row.doc, row.segments, row.word_starts, row.special))
        assert row.ids.dtype == np.int64 and row.doc.dtype == np.int32 and row.segments.dtype == np.int8
        assert set(row.ids[row.special]) <= {CLS, SEP} and (row.ids[~row.special] >= ORDINARY).all()
        assert row.word_starts[row.special].all()
        assert row.doc[0] == 0 and np.isin(np.diff(row.doc), (0, 1)).all()
        for number in range(row.doc[-1] + 1):  # every text is framed on its own
            ids = row.ids[row.doc == number]
            assert (
                (ids[-1] == CLS and ids[-2] == SEP) if framing.kind == "xlnet" else (ids[0] == CLS and ids[-1] == SEP)
            )
            assert (ids == CLS).sum() == 1
        if framing.kind == "roberta":
            assert not row.segments.any()


@pytest.mark.parametrize("form", [form for form in FORMATS if type(form) in WHOLE], ids=repr)
def test_no_text_is_lost_or_repeated(form: RowFormat) -> None:
    if isinstance(form, SingleDocuments) and form.overlong == "crop":
        pytest.skip("crops by design")
    corpus = numbered_corpus([[5, 200, 1], [30] * 9, [1], [46, 47, 2]])
    ids = np.concatenate([text(row) for row in rows_of(corpus, form)])
    assert np.array_equal(np.sort(ids), np.arange(ORDINARY, corpus.vocab_size))


def test_framing() -> None:
    corpus = numbered_corpus([[2, 2], [2, 2]])
    form = SentencePairs()
    for framing, pattern in ((BERT, "CaaSbbS"), (ROBERTA, "CaaSSbbS"), (XLNET, "aaSbbSC")):
        row = rows_of(corpus, form, framing)[0]
        names = "".join({CLS: "C", SEP: "S"}.get(token, "a") for token in row.ids.tolist())
        assert names == pattern.replace("b", "a")
    bert, xlnet = (rows_of(corpus, form, framing)[0].segments.tolist() for framing in (BERT, XLNET))
    assert bert == [0, 0, 0, 0, 1, 1, 1]
    assert xlnet == [0, 0, 0, 1, 1, 1, 2]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**40))
def test_segment_pairs_hold_what_their_label_says(seed: int) -> None:
    corpus = numbered_corpus(np.random.default_rng(seed).integers(1, 30, (20, 12)).tolist())
    owner = np.repeat(np.arange(20), [corpus.document_length(i) for i in range(20)])
    for row in rows_of(corpus, SegmentPairs(), seed=seed, length=64):
        a, b = (row.ids[(row.segments == part) & ~row.special] - ORDINARY for part in (0, 1))
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all() and len(a) and len(b)
        assert len(set(owner[a])) == 1 and len(set(owner[b])) == 1
        if row.labels["next_sentence"]:
            assert owner[a[0]] != owner[b[0]]
        else:
            assert owner[a[0]] == owner[b[0]] and a[-1] < b[0]
            full = len(row) == 64  # a truncated pair may have lost tokens in between
            assert full or b[0] == a[-1] + 1


def test_next_sentence_uses_what_was_replaced_again() -> None:
    """Rewinding: every sentence occurs once, as A or as a true B. Sentences fill the row exactly, so nothing is cut."""
    corpus = numbered_corpus([[10] * 50, [10] * 50])
    seen = np.zeros(corpus.vocab_size, int)
    for row in rows_of(corpus, SegmentPairs(short_share=0.0), length=63):
        own = row.ids[((row.segments == 0) | (row.labels["next_sentence"] == 0)) & ~row.special]
        seen[own] += 1
    assert (seen[ORDINARY:] == 1).all()


@pytest.mark.parametrize("relation, share", [("next", 0.5), ("order", 0.5)])
def test_label_shares(relation: str, share: float) -> None:
    corpus = random_corpus(1, 300, sentences=(30, 40), words=(3, 8))
    rows = rows_of(corpus, SegmentPairs(relation=relation), length=64)  # type: ignore[arg-type]
    ones = np.mean([next(iter(row.labels.values())) for row in rows])
    # Chunks hold about ten sentences: hardly one has a single sentence, which would get label 1 always.
    assert abs(ones - share) < 4 * np.sqrt(0.25 / len(rows)) + 0.02


def test_swapped_segments() -> None:
    corpus = numbered_corpus([[5] * 40, [5] * 40])
    for row in rows_of(corpus, SegmentPairs(relation="order", short_share=0.0), length=64):
        a, b = (row.ids[(row.segments == part) & ~row.special] for part in (0, 1))
        same_document = (a[0] - ORDINARY) // 200 == (b[0] - ORDINARY) // 200
        assert not same_document or (a[0] > b[0]) == bool(row.labels["sentence_order"])


def test_truncation_is_bert_s() -> None:
    """Against dropping one token at a time: the lengths that remain, and an even share of fronts and backs."""
    fronts = []
    for a, b in [(40, 3), (3, 40), (20, 20), (21, 20), (20, 21), (35, 30)]:
        want_a, want_b = a, b
        while want_a + want_b > 29:
            if want_a > want_b:
                want_a -= 1
            else:
                want_b -= 1
        corpus = numbered_corpus([[a, b]] * 60)
        for row in rows_of(corpus, SegmentPairs(short_share=0.0), seed=a * b, length=32):
            kept_a, kept_b = (row.ids[(row.segments == part) & ~row.special] for part in (0, 1))
            if row.labels["next_sentence"] == 0:
                assert (len(kept_a), len(kept_b)) == (want_a, want_b)
                start = (kept_a[0] - ORDINARY) % (a + b)
                if want_a < a:
                    fronts.append(start / (a - want_a))
    assert abs(np.mean(fronts) - 0.5) < 0.05


def test_short_rows() -> None:
    corpus = random_corpus(2, 200, sentences=(100, 100), words=(2, 4))
    always, never = (
        np.mean([len(row) < 40 for row in rows_of(corpus, SegmentPairs(short_share=share))]) for share in (1.0, 0.0)
    )
    assert always > 0.8 and never < 0.4


def test_electra_segments_are_in_order() -> None:
    corpus = numbered_corpus([[6] * 60] * 10)
    rows = rows_of(corpus, ElectraSegments(), length=64)
    singles = np.mean([not (row.segments == 1).any() for row in rows])
    assert 0.02 < singles < 0.3
    for row in rows:
        ids = text(row)
        assert len(set(ids)) == len(ids) and ids.max() - ids.min() < 70


def test_convbert_release_rule() -> None:
    """Once A holds anything all goes to A; a first sentence that fills half of the room goes to B while A is empty."""
    corpus = numbered_corpus([[10] * 30] * 20)
    rows = rows_of(corpus, ElectraSegments(rule="convbert_release", short_share=0.0), length=64)
    assert not any((row.segments == 1).any() for row in rows)
    corpus = numbered_corpus([[80]] * 200)
    rows = rows_of(corpus, ElectraSegments(rule="convbert_release", short_share=0.0), length=64)
    empty = [row for row in rows if (row.segments == 1).any()]
    assert 0.8 < len(empty) / len(rows) < 1
    assert all(row.ids[0] == CLS and row.ids[1] == SEP and row.segments[2] == 1 for row in empty)


def test_full_sentences_are_greedy() -> None:
    corpus = numbered_corpus([[10, 10, 10, 10], [5, 30, 12]])
    rows = rows_of(corpus, FullSentences(), length=33)
    lengths = [(text(row) - ORDINARY).tolist() for row in rows]
    # 1 + 10 + 10 + 10 + 1 = 32; then 1 + 10 + 1 + 5 + 1, since 30 more do not fit; 1 + 30 + 1; 1 + 12 + 1
    assert [len(tokens) for tokens in lengths] == [30, 15, 30, 12]
    assert [(row.ids == SEP).sum() for row in rows] == [1, 2, 1, 1]
    assert not rows[1].doc.any()
    separate = rows_of(corpus, FullSentences(separate=True), length=33)
    assert separate[1].doc.tolist() == [0] * 12 + [1] * 7
    alone = rows_of(corpus, FullSentences(cross_documents=False), length=33)
    assert [len(text(row)) for row in alone] == [30, 10, 5, 30, 12]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40), st.booleans(), st.booleans())
def test_full_sentences_against_one_by_one(seed: int, cross: bool, separate: bool) -> None:
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 40, rng.integers(1, 9)).tolist() for _ in range(8)]
    corpus = numbered_corpus(lengths)
    room, expected, row, previous = 40, [], [], None
    for number, document in enumerate(lengths):
        for length in [part for size in document for part in [37] * (size // 37) + [size % 37] * (size % 37 > 0)]:
            pieces = 2 if separate else 1
            cost = length + (pieces if previous != number else 0)
            used = sum(row) + (0 if separate else 1)
            if row and (used + cost > room or (not cross and previous != number)):
                expected.append(row)
                row, cost = [], length + pieces
            row.append(cost)
            previous = number
    expected.append(row)
    form = FullSentences(cross_documents=cross, separate=separate)
    found = [len(made) - (0 if separate else 1) for made in rows_of(corpus, form, length=room)]
    if max(max(document) for document in lengths) <= 37:
        assert found == [sum(row) for row in expected]


def test_chunks_cut_blindly() -> None:
    corpus = numbered_corpus([[7], [20, 3], [9]])
    rows = rows_of(corpus, Chunks(), length=12)
    assert [text(row).tolist() for row in rows] == np.arange(ORDINARY, ORDINARY + 30).reshape(3, 10).tolist()
    assert all(not row.doc.any() and not row.segments.any() for row in rows)


def test_single_documents() -> None:
    corpus = numbered_corpus([[5], [50], [11]])
    assert [len(text(row)) for row in rows_of(corpus, SingleDocuments(), length=22)] == [5, 20, 20, 10, 11]
    assert [len(text(row)) for row in rows_of(corpus, SingleDocuments(shortest=11), length=22)] == [20, 20, 11]
    cropped = [rows_of(corpus, SingleDocuments(overlong="crop"), seed=seed, length=22)[1] for seed in range(200)]
    assert all(len(text(row)) == 20 and (np.diff(text(row)) == 1).all() for row in cropped)
    assert abs(np.mean([text(row)[0] - ORDINARY - 5 for row in cropped]) - 15) < 1


def test_rows_too_short_for_the_shortest_text_are_told_the_length_that_is_not() -> None:
    corpus = numbered_corpus([[30], [30]])
    with pytest.raises(ConfigError, match="have room for 6 of a text, .* choose rows of at least 14 tokens, or lower"):
        rows_of(corpus, SingleDocuments(shortest=12), length=8)
    assert rows_of(corpus, SingleDocuments(shortest=12), length=14)


def test_packed_documents_leave_little_padding() -> None:
    corpus = random_corpus(5, 2000, sentences=(1, 4), words=(1, 30), vocab=60000)
    rows = rows_of(corpus, PackedDocuments(), length=256)
    assert sum(map(len, rows)) / (256 * len(rows)) > 0.99
    for row in rows[:20]:
        assert (row.ids == CLS).sum() == row.doc[-1] + 1


def test_plans_depend_on_the_generator_alone() -> None:
    corpus = random_corpus(0, 40)
    for form in FORMATS:
        one, two, other = (rows_of(corpus, form, seed=seed) for seed in (1, 1, 2))
        assert all(np.array_equal(a.ids, b.ids) for a, b in zip(one, two, strict=True))
        if form.kind in ("segment_pairs", "sentence_pairs", "electra_segments"):
            assert len(one) != len(other) or any(len(a) != len(b) for a, b in zip(one, other, strict=True))


def test_random_text_of_very_long_documents() -> None:
    """Whole sentences from anywhere within, at a bounded cost. Sentences fill the row exactly, so nothing is cut."""
    corpus = numbered_corpus([[10] * 60, [10] * 20_000])
    starts = []
    for seed in range(60):
        plan = SegmentPairs(short_share=0.0).plan(corpus, np.array([0]), generator(seed), BERT, 63)
        starts += plan.start[plan.document == 1].tolist()
    assert min(starts) < 40_000 and max(starts) > 160_000
    assert all(start % 10 == 0 for start in starts)


def test_pairs_need_two_documents() -> None:
    corpus = numbered_corpus([[5, 5, 5]])
    for form in (SegmentPairs(), SentencePairs()):
        with pytest.raises(DataError, match="at least 2 documents"):
            rows_of(corpus, form)


@pytest.mark.parametrize("form", FORMATS, ids=repr)
def test_formats_are_configuration(form: RowFormat) -> None:
    assert from_dict(RowFormat, to_dict(form)) == form  # type: ignore[arg-type]


def test_shares_beyond_one_are_refused() -> None:
    for share in (-1, 2):
        for kind in (SegmentPairs, ElectraSegments):
            with pytest.raises(ConfigError, match=f"^short_share is {share}; give at (least 0|most 1)"):
                kind(short_share=share)
        with pytest.raises(ConfigError, match=f"^single_share is {share}; give at (least 0|most 1)"):
            ElectraSegments(single_share=share)


def test_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'short_share'"):
        from_dict(SegmentPairs, {"kind": "segment_pairs", "short_shares": 0.2})
