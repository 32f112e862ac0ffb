"""Each diagnosis on a run that was broken on purpose; a healthy run has none."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoderlab import recipes
from encoderlab.batches.batch import IGNORE, Batch
from encoderlab.batches.corrupt import Masking
from encoderlab.batches.pack import FullSentences
from encoderlab.batches.rows import Row
from encoderlab.corpus.assemble import Selection
from encoderlab.corpus.build import BuildSettings, GivenTokenizer, NewTokenizer, build_corpus
from encoderlab.corpus.shards import Corpus
from encoderlab.errors import DataError, Diverged
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig, resized
from encoderlab.objectives.base import Objective
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.train import doctor
from encoderlab.train.corpus_data import corpus_data
from encoderlab.train.doctor import Finding, Watch, diagnose
from encoderlab.train.evidence import CorpusFacts, Evidence, read, reference
from encoderlab.train.loop import train
from encoderlab.train.networks import build_objective, fit
from encoderlab.train.optim import BertAdam, Muon
from encoderlab.train.recipe import Budget, Checkpoints, Evaluation, Execution, Phase, Recipe

WORDS = [a + b for a in ("ba", "de", "fi", "go", "lu", "mo", "pe", "ri", "sa", "tu") for b in ("n", "s", "k", "r", "l")]
REFERENCES = sorted((Path(recipes.__file__).parent / "reference").glob("*.json"))
SLOW = "loader too slow"  # says something about the machine that runs these tests


def language(documents: int, seed: int = 0) -> str:
    """Documents of 60 words, each document of 5 of the 50 words there are: what a word is, the others say."""
    rng = random.Random(seed)
    text = []
    for _ in range(documents):
        topic = 5 * rng.randrange(10)
        lines = [" ".join(rng.choices(WORDS[topic : topic + 5], k=10)) + "." for _ in range(6)]
        text.append(" ".join(lines))
    return "\n\n".join(text)


def build(folder: Path, text: str, **settings: Any) -> Path:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    tokenizer = settings.pop("tokenizer", NewTokenizer(kind="wordpiece", vocab_size=90))
    unknown = {name: settings.pop(name) for name in ("max_unknown",) if name in settings}
    selection = Selection(validation=0.05, **settings)
    made = BuildSettings(sources=(str(folder / "text.txt"),), tokenizer=tokenizer, selection=selection)
    build_corpus(made, folder / "corpus", **unknown)
    return folder / "corpus"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("language"), language(800))


def tiny(**changes: Any) -> Recipe:
    """BERT without pairs: 2 layers of width 32, 16 rows of 32 tokens."""
    recipe = recipes.recipe("bert-mini-no-nsp")
    model = resized(
        recipe.model, layers=2, width=32, heads=2, ff_width=64, dropout=0.0, attention_dropout=0.0, ff_dropout=0.0
    )
    recipe = replace(
        recipe,
        model=model,
        format=FullSentences(),
        budget=Budget(amount=300),
        phases=(Phase(length=32, rows=16),),
        optim=replace(recipe.optim, lr=4e-3),
        evaluation=Evaluation(every=1000, rows=64),
        checkpoints=Checkpoints(minutes=None),
        execution=Execution(device="cpu"),
    )
    return replace(recipe, **changes)


def run(recipe: Recipe, corpus: Path, out: Path, prepare: Callable[[Objective], None] = lambda objective: None) -> Path:
    """As ``pretrain`` trains, with something done to the objective before."""
    torch.set_num_threads(1)
    text = Corpus(corpus)
    tokenizer = text.tokenizer()
    recipe = fit(recipe, tokenizer)
    objective = build_objective(recipe, tokenizer, text)
    prepare(objective)
    train(objective, recipe, corpus_data(recipe, objective, corpus, tokenizer), out)
    return out


def names(findings: list[Finding]) -> set[str]:
    for finding in findings:
        assert "\n" not in str(finding) and finding.remedy, "one sentence, with what to change"
    return {finding.name for finding in findings} - {SLOW}


def with_rate(rate: float) -> Recipe:
    recipe = tiny()
    return replace(recipe, optim=replace(recipe.optim, lr=rate))


# Real runs


def test_a_healthy_run_has_no_findings(corpus: Path, tmp_path: Path) -> None:
    out = run(tiny(), corpus, tmp_path / "run")
    found = doctor.examine(out, corpus)
    assert not names(found), [str(finding) for finding in found]
    assert not [line for line in (out / "run.log").read_text().splitlines() if "warning:" in line and SLOW not in line]
    last = read(out).train[-1]["losses"]["mlm"]
    assert last < 0.9 * CorpusFacts.of(Corpus(corpus)).entropy, "it has learned"


def test_learning_rate_times_100(corpus: Path, tmp_path: Path) -> None:
    recipe = replace(with_rate(0.4), optim=BertAdam(lr=0.4), budget=Budget(amount=120))
    try:
        out = run(recipe, corpus, tmp_path / "run")
    except Diverged:
        out = tmp_path / "run"
    assert names(doctor.examine(out, corpus)) & {"learning rate too high", "not finite"}
    assert "learning rate too high" in (out / "run.log").read_text(), "said while training"


def test_shuffled_labels(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shuffle(objective: Objective) -> None:
        make = objective.make_batch

        def shuffled(rows: list[Row], *, seed: int) -> Batch:
            batch = make(rows, seed=seed)
            targets = batch.labels["targets"]
            real = targets != IGNORE
            targets[real] = targets[real][
                torch.from_numpy(np.random.default_rng(len(rows)).permutation(int(real.sum())))
            ]
            return batch

        objective.make_batch = shuffled  # type: ignore[method-assign]

    monkeypatch.setattr(doctor, "SETTLED", 110)  # a small model soon guesses frequent words
    recipe = tiny(budget=Budget(amount=230))
    found = doctor.examine(run(recipe, corpus, tmp_path / "run", shuffle), corpus)
    assert names(found) == {"stuck at frequencies"}, [str(finding) for finding in found]
    assert "labels may not match inputs" in found[0].remedy


def test_frozen_embeddings(corpus: Path, tmp_path: Path) -> None:
    def freeze(objective: Objective) -> None:
        objective.models()["model"].encoder.embeddings.words.requires_grad_(False)

    found = doctor.examine(run(tiny(budget=Budget(amount=10)), corpus, tmp_path / "run", freeze))
    assert names(found) == {"frozen weights"}
    assert "embeddings.words" in found[0].seen and "position" not in found[0].seen


def test_weights_that_muon_trains_are_not_frozen(corpus: Path, tmp_path: Path) -> None:
    found = doctor.examine(run(tiny(budget=Budget(amount=10), optim=Muon(lr=1e-3)), corpus, tmp_path / "run"))
    assert "frozen weights" not in names(found)


def teacher_of(corpus: Path, folder: Path) -> str:
    """A BERT of :func:`tiny`'s size, hardly trained."""
    recipe = fit(tiny(), Corpus(corpus).tokenizer())
    Model(recipe.model, Corpus(corpus).tokenizer()).initialize(3).save(folder)
    return str(folder)


def shrunk(name: str, **changes: Any) -> Recipe:
    recipe = recipes.recipe(name)

    def small(config: ModelConfig) -> ModelConfig:
        return resized(config, layers=2, width=32, heads=2, ff_width=64, embed_width=None)

    generator = None if recipe.generator is None else small(recipe.generator)
    recipe = replace(
        tiny(), **{"name": name, "model": small(recipe.model), "generator": generator}, format=recipe.format
    )
    return replace(recipe, objective=recipes.recipe(name).objective, budget=Budget(amount=3), **changes)


def freeze_words(network: str) -> Callable[[Objective], None]:
    def freeze(objective: Objective) -> None:
        objective.models()[network].encoder.embeddings.words.requires_grad_(False)

    return freeze


def test_frozen_embeddings_of_a_continued_model(corpus: Path, tmp_path: Path) -> None:
    recipe = tiny(budget=Budget(amount=3), init_from=teacher_of(corpus, tmp_path / "model"))
    found = doctor.examine(run(recipe, corpus, tmp_path / "run", freeze_words("model")))
    assert names(found) == {"frozen weights"}


def test_frozen_embeddings_of_a_student(corpus: Path, tmp_path: Path) -> None:
    settings = DistillSettings(teacher=teacher_of(corpus, tmp_path / "teacher"), student_from=(0, 1))
    recipe = shrunk("distilbert-tiny")
    out = run(replace(recipe, objective=settings), corpus, tmp_path / "run", freeze_words("model"))
    assert names(doctor.examine(out)) == {"frozen weights"}


def test_a_frozen_difference_of_embeddings(corpus: Path, tmp_path: Path) -> None:
    out = run(shrunk("deberta-v3-tiny"), corpus, tmp_path / "run", freeze_words("discriminator"))
    found = doctor.examine(out)
    assert names(found) == {"frozen weights"} and "discriminator.encoder.embeddings.words" in found[0].seen


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("electra-mini-original-masked", {}),
        ("bert-mini", {"format": FullSentences()}),
        ("xlnet-mini", {"format": FullSentences(), "objective": MLMSettings()}),
    ],
)
def test_heads_without_a_loss_are_not_frozen(name: str, changes: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    out = run(replace(shrunk(name), **changes), corpus, tmp_path / "run")
    assert "frozen weights" not in names(doctor.examine(out))


def test_mask_rate_of_one_percent(corpus: Path, tmp_path: Path) -> None:
    recipe = tiny(budget=Budget(amount=30), objective=MLMSettings(masking=Masking(rate=0.01)))
    assert "few targets" in names(doctor.examine(run(recipe, corpus, tmp_path / "run")))


def test_a_leak(corpus: Path, tmp_path: Path) -> None:
    """Chosen tokens are shown as they are, so that copying is enough."""
    recipe = tiny(budget=Budget(amount=200), objective=MLMSettings(masking=Masking(mask=0.0, random=0.0)))
    assert "targets leak" in names(doctor.examine(run(recipe, corpus, tmp_path / "run"), corpus))


def test_divergence_is_seen_afterwards(corpus: Path, tmp_path: Path) -> None:
    def explode(objective: Objective) -> None:
        next(objective.parameters()).register_hook(lambda gradient: gradient * math.nan)

    with pytest.raises(Diverged, match="step 0: .* the learning rate is not the cause: lower dropout") as error:
        run(tiny(), corpus, tmp_path / "run", explode)
    assert "lower optim.lr" not in str(error.value), "before the first update no rate has done anything"
    found = doctor.examine(tmp_path / "run")
    assert names(found) == {"not finite"} and "step 0" in found[0].seen and "not the cause" in found[0].remedy


def test_a_run_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no metrics.jsonl"):
        doctor.examine(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(DataError, match="no training metrics"):
        doctor.examine(tmp_path)


# Corpora


def test_a_repeated_document(tmp_path: Path) -> None:
    text = language(30) + "\n\n" + "\n\n".join([language(1, seed=2)] * 20)
    kept = build(tmp_path, text, drop_documents=False)
    out = run(tiny(budget=Budget(amount=30)), kept, tmp_path / "run")
    assert names(doctor.examine(out, kept)) == {"duplicates"}


def test_chinese_text_in_an_english_vocabulary(corpus: Path, tmp_path: Path) -> None:
    text = "\n\n".join("山高月小水落石出" * 5 + str(i) for i in range(60))
    wrong = build(
        tmp_path, text, tokenizer=GivenTokenizer(path=str(Corpus(corpus).path / "tokenizer")), max_unknown=1.0
    )
    found = doctor.examine(run(tiny(budget=Budget(amount=30)), wrong, tmp_path / "run"), wrong)
    assert "wrong tokenizer" in names(found)
    assert "unknown" in next(finding.seen for finding in found if finding.name == "wrong tokenizer")


def test_words_that_fall_into_letters() -> None:
    found = diagnose(evidence(corpus=replace(FACTS, bytes_per_token=1.4)))
    assert names(found) == {"wrong tokenizer"} and "1.40 bytes" in found[0].seen
    characters = replace(FACTS, bytes_per_token=1.0, vocab_size=204)
    assert not diagnose(evidence(corpus=characters)), "a vocabulary of characters is no mistake"


# Metrics made up

FACTS = CorpusFacts(vocab_size=8000, entropy=7.0, bytes_per_token=4.0, unknown_share=0.0, duplicate_share=0.0)
RECIPE = {"schedule": {"kind": "bert", "warmup": 0.1}, "budget": {"amount": 2000}, "clip": 1.0}


def line(step: int, loss: float, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "split": "train",
        "step": step,
        "tokens": step * 1000,
        "loss": loss,
        "losses": {"mlm": loss},
        "counts": {"mlm": 1500},
        "accuracy": {"mlm": 0.3},
        "lr": 1e-3,
        "seconds": step / 10,
        "grad_norm": 0.5,
        "grad_norm_max": 0.8,
        "update_ratio": 2e-3,
        "padding": 0.05,
        "waiting": 0.01,
    }
    return fields | changes


def falling(step: int) -> float:
    return 2 + 7 * math.exp(-step / 300)


def evidence(loss: Callable[[int], float] = falling, *, steps: int = 2000, **changes: Any) -> Evidence:
    fields = {
        name: changes.pop(name) for name in ("recipe", "corpus", "valid", "reference", "frozen") if name in changes
    }
    lines = [line(step, loss(step), **changes) for step in range(10, steps + 1, 10)]
    return Evidence(train=lines, **{"valid": [], "recipe": RECIPE, "corpus": FACTS} | fields)


def rtd(right: float, replaced: float, **changes: Any) -> Evidence:
    counts = {"mlm": 1500, "rtd": 10_000, "replaced": 1500}
    return evidence(counts=counts, accuracy={"mlm": 1 - replaced, "rtd": right, "replaced": replaced}, **changes)


def valid(steps: list[int], losses: list[float], name: str = "mlm") -> list[dict[str, Any]]:
    return [{"split": "valid", "step": step, "losses": {name: loss}} for step, loss in zip(steps, losses, strict=True)]


def task(
    loss: Callable[[int], float],
    held_out: list[float],
    *,
    first: int | None = None,
    chance: float | None = None,
    right: float | None = None,
    examples: int = 1000,
) -> Evidence:
    """A run of fine-tuning with these losses at three validations, and before them at the step ``first``, where the
    loss of guessing, ``chance``, is known; ``right`` of the ``examples`` are right, and half of them have one label.
    """
    lines = [line(s, loss(s), losses={"classification": loss(s)}, counts={}, accuracy={}) for s in range(10, 401, 10)]
    at = [100, 200, 400] if first is None else [first, 100, 200, 400]
    held = valid(at, held_out, "classification")
    if chance is not None:
        held = [held[0] | {"chance": {"classification": chance}}, *held[1:]]
    if right is not None:
        more = {"accuracy": {"classification": right}, "counts": {"classification": examples}}
        held = [one | more | {"majority": {"classification": 0.5}} for one in held]
    return Evidence(train=lines, valid=held, recipe=RECIPE)


def guessing(loss: Callable[[int], float]) -> Evidence:
    """A run of fine-tuning on two balanced classes."""
    found = task(loss, [0.70, 0.695, 0.693, 0.694], first=0, chance=math.log(2))
    return replace(found, recipe={**RECIPE, "budget": {"amount": 400, "unit": "steps"}})


def pair(loss: float) -> Evidence:
    lines = [line(s, falling(s), losses={"mlm": falling(s), "next_sentence": loss}) for s in range(10, 4000, 10)]
    return Evidence(train=lines, valid=[], recipe=RECIPE, corpus=FACTS)


def causal(loss: Callable[[int], float]) -> Evidence:
    lines = [
        {key: value for key, value in line(s, loss(s), losses={"lm": loss(s)}).items() if key != "accuracy"}
        for s in range(10, 401, 10)
    ]
    return Evidence(train=lines, valid=[], recipe=RECIPE | {"model": {"encoder": {"vocab": 8000}}})


def masked_rtd(right: float) -> Evidence:
    counts = {"mlm": 1500, "rtd": 1500, "replaced": 1500}
    accuracy = {"mlm": 0.3, "rtd": right, "replaced": 0.7}
    return evidence(counts=counts, accuracy=accuracy, recipe=RECIPE | {"objective": {"predict": "replaced_masked"}})


def like(name: str, at: list[int], losses: list[float], *, steps: int = 1500) -> Evidence:
    """A run of that recipe for so many steps, with these losses on held-out text."""
    known = reference(name)
    assert known is not None
    made = RECIPE | {"name": name, "budget": {"amount": steps}, "model": {"encoder": {"vocab": known["vocab"]}}}
    return evidence(valid=valid(at, losses), reference=known, recipe=made, corpus=None)


def spiky(step: int) -> dict[str, Any]:
    return line(step, falling(step), grad_norm_max=40.0 if step in (900, 1500) else 0.8)


REFERENCE = {"vocab": 8000, "valid": [[200, 1, 6.0], [1000, 5, 4.0], [2000, 10, 3.0]]}
ELECTRA = RECIPE | {"objective": {"kind": "rtd", "predict": "original_masked"}}
NO_WARMUP = RECIPE | {"schedule": {"warmup": 0}, "model": {"encoder": {"norm": "post", "vocab": 8000}}}

BROKEN: dict[str, tuple[str | None, Evidence]] = {
    "healthy": (None, evidence()),
    "healthy rtd": (None, rtd(0.93, 0.55)),
    "healthy pair": (None, pair(0.45)),
    "healthy task": (None, task(lambda s: 0.7 * math.exp(-s / 300), [0.6, 0.5, 0.45])),
    "loss is no number": ("not finite", evidence(lambda s: math.nan if s == 500 else falling(s))),
    "loss is null from some step on": ("not finite", evidence(lambda s: falling(s) if s < 50 else None)),
    "loss is null from the start": ("not finite", evidence(lambda s: None)),
    "nothing is a number": (
        "not finite",
        evidence(lambda s: None, accuracy={"mlm": None}, update_ratio=None, grad_norm=None, padding=None, lr=None),
    ),
    "loss above guessing from the start": (
        "learning rate too high",
        evidence(lambda s: 9.6 if s < 40 else falling(s), recipe=RECIPE | {"model": {"encoder": {"vocab": 8000}}}),
    ),
    "no context at a rate that nobody takes": (
        "learning rate too high",
        evidence(lambda s: max(7.1, 9 - s / 100), lr=0.1),
    ),
    "context at a high rate": (None, evidence(lr=0.1)),
    "everything guessed, uncounted": ("targets leak", causal(lambda s: 0.01)),
    "healthy without counted guesses": (None, causal(lambda s: 1.4 + 7 * math.exp(-s / 150))),
    "detector of masked places says replaced": ("discriminator at majority", masked_rtd(0.7)),
    "healthy detector of masked places": (None, masked_rtd(0.85)),
    "loss ends high": ("learning rate too high", evidence(lambda s: falling(s) + max(0, (s - 1000) / 500))),
    "loss above guessing": ("learning rate too high", evidence(lambda s: 14 if 300 < s < 400 else falling(s))),
    "loss at ln V": ("not learning", evidence(lambda s: 8.95)),
    "loss at unigrams": ("stuck at frequencies", evidence(lambda s: max(7.0, 9 - s / 100))),
    "everything guessed": ("targets leak", evidence(accuracy={"mlm": 0.99})),
    "few masks": ("few targets", evidence(counts={"mlm": 100})),
    "many masks": ("little context", evidence(counts={"mlm": 8000})),
    "labels of pairs shuffled": ("labels say nothing", pair(math.log(2))),
    "labels of a task shuffled": (
        "labels say nothing",
        task(lambda s: 0.7 * math.exp(-s / 100), [0.70, 1.1, 2.0], right=0.52),
    ),
    "sure and mostly right": (
        "overfitting",
        task(lambda s: 0.7 * math.exp(-s / 100), [0.70, 1.1, 2.0], right=0.60),
    ),
    "too few examples to tell": (
        "overfitting",
        task(lambda s: 0.7 * math.exp(-s / 100), [0.70, 1.1, 2.0], right=0.52, examples=50),
    ),
    "labels of a task shuffled, from step 0": (
        "labels say nothing",
        task(lambda s: 0.7 * math.exp(-s / 100), [0.71, 0.70, 1.1, 2.0], first=0, right=0.52),
    ),
    "labels of a task shuffled, one class more frequent": (
        "labels say nothing",
        task(lambda s: 0.7 * math.exp(-s / 100), [0.70, 0.51, 0.8, 1.4], first=0, chance=0.5, right=0.52),
    ),
    "a task with a frequent class overfits": (
        "overfitting",
        task(lambda s: 0.7 * math.exp(-s / 100), [0.70, 0.40, 0.8, 1.4], first=0, chance=0.5),
    ),
    "labels never learnt": ("nothing learned", guessing(lambda s: 0.69)),
    "labels learnt late": (None, guessing(lambda s: 0.69 if s < 300 else 0.5)),
    "half a run is needed to judge": (
        None,
        replace(guessing(lambda s: 0.69), train=guessing(lambda s: 0.69).train[:15]),
    ),
    "half of a short run is too early to judge": (
        None,
        replace(
            guessing(lambda s: 0.69),
            train=guessing(lambda s: 0.69).train[:2],
            recipe={**RECIPE, "budget": {"amount": 30, "unit": "steps"}},
        ),
    ),
    "a task overfits": ("overfitting", task(lambda s: 0.7 * math.exp(-s / 100), [0.50, 0.7, 1.0])),
    "a task overfits before its first validation": (
        "overfitting",
        task(lambda s: 0.7 * math.exp(-s / 100), [0.69, 0.45, 0.9, 1.0], first=0),
    ),
    "detector says original": ("discriminator at majority", rtd(0.915, 0.55)),
    "replace-MLM is no detector": (None, rtd(0.4, 0.55, recipe=ELECTRA)),
    "generator knows all": ("few replacements", rtd(0.99, 0.1)),
    "development examples of one label": (
        None,
        replace(
            task(lambda s: 0.7, [0.70, 0.69, 0.69, 0.69], first=0, chance=0.0),
            recipe=RECIPE | {"budget": {"amount": 400, "unit": "steps"}},
        ),
    ),
    "weights thrown about": ("large updates", evidence(update_ratio=0.4)),
    "weights that hardly move": ("tiny updates", evidence(update_ratio=1e-8)),
    "no warm-up": ("no warm-up", evidence(recipe=NO_WARMUP)),
    "no warm-up before norms": (None, evidence(recipe=NO_WARMUP | {"model": {"encoder": {"norm": "pre"}}})),
    "no warm-up, clipped hard": (None, evidence(recipe=NO_WARMUP | {"clip": 0.25})),
    "warm-up of most steps": ("long warm-up", evidence(recipe=RECIPE | {"schedule": {"warmup": 1500}})),
    "spikes": ("spikes", replace(evidence(), train=[spiky(step) for step in range(10, 2001, 10)])),
    "behind": ("behind the reference curve", evidence(valid=valid([1500], [4.5]), reference=REFERENCE)),
    "a larger vocabulary costs more": (
        None,
        evidence(
            valid=valid([1500], [4.0]), reference=REFERENCE, recipe=RECIPE | {"model": {"encoder": {"vocab": 60_000}}}
        ),
    ),
    "with the reference": (None, evidence(valid=valid([1500], [3.6]), reference=REFERENCE)),
    "learned nothing": ("behind the reference curve", like("bert-mini", [1500], [7.0])),
    "half the way": (None, like("bert-mini", [1500], [6.7])),
    "learned nothing in twice the steps": ("behind the reference curve", like("bert-mini", [3000], [7.0], steps=3000)),
    "the warm-up of a longer run": (None, like("bert-mini", [1500], [7.0], steps=30_000)),
    "padding": ("padding", evidence(padding=0.6)),
    "frozen": ("frozen weights", evidence(frozen=["model.encoder.embeddings.words"])),
}


@pytest.mark.parametrize("case", BROKEN)
def test_diagnosis(case: str) -> None:
    wanted, given = BROKEN[case]
    assert names(diagnose(given)) == ({wanted} if wanted else set()), [str(finding) for finding in diagnose(given)]


@pytest.mark.parametrize("name", [path.stem for path in REFERENCES])
def test_recorded_runs_are_healthy_and_their_entropy_is_not(name: str) -> None:
    known = reference(name)
    assert known is not None
    made = {"name": name, "model": {"encoder": {"vocab": known["vocab"]}}, "optim": {"lr": 1e-3}}
    made |= {"budget": {"amount": known["valid"][-1][0]}}
    term = known["term"]
    for end in range(1, len(known["valid"]) + 1):
        curve = known["valid"][:end]
        lines = [line(step, loss, losses={term: loss}, counts={term: 1500}, accuracy={}) for step, _, loss in curve]
        held_out = [{"step": step, "losses": {term: loss}} for step, _, loss in curve]
        found = names(diagnose(Evidence(train=lines, valid=held_out, recipe=made, reference=known)))
        assert not found & {"learning rate too high", "behind the reference curve", "not learning", "targets leak"}
    stuck = [{"step": known["valid"][-1][0], "losses": {term: known["entropy"]}}]
    assert "behind the reference curve" in names(diagnose(Evidence(lines, stuck, made, reference=known)))


def test_a_rate_far_above_the_recipes_own_is_named_while_it_trains() -> None:
    watch = Watch({"name": "bert-tiny", "model": {"encoder": {"vocab": 8192}}, "optim": {"lr": 0.1}})
    found = [f for step in range(10, 801, 10) for f in watch.see(line(step, max(7.2, 9 - step / 100), lr=0.1))]
    assert [finding.name for finding in found] == ["learning rate too high"]
    assert "set optim.lr to 0.001" in found[0].remedy


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [json.dumps(line(step, falling(step))) for step in range(10, 101, 10)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines)[:-40])
    assert len(read(tmp_path).train) == 9 and "ignored the truncated last line" in caplog.text
    assert not names(doctor.examine(tmp_path))
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0][:-40], *lines, ""]))
    with pytest.raises(DataError, match="metrics.jsonl:1: not a JSON object; restore"):
        doctor.examine(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '{"loss": 1}',
        '{"split": "valid"}',
        '{"split": "train", "step": 1}',
        '{"split": "train", "step": 1, "losses": null}',
        '{"split": "train", "step": 1, "tokens": 9, "losses": {}, "ls": 0.1, "seconds": 2.0}',
        '{"split": "train", "step": 1, "tokens": 9, "losses": {}, "lr": 0.1, "secondr": 2.0}',
        '{"split": "train", "step": 1, "tokens": 9, "losses": {"m": 7}, "counts": {"n": 3}, "lr": 1, "seconds": 2}',
    ],
)
def test_lines_of_something_else_are_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{text}\n")
    with pytest.raises(DataError, match=r"metrics.jsonl:1: is no line of metrics \(.*\); resume the run"):
        doctor.examine(tmp_path)


def test_a_recipe_that_was_cut_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(line(10, 7.0))}\n")
    (tmp_path / "recipe.json").write_text('{"model": ')
    with pytest.raises(DataError, match=r"recipe.json: is damaged \(not valid JSON\); restore it"):
        doctor.examine(tmp_path)


@pytest.mark.parametrize(
    ("unknown", "size", "found"),
    [(0.031, 3.15, None), (0.142, 3.51, "error"), (0.0, 2.05, "warning"), (0.0, 2.67, None), (0.0, 1.4, "error")],
)
def test_tokenizers_of_other_languages(unknown: float, size: float, found: str | None) -> None:
    """Measured: Chinese articles on technology and English text with Google's Chinese vocabulary, English text with
    XLNet's Chinese and ALBERT's English vocabulary."""
    facts = replace(FACTS, vocab_size=21_128, unknown_share=unknown, bytes_per_token=size)
    levels = [finding.level for finding in diagnose(evidence(corpus=facts)) if finding.name == "wrong tokenizer"]
    assert levels == ([] if found is None else [found])


def test_a_loader_that_starves_the_device() -> None:
    assert [finding.name for finding in diagnose(evidence(waiting=0.4))] == [SLOW]


@pytest.mark.parametrize(
    ("recipe", "remedy"),
    [
        ({}, "format.kind=packed_documents"),
        ({"packing": "fixed"}, "set packing=packed"),
        ({"packing": "dynamic"}, "set packing=packed"),
        ({"packing": "packed"}, "raise row_length"),
    ],
)
def test_padding_is_cured_by_a_field_that_the_recipe_has(recipe, remedy):
    (found,) = diagnose(evidence(padding=0.6, recipe=RECIPE | recipe))
    assert remedy in found.remedy


def test_errors_come_first() -> None:
    found = diagnose(evidence(lambda s: 8.95, padding=0.6))
    assert [finding.level for finding in found] == ["error", "warning"]


def test_watching_reports_each_finding_once() -> None:
    watch = Watch(RECIPE)
    found = [finding.name for step in range(10, 801, 10) for finding in watch.see(line(step, 8.95, padding=0.6))]
    assert sorted(found) == ["padding"], "ln V is not known from these metrics alone"
    watch = Watch(RECIPE | {"model": {"encoder": {"vocab": 8000}}})
    found = [finding.name for step in range(10, 801, 10) for finding in watch.see(line(step, 8.95))]
    assert found == ["not learning"]
    assert watch.see({"split": "valid", "step": 800, "losses": {"mlm": 9.0}}) == []
    assert watch.see({"split": "diverged", "step": 801}) == []


def test_every_diagnosis_is_tested() -> None:
    tested = {wanted for wanted, _ in BROKEN.values()} | {"duplicates", "wrong tokenizer", SLOW}
    source = Path(doctor.__file__).read_text(encoding="utf-8")
    written = set(re.findall(r'Finding\(\s*"(.+?)"', source))
    assert written <= tested, written - tested


@pytest.mark.parametrize(
    ("masking", "remedy"),
    [
        ({"rate": 0.15, "most": 4}, "raise objective.masking.most, which allows 4 in a row"),
        ({"rate": 0.02, "most": 4}, "raise the masking rate"),
        ({"rate": 0.15, "most": None}, "raise the masking rate"),
    ],
)
def test_few_targets_are_cured_by_what_limits_them(masking, remedy):
    recipe = RECIPE | {"objective": {"kind": "mlm", "masking": masking}}
    (found,) = diagnose(evidence(counts={"mlm": 100}, recipe=recipe))
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(("precision", "said"), [("bf16", True), ("fp32", False), (None, True)])
def test_single_precision_is_no_remedy_for_itself(precision: str | None, said: bool) -> None:
    for step in (0, 5):
        assert ("precision=fp32" in doctor.to_stay_finite(precision, step)) == said
