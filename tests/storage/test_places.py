"""Places at URLs: names, refusals and credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoderlab import cli
from encoderlab.errors import ConfigError, DataError
from encoderlab.records.dataset import labelled_files
from encoderlab.storage import cache, mirror, places, streams
from encoderlab.storage.mirror import Mirror, written_folder
from encoderlab.storage.places import url_of
from tests.storage.filled import tree_of


@pytest.mark.parametrize(
    "place, url",
    [
        ("s3://b/k", "s3://b/k"),
        (Path("s3://b/k"), "s3://b/k"),
        (Path("hf://datasets/a/b") / "c.jsonl", "hf://datasets/a/b/c.jsonl"),
        ("https://host/a?b=c", "https://host/a?b=c"),
        ("python:stdlib", None),
        ("a/s3:/b", None),
        ("C:/data", None),
    ],
)
def test_a_url_survives_as_a_path(place, url):
    assert url_of(place) == url


def test_what_cannot_work_is_one_line(s3, monkeypatch):
    with pytest.raises(DataError, match=r"s3://no-such-bucket-here/a.txt: no such bucket"):
        streams.open_file("s3://no-such-bucket-here/a.txt")
    with pytest.raises(DataError, match="no such file or folder"):
        streams.open_file(f"{s3.bucket}/missing.txt")
    with pytest.raises(ConfigError, match="https can only be read"), written_folder("https://host/run"):
        pass
    with pytest.raises(ConfigError, match="sftp is not supported; mount the folder"):
        streams.open_file("sftp://host/a.txt")
    s3.failing, s3.draw.choice = 1.0, lambda kinds: "closed"
    monkeypatch.setattr(places, "ATTEMPTS", 3)
    with pytest.raises(DataError, match="the connection failed 3 times"):
        streams.open_file(f"{s3.bucket}/a.txt")


def test_missing_credentials_are_named(s3, monkeypatch, tmp_path):
    from tests.storage.conftest import _forget

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    _forget()
    with pytest.raises(DataError, match="no credentials .*AWS_ACCESS_KEY_ID"):
        streams.open_file(f"{s3.bucket}/a.txt")


def test_objects_that_mark_folders_are_no_files(s3):
    """As the web pages of S3 make them."""
    url = f"{s3.bucket}/runs/marked"
    system, path = places.file_system(url)
    bucket, _, key = path.partition("/")
    for name in ("", "sub/"):
        system.call_s3("put_object", Bucket=bucket, Key=f"{key}/{name}", Body=b"")
    places.write_bytes(f"{url}/sub/a.txt", b"a")
    assert places.find(url) == [f"{url}/sub/a.txt"]
    assert (cache.local(url) / "sub" / "a.txt").read_text() == "a"
    with written_folder(url) as folder:
        assert tree_of(folder) == {"sub/a.txt": b"a"}


def test_no_name_leads_out_of_the_folder_on_disk(s3, tmp_path):
    url, there = f"{s3.bucket}/runs/evil", tmp_path / "outside.txt"
    system, path = places.file_system(url)
    bucket, _, key = path.partition("/")
    system.call_s3("put_object", Bucket=bucket, Key=f"{key}/{there}", Body=b"overwritten")  # two slashes in a row
    for read in (cache.local, Mirror(mirror.working_place(url), url)._download):
        with pytest.raises(DataError, match="two slashes in a row .*; rename it"):
            read({} if read != cache.local else url)
    assert not there.exists()


def test_file_urls_are_paths_and_unknown_protocols_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["encode", "small-en", "A text.", "--out", f"file://{tmp_path}/a.npy"]) == 0
    assert (tmp_path / "a.npy").exists() and not Path("file:").exists()
    assert cli.main(["encode", "small-en", "A text.", "--out", "dropbox://folder/a.npy"]) == 2
    assert "dropbox is not supported" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_a_server_that_does_not_answer_is_no_missing_file(monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(places, "ATTEMPTS", 2)
    with pytest.raises(DataError, match="the connection failed 2 times"):
        places.look("https://localhost:9/a.txt")


def test_data_files_are_named_by_their_split(tmp_path):
    for name in ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-0.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = labelled_files(tmp_path)
    assert {split: len(files) for split, files in found.items()} == {"train": 2, "test": 1}
    (tmp_path / "data" / "more.parquet").write_bytes(b"")
    assert labelled_files(tmp_path) == {}  # a file whose name says no split


def test_the_name_of_a_folder_says_no_split_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "my-test-data"
    folder.mkdir()
    for name in ("train.csv", "extra.csv"):
        (folder / name).write_text("text,label\n")
    assert labelled_files(folder) == {}
    (folder / "extra.csv").unlink()
    assert labelled_files(folder) == {"train": [folder / "train.csv"]}
