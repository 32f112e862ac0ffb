"""The command over files: the numbers, the official scoring, baselines, interruption, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pytest
import torch

from encoderlab import files
from encoderlab.cli import main
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange.load import load
from encoderlab.measure.pairs import evaluate
from encoderlab.measure.pairs.baselines import WEIGHTS, Baselines
from encoderlab.measure.pairs.evaluate import survey
from encoderlab.measure.pairs.reading import find, read
from encoderlab.measure.pairs.scorers import scorers_of
from tests.corpus.corpora import build_topics


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a model of its tokenizer, and two files of pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    build_topics(folder, 12)
    from encoderlab import build

    tokenizer = Tokenizer.load(folder / "corpus" / "tokenizer")
    build("bert-tiny", tokenizer=tokenizer, **{"encoder.position.length": 48}).save(folder / "model")
    words = topics.topics["assert"].split()
    (folder / "pairs").mkdir()
    for name in ("first", "second"):
        rows = []
        for n in range(30):
            good = words[n : n + 5]
            bad = good if n == 3 else good[::-1]
            rows.append({"sentence_good": " ".join(good), "sentence_bad": " ".join(bad), "UID": f"{name}{n % 2}"})
        text = "".join(json.dumps(row | {"phenomenon": name}) + "\n" for row in rows)
        (folder / "pairs" / f"{name}.jsonl").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "home")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    capsys.readouterr()
    assert main(["minimal-pairs", *map(str, words), "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_the_command_counts_what_the_scorer_finds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, place / "model", place / "pairs", "--corpus", place / "corpus")
    assert list(found["measures"]) == ["pll", "pll_word", "frequency", "trigram"]
    assert (found["pairs"], found["measure"]) == (60, "pll") and len(found["equal_sentences"]) == 2
    assert list(found["paradigms"]) == ["first0", "first1", "second0", "second1"]
    assert found["accuracy"] == pytest.approx(np.mean([one["accuracy"] for one in found["paradigms"].values()]))
    model = load(place / "model")
    pairs = [pair for path in find([place / "pairs"]) for pair in read(path)]
    assert model.tokenizer is not None
    tables = evaluate.evaluate_pairs(scorers_of(model), model.tokenizer, pairs)
    for name, table in tables.items():
        assert found["measures"][name]["accuracy"] == table.total.accuracy
        assert found["measures"][name]["phenomena"]["first"]["accuracy"] == table.phenomena["first"].accuracy
    assert found["measures"]["frequency"]["ties"] == 60  # the same words in another order
    assert found["measures"]["trigram"]["accuracy"] > 0.9  # sentences of the corpus, forwards and backwards
    assert found["ties"] == 2 and found["paradigms"]["first1"]["ties"] == 1


def test_the_official_numbers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = run(capsys, place / "model", place / "pairs")
    official = run(capsys, place / "model", place / "pairs", "--scoring", "babylm")
    assert list(official["measures"]) == ["pll"] and official["ties"] == 2
    # each of two paradigms of 15 pairs has a tie, which counts half, or all
    assert official["accuracy"] == pytest.approx(full["accuracy"] + 2 * 0.5 / 15 / 4)


def test_a_hybrid_model_is_also_scored_both_ways_at_once(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPT-BERT's authors add both scores; ours come from small-en, which is such a model."""
    file = tmp_path / "pairs.jsonl"
    given = ["small-en", place / "pairs", "--length-power", "1"]
    found = run(capsys, *given, "--out", file)
    assert list(found["measures"]) == ["pll", "pll_word", "log_probability", "fused"] and found["measure"] == "pll"
    rows = [json.loads(line) for line in file.open()]
    margins = {name: [row["good"][name] - row["bad"][name] for row in rows] for name in found["measures"]}
    both = [sum(one) for one in zip(margins["pll"], margins["log_probability"], strict=True)]
    assert margins["fused"] == pytest.approx(both, abs=1e-9)
    right = np.mean([(margin > 0) + 0.5 * (margin == 0) for margin in margins["fused"]])
    assert found["measures"]["fused"]["accuracy"] == pytest.approx(right)  # paradigms of one size


def test_scores_divided_by_a_power_of_the_length(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for power in ("0", "0.5"):
        run(capsys, place / "model", place / "pairs", "--length-power", power, "--out", tmp_path / power)
    plain, divided = ([json.loads(line) for line in (tmp_path / name).open()] for name in ("0", "0.5"))
    tokenizer = Tokenizer.load(place / "corpus" / "tokenizer")
    assert len(plain) == 60
    for one, two in zip(plain, divided, strict=True):
        length = len(tokenizer.encode(one["sentence_bad"]))
        assert two["bad"]["pll"] == pytest.approx(one["bad"]["pll"] / length**0.5, rel=1e-12)


def stop_in_fourth_part(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Interrupt the fourth call of the scorer; returns a list that grows with each call."""
    score, calls = evaluate.score_pairs, list[int]()

    def stops(*given: object, **more: object) -> np.ndarray:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluate, "score_pairs", stops)
    return calls


def test_int8_scores_are_close_and_not_mixed_with_others(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "CHUNK", 7)
    words = [str(place / "model"), str(place / "pairs"), "--out"]
    run(capsys, *words, tmp_path / "whole")
    calls = stop_in_fourth_part(monkeypatch)
    assert main(["minimal-pairs", *words, str(tmp_path / "eight")]) == 130  # three parts are in fp32
    found = run(capsys, *words, tmp_path / "eight", "--precision", "int8")
    assert found["pairs"] == 60 and len(calls) == 4 + 9  # and none of them is taken
    both = [[json.loads(line) for line in (tmp_path / name).open()] for name in ("whole", "eight")]
    scores = np.array([[pair[kind]["pll"] for pair in pairs for kind in ("good", "bad")] for pairs in both])
    assert 0 < np.abs(scores[0] - scores[1]).max() < 0.05


def test_an_interrupted_evaluation_goes_on_to_the_same_bytes(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "CHUNK", 7)
    words = ["minimal-pairs", str(place / "model"), str(place / "pairs"), "--out"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    calls = stop_in_fourth_part(monkeypatch)
    assert main([*words, str(tmp_path / "cut")]) == 130
    part, sums = sorted(tmp_path.glob("cut.part-*"))
    text = part.read_bytes()
    assert text.count(b"\n") == 3 == sums.read_bytes().count(b"\n") and not (tmp_path / "cut").exists()
    part.write_bytes(text[:-40])  # and the last line is torn
    assert main([*words, str(tmp_path / "cut")]) == 0
    assert len(calls) == 4 + (60 - 2 * 7 + 6) // 7
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob("*.part-*")) and not list((tmp_path / "home").rglob("minimal-pairs/*"))
    capsys.readouterr()


def swap_two_words(model: Path) -> None:
    parts = json.loads((model / "tokenizer.json").read_text())
    vocabulary = parts["model"]["vocab"]
    vocabulary["the"], vocabulary["a"] = vocabulary["a"], vocabulary["the"]
    (model / "tokenizer.json").write_text(json.dumps(parts))


def change_the_activation(model: Path) -> None:
    fields = json.loads((model / "config.json").read_text())
    fields["encoder"]["activation"] = "relu"
    (model / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("correct", [swap_two_words, change_the_activation])
def test_scores_of_another_model_are_not_mixed(
    correct: Callable[[Path], None],
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the same weights whose tokenizer or configuration was corrected after an interruption."""
    monkeypatch.setattr(evaluate, "CHUNK", 7)
    model = shutil.copytree(place / "model", tmp_path / "model")
    words = ["minimal-pairs", str(model), str(place / "pairs"), "--out"]
    stop_in_fourth_part(monkeypatch)
    assert main([*words, str(tmp_path / "cut")]) == 130
    correct(model)
    (model / "SHA256SUMS").unlink()
    for name in ("cut", "whole"):
        assert main([*words, str(tmp_path / name)]) == 0
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    capsys.readouterr()


def test_a_pair_too_long_for_the_model_is_refused_or_left_out(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("a b\nb a\n" + "word " * 60 + "\nword\n")
    assert main(["minimal-pairs", str(place / "model"), str(path)]) == 3
    error = capsys.readouterr().err
    assert f"{path}:3: a sentence of" in error and "the model reads 46" in error and "--skip-long" in error
    found = run(capsys, place / "model", path, "--skip-long")
    assert found["pairs"] == 1 and found["left_out"] == [f"{path}:3"]
    path.write_text("word " * 60 + "\nword\n")
    assert main(["minimal-pairs", str(place / "model"), str(path), "--skip-long"]) == 3
    assert "1 too long for the model, and no other" in capsys.readouterr().err


def test_what_cannot_be_scored_is_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = str(place / "model"), str(place / "pairs")
    for words, code, message in (
        ([model], 2, "no minimal pairs to score"),
        ([model, data, "--scoring", "babylm", "--length-power", "0.5"], 2, "leave out --length-power"),
        ([model, data, "--scoring", "babylm", "--precision", "int8"], 2, "leave out --precision"),
        ([model, data, "--length-power", "2"], 2, "expected a number from 0 to 1"),
        ([model, str(tmp_path / "absent")], 3, "no such file or folder"),
        ([str(tmp_path), data], 3, "has no config.json"),
        ([model, data, "--out", f"{data}/scores.jsonl"], 2, "is inside"),  # it would be read as pairs next time
        ([model, data, f"{data}/../pairs"], 3, "given twice"),
        ([model, data, "--corpus", data], 3, "no corpus here"),
    ):
        assert main(["minimal-pairs", *words]) == code
        said = " ".join(capsys.readouterr().err.split())
        assert message in said and "pairs: scored" not in said
    (tmp_path / "nothing.txt").write_text("\x00 \x01\nword\n")
    assert main(["minimal-pairs", model, str(tmp_path / "nothing.txt")]) == 3
    assert "nothing.txt:1: a sentence without tokens" in capsys.readouterr().err


def test_scores_that_are_not_finite_are_no_mistakes(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(place / "model")
    with torch.no_grad():
        next(model.encoder.block(0).feed_forward.parameters()).fill_(1e38)
    model.save(tmp_path / "large")
    assert main(["minimal-pairs", str(tmp_path / "large"), str(place / "pairs"), "--out", str(tmp_path / "o")]) == 3
    assert ".jsonl:1: a score is not a finite number; use another checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_home_that_cannot_be_written_is_named_with_the_remedy(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").write_text("a file, where a folder is needed")
    command = ["minimal-pairs", str(place / "model"), str(place / "pairs")]
    assert main(command) == 2
    assert "set ENCODERLAB_HOME to a folder that can be" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "pairs.jsonl")]) == 0


def test_a_paradigm_may_be_called_anything(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "halves.jsonl"
    path.write_text('{"good": "a \\ud83d", "bad": "b", "UID": "\\udc00 [red]"}\n')
    assert main(["minimal-pairs", str(place / "model"), str(path), "--out", str(tmp_path / "scores.jsonl")]) == 0
    assert "[red]" in capsys.readouterr().out
    assert json.loads((tmp_path / "scores.jsonl").read_text())["UID"] == "\udc00 [red]"


def test_a_paradigm_is_of_one_phenomenon(place: Path, tmp_path: Path) -> None:
    """A file of MultiBLiMP has several phenomena and no paradigms."""
    tokenizer = Tokenizer.load(place / "corpus" / "tokenizer")
    (tmp_path / "data.tsv").write_text("sen\twrong_sen\tphenomenon\na b\tb a\tSV-#\nc d\td c\tSP-G\ne f\tf e\tSV-#\n")
    found = survey([tmp_path / "data.tsv"], tokenizer)
    assert found.paradigms == {"data SV-#": "SV-#", "data SP-G": "SP-G"}
    (tmp_path / "a.tsv").write_text("good\tbad\tUID\tphenomenon\na b\tb a\tu\tSV-#\nc d\td c\tu\tSP-G\n")
    with pytest.raises(DataError, match=r"a.tsv:3: paradigm 'u' has phenomenon 'SP-G', and 'SV-#' before"):
        survey([tmp_path / "a.tsv"], tokenizer)


def test_baselines_are_mixtures_of_relative_frequencies(place: Path) -> None:
    corpus = Corpus(place / "corpus")
    tokenizer = corpus.tokenizer()
    texts = ["an assert statement", "The assert", "zebra zebra zebra", "statements"]
    sentences = tokenizer.encode_batch(texts)
    found = Baselines(corpus, tokenizer, iter(sentences))(sentences)
    documents = [corpus.document(n).ids.tolist() for n in range(corpus.num_documents)]

    def count(*gram: int) -> int:
        return sum(tuple(ids[i : i + len(gram)]) == gram for ids in documents for i in range(len(ids) - len(gram) + 1))

    total = corpus.num_tokens + tokenizer.vocab_size
    for sentence, (frequency, trigram) in zip(sentences, found, strict=True):
        ids = sentence.ids.tolist()
        shares = [(count(x) + 1) / total for x in ids]
        assert frequency == pytest.approx(sum(map(math.log, shares)))
        expected = 0.0
        for i, x in enumerate(ids):
            top, weight = WEIGHTS[0] * shares[i], WEIGHTS[0]
            for order in (2, 3):
                if i >= order - 1 and (context := count(*ids[i - order + 1 : i])):
                    top += WEIGHTS[order - 1] * count(*ids[i - order + 1 : i], x) / context
                    weight += WEIGHTS[order - 1]
            expected += math.log(top / weight)
        assert trigram == pytest.approx(expected)
