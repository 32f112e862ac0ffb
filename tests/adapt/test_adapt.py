"""Adapting tiny models: every family's objective, stages that are done once, and what is refused before any work."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from encoderlab.adapt import measure, vocabulary
from encoderlab.adapt import run as stages
from encoderlab.adapt import text as texts
from encoderlab.adapt.recipe import published, recipe_of
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.files import sha256
from encoderlab.interchange.load import load, load_pair
from encoderlab.model import Model, build
from encoderlab.models import FAMILIES, GENERATORS, SIZES
from encoderlab.models.base import resized
from encoderlab.train.checks import check
from tests.interchange.tiny_models import same_weights
from tests.terminal import answer, messages

WORDS = "river stone water light morning house tree bird road wind garden letter table window silver winter".split()
LAW = "plaintiff defendant court statute appeal judgment liability contract damages hearing".split()


def prose(words: list[str], documents: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [
        "\n".join(
            "the " + " ".join(words[i] for i in draw.integers(0, len(words), 12)) + " of the " + words[i % len(words)]
            for i in range(4)
        )
        for _ in range(documents)
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of general words, general text, and the text of a domain with words of its own."""
    folder = tmp_path_factory.mktemp("adapt")
    general, law = prose(WORDS, 60, 1), prose([*WORDS[:4], *LAW], 90, 2)
    (folder / "general.txt").write_text("\n\n".join(general))
    (folder / "law.txt").write_text("\n\n".join(law))
    letters = [" ".join(sorted(set("".join(LAW)))), *LAW[:1]]
    tokenizer = Tokenizer.train("wordpiece", [*general, *letters * 3], 110)
    size = {"encoder.layers": 1, "encoder.width": 32, "encoder.heads": 2, "encoder.ff_width": 64}
    build("bert-tiny", tokenizer=tokenizer, **size).save(folder / "model")
    rows = "".join(f"the {LAW[i % 2]} of {WORDS[i % 7]} {i},{LAW[i % 2]}\n" for i in range(60))
    (folder / "task.csv").write_text("text,label\n" + rows)
    (folder / "pairs.txt").write_text("the court of the house\nthe of house court the\n")
    return folder


SHORT = ["--set", "phases=[{length: 32, rows: 4}]", "--set", "budget.amount=6", "--set", "evaluation.every=2"]
SHORT += ["--set", "evaluation.rows=8", "--set", "checkpoints.steps=2"]


def words_of(place: Path, out: Path, *more: str) -> list[str]:
    start = ["adapt", str(place / "model"), str(place / "law.txt"), "--out", str(out)]
    return [*start, "--replay", str(place / "general.txt"), *SHORT, *more]


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

    begun = [path.stat().st_mtime_ns for path in sorted((tmp_path / "a" / "stages").iterdir())]
    again, said = answer(capsys, *words_of(place, tmp_path / "a", *more))
    assert "stage:" not in said and again["gains"] == found["gains"]
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "a" / "stages").iterdir())] == begun

    class Killed(BaseException):
        pass

    saved = stages.save

    def killed(model, generator, folder):
        if folder.name == "model":
            raise Killed
        saved(model, generator, folder)

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
        if path.name in ("README.md", "SHA256SUMS"):
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


def test_fine_tuning_before_and_after(place: Path, tmp_path: Path, monkeypatch) -> None:
    found = measure.task(load(place / "model"), place / "task.csv", tmp_path / "task", 1)
    assert found["seeds"] == [found["mean"]] and found["interval"] is None and found["examples"][1] > 0
    assert found == measure.task(load(place / "model"), place / "task.csv", tmp_path / "task", 1)  # read, not run again


NAMES = [
    "bert-tiny", "roberta-tiny", "albert-tiny", "distilbert-tiny", "electra-tiny", "convbert-tiny", "deberta-tiny",
    "deberta-v2-tiny", "deberta-v3-tiny", "xlnet-tiny", "transformer-xl-tiny", "modernbert-tiny",
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if name in SIZES])
def test_every_family_trains_with_its_own_objective(name: str) -> None:
    config = resized(SIZES[name], vocab=200)
    kinds = {"xlnet": "permutation", "transformer_xl": "causal", "electra": "rtd", "convbert": "rtd"}
    expected = "rtd" if "v3" in name else kinds.get(config.family, "mlm")
    with torch.device("meta"):
        model = Model(config)
        second = Model(resized(GENERATORS[name], vocab=200)) if name in GENERATORS else None
    for generator in {None, second}:
        recipe = recipe_of(model, generator, tokens=1e5, passes=2, seed=1)
        assert recipe.objective.kind == expected
        assert recipe.model.mask_decoder == config.mask_decoder and recipe.model.encoder.dropout == 0.1
        assert recipe.fresh_generator == (expected == "rtd" and generator is None)
        assert recipe.optim.lr <= 3e-4 and recipe.evaluation.best == "loss"
        check(recipe)


def test_every_family_has_a_recipe() -> None:
    for family in FAMILIES.values():
        for config in family.sizes.values():
            published(config)


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


def test_a_new_vocabulary_keeps_what_is_shared(place: Path, tmp_path: Path) -> None:
    old = load(place / "model")
    sample = [*(place / "law.txt").read_text().split("\n\n")]
    new = vocabulary.retrain(old.tokenizer, sample)
    assert new.kind == "wordpiece" and new.special == old.tokenizer.special
    made = vocabulary.rows(old.tokenizer, new, sample, neighbours=True)
    assert made.kept + made.neighbours + made.pieces == new.vocab_size and made.neighbours > 0
    found = vocabulary.transplant(old, new, made)
    for index, token in enumerate(new.tokens):
        if (before := old.tokenizer.id(token)) is not None:
            assert torch.equal(found.words[index], old.words[before])
            assert found.lm.bias[index] == old.lm.bias[before]
    for ids, weights in made.parts:
        assert len(ids) == len(weights) <= 1000 and abs(weights.sum() - 1) < 1e-6 and (weights >= 0).all()
    rest = {name for name in old.state_dict() if name not in vocabulary.TABLES}
    assert all(torch.equal(old.state_dict()[name], found.state_dict()[name]) for name in rest)


def test_held_out_text_without_spaces_is_cut_too() -> None:
    lines = ["\u6cd5\u9662" * 280, "the river " * 90 + "https://" + "a" * 900, "short"]
    found = measure.pieces(lines)
    assert found and max(len(piece.encode()) for piece in found) <= measure.BYTES
    assert any("\u6cd5" in piece for piece in found) and "short" in found


def test_an_added_word_is_the_mean_of_its_pieces(place: Path) -> None:
    old = load(place / "model")
    sample = (place / "law.txt").read_text().split("\n\n")
    new = vocabulary.extend(old.tokenizer, sample, 3)
    made = vocabulary.rows(old.tokenizer, new, sample, neighbours=False)
    found = vocabulary.transplant(old, new, made)
    word = new.token(new.vocab_size - 1)
    pieces = old.tokenizer.encode(word).ids
    assert len(pieces) > 1 and new.encode(word).ids.tolist() == [new.vocab_size - 1]
    torch.testing.assert_close(found.words[-1], old.words[torch.from_numpy(pieces).long()].mean(0))
    assert new.encode("the river").ids.tolist() == old.tokenizer.encode("the river").ids.tolist()


def test_held_out_text_is_decided_by_the_document_alone(place: Path, tmp_path: Path) -> None:
    lines = (place / "law.txt").read_text().split("\n\n")
    (tmp_path / "turned.txt").write_text("\n\n".join([*reversed(lines), lines[0]]))
    parts = []
    for number, path in enumerate((place / "law.txt", tmp_path / "turned.txt")):
        train, apart = tmp_path / f"{number}.train", tmp_path / f"{number}.apart"
        amounts = texts.split(texts.SourceText([str(path)]), train, apart)
        parts.append((set(texts.read(train)), set(texts.read(apart))))
        assert sum(one.documents for one in amounts) == 90
    assert parts[0] == parts[1] and not parts[0][0] & parts[0][1]
    share = texts.split(texts.SourceText([str(place / "law.txt")]), tmp_path / "c", tmp_path / "d", share=0.5)
    assert 25 < share[0].documents < 60


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        (["--vocabulary", "more"], 2, "give keep, new, or extend:2000"),
        (["--replay-share", "1"], 2, "replay_share is 1.0; give less than 1, such as 0.1"),
        (["--task", "none.csv"], 2, "no such file"),
        (["--pairs", "none"], 3, "no such file or folder"),
        (["TEXT", "ten.txt"], 3, "too few to adapt to"),
        (["TEXT", "chinese.txt"], 3, "tokens are unknown to the model's vocabulary"),
        (["MODEL", "bare"], 2, "has no tokenizer"),
        (["MODEL", "encoder"], 2, "has no head that predicts tokens; give the pretrained model"),
        (["MODEL", "bpe", "--vocabulary", "extend:5"], 2, "adds words to WordPiece vocabularies, and this one is bpe"),
        (["MODEL", "nowhere"], 3, "no such file or folder"),
    ],
)
def test_what_is_refused_before_any_work(place: Path, tmp_path: Path, capsys, monkeypatch, change, code, part) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ten.txt").write_text("the river of the court\n" * 10)
    (tmp_path / "chinese.txt").write_text(
        "\n\n".join(f"法院的判决是第{i}号案件的结果，原告不服。" * 60 for i in range(60))
    )
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


def test_a_folder_of_something_else(place: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert "has no adaptation (found 'mine.txt')" in messages(capsys, 2, *words_of(place, tmp_path / "out"))
    assert json.dumps(sorted(path.name for path in (tmp_path / "out").iterdir())) == '["mine.txt"]'
