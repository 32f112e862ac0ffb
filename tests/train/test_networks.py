"""Continued pretraining: from a folder of any family and format, with exactly its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from encoderlab.batches.streams import ContiguousStreams
from encoderlab.config import override
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.interchange import folder as folders
from encoderlab.interchange import huggingface
from encoderlab.interchange.load import load
from encoderlab.model import Model, build
from encoderlab.models.base import resized
from encoderlab.nn.heads import RTD
from encoderlab.nn.spanconv import Light, SpanDynamic
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.recipes import recipe
from encoderlab.train.checks import check
from encoderlab.train.networks import build_objective, fit
from encoderlab.train.recipe import Recipe
from tests.tasks import tiny

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


@pytest.mark.parametrize(
    ("there", "here", "warned"),
    [
        (True, False, "before it (model.lm.next_token=true); from here on from its own state"),
        (False, True, "its own state (model.lm.next_token=false); from here on from the state of the token before it"),
        (True, True, ""),
    ],
)
def test_an_lm_head_that_reads_another_state_is_warned_of(
    there: bool, here: bool, warned: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = made_of("roberta-tiny")
    recipes = [replace(made, model=override(made.model, {"lm.next_token": next_token})) for next_token in (there, here)]
    shaken(Model(fit(recipes[0], tokenizer(made)).model, tokenizer(made))).save(tmp_path / "model")
    assert_taken(continued(recipes[1], tmp_path / "model").models()["model"], load(tmp_path / "model"))
    assert warned in caplog.text if warned else not caplog.records


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
    with pytest.raises(ConfigError, match="has no generator; set fresh_generator=true"):
        continued(made_of("electra-tiny"), tmp_path / "discriminator")


def test_a_generator_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    """Of the same size, so that nothing else would tell."""
    saved("electra-tiny", tmp_path, save=folders.save)
    generator = load(tmp_path / "generator")
    generator.tokenizer = tiny.tokenizer("roberta")
    assert generator.tokenizer.vocab_size == tiny.tokenizer().vocab_size
    folders.save(generator, tmp_path / "generator")
    with pytest.raises(ConfigError, match="its tokenizer differs from the corpus's"):
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


@pytest.mark.parametrize("conv", [SpanDynamic(), Light()])
def test_convolutions_may_stop_to_read_padding(conv: SpanDynamic | Light, tmp_path: Path) -> None:
    made = recipe("bert-tiny")
    reads, stops = (resized(made.model, conv=replace(conv, mask_padding=masks)) for masks in (False, True))
    shaken(Model(fit(replace(made, model=reads), tokenizer(made)).model, tokenizer(made))).save(tmp_path / "model")
    model = continued(replace(made, model=stops), tmp_path / "model").models()["model"]
    assert model.config.encoder.conv == stops.encoder.conv
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


def test_segments_are_also_those_of_the_texts_that_are_encoded_later() -> None:
    """Rows of streams have no special tokens, and so one segment."""
    made = recipe("bert-tiny")
    made = replace(made, format=ContiguousStreams(separator=False), objective=CausalSettings())
    with pytest.raises(ConfigError, match="have 3 segments, and the model 2"):
        fit(replace(made, model=resized(made.model, causal=True)), tiny.tokenizer("xlnet"))


@pytest.mark.parametrize(
    ("name", "remedy", "changes"),
    [
        ("bert-tiny", "set model.pair to false", {"pair": False}),
        ("deberta-v3-tiny", "set model.rtd.variant to electra", {"rtd": RTD()}),
    ],
)
def test_heads_that_read_the_first_token_need_cls_there(name: str, remedy: str, changes: dict[str, Any]) -> None:
    made = recipe(name)
    made = replace(made, model=resized(made.model, types=0))
    with pytest.raises(ConfigError, match=rf"rows of this tokenizer \(of kind xlnet\) have \[CLS\] last; {remedy}, or"):
        fit(made, tiny.tokenizer("xlnet"))
    fit(replace(made, model=replace(made.model, **changes)), tiny.tokenizer("xlnet"))
    fit(made, tiny.tokenizer("bert"))


def test_heads_that_only_one_has_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved("bert-tiny", tmp_path / "model", save=folders.save)
    made = recipe("bert-tiny")
    continued(replace(made, model=replace(made.model, pair=False, pooler=None)), tmp_path / "model")
    assert "has pair.bias, pair.weight, pooler." in caplog.text and "does not use" in caplog.text


def test_a_vocabulary_that_is_set_is_said_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    made = recipe("bert-tiny")
    size = tokenizer(made).vocab_size
    assert fit(made, tokenizer(made)).model.encoder.vocab == size and not caplog.text
    fit(replace(made, model=resized(made.model, vocab=size)), tokenizer(made))
    assert not caplog.text
    fit(replace(made, model=resized(made.model, vocab=1)), tokenizer(made))
    assert f"model.encoder.vocab 1 has no effect, because the corpus's tokenizer has {size} ids" in caplog.text


def test_a_vocabulary_that_is_set_is_compared_with_the_model_to_continue(tmp_path: Path, caplog) -> None:
    model = build("bert-tiny", **{"encoder.vocab": 5000})
    model.tokenizer = tokenizer(made := replace(recipe("bert-tiny"), init_from=str(tmp_path / "model")))
    model.save(tmp_path / "model")
    fitted = fit(replace(made, model=resized(made.model, vocab=5000)), model.tokenizer)
    assert fitted.model.encoder.vocab == 5000 and not caplog.text
    fit(replace(made, model=resized(made.model, vocab=6000)), model.tokenizer)
    assert "model.encoder.vocab 6000 has no effect, because the model to continue has 5000 words; leave" in caplog.text
