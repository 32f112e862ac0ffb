"""``encoderlab convert``, and two networks that belong together."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from encoderlab import load, recipes
from encoderlab.cli import main
from encoderlab.commands.convert import lost
from encoderlab.errors import ConfigError
from encoderlab.interchange import huggingface, reading
from encoderlab.interchange.finetuned import signed
from encoderlab.interchange.load import load_pair, read_pair
from encoderlab.tasks.data import suites
from encoderlab.tasks.forms.base import FormSettings, Predictions
from encoderlab.tasks.forms.classification import ClassificationSettings
from encoderlab.tasks.forms.tagging import TaggingSettings
from encoderlab.tasks.runs.folder import read_task, write_task
from encoderlab.train.continuing import source_of
from tests.interchange.tiny_models import CONFIGS, make, same_weights
from tests.tasks.tiny import tokenizer


@pytest.mark.parametrize("case", ["bert", "deberta-v3", "xlnet", "transformer-xl-adaptive"])
def test_there_and_back(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(CONFIGS[case])
    model.save(tmp_path / "ours")
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", "hf", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["written"] == {"model": str(tmp_path / "theirs")}
    assert "model_type" in json.loads((tmp_path / "theirs/config.json").read_text())
    assert main(["convert", str(tmp_path / "theirs"), str(tmp_path / "back")]) == 0
    assert same_weights(load(tmp_path / "back"), model)


def test_the_best_of_several_seeds(tmp_path: Path) -> None:
    """The folder that ``encoderlab finetune`` made."""
    models = {seed: make(CONFIGS["bert"], seed) for seed in (1, 2, 3)}
    for seed, model in models.items():
        model.save(tmp_path / f"run/lr=0.1/seed-{seed}/model")
    scores = {str(seed): {"scores": {"dev": {"accuracy": score}}} for seed, score in ((1, 0.5), (2, 0.9))}
    record = {"metric": "accuracy", "chosen": {"optim.lr": 0.1}, "seeds": scores | {"3": {"failed": "diverged"}}}
    (tmp_path / "run/score.json").write_text(json.dumps(signed(record)))
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert same_weights(load(tmp_path / "out"), models[2])


def test_deberta_says_that_the_mask_decoder_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(CONFIGS["deberta"]).save(tmp_path / "ours")
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", "hf"]) == 0
    assert "no enhanced mask decoder" in capsys.readouterr().err.replace("\n", " ")


def test_a_head_that_predicts_the_next_token_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make(CONFIGS["roberta"])
    assert model.config.lm is not None
    model = model.with_config(replace(model.config, lm=replace(model.config.lm, next_token=True)))
    model.save(tmp_path / "ours")
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", "hf"]) == 0
    assert "left out: the LM head, which predicts the next token" in capsys.readouterr().err.replace("\n", " ")
    back = load(tmp_path / "theirs")
    assert back.lm is None and same_weights(back.encoder, model.encoder)
    again = load(tmp_path / "ours").config
    assert again.lm is not None and again.lm.next_token


def pair(family: str, where: Path) -> None:
    """Generator and discriminator with one embedding block, as a run writes them."""
    generator, discriminator = make(CONFIGS[f"{family}-generator"], 1), make(CONFIGS[family], 2)
    one, two = generator.encoder.embeddings, discriminator.encoder.embeddings
    one.words, one.positions, one.types, one.norm = two.words, two.positions, two.types, two.norm
    generator.save(where / "generator")
    discriminator.save(where / "discriminator")


def test_a_joint_model_splits_and_merges(tmp_path: Path) -> None:
    pair("electra", tmp_path / "run/model")
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "hf"), "--to", "hf"]) == 0
    names = set(safetensors.torch.load_file(tmp_path / "hf/generator/model.safetensors"))
    assert {"electra.embeddings.word_embeddings.weight", "generator_lm_head.bias"} <= names
    assert main(["convert", str(tmp_path / "hf"), str(tmp_path / "back")]) == 0
    for part in ("generator", "discriminator"):
        assert same_weights(load(tmp_path / "back" / part), reading.load(tmp_path / "run/model" / part))
    discriminator, generator = load_pair(tmp_path / "back")
    assert generator is not None and generator.words is discriminator.words
    assert generator.encoder.embeddings.norm is discriminator.encoder.embeddings.norm


def test_networks_with_embeddings_of_their_own_stay_as_they_are(tmp_path: Path, caplog) -> None:
    pair("electra", tmp_path)
    generator = load(tmp_path / "generator")
    with torch.no_grad():
        generator.words[0, 0] += 1
    generator.save(tmp_path / "generator")
    read = read_pair(tmp_path)
    assert "separate embeddings (words)" in caplog.text
    assert same_weights(read["generator"], generator)
    assert same_weights(read["discriminator"], load(tmp_path / "discriminator"))
    assert main(["convert", str(tmp_path), str(tmp_path / "out")]) == 0
    for part in ("generator", "discriminator"):
        assert same_weights(load(tmp_path / "out" / part), read[part])
    for sharing in ("block", "none"):
        tiny = recipes.recipe("electra-tiny")
        tiny = replace(tiny, init_from=str(tmp_path), objective=replace(tiny.objective, sharing=sharing))
        expected = "different embeddings" if sharing == "block" else "word table has"
        with pytest.raises(ConfigError, match=expected):
            source_of(tiny, tokenizer())


def test_a_generator_that_transformers_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from encoderlab.models.base import resized

    make(resized(CONFIGS["convbert"], heads=1), 1).save(tmp_path / "pair/generator")
    make(CONFIGS["convbert"], 2).save(tmp_path / "pair/discriminator")
    assert main(["convert", str(tmp_path / "pair/discriminator"), str(tmp_path / "hf"), "--to", "hf"]) == 0
    capsys.readouterr()
    assert main(["convert", str(tmp_path / "pair"), str(tmp_path / "both"), "--to", "hf"]) == 3
    assert "generator" in capsys.readouterr().err.replace("\n", " ")


def test_of_two_networks_both_are_written_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from encoderlab.models.base import resized

    make(CONFIGS["convbert"], 1).save(tmp_path / "pair/generator")
    make(resized(CONFIGS["convbert"], heads=1), 2).save(tmp_path / "pair/discriminator")
    assert main(["convert", str(tmp_path / "pair"), str(tmp_path / "out"), "--to", "hf"]) == 3
    assert "discriminator" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(CONFIGS["bert"]).save(tmp_path / "ours")
    assert main(["convert", str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 3
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "ours")]) == 2
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "out"), "--tokenizer", str(tmp_path)]) == 2
    (tmp_path / "ours/model.safetensors").write_bytes(b"")
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "out")]) == 3
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_the_tokenizer_comes_along(shared: Path, tmp_path: Path) -> None:
    from encoderlab.models.base import resized

    make(resized(CONFIGS["bert"], vocab=30522)).save(tmp_path / "ours")
    vocabulary = shared / "data/vocab/bert-base-uncased"
    command = [
        "convert",
        str(tmp_path / "ours"),
        str(tmp_path / "theirs"),
        "--to",
        "hf",
        "--tokenizer",
        str(vocabulary),
    ]
    assert main(command) == 0
    back = load(tmp_path / "theirs")
    assert back.tokenizer is not None
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    text = "Raw text, to a pretrained encoder; [MASK] naïveté."
    ids = theirs(text)["input_ids"]
    assert ids[1:-1] == list(back.tokenizer.encode(text).ids)
    huggingface.save(back, tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["pad_token_id"] == 0


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("answerable", [True, False])
def test_what_a_model_was_trained_for_comes_along(
    answerable: bool, exported: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a run of ours, and from the folder of an export, which is in Hugging Face's format and has the task too."""
    if exported:
        huggingface.save(make(CONFIGS["bert"]), tmp_path / "run/model")
    else:
        make(CONFIGS["bert"]).save(tmp_path / "run/model")
    task = suites.task("rte") if answerable else replace(suites.task("squad2"), labels=("answer", "no_answer"))
    found = Predictions(values=[], details=[], threshold=-1.5)
    write_task(task, FormSettings(max_length=64), tmp_path / "run/model", found.threshold)
    source = str(tmp_path / "run/model" if exported else tmp_path / "run")
    assert main(["convert", source, str(tmp_path / "ours")]) == 0
    assert read_task(tmp_path / "ours") == read_task(tmp_path / "run")
    assert "cannot store" not in capsys.readouterr().err
    assert main(["convert", source, str(tmp_path / "theirs"), "--to", "hf", "--json"]) == 0
    (note,) = (note for note in json.loads(capsys.readouterr().out)["notes"] if "cannot store" in note)
    assert f"cannot store its task {task.name!r}, the columns of its files, max_length 64" in note
    assert ("the threshold -1.5 of null odds" in note) != answerable


def test_what_a_model_reads_besides_a_sequence_is_lost(tmp_path: Path) -> None:
    for name, settings in (
        ("rte", ClassificationSettings(max_length=8, windows=3)),
        ("conll2003", TaggingSettings(max_length=8, context="document")),
    ):
        write_task(suites.task(name), settings, tmp_path, 0.0)
        assert re.search(r"8, (the windows \(up to 3\)|the rest of the document)", lost(tmp_path / "task.json"))


def test_a_tokenizer_of_a_larger_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(CONFIGS["bert"]).save(tmp_path / "ours")
    large = tokenizer()
    large.save(tmp_path / "large")
    command = ["convert", str(tmp_path / "ours"), str(tmp_path / "out")]
    assert main([*command, "--tokenizer", str(tmp_path / "large")]) == 3
    assert f"large: the tokenizer has {large.vocab_size} ids, the model 50" in " ".join(capsys.readouterr().err.split())
    shutil.copytree(tmp_path / "large", tmp_path / "ours", dirs_exist_ok=True)
    assert main(command) == 3
    assert not (tmp_path / "out").exists()
