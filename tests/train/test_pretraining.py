"""Continued pretraining: from a folder of any family and format, with exactly its weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from encoderlab.batches.pack import FullSentences
from encoderlab.batches.permutation import Targets
from encoderlab.batches.streams import XLNetStreams
from encoderlab.cli import main
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError, Stopped
from encoderlab.interchange import folder as folders
from encoderlab.interchange import huggingface
from encoderlab.interchange.load import load
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.objectives.base import Objective
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.recipes import recipe
from encoderlab.train.pretraining import Recipe, _objective, build_objective, check, fit, operations, pretrain
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Execution, Phase
from tests.objectives.conftest import make_rows
from tests.tasks import tiny
from tests.train.test_doctor import build, language

FAMILIES = (
    "bert-tiny",
    "roberta-tiny",
    "distilbert-tiny",
    "albert-tiny",
    "deberta-tiny",
    "deberta-v2-tiny",
    "erlangshen-deberta-v2-tiny",
    "xlnet-tiny",
    "transformer-xl-tiny",
)
PAIRS = ("electra-tiny", "convbert-tiny", "deberta-v3-tiny")


def tokenizer(made: Recipe) -> Tokenizer:
    return tiny.tokenizer(made.model.family if made.model.family in ("xlnet", "roberta") else "bert")


def made_of(name: str) -> Recipe:
    made = recipe(name)
    if made.generator is not None and name.startswith("convbert"):  # files of transformers take even numbers of heads
        made = replace(made, generator=resized(made.generator, heads=2))
    return replace(made, objective=MLMSettings()) if name.startswith("distilbert") else made


def saved(name: str, folder: Path, *, extra: int = 0, save: Callable[..., Any] = huggingface.save) -> None:
    """The networks of a recipe with random weights everywhere and ``extra`` rows in the word table."""
    made = fit(made_of(name), tokenizer(made_of(name)))
    wide = made.model.encoder.vocab + extra
    if made.generator is None:
        save(shaken(Model(resized(made.model, vocab=wide), tokenizer(made))), folder)
        return
    networks = [Model(resized(config, vocab=wide), tokenizer(made)) for config in (made.generator, made.model)]
    generator, discriminator = map(shaken, networks)
    if made.model.family != "deberta":
        one, two = generator.encoder.embeddings, discriminator.encoder.embeddings
        one.words, one.positions, one.types, one.norm = two.words, two.positions, two.types, two.norm
    save(generator, folder / "generator")
    save(discriminator, folder / "discriminator")


def shaken(model: Model) -> Model:
    model.initialize(5)
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draws))
    return model


def continued(made: Recipe, folder: Path) -> Objective:
    made = replace(made, init_from=str(folder))
    check(made)
    text = tokenizer(made)
    corpus: Any = SimpleNamespace(counts=lambda: np.ones(text.vocab_size, np.int64))
    return build_objective(fit(made, text), text, corpus)


def assert_taken(model: Model, source: Model, left: tuple[str, ...] = ()) -> None:
    """All that the folder holds is in the model; a table that became a difference gives it up to rounding."""
    own, given = folders.weights(model), folders.weights(source)
    assert {name for name in own if name not in given} <= set(left)
    for name in own.keys() & given.keys():
        difference = name == "encoder.embeddings.words" and bool(model.encoder.embeddings.base)
        assert torch.allclose(own[name], given[name], atol=1e-6 if difference else 0.0, rtol=0), name


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_continues_from_hugging_face(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path / "hf")
    assert_taken(continued(made_of(name), tmp_path / "hf").models()["model"], load(tmp_path / "hf"))


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_two_networks_continue(name: str, fresh: bool, tmp_path: Path) -> None:
    saved(name, tmp_path)
    networks = continued(replace(made_of(name), fresh_generator=fresh), tmp_path).models()
    assert_taken(networks["discriminator"], load(tmp_path / "discriminator"))
    generator = load(tmp_path / "generator")
    if not fresh:
        assert_taken(networks["generator"], generator, ("mask_positions",))  # files of transformers have none
    else:
        own, theirs = networks["generator"].lm.bias, generator.lm.bias
        assert not torch.equal(own, theirs)


def test_a_discriminator_alone_continues_with_a_fresh_generator(tmp_path: Path) -> None:
    saved("electra-tiny", tmp_path)
    made = replace(made_of("electra-tiny"), fresh_generator=True)
    assert_taken(
        continued(made, tmp_path / "discriminator").models()["discriminator"], load(tmp_path / "discriminator")
    )
    with pytest.raises(ConfigError, match="holds no generator; set fresh_generator=true"):
        continued(made_of("electra-tiny"), tmp_path / "discriminator")


def test_a_generator_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    """Of the same size, so that nothing else would tell."""
    saved("electra-tiny", tmp_path, save=folders.save)
    generator = load(tmp_path / "generator")
    generator.tokenizer = tiny.tokenizer("roberta")
    assert generator.tokenizer.vocab_size == tiny.tokenizer().vocab_size
    folders.save(generator, tmp_path / "generator")
    with pytest.raises(ConfigError, match="its tokenizer is not the corpus's"):
        continued(made_of("electra-tiny"), tmp_path)


@pytest.mark.parametrize("name", ["bert-tiny", "deberta-v3-tiny"])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_table_larger_than_the_tokenizer_stays(name: str, fresh: bool, tmp_path: Path) -> None:
    saved(name, tmp_path / "hf", extra=7)
    made = replace(made_of(name), fresh_generator=fresh)
    sizes = {len(network.words) for network in continued(made, tmp_path / "hf").models().values()}
    assert sizes == {tokenizer(made).vocab_size + 7}


def test_a_student_continues_with_its_own_weights(tmp_path: Path) -> None:
    saved("distilbert-tiny", tmp_path / "student")
    saved("bert-tiny", tmp_path / "teacher", save=folders.save)
    settings = DistillSettings(teacher=str(tmp_path / "teacher"), student_from=(0,))
    made = replace(recipe("distilbert-tiny"), objective=settings)
    assert_taken(continued(made, tmp_path / "student").models()["model"], load(tmp_path / "student"))


def test_dropout_may_change(tmp_path: Path) -> None:
    saved("bert-tiny", tmp_path / "model", save=folders.save)
    made = replace(recipe("bert-tiny"), model=resized(recipe("bert-tiny").model, dropout=0.0, attention_dropout=0.0))
    model = continued(made, tmp_path / "model").models()["model"]
    assert model.config.encoder.dropout == 0.0
    assert_taken(model, load(tmp_path / "model"))


def test_another_architecture_is_named(tmp_path: Path) -> None:
    saved("bert-tiny", tmp_path / "hf")
    with pytest.raises(ConfigError, match=r"its encoder differs from the recipe's \(layers 2, here 4; .*; use the"):
        continued(recipe("bert-mini"), tmp_path / "hf")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("xlnet", {}, "have 3 segments, and the model 2; set encoder.types of the model to 3"),
        ("bert", {"types": 1}, "have 2 segments, and the model 1; set encoder.types of the model to 2"),
        ("roberta", {"types": 1}, None),
        ("bert", {"types": 0}, None),
    ],
)
def test_segments_that_the_table_lacks_are_refused(family: str, changes: dict[str, int], message: str | None) -> None:
    made = recipe("bert-tiny")
    made = replace(made, model=resized(made.model, **changes))
    if message is None:
        fit(made, tiny.tokenizer(family))
        return
    with pytest.raises(ConfigError, match=message):
        fit(made, tiny.tokenizer(family))


def test_heads_that_only_one_has_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved("bert-tiny", tmp_path / "model", save=folders.save)
    made = recipe("bert-tiny")
    continued(replace(made, model=replace(made.model, pair=False, pooler=None)), tmp_path / "model")
    assert "has pair.bias, pair.weight, pooler." in caplog.text and "no use for" in caplog.text


# Whole runs


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
    with pytest.raises(DataError, match="not finished; finish it, or take .* encoderlab convert"):
        load(run)
    with pytest.raises(DataError, match="holds a checkpoint, not a model; run: encoderlab convert"):
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


@pytest.mark.parametrize("text", ["{}", '{"model": null, "seed": 7}'])
def test_the_folder_of_another_kind_of_run_is_refused(text: str, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(ConfigError, match="holds a run of another recipe .*budget.amount was null, now 4"):
        pretrain(short("bert-tiny", init_from="nowhere"), corpus, tmp_path)


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
    long = short("xlnet-tiny", model=model, objective=MLMSettings(), rows=FullSentences(), phases=phases)
    with pytest.raises(DataError, match="shorter than one row of 32768"):
        pretrain(long, made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def xlnet(rows: int) -> Recipe:
    return short(
        "xlnet-tiny",
        rows=XLNetStreams(reuse=16, separator=False),
        objective=PermutationSettings(targets=Targets(count=4, block=16), memory=16, reuse=16),
        phases=(Phase(length=64, rows=rows),),
    )


def test_no_validation_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = build(tmp_path, language(70))
    long = short("deberta-tiny", phases=(Phase(length=512, rows=2),))
    assert not pretrain(long, made, tmp_path / "run").metrics
    said = [record.getMessage() for record in caplog.records if "no validation" in record.getMessage()]
    assert len(said) == 1 and "gives no rows of 512 tokens" in said[0]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bert-tiny", {}),
        ("albert-tiny", {}),
        ("electra-tiny", {}),
        ("distilbert-tiny", {}),
        ("distilbert-tiny", {"at": "masked"}),
        ("distilbert-tiny", {"mlm_weight": 0.0}),
        ("distilbert-tiny", {"logits_weight": 0.0}),
    ],
)
def test_a_token_costs_what_torch_counts(name: str, changes: dict[str, Any]) -> None:
    """Over a whole step, in double precision: torch sees the products of the plain twins."""
    found = recipe(name)
    found = replace(found, objective=replace(found.objective, **changes))
    generator = None if found.generator is None else resized(found.generator, vocab=500)
    found = replace(found, model=resized(found.model, vocab=500), generator=generator)
    vocabulary = Vocabulary(size=500, pad=0, mask=4, special=(0, 1, 2, 3, 4), counts=np.ones(500))
    second = None if generator is None else Model(generator).initialize(1)
    teacher = Model(resized(recipe("bert-tiny").model, vocab=500)).initialize(2)
    objective = _objective(found, Model(found.model).initialize(0), second, teacher, vocabulary).double().train()
    batch = objective.make_batch([row for row in make_rows(24, 64) if len(row) == 64], seed=1)
    with FlopCounterMode(display=False) as counter:
        terms, _ = objective(batch)
        torch.stack([term.sum for term in terms.values() if term.weight]).sum().backward()
    expected = operations(found, 64, teacher.config)
    assert counter.get_total_flops() / batch.num_tokens == pytest.approx(expected, rel=0.01)
