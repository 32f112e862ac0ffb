"""Published runs: each parses, survives JSON and builds its networks; what makes no sense is refused with a reason."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from encoderlab import config, models
from encoderlab.batches.corrupt import Corruptor, Masking
from encoderlab.batches.loader import Loader
from encoderlab.batches.pack import FullSentences
from encoderlab.batches.streams import ContiguousStreams, XLNetStreams
from encoderlab.commands import settings
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.heads import Pooler
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.mlm import MLM, MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import ReplacedTokenDetection, RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.recipes import RECIPES, recipe
from encoderlab.train.checks import check
from encoderlab.train.networks import build_objective, fit
from encoderlab.train.optim import AdamW, LayerDecay
from encoderlab.train.recipe import Budget, Phase, Ramp, Recipe
from tests.batches.memory_corpus import BERT, MASK, SPECIAL, random_corpus
from tests.objectives.conftest import make_rows
from tests.tasks import tiny

DOCS = Path(__file__).resolve().parents[1] / "docs" / "recipes.md"


@pytest.mark.parametrize("name", RECIPES)
def test_parses_and_survives_json(name: str) -> None:
    made = recipe(name)
    assert made.name == name
    check(made)
    assert config.from_dict(Recipe, json.loads(json.dumps(config.to_dict(made)))) == made
    assert made.schedule.warmup < made.budget.amount or made.schedule.warmup < 1


@pytest.mark.parametrize("base", ["bert-tiny", "electra-mini", "xlnet-mini", "deberta-v3-mini"])
def test_a_whole_recipe_replaces_another(base: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in RECIPES:
        made = recipe(name)
        fields = config.flatten(json.loads(json.dumps(config.to_dict(made))))
        assert config.override(recipe(base), fields) == made
    assert not caplog.records, "every field is given, so none is reset"


@pytest.mark.parametrize("by", ["file", "set", "environment"])
@pytest.mark.parametrize(
    ("name", "field", "text", "paths"),
    [
        ("roberta-mini", "optim", "{kind: adamw, lr: 2e-4}", {"optim.lr": 2e-4}),
        ("roberta-mini", "optim", "{lr: 2e-4}", {"optim.lr": 2e-4}),
        ("roberta-mini", "optim", "{}", {}),
        ("roberta-base", "ramp", "{}", {"ramp": {}}),
        ("roberta-base", "ramp", "{rows: 4}", {"ramp.rows": 4}),
        ("roberta-mini", "phases", "[{length: 64, rows: 8}]", {"phases": [{"length": 64, "rows": 8}]}),
        ("roberta-mini", "objective", "{masking: {unit: {kind: spans}}}", {"objective.masking.unit.kind": "spans"}),
        ("bert-wwm-mini", "objective", "{kind: mlm, masking: {rate: 0.3}}", {"objective.masking.rate": 0.3}),
    ],
)
def test_a_mapping_sets_the_fields_that_it_names(
    by: str, name: str, field: str, text: str, paths: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text(f"{field}: {text}\n")
    if by == "environment":
        monkeypatch.setenv(f"{settings.PREFIX}{field.upper()}", text)
    files, assignments = [tmp_path / "a.yaml"] * (by == "file"), [f"{field}={text}"] * (by == "set")
    expected = config.override(recipe(name), paths)
    assert settings.resolve(recipe(name), files=files, assignments=assignments) == expected


@pytest.mark.parametrize("name", RECIPES)
def test_builds_its_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its real size, without memory for the weights."""
    made = recipe(name)
    if isinstance(made.objective, DistillSettings):
        with pytest.raises(ConfigError, match="objective.teacher=FOLDER"):
            build(tiny_model(made))
        return
    monkeypatch.setattr(Model, "initialize", lambda self, seed: self)
    with torch.device("meta"):
        objective = build(made)
    names = {"generator", "discriminator"} if made.generator else {"model"}
    assert objective.models().keys() == names


@pytest.mark.parametrize("name", ["electra-small", "electra-large", "convbert-small", "convbert-base"])
@pytest.mark.parametrize("length", [128, 512])
def test_a_phase_of_any_length_masks_its_share(name: str, length: int) -> None:
    objective = recipe(name).objective
    assert isinstance(objective, RTDSettings)
    rows = make_rows(60, length)
    hidden = Corruptor(objective.masking, vocab_size=40, mask_id=4, special_ids=SPECIAL)(rows, 1)
    rate = 0.25 if name == "electra-large" else 0.15
    assert [len(made.positions) for made in hidden] == [round(rate * len(row)) for row in rows]


def test_what_the_released_code_says() -> None:
    """Of google-research/albert, huggingface's distillation scripts and kimiyoung/transformer-xl."""
    steps = {name: recipe(f"albert-{name}").budget.amount for name in ("base", "base-v2", "large-v2", "xxlarge-v2")}
    assert steps == {"base": 125_000, "base-v2": 10_000_000, "large-v2": 3_000_000, "xxlarge-v2": 3_000_000}
    assert recipe("albert-base").objective.masking.most == 20  # type: ignore[union-attr]
    for name in ("distilbert-base", "distilroberta-base", "distilbert-mini"):
        assert recipe(name).objective.masking.random_from == "all"  # type: ignore[union-attr]
        corpus = random_corpus(3, documents=99, sentences=(1, 3))
        plan = recipe(name).format.plan(corpus, np.arange(99), np.random.default_rng(1), BERT, 512)  # type: ignore[union-attr]
        assert plan.placement == "single" and min(plan.lengths(BERT)) == 12 and len(plan) < 99
    separated = [name for name in RECIPES if getattr(recipe(name).format, "separator", False) and "transformer" in name]
    assert sorted(separated) == [
        f"transformer-xl-{name}" for name in ("lm1b-base", "lm1b-large", "wt103-base", "wt103-large")
    ]
    deviations = {name: models.config(f"transformer-xl-wt103-{name}").encoder.init_std for name in ("base", "large")}
    assert deviations == {"base": 0.02, "large": 0.005}


@pytest.mark.parametrize(
    ("name", "rows", "taken", "end"),
    [
        ("modernbert-base", 4608, 1e-5, 1.0),
        ("modernbert-base-context", 576, 1e-5, 1.0),
        ("modernbert-base-decay", 576, 1e-5, 1e-3),
        ("modernbert-large", 4928, 1e-5, 1.0),
        ("modernbert-large-context", 616, 1e-6, 1.0),
        ("modernbert-large-decay", 624, 1e-6, 1e-3),
    ],
)
def test_the_phases_of_modernbert(name: str, rows: int, taken: float, end: float) -> None:
    """Of AnswerDotAI/ModernBERT: ``taken`` is the share of the weights that a step at the peak rate takes away."""
    made = recipe(name)
    assert made.phases[0].rows == rows
    assert made.optim.lr * made.optim.weight_decay == pytest.approx(taken, rel=1e-3)
    assert made.schedule.share(made.budget.amount, made.budget.amount) == pytest.approx(end)


def test_every_family_has_a_size_for_a_cpu() -> None:
    for family in ("bert", "roberta", "albert", "distilbert", "electra", "convbert", "deberta-v3", "xlnet"):
        for size in ("tiny", "mini"):
            made = recipe(f"{family}-{size}")
            assert made.budget.amount <= 5000 and made.phases[-1].rows * made.phases[-1].length <= 8192


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="bert-mini"):
        recipe("bert-mni")


# The six mixes of BERT's ablation


def documented_mixes() -> list[tuple[tuple[float, float, float], list[str]]]:
    """(masked, kept, random) in percent and the assignments, from the table of docs/recipes.md."""
    found = []
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| (\d+) \| (\d+) \| (\d+) \|.*`(.+)` \|", line):
            shares = tuple(float(number) for number in match.groups()[:3])
            found.append((shares, re.findall(r"--set (\S+)", match[4])))
    return found  # type: ignore[return-value]


def test_the_masking_ablation_of_bert() -> None:
    mixes = documented_mixes()
    assert [shares for shares, _ in mixes] == [
        (80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100),
    ]  # fmt: skip
    rows = make_rows(400, 128)
    for (masked, kept, drawn), assignments in mixes:
        made = settings.resolve(recipe("bert-mini"), assignments=assignments)
        assert isinstance(made.objective, MLMSettings)
        corruptor = Corruptor(made.objective.masking, vocab_size=40, mask_id=4, special_ids=SPECIAL)
        seen: Counter[str] = Counter()
        for row, hidden in zip(rows, corruptor(rows, 1), strict=True):
            assert (row.ids[hidden.positions] == hidden.targets).all()
            shown = hidden.ids[hidden.positions]
            seen["masked"] += int((shown == 4).sum())
            seen["kept"] += int((shown == hidden.targets).sum())
            seen["all"] += len(shown)
        # A random token is [MASK], or the one that was there, once in 40 times each.
        assert abs(seen["masked"] / seen["all"] - (masked + drawn / 40) / 100) < 0.015
        assert abs(seen["kept"] / seen["all"] - (kept + drawn / 40) / 100) < 0.015


# Static masking


def masks(duplicates: int | None, epochs: int) -> list[Counter[tuple[bytes, bytes, bytes]]]:
    """What is shown and asked in each epoch."""
    corpus = random_corpus(3, documents=20, vocab=40)
    vocabulary = Vocabulary(size=40, pad=0, mask=MASK, special=SPECIAL)
    objective = MLM(tiny.model("bert-tiny"), recipe("bert-mini-static").objective, vocabulary)  # type: ignore[arg-type]
    found: list[Counter[tuple[bytes, bytes, bytes]]] = [Counter() for _ in range(epochs)]
    loader = Loader(
        corpus, FullSentences(), 32, framing=BERT, seed=1, batch_rows=1, duplicates=duplicates, epochs=epochs
    )
    before = 0
    for rows in loader:
        batch = objective.make_batch(rows, seed=1)
        parts = (batch.ids, batch.labels["positions"], batch.labels["targets"])
        ids, positions, targets = (part.numpy().tobytes() for part in parts)
        found[before][ids, positions, targets] += 1
        before = loader.state()["epoch"]
    return found


def test_static_masks_repeat_after_the_duplication_factor() -> None:
    first, second, third, fourth = masks(2, epochs=4)
    assert first == third and second == fourth, "rows and masks, in whatever order"
    assert not first & second


def test_dynamic_masks_do_not_repeat() -> None:
    first, second = masks(None, epochs=2)
    assert not first & second


# What is refused

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a missing generator": ("electra-mini", {"generator": None}, "needs a generator"),
    "a second network": ("bert-mini", {"generator": models.config("electra-mini-generator")}, "trains one network"),
    "a masking rate that changes by the clock": (
        "bert-mini",
        {"objective": MLMSettings(masking=Masking(final_rate=0.3)), "budget": Budget(amount=1, unit="hours")},
        "give the budget in steps, tokens or FLOPs",
    ),
    "a masking rate that changes over rows that grow": (
        "bert-mini",
        {"objective": MLMSettings(masking=Masking(final_rate=0.3)), "ramp": Ramp(rows=8)},
        "give the budget in tokens or FLOPs, or set ramp to null",
    ),
    "a masking rate that changes over batches of tokens": (
        "roberta-mini-doc-sentences",
        {"objective": MLMSettings(masking=Masking(final_rate=0.3))},
        "set format.batch to rows, or objective.masking.final_rate to null",
    ),
    "memory over shuffled rows": (
        "transformer-xl-mini",
        {"format": FullSentences()},
        "set format.kind to contiguous_streams, or objective.memory and",
    ),
    "permutation memory over shuffled rows": (
        "xlnet-mini",
        {"format": FullSentences()},
        "set format.kind to xlnet_streams, or objective.memory to 0",
    ),
    "rows that run backwards": (
        "modernbert-mini",
        {"format": XLNetStreams(reuse=64, separator=False)},
        "set format.both_directions to false",
    ),
    "a stream of XLNet's rows": ("transformer-xl-mini", {"format": recipe("xlnet-mini").format}, "are not plain text"),
    "streams for masks": (
        "bert-mini",
        {"format": recipe("transformer-xl-mini").format},
        "are for the causal objective",
    ),
    "streams that grow": ("transformer-xl-mini", {"ramp": Ramp(rows=8)}, "number of streams cannot change"),
    "streams of two widths": (
        "transformer-xl-mini",
        {"phases": (Phase(rows=8, share=0.5), Phase(rows=16, share=0.5))},
        "number of streams cannot change",
    ),
    "evaluation memory over shuffled rows": (
        "bert-base-ltr",
        {"objective": CausalSettings(evaluation_memory=8)},
        "cannot have memory of earlier rows",
    ),
    "windows that vary beyond the positions": (
        "bert-base-ltr",
        {"format": ContiguousStreams(separator=False, variable=True)},
        "rows of 527 tokens exceed the model's 512 positions; shorten phases.1.length to 497",
    ),
    "rows longer than the positions": ("bert-mini", {"phases": (Phase(length=1024, rows=8),)}, "512 positions"),
    "rows longer than the mask decoder": ("deberta-mini", {"phases": (Phase(length=600, rows=8),)}, "raise model.mask"),
    "longer rows of a later phase": (
        "bert-mini",
        {"phases": (Phase(length=128, rows=8, share=0.9), Phase(length=1024, rows=8, share=0.1))},
        "shorten phases.1.length to 512",
    ),
    "rows longer than the generator": (
        "deberta-v3-mini",
        {"generator": replace(models.config("deberta-v3-mini-generator"), mask_decoder=64)},
        "mask decoder's 64 positions; shorten phases.0.length to 64, or raise generator.mask_decoder",
    ),
    "two lengths of reuse": ("xlnet-mini", {"format": XLNetStreams(reuse=32)}, "objective.reuse to 32"),
    "reuse in rows that are no streams": (
        "xlnet-mini",
        {"format": FullSentences(), "objective": PermutationSettings(memory=0, reuse=64)},
        "objective.reuse to 0",
    ),
    "a stream that never advances": (
        "xlnet-mini",
        {"format": XLNetStreams(reuse=0), "objective": PermutationSettings(memory=0, reuse=0)},
        "format.reuse to 64",
    ),
    "a stream that never advances, for masks": (
        "bert-mini",
        {"format": XLNetStreams(reuse=0)},
        "format.reuse to 64",
    ),
    "hardly any context": ("xlnet-mini", {"phases": (Phase(length=72, rows=8),)}, "too little context"),
    "repeated streams": ("transformer-xl-mini", {"duplicates": 10}, "set duplicates to null"),
    "mask decoder on absolute positions": (
        "bert-mini",
        {"model": replace(models.config("bert-mini"), mask_decoder=512)},
        "needs disentangled positions",
    ),
    "a pair head beside a mask decoder": (
        "deberta-mini",
        {"model": replace(models.config("deberta-mini"), pooler=Pooler(), pair=True)},
        "set model.pair to false, or model.mask_decoder to 0",
    ),
    "permutation on absolute positions": (
        "xlnet-mini",
        {"model": replace(models.config("bert-mini"), mask_vector=True)},
        "needs relative_shift positions",
    ),
    "permutation without a query vector": (
        "xlnet-mini",
        {"model": replace(models.config("xlnet-mini"), mask_vector=False)},
        "needs mask_vector",
    ),
    "masks for a left-to-right model": (
        "bert-mini",
        {"model": resized(models.config("bert-mini"), causal=True)},
        "attention to both sides",
    ),
    "a fresh generator for no discriminator": (
        "electra-mini",
        {"fresh_generator": True},
        "give that model (--init-from)",
    ),
    "masks without LM head": (
        "bert-mini",
        {"model": replace(models.config("bert-mini"), lm=None)},
        "needs an LM head over one word table, and this model has no LM head; set model.lm={}",
    ),
    "masks with an adaptive softmax": (
        "bert-mini",
        {"model": models.config("transformer-xl-mini")},
        "one word table, and this model has several; set model.encoder.adaptive to null",
    ),
    "left-to-right with both sides": (
        "transformer-xl-mini",
        {"model": models.config("xlnet-mini")},
        "must not see later tokens",
    ),
    "memory on absolute positions": (
        "transformer-xl-mini",
        {"model": resized(models.config("bert-mini"), causal=True)},
        "memory needs relative positions",
    ),
    "a detector without head": ("electra-mini", {"model": models.config("bert-mini")}, "no detection head"),
    "a generator without head": (
        "electra-mini",
        {"generator": replace(models.config("electra-mini-generator"), lm=None)},
        "no LM head",
    ),
    "a permutation without head": (
        "xlnet-mini",
        {"model": replace(models.config("xlnet-mini"), lm=None, mask_vector=False)},
        "needs mask_vector and an LM head",
    ),
    "rates by layer for shared layers": (
        "albert-mini",
        {"optim": AdamW(layer_decay=LayerDecay())},
        "set optim.layer_decay to null",
    ),
    "no teacher": ("distilbert-mini", {}, "needs a teacher"),
    "a generator to continue that is not there": ("electra-mini", {"init_from": "MODEL"}, "has no generator"),
    "another architecture to continue": ("bert-tiny", {"init_from": "MODEL"}, "its encoder differs"),
}


def test_two_vocabularies_are_refused() -> None:
    """A corpus has one tokenizer, so this takes networks made by hand."""
    made = recipe("electra-tiny")
    assert isinstance(made.objective, RTDSettings) and made.generator is not None
    networks = (Model(resized(each, vocab=vocab)) for each, vocab in ((made.generator, 50), (made.model, 60)))
    with pytest.raises(ConfigError, match="50 and 60 ids; .* needs one tokenizer for both"):
        ReplacedTokenDetection(*networks, made.objective, Vocabulary(size=60, pad=0, mask=MASK, special=SPECIAL))


def build(made: Recipe) -> Any:
    tokenizer = tiny.tokenizer(
        "xlnet" if made.model.family == "xlnet" else "roberta" if made.model.family == "roberta" else "bert"
    )
    corpus: Any = SimpleNamespace(counts=lambda: np.ones(tokenizer.vocab_size, np.int64))
    return build_objective(fit(made, tokenizer), tokenizer, corpus)


def tiny_model(made: Recipe) -> Recipe:
    return replace(made, model=resized(made.model, layers=2, width=32, heads=2, head_width=None, ff_width=32))


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, changes, reason = REFUSED[case]
    if "init_from" in changes:
        Model(fit(recipe("electra-mini"), tiny.tokenizer()).model, tiny.tokenizer()).initialize(0).save(
            tmp_path / "model"
        )
        changes = {"init_from": str(tmp_path / "model")}
    made = replace(recipe(name), **changes)
    if "init_from" not in changes:
        monkeypatch.setattr(Model, "initialize", lambda self, seed: self)
    with pytest.raises(ConfigError, match=re.escape(reason)) as error:
        check(made)
        build(made)
    assert "\n" not in str(error.value)
    assert "; " in str(error.value), "says what to do"


@pytest.mark.parametrize("case", [case for case in REFUSED if "init_from" not in REFUSED[case][1]][:-1])
def test_refused_before_anything_is_built(case: str) -> None:
    """So that a dry run says it too; all but the last, which a file decides."""
    name, changes, reason = REFUSED[case]
    with pytest.raises(ConfigError, match=re.escape(reason)):
        check(replace(recipe(name), **changes))
