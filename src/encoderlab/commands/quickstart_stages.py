"""The stages of ``encoderlab quickstart``, and their sizes: corpus, pretraining, fine-tuning, report."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from encoderlab import recipes
from encoderlab.batches.corrupt import Masking
from encoderlab.batches.pack import PackedDocuments
from encoderlab.commands.quickstart_page import Road, report, show, summary_of
from encoderlab.commands.terminal import note, progress, say
from encoderlab.commands.workers import WorkerOptions, elsewhere
from encoderlab.corpus.build import BuildSettings, NewTokenizer, build_corpus
from encoderlab.corpus.python.tasks import plain, write_tasks
from encoderlab.corpus.python.text import passages
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, Diverged
from encoderlab.execution.workers import Tasks, cores
from encoderlab.files import finite, write_text
from encoderlab.interchange.load import load
from encoderlab.measure.finetuning import PRETRAINED, WITHOUT
from encoderlab.measure.html_page import render
from encoderlab.measure.report import Fill, MethodScores, TaskScores
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.seeds import derive, generator
from encoderlab.tasks.data.infer import Given
from encoderlab.tasks.data.infer import task_of as infer
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.data.task import Split, Task
from encoderlab.tasks.forms.scores import baselines
from encoderlab.tasks.runs.elsewhere import perform_all
from encoderlab.tasks.runs.published import PLAIN
from encoderlab.tasks.runs.trials import Origin, ProtocolResult, program
from encoderlab.train.networks import fit
from encoderlab.train.pretraining import pretrain
from encoderlab.train.recipe import Budget, Evaluation, Phase, Recipe

SHIPPED, SHIPPED_ON = "small-en", "roles"  # the model that comes with the package; one run, because it is larger
UPDATES = 300  # of a fine-tuning run at least; the default protocol makes more, which takes longer than this may
PROCESSES = 4  # that fine-tune side by side, each in about a gigabyte of memory
ABOUT = {  # task: title, what it asks
    "roles": ("Role tags", "Which words are code, and of what kind? The markup is removed."),
    "match": ("Name and description", "Does a description belong to this name, or to another name of the same module?"),
    "area": ("Area of the library", "Which area of the library does a description come from?"),
}


@dataclass(frozen=True, kw_only=True)
class QuickstartPlan:
    """The sizes for a time budget.

    ``recipe`` to start from, with ``layers`` layers; ``pretraining`` in seconds; ``examples`` to fine-tune on
    (training, development, test) by the default protocol with :data:`UPDATES`, ``seeds`` by task; ``size`` of the
    corpus.
    """

    recipe: str
    layers: int = 2
    pretraining: float
    examples: tuple[int, int, int] = (480, 100, 600)
    seeds: Mapping[str, int] = field(default_factory=lambda: {"area": 3, "roles": 3})
    size: Literal["stdlib", "all"] = "all"


def plan(seconds: float) -> QuickstartPlan:
    """A larger model for a larger budget; most of the time goes to pretraining."""
    if seconds < 30:
        raise ConfigError(f"a budget of {seconds:g} s is too short; give at least 30s")
    if seconds < 150:
        return QuickstartPlan(recipe="bert-tiny", pretraining=0.4 * seconds)
    if seconds < 1800:
        return QuickstartPlan(recipe="bert-mini", pretraining=0.55 * seconds)
    return QuickstartPlan(
        recipe="bert-small",
        layers=4,
        pretraining=0.8 * seconds,
        examples=(2000, 300, 1500),
        seeds={"area": 3, "roles": 3, "match": 3},  # minutes of pretraining teach nothing that match needs
    )


def parse_time(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``1h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if match is None:
        raise ConfigError(f"--budget {text}: expected a time such as 60s, 5m or 1h")
    return float(match[1]) * {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600}[match[2]]


def walk(chosen: QuickstartPlan, out: Path, seed: int, command: str) -> dict[str, Any]:
    """Build the corpus, pretrain, fine-tune, and write ``report.html`` and ``summary.json`` into ``out``."""
    begin = time.monotonic()
    say("1  Corpus: the documentation inside this Python installation", style="bold")
    settings = BuildSettings(
        sources=(f"python:{chosen.size}",),
        tokenizer=NewTokenizer(vocab_size=8000, sample_bytes=8_000_000, lowercase=False),
    )
    with progress("corpus") as bar:
        build_corpus(settings, out / "corpus", workers=cores(), progress=bar)
    counts = write_tasks(out / "tasks", chosen.size)
    corpus = Corpus(out / "corpus")
    tokenizer = corpus.tokenizer()
    say(f"   {corpus.num_documents:,} passages, {corpus.num_tokens:,} tokens, vocabulary {tokenizer.vocab_size:,}")

    recipe = fit(recipe_for(chosen, seed), tokenizer)
    say(f"2  Pretraining {recipe.name} for {chosen.pretraining:.0f} s", style="bold")
    outcome = pretrain(recipe, out / "corpus", out / "pretrain")
    fresh, trained = Model(recipe.model, tokenizer).initialize(seed), load(out / "pretrain")
    fills = [fill(fresh, trained, text, answer) for text, answer in blanks(chosen.size, tokenizer)]

    say("3  Fine-tuning, with and without pretraining", style="bold")
    with elsewhere(WorkerOptions(workers=min(cores(), PROCESSES)), out, []) as workers:
        tasks = finetuned(trained, chosen, out, workers)

    say("4  Report", style="bold")
    road = Road(
        size=chosen.size,
        trained_on=chosen.examples[0],
        trainings=sum(2 * seeds + (name == SHIPPED_ON) for name, seeds in chosen.seeds.items()),
        recipe=recipe,
        outcome=outcome,
        corpus=corpus,
        tokenizer=tokenizer,
        examples=counts,
        fills=fills,
        tasks=tasks,
        out=out,
        command=command,
        seconds=time.monotonic() - begin,
    )
    page = report(road)
    write_text(out / "report.html", render(page))
    summary = summary_of(road)
    write_text(out / "summary.json", json.dumps(finite(summary), indent=1, default=str) + "\n")
    show(road, page.verdict)
    return summary


def recipe_for(chosen: QuickstartPlan, seed: int) -> Recipe:
    """BERT of the plan's size on packed documents: short texts share a row without seeing each other, with little
    padding.

    No sentence pairs, because most passages are shorter than a row; no dropout, because hardly any text is read twice;
    and twice BERT's masking rate, because a short run then learns more from each row.
    """
    base = recipes.recipe(chosen.recipe)
    return replace(
        base,
        name=f"{chosen.recipe}-quickstart",
        model=resized(replace(base.model, pair=False), layers=chosen.layers, dropout=0.0, attention_dropout=0.0),
        objective=MLMSettings(masking=Masking(rate=0.3, random_from="all")),
        format=PackedDocuments(),
        phases=(Phase(length=128, rows=8),),
        budget=Budget(amount=chosen.pretraining / 3600, unit="hours"),
        optim=replace(base.optim, lr=1e-3),
        schedule=replace(base.schedule, warmup=0.1),
        evaluation=Evaluation(every=100, rows=128),
        log_every=10,
        seed=seed,
    )


def blanks(size: Literal["stdlib", "all"], tokenizer: Tokenizer, count: int = 6) -> list[tuple[str, str]]:
    """Held-out sentences with one word masked, and the word. A hash chooses them, not the model's success."""
    chosen: dict[int, tuple[str, str]] = {}
    mask = tokenizer.token(tokenizer.special.mask)
    for passage in passages(size):
        sentence = plain(passage.paragraphs[0]) if passage.split == "test" else ""
        words = re.findall(r"(?<![\w.`'-])[a-z]{4,10}(?![\w.`'(-])", sentence)
        if not 7 <= len(sentence.split()) <= 16 or len(words) < 3 or not sentence.endswith("."):
            continue
        key = derive("quickstart blanks", sentence)
        word = words[key % len(words)]
        if len(tokenizer.encode(word).ids) == 1 and sentence.count(word) == 1:
            chosen[key] = (sentence.replace(word, mask), word)
    return [chosen[key] for key in sorted(chosen)[:count]]


def fill(before: Model, after: Model, text: str, answer: str) -> Fill:
    """The five best candidates of both models."""

    def guesses(model: Model) -> list[tuple[str, float]]:
        return [(guess.token_str, guess.score) for guess in model.fill_mask(text)[0]]

    assert after.tokenizer is not None
    mask = after.tokenizer.token(after.tokenizer.special.mask)
    return Fill(text=text, mask=mask, answer=answer, before=guesses(before), after=guesses(after))


def finetuned(trained: Model, chosen: QuickstartPlan, out: Path, workers: Tasks | None) -> list[TaskScores]:
    """Fine-tune on every task, from fresh and from pretrained weights of one architecture, over seeds; on one task also
    ``small-en``, with one seed.
    """
    data = {name: task_of(out / "tasks" / name, chosen.examples) for name in chosen.seeds}
    fresh = Model(trained.config, trained.tokenizer).initialize(1)
    recipe = replace(PLAIN.recipe, least_updates=UPDATES)
    programs = {}
    for name, (task, splits) in data.items():
        seeds = chosen.seeds[name]
        shipped = [(SHIPPED, load(SHIPPED), 1)] if name == SHIPPED_ON else []
        for system, start, times in (*shipped, (WITHOUT, fresh, seeds), (PRETRAINED, trained, seeds)):
            protocol = replace(PLAIN, recipe=recipe, seeds=times, report="mean")
            folder, origin = out / "finetune" / name / system.split()[0], Origin(system=system)
            programs[name, system] = program(protocol, start, task, splits, folder, origin=origin, say=note)
    outcomes = perform_all(programs, workers, note)
    scores = []
    for name, (task, splits) in data.items():
        systems = {system: outcome for (of, system), outcome in outcomes.items() if of == name}
        scores.append(scores_of(name, task, splits, systems))
    return scores


def scores_of(
    name: str, task: Task, splits: Mapping[str, Split], systems: Mapping[str, ProtocolResult | Diverged]
) -> TaskScores:
    """The test scores of the baselines and of every system.

    Raises:
        Diverged: a system has no scores.
    """
    methods = [
        MethodScores(name=method, scores=[scores[task.metric]])
        for method, scores in baselines(task, splits["train"], splits["test"]).items()
        if task.metric in scores
    ]
    for system, outcome in systems.items():
        if isinstance(outcome, Diverged):
            raise outcome
        scores = [run.scores["test"][task.metric] for run in outcome.runs]
        methods.append(MethodScores(name=system, scores=scores, ours=True))
        said = outcome.record["said"]
    return TaskScores(
        name=ABOUT[name][0],
        about=f"{ABOUT[name][1]} {len(splits['test']):,} test examples. Training: {said}.",
        metric=task.metric,
        methods=methods,
        compare=(PRETRAINED, WITHOUT),
    )


def task_of(folder: Path, examples: tuple[int, int, int]) -> tuple[Task, dict[str, Split]]:
    """A derived task with all labels of its training split, and random parts of the splits, the same in every run."""
    pair = folder.name == "match"
    given = Given(text="text", pair="text_pair", label="label") if pair else Given()
    task, _ = infer(folder / "train.jsonl", given)
    task = replace(task, name=folder.name)
    files = {"train": "train", "dev": "validation", "test": "test"}
    read = {split: task.read([folder / f"{file}.jsonl"], split) for split, file in files.items()}
    task = completed(task, read["train"])
    splits = {}
    for (split, whole), most in zip(read.items(), examples, strict=True):
        order = generator("quickstart", folder.name, split).permutation(len(whole))[:most]
        splits[split] = replace(whole, examples=tuple(whole.examples[i] for i in order))
    return task, splits
