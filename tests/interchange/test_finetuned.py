"""The folder of a fine-tuning stands for the model of its best seed."""

from __future__ import annotations

import json

import pytest

import encoderlab
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange.finetuned import best_seed, signed, tokenizer_place
from encoderlab.interchange.load import load_pair
from encoderlab.model import weights_hash


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [({"7": 0.5}, "seed 7, the only one with scores"), ({"7": 0.5, "8": 0.75, "9": None}, "seed 8, the best of 2 on")],
)
def test_the_best_seed_is_named_among_those_with_scores(scores, wanted, tmp_path):
    seeds = {
        seed: {"failed": "diverged"} if value is None else {"scores": {"dev": {"f1": value}}}
        for seed, value in scores.items()
    }
    (tmp_path / "score.json").write_text(json.dumps(signed({"metric": "f1", "chosen": {}, "seeds": seeds})))
    said: list[str] = []
    assert best_seed(tmp_path, said.append) == tmp_path / "runs" / f"seed-{max(scores, key=lambda s: scores[s] or 0)}"
    assert said[0].startswith(wanted)
    (tmp_path / "score.json").unlink()
    assert best_seed(tmp_path, said.append) == tmp_path
    (tmp_path / "runs" / "seed-7").mkdir(parents=True)
    (tmp_path / "runs" / "seed-7" / "recipe.json").touch()
    with pytest.raises(DataError, match="score.json: is missing; run finetune again to write it"):
        best_seed(tmp_path, said.append)


def test_a_folder_of_a_fine_tuning_is_loaded_as_its_best_seed(tmp_path):
    models = {seed: encoderlab.build("bert-tiny", seed=seed) for seed in (7, 8)}
    for seed, model in models.items():
        model.save(tmp_path / "lr=0.001" / f"seed-{seed}" / "model")
    seeds = {seed: {"scores": {"dev": {"f1": f1}}} for seed, f1 in (("7", 0.75), ("8", 0.5))}
    record = {"metric": "f1", "chosen": {"optim.lr": 1e-3}, "seeds": seeds}
    (tmp_path / "score.json").write_text(json.dumps(signed(record)))
    wanted = weights_hash(models[7])
    assert weights_hash(encoderlab.load(tmp_path)) == wanted
    assert weights_hash(load_pair(tmp_path)[0]) == wanted
    (tmp_path / "score.json").write_text(json.dumps(signed(record) | {"metric": "accuracy"}))
    with pytest.raises(DataError, match="damaged"):
        encoderlab.load(tmp_path)


def test_the_tokenizer_of_a_model_a_run_and_a_corpus_is_found_in_their_folders(tmp_path):
    own = Tokenizer.train("wordpiece", ["the river flows past the old mill"] * 10, 40)
    record = {"metric": "f1", "chosen": {}, "seeds": {"1": {"scores": {"dev": {"f1": 1.0}}}}}
    said: list[str] = []
    for place, folder in (
        ("model", ""),
        ("run", "model"),
        ("unfinished", "tokenizer"),
        ("corpus", "tokenizer"),
        ("pair", "discriminator"),
        ("pair-run", "model/discriminator"),
        ("finetuned", "runs/seed-1/model"),
    ):
        own.save(tmp_path / place / folder)
        if place == "finetuned":
            (tmp_path / place / "score.json").write_text(json.dumps(signed(record)))
        assert tokenizer_place(tmp_path / place, said.append) == tmp_path / place / folder
    file = tmp_path / "model" / "tokenizer.json"
    assert tokenizer_place(file, said.append) == file and len(said) == 1
    (tmp_path / "empty").mkdir()
    assert tokenizer_place(tmp_path / "empty", said.append) == tmp_path / "empty"
