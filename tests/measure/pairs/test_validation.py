"""Minimal pairs as a measure of validation."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data import topics

import pytest

from encoderlab.cli import main
from encoderlab.interchange.load import load_pair
from encoderlab.measure.pairs.evaluate import evaluate_pairs
from encoderlab.measure.pairs.reading import read, sample
from encoderlab.measure.pairs.scorers import scorers_of
from tests.corpus.corpora import build_topics


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("validation")
    build_topics(folder, 12)
    words = topics.topics["assert"].split()
    lines = [" ".join(part) for n in range(20) for part in (words[n : n + 4], words[n : n + 4][::-1])]
    (folder / "pairs.txt").write_text("\n".join(lines))
    return folder


def train(place: Path, name: str, *words: str) -> int:
    small = ["--steps", "2", "--set", "phases=[{length: 64, rows: 4}]", "--set", "evaluation.rows=4"]
    data = ["--corpus", str(place / "corpus"), "--out", str(place / name)]
    return main(["pretrain", name, *small, *data, *words])


@pytest.mark.parametrize("name", ["bert-tiny", "electra-tiny", "transformer-xl-tiny"])
def test_the_curves_show_the_accuracy_of_a_sample(place: Path, name: str) -> None:
    sampled = ["--set", f"evaluation.pairs={{data: [{place / 'pairs.txt'}], size: 9}}", "--set", "evaluation.every=1"]
    assert train(place, name, *sampled) == 0
    lines = [json.loads(line) for line in (place / name / "metrics.jsonl").open()]
    scores = [line["scores"]["minimal_pairs"] for line in lines if line["split"] == "valid"]
    model, generator = load_pair(place / name)
    pairs = sample(list(read(place / "pairs.txt")), 9)
    assert model.tokenizer is not None
    (table,) = evaluate_pairs(scorers_of(model, generator, official=True), model.tokenizer, pairs).values()
    assert len(scores) == 3 and scores[-1] == table.total.accuracy, "before the first step too"


def test_bad_pairs_are_refused_before_the_first_step(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "odd.txt").write_text("one\n")
    assert train(place, "roberta-tiny", "--set", f"evaluation.pairs={{data: [{place / 'odd.txt'}]}}") == 3
    assert "odd.txt:1: the second sentence" in capsys.readouterr().err and not (place / "roberta-tiny").exists()
    (place / "odd.txt").write_text("word " * 600 + "\nword\n")
    assert train(place, "roberta-tiny", "--set", f"evaluation.pairs={{data: [{place / 'odd.txt'}]}}") == 3
    error = capsys.readouterr().err
    assert "odd.txt:1: a sentence of" in error and error.rstrip().endswith("; remove the pair")  # no flag leaves it out
    assert train(place, "roberta-tiny", "--set", "evaluation.pairs={data: []}") == 2
    assert "evaluation.pairs.data is []; give at least 1 entry" in capsys.readouterr().err


def test_a_run_is_not_continued_with_other_pairs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its curve, and the choice of its best weights, would be of two files."""
    pairs = place / "changing.txt"
    pairs.write_text((place / "pairs.txt").read_text())
    sampled = ["--set", f"evaluation.pairs={{data: [{pairs}], size: 9}}"]
    assert train(place, "distilbert-tiny", "--set", "objective={kind: mlm}", *sampled) == 0
    assert train(place, "distilbert-tiny", "--set", "objective={kind: mlm}", *sampled) == 0
    pairs.write_text("word one\none word\n" * 9)
    assert train(place, "distilbert-tiny", "--set", "objective={kind: mlm}", *sampled) == 2
    assert "has a run of another recipe (data pairs was" in capsys.readouterr().err
    provenance = place / "distilbert-tiny" / "provenance.json"
    record = json.loads(provenance.read_text())
    del record["sessions"][0]["data"]["pairs"]  # as before this hash was recorded
    provenance.write_text(json.dumps(record))
    assert train(place, "distilbert-tiny", "--set", "objective={kind: mlm}", *sampled) == 0
