from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from encoderlab import cli
from encoderlab.corpus.shards import Document
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import sha256
from encoderlab.measure import runs
from encoderlab.measure.html_page import render
from encoderlab.measure.report import columns
from tests.corpus.corpora import write_corpus


def line(step: int, loss: float | None, split: str = "train", **more) -> dict:
    return {
        "split": split,
        "step": step,
        "tokens": 1000 * step,
        "seconds": 0.5 * step,
        "loss": loss,
        "losses": {"mlm": loss},
        "counts": {"mlm": 150},
        "lr": 1e-3,
        "accuracy": {"mlm": None if loss is None else 0.1},
        "bits_per_byte": {"mlm": loss and loss / 3},
        **more,
    }


def folder(
    place: Path,
    *lines: dict,
    vocab: int = 8000,
    command: tuple[str, ...] = ("encoderlab", "pretrain"),
    corpus: Path | None = None,
) -> Path:
    place.mkdir(parents=True)
    recipe = {"name": "bert-mini", "seed": 1, "model": {"encoder": {"vocab": vocab, "layers": 4, "width": 256}}}
    (place / "recipe.json").write_text(json.dumps(recipe))
    (place / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    session = {"command": command, "started": place.name}
    session |= {"data": {"corpus": sha256(corpus / "manifest.json")}} if corpus else {}
    (place / "provenance.json").write_text(json.dumps({"sessions": [session]}))
    return place


def test_a_last_line_that_was_cut_is_left_out(tmp_path, caplog):
    run = folder(tmp_path / "run", line(1, 9.0), line(2, 8.0))
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    assert [one["step"] for one in runs.read_run(run).train] == [1]
    assert "ignored the truncated last line" in caplog.text


@pytest.mark.parametrize("text", ["{\n", "7\n"])
def test_another_broken_line_is_named(tmp_path, text):
    run = folder(tmp_path / "run")
    (run / "metrics.jsonl").write_text(text)
    with pytest.raises(DataError, match="metrics.jsonl:1: not a JSON object"):
        runs.read_run(run)
    (run / "recipe.json").write_text('{"a":' * 100_000)
    with pytest.raises(DataError, match="recipe.json: is damaged .not valid JSON.; give a run folder"):
        runs.read_run(run)
    with pytest.raises(DataError, match="elsewhere: no such folder"):
        runs.read_run(tmp_path / "elsewhere")


def test_a_run_that_diverged_has_a_page(tmp_path):
    """Metrics hold null where there was no finite number."""
    lines = line(1, None), line(1, None, "valid"), {"split": "diverged", "step": 1, "tokens": 1000, "lr": 1.0}
    page = runs.report([folder(tmp_path / "run", *lines)])
    render(page)
    assert page.verdict == (
        "bert-mini read 1 k tokens in 0 s. bert-mini diverged after step 1: its gradient was not finite."
    )
    assert [label for label, _, _ in page.tiles] == ["Tokens read", "Time"]
    at_once = runs.report([folder(tmp_path / "other", lines[2])])
    assert at_once.verdict.startswith("bert-mini diverged after step 1")


def test_one_line_is_enough(tmp_path):
    page = runs.report([folder(tmp_path / "run", line(1, 9.0))])
    assert "bert-mini read 1 k tokens" in page.verdict and ("Loss", "9.00", "nats, on training text") in page.tiles


def test_a_loss_falls_from_held_out_to_held_out_text(tmp_path):
    lines = line(0, 8.0, "valid"), line(1, 9.0), line(2, 6.0), line(2, 7.0, "valid")
    page = runs.report([folder(tmp_path / "run", *lines)])
    assert ("Loss", "8.00 → 7.00", "nats, on held-out text") in page.tiles


@pytest.mark.parametrize("text", ['{"sessions": [{}]}', '{"sessions": null}', "{}"])
def test_a_session_without_its_command_leaves_it_out(tmp_path, text):
    run = folder(tmp_path / "run", line(1, 9.0))
    (run / "provenance.json").write_text(text)
    assert runs.report([run]).commands == []


def test_only_runs_that_predict_the_same_are_ranked(tmp_path):
    """With more hidden, or sampled from a generator, the same model needs other bits."""

    def verdict(*objectives: dict, corpora: int = 1, better: float = 1.0) -> str:
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        places = []
        for i, objective in enumerate(objectives):
            places.append(folder(place / f"run{i}", line(1, 9.0), line(1, 9.0 - better * i, "valid")))
            recipe = json.loads((places[-1] / "recipe.json").read_text()) | {"objective": objective}
            (places[-1] / "recipe.json").write_text(json.dumps(recipe))
            sessions = {"sessions": [{"data": {"corpus": str(i % corpora)}, "started": "", "command": ["encoderlab"]}]}
            (places[-1] / "provenance.json").write_text(json.dumps(sessions))
        return runs.report(places).verdict

    mlm, more = ({"kind": "mlm", "masking": {"rate": rate}, "pair_weight": 1.0} for rate in (0.15, 0.5))
    ranked = "run1 needs the fewest bits per byte of held-out text: 2.667."
    assert verdict(mlm, mlm | {"pair_weight": 0.0}) == ranked
    assert verdict(mlm, mlm, corpora=2).startswith(f"{ranked} Their corpora differ")
    assert verdict(mlm, mlm, better=0.0) == "run0 and run1 need the fewest bits per byte of held-out text: 3.000."
    for other in (more, mlm | {"kind": "rtd"}):
        assert verdict(mlm, other) == "2 runs, not ranked: they have no bits per byte of the same objective."


def test_runs_are_told_apart_by_their_folders(tmp_path):
    places = [
        folder(tmp_path / name / "run", line(1, loss), line(1, loss, "valid"))
        for name, loss in (("a", 9.0), ("b", 8.0), ("c", 7.0))
    ]
    page = runs.report(places)
    assert page.verdict == "c/run needs the fewest bits per byte of held-out text: 2.333."
    assert [run.name for run in page.runs] == list(page.compared) == ["a/run", "b/run", "c/run"]
    head, rows = columns(page.compared)
    assert dict(zip(head, rows["c/run"], strict=True))["Loss"] == "7.00"  # at the end, without the beginning
    other = folder(tmp_path / "d" / "ran", line(1, 9.0))
    rows = list(runs.report([places[0], other]).provenance)
    assert rows == ["Started, run", "Started, ran", "Hardware", "Seed"]  # what is the same in all stands once
    assert "c/run" in render(page)
    with pytest.raises(ConfigError, match="given twice"):
        runs.report([places[0], places[1], places[0] / ".." / "run"])


def test_losses_are_compared_with_guessing_where_the_vocabulary_is_one(tmp_path):
    one, two = folder(tmp_path / "a", line(1, 9.0)), folder(tmp_path / "b", line(1, 9.0), vocab=500)
    (metric,) = [metric for metric in runs.report([one]).metrics if metric.key == "losses.mlm"]
    assert metric.references == (("uniform guess: ln 8,000", math.log(8000)),)
    assert not any(metric.references for metric in runs.report([one, two]).metrics)


def test_a_corpus_that_the_run_was_not_trained_on_is_refused(tmp_path, capsys):
    document = Document(np.arange(4), np.zeros(1, np.int64), np.ones(4, bool), 9)
    for name in ("ours", "other"):
        write_corpus(tmp_path / name, {"train": [[document] * len(name)]}, vocab_size=8000)
    run = folder(tmp_path / "run", line(1, 9.0), corpus=tmp_path / "ours")
    assert cli.main(["report", str(run), "--corpus", str(tmp_path / "ours")]) == 0
    for verb in ("report", "doctor"):
        assert cli.main([verb, str(run), "--corpus", str(tmp_path / "other")]) == 2
        assert "run: not trained on" in capsys.readouterr().err
    (run / "provenance.json").write_text(json.dumps({"sessions": [{"data": {"train": "hash of a labelled file"}}]}))
    assert cli.main(["doctor", str(run), "--corpus", str(tmp_path / "ours")]) == 2
    assert "run: is a fine-tuning, and --corpus is for runs of pretraining" in capsys.readouterr().err


def test_what_is_only_counted_has_no_loss(tmp_path):
    shares = {"mlm": 0.1, "replaced": 0.9}
    counted = line(1, 9.0, losses={"mlm": 9.0, "replaced": 0.0}, counts={"mlm": 9, "replaced": 9}, accuracy=shares)
    labels = [metric.label for metric in runs.report([folder(tmp_path / "run", counted)]).metrics]
    assert labels == ["Loss", "MLM accuracy", "Replaced share", "Bits per byte"]


def test_the_command_can_be_run_again(tmp_path):
    words = ("__main__.py", "pretrain", "bert-mini", "--set", "phases=[{length: 64}]", "--corpus", "my notes")
    page = runs.report([folder(tmp_path / "run", command=words)])
    assert page.commands == ["encoderlab pretrain bert-mini --set 'phases=[{length: 64}]' --corpus 'my notes'"]


def test_a_page_is_written_without_torch():
    code = "import sys, encoderlab.measure.runs, encoderlab.measure.html_page; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
