"""The stages of an adaptation: done once, resumed, and what is refused before any work."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from encoderlab.adapt import measure
from encoderlab.adapt import run as stages
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.deploy.sentence_transformers import TextVectors, vectors_of
from encoderlab.files import sha256
from encoderlab.interchange import huggingface, places
from encoderlab.interchange.load import load, load_pair
from encoderlab.model import Model, build
from tests.adapt.small import LAW, WORDS, prose, words_of
from tests.hub import hub_of_this_process
from tests.interchange.tiny_models import same_weights
from tests.terminal import answer, messages


class Killed(BaseException):
    """The end of a session."""


def test_the_whole_road_and_again(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """Killed in the training, the same command goes on to the same bits; finished, it does nothing again."""
    monkeypatch.setattr(measure, "PIECES", 6)
    more = ["--vocabulary", "extend:8", "--pairs", str(place / "pairs.txt")]
    found, _ = answer(capsys, *words_of(place, tmp_path / "a", *more))
    assert found["vocabulary"]["tokens"][1] == found["vocabulary"]["tokens"][0] + 8
    assert set(found["vocabulary"]["words"]) <= set(LAW)
    for kind in ("domain", "general"):
        one = found["gains"][kind]
        assert one["measure"] == "pll_word" and one["before"] > 0 and one["after"] > 0 and one["bytes"] > 200
    assert found["gains"]["domain"]["tokens"][1] < found["gains"]["domain"]["tokens"][0]
    assert found["before"]["pairs"]["pairs"] == 1
    page = (tmp_path / "a" / "report.html").read_text()
    assert re.search(r"Domain: (no clear change|[\d.]+% (fewer|more) )", page)
    assert load(tmp_path / "a").tokenizer.id(found["vocabulary"]["words"][0]) is not None
    assert vectors_of(tmp_path / "a/model") == vectors_of(place / "model") != TextVectors()

    begun = [path.stat().st_mtime_ns for path in sorted((tmp_path / "a" / "stages").iterdir())]
    again, said = answer(capsys, *words_of(place, tmp_path / "a", *more))
    assert "stage:" not in said and again["gains"] == found["gains"]
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "a" / "stages").iterdir())] == begun

    saved = stages.save

    def killed(model, generator, folder, *also):
        if folder.name == "model":
            raise Killed
        saved(model, generator, folder, *also)

    monkeypatch.setattr(stages, "save", killed)
    with pytest.raises(Killed):
        answer(capsys, *words_of(place, tmp_path / "b", *more))
    monkeypatch.setattr(stages, "save", saved)
    shutil.rmtree(sorted((tmp_path / "b/run/checkpoints").glob("step-*"))[-1])  # and back to an earlier step
    other, _ = answer(capsys, *words_of(place, tmp_path / "b", *more))
    assert same_weights(load(tmp_path / "a"), load(tmp_path / "b"))
    assert other["gains"] == found["gains"]
    assert "has another adaptation (vocabulary was" in messages(capsys, 2, *words_of(place, tmp_path / "a"))


def test_whatever_is_damaged_is_made_again_or_named(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """Every file that a finished adaptation reads again."""
    monkeypatch.setattr(measure, "PIECES", 2)
    out = tmp_path / "out"
    found, _ = answer(capsys, *words_of(place, out))
    whole = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file() and not path.is_symlink()}
    weights = sha256(out / "model" / "model.safetensors")
    for number, path in enumerate(whole):
        if path.parts[len(out.parts)] not in ("given", "text", "stages", "model", "plan.json", "adapt.json"):
            continue
        if path.name in ("README.md", "SHA256SUMS") or path.parent == out / "given/1_Pooling":
            continue
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        kind = ("flip", "delete", "cut")[number % 3]
        path.unlink() if kind == "delete" else path.write_bytes(data[: len(data) if kind == "flip" else len(data) // 2])
        try:
            again, said = answer(capsys, *words_of(place, out))
        except AssertionError:
            said = messages(capsys, 3, *words_of(place, out))
            assert path.parent.name == "given" and path.name in said, (path, kind, said)
            path.write_bytes(whole[path])
            continue
        gone = kind == "delete" and path.parent.name != "stages"  # plan.json, or a folder that is made whole again
        assert path.name in said or gone or path.name == "adapt.json", (path, kind, said)
        assert again["gains"] == found["gains"] and sha256(out / "model" / "model.safetensors") == weights, path
        assert not path.parent.name == "text" or path.read_bytes() == whole[path]


def test_text_that_has_changed_since_is_not_mixed_with_what_was_measured(place: Path, tmp_path: Path, capsys) -> None:
    text = tmp_path / "law.txt"
    text.write_bytes((place / "law.txt").read_bytes())
    words = [str(text) if word == str(place / "law.txt") else word for word in words_of(place, tmp_path / "out")]
    answer(capsys, *words)
    text.write_text(text.read_text().replace("court", "stone"))
    answer(capsys, *words)  # the copy is what counts
    (tmp_path / "out/text/domain.jsonl").unlink()
    assert "with other settings or other text" in messages(capsys, 2, *words)


def test_labels_and_pairs_that_have_changed_since_are_not_compared(place: Path, tmp_path: Path, capsys, monkeypatch):
    """What was measured before the training cannot be compared with measures on other files after it."""

    def killed(self: stages.Adaptation) -> None:
        raise Killed

    monkeypatch.setattr(measure, "PIECES", 2)
    monkeypatch.setattr(measure, "task", lambda *given: {"seeds": [0.5], "mean": 0.5})
    monkeypatch.setattr(stages.Adaptation, "_train", killed)
    pairs, task = (Path(shutil.copy(place / name, tmp_path)) for name in ("pairs.txt", "task.csv"))
    words = words_of(place, tmp_path / "out", "--pairs", str(pairs), "--task", str(task), "--seeds", "1")
    with pytest.raises(Killed):
        answer(capsys, *words)
    for path, part in ((pairs, "pairs-before.json"), (task, "task-before.json")):
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"the ", b"a "))
        said = messages(capsys, 2, *words)
        assert f"{part}: was measured on other content of {path}; restore" in said
        path.write_bytes(whole)


def test_fine_tuning_before_and_after(place: Path, tmp_path: Path, monkeypatch) -> None:
    found = measure.task(load(place / "model"), place / "task.csv", tmp_path / "task", 1)
    assert found["seeds"] == [found["mean"]] and found["interval"] is None and found["examples"][1] > 0
    assert found == measure.task(load(place / "model"), place / "task.csv", tmp_path / "task", 1)  # read, not run again


def test_a_task_is_fine_tuned_as_the_verb_does(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    found, _ = answer(capsys, *words_of(place, tmp_path / "out", "--task", str(place / "task.csv"), "--seeds", "1"))
    for when, model in (("before", place / "model"), ("after", tmp_path / "out")):
        words = ["finetune", place / "task.csv", "--model", model, "--out", tmp_path / when, "--seeds", "1"]
        answer(capsys, *words)
        tuned = [
            folder / "runs/seed-1/model/model.safetensors"
            for folder in (tmp_path / "out/tasks" / when, tmp_path / when)
        ]
        assert sha256(tuned[0]) == sha256(tuned[1])
        assert len(found[when]["task"]["seeds"]) == 1


def test_a_model_of_the_hub_stays_at_its_commit(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    monkeypatch.setattr(places, "_COMMITS", {})
    monkeypatch.chdir(tmp_path)
    huggingface.save(load(place / "model"), tmp_path / "theirs")
    with hub_of_this_process(monkeypatch, tmp_path) as hub:
        first = hub.add("lab/tiny", tmp_path / "theirs")
        words = words_of(place, tmp_path / "out")
        words[1] = "lab/tiny"
        found, _ = answer(capsys, *words)
        assert found["plan"]["model"] == f"lab/tiny@{first}"
        assert json.loads((tmp_path / "out/plan.json").read_text())["models"]["lab/tiny"] == first
        shutil.rmtree(tmp_path / "theirs")
        huggingface.save(build("bert-tiny", tokenizer=load(place / "model").tokenizer), tmp_path / "theirs")
        hub.add("lab/tiny", tmp_path / "theirs")
        shutil.rmtree(tmp_path / "out/model")
        again, said = answer(capsys, *words)
        assert again["gains"] == found["gains"] and "has another adaptation" not in said
        monkeypatch.setattr(places, "_COMMITS", {})
        words[1] = "lab/tiny@main"  # may be another model
        assert "(model was 'lab/tiny@" in messages(capsys, 2, *words)
        for words[1] in (f"lab/tiny@{first}", "lab/tiny"):
            assert answer(capsys, *words)[0]["gains"] == found["gains"]
    by_folder, _ = answer(capsys, *words_of(place, tmp_path / "folder"))
    assert by_folder["gains"] == found["gains"]


def test_a_discriminator_without_its_generator(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 4)
    tokenizer = load(place / "model").tokenizer
    build("electra-tiny", tokenizer=tokenizer, **{"encoder.layers": 1}).save(tmp_path / "electra")
    words = words_of(place, tmp_path / "out")
    words[1] = str(tmp_path / "electra")
    found, _ = answer(capsys, *words)
    assert found["training"]["objective"] == "rtd"
    assert found["gains"]["domain"]["measure"] == "not_replaced"  # the one measure that both have
    model, generator = load_pair(tmp_path / "out")
    assert model.rtd is not None and generator is not None and generator.lm is not None


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        (["--vocabulary", "more"], 2, "give keep, new, or extend:2000"),
        (["--vocabulary", "extend:²"], 2, "give keep, new, or extend:2000"),
        (["--vocabulary", "extend:" + "9" * 5000], 2, "give keep, new, or extend:2000"),
        (["--replay-share", "1"], 2, "replay_share is 1.0; give less than 1, such as 0.1"),
        (["--task", "none.csv"], 2, "no such file"),
        (["--task", "few.csv"], 3, "too few to hold out a development part; give more examples"),
        (
            ["--task", "columns.csv"],
            3,
            "is the text? give: --text COLUMN [--pair COLUMN] [--label COLUMN]; columns of a "
            "file without a header are 0, 1, ... (options of finetune; give a file that needs none)",
        ),
        (["TEXT", "fields.jsonl"], 3, "give --field (an option of corpus build; give the corpus that it makes)"),
        (["--pairs", "none"], 3, "no such file or folder"),
        (["--pairs", "one.txt"], 3, "one.txt"),
        (["--pairs", "nothing.txt"], 3, "nothing.txt: pairs to score: none"),
        (["--pairs", "long.txt"], 3, "the model reads 510; remove the pair"),
        (["TEXT", "ten.txt"], 3, "too few to adapt to"),
        (["TEXT", "chinese.txt"], 3, "tokens are unknown to the model's vocabulary"),
        (["MODEL", "bare"], 2, "has no tokenizer"),
        (["MODEL", "encoder"], 2, "has no head that predicts tokens; give the pretrained model"),
        (["MODEL", "bpe", "--vocabulary", "extend:5"], 2, "adds words to WordPiece vocabularies, and this one is bpe"),
        (["MODEL", "nowhere"], 3, "no such file or folder"),
        (["--set", "optim.lrr=1"], 2, "unknown key 'optim.lrr'"),
        (["--set", "init_from=other"], 2, "starts from MODEL; leave init_from out"),
        (["--set", "phases=[{length: 100000, rows: 4}]"], 2, "shorten phases.0.length to 512"),
        (["--set", "phases=[{length: 32, rows: 4, share: 0.5}]"], 2, "shares of the phases add up to 0.5"),
        (["--set", "model.encoder.layers=2"], 2, "its encoder differs from the recipe's (layers 1, here 2)"),
        (["--set", "objective.kind=rtd"], 2, "replaced token detection needs a generator"),
        (["--set", "evaluation.pairs.data=[pairs]"], 2, "give --pairs instead"),
        (["--set", "budget.amount=100000000", "--set", "schedule.warmup=200000000"], 2, "a warm-up of 2e+08 steps"),
        (["TEXT", "signs.txt", "--vocabulary", "new"], 2, "letters of the text do not fit a vocabulary of 110 tokens"),
        (["TEXT", "known.txt", "--vocabulary", "extend:5"], 3, "no frequent word that the vocabulary lacks"),
    ],
)
def test_what_is_refused_before_any_work(place: Path, tmp_path: Path, capsys, monkeypatch, change, code, part) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ten.txt").write_text("the river of the court\n" * 10)
    (tmp_path / "chinese.txt").write_text(
        "\n\n".join(f"法院的判决是第{i}号案件的结果，原告不服。" * 60 for i in range(60))
    )
    (tmp_path / "few.csv").write_text("text,label\nthe court,yes\nthe river,no\n")
    (tmp_path / "columns.csv").write_text("one,two,three\na,b,c\n")
    (tmp_path / "fields.jsonl").write_text('{"number": 1}\n')
    (tmp_path / "one.txt").write_text("the court of the house\n")
    (tmp_path / "nothing.txt").write_text("\n")
    (tmp_path / "long.txt").write_text("the court\n" + "the " * 600 + "\n")
    signs = np.random.default_rng(1).integers(0x4E00, 0x5500, (60, 400))
    (tmp_path / "signs.txt").write_text("\n\n".join("".join(map(chr, row)) for row in signs))
    (tmp_path / "known.txt").write_text("\n\n".join(prose(["the", "of"], 200, 4)))
    model = load(place / "model")
    model.tokenizer, tokenizer = None, model.tokenizer
    model.save(tmp_path / "bare")
    model.tokenizer = tokenizer
    model.with_config(replace(model.config)).save(tmp_path / "whole")
    headless = Model(replace(model.config, lm=None, pair=False), tokenizer).initialize(0)
    headless.save(tmp_path / "encoder")
    if "bpe" in change:
        build("roberta-tiny", tokenizer=Tokenizer.train("bpe", prose(WORDS, 30, 1), 300)).save(tmp_path / "bpe")
    words = words_of(place, tmp_path / "out")
    if change[0] in ("TEXT", "MODEL"):
        words[2 if change[0] == "TEXT" else 1] = change[1]
        change = change[2:]
    assert part in messages(capsys, code, *words, *change)
    assert not (tmp_path / "out").exists()


def test_a_warm_up_that_is_longer_than_the_text_is_refused_before_any_work(place: Path, tmp_path: Path, capsys) -> None:
    words = ["adapt", place / "model", place / "law.txt", "--out", tmp_path / "out", "--set", "schedule.warmup=5000"]
    said = messages(capsys, 2, *words)
    assert re.search(r"a warm-up of 5000 steps does not fit a budget of \d+; give a share", said)
    assert not (tmp_path / "out").exists()
    answer(capsys, *words_of(place, tmp_path / "out", "--set", "schedule.warmup=5"))


def test_a_folder_of_something_else(place: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert "has no adaptation (found 'mine.txt')" in messages(capsys, 2, *words_of(place, tmp_path / "out"))
    assert json.dumps(sorted(path.name for path in (tmp_path / "out").iterdir())) == '["mine.txt"]'
