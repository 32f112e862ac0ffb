"""Corpora and files at URLs, by the verbs."""

from __future__ import annotations

import json

import pytest

from encoderlab import cli
from encoderlab.corpus.build import BuildSettings, build_corpus
from encoderlab.corpus.manifest import verify
from encoderlab.corpus.shards import Corpus
from encoderlab.errors import DataError
from encoderlab.storage import places, streams
from tests.storage.filled import TOKENIZER, put, tensors_of, write_texts


def test_a_corpus_of_sources_at_urls_has_the_same_bytes_over_a_failing_connection(s3, tmp_path, monkeypatch):
    texts = write_texts(tmp_path / "texts")
    put(texts, f"{s3.bucket}/texts")
    monkeypatch.setattr(streams, "BLOCK", 50_000)
    s3.failing = 0.2
    settings = BuildSettings(sources=(f"{s3.bucket}/texts",), tokenizer=TOKENIZER)
    made = build_corpus(settings, tmp_path / "remote")
    s3.failing = 0.0
    assert {"error", "closed", "truncated", "slow"} <= s3.happened.keys()
    plain = build_corpus(BuildSettings(sources=(str(texts),), tokenizer=TOKENIZER), tmp_path / "local")
    assert tensors_of(tmp_path / "remote") == tensors_of(tmp_path / "local")
    assert [item.sha256 for item in made.sources] == [item.sha256 for item in plain.sources]
    assert made.sources[0].name == f"{s3.bucket}/texts/a.txt"


def test_a_corpus_at_a_url_is_read_shard_by_shard_and_checked(s3, tmp_path, caplog):
    corpus = tmp_path / "corpus"
    build_corpus(BuildSettings(sources=(str(write_texts(tmp_path / "texts")),), tokenizer=TOKENIZER), corpus)
    url = f"{s3.bucket}/corpora/one"
    put(corpus, url)
    s3.failing = 0.1
    there, here = Corpus(url), Corpus(corpus)
    assert not list(there.path.rglob("*.safetensors"))  # nothing was asked for yet
    assert [there.document(i).ids.tolist() for i in range(20)] == [here.document(i).ids.tolist() for i in range(20)]
    assert [path.parent.name for path in there.path.rglob("*.safetensors")] == ["train"]
    verify(url)
    s3.failing = 0.0
    shard = next(there.path.rglob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # in the cache: it is fetched again
    verify(url)
    assert shard.read_bytes() == whole and "has changed since it was fetched" in caplog.text
    shard.unlink()
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"x" * here.manifest.splits["train"].shards[0].size)
    places.upload(damaged, f"{url}/train/shard-00000.safetensors")
    places._KNOWN.clear()
    with pytest.raises(DataError, match="the manifest says .*: changed or damaged"):
        Corpus(url).document(0)


def test_verbs_take_urls_for_inputs_and_outputs(s3, tmp_path, capsys):
    put(write_texts(tmp_path / "texts"), f"{s3.bucket}/texts")
    out = f"{s3.bucket}/corpora/new"
    code = cli.main(["corpus", "build", f"{s3.bucket}/texts/*.jsonl", "--out", out, "--vocab-size", "300", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0 and answer["out"] == out
    assert cli.main(["encode", "small-en", "A text.", "--out", f"{s3.bucket}/a.npy"]) == 0
    said = "".join(capsys.readouterr())
    assert f"{s3.bucket}/a.npy" in said and str(tmp_path) not in said
    assert cli.main(["encode", "small-en", "--file", str(tmp_path), "--out", f"{s3.bucket}/b.npy"]) != 0
    assert "storage/work" not in "".join(capsys.readouterr())
    assert cli.main(["corpus", "inspect", out]) == 0
    assert "all hashes verified" in capsys.readouterr().out
    assert cli.main(["corpus", "inspect", f"{s3.bucket}/nothing"]) == 3
    assert "no such file or folder; check the URL" in capsys.readouterr().err


def test_a_file_at_a_url_is_protected_as_one_on_disk_is(s3, tmp_path, capsys):
    pairs = b'{"uid": "a", "sentence_good": "A dog barks.", "sentence_bad": "A dog bark."}\n'
    given = f"{s3.bucket}/pairs.jsonl"
    places.write_bytes(given, pairs)
    places.write_bytes(f"{s3.bucket}/w.npy", b"of somebody else")
    encode, score = ["encode", "small-en", "A text.", "--out"], ["minimal-pairs", "small-en", given, "--out"]
    for command, name, said in (
        (encode, "w.npy", "w.npy: exists and is not a file of vectors; give another --out"),
        (encode, "vectors", "vectors: a file at a URL needs an ending; give a name that ends in .npy"),
        (score, "pairs.jsonl", "pairs.jsonl: is the input; give another --out"),
        (score, "scores", "scores: a file at a URL needs an ending; give a name that ends in .jsonl"),
        (["convert", "small-en"], "model.txt", "its name is that of a file, and a folder was made, which is kept in"),
    ):
        assert cli.main([*command, f"{s3.bucket}/{name}"]) == 2
        assert said in capsys.readouterr().err
    assert cli.main([*score, f"{s3.bucket}/scores.ndjson"]) == 0
    assert sorted(places.find(s3.bucket)) == [
        f"{s3.bucket}/{name}" for name in ("pairs.jsonl", "scores.ndjson", "w.npy")
    ]
    assert places.read_bytes(given) == pairs and places.read_bytes(f"{s3.bucket}/w.npy") == b"of somebody else"
