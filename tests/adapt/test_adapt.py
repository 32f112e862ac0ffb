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
from encoderlab.deploy.sentence_transformers import TextVectors, vectors_of
from encoderlab.errors import ConfigError
from encoderlab.files import sha256
from encoderlab.interchange import huggingface, places
from encoderlab.interchange.load import load, load_pair
from encoderlab.model import Model, build
from encoderlab.models import FAMILIES, GENERATORS, SIZES
from encoderlab.models.base import resized
from encoderlab.train.checks import check
from tests.hub import hub_of_this_process
from tests.interchange.tiny_models import CONFIGS, same_weights
from tests.tasks.tiny import write_vector_settings
from tests.terminal import answer, messages

WORDS = "river stone water light morning house tree bird road wind garden letter table window silver winter".split()
LAW = "plaintiff defendant court statute appeal judgment liability contract damages hearing".split()

TINY = {"encoder.layers": 1, "encoder.width": 32, "encoder.heads": 2, "encoder.ff_width": 64}


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
    build("bert-tiny", tokenizer=tokenizer, **TINY).save(folder / "model")
    write_vector_settings(folder / "model")
    rows = "".join(f"the {LAW[i % 2]} of {WORDS[i % 7]} {i},{LAW[i % 2]}\n" for i in range(60))
    (folder / "task.csv").write_text("text,label\n" + rows)
    (folder / "pairs.txt").write_text("the court of the house\nthe of house court the\n")
    return folder


SHORT = ["--set", "phases=[{length: 32, rows: 4}]", "--set", "budget.amount=6", "--set", "evaluation.every=2"]
SHORT += ["--set", "evaluation.rows=8", "--set", "checkpoints.steps=2"]


class Killed(BaseException):
    """The end of a session."""


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


NAMES = [
    "bert-tiny", "roberta-tiny", "albert-tiny", "distilbert-tiny", "electra-tiny", "convbert-tiny", "deberta-tiny",
    "deberta-v2-tiny", "deberta-v3-tiny", "xlnet-tiny", "transformer-xl-tiny", "modernbert-tiny",
]  # fmt: skip


def test_the_page_names_the_step_of_the_weights_and_the_rate(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """Also where the loss is lowest before the first step, whose weights are not kept."""
    monkeypatch.setattr(measure, "PIECES", 2)
    words = ["adapt", str(place / "model"), str(place / "law.txt"), *SHORT, "--set", "optim.lr=1e-9"]
    warm = ["--set", "schedule.kind=constant", "--set", "schedule.warmup=3"]
    for name, more, best in (("a", warm, 2), ("b", ["--set", "evaluation.best=null"], 6)):
        more = [*more, "--set", "evaluation.patience=null"]
        found, _ = answer(capsys, *words, "--out", str(tmp_path / name), *more)
        assert found["training"]["best"] == best and found["training"]["held"][0][0] == 0
        page = (tmp_path / name / "report.html").read_text()
        assert f"6 of 6; the weights are of step {best}" in page
        rate = "3 steps, then constant" if more[:4] == warm else "6% of the budget, then to 0"
        assert f"1e-09, warmed up over {rate}" in page


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
        check(replace(recipe, init_from="runs/mine/start"))


@pytest.mark.parametrize(("name", "kind"), [("modernbert", "hybrid"), ("convbert-groups", "mlm")])
def test_a_head_that_reads_the_token_before_stays_good_both_ways(name: str, kind: str) -> None:
    config = CONFIGS[name]
    assert config.lm is not None
    with torch.device("meta"):
        model = Model(replace(config, lm=replace(config.lm, next_token=True)))
    recipe = recipe_of(model, None, tokens=1e5, passes=2, seed=1)
    assert recipe.objective.kind == kind and recipe.model.lm == model.config.lm
    check(recipe)


def test_passes_are_a_limit_for_other_rows_too() -> None:
    with torch.device("meta"):
        model = Model(CONFIGS["bert"])
    phases = [{"length": 32, "rows": 4, "share": 0.5}, {"length": 64, "rows": 8, "share": 0.5}]
    made = object.__new__(stages.Adaptation)
    for more, steps, every in (({}, 625, 31), ({"budget.amount": 6}, 6, 31), ({"evaluation.every": 7}, 625, 7)):
        made.plan = stages.AdaptationPlan(model="", text=("",), passes=2, fields={"phases": phases, **more})
        recipe = made._recipe(model, None, 1e5)
        assert (recipe.budget.amount, recipe.evaluation.every) == (steps, every)
        assert [phase.rows for phase in recipe.phases] == [4, 8]


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
    new = vocabulary.retrain(old.tokenizer, sample, "bert")
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


def test_fewer_words_than_asked_for_are_said(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    found, said = answer(capsys, *words_of(place, tmp_path / "out", "--vocabulary", "extend:5000"))
    added = found["vocabulary"]["tokens"][1] - found["vocabulary"]["tokens"][0]
    assert f"the text has {added} frequent words that the vocabulary lacks, not 5,000" in said


def test_text_that_is_not_utf_8_is_said(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    text = tmp_path / "latin.txt"
    words = words_of(place, tmp_path / "out", "--vocabulary", "new")
    words[2] = str(text)
    text.write_bytes("\n\n".join(prose([*WORDS, "café"], 90, 4)).encode("latin-1"))
    number = text.read_bytes().count(b"\xe9")
    said = f"{number} characters were not valid UTF-8 and became U+FFFD, in {text} ({number}); convert the file"
    assert number > 50 and said in answer(capsys, *words)[1]


def test_held_out_text_without_spaces_is_cut_too() -> None:
    lines = ["\u6cd5\u9662" * 280, "the river " * 90 + "https://" + "a" * 900, "short"]
    found = measure.pieces(lines)
    assert found and max(len(piece.encode()) for piece in found) <= measure.BYTES
    assert any("\u6cd5" in piece for piece in found) and "short" in found


def test_the_interval_of_few_pieces_is_wide() -> None:
    """Two pieces tell little: Student's t is 12.7 there."""
    before, after = (
        {"bits": {"pll_word": bits}, "bytes": [10, 10], "tokens": 6, "unknown": 0.0} for bits in ([20, 30], [19, 27])
    )
    found = measure.gain(before, after)
    assert (found["before"], found["after"]) == (2.5, 2.3) and abs(found["half"] - 12.706 * 0.1) < 1e-3
    one = {name: value[:1] if name == "bytes" else value for name, value in before.items()} | {
        "bits": {"pll_word": [20]}
    }
    assert measure.gain(one, one)["half"] == np.inf


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


def test_added_words_leave_the_ids_of_added_tokens_alone(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    model = load(place / "model")
    size = model.tokenizer.vocab_size
    model.tokenizer.backend.add_tokens(["[DRUG]", "[USER]"])
    tokenizer = Tokenizer(model.tokenizer.backend, model.tokenizer.special_tokens)
    build("bert-tiny", tokenizer=tokenizer, **TINY).save(tmp_path / "model")
    words = words_of(place, tmp_path / "out", "--vocabulary", "extend:3")
    words[1] = str(tmp_path / "model")
    found, _ = answer(capsys, *words)
    new = load(tmp_path / "out")
    assert new.tokenizer.tokens[size : size + 2] == ("[DRUG]", "[USER]") and new.tokenizer.vocab_size == size + 5
    assert found["vocabulary"]["kept"] == size + 2 and len(set(new.tokenizer.tokens)) == size + 5
    assert found["parameters"] == sum(parameter.numel() for parameter in new.parameters())


def test_words_with_marks_are_words_too(place: Path) -> None:
    """As those of Devanagari, whose vowel signs are no letters."""
    words = "\u0939\u093f\u0928\u094d\u0926\u0940 \u0905\u0927\u093f\u0915\u093e\u0930".split()
    tokenizer = Tokenizer.train("wordpiece", ["the river", " ".join(sorted(set("".join(words))))], 39, lowercase=False)
    new = vocabulary.extend(tokenizer, [" ".join(words * 6) + " 12 12 12 12 12 12 + + + + + +"], 5)
    assert new.tokens[tokenizer.vocab_size :] == tuple(sorted(words))


def test_a_model_with_more_words_than_its_tokenizer_keeps_them(place: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "PIECES", 2)
    tokenizer = load(place / "model").tokenizer
    padded = build("bert-tiny", **TINY | {"encoder.vocab": 128})
    padded.tokenizer = tokenizer
    padded.save(tmp_path / "model")
    words = words_of(place, tmp_path / "out")
    words[1] = str(tmp_path / "model")
    _, said = answer(capsys, *words)
    assert load(tmp_path / "out").config.encoder.vocab == 128 and "has no effect" not in said


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


def natural(seed: int, characters: int, line: int) -> str:
    """Text of words in lines of about ``line`` characters."""
    draw, lines, size = np.random.default_rng(seed), [], 0
    while size < characters:
        lines.append(" ".join(f"{WORDS[i]}{i * seed % 7}" for i in draw.integers(0, len(WORDS), line // 6)))
        size += len(lines[-1]) + 1
    return "\n".join(lines)[: characters - 1] + "."


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


def varied(number: int) -> list[str]:
    """Documents of 800 made-up words, some frequent."""
    draw = np.random.default_rng(7)
    words = [
        "".join(draw.choice([*"bdfgklmnprst"]) + draw.choice([*"aeiou"]) for _ in range(1 + i % 4)) for i in range(800)
    ]
    return [" ".join(words[int(800 * x * x)] for x in draw.random(60)) for _ in range(number)]


def test_a_new_vocabulary_is_as_large_as_the_text_supports(place: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(measure, "PIECES", 2)
    tokenizer = Tokenizer.train("wordpiece", [*varied(300), *(place / "law.txt").read_text().split("\n\n")], 600)
    size = {"encoder.layers": 1, "encoder.width": 32, "encoder.heads": 2, "encoder.ff_width": 64}
    build("bert-tiny", tokenizer=tokenizer, **size).save(tmp_path / "large")
    words = words_of(place, tmp_path / "out", "--vocabulary", "new")
    words[1] = str(tmp_path / "large")
    found, said = answer(capsys, *words)
    old, new = found["vocabulary"]["tokens"]
    assert old == 600 > new and f"the text supports a vocabulary of {new} tokens, fewer than 600" in said
    assert load(tmp_path / "out").tokenizer.vocab_size == new
    kept = [json.loads(line)["text"] for line in (tmp_path / "out/text/domain.jsonl").read_text().splitlines()]
    kept += [json.loads(line)["text"] for line in (tmp_path / "out/text/general.jsonl").read_text().splitlines()]
    again = vocabulary.retrain(tokenizer, kept, "bert")  # of the training text alone
    assert load(tmp_path / "out").tokenizer.hash() == again.hash()


@pytest.mark.parametrize(
    ("kind", "family", "model_family"),
    [
        ("wordpiece", "bert", "electra"),
        ("bpe", "roberta", "roberta"),
        ("bpe", "deberta", "deberta"),
        ("unigram", "albert", "albert"),
        ("unigram", "xlnet", "xlnet"),
        ("unigram", "deberta-v2", "deberta"),
        ("unigram", "roberta", "roberta"),
    ],
)
def test_a_new_vocabulary_for_every_tokenizer_of_our_own(kind: str, family: str, model_family: str) -> None:
    sample = varied(150)
    old = Tokenizer.train(kind, sample, 420, family=family)
    assert vocabulary.family_of(old, model_family) == family
    new = vocabulary.retrain(old, sample, model_family)
    assert new.tokens == old.tokens and new.special == old.special and new.special_tokens == old.special_tokens


def test_further_special_tokens_do_not_matter_to_a_new_vocabulary(place: Path) -> None:
    old = load(place / "model").tokenizer
    more = Tokenizer(old.backend, replace(old.special_tokens, others=("the", "of")))  # as CamemBERT's, say
    assert vocabulary.family_of(more, "bert") == "bert"
    unigram = Tokenizer.train("unigram", varied(150), 200, family="xlnet")
    without = Tokenizer(unigram.backend, replace(unigram.special_tokens, eod=None))
    assert vocabulary.family_of(without, "xlnet") == "xlnet"
    with pytest.raises(ConfigError, match="no tokenizer can be trained with the model's special tokens"):
        vocabulary.family_of(Tokenizer(old.backend, replace(old.special_tokens, pad="the")), "bert")


def test_a_folder_of_something_else(place: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert "has no adaptation (found 'mine.txt')" in messages(capsys, 2, *words_of(place, tmp_path / "out"))
    assert json.dumps(sorted(path.name for path in (tmp_path / "out").iterdir())) == '["mine.txt"]'
