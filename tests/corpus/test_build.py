from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from encoderlab.corpus import assemble, blocks, build, duplicates, pieces
from encoderlab.corpus.build import GivenTokenizer, NewTokenizer, build_corpus
from encoderlab.corpus.documents import read_documents, sample_texts
from encoderlab.corpus.find import find_sources
from encoderlab.corpus.inspection import inspect_corpus
from encoderlab.corpus.manifest import verify
from encoderlab.corpus.merge import merge_corpora
from encoderlab.corpus.sentences import sentence_starts
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.sources import Reading
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from tests.corpus.corpora import digests, sample_text, settings
from tests.tasks import tiny


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces of 3 kB, shards of 4,000 tokens, and duplicates found in groups of 100."""
    for module, name, value in [
        (blocks, "BLOCK", 2000),
        (blocks, "RANGE", 8000),
        (pieces, "PIECE", 3000),
        (pieces, "BATCH", 1000),
        (assemble, "SHARD_TOKENS", 4000),
        (duplicates, "BUCKET", 100),
    ]:
        monkeypatch.setattr(module, name, value)


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """80 documents, one of them gzipped, with duplicates and short ones."""
    folder = tmp_path_factory.mktemp("text")
    made = sample_text(70)
    first = made.split("\n\n")[0]
    (folder / "a.txt").write_text(made + f"\n\n{first}\n\nshort\n")
    (folder / "b.txt.gz").write_bytes(gzip.compress(sample_text(8, seed=1).encode(), mtime=0))
    return folder


@pytest.fixture(scope="session")
def tokenizer(text, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train("wordpiece", [(text / "a.txt").read_text()], 300).save(folder)
    return folder


@pytest.fixture(scope="session")
def chosen(text, tokenizer):
    return settings(
        text, tokenizer=GivenTokenizer(path=str(tokenizer)), selection={"min_chars": 10, "drop_lines": True}
    )


def all_documents(folder: Path):
    return [
        corpus.document(number)
        for split in ("train", "validation")
        for corpus in [Corpus(folder, split)]
        for number in range(len(corpus))
    ]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_tokens_and_marks_are_those_of_the_text(text, tmp_path, kind):
    """Tokens and word starts of each paragraph are the tokenizer's; sentences start where they do in the text."""
    if kind == "unigram":
        pytest.importorskip("sentencepiece")
    chosen = settings(text, tokenizer=NewTokenizer(kind=kind, vocab_size=340), selection={"drop_documents": False})
    build_corpus(chosen, tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out" / "tokenizer")
    expected = {}
    for source in find_sources([str(text)], Reading()):
        for document in read_documents(source, Reading()):
            ids, sentences, words = [], [], []
            for paragraph in document:
                encoding = tokenizer.encode(paragraph)
                starts = encoding.offsets[:, 0]
                for start in sentence_starts(paragraph):
                    shift = 1 if start and kind != "wordpiece" else 0  # where the space belongs to the token
                    sentences.append(len(ids) + int(np.searchsorted(starts, start - shift)))
                ids += encoding.ids.tolist()
                words += encoding.word_starts.tolist()
            expected[tuple(ids)] = sentences, words, len("".join(document).encode())
    found = all_documents(tmp_path / "out")
    assert len(found) == 80
    for document in found:
        sentences, words, size = expected[tuple(document.ids.tolist())]
        assert document.sentences.tolist() == sentences
        assert document.word_starts.tolist() == words
        assert document.num_bytes == size
    verify(tmp_path / "out")
    assert not (tmp_path / "out" / ".work").exists()


def test_counts_splits_and_filters(text, chosen, tmp_path):
    manifest = build_corpus(chosen, tmp_path / "out")
    read = manifest.read
    assert read["documents"] == 80 and read["duplicate_lines"] > 0
    assert read["short_documents"] + read["emptied_documents"] == 2
    train, validation = Corpus(tmp_path / "out"), Corpus(tmp_path / "out", "validation")
    assert len(train) + len(validation) == 78
    assert len(manifest.splits["train"].shards) > 1
    counts = sum(np.bincount(train.document(number).ids, minlength=300) for number in range(len(train)))
    np.testing.assert_array_equal(train.counts(), counts)
    for corpus in (train, validation):
        assert corpus.num_tokens == sum(len(corpus.document(number)) for number in range(len(corpus)))
        assert corpus.num_bytes == sum(corpus.document(number).num_bytes for number in range(len(corpus)))
    assert [source.name for source in manifest.sources] == [str(text / "a.txt"), str(text / "b.txt.gz")]
    facts = inspect_corpus(tmp_path / "out", rows=2)
    assert facts["verified"] and len(facts["rows"]) == 2 and facts["splits"]["train"]["tokens_per_word"] > 1


@pytest.mark.parametrize("change", ["missing", "{}", "[]", "folder"])
def test_a_changed_tokenizer_is_named_before_it_is_read(chosen, tmp_path, change):
    build_corpus(chosen, tmp_path / "corpus")
    corpus = Corpus(tmp_path / "corpus")
    path = corpus.path / "tokenizer" / "tokenizer.json"
    path.unlink()
    if change == "folder":
        path.mkdir()
    elif change != "missing":
        path.write_text(change)
    with pytest.raises(DataError, match=r"tokenizer\.json: .*build the corpus again"):
        corpus.tokenizer()


def test_the_same_bytes_for_any_number_of_workers(chosen, tmp_path):
    build_corpus(chosen, tmp_path / "one", workers=1)
    build_corpus(chosen, tmp_path / "three", workers=3)
    assert digests(tmp_path / "one") == digests(tmp_path / "three")


@pytest.mark.parametrize("number", [2, 3])
def test_parts_of_several_machines_merge_to_the_same_bytes(chosen, tmp_path, number):
    build_corpus(chosen, tmp_path / "whole")
    parts = [tmp_path / f"part{index}" for index in range(number)]
    for index, part in enumerate(parts):
        build_corpus(chosen, part, shard_index=index, num_shards=number)
        build_corpus(chosen, part, shard_index=index, num_shards=number)  # does nothing
    merge_corpora(reversed(parts), tmp_path / "merged")
    assert digests(tmp_path / "merged") == digests(tmp_path / "whole")
    merge_corpora(parts, tmp_path / "merged")  # does nothing
    with pytest.raises(ConfigError, match="expected each of"):
        merge_corpora(parts[1:], tmp_path / "other")
    with pytest.raises(ConfigError, match="expected each of"):
        merge_corpora([*parts, parts[0]], tmp_path / "other")
    with pytest.raises(DataError, match="not a part of a corpus"):
        merge_corpora([*parts[1:], tmp_path / "whole"], tmp_path / "other")
    whole = (parts[0] / "part.json").read_text()
    (parts[0] / "part.json").write_text("{}")
    with pytest.raises(DataError, match="part.json: damaged; run the build of this part again"):
        merge_corpora(parts, tmp_path / "other")
    (parts[0] / "part.json").write_text(whole)
    (parts[0] / "part.json").unlink()
    with pytest.raises(DataError, match="an unfinished part"):
        merge_corpora(parts, tmp_path / "other")


def test_a_trained_tokenizer_does_not_depend_on_workers_or_machines(text, tmp_path):
    chosen = settings(text, vocab_size=320)
    build_corpus(chosen, tmp_path / "one")
    for index in range(2):
        build_corpus(chosen, tmp_path / f"part{index}", shard_index=index, num_shards=2, workers=2)
    merge_corpora([tmp_path / "part0", tmp_path / "part1"], tmp_path / "merged", workers=2)
    assert digests(tmp_path / "one") == digests(tmp_path / "merged")


def test_the_split_does_not_depend_on_the_order_of_documents(text, tokenizer, tmp_path):
    made = (text / "a.txt").read_text().strip().split("\n\n")
    held_out = []
    for number in range(2):
        path = tmp_path / f"{number}.txt"
        path.write_text("\n\n".join(made if number == 0 else made[::-1]))
        chosen = settings(path, tokenizer=GivenTokenizer(path=str(tokenizer)))
        build_corpus(chosen, tmp_path / f"out{number}")
        corpus = Corpus(tmp_path / f"out{number}", "validation")
        held_out.append({tuple(corpus.document(place).ids.tolist()) for place in range(len(corpus))})
    assert held_out[0] == held_out[1] and held_out[0]


def test_a_small_corpus_has_one_validation_document(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n\n".join(f"Document number {number}." for number in range(5)))
    chosen = settings(tmp_path / "a.txt", tokenizer=GivenTokenizer(path=str(tokenizer)), selection={"validation": 1e-9})
    manifest = build_corpus(chosen, tmp_path / "out")
    assert {split: record.documents for split, record in manifest.splits.items()} == {"train": 4, "validation": 1}
    (tmp_path / "b.txt").write_text("Document number 1.")
    all_of_it = settings(tmp_path / "b.txt", tokenizer=chosen.tokenizer, selection={"validation": 1 - 1e-9})
    with pytest.raises(DataError, match=r"no text left for training \(1 documents\); .* or hold .*: --validation 0"):
        build_corpus(all_of_it, tmp_path / "all")
    none = settings(tmp_path / "a.txt", tokenizer=GivenTokenizer(path=str(tokenizer)), selection={"validation": 0.0})
    assert build_corpus(none, tmp_path / "none").splits["validation"].documents == 0


def held_out(tmp_path: Path, tokenizer: Path, number: int, **changes) -> list[list[int]]:
    name = f"{number}-{len(list(tmp_path.iterdir()))}"
    (tmp_path / f"{name}.txt").write_text("\n\n".join(f"Document number {i}.\n{'more ' * 40}" for i in range(number)))
    chosen = settings(
        tmp_path / f"{name}.txt", tokenizer=GivenTokenizer(path=str(tokenizer)), selection={"validation": 1e-9}
    )
    build_corpus(chosen, tmp_path / name, **changes)
    corpus = Corpus(tmp_path / name, "validation")
    return [corpus.document(place).ids.tolist() for place in range(len(corpus))]


def test_pairs_can_be_validated_on_where_two_documents_can_be_spared(tmp_path, tokenizer):
    assert [len(held_out(tmp_path, tokenizer, number)) for number in (1, 2, 19, 20, 300)] == [0, 1, 1, 2, 2]
    assert held_out(tmp_path, tokenizer, 300) == held_out(tmp_path, tokenizer, 300, workers=2)


@pytest.mark.parametrize(("different", "expected"), [(40, 2), (2, 1), (1, 0)])
def test_copies_of_a_document_are_held_out_together(tmp_path, tokenizer, different, expected):
    made = [f"Document number {number}." for number in range(different)]
    (tmp_path / "a.txt").write_text("\n\n".join(made * 20))
    selection = {"validation": 1e-9, "drop_documents": False}
    chosen = settings(tmp_path / "a.txt", tokenizer=GivenTokenizer(path=str(tokenizer)), selection=selection)
    build_corpus(chosen, tmp_path / "out")
    corpora = [Corpus(tmp_path / "out", split) for split in ("train", "validation")]
    train, validation = ([tuple(one.document(i).ids.tolist()) for i in range(len(one))] for one in corpora)
    assert len(set(validation)) == expected and not set(train) & set(validation)


def test_a_zip_gives_the_sample_of_its_files(tmp_path):
    (tmp_path / "files").mkdir()
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(30):
            (tmp_path / "files" / f"{number:02}.txt").write_text(sample_text(4, seed=number))
            archive.write(tmp_path / "files" / f"{number:02}.txt", f"{number:02}.txt")
    for budget in (20_000, 1_000_000):
        samples = [
            list(sample_texts(find_sources([str(tmp_path / name)], Reading()), Reading(), budget, lambda *args: None))
            for name in ("files", "a.zip")
        ]
        assert samples[0] == samples[1] and sum(map(len, samples[0])) > 10_000


def test_a_folder_built_anew_has_the_tokens_of_its_new_tokenizer(text, tmp_path):
    """Also in the process that built there before."""
    for place, size in (("out", 300), ("out", 340), ("other", 340)):
        shutil.rmtree(tmp_path / place, ignore_errors=True)
        build_corpus(settings(text, vocab_size=size), tmp_path / place)
    assert digests(tmp_path / "out") == digests(tmp_path / "other")


def test_a_refused_vocabulary_can_be_asked_for_otherwise(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(f"Document number {number}." for number in range(30)))
    with pytest.raises(ConfigError, match="at most"):
        build_corpus(settings(tmp_path / "a.txt", vocab_size=5000), tmp_path / "out")
    smaller = settings(tmp_path / "a.txt", vocab_size=45)
    build_corpus(smaller, tmp_path / "out")
    build_corpus(smaller, tmp_path / "fresh")
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_duplicate_documents_and_lines(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("A b.\nC d.\n\nE f.\nA b.\n\nA b.\nC d.\n\nC d.\n\nE f.\n")

    def documents_with(**selection):
        given = GivenTokenizer(path=str(tokenizer))
        chosen = settings(tmp_path / "a.txt", tokenizer=given, selection={"validation": 0.0, **selection})
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        build_corpus(chosen, tmp_path / "out")
        decode = Tokenizer.load(tokenizer).decode
        return [decode(document.ids).replace(" ", "") for document in all_documents(tmp_path / "out")]

    assert documents_with() == ["ab.cd.", "ef.ab.", "cd.", "ef."]
    assert documents_with(drop_documents=False) == ["ab.cd.", "ef.ab.", "ab.cd.", "cd.", "ef."]
    assert documents_with(drop_lines=True) == ["ab.cd.", "ef."]
    assert documents_with(min_chars=5) == ["ab.cd.", "ef.ab."]
    assert documents_with(max_chars=5) == ["cd.", "ef."]


SCRIPT = """
import sys
from encoderlab.corpus import assemble, blocks, build, duplicates, pieces
from encoderlab.config import from_dict
import json
blocks.BLOCK, blocks.RANGE, pieces.PIECE, pieces.BATCH = 2000, 8000, 3000, 1000
assemble.SHARD_TOKENS, duplicates.BUCKET = 4000, 100
settings = from_dict(build.BuildSettings, json.loads(sys.argv[1]))
build.build_corpus(settings, sys.argv[2], workers=int(sys.argv[3]))
"""


def test_killed_at_any_moment_it_continues_to_the_same_bytes(chosen, tmp_path):
    """SIGKILL at random moments, with one and two workers in turn, until a run gets through."""
    from encoderlab.config import to_dict

    build_corpus(chosen, tmp_path / "whole")
    out = tmp_path / "out"
    rng = random.Random(0)
    kills = 0
    for attempt in range(60):
        command = [sys.executable, "-c", SCRIPT, json.dumps(to_dict(chosen)), str(out), str(1 + attempt % 2)]
        process = subprocess.Popen(command, start_new_session=True)
        # Wait until work has begun, then for a random moment.
        deadline = time.monotonic() + 30
        before = names(out)
        while process.poll() is None and time.monotonic() < deadline and attempt < 12:
            if names(out) != before:
                time.sleep(rng.random() * 0.02 * attempt)  # early in the work, then anywhere
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        code = process.wait(timeout=120)
        kills += code == -signal.SIGKILL
        if code == 0:
            break
    assert kills >= 3
    assert digests(out) == digests(tmp_path / "whole")


def names(folder: Path) -> set[Path]:
    """Of what lies below ``folder``, which another process may be changing."""
    return set(folder.rglob("*")) if folder.exists() else set()


def test_an_interruption_between_any_two_steps_continues(chosen, tmp_path, monkeypatch):
    """The rename that makes a file appear fails once, at each of them in turn."""
    build_corpus(chosen, tmp_path / "whole")
    replace, renamed = os.replace, []

    class Killed(BaseException):
        pass

    def fail(source, target):
        replace_number = len(renamed)
        renamed.append(target)
        if replace_number == stop:
            raise Killed
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    stop, total = -1, None
    build_corpus(chosen, tmp_path / "counted")
    total = len(renamed)
    for stop in range(0, total, 7):
        renamed.clear()
        out = tmp_path / f"out{stop}"
        with pytest.raises(Killed):
            build_corpus(chosen, out)
        build_corpus(chosen, out)
        assert digests(out) == digests(tmp_path / "whole"), stop
        shutil.rmtree(out)


@pytest.mark.parametrize("number", [1, 2])
def test_killed_while_the_plan_is_written_it_continues(chosen, tmp_path, number):
    out = tmp_path / "out"
    plan = out / (".work/plan.json" if number == 1 else "plan.json")
    plan.parent.mkdir(parents=True)
    plan.with_name(".plan.json.999.tmp").write_text("{")
    build_corpus(chosen, out, num_shards=number)
    assert not list(out.rglob("*.tmp"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".plan.json").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        build_corpus(chosen, tmp_path / "other", num_shards=number)


def test_a_complete_corpus_is_left_alone(chosen, tmp_path):
    build_corpus(chosen, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    build_corpus(chosen, tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_chinese_words(tmp_path):
    pytest.importorskip("rjieba")
    text = "我们在北京大学学习自然语言处理。今天天气很好，BERT模型也不错！\n第二段没有标点"
    (tmp_path / "a.txt").write_text(text)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "bert", *sorted(set(text) - set("BERT\n "))]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    given = GivenTokenizer(path=str(tmp_path / "vocab.txt"))
    marks = {}
    for segmenter in (None, "characters", "rjieba"):
        chosen = settings(tmp_path / "a.txt", tokenizer=given, segmenter=segmenter, selection={"validation": 0.0})
        build_corpus(chosen, tmp_path / str(segmenter))
        (document,) = all_documents(tmp_path / str(segmenter))
        tokenizer = Tokenizer.load(tmp_path / str(segmenter) / "tokenizer")
        tokens = [tokenizer.token(int(index)) for index in document.ids]
        groups = np.split(np.array(tokens), np.flatnonzero(document.word_starts)[1:])
        marks[segmenter] = ["".join(group) for group in groups]
        assert [tokens[place] for place in document.sentences] == ["我", "今", "第"]
    assert marks[None] == marks["characters"] == tokens
    assert {"我们", "自然语言", "今天天气", "模型", "bert", "。", "很", "好"} & set(marks["rjieba"]) >= {
        "我们",
        "模型",
        "bert",
        "。",
    }
    assert "".join(marks["rjieba"]) == "".join(tokens)
    assert max(map(len, marks["rjieba"])) > 1


def test_peak_memory_does_not_grow_with_the_input(tmp_path):
    """66 MB in one process take about as much memory as 8 MB. (2 GB were measured by hand.)"""
    tokenizer = tmp_path / "tokenizer"
    block = sample_text(4000, words=3000)
    Tokenizer.train("wordpiece", [block[:1_000_000]], 1000).save(tokenizer)
    code = """
import re, sys
from encoderlab.corpus.build import *
settings = BuildSettings(sources=(sys.argv[1],), tokenizer=GivenTokenizer(path=sys.argv[2]))
build_corpus(settings, sys.argv[3])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])  # getrusage counts the parent's memory too
"""
    peaks = []
    for copies in (5, 40):
        path = tmp_path / f"{copies}.txt"
        with open(path, "w") as file:
            for number in range(copies):
                file.write(block.replace("Document ", f"Document {number} "))
        command = [sys.executable, "-c", code, str(path), str(tokenizer), str(tmp_path / f"out{copies}")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout) * 1024)
    assert path.stat().st_size > 60_000_000
    assert peaks[1] < 400e6 and peaks[1] < peaks[0] + 40e6


def test_a_script_needs_no_main_guard(text, tokenizer, tmp_path):
    """Workers do not import the program that starts them, so it is not run again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; print('once')\n"
        "from encoderlab.corpus.build import *\n"
        "settings = BuildSettings(sources=(sys.argv[1],), tokenizer=GivenTokenizer(path=sys.argv[2]))\n"
        "build_corpus(settings, sys.argv[3], workers=2)\n"
    )
    command = [sys.executable, str(script), str(text / "a.txt"), str(tokenizer), str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "once\n"


def test_a_merge_that_was_killed_continues_and_takes_no_other_parts(text, chosen, tokenizer, tmp_path):
    for number in range(2):
        build_corpus(chosen, tmp_path / f"part{number}", shard_index=number, num_shards=2)
    parts = [tmp_path / "part0", tmp_path / "part1"]
    merge_corpora(parts, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(assemble, "shard_record", lambda *args: 1 / 0)
        merge_corpora(parts, tmp_path / "merged")
    other = settings(text / "a.txt", tokenizer=GivenTokenizer(path=str(tokenizer)))
    build_corpus(other, tmp_path / "single0", shard_index=0, num_shards=2)
    build_corpus(other, tmp_path / "single1", shard_index=1, num_shards=2)
    with pytest.raises(ConfigError, match="a merge of other parts was started here"):
        merge_corpora([tmp_path / "single0", tmp_path / "single1"], tmp_path / "merged")
    with pytest.raises(ConfigError, match="has another corpus"):
        merge_corpora([tmp_path / "single0", tmp_path / "single1"], tmp_path / "whole")
    merge_corpora(parts, tmp_path / "merged")
    assert digests(tmp_path / "merged") == digests(tmp_path / "whole")
    (tmp_path / "merged" / ".work" / "assembly").mkdir(parents=True)  # killed when all but this was done
    merge_corpora(parts, tmp_path / "merged")
    assert not (tmp_path / "merged" / ".work").exists()


def test_a_merged_corpus_is_not_that_of_parts_with_another_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("red one cat\n\ntwo blue dogs\n\nthe mat is green\n")
    chosen = settings(tmp_path / "a.txt", tokenizer=GivenTokenizer(path=str(tmp_path / "tokenizer")))
    parts = {}
    for name, further in (("first", ()), ("second", ("dogs",))):
        tiny.tokenizer(further=further).save(tmp_path / "tokenizer")  # another one in the same place
        parts[name] = [tmp_path / f"{name}{number}" for number in range(2)]
        for number, part in enumerate(parts[name]):
            build_corpus(chosen, part, shard_index=number, num_shards=2)
    merge_corpora(parts["first"], tmp_path / "whole")
    with pytest.raises(ConfigError, match="whole: has another corpus"):
        merge_corpora(parts["second"], tmp_path / "whole")


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.txt.gz"])
def test_a_field_of_text_is_refused(tmp_path: Path, name: str) -> None:
    data = b"one two three\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(ConfigError, match=f"--field 'body': .*{name} is text, which has no fields"):
        build.resolve_sources([str(tmp_path / name)], Reading(field="body"))
    (tmp_path / "b.jsonl").write_text('{"body": "four"}\n')  # the field of a mixture is that of its records
    assert len(build.resolve_sources([str(tmp_path)], Reading(field="body"))) == 2
