"""Whole runs of pretraining: resumed, refused, and made into models."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoderlab.batches.corrupt import Masking
from encoderlab.batches.pack import FullSentences
from encoderlab.batches.permutation import Targets
from encoderlab.batches.streams import XLNetStreams
from encoderlab.cli import main
from encoderlab.commands import pretrain as command
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError, Stopped
from encoderlab.files import sha256
from encoderlab.interchange import folder as folders
from encoderlab.interchange.load import load
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.positions import Absolute
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.hybrid import HybridSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.recipes import recipe
from encoderlab.train import checkpoint, pretraining
from encoderlab.train.distributed import World
from encoderlab.train.networks import full_operations
from encoderlab.train.optim import Muon
from encoderlab.train.pretraining import models_at, pretrain
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Execution, Phase, Recipe
from tests.train.test_doctor import build, language
from tests.train.toy import assert_same_run, metrics


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("corpus"), language(200))


def short(name: str, **changes: Any) -> Recipe:
    """Four steps on rows of 32 tokens."""
    made = recipe(name)
    made = replace(
        made,
        model=resized(made.model, layers=2, width=32, heads=2, head_width=None, ff_width=32),
        budget=Budget(amount=4),
        phases=(Phase(length=32, rows=8),),
        evaluation=Evaluation(every=2, rows=8),
        checkpoints=Checkpoints(minutes=None),
        execution=Execution(device="cpu"),
    )
    return replace(made, **changes)


def test_a_run_resumes_without_the_folder_that_it_continued(corpus: Path, tmp_path: Path) -> None:
    made = short("bert-tiny")
    pretrain(made, corpus, tmp_path / "first")
    made = replace(made, init_from=str(tmp_path / "first" / "model"), seed=2)
    with pytest.raises(Stopped):
        pretrain(made, corpus, tmp_path / "second", session=Budget(amount=2))
    shutil.rmtree(tmp_path / "first")
    assert pretrain(made, corpus, tmp_path / "second").step == 4


def test_the_first_process_says_whether_a_run_has_begun(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may see its checkpoint later; or, of a branch, the one that the first process has just made."""
    seen: list[Path | None] = []

    def fit(recipe: Any, tokenizer: Any, *, resumed: Path | None) -> None:
        seen.append(resumed)
        raise DataError("far enough")

    monkeypatch.setattr(pretraining, "join", lambda device: World(1, 2, torch.device("cpu")))
    monkeypatch.setattr(pretraining, "fit", fit)
    monkeypatch.setattr(World, "everywhere", lambda self, act: act())
    for begun in (0.0, 1.0):
        monkeypatch.setattr(World, "agree", lambda self, decide, begun=begun: begun)
        with pytest.raises(DataError, match="far enough"):
            pretraining.pretrain(recipe("bert-tiny"), corpus, tmp_path / "run", branch_from=tmp_path)
        (tmp_path / "run/checkpoints/step-000002").mkdir(parents=True, exist_ok=True)
    assert seen == [tmp_path, tmp_path / "run"]


def test_of_several_processes_the_first_one_prints_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "pretrain", lambda *args, **more: None)
    monkeypatch.setattr("encoderlab.train.distributed.join", lambda device: World(1, 2, torch.device("cpu")))
    assert command.pretrain("bert-tiny", corpus=Path("corpus"), out=Path("run")) is None


def test_a_checkpoint_with_another_tokenizer_than_its_run_s_is_refused(corpus: Path, tmp_path: Path) -> None:
    last = pretrain(short("bert-tiny"), corpus, tmp_path).checkpoint
    assert models_at(last)["model"].tokenizer is not None
    place = tmp_path / "tokenizer" / "tokenizer.json"
    state = json.loads(place.read_text())
    vocab = state["model"]["vocab"]
    first, second = list(vocab)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    place.write_text(json.dumps(state))
    with pytest.raises(DataError, match="tokenizer: is not the run's .*; restore it"):
        models_at(last)


def test_a_masking_rate_that_changes_is_resumed_to_the_bit(corpus: Path, tmp_path: Path) -> None:
    masking = Masking(rate=0.5, final_rate=0.1)
    made = short("roberta-tiny", objective=MLMSettings(masking=masking), budget=Budget(amount=10), log_every=1)
    pretrain(made, corpus, tmp_path / "whole")
    with pytest.raises(Stopped):
        pretrain(made, corpus, tmp_path / "parts", session=Budget(amount=5))
    pretrain(made, corpus, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole", 10)
    lines = [line for line in metrics(tmp_path / "whole") if line["split"] == "train"]
    steps = np.diff([0, *(line["tokens"] for line in lines)])
    shares = [line["counts"]["mlm"] / tokens for line, tokens in zip(lines, steps, strict=True)]
    # The rate of step t is that of its rows, 8 t to 8 t + 7 of 80.
    expected = [0.5 - 0.4 * (8 * step + 3.5) / 80 for step in range(10)]
    assert shares == pytest.approx(expected, abs=0.02)
    valid = [line["counts"]["mlm"] for line in metrics(tmp_path / "whole") if line["split"] == "valid"]
    assert len(set(valid)) == 1 and valid[0] < 0.15 * 8 * 32


def test_progress_of_rows_over_phases() -> None:
    phases = (Phase(length=32, rows=8, share=0.5), Phase(length=64, rows=2, share=0.5))
    made = short("roberta-tiny", phases=phases, budget=Budget(amount=10))

    def cost(phase: Phase) -> float:
        return full_operations(made, phase)

    assert [made.progress(number, cost) for number in (0, 20, 40, 45, 50, 99)] == [0, 0.25, 0.5, 0.75, 1, 1]
    made = replace(made, budget=Budget(amount=64 * 100, unit="tokens"))
    assert [made.progress(number, cost) for number in (0, 50, 100, 125, 150)] == [0, 0.25, 0.5, 0.75, 1]
    flops = replace(made, budget=Budget(amount=1e9, unit="flops"))
    rows = [0.5e9 / (flops.operations(phase.length) * phase.length) for phase in phases]
    assert flops.progress(int(rows[0] / 2), cost) == pytest.approx(0.25, abs=0.01)
    assert flops.progress(int(sum(rows)) + 3, cost) == 1.0


@pytest.mark.parametrize("changes", [{"objective": "distill"}, {"optim": Muon(lr=1e-3)}])
def test_a_masking_rate_reaches_its_end_with_a_budget_in_flops(
    changes: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    """The teacher's forward pass and Muon's iterations are a part of the budget."""
    masking = Masking(rate=0.5, final_rate=0.1)
    made = short("bert-tiny", format=FullSentences(), log_every=1)
    made = replace(made, model=replace(made.model, pair=False), objective=MLMSettings(masking=masking))
    if "optim" in changes:
        made = replace(made, **changes)
    else:
        pretrain(short("bert-tiny"), corpus, tmp_path / "teacher")
        teacher = str(tmp_path / "teacher" / "model")
        made = replace(made, objective=DistillSettings(teacher=teacher, masking=masking))
    made = replace(made, budget=Budget(amount=1e9, unit="flops"))
    pretrain(made, corpus, tmp_path / "run")
    *_, before, last = [line for line in metrics(tmp_path / "run") if line["split"] == "train"]
    assert last["flops"] >= 1e9
    assert last["counts"]["mlm"] / (last["tokens"] - before["tokens"]) == pytest.approx(0.1, abs=0.03)


def test_a_masked_model_starts_from_a_left_to_right_one(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = short("modernbert-mini")
    encoder = replace(made.model.encoder, causal=True)
    first = replace(made, model=replace(made.model, encoder=encoder), objective=CausalSettings())
    pretrain(first, corpus, tmp_path / "first")
    made = replace(made, init_from=str(tmp_path / "first" / "model"), optim=replace(made.optim, lr=1e-30))
    pretrain(made, corpus, tmp_path / "second")
    assert "reads from left to right; from here on it reads in both directions" in caplog.text
    one, two = load(tmp_path / "first"), load(tmp_path / "second")
    assert one.config.encoder.causal and not two.config.encoder.causal
    assert all(torch.equal(w, two.state_dict()[key]) for key, w in one.state_dict().items())
    before, after = (model.encode(["a few words", "a few more"], pooling="first") for model in (one, two))
    assert (before[0] == before[1]).all() and (after[0] != after[1]).any()  # the first token sees what follows it


@pytest.mark.parametrize("name", ["bert-tiny", "albert-tiny", "convbert-tiny", "deberta-v3-tiny", "distilbert-tiny"])
def test_every_checkpoint_becomes_a_model(
    name: str, corpus: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run = short(name), tmp_path / "run"
    if isinstance(made.objective, DistillSettings):
        teacher = Model(resized(made.model, vocab=Corpus(corpus).vocab_size), Tokenizer.load(corpus / "tokenizer"))
        folders.save(teacher.initialize(1), tmp_path / "teacher")
        made = replace(made, objective=replace(made.objective, teacher=str(tmp_path / "teacher"), student_from=()))
    if made.generator is not None:
        sizes = {"layers": 1, "width": 32, "heads": 1, "head_width": None, "ff_width": 16}
        made = replace(made, generator=resized(made.generator, **sizes))
    with pytest.raises(Stopped):
        pretrain(made, corpus, run, session=Budget(amount=2))
    with pytest.raises(DataError, match="unfinished run; finish it, or take .* encoderlab convert"):
        load(run)
    with pytest.raises(DataError, match="is a checkpoint, not a model; run: encoderlab convert"):
        load(run / "checkpoints" / "latest")
    assert main(["convert", str(run), str(tmp_path / "early")]) == 0
    assert "step-000002" in capsys.readouterr().out
    pretrain(made, corpus, run)
    monkeypatch.chdir(run / "checkpoints" / "latest")
    assert main(["convert", ".", str(tmp_path / "last")]) == 0
    for part in [path.relative_to(run / "model").parent for path in (run / "model").rglob("model.safetensors")]:
        whole, early, last = (load(tmp_path / folder / part) for folder in ("run/model", "early", "last"))
        assert early.config == whole.config
        assert early.tokenizer.hash() == last.tokenizer.hash() == whole.tokenizer.hash()
        assert all(torch.equal(w, last.state_dict()[key]) for key, w in whole.state_dict().items())
        assert not all(torch.equal(w, early.state_dict()[key]) for key, w in whole.state_dict().items())
        assert len(early.encode(["a few words"])) == 1


def test_a_checkpoint_that_is_no_model_is_refused(corpus: Path, tmp_path: Path) -> None:
    step = pretrain(short("bert-tiny"), corpus, tmp_path / "run").checkpoint
    shutil.rmtree(tmp_path / "run" / "model")
    weights = bytearray((step / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (step / "weights.safetensors").write_bytes(weights)
    for path in (step, tmp_path / "run"):
        assert main(["convert", str(path), str(tmp_path / "out")]) == 3
        assert not (tmp_path / "out").exists()


def test_the_recipe_of_another_version_is_named(corpus: Path, tmp_path: Path) -> None:
    folder = pretrain(short("bert-tiny"), corpus, tmp_path).checkpoint
    recipe, manifest = (json.loads((folder / name).read_text()) for name in (checkpoint.RECIPE, checkpoint.MANIFEST))
    (folder / checkpoint.RECIPE).write_text(json.dumps(recipe | {"colour": 1}))
    size, digest = (folder / checkpoint.RECIPE).stat().st_size, sha256(folder / checkpoint.RECIPE)
    manifest["files"][checkpoint.RECIPE] = {"bytes": size, "sha256": digest}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="recipe.json: unknown key 'colour'; continue with the version of encoderlab"):
        models_at(folder)
    (tmp_path / checkpoint.RECIPE).write_text(json.dumps(recipe | {"colour": 1}))
    with pytest.raises(ConfigError, match=r"\(colour was 1, now null\).*, or resume with the command and the version"):
        pretrain(short("bert-tiny"), corpus, tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"model": null, "seed": 7}'])
def test_the_folder_of_another_kind_of_run_is_refused(text: str, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(ConfigError, match="has a run of another recipe .*budget.amount was null, now 4"):
        pretrain(short("bert-tiny", init_from="nowhere"), corpus, tmp_path)


def test_a_teacher_with_fewer_positions_than_a_row_is_refused_at_once(corpus: Path, tmp_path: Path) -> None:
    made = short("bert-tiny")
    model = resized(made.model, position=Absolute(length=16))
    pretrain(replace(made, model=model, phases=(Phase(length=16, rows=8),)), corpus, tmp_path / "teacher")
    made = short("distilbert-tiny", objective=DistillSettings(teacher=str(tmp_path / "teacher" / "model")))
    with pytest.raises(ConfigError, match="exceed the teacher's 16 positions; shorten phases.0.length to 16"):
        pretrain(made, corpus, tmp_path / "student")
    assert not (tmp_path / "student").exists()


def test_another_teacher_on_resuming_is_refused(corpus: Path, tmp_path: Path) -> None:
    pretrain(short("bert-tiny"), corpus, tmp_path / "teacher")
    settings = DistillSettings(teacher=str(tmp_path / "teacher" / "model"))
    made = short("distilbert-tiny", objective=settings)
    with pytest.raises(Stopped):
        pretrain(made, corpus, tmp_path / "student", session=Budget(amount=2))
    other = load(settings.teacher)
    with torch.no_grad():
        other.words.mul_(1.5)
    other.save(settings.teacher)
    with pytest.raises(ConfigError, match="data teacher was"):
        pretrain(made, corpus, tmp_path / "student")


def test_a_flipped_byte_in_a_shard_is_named_and_nothing_is_lost(corpus: Path, tmp_path: Path) -> None:
    own, made = tmp_path / "corpus", short("bert-tiny")
    shutil.copytree(corpus, own)
    with pytest.raises(Stopped):
        pretrain(made, own, tmp_path / "run", session=Budget(amount=2))
    shard = next((own / "train").glob("*.safetensors"))
    whole = shard.read_bytes()
    middle = len(whole) // 2
    shard.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(DataError, match=rf"{shard.name}: sha256 .*changed or damaged"):
        pretrain(made, own, tmp_path / "run")
    shard.write_bytes(whole)
    assert pretrain(made, own, tmp_path / "run").step == made.budget.amount


def test_streams_are_validated_in_pairs(tmp_path: Path) -> None:
    """Twelve rows do not fit the validation split; half of six would be no pairs."""
    made = build(tmp_path, language(70))
    assert 32 <= Corpus(made, split="validation").num_tokens < 6 * 64
    outcome = pretrain(xlnet(rows=12), made, tmp_path / "run")
    assert "plm" in outcome.metrics["losses"]


def test_a_later_phase_that_the_text_is_too_short_for_is_refused_at_once(tmp_path: Path) -> None:
    made = build(tmp_path, language(70))
    phases = (Phase(length=32, rows=8, share=0.5), Phase(length=32_768, rows=8, share=0.5))
    model = resized(short("xlnet-tiny").model, dropout=0.0)
    long = short("xlnet-tiny", model=model, objective=MLMSettings(), format=FullSentences(), phases=phases)
    with pytest.raises(DataError, match="shorter than one row of 32768"):
        pretrain(long, made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def xlnet(rows: int) -> Recipe:
    return short(
        "xlnet-tiny",
        format=XLNetStreams(reuse=16, separator=False),
        objective=PermutationSettings(targets=Targets(count=4, block=16), memory=16, reuse=16),
        phases=(Phase(length=64, rows=rows),),
    )


def test_no_validation_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = build(tmp_path, language(70))
    long = short("deberta-tiny", phases=(Phase(length=512, rows=2),))
    assert not pretrain(long, made, tmp_path / "run").metrics
    said = [record.getMessage() for record in caplog.records if "no validation" in record.getMessage()]
    assert len(said) == 1 and "gives no rows of 512 tokens" in said[0]


def test_validation_rows_with_nothing_to_predict_are_said(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    masking = Masking(rate=1e-9, count="stochastic")
    pretrain(short("roberta-tiny", objective=MLMSettings(masking=masking)), corpus, tmp_path / "run")
    assert sum("nothing to predict for mlm, so they have no loss" in text for text in caplog.messages) == 1


def test_a_prediction_that_no_validation_row_has_is_named(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = short("modernbert-tiny", objective=HybridSettings())  # every sixteenth row is read from left to right
    assert made.model.lm is not None
    made = replace(made, model=replace(made.model, lm=replace(made.model.lm, next_token=True)))
    for rows, named in ((8, True), (16, False)):
        caplog.clear()
        pretrain(replace(made, evaluation=Evaluation(every=2, rows=rows)), corpus, tmp_path / str(rows))
        assert sum("nothing to predict for lm" in text for text in caplog.messages) == named
        lines = [line for line in metrics(tmp_path / str(rows)) if line["split"] == "valid"]
        assert len(lines) == 3 and all(("lm" in line["losses"]) != named for line in lines)
