"""Statistics of rows and masks against those of the original builders on the same documents (golden data_builders).

All rows of one pass share the documents and, per document, the target length, so the spread over seeds is compared, not
the standard error over rows: the means may differ by 5 standard errors, of which one seed's spread is taken from ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoderlab.batches.corrupt import Corruptor, Masking, NGrams, Tokens, Words
from encoderlab.batches.pack import ElectraSegments, RowFormat, SegmentPairs
from encoderlab.batches.rows import Framing, Row
from encoderlab.seeds import generator
from tests.batches.memory_corpus import MemoryCorpus, golden_statistics, reference_corpus

PLAN_SEEDS, MASK_SEEDS = range(6), range(2)


@pytest.fixture(scope="module")
def reference(shared: Path) -> tuple[MemoryCorpus, Framing, int]:
    return reference_corpus(shared)


def planned(
    reference: tuple[MemoryCorpus, Framing, int], form: RowFormat, length: int, seed: int, passes: int
) -> list[Row]:
    corpus, framing, _ = reference
    rows = []
    for epoch in range(passes):
        documents = generator(seed, "documents", epoch).permutation(corpus.num_documents)
        plan = form.plan(corpus, documents, generator(seed, "plan", epoch), framing, length)
        rows += plan.rows(np.arange(len(plan)), corpus, framing, (epoch, 0))
    return rows


def compare(golden: dict[str, Any], ours: list[dict[str, float]], slack: float = 0.0) -> None:
    """Means over seeds agree; ``slack`` is a share of the value that is allowed beside the spread."""
    for name in ours[0]:
        theirs = [value["mean"] if isinstance(value := record[name], dict) else value for record in golden.values()]
        values = [record[name] for record in ours]
        spread = max(np.std(values, ddof=1), np.std(theirs))
        tolerance = 5 * spread * np.sqrt(1 / len(values) + 1 / len(theirs)) + slack * abs(np.mean(theirs))
        difference = abs(np.mean(values) - np.mean(theirs))
        assert difference <= tolerance, (name, np.mean(values), np.mean(theirs), tolerance)


def pair_statistics(rows: list[Row], length: int) -> dict[str, float]:
    sizes = np.array([len(row) for row in rows])
    return {
        "instances": len(rows),
        "tokens": sizes.sum(),
        "length": sizes.mean(),
        "share_full_length": (sizes == length).mean(),
        "share_shorter_than_90_percent": (sizes < 0.9 * length).mean(),
        "segment_A_share_of_tokens": np.mean([(row.segments == 0).mean() for row in rows]),
        "share_random_next (sentence label 1)": np.mean([next(iter(row.labels.values())) for row in rows]),
    }


BERT_CASES = [
    "max_seq_length=128,whole_word=False",
    "max_seq_length=128,whole_word=True",
    "max_seq_length=64,whole_word=False",
]
ALBERT_CASES = [f"max_seq_length=128,whole_word=True,ngram=3,random_next_sentence={value}" for value in (False, True)]


@pytest.mark.parametrize(
    "source, case",
    [("bert", BERT_CASES[0]), ("bert", BERT_CASES[2]), *(("albert", case) for case in ALBERT_CASES)],
)
def test_pairs(reference: tuple[MemoryCorpus, Framing, int], shared: Path, source: str, case: str) -> None:
    golden = golden_statistics(shared, f"{source}_create_pretraining_data")[case]
    settings = golden["settings"]
    relation = "next" if settings.get("random_next_sentence", True) else "order"
    form, length = SegmentPairs(relation=relation), settings["max_seq_length"]
    rows = [planned(reference, form, length, seed, settings["dupe_factor"]) for seed in PLAN_SEEDS]
    compare(golden["per_seed"], [pair_statistics(made, length) for made in rows])


def masked(
    reference: tuple[MemoryCorpus, Framing, int], rows: list[Row], masking: Masking, seed: int
) -> dict[str, Any]:
    corpus, _, mask = reference
    corruptor = Corruptor(masking, vocab_size=corpus.vocab_size, mask_id=mask)
    shown, kept, changed, pieces, runs, relative, distinct = 0, 0, 0, 0, np.zeros(20), [], 0
    draws = []
    for row, hidden in zip(rows, corruptor(rows, seed), strict=True):
        places = np.unique(hidden.positions)
        draws.append(len(hidden.positions))
        distinct += len(places)
        now, before = hidden.ids[places], row.ids[places]
        shown += (now == mask).sum()
        kept += (now == before).sum()
        changed += ((now != mask) & (now != before)).sum()
        pieces += (~row.word_starts[places]).sum()
        ends = np.flatnonzero(np.diff(places, append=10**6) > 1)
        runs += np.bincount(np.minimum(np.diff(ends, prepend=-1), 19), minlength=20)
        relative.append(places / len(row))
        assert not row.special[places].any()
        outside = np.ones(len(row), bool)
        outside[places] = False
        assert np.array_equal(hidden.ids[outside], row.ids[outside])
    sizes = np.array([len(row) for row in rows])
    return {
        "masked_fraction_of_all_tokens": sum(draws) / sizes.sum(),
        "masked_fraction_per_instance": np.mean(np.array(draws) / sizes),
        "share_MASK": shown / distinct,
        "share_unchanged": kept / distinct,
        "share_random": changed / distinct,
        "share_subword_pieces_among_masked": pieces / distinct,
        "relative_position_of_masks": np.concatenate(relative).mean(),
        "runs": runs / runs.sum(),
        "distinct": distinct,
        "draws": sum(draws),
    }


MASKS: list[tuple[str, str, Callable[[int], Masking]]] = [
    ("bert", BERT_CASES[0], lambda most: Masking(most=most, random_from="all")),
    ("bert", BERT_CASES[1], lambda most: Masking(unit=Words(), most=most, random_from="all")),
    ("albert", ALBERT_CASES[1], lambda most: Masking(unit=NGrams(), most=most, random_from="all")),
]


@pytest.mark.parametrize("source, case, masking", MASKS)
def test_masks(
    reference: tuple[MemoryCorpus, Framing, int],
    shared: Path,
    source: str,
    case: str,
    masking: Callable[[int], Masking],
) -> None:
    golden = golden_statistics(shared, f"{source}_create_pretraining_data")[case]
    settings = golden["settings"]
    form, length = SegmentPairs(), settings["max_seq_length"]
    rule = masking(settings["max_predictions_per_seq"])
    ours = [masked(reference, planned(reference, form, length, seed, 6), rule, seed) for seed in MASK_SEEDS]
    runs = np.mean([record.pop("runs") for record in ours], axis=0)
    assert not any(record.pop("distinct") != record.pop("draws") for record in ours)
    compare(golden["per_seed"], ours, slack=0.03)
    theirs = np.zeros(20)
    for record in golden["per_seed"].values():
        for length, count in record["masked_run_lengths"].items():
            theirs[min(int(length), 19)] += count
    assert np.abs(runs - theirs / theirs.sum()).max() < 0.01


@pytest.mark.parametrize("length", [128, 64])
def test_electra(reference: tuple[MemoryCorpus, Framing, int], shared: Path, length: int) -> None:
    golden = golden_statistics(shared, "electra_example_builder_and_mask")[f"max_seq_length={length}"]
    form = ElectraSegments()
    ours = []
    masking = Masking(unit=Tokens(replacement=True), mask=0.85, random=0.0, most=int(0.155 * length))
    for seed in PLAN_SEEDS[:5]:
        rows = planned(reference, form, length, seed, golden["settings"]["passes_over_text"])
        sizes = np.array([len(row) for row in rows])
        two = [row for row in rows if (row.segments == 1).any()]
        first = np.array([(row.segments == 0).sum() for row in two])
        ours.append(
            {
                "examples": len(rows),
                "tokens": sizes.sum(),
                "length": sizes.mean(),
                "share_full_length": (sizes == length).mean(),
                "share_two_segments": len(two) / len(rows),
                "first_segment_length_when_two": first.mean(),
                "first_segment_share_when_two": (first / np.array([len(row) for row in two])).mean(),
            }
        )
    compare(golden["per_seed"], ours)
    record = masked(reference, rows, masking, 0)
    theirs = next(iter(golden["per_seed"].values()))
    assert abs(record["masked_fraction_of_all_tokens"] - theirs["draws_fraction_of_tokens"]) < 1e-3
    assert abs(1 - record["distinct"] / record["draws"] - theirs["duplicate_draw_share"]) < 0.005
    assert abs(record["share_MASK"] - theirs["share_of_distinct_positions_showing_MASK"]) < 0.01
