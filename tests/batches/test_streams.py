from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.batches.loader import Loader
from encoderlab.batches.rows import Framing, Row
from encoderlab.batches.streams import ContiguousStreams, Stream, TokenLine, XLNetStreams, parallel_streams
from encoderlab.errors import ConfigError, DataError
from tests.batches.memory_corpus import (
    BERT,
    CLS,
    EOD,
    ORDINARY,
    SEP,
    XLNET,
    MemoryCorpus,
    numbered_corpus,
    random_corpus,
)


def whole_line(corpus: MemoryCorpus, eod: bool) -> np.ndarray:
    parts = []
    for document in corpus.documents:
        parts.append(document.ids.astype(np.int64))
        if eod:
            parts.append(np.array([EOD]))
    return np.concatenate(parts)


def epoch(
    corpus: MemoryCorpus, form: ContiguousStreams | XLNetStreams, length: int, rows: int, seed: int = 0
) -> list[list[Row]]:
    framing = XLNET if isinstance(form, XLNetStreams) else BERT
    return list(Loader(corpus, form, length, framing=framing, seed=seed, batch_rows=rows, epochs=1))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.booleans())
def test_a_line_reads_like_one_array(data: st.DataObject, eod: bool) -> None:
    corpus = random_corpus(data.draw(st.integers(0, 2**40)), 6)
    line, whole = TokenLine(corpus, EOD if eod else None), whole_line(corpus, eod)
    assert line.length == len(whole)
    start = data.draw(st.integers(0, line.length))
    stop = data.draw(st.integers(start, line.length))
    stretch = line.read(start, stop)
    assert np.array_equal(stretch.ids, whole[start:stop])
    everything = line.read(0, line.length)
    assert np.array_equal(stretch.sentences, everything.sentences[start:stop])
    assert everything.sentences.sum() == sum(len(document.sentences) for document in corpus.documents)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_backwards(data: st.DataObject) -> None:
    """The same tokens in reverse; sentences begin where, forwards, the next one begins."""
    corpus = random_corpus(data.draw(st.integers(0, 2**40)), 4)
    line = TokenLine(corpus, None)
    stream = Stream(line, 7, line.length - 11, backwards=True)
    ids = whole_line(corpus, False)[7 : line.length - 4][::-1]
    begins = line.read(0, line.length).sentences
    begin = data.draw(st.integers(0, stream.length - 1))
    end = data.draw(st.integers(begin, stream.length))
    found = stream.read(begin, end)
    assert np.array_equal(found.ids, ids[begin:end])
    stop = stream.start + stream.length
    assert found.sentences.tolist() == [j == 0 or bool(begins[stop - j]) for j in range(begin, end)]


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("separator", [False, True])
def test_windows_continue_each_other(variable: bool, separator: bool) -> None:
    corpus = random_corpus(0, 30)
    form = ContiguousStreams(variable=variable, separator=separator)
    batches = epoch(corpus, form, 16, rows=4)
    whole = whole_line(corpus, separator)
    length = len(whole) // 4
    for stream in range(4):
        rows = [batch[stream] for batch in batches]
        for row, following in zip(rows, rows[1:], strict=False):
            assert row.ids[-1] == following.ids[0]
            assert following.labels["continues"] == 1
        assert rows[0].labels["continues"] == 0
        inputs = np.concatenate([row.ids[:-1] for row in rows])
        assert np.array_equal(inputs, whole[stream * length : (stream + 1) * length - 1])
    for batch in batches:
        assert len({len(row) for row in batch}) == 1
    lengths = [len(batch[0]) - 1 for batch in batches]
    if variable:
        assert len(set(lengths)) > 3 and max(lengths) <= 16 + 15 and min(lengths[:-1]) >= 5
    else:
        assert set(lengths[:-1]) == {16} and lengths[-1] <= 16


def test_next_epoch_starts_afresh() -> None:
    corpus = random_corpus(0, 10)
    form = ContiguousStreams()
    count = len(epoch(corpus, form, 32, rows=2))
    loader = iter(Loader(corpus, form, 32, framing=BERT, seed=0, batch_rows=2))
    first, *_, again = (next(loader) for _ in range(count + 1))
    assert np.array_equal(first[0].ids, again[0].ids) and again[0].labels["continues"] == 0
    assert again[0].key[0] == 1 and again[0].number == 2 * count
    loader.close()


def test_xlnet_rows() -> None:
    corpus = numbered_corpus(np.random.default_rng(0).integers(2, 15, (40, 20)).tolist())
    form = XLNetStreams(reuse=32)
    batches = epoch(corpus, form, 64, rows=4)
    follows = []
    for batch in batches:
        for stream, row in enumerate(batch):
            assert len(row) == 64
            assert np.flatnonzero(row.special).tolist()[-2:] == [62, 63] and row.special.sum() == 3
            assert row.ids[-1] == CLS and row.segments[-1] == 2 and (row.segments[:32] == 0).all()
            assert (np.diff(row.segments.astype(int)) >= 0).all()
            assert row.labels["backwards"] == stream % 2
            follows.append(not row.labels["next_sentence"])
            a, b = np.flatnonzero(row.ids == SEP)
            step = -1 if row.labels["backwards"] else 1
            text = np.concatenate([row.ids[:a], row.ids[a + 1 : b]])
            jumps = np.diff(text[text != EOD])
            apart = a - 1 - (row.ids[:a] == EOD).sum()
            assert (np.delete(jumps, apart) == step).all()
            if follows[-1]:
                # A may have lost its end, so B begins where A ends or later.
                assert jumps[apart] * step >= 1
    assert abs(np.mean(follows) - 0.5) < 0.15
    for batch, following in zip(batches, batches[1:], strict=False):
        for row, other in zip(batch, following, strict=True):
            begin = np.flatnonzero(row.ids == SEP)[0]
            shared = min(int(begin) - 32, 32)
            assert np.array_equal(
                row.ids[32 : 32 + shared], other.ids[:shared]
            )  # the window advances by the reused part


@pytest.mark.parametrize("length", [6, 7, 8, 9, 64])
@pytest.mark.parametrize("reuse", [0, 60, 64])
def test_the_reuse_that_a_refusal_names_is_accepted(length: int, reuse: int) -> None:
    with pytest.raises(ConfigError, match=f"^rows of {length} tokens cannot reuse {reuse}") as refused:
        XLNetStreams(reuse=reuse).check(length)
    XLNetStreams(reuse=int(str(refused.value).rsplit(maxsplit=1)[-1])).check(length)


def test_a_row_too_short_for_any_reuse_is_told_its_length() -> None:
    with pytest.raises(ConfigError, match=r"^row length 5 leaves no room .* choose at least 6$"):
        XLNetStreams(reuse=1).check(5)


def test_streams_that_cannot_be() -> None:
    corpus = numbered_corpus([[10] * 20])
    line = TokenLine(corpus, EOD)
    with pytest.raises(ConfigError, match="even number"):
        parallel_streams(line, 3, XLNetStreams(reuse=16), 32)
    with pytest.raises(DataError, match="shorter than one window"):
        parallel_streams(line, 32, XLNetStreams(reuse=16), 32)
    with pytest.raises(ConfigError, match="no end-of-document token"):
        TokenLine.of(corpus, Framing(cls=CLS, sep=SEP), separator=True)
    assert ORDINARY > EOD
