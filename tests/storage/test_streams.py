"""Files at URLs, read and written as streams over a connection that fails."""

from __future__ import annotations

import hashlib
import json
import random

import pytest

from encoderlab.corpus import blocks
from encoderlab.corpus.documents import parse_block
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.pieces import read_work
from encoderlab.corpus.sources import Reading
from encoderlab.corpus.stretches import divide
from encoderlab.errors import DataError
from encoderlab.storage import cache, places, streams
from encoderlab.storage.mirror import written_file


def test_a_store_that_falls_silent_is_asked_again(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "SILENCE", 0.7)
    places._file_system.cache_clear()
    s3.kinds, s3.failing = ("silent",), 0.25
    for number in range(8):
        places.write_bytes(f"{s3.bucket}/silent/{number}", bytes([number]) * 1000)
        assert cache.file(f"{s3.bucket}/silent/{number}").read_bytes() == bytes([number]) * 1000
    assert s3.happened["silent"] > 1
    s3.failing = 0.0
    places._file_system.cache_clear()


def test_a_file_that_changes_while_it_is_read_is_named(s3, monkeypatch):
    monkeypatch.setattr(streams, "BLOCK", 1000)
    url = f"{s3.bucket}/a.txt"
    places.write_bytes(url, bytes(10_000))
    with streams.open_file(url) as file:
        file.read(10)
        places.write_bytes(url, b"1" * 10_000)
        with pytest.raises(DataError, match="has changed while it was read"):
            file.read()


def test_a_file_appears_at_its_end_or_not_at_all(s3):
    url = f"{s3.bucket}/found.jsonl"
    with pytest.raises(RuntimeError), written_file(url) as path:
        path.write_text("half")
        raise RuntimeError
    assert not places.exists(url)
    with written_file(url) as path:
        path.write_text("whole")
    assert places.read_bytes(url) == b"whole"


def test_bytes_are_hashed_as_they_pass(s3, monkeypatch):
    url, data = f"{s3.bucket}/a.bin", random.Random(2).randbytes(300_000)
    places.write_bytes(url, data)
    monkeypatch.setattr(streams, "BLOCK", 10_000)
    with streams.open_file(url) as file:
        assert file.read() == data
    before = s3.happened.total()
    assert streams.sha256(url) == hashlib.sha256(data).hexdigest()
    assert s3.happened.total() == before  # nothing was read again


def test_who_reads_a_beginning_requests_nothing_ahead(s3, monkeypatch):
    """A look at each source before a build must not cost four requests of each."""
    places.write_bytes(f"{s3.bucket}/big", bytes(range(256)) * 400)
    monkeypatch.setattr(streams, "BLOCK", 10_000)
    fetched: list[int] = []
    real = streams.RemoteFile._fetch
    monkeypatch.setattr(streams.RemoteFile, "_fetch", lambda file, n: fetched.append(n) or real(file, n))
    with streams.open_file(f"{s3.bucket}/big") as file:
        assert [len(file.read(2_500)) for _ in range(4)] == [2_500] * 4
        assert fetched == [0]
        file.read(2_500)
    assert sorted(fetched) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_stretch_of_a_file_at_a_url_requests_little_else(s3, tmp_path, monkeypatch, kind):
    """Of JSON lines its range and a little before it; of Parquet its row groups and the table of contents."""
    draw = random.Random(3)
    texts = [f"{number} " + draw.randbytes(1000).hex() for number in range(1600)]  # 3.2 MB
    local, url = tmp_path / f"a.{kind}", f"{s3.bucket}/a.{kind}"
    if kind == "jsonl":
        local.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(
            pyarrow.table({"text": texts}), local, row_group_size=100, compression="none", use_dictionary=False
        )
    places.upload(local, url)
    for name, value in {"BLOCK": 40_000, "RANGE": 400_000, "_LOOK": 4000}.items():
        monkeypatch.setattr(blocks, name, value)
    monkeypatch.setattr(streams, "BLOCK", 40_000)
    requested: list[int] = []
    real = streams.RemoteFile._fetch

    def fetch(file: streams.RemoteFile, number: int) -> bytes:
        requested.append(number)
        return real(file, number)

    monkeypatch.setattr(streams.RemoteFile, "_fetch", fetch)
    sources = find_sources([url], Reading())
    assert len({*requested}) < 10  # not far beyond the beginning, or the end
    stretches = divide(sources)
    assert len(stretches) >= 8  # of ten blocks
    found = []
    for stretch in stretches:
        requested.clear()
        for work in read_work(sources, [stretch]):
            found += [document for _, block in work.blocks for document in parse_block(block, Reading())[0]]
        assert len({*requested}) <= {"jsonl": 12, "parquet": 16}[kind], (stretch, sorted(requested))
    assert found == [[text] for text in texts]
