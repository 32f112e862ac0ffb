"""Data sets of the Hugging Face Hub as sources of text and as labelled data, against a stand-in of the Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from encoderlab.corpus.build import BuildSettings, NewTokenizer, build_corpus
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.sources import Reading
from encoderlab.errors import DataError
from encoderlab.storage import places, streams
from tests.hub import TOKEN, Hub, hub_of_this_process
from tests.storage.conftest import _forget
from tests.tasks.runs.test_elsewhere import results
from tests.tasks.tiny import model
from tests.terminal import answer, messages

COLOURS = ("red", "blue")
TEXT, LABELLED = "hf://datasets/lab/wiki", "hf://datasets/lab/reviews"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The stand-in with a data set of text in Parquet and one of labels in JSON lines."""
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "home"))
    text, labelled = tmp_path / "wiki", tmp_path / "reviews"
    for folder in (text / "data", labelled):
        folder.mkdir(parents=True)
        (folder / "README.md").write_text("---\n---\n# the card\n")
        (folder / ".gitattributes").write_text("*.parquet filter=lfs\n")
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        rows = [f"An article about number {number} of {name}." for number in range(300)]
        table = arrow.table({"id": [str(number) for number in range(300)], "title": ["a"] * 300, "article": rows})
        parquet.write_table(table, text / f"data/{name}.parquet")
    for split, count in (("train", 60), ("validation", 20), ("test", 20)):
        lines = [{"sentence": f"the {COLOURS[i % 2]} cat {i}", "label": COLOURS[i % 2], "idx": i} for i in range(count)]
        (labelled / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with hub_of_this_process(monkeypatch, tmp_path) as found:
        _forget()
        found.add("datasets/lab/wiki", text)
        found.add("datasets/lab/reviews", labelled)
        yield found
    _forget()


def corpus_of(source: str, out: Path) -> dict[str, bytes]:
    made = build_corpus(BuildSettings(sources=(source,), tokenizer=NewTokenizer(vocab_size=120)), out)
    assert {item.field for item in made.sources} == {"article"}
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*.safetensors"))}


def test_a_corpus_is_made_of_the_training_split(hub: Hub, tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", "encoderlab")
    there = corpus_of(TEXT, tmp_path / "there")
    assert there == corpus_of(str(tmp_path / "wiki/data/train-*.parquet"), tmp_path / "here")
    assert there == corpus_of(f"{TEXT}@main/data/train-*.parquet", tmp_path / "pattern")
    assert f"{TEXT}: the training split is read, 2 of 3 files" in caplog.text and "passed over" not in caplog.text
    assert not any("README" in line or "test-" in line for line in hub.asked if "/resolve/" in line)


def test_a_revision_is_read_and_no_byte_twice(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(streams, "BLOCK", 1000)
    (tmp_path / "reviews/train.jsonl").write_text('{"text": "later"}\n')
    before = hub.repositories["datasets/lab/reviews"].revisions["main"]
    hub.add("datasets/lab/reviews", tmp_path / "reviews")
    assert [source.name for source in find_sources([LABELLED], Reading())] == [f"{LABELLED}/train.jsonl"]
    hub.sent = 0
    with streams.open_file(f"{LABELLED}@{before}/train.jsonl") as file:
        text = file.read()
    assert text.count(b"\n") == 60 and hub.sent == len(text)


def test_a_file_that_changes_while_it_is_read_is_named(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(streams, "BLOCK", 1000)
    with streams.open_file(f"{LABELLED}/train.jsonl") as file:
        file.read(10)
        (tmp_path / "reviews/train.jsonl").write_text(f"{'x' * 99}\n" * 60)
        hub.add("datasets/lab/reviews", tmp_path / "reviews")
        with pytest.raises(DataError, match="has changed while it was read"):
            file.read()


def test_labelled_data_has_the_results_of_files_on_disk(hub: Hub, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("ENCODERLAB_KERNELS", "off")  # no compiler for this cache folder
    model().save(tmp_path / "tiny")
    for place, out in ((LABELLED, "there"), (tmp_path / "reviews", "here")):
        words = ("finetune", place, "--model", tmp_path / "tiny", "--out", tmp_path / out)
        _, said = answer(capsys, *words, "--seeds", 1, "--epochs", 1)
        assert "text = 'sentence', label = 'label'; splits test, train, validation" in said
    assert results(tmp_path / "there").keys() == results(tmp_path / "here").keys()
    scores = [json.loads((tmp_path / out / "score.json").read_text())["scores"] for out in ("there", "here")]
    assert scores[0] == scores[1] and scores[0].keys() >= {"dev", "test"}
    run = "runs/seed-1/model/model.safetensors"
    assert (tmp_path / "there" / run).read_bytes() == (tmp_path / "here" / run).read_bytes()


@pytest.mark.parametrize("verb", ["corpus", "finetune"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lab/nothing", "the Hub has no such data set or model, or it is private; check the name, or log in with: hf"),
        ("lab/private", "the Hub has no such data set or model, or it is private; check the name, or log in with: hf"),
        ("lab/gated", "is gated; accept its terms on its page, then log in with: hf auth login (or set HF_TOKEN)"),
        ("lab/wiki@v9", "the Hub has no such revision; give a branch, a tag or a commit after the @"),
        ("lab/wiki/train.jsonl", "no such file or folder; check the URL"),
        ("wiki", "is not a name of the Hub; give one such as hf://datasets/org/name"),
        ("lab/wi ki", "is not a name of the Hub; give one such as hf://datasets/org/name"),
    ],
)
def test_what_cannot_be_read_is_one_line(hub: Hub, tmp_path: Path, capsys, verb: str, name: str, said: str) -> None:
    model().save(tmp_path / "tiny")
    hub.add("datasets/lab/private", tmp_path / "reviews", private=True)
    hub.add("datasets/lab/gated", tmp_path / "reviews", gated=True)
    assert_refused(capsys, tmp_path, verb, f"hf://datasets/{name}", said)


@pytest.mark.parametrize("verb", ["corpus", "finetune"])
def test_no_network_is_one_line(hub: Hub, tmp_path: Path, capsys, monkeypatch, verb: str) -> None:
    from huggingface_hub import constants

    model().save(tmp_path / "tiny")
    hub.status = 503
    assert_refused(capsys, tmp_path, verb, TEXT, "the connection failed 8 times (HfHubHTTPError")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert_refused(capsys, tmp_path, verb, TEXT, "the connection failed 8 times (ConnectError")
    monkeypatch.setattr(constants, "is_offline_mode", lambda: True)
    assert_refused(
        capsys, tmp_path, verb, TEXT, "HF_HUB_OFFLINE forbids fetching it; unset that, or give files on disk"
    )


def assert_refused(capsys, folder: Path, verb: str, url: str, said: str) -> None:
    _forget()
    words = ["corpus", "build", url] if verb == "corpus" else ["finetune", url, "--model", folder / "tiny"]
    line = messages(capsys, 3, *words, "--out", folder / "out")
    assert f"error: {url}" in line and said in line and line.count("error:") == 1
    assert not (folder / "out").exists()


def test_a_token_opens_a_private_data_set(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    hub.add("datasets/lab/private", tmp_path / "reviews", private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert places.read_bytes("hf://datasets/lab/private/train.jsonl") == (tmp_path / "reviews/train.jsonl").read_bytes()
