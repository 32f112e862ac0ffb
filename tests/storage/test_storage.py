"""Files at URLs: the same bytes as on disk, whatever the connection does, and one line for what cannot work."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from encoderlab import cli
from encoderlab.corpus import blocks
from encoderlab.corpus.build import BuildSettings, NewTokenizer, build_corpus
from encoderlab.corpus.documents import parse_block
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.manifest import verify
from encoderlab.corpus.pieces import read_work
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.sources import Reading
from encoderlab.corpus.stretches import divide
from encoderlab.errors import ConfigError, DataError
from encoderlab.records.dataset import labelled_files
from encoderlab.storage import cache, mirror, places, streams
from encoderlab.storage.mirror import Mirror, written_file, written_folder
from encoderlab.storage.places import url_of

TOKENIZER = NewTokenizer(vocab_size=300, sample_bytes=200_000)


def _texts(folder: Path) -> Path:
    """Text in several formats, one larger than a block of the reader."""
    draw = random.Random(1)
    words = [f"word{number}" for number in range(2000)]

    def paragraph() -> str:
        return " ".join(draw.choices(words, k=40))

    folder.mkdir()
    long = "\n\n".join(paragraph() for _ in range(2500))
    (folder / "a.txt").write_text(long)
    with gzip.open(folder / "b.txt.gz", "wt") as file:
        file.write("\n\n".join(paragraph() for _ in range(300)))
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": paragraph()}) + "\n" for _ in range(200)))
    (folder / "d.csv").write_text("id,text\n" + "".join(f'{n},"{paragraph()}"\n' for n in range(100)))
    with zipfile.ZipFile(folder / "e.zip", "w") as archive:
        archive.writestr("inside.txt", paragraph())
    return folder


def _put(folder: Path, url: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            places.upload(path, places.join(url, path.relative_to(folder).as_posix()))


def _bytes(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.safetensors"))
        if path.is_file()
    }


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


def test_a_corpus_of_sources_at_urls_has_the_same_bytes_over_a_failing_connection(s3, tmp_path, monkeypatch):
    texts = _texts(tmp_path / "texts")
    _put(texts, f"{s3.bucket}/texts")
    monkeypatch.setattr(streams, "BLOCK", 50_000)
    s3.failing = 0.2
    settings = BuildSettings(sources=(f"{s3.bucket}/texts",), tokenizer=TOKENIZER)
    made = build_corpus(settings, tmp_path / "remote")
    s3.failing = 0.0
    assert {"error", "closed", "truncated", "slow"} <= s3.happened.keys()
    plain = build_corpus(BuildSettings(sources=(str(texts),), tokenizer=TOKENIZER), tmp_path / "local")
    assert _bytes(tmp_path / "remote") == _bytes(tmp_path / "local")
    assert [item.sha256 for item in made.sources] == [item.sha256 for item in plain.sources]
    assert made.sources[0].name == f"{s3.bucket}/texts/a.txt"


def test_a_corpus_at_a_url_is_read_shard_by_shard_and_checked(s3, tmp_path, caplog):
    corpus = tmp_path / "corpus"
    build_corpus(BuildSettings(sources=(str(_texts(tmp_path / "texts")),), tokenizer=TOKENIZER), corpus)
    url = f"{s3.bucket}/corpora/one"
    _put(corpus, url)
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


def test_processes_that_want_one_file_fetch_it_once(s3):
    url = f"{s3.bucket}/shared.bin"
    places.write_bytes(url, bytes(3_000_000))
    s3.kinds, s3.failing = ("slow",), 1.0
    words = [
        sys.executable,
        "-c",
        "import sys; from encoderlab.storage import cache; print(cache.file(sys.argv[1]))",
        url,
    ]
    three = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert len({one.communicate(timeout=120)[0] for one in three}) == 1 and all(one.returncode == 0 for one in three)
    assert sum(count for what, count in s3.asked.items() if what.startswith("GET") and "shared.bin" in what) == 1


@pytest.mark.parametrize("how", ["flip", "cut", "delete"])
@pytest.mark.parametrize("name", ["a.csv", ".a.csv.sha256"])
def test_a_damaged_file_of_the_cache_is_fetched_again(s3, caplog, name, how):
    places.write_bytes(f"{s3.bucket}/a.csv", b"text,label\n" * 9)
    path = cache.file(f"{s3.bucket}/a.csv")
    damaged = path.with_name(name)
    killed = path.with_name(".a.csv.999999999.tmp")  # what a killed process left
    killed.write_bytes(b"text")
    data = bytearray(damaged.read_bytes())
    data[9] ^= 1
    damaged.unlink() if how == "delete" else damaged.write_bytes(data if how == "flip" else data[:9])
    assert cache.file(f"{s3.bucket}/a.csv").read_bytes() == b"text,label\n" * 9
    assert ("has changed since it was fetched" in caplog.text) == (how != "delete") and not killed.exists()


def test_a_damaged_list_of_an_upload_is_named(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/runs/two"
    with written_folder(url) as folder:
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("1\n")
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
    whole = places.read_bytes(f"{url}/mirror.json")
    for place in range(0, len(whole), 90):
        changed = bytearray(whole)
        changed[place] ^= 2
        if bytes(changed).split() == whole.split():
            continue
        places.write_bytes(f"{url}/mirror.json", bytes(changed))
        with pytest.raises(DataError, match="mirror.json: is damaged; delete it"), written_folder(url):
            pass


def test_the_cache_stays_within_its_limit(s3, tmp_path, monkeypatch):
    for number in range(4):
        places.write_bytes(f"{s3.bucket}/{number}.bin", bytes(1000))
    monkeypatch.setenv("ENCODERLAB_CACHE_GB", "0.0000025")
    monkeypatch.setattr(cache, "IN_USE", -1.0)
    paths = [cache.file(f"{s3.bucket}/{number}.bin") for number in range(4)]
    assert [path.exists() for path in paths] == [False, False, True, True]
    monkeypatch.setenv("ENCODERLAB_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="ENCODERLAB_CACHE_GB is 'much'"):
        cache.file(f"{s3.bucket}/0.bin")


def test_a_full_cache_keeps_all_that_belongs_to_a_file_in_use(s3, monkeypatch):
    urls = [f"{s3.bucket}/{number}.bin" for number in range(3)]
    for url in urls:
        places.write_bytes(url, bytes(1000))
    monkeypatch.setenv("ENCODERLAB_CACHE_GB", "0.0000025")
    monkeypatch.setattr(cache, "IN_USE", -1.0)
    first, second = cache.file(urls[0]), cache.file(urls[1])
    for path, age in ((first, 10), (first.with_name(f".{first.name}.sha256"), 1000), (second, 100)):
        os.utime(path, (time.time() - age,) * 2)  # the first was fetched long ago, and read again
    cache.file(urls[2])
    assert first.exists() and not second.exists()
    cache.file(urls[0])
    assert sum(count for what, count in s3.asked.items() if what.startswith("GET") and "/0.bin" in what) == 1


def test_a_file_that_changes_while_it_is_read_is_named(s3, monkeypatch):
    monkeypatch.setattr(streams, "BLOCK", 1000)
    url = f"{s3.bucket}/a.txt"
    places.write_bytes(url, bytes(10_000))
    with streams.open_file(url) as file:
        file.read(10)
        places.write_bytes(url, b"1" * 10_000)
        with pytest.raises(DataError, match="has changed while it was read"):
            file.read()


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


def _checkpoint(folder: Path, step: int) -> None:
    place = folder / "checkpoints" / f"step-{step}"
    place.mkdir(parents=True)
    (place / "weights").write_bytes(bytes([step]) * 1000)
    (place / "manifest.json").write_text(str(step))
    link = folder / "checkpoints" / "latest"
    link.unlink(missing_ok=True)
    link.symlink_to(place.name)


def _tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_run_at_a_url_continues_on_another_machine(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/runs/one"
    s3.failing = 0.1
    with written_folder(url) as folder:
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("1\n")
        (folder / ".partial").write_text("half")
        _checkpoint(folder, 1)
        _checkpoint(folder, 2)
        made = _tree(folder)
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
    with pytest.raises(RuntimeError), written_folder(url) as folder:
        assert _tree(folder) == made and (folder / "checkpoints" / "latest").readlink().name == "step-2"
        (folder / "checkpoints" / "latest").unlink()
        _checkpoint(folder, 3)
        made = _tree(folder)
        for name in ("weights", "manifest.json"):
            (folder / "checkpoints" / "step-1" / name).unlink()
        (folder / "checkpoints" / "step-1").rmdir()
        raise RuntimeError("killed")
    s3.failing = 0.0
    names = {name.removeprefix(f"{url}/") for name in places.find(url)}
    assert "checkpoints/step-3/manifest.json" in names and not any("step-1/" in name for name in names)
    assert places.read_bytes(f"{url}/checkpoints/latest") == b"step-3"
    assert "writer.json" not in names


def test_every_moment_of_an_upload_is_a_folder_that_can_be_continued(s3, tmp_path, monkeypatch):
    """The upload is cut off after each of its writes in turn; what another machine restores is whole."""
    for cut in range(12):
        url = f"{s3.bucket}/runs/{cut}"
        monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / f"home-{cut}"))
        folder = mirror.working_place(url)
        first = Mirror(folder, url)
        first.restore()
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("1\n")
        _checkpoint(folder, 1)
        first.push()
        (folder / "metrics.jsonl").write_text("1\n2\n")
        _checkpoint(folder, 2)
        left = [cut]

        def stops(name, left=left):
            real = getattr(places, name)

            def write(*args):
                left[0] -= 1
                if left[0] < 0:
                    raise DataError("cut off")
                real(*args)

            return write

        with monkeypatch.context() as patch:
            for name in ("upload", "write_bytes", "delete"):
                patch.setattr(places, name, stops(name))
            whole = True
            try:
                first.push()
            except DataError:
                whole = False
        first.release()
        monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / f"away-{cut}"))
        places._KNOWN.clear()
        again = Mirror(mirror.working_place(url), url)
        again.restore()
        steps = sorted(path.name for path in (again.folder / "checkpoints").glob("step-*"))
        assert steps in (["step-1"], ["step-1", "step-2"]) and (steps[-1] == "step-2" or not whole)
        for step in steps:
            number = int(step[-1])
            assert (again.folder / "checkpoints" / step / "weights").read_bytes() == bytes([number]) * 1000
            assert (again.folder / "checkpoints" / step / "manifest.json").read_text() == str(number)
            assert f"{number}\n" in (again.folder / "metrics.jsonl").read_text()  # never behind a checkpoint
        assert (again.folder / "checkpoints" / "latest").readlink().name in steps


def test_two_writers_of_one_place_are_refused(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/runs/two"
    with written_folder(url):
        monkeypatch.setattr(mirror.socket, "gethostname", lambda: "elsewhere")
        monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
        with pytest.raises(ConfigError, match="another process is writing it"), written_folder(url):
            pass
        monkeypatch.undo()
        with pytest.raises(ConfigError, match=f"^{url}: another process is writing it"), written_folder(url):
            pass  # of this machine
    assert not places.exists(f"{s3.bucket}/runs/two/writer.json")


def test_the_sign_of_another_writer_stays(s3):
    url = f"{s3.bucket}/runs/three"
    first, second = Mirror(mirror.working_place(url), url), Mirror(mirror.working_place(url), url)
    first.claim()
    second._sign()  # as after ten minutes
    first.release()
    assert places.exists(f"{url}/writer.json")
    second.release()
    assert not places.exists(f"{url}/writer.json")


def test_what_is_only_here_stays_if_the_answer_to_an_upload_is_lost(s3, monkeypatch):
    url = f"{s3.bucket}/runs/lost"
    folder = mirror.working_place(url)
    first = Mirror(folder, url)
    first.restore()
    folder.mkdir(parents=True)
    (folder / "a").write_text("a")
    first.push()
    real = places.write_bytes

    def arrives_without_an_answer(place: str, data: bytes) -> None:
        real(place, data)
        raise DataError("no answer")

    (folder / "b").write_text("b")
    with monkeypatch.context() as patch:
        patch.setattr(places, "write_bytes", arrives_without_an_answer)
        with pytest.raises(DataError, match="no answer"):
            first.push()
    (folder / "c").write_text("only here")
    first.release()
    again = Mirror(folder, url)
    again.restore()
    assert (folder / "c").read_text() == "only here"
    again.push()
    assert places.read_bytes(f"{url}/c") == b"only here"


def test_a_list_that_could_not_be_written_is_written_by_the_next_upload(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/runs/unlisted"
    folder = mirror.working_place(url)
    first = Mirror(folder, url)
    first.restore()
    _checkpoint(folder, 1)
    real = places.write_bytes

    def fails_for_the_list(place: str, data: bytes) -> None:
        if place.endswith("mirror.json"):
            raise DataError("no connection")
        real(place, data)

    with monkeypatch.context() as patch:
        patch.setattr(places, "write_bytes", fails_for_the_list)
        with pytest.raises(DataError, match="no connection"):
            first.push()
    before = s3.asked.total()
    first.push()  # nothing has changed since, and all files are there
    assert s3.asked.total() - before < 8
    first.release()
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
    again = Mirror(mirror.working_place(url), url)
    again.restore()
    assert (again.folder / "checkpoints" / "latest").readlink().name == "step-1"


def test_an_upload_that_fails_does_not_hide_why_the_work_ended(s3, monkeypatch, caplog):
    url = f"{s3.bucket}/runs/failed"

    def fails(path: Path, place: str) -> None:
        raise DataError("no connection")

    monkeypatch.setattr(places, "upload", fails)
    for work, expected in ((RuntimeError("broken"), RuntimeError), (None, DataError)):
        with pytest.raises(expected), written_folder(url) as folder:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "a").write_text("a")
            if work is not None:
                raise work
    assert "no connection; what was made is kept in" in caplog.text and (folder / "a").exists()


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "a b", "ä#1", "x%20y", "-run"])
def test_a_folder_of_any_name_is_restored_and_read(s3, tmp_path, monkeypatch, name):
    url = f"{s3.bucket}/{name}"
    places.write_bytes(f"{s3.bucket}/run1/other.txt", b"matches, if the name were a pattern")
    with written_folder(url) as folder:
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "a.txt").write_text("made")
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
    with written_folder(url) as folder:
        assert _tree(folder) == {"sub/a.txt": b"made"}
    assert (cache.local(url) / "sub" / "a.txt").read_text() == "made"
    assert find_sources([f"{s3.bucket}/run[1]/*.txt"], Reading())[0].path.name == "other.txt"  # still a pattern


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
        assert _tree(folder) == {"sub/a.txt": b"a"}


def test_no_name_leads_out_of_the_folder_on_disk(s3, tmp_path):
    url, there = f"{s3.bucket}/runs/evil", tmp_path / "outside.txt"
    system, path = places.file_system(url)
    bucket, _, key = path.partition("/")
    system.call_s3("put_object", Bucket=bucket, Key=f"{key}/{there}", Body=b"overwritten")  # two slashes in a row
    for read in (cache.local, Mirror(mirror.working_place(url), url)._download):
        with pytest.raises(DataError, match="two slashes in a row .*; rename it"):
            read({} if read != cache.local else url)
    assert not there.exists()


def test_what_was_restored_is_not_sent_again_and_a_refused_command_sends_nothing(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/mine"
    places.write_bytes(f"{url}/precious.txt", b"of somebody else")
    for _ in range(2):  # the second time, nothing is fetched
        with pytest.raises(ConfigError), written_folder(url) as folder:
            assert _tree(folder) == {"precious.txt": b"of somebody else"}
            raise ConfigError("is not empty")
    assert places.find(url) == [f"{url}/precious.txt"]
    for home in ("one", "two"):
        monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / home))
        with written_folder(url) as folder:
            (folder / f"{home}.txt").write_text(home)
    names = {name.removeprefix(f"{url}/") for name in places.find(url)}
    assert names == {"precious.txt", "one.txt", "two.txt", "mirror.json"}
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "three"))
    with written_folder(url) as folder:
        assert len(_tree(folder)) == 3
    sent = [request for request in s3.asked.elements() if request.startswith("PUT") and request.endswith(".txt")]
    assert len(sent) == 3


def test_a_file_appears_at_its_end_or_not_at_all(s3):
    url = f"{s3.bucket}/found.jsonl"
    with pytest.raises(RuntimeError), written_file(url) as path:
        path.write_text("half")
        raise RuntimeError
    assert not places.exists(url)
    with written_file(url) as path:
        path.write_text("whole")
    assert places.read_bytes(url) == b"whole"


def test_verbs_take_urls_for_inputs_and_outputs(s3, tmp_path, capsys):
    _put(_texts(tmp_path / "texts"), f"{s3.bucket}/texts")
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
