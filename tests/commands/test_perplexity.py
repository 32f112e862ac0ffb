"""``encoderlab perplexity``: the numbers of the measure, for a model and a corpus with one tokenizer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from encoderlab import build, load
from encoderlab.cli import main
from encoderlab.corpus.shards import Corpus
from encoderlab.measure.evaluate_lm import LMProtocol, evaluate_lm
from tests.corpus.corpora import build_topics

TRAIN = ["pretrain", "transformer-xl-tiny", "--steps", "2", "--set", "phases=[{length: 32, rows: 4}]"]
TRAIN += ["--set", "evaluation.rows=4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("perplexity")
    build_topics(folder, 30, 600)
    assert main([*TRAIN, "--corpus", str(folder / "corpus"), "--out", str(folder / "run")]) == 0
    return folder


def test_the_command_prints_what_the_measure_finds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--split", "train", "--window", "16", "--memory", "40", "--streams", "2"]
    words = ["perplexity", str(place / "run"), "--corpus", str(place / "corpus"), *given]
    capsys.readouterr()
    assert main([*words, "--same-length", "--context", "--positions", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["models"][str(place / "run")]
    protocol = LMProtocol(window=16, memory=40, streams=2, same_length=True, separator=False)
    score = evaluate_lm(load(place / "run"), Corpus(place / "corpus", "train"), protocol)
    assert math.isclose(found["perplexity"], score.perplexity, rel_tol=1e-6) and found["tokens"] == score.tokens
    assert math.isclose(found["bits_per_byte"], score.bits_per_byte, rel_tol=1e-6)
    assert 100 <= found["effective_context"] <= 1000
    assert main([*words, "--same-length"]) == 0
    shown = capsys.readouterr().out
    assert f"{score.perplexity:,.2f}" in shown and "effective context" not in shown


def test_what_cannot_be_measured_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = ["--corpus", str(place / "corpus")]
    assert main(["perplexity", *corpus]) == 2 and "at least one model" in capsys.readouterr().err
    assert main(["perplexity", str(place / "run"), *corpus, "--window", "0"]) == 2
    assert "--window is 0; give at least 1" in capsys.readouterr().err
    assert main(["perplexity", str(place / "run"), *corpus, "--context", "--positions", "100000"]) == 2
    assert "100000 positions" in capsys.readouterr().err
    both = [word.replace("transformer-xl-tiny", "bert-tiny") for word in TRAIN]
    assert main([*both, "--corpus", str(place / "corpus"), "--out", str(place / "bert")]) == 0
    assert main(["perplexity", str(place / "bert"), *corpus]) == 2
    assert "bert: sees later tokens; give a left-to-right model" in capsys.readouterr().err


def test_every_model_is_checked_before_one_is_measured(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The messages name the model and the option."""
    monkeypatch.setattr("encoderlab.measure.evaluate_lm.evaluate_lm", lambda *given: pytest.fail("measured"))
    tokenizer = Corpus(place / "corpus", "train").tokenizer()
    short: dict[str, Any] = {"encoder.causal": True, "encoder.layers": 1, "encoder.position.length": 128}
    build("bert-tiny", tokenizer=tokenizer, **short).save(tmp_path / "short")
    build("bert-tiny", tokenizer=tokenizer, **short, lm=None).save(tmp_path / "bare")
    for name, options, message in (
        ("short", (), "short: --memory 640 needs relative positions, which it lacks; give --memory 0"),
        ("short", ("--memory", 0, "--window", 200), "short: --window 200 is longer than its 128 positions"),
        ("short", ("--memory", 0, "--context", "--positions", 3), "short: --context needs 1,000 positions"),
        ("short", ("--memory", 0, "--clamp", 4), "short: --clamp 4 limits sinusoidal distances"),
        ("short", ("--memory", 0, "--same-length"), "--memory is 0; leave --same-length out"),
        ("bare", ("--memory", 0), "bare: has no LM head"),
        ("run", (), "run: is given twice; name each model once"),
    ):
        both = [place / "run", (place if name == "run" else tmp_path) / name]
        words = ["perplexity", *both, "--corpus", place / "corpus", "--split", "train", *options]
        assert main(list(map(str, words))) == 2
        assert message in capsys.readouterr().err
