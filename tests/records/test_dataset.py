"""Folders of Hugging Face's ``datasets`` (``save_to_disk``) as tasks and as text of a corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from encoderlab.commands.finetune_stages import jobs_of
from encoderlab.corpus.blocks import read_blocks
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.sources import Reading
from encoderlab.errors import DataError
from encoderlab.records.dataset import dataset_files, is_dataset
from encoderlab.tasks.data.infer import Given
from encoderlab.tasks.data.records import columns, records
from encoderlab.tasks.data.task import Remarks

pa = pytest.importorskip("pyarrow")
LABEL = {"names": ["neg", "pos"], "_type": "ClassLabel"}


def save(folder: Path, rows: list[dict[str, Any]], *, shards: int = 1, features: dict[str, Any] | None = None) -> None:
    """What ``Dataset.save_to_disk`` of datasets 4 writes: streams of Arrow with the features in their schema."""
    folder.mkdir(parents=True)
    features = features or {"text": {"dtype": "string", "_type": "Value"}, "label": LABEL}
    table = pa.Table.from_pylist(rows)
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        part = table.slice(i * len(rows) // shards, (i + 1) * len(rows) // shards - i * len(rows) // shards)
        with pa.ipc.new_stream(folder / name, table.schema) as file:
            file.write_table(part, max_chunksize=3)
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names], "_format_type": None, "_split": None})
    )


def rows(count: int) -> list[dict[str, Any]]:
    return [{"text": f"a text, with number {i}", "label": i % 2} for i in range(count)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "reviews"
    for name, count in (("train", 20), ("validation", 7), ("test", 5)):
        save(folder / name, [row | ({"label": -1} if name == "test" else {}) for row in rows(count)], shards=2)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    return folder


def test_its_splits_are_a_task_with_the_names_of_classes(saved: Path) -> None:
    (job,) = jobs_of(str(saved), None, None, None, Given())
    assert (job.task.name, job.task.form, job.task.labels) == ("reviews", "classification", ("neg", "pos"))
    assert {name: len(split) for name, split in job.splits.items()} == {"train": 20, "dev": 7, "test": 5}
    assert [(one.text, one.label) for one in job.splits["train"].examples] == [
        (row["text"], LABEL["names"][row["label"]]) for row in rows(20)
    ]
    assert {one.label for one in job.splits["test"].examples} == {None}
    (job,) = jobs_of(str(saved / "train"), None, None, None, Given())  # a folder of one split
    assert len(job.splits["train"]) + len(job.splits["dev"]) == 20


def test_names_of_classes_may_be_in_its_description_only(saved: Path) -> None:
    for path in saved.rglob("*.arrow"):
        with pa.ipc.open_stream(path.read_bytes()) as opened:
            table = opened.read_all().replace_schema_metadata(None)
        with pa.ipc.new_stream(path, table.schema) as file:
            file.write_table(table)
    (job,) = jobs_of(str(saved), None, None, None, Given())
    assert job.task.labels == ("neg", "pos")
    (saved / "train" / "dataset_info.json").write_text("{")
    with pytest.raises(DataError, match=r"dataset_info\.json"):
        jobs_of(str(saved), None, None, None, Given())


def test_its_texts_are_a_corpus(saved: Path) -> None:
    sources = find_sources([str(saved / "train"), str(saved)], Reading())
    assert [source.path for source in sources[:2]] == dataset_files(saved / "train")["train"]
    assert len(sources) == 6
    texts = [
        json.loads(line) for source in sources[:2] for block in read_blocks(source) for line in block.data.split(b"\n")
    ]
    assert texts == [row["text"] for row in rows(20)]


def test_lists_of_classes_and_files_of_arrow_have_names_too(tmp_path: Path) -> None:
    features = {"tokens": {}, "ner_tags": {"feature": {"names": ["O", "B-X"], "_type": "ClassLabel"}, "_type": "List"}}
    save(tmp_path / "words", [{"tokens": ["a", "b"], "ner_tags": [0, 1]}], features=features)
    (path,) = dataset_files(tmp_path / "words")["train"]
    assert columns(path, Remarks(path)) == ("tokens", "ner_tags")
    assert [record.fields["ner_tags"] for record in records(path)] == [["O", "B-X"]]
    table = pa.table({"text": ["x", "y"]})
    with pa.ipc.new_file(tmp_path / "file.arrow", table.schema) as file:
        file.write_table(table)
    assert [record.fields for record in records(tmp_path / "file.arrow")] == [{"text": "x"}, {"text": "y"}]


@pytest.mark.parametrize("damage", ["cut", "flip", "delete", "state", "splits", "indices"])
def test_a_damaged_dataset_is_named_in_one_line(damage: str, saved: Path) -> None:
    path = dataset_files(saved)["train"][1]
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:700])
    elif damage == "flip":
        path.write_bytes(b"\x7f" + path.read_bytes()[1:])
    elif damage == "delete":
        path.unlink()
    elif damage == "state":
        (saved / "train/state.json").write_text("{}")
    elif damage == "splits":
        (saved / "dataset_dict.json").write_text("[" * 3000)
    else:
        (saved / "train/state.json").write_text(json.dumps({"_indices_files": [{"filename": "indices.arrow"}]}))
    assert is_dataset(saved)
    for read in (
        lambda: jobs_of(str(saved), None, None, None, Given()),
        lambda: [block for source in find_sources([str(saved)], Reading()) for block in read_blocks(source)],
    ):
        with pytest.raises(DataError) as error:
            read()
        assert str(saved) in str(error.value) and "\n" not in str(error.value)
