"""The text to adapt to, what is held out of it, and how much of the general text is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoderlab.adapt import measure
from encoderlab.adapt import text as texts
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.model import build
from tests.adapt.small import WORDS, natural, prose, varied, words_of
from tests.terminal import answer, messages


def test_text_that_is_not_utf_8_is_said(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    text = tmp_path / "latin.txt"
    words = words_of(place, tmp_path / "out", "--vocabulary", "new")
    words[2] = str(text)
    text.write_bytes("\n\n".join(prose([*WORDS, "café"], 90, 4)).encode("latin-1"))
    number = text.read_bytes().count(b"\xe9")
    said = f"{number} characters were not valid UTF-8 and became U+FFFD, in {text} ({number}); convert the file"
    assert number > 50 and said in answer(capsys, *words)[1]


def parts_of(place: Path, wanted: float | None = None) -> tuple[list[str], list[str]]:
    """The documents of a file to train on, and those that are held out."""
    text = texts.SourceText([str(place)])
    amounts = texts.split(text, texts.choose(text.lots, wanted), place.with_suffix(".a"), place.with_suffix(".b"))
    parts = texts.read(place.with_suffix(".a")), texts.read(place.with_suffix(".b"))
    assert [(one.documents, one.characters) for one in amounts] == [(len(p), sum(map(len, p))) for p in parts]
    assert not {*parts[0]} & {*parts[1]}
    return parts


def test_held_out_text_is_decided_by_the_documents_alone(place: Path, tmp_path: Path) -> None:
    lines = (place / "law.txt").read_text().split("\n\n")
    (tmp_path / "law.txt").write_text("\n\n".join(lines))
    (tmp_path / "turned.txt").write_text("\n\n".join([*reversed(lines), lines[0]]))
    for wanted in (None, 3000):
        parts, turned = (parts_of(tmp_path / name, wanted) for name in ("law.txt", "turned.txt"))
        assert [set(part) for part in parts] == [set(part) for part in turned]
        assert wanted or len(parts[0]) + len(parts[1]) == 90


@pytest.mark.parametrize("characters", [texts.LEAST, 40_000, 80_000])
@pytest.mark.parametrize("line", [60, 700, 10**6])
def test_the_least_text_is_enough(tmp_path: Path, characters: int, line: int) -> None:
    """Some is held out of every text, and what stays is enough to validate on two documents."""
    for seed in range(1, 13):
        (tmp_path / "text.txt").write_text(natural(seed, characters, line))
        texts.SourceText([str(tmp_path / "text.txt")]).check()
        train, apart = parts_of(tmp_path / "text.txt")
        assert apart and len(train) >= texts.TRAINED and min(map(len, [*train, *apart])) > 200
        kept = "".join("".join(sorted([*train, *apart])).split())
        assert len(kept) == len("".join((tmp_path / "text.txt").read_text().split()))  # nothing is lost


@pytest.mark.parametrize("family", ["xlnet", "transformer-xl"])
def test_the_least_text_is_enough_for_families_that_read_streams(
    family: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    text = " ".join(varied(400))[: texts.LEAST - 1] + "."
    (tmp_path / "text.txt").write_text(text)
    settings = ("unigram", "xlnet") if family == "xlnet" else ("wordpiece", "bert")
    tokenizer = Tokenizer.train(settings[0], [text], 300, family=settings[1])
    size = {"encoder.layers": 1, "encoder.width": 32, "encoder.heads": 2, "encoder.ff_width": 64}
    size |= {"encoder.adaptive.cutoffs": [200]} if family == "transformer-xl" else {}
    build(f"{family}-tiny", tokenizer=tokenizer, **size).save(tmp_path / "model")
    words = ["adapt", str(tmp_path / "model"), str(tmp_path / "text.txt"), "--out", str(tmp_path / "out")]
    found, _ = answer(capsys, *words, "--passes", "0.5")
    assert found["training"]["steps"] == found["training"]["planned"] or found["training"]["held"]
    again, said = answer(capsys, *words, "--passes", "0.5")
    assert again["gains"] == found["gains"] and "stage:" not in said


def test_text_that_only_repeats_itself(place: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "same.txt").write_text("the river of the court\n" * 2000)
    words = words_of(place, tmp_path / "out")
    words[2] = str(tmp_path / "same.txt")
    assert "repeats itself, with" in messages(capsys, 3, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wanted", [1, 300, 2_222, 30_000])
@pytest.mark.parametrize(("documents", "size"), [(60, 5_000), (200, 300), (2, 50_000), (1, 100_000)])
def test_as_much_is_replayed_as_was_asked(tmp_path: Path, documents: int, size: int, wanted: int) -> None:
    for seed in range(3):
        whole = [natural(97 * seed + number + 1, size, 80) for number in range(documents)]
        (tmp_path / "text.txt").write_text("\n\n".join(whole))
        train, apart = parts_of(tmp_path / "text.txt", wanted)
        found = sum(map(len, train))
        assert train and apart and wanted <= found + len(train) <= wanted + 100 + len(train)
        assert all(any(part in document for document in whole) for part in train)


def test_replay_is_short_only_if_the_text_is(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    rich = tmp_path / "rich.txt"
    rich.write_text("\n\n".join(natural(number + 1, 20_000, 80) for number in range(45)))
    words = words_of(place, tmp_path / "out")
    words[words.index("--replay") + 1] = str(rich)
    found, said = answer(capsys, *words)
    share = found["text"]["general"]["characters"] / sum(
        found["text"][kind]["characters"] for kind in ("domain", "general")
    )
    assert share == pytest.approx(0.1, abs=0.01) and "text is short" not in said
    rich.write_text("\n".join(prose(WORDS, 4, 3)))
    words[words.index("--out") + 1] = str(tmp_path / "short")
    assert "general text is short" in answer(capsys, *words)[1]
    rich.write_text("the river")
    words[words.index("--out") + 1] = str(tmp_path / "one")
    assert "too little text to replay some and hold some out" in messages(capsys, 3, *words)
    words += ["--replay-share", "0"]  # then it is only measured
    assert answer(capsys, *words)[0]["gains"]["general"]["before"] > 0
