"""Bad input: one line that says what, where and what to do; the documented exit code; nothing lost."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from encoderlab import cli
from encoderlab.corpus import blocks, documents, pieces
from encoderlab.corpus.build import GivenTokenizer, build_corpus
from encoderlab.corpus.merge import merge_corpora
from encoderlab.corpus.shards import Corpus
from encoderlab.errors import DataError, OutOfMemory
from encoderlab.execution.workers import Workers
from tests.corpus.corpora import digests, sample_text, settings

TEXT = sample_text(20)


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Runs ``encoderlab corpus build`` in a temporary folder; returns the exit code and what it said but for progress,
    which is one line if it failed.
    """
    monkeypatch.chdir(tmp_path)

    def build(*words: str, out: str = "out") -> tuple[int, str]:
        size = [] if {"--vocab-size", "--tokenizer"} & {*words} else ["--vocab-size", "300"]
        code = cli.main(["corpus", "build", *words, "--out", out, *size, "--workers", "1"])
        shown = capsys.readouterr()
        said = "".join(line for line in shown.err.splitlines(keepends=True) if not line.startswith("corpus: "))
        assert "Traceback" not in said
        if code:
            assert said.count("\n") == 1 and said.startswith("error: "), said
        return code, said

    return build


def test_an_encrypted_archive_is_to_be_unpacked(run, tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", TEXT)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[6] |= 1  # the flag of encryption, in the member's header and in the directory
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    code, said = run("a.zip")
    assert code == 3 and "is encrypted" in said and said.endswith("; unpack it, and give what was in it\n")


@pytest.mark.parametrize("number", ["0", "-1"])
@pytest.mark.parametrize(
    "words",
    [["build", "a.txt", "--vocab-size", "300"], ["merge", "part"]],
)
def test_no_workers(number, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bad(tmp_path, "a.txt", TEXT)
    assert cli.main(["corpus", *words, "--out", "out", "--workers", number]) == 2
    assert f"corpus {words[0]}: --workers is {number}; give at least 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def tarred(content: bytes) -> bytes:
    """A tar archive with a file of that content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def bad(tmp_path: Path, name: str, content: bytes | str) -> str:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("a.txt", "", 3, "a.txt: the file is empty"),
        ("a.txt", " \n\n\t\n", 3, "give a source with text|no text left"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), 3, "a.txt.gz: the file is empty"),
        ("a.txt", b"%PDF-1.7 text", 3, r"a.txt: binary data \(PDF\), expected text"),
        ("a.txt", bytes(range(256)) * 10, 3, "a.txt: binary data .250 control bytes"),
        ("a.tar", tarred(TEXT.encode()), 3, r"a.tar: binary data \(tar\), expected text; leave .*, or unpack"),
        ("wiki_00", '{"id": 1, "text": "x"}\n', 3, "wiki_00: begins with a JSON object; give --format jsonl, or text"),
        ("wiki.xml", "<mediawiki>\n<page>", 3, "wiki.xml: begins as a dump of a wiki; extract its text first"),
        ("a.wet.gz", gzip.compress(b"WARC/1.0\r\n", mtime=0), 3, "a.wet.gz: begins as a web archive; .* --format text"),
        ("a.txt", TEXT.encode("utf-32"), 3, "UTF-32, expected UTF-8; convert it: iconv"),
        ("a.txt", TEXT.encode("utf-16"), 3, "UTF-16, expected UTF-8; convert it: iconv"),
        ("a.txt.gz", gzip.compress(TEXT.encode() * 9, mtime=0)[:-20], 3, "a.txt.gz: .* truncated"),
        ("a.txt.gz", b"no gzip at all", 3, "a.txt.gz: no gzip, or damaged .*; rename"),
        ("a.txt.xz", b"no xz at all", 3, "a.txt.xz: damaged"),
        ("a.txt.bz2", b"no bz2 at all", 3, "a.txt.bz2: .*damaged"),
        ("a.txt.zst", b"no zstd at all", 3, "a.txt.zst: .*cannot be read .*fetch the file again|needs zstandard"),
        ("a.zip", b"no zip at all", 3, "a.zip: damaged"),
        ("a.parquet", b"no parquet at all", 3, "a.parquet: cannot be read .*fetch the file again|needs pyarrow"),
        ("a.jsonl", '[{"text": "x"}]', 3, "a.jsonl: the first line is a JSON list, expected an object"),
        ("a.jsonl", '[\n{"text": "x"}]', 3, "a JSON array: write one object per line"),
        ("a.jsonl", "plain text", 3, "the first line is not JSON"),
        ("a.jsonl", '{"n": 1}', 3, "no field with text in the first line; it has n; give --field"),
        ("a.jsonl", '{"two\\nlines": 1}', 3, "no field with text in the first line; it has two lines; give --field"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', 3, "a.jsonl: line 2: not JSON; .*--invalid-records skip"),
        ("a.jsonl", '{"text": "a"}\n\n{"txt": "b"}\n', 3, "line 3: no field 'text'; it has txt"),
        ("a.jsonl", '{"text": "a"}\n{"text": 7}\n', 3, "line 2: field 'text' has no text"),
        ("a.jsonl", '{"text": 5, "title": "T"}', 3, r"line 1: field 'text' has no text \(--field names another\)"),
        ("a.jsonl", '{"text": [], "title": "T"}', 3, "line 1: field 'text' has no text"),
        ("a.csv", 'n,text\n1,a\n2,"b\n3,c\n', 3, "a.csv:3: .*is a quote left open"),
        ("a.csv", "n,text\n1,a\n2\n", 3, "line 3 has 1 columns, the text is in column 1"),
        ("folder/a.py", "x", 3, r"folder: a folder without readable files \(1 files, none of .txt"),
    ],
)
def test_sources(run, tmp_path, name, content, code, message):
    bad(tmp_path, name, content)
    found, line = run(name.split("/")[0])
    assert (found == code or (found == 2 and "trained" in line)) and re.search(message, line), line
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_missing_sources(run, tmp_path):
    assert run("nowhere.txt") == (
        3,
        "error: nowhere.txt: no such file or folder; give existing files, folders or globs\n",
    )
    assert run("*.txt")[1].startswith("error: *.txt: no file matches")
    code, line = run()
    assert code == 2 and "source" in line.lower()
    code, line = run("python:stdlb")
    assert code == 2 and "did you mean 'stdlib'?" in line
    code, line = run(bad(tmp_path, "a.jsonl", '{"text": "a"}'), "--field", "body")
    assert code == 3 and "no field 'body' in the first line; it has text" in line
    code, line = run(bad(tmp_path, "b.jsonl", '"a"'), "--field", "body")
    assert code == 3 and "no field 'body', as the first line is a string; leave --field out" in line
    code, line = run(bad(tmp_path, "a.csv", "n,text\n1,a\n"), "--field", "7")
    assert code == 3 and "no column 7" in line
    code, line = run(bad(tmp_path, "a.csv", "n,text\n1,a\n"), "--field", "²")
    assert code == 3 and "no column '²' in the header" in line


def test_a_pipe_is_no_source(run, tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    code, line = run("a.txt")
    assert code == 3 and "a.txt: a pipe or a device, which cannot be read twice; write it to a file first" in line


def test_corpora_among_the_sources_are_passed_over(run, tmp_path):
    """A build whose output lies in the folder that it reads is complete when it is asked for again."""
    bad(tmp_path, "a.txt", TEXT)
    assert run(".", out="one")[0] == run(".", out="two")[0] == 0
    before = digests(tmp_path)
    assert run(".", out="one")[0] == run(".", out="two")[0] == 0
    assert digests(tmp_path) == before
    code, line = run("one", out="three")
    assert code == 3 and "one: is a corpus already" in line


def test_parts_and_unfinished_corpora_among_the_sources_are_passed_over(run, tmp_path):
    """Parts that are built in the folder that all machines read, and a build that is killed before its manifest."""
    bad(tmp_path, "a.txt", TEXT)
    for index in "01":
        for _ in range(2):
            assert run(".", "--shard-index", index, "--num-shards", "2", out=f"part{index}")[0] == 0
    assert cli.main(["corpus", "merge", "part0", "part1", "--out", "all", "--workers", "1"]) == 0
    assert run(".", out="one")[0] == 0
    assert Corpus(tmp_path / "all").manifest.splits == Corpus(tmp_path / "one").manifest.splits
    (tmp_path / "one" / ".work").mkdir()
    plan = (tmp_path / "part0" / "plan.json").read_text()
    (tmp_path / "one" / ".work" / "plan.json").write_text(plan)
    (tmp_path / "one" / "manifest.json").unlink()
    assert run(".", out="two")[0] == 0
    assert Corpus(tmp_path / "two").manifest.splits == Corpus(tmp_path / "all").manifest.splits


def test_a_name_that_is_no_utf8(run, tmp_path):
    (tmp_path / os.fsdecode(b"b\xfc.txt")).write_text(TEXT)
    assert run(".")[0] == run(".")[0] == 0
    assert Corpus(tmp_path / "out").manifest.sources[0].name == "b\udcfc.txt"


@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf"])
def test_a_sample_of_no_size(run, tmp_path, size):
    code, line = run(bad(tmp_path, "a.txt", TEXT), "--tokenizer-sample", size)
    assert code == 2 and f"--tokenizer-sample is {size}; give a number above 0" in line


def test_no_shards(run, tmp_path):
    code, line = run(bad(tmp_path, "a.txt", TEXT), "--num-shards", "0")
    assert code == 2 and "num_shards 0, expected at least 1" in line


def test_no_part(tmp_path, capsys):
    assert cli.main(["corpus", "merge", "--out", str(tmp_path / "out")]) == 2
    assert "no part; give the output folders of" in capsys.readouterr().err


def test_a_negative_number_of_rows(run, tmp_path, capsys):
    assert run(bad(tmp_path, "a.txt", TEXT))[0] == 0
    assert cli.main(["corpus", "inspect", "out", "--rows", "-1"]) == 2
    assert "--rows is -1; give at least 0" in capsys.readouterr().err


def test_invalid_utf8_is_counted_replaced_or_refused(run, tmp_path):
    content = TEXT.encode() + b"\n\nbad \xff\xfe bytes \xc3\n"
    bad(tmp_path, "a.txt", content)
    code, notes = run("a.txt")
    assert code == 0 and "warning: 3 characters were not valid UTF-8 and became U+FFFD" in notes
    corpus = Corpus(tmp_path / "out")
    assert corpus.manifest.read["invalid_utf8"] == 3 == corpus.manifest.sources[0].invalid_utf8
    code, line = run("a.txt", "--invalid-utf8", "refuse", out="other")
    number = content[: content.index(b"\xff")].count(b"\n") + 1
    assert code == 3 and f"a.txt: line {number}: invalid UTF-8 (byte 0xff); convert the file with iconv" in line


def test_invalid_records_are_skipped_and_counted(run, tmp_path):
    records = [json.dumps({"text": document}) for document in TEXT.split("\n\n")]
    bad(tmp_path, "a.jsonl", "\n".join([*records, "{", '{"txt": 1}']))
    code, notes = run("a.jsonl", "--invalid-records", "skip")
    assert code == 0 and "2 skipped records" in notes and "text from jsonl field 'text' (inferred)" in notes


def test_nul_bytes_are_removed_and_counted(run, tmp_path):
    bad(tmp_path, "a.txt", TEXT.replace("Document 3.", "Docu\0ment\0 3."))
    code, notes = run("a.txt")
    assert code == 0 and "2 control characters" in notes


def test_a_very_long_line(run, tmp_path, monkeypatch):
    """A line of text is cut at white space, in bounded memory, and counted; a record cannot be cut."""
    monkeypatch.setattr(blocks, "BLOCK", 20_000)
    monkeypatch.setattr(blocks, "RANGE", 60_000)
    monkeypatch.setattr(documents, "MAX_LINE", 10_000)
    monkeypatch.setattr(blocks, "MAX_RECORD", 50_000)
    line = " ".join(TEXT.split()) * 20
    bad(tmp_path, "a.txt", line)
    code, notes = run("a.txt", "--validation", "0", "--keep-duplicates")
    assert code == 0 and "cut lines" in notes
    corpus = Corpus(tmp_path / "out")
    assert corpus.num_bytes >= 0.999 * len(line)
    bad(tmp_path, "a.jsonl", json.dumps({"text": line}))
    code, message = run("a.jsonl", out="other")
    assert code == 3 and ("expected a record per line" in message or "not JSON" in message)


def test_tokenizers(run, tmp_path):
    bad(tmp_path, "a.txt", TEXT)
    code, line = run("a.txt", "--vocab-size", "50000")
    assert code == 2 and "is larger than the text supports; choose at most" in line
    bad(tmp_path, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n")
    code, line = run("a.txt", "--tokenizer", "vocab.txt", out="second")
    assert code == 3 and "[MASK]" in line
    code, line = run("a.txt", "--tokenizer", "nowhere", out="third")
    assert code in (2, 3) and "nowhere" in line
    code, line = run("a.txt", "--segmenter", "jieb", out="fourth")
    assert code == 2 and "unknown segmenter 'jieb'" in line


def test_options(run, tmp_path):
    bad(tmp_path, "a.txt", TEXT)
    for words, message in [
        (["--validation", "1.5"], "validation 1.5, expected a fraction"),
        (["--max-chars", "5", "--min-chars", "9"], "max_chars 5 is below min_chars 9"),
        (["--shard-index", "3", "--num-shards", "2"], "shard index 3 of 2 shards, expected 0 to 1"),
        (["--min-chars", "100000"], "no text left for training"),
    ]:
        code, line = run("a.txt", *words)
        assert code in (2, 3) and message in line
        assert not (tmp_path / "out" / "manifest.json").exists()


def test_output_folders(run, tmp_path, monkeypatch):
    bad(tmp_path, "a.txt", TEXT)
    bad(tmp_path, "full/precious.txt", "mine")
    code, line = run("a.txt", out="full")
    assert code == 2 and "full: not empty, and has no corpus" in line
    assert digests(tmp_path / "full") and (tmp_path / "full" / "precious.txt").read_text() == "mine"
    code, line = run("a.txt", out="a.txt/out")
    assert code == 2 and "cannot be used as output folder" in line
    handle = os.open(tmp_path / "full", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    code, line = run("a.txt", out="full")
    assert code == 2 and "full: another process is writing it" in line
    os.close(handle)

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system", "out")

    monkeypatch.setattr(Path, "mkdir", refuse)
    code, line = run("a.txt")
    assert code == 2 and "Read-only file system" in line


def test_another_corpus_or_changed_sources(run, tmp_path):
    bad(tmp_path, "a.txt", TEXT)
    assert run("a.txt")[0] == 0
    before = digests(tmp_path / "out")
    code, line = run("a.txt", "--shard-index", "0", "--num-shards", "2")
    assert code == 2 and "out: has a whole corpus, not a part; choose another folder" in line
    assert run("a.txt")[0] == 0
    code, line = run("a.txt", "--vocab-size", "310", "--validation", "0.2")
    assert (
        code == 2
        and "tokenizer.vocab_size is 300 there, 310 here, selection.validation is 0.01 there, 0.2 here" in line
    )
    bad(tmp_path, "a.txt", TEXT.replace("Document 1", "Document X"))
    code, line = run("a.txt")
    assert code == 2 and "a.txt has changed since" in line
    assert digests(tmp_path / "out") == before
    for letters, expected in (("abcde", 0), ("abcde", 0), ("xyzuv", 2)):
        bad(tmp_path, "vocab.txt", "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]))
        code, line = run("a.txt", "--tokenizer", "vocab.txt", "--max-unknown", "1", out="given")
        assert code == expected
    assert "the tokenizer has changed since" in line


def test_sources_that_change_while_a_build_is_interrupted(tmp_path, monkeypatch, capsys):
    from encoderlab.corpus import build

    bad(tmp_path, "a.txt", TEXT)
    chosen = settings(tmp_path / "a.txt")
    monkeypatch.setattr(build, "join_parts", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_corpus(chosen, tmp_path / "out")
    monkeypatch.undo()
    bad(tmp_path, "a.txt", TEXT + "more")
    with pytest.raises(build.ConfigError, match="another build was started here: sources.*a.txt is .*; give the same"):
        build_corpus(chosen, tmp_path / "out")


def test_a_source_that_changes_while_it_is_read(tmp_path, monkeypatch):
    from encoderlab.corpus import build

    bad(tmp_path, "a.txt", TEXT)
    hashed = build._hash

    def later(paths):
        bad(tmp_path, "a.txt", TEXT + "more")
        return hashed(paths)

    monkeypatch.setattr(build, "_hash", later)
    with pytest.raises(DataError, match="a.txt: has changed while it was read; delete .*out/.work, and build again"):
        build_corpus(settings(tmp_path / "a.txt"), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_limit_on_file_sizes_or_a_full_disk(tmp_path, monkeypatch):
    """Files cannot grow beyond 20 kB, as on a full disk: a clear error, and with more room the build continues."""
    bad(tmp_path, "a.txt", sample_text(100))
    bad(
        tmp_path,
        "vocab.txt",
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"etaoinshr", *(f"##{c}" for c in "etaoinshr")]),
    )
    words = [
        "corpus",
        "build",
        "a.txt",
        "--out",
        "out",
        "--tokenizer",
        "vocab.txt",
        "--max-unknown",
        "1",
        "--workers",
        "1",
    ]
    command = [sys.executable, "-m", "encoderlab", *words]

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(command, cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode == 3 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "free some space and run again to continue" in done.stderr
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    chosen = settings("a.txt", tokenizer=GivenTokenizer(path="vocab.txt"), selection={"validation": 0.01})
    build_corpus(chosen, tmp_path / "whole", max_unknown=1)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_damaged_corpus_is_named_by_inspect(run, tmp_path, capsys):
    bad(tmp_path, "a.txt", TEXT)
    run("a.txt")
    assert cli.main(["corpus", "inspect", "out", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["verified"] and facts["splits"]["train"]["documents"] > 10
    path = tmp_path / "out" / "train" / "shard-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 8
    path.write_bytes(content)
    assert cli.main(["corpus", "inspect", "out"]) == 3
    assert "shard-00000.safetensors: sha256" in capsys.readouterr().err
    assert cli.main(["corpus", "inspect", "nowhere"]) == 3
    assert "no corpus here" in capsys.readouterr().err
    (tmp_path / "out" / "tokenizer" / "tokenizer.json").write_text("{}")
    assert cli.main(["corpus", "inspect", "out"]) == 3
    assert "tokenizer.json" in capsys.readouterr().err


@pytest.mark.parametrize("value", [None, 3, "x", {}, [3], [{"name": 3}]])
def test_a_manifest_that_makes_no_sense_is_named(value, run, tmp_path, capsys):
    bad(tmp_path, "a.txt", TEXT)
    run("a.txt")
    path = tmp_path / "out" / "manifest.json"
    whole = json.loads(path.read_text())
    for place in (("tokenizer",), ("tokenizer", "hash"), ("tokenizer", "files"), ("sources",)):
        if (place[-1], value) == ("hash", "x"):
            continue  # a text like any other
        manifest = json.loads(json.dumps(whole))
        entry = manifest if len(place) == 1 else manifest[place[0]]
        entry[place[-1]] = value
        path.write_text(json.dumps(manifest))
        assert cli.main(["corpus", "inspect", "out"]) == 3, place
        assert "manifest.json: damaged: " in capsys.readouterr().err
        code, line = run("a.txt")
        assert code == 3 and "manifest.json: damaged: " in line


def test_a_damaged_piece_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE", 2000)
    monkeypatch.setattr(blocks, "BLOCK", 1000)
    bad(tmp_path, "a.txt", TEXT)
    chosen = settings(tmp_path / "a.txt")
    build_corpus(chosen, tmp_path / "part", shard_index=0, num_shards=1 + 1)
    build_corpus(chosen, tmp_path / "part2", shard_index=1, num_shards=1 + 1)
    path = tmp_path / "part" / "pieces" / "000000-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="000000-00000.safetensors"):
        merge_corpora([tmp_path / "part", tmp_path / "part2"], tmp_path / "merged")


def test_a_killed_worker_is_reported():
    with pytest.raises(OutOfMemory, match="a worker was killed.*--workers 1"), Workers(2) as tasks:
        tasks.submit(os._exit, 9)
        tasks.finish()


WORK = """
import sys, time
from encoderlab.execution.workers import Workers
from encoderlab.errors import Stopped
try:
    with Workers(2) as tasks:
        tasks.submit(time.sleep, 0)
        print("begun", flush=True)
        while True:
            tasks.submit(time.sleep, 0.01)
except Stopped as stop:
    sys.exit(stop.code)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_the_workers_without_a_word(number, code):
    """Also while they start, as Ctrl-C of a terminal and the end of a job reach them too."""
    command = [sys.executable, "-c", WORK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"
    os.killpg(process.pid, number)
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, said) == (code, b"")
