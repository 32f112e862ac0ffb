"""Damage to any file of a corpus, of a part, and of a build that was interrupted: refused by name, or mended."""

from __future__ import annotations

import mmap
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from encoderlab import cli
from encoderlab.corpus import assemble, blocks, merge, pieces, tensors
from encoderlab.corpus.build import GivenTokenizer, build_corpus
from encoderlab.corpus.manifest import verify
from encoderlab.corpus.merge import merge_corpora
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from tests.corpus.corpora import digests, sample_text, settings


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    for module, name, value in [
        (blocks, "BLOCK", 2000),
        (blocks, "RANGE", 8000),
        (pieces, "PIECE", 3000),
        (assemble, "SHARD_TOKENS", 6000),
    ]:
        monkeypatch.setattr(module, name, value)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    (folder / "a.txt").write_text(sample_text(40))
    Tokenizer.train("wordpiece", [(folder / "a.txt").read_text()], 300).save(folder / "tokenizer")
    return settings(folder / "a.txt", tokenizer=GivenTokenizer(path=str(folder / "tokenizer")))


class Killed(BaseException):
    pass


def kill(*args, **kwargs):
    raise Killed


def flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


DAMAGES = [flip, flip, cut, delete]


def cases(whole: Path) -> Iterator[tuple[Path, Callable[[Path, random.Random], None]]]:
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.stat().st_size)
    return ((file, damage) for file in files for damage in DAMAGES)


def damaged(whole: Path, folder: Path, file: Path, damage: Callable[[Path, random.Random], None], seed: int) -> str:
    """A copy of ``whole`` at ``folder`` with one file damaged; what to print if a test fails with it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    before = (folder / file).read_bytes()
    damage(folder / file, random.Random(f"{file} {damage.__name__} {seed}"))
    assert not (folder / file).exists() or (folder / file).read_bytes() != before
    return f"{damage.__name__} of {file}, seed {seed}"


@pytest.mark.parametrize("stage", ["plan", "write_manifest"])
def test_an_interrupted_build_mends_any_file_of_its_own(stage, chosen, tmp_path, monkeypatch, caplog):
    """Killed before the pieces are joined, and when all but the manifest is written."""
    build_corpus(chosen, tmp_path / "expected")
    expected = digests(tmp_path / "expected")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(merge, stage, kill)
        build_corpus(chosen, tmp_path / "killed")
    out = tmp_path / "out"
    seen = set()
    for seed, (file, damage) in enumerate(cases(tmp_path / "killed")):
        case = damaged(tmp_path / "killed", out, file, damage, seed)
        caplog.clear()
        build_corpus(chosen, out)
        assert digests(out) == expected, case
        rewritten = file.parts[:2] == (".work", "assembly") and file.suffix not in (".json", ".counts")
        if not rewritten and file.parts[0] != "tokenizer":
            assert file.name in caplog.text or str(file.parent) in caplog.text, case
        seen.add(file.name)
    assert {"plan.json", "part.json", "tokenizer.json", "tokenizer_config.json", "000000-00000.safetensors"} <= seen


def test_a_complete_corpus_is_verified_when_it_is_asked_for_again(chosen, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    build_corpus(chosen, whole)
    for seed, (file, damage) in enumerate(cases(whole)):
        case = damaged(whole, out, file, damage, seed)
        before = digests(out)
        if file.name == "manifest.json" and damage is delete:
            continue  # no corpus any more: a folder that holds something else
        with pytest.raises(DataError, match=f"{file.name}.*(delete {out} and build the corpus|give another folder)"):
            pytest.fail(f"{case}: {build_corpus(chosen, out)}")  # which a second build alone would not mend
        with pytest.raises(DataError, match=file.name):
            pytest.fail(f"{case}: {verify(out)}")
        assert digests(out) == before, case


def test_a_damaged_part_is_refused_by_name_and_mended_by_its_own_build(chosen, tmp_path, caplog):
    for index in range(2):
        build_corpus(chosen, tmp_path / f"part{index}", shard_index=index, num_shards=2)
    merge_corpora([tmp_path / "part0", tmp_path / "part1"], tmp_path / "expected")
    whole, part = digests(tmp_path / "expected"), tmp_path / "damaged"
    before = digests(tmp_path / "part0")
    for seed, (file, damage) in enumerate(cases(tmp_path / "part0")):
        case = damaged(tmp_path / "part0", part, file, damage, seed)
        if file.name != "plan.json":
            with pytest.raises(DataError, match=f"{file.name}|an unfinished part"):
                merge_corpora([part, tmp_path / "part1"], tmp_path / "merged")
        caplog.clear()
        build_corpus(chosen, part, shard_index=0, num_shards=2)
        assert digests(part) == before and file.name in caplog.text, case
    merge_corpora([part, tmp_path / "part1"], tmp_path / "merged")
    assert digests(tmp_path / "merged") == whole


def test_a_file_of_another_piece_is_not_taken(chosen, tmp_path, monkeypatch, caplog):
    """Its checksum is right, but it says what it is."""
    build_corpus(chosen, tmp_path / "expected")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(merge, "plan", kill)
        build_corpus(chosen, tmp_path / "out")
    folder = tmp_path / "out" / ".work" / "pieces"
    shutil.copy(folder / "000001-00000.safetensors", folder / "000000-00000.safetensors")
    build_corpus(chosen, tmp_path / "out")
    assert "000000-00000.safetensors: damaged, or of another origin; made again" in caplog.text
    assert digests(tmp_path / "out") == digests(tmp_path / "expected")


def test_a_tokenizer_that_was_removed_is_made_again_and_named(chosen, tmp_path, monkeypatch, caplog):
    build_corpus(chosen, tmp_path / "expected")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(merge, "plan", kill)
        build_corpus(chosen, tmp_path / "out")
    shutil.rmtree(tmp_path / "out/.work/tokenizer")
    build_corpus(chosen, tmp_path / "out")
    assert "tokenizer: missing; made again" in caplog.text
    assert digests(tmp_path / "out") == digests(tmp_path / "expected")


def test_the_folder_of_someone_else_is_left_alone(chosen, tmp_path):
    """A tokenizer, and pieces of something, but no build of ours."""
    Tokenizer.load(chosen.tokenizer.path).save(tmp_path / "out" / "tokenizer")
    before = digests(tmp_path)
    with pytest.raises(Exception, match="not empty, and has no corpus"):
        build_corpus(chosen, tmp_path / "out", num_shards=2)
    assert digests(tmp_path) == before


def test_a_corpus_that_is_truncated_while_it_is_mapped(chosen, tmp_path):
    """Reading on would end the process by SIGBUS."""
    build_corpus(chosen, tmp_path / "out")
    corpus = Corpus(tmp_path / "out")
    corpus.document(0)
    path = tmp_path / "out" / corpus.manifest.splits["train"].shards[0].file
    with open(path, "r+b") as file:
        file.truncate(mmap.PAGESIZE)
    for read in (corpus.document, corpus.document_length, corpus.document_start):
        with pytest.raises(DataError, match=f"{path.name}: truncated while in use, 4,096 of .* bytes"):
            read(0)
    mapped = tensors.map_tensors(tmp_path / "out" / "validation" / "shard-00000.safetensors")
    mapped.check_size()


@pytest.mark.parametrize("thread", [False, True])
def test_a_file_that_is_truncated_between_the_check_and_the_read(thread, tmp_path):
    """SIGBUS, in a process of its own: a line that names the file, and the exit code of damaged data."""
    path = tmp_path / "tokens.safetensors"
    tensors.write_tensors(path, {"ids": np.arange(1_000_000, dtype=np.uint32)})
    code = (
        "import os, threading; from pathlib import Path; from encoderlab.corpus import tensors\n"
        f"path = Path({str(path)!r}); mapped = tensors.map_tensors(path); os.truncate(path, 100_000)\n"
        "def read(): print(mapped['ids'][900_000:].sum())\n"
        + ("one = threading.Thread(target=read); one.start(); one.join()" if thread else "read()")
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 3 and not ended.stdout
    assert ended.stderr.strip() == (
        f"error: {path}: truncated while in use, 100,000 of 4,000,080 bytes; restore it, or build it again"
    )


def test_a_resumed_build_shows_how_far_it_is(chosen, tmp_path, monkeypatch):
    shown: list[tuple[str, int, int | None]] = []
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(merge, "plan", kill)
        build_corpus(chosen, tmp_path / "out", progress=lambda *report: shown.append(report))
    size = Path(chosen.sources[0]).stat().st_size
    steps = [done for what, done, total in shown if what == "bytes of text" and total == size]
    assert steps == sorted(steps) and steps[-1] == size and len(steps) >= 3
    for removed in (1, 0):  # the last pieces from this one on
        for path in sorted((tmp_path / "out" / ".work" / "pieces").iterdir())[removed:]:
            path.unlink()
        (tmp_path / "out" / ".work" / "part.json").unlink()
        shown.clear()
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(merge, "plan", kill)
            build_corpus(chosen, tmp_path / "out", progress=lambda *report: shown.append(report))
        resumed = [done for what, done, total in shown if what == "bytes of text"]
        assert resumed == steps[-len(resumed) :] and len(resumed) >= len(steps) - removed, removed


RUSSIAN = "Это русский текст, которого словарь не знает. " * 50


def test_a_tokenizer_that_does_not_cover_the_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *"abcdefgh"]))
    Path("a.txt").write_text("\n\n".join(f"{RUSSIAN}\n{'a b c. ' * number}" for number in range(60)))
    words = ["corpus", "build", "a.txt", "--tokenizer", "vocab.txt", "--workers", "1"]
    assert cli.main([*words, "--out", "out"]) == 3
    said = capsys.readouterr().err
    assert "of the tokens are unknown, more than 20%" in said and said.count("\n") == 1
    assert not list(Path("out").rglob("pieces/*"))
    assert cli.main([*words, "--out", "out", "--max-unknown", "1"]) == 0
    assert "% of the tokens are unknown: the tokenizer does not cover this text well" in capsys.readouterr().err
    assert cli.main([*words, "--out", "other", "--max-unknown", "2"]) == 2
    assert "max_unknown 2.0, expected a share from 0 to 1" in capsys.readouterr().err
    Path("b.txt").write_text("a b c.\n\n" * 20000 + "\n\n".join(f"{RUSSIAN} {number}" for number in range(300)))
    monkeypatch.setattr(blocks, "BLOCK", 4 << 20)
    words[2] = "b.txt"
    assert cli.main([*words, "--out", "late", "--keep-duplicates", "--max-unknown", "0.1"]) == 3
    assert "of the tokens are unknown, more than 10%" in capsys.readouterr().err
    assert not Path("late/manifest.json").exists()


def test_what_is_passed_over_is_counted_by_kind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("in/deep").mkdir(parents=True)
    for name in ("a.pdf", "deep/b.PDF", "c.html", "d.png", "e.jpg", "f.py", "g.xyz", "README", "empty.txt"):
        Path("in", name).write_text("" if name == "empty.txt" else "%PDF")
    Path("in/a.txt").write_text(sample_text(20))
    with zipfile.ZipFile("in/z.zip", "w") as archive:
        archive.writestr("x.txt", sample_text(5, seed=1))
        archive.writestr("y.docx", "PK")
    words = ["corpus", "build", "--out", "out", "--vocab-size", "300", "--workers", "1"]
    assert cli.main([*words, "in"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "in: 2 of 11 files are read; passed over: PDF 2, images 2, without suffix 1, HTML 1, code 1, .xyz 1, empty 1"
        in said
    )
    assert "in/z.zip: 1 of 2 files are read; passed over: office documents 1" in said


def test_undecodable_bytes_are_reported_with_their_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(sample_text(20))
    Path("b.txt").write_bytes(sample_text(5, seed=1).encode() + b"\n\nbad \xff\xff bytes\n")
    Path("c.txt").write_bytes(sample_text(5, seed=2).encode() + b"\n\nworse \xff\xff\xff bytes\n")
    words = ["corpus", "build", "a.txt", "b.txt", "c.txt", "--vocab-size", "300", "--workers", "1"]
    assert cli.main([*words, "--out", "out"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "5 characters were not valid UTF-8 and became U+FFFD, in c.txt (3), b.txt (2);" in said


def test_two_files_of_one_name_in_an_archive(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning), zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("x.txt", sample_text(5, seed=1))
        archive.writestr("x.txt", sample_text(5, seed=2))
    assert cli.main(["corpus", "build", "a.zip", "--out", "out", "--workers", "1"]) == 3
    assert "a.zip: two files in the archive are called x.txt; unpack it" in " ".join(capsys.readouterr().err.split())
