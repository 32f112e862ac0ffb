"""Labelled data by name: a file, a folder with a file per split, a benchmark, a suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoderlab import cli
from encoderlab.errors import ConfigError, DataError
from encoderlab.tasks.data.infer import Given
from encoderlab.tasks.data.sources import Benchmark, Files, described_source, source_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reviews").mkdir()
    for split, count in (("train", 4), ("valid", 3)):
        rows = [json.dumps({"text": f"{split} {i}", "label": ("neg", "pos")[i % 2]}) for i in range(count)]
        (tmp_path / f"reviews/{split}.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path / "reviews"


def test_a_folder_has_splits_and_a_file_is_any(folder: Path) -> None:
    source = source_of(str(folder), None)
    assert isinstance(source, Files) and source.of("dev") == [folder / "valid.jsonl"] and not source.find("test")
    task, said = source.task(Given(), "dev")
    assert task.name == "reviews" and said.startswith("reviews: classification") and "splits train, validation" in said
    assert len(source.read(task, "dev")) == 3 and len(source.read(task, "train")) == 4
    with pytest.raises(DataError, match="has the splits train, validation and no test; name one with --split"):
        source.of("test")
    alone = source_of(str(folder / "train.jsonl"), None)
    assert isinstance(alone, Files) and alone.of("test") == alone.of("dev") == [folder / "train.jsonl"]
    assert alone.task(Given(), "dev")[0].name == "train" and not alone.find("dev")


def test_a_benchmark_lies_in_a_folder_and_a_suite_has_several(tmp_path: Path) -> None:
    source = source_of("SST-2", tmp_path)
    assert isinstance(source, Benchmark) and source.task.name == "sst2"
    suite = source_of("glue", tmp_path)
    assert isinstance(suite, Benchmark) and len(suite.tasks) == 9
    with pytest.raises(ConfigError, match="glue is a suite; give one of cola, sst2"):
        _ = suite.task


@pytest.mark.parametrize(
    ("name", "data", "given", "message"),
    [
        ("./reviews", ".", Given(), "is a folder; give a file in it, or the name of a benchmark with --data ./reviews"),
        ("none.csv", None, Given(), "none.csv: no such file; give labelled data, or the name of a benchmark"),
        ("ss2", None, Given(), "unknown task 'ss2'; did you mean 'sst2'"),
        ("sst2", None, Given(), "sst2 is a benchmark; give the folder of its files with --data"),
        ("sst2", ".", Given(text="x"), "sst2 is a benchmark with known files and columns; leave out options for files"),
        ("reviews/train.jsonl", ".", Given(), "is a file, but --data . is for benchmarks; leave one of them out"),
    ],
)
def test_what_does_not_go_together_is_refused(
    name: str, data: str | None, given: Given, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ConfigError) as caught:
        described_source(name, None if data is None else Path(data), given)
    assert message in str(caught.value)


def test_predictions_are_scored_against_a_split(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "labels.txt").write_text("neg\npos\npos\n")
    assert cli.main(["score", str(folder.parent / "labels.txt"), str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "reviews" and found["examples"] == 3 and found["scores"]["accuracy"] == pytest.approx(2 / 3)
