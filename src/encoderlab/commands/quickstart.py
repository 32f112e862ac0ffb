"""``encoderlab quickstart``: the whole road on text that Python itself carries."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any, Literal

from encoderlab.commands.terminal import note, progress, say, table
from encoderlab.errors import ConfigError
from encoderlab.files import write_text

if TYPE_CHECKING:
    from encoderlab.corpus.shards import Corpus
    from encoderlab.corpus.tokenizer import Tokenizer
    from encoderlab.measure.report import Fill, Pieces, Report, TaskScores
    from encoderlab.model import Model
    from encoderlab.tasks.base import Split, Task
    from encoderlab.train.loop import Outcome
    from encoderlab.train.pretraining import Recipe

ABOUT = {  # task: title, what it asks
    "roles": ("Role tags", "Which words are code, and of what kind? The markup that said so is taken away."),
    "match": ("Name and description", "Does a description belong to a name, or to another one of the same module?"),
    "area": ("Area of the library", "Which area of the library does a description come from?"),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a budget buys.

    ``recipe`` to start from, with ``layers`` layers; ``pretraining`` in seconds; ``examples`` to fine-tune on
    (training, development, test), ``epochs`` passes over them, ``seeds`` by task; ``size`` of the corpus.
    """

    recipe: str
    layers: int = 2
    pretraining: float
    epochs: float = 3.0
    examples: tuple[int, int, int] = (500, 100, 600)
    seeds: Mapping[str, int] = field(default_factory=lambda: {"area": 3, "roles": 3, "match": 3})
    size: Literal["stdlib", "all"] = "all"


def plan(seconds: float) -> Plan:
    """A larger model for a larger budget; most of the time goes to pretraining."""
    if seconds < 30:
        raise ConfigError(f"a budget of {seconds:g} s is too short to learn anything; give at least 30s")
    if seconds < 150:
        return Plan(recipe="bert-tiny", pretraining=0.5 * seconds)
    if seconds < 1800:
        return Plan(recipe="bert-mini", pretraining=0.55 * seconds)
    return Plan(recipe="bert-small", layers=4, pretraining=0.8 * seconds, examples=(2000, 300, 1500))


def quickstart(*, budget: str = "5m", out: Path = Path("runs/quickstart"), seed: int = 1) -> dict[str, Any]:
    """Go the whole road on text that Python itself carries, in minutes.

    Corpus, tokenizer, pretraining, fine-tuning with and without it beside simple
    baselines, and a report. The same command resumes where it was interrupted.

    Example:
        encoderlab quickstart --budget 60s --out runs/first

    Parameters
    ----------
    budget
        Time for training, such as 60s, 5m, 1h; the model's size goes by it.
    out
        Folder for everything.
    seed
        Of the pretraining.
    """
    chosen = plan(parse_time(budget))
    words = ["quickstart", "--budget", budget, "--out", str(out), "--seed", str(seed)]
    return walk(chosen, out, seed, join(["encoderlab", *words]))


def walk(chosen: Plan, out: Path, seed: int, command: str) -> dict[str, Any]:
    """Build the corpus, pretrain, fine-tune, and write ``report.html`` and ``summary.json`` into ``out``."""
    from encoderlab.corpus.build import BuildSettings, NewTokenizer, build_corpus
    from encoderlab.corpus.python_tasks import write_tasks
    from encoderlab.corpus.shards import Corpus
    from encoderlab.corpus.tokenizer import Tokenizer
    from encoderlab.corpus.workers import cores
    from encoderlab.interchange.load import load
    from encoderlab.measure.report import write
    from encoderlab.model import Model
    from encoderlab.train.pretraining import fit, pretrain

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
    tokenizer = Tokenizer.load(corpus.tokenizer_path)
    say(f"   {corpus.num_documents:,} passages, {corpus.num_tokens:,} tokens, vocabulary {tokenizer.vocab_size:,}")

    recipe = fit(recipe_for(chosen, seed), tokenizer)
    say(f"2  Pretraining {recipe.name} for {chosen.pretraining:.0f} s", style="bold")
    outcome = pretrain(recipe, out / "corpus", out / "pretrain")
    fresh, trained = Model(recipe.model, tokenizer).initialize(seed), load(out / "pretrain")
    fills = [fill(fresh, trained, text, answer) for text, answer in blanks(chosen.size, tokenizer)]

    say("3  Fine-tuning, with and without pretraining", style="bold")
    tasks = [compare(name, trained, chosen, out) for name in chosen.seeds]

    say("4  Report", style="bold")
    seconds = time.monotonic() - begin
    about = Facts(
        plan=chosen,
        recipe=recipe,
        outcome=outcome,
        corpus=corpus,
        tokenizer=tokenizer,
        examples=counts,
        seconds=seconds,
    )
    page = report(about, fills, tasks, out, command)
    write(page, out / "report.html")
    summary = {
        "out": out,
        "report": out / "report.html",
        "model": out / "pretrain" / "model",
        "seconds": seconds,
        "pretraining": {"steps": outcome.step, "tokens": outcome.tokens, "validation": dict(outcome.metrics)},
        "tasks": {t.name: {m.name: list(m.scores) for m in t.methods} for t in tasks},
        "differences": {t.name: _difference(t) for t in tasks},
    }
    write_text(out / "summary.json", json.dumps(summary, indent=1, default=str) + "\n")
    show(page, tasks, fills, out)
    return summary


def parse_time(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``1h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if match is None:
        raise ConfigError(f"--budget {text}: expected a time such as 60s, 5m or 1h")
    return float(match[1]) * {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600}[match[2]]


def recipe_for(chosen: Plan, seed: int) -> Recipe:
    """BERT of the plan's size on packed documents: short texts share a row, blind to each other, and little is padding.

    There are no sentence pairs, since most passages are shorter than a row; no dropout, since hardly any text is read
    twice; and twice BERT's share of masks, since there is more to learn from a row than a short run can read.
    """
    from encoderlab import recipes
    from encoderlab.batches.corrupt import Masking
    from encoderlab.batches.pack import PackedDocuments
    from encoderlab.models.base import resized
    from encoderlab.objectives.mlm import MLMSettings
    from encoderlab.train.recipe import Budget, Evaluation, Phase

    base = recipes.recipe(chosen.recipe)
    return replace(
        base,
        name=f"{chosen.recipe}-quickstart",
        model=resized(replace(base.model, pair=False), layers=chosen.layers, dropout=0.0, attention_dropout=0.0),
        objective=MLMSettings(masking=Masking(rate=0.3, random_from="all")),
        rows=PackedDocuments(length=128),
        phases=(Phase(length=128, rows=8),),
        budget=Budget(amount=chosen.pretraining / 3600, unit="hours"),
        optim=replace(base.optim, lr=1e-3),
        schedule=replace(base.schedule, warmup=0.1),
        evaluation=Evaluation(every=100, rows=128),
        log_every=10,
        seed=seed,
    )


def blanks(size: Literal["stdlib", "all"], tokenizer: Tokenizer, count: int = 6) -> list[tuple[str, str]]:
    """Held-out sentences with one word masked, and the word. Chosen by a hash, not by how well they turn out."""
    from encoderlab.corpus.python_tasks import plain
    from encoderlab.corpus.python_text import passages
    from encoderlab.seeds import derive

    found: dict[int, tuple[str, str]] = {}
    mask = tokenizer.token(tokenizer.special.mask)
    for passage in passages(size):
        sentence = plain(passage.paragraphs[0]) if passage.split == "test" else ""
        words = re.findall(r"(?<![\w.`'-])[a-z]{4,10}(?![\w.`'(-])", sentence)
        if not 7 <= len(sentence.split()) <= 16 or len(words) < 3 or not sentence.endswith("."):
            continue
        key = derive("quickstart blanks", sentence)
        word = words[key % len(words)]
        if len(tokenizer.encode(word).ids) == 1 and sentence.count(word) == 1:
            found[key] = (sentence.replace(word, mask), word)
    return [found[key] for key in sorted(found)[:count]]


def fill(before: Model, after: Model, text: str, answer: str) -> Fill:
    """The five best guesses of both models."""
    from encoderlab.measure.report import Fill

    def guesses(model: Model) -> list[tuple[str, float]]:
        return [(guess.token_str, guess.score) for guess in model.fill_mask(text)[0]]

    assert after.tokenizer is not None
    mask = after.tokenizer.token(after.tokenizer.special.mask)
    return Fill(text=text, mask=mask, answer=answer, before=guesses(before), after=guesses(after))


def compare(name: str, trained: Model, chosen: Plan, out: Path) -> TaskScores:
    """One task: baselines, then the same architecture from fresh weights and from the pretrained ones, over seeds."""
    from encoderlab.measure.report import Score, TaskScores
    from encoderlab.model import Model
    from encoderlab.tasks.baselines import baselines
    from encoderlab.tasks.finetune import Recipe
    from encoderlab.tasks.form import FormSettings
    from encoderlab.tasks.protocol import Protocol
    from encoderlab.tasks.trials import run
    from encoderlab.train.optim import AdamW

    task, splits = task_of(out / "tasks" / name, chosen.examples)
    methods = [
        Score(name=method, scores=[scores[task.metric]])
        for method, scores in baselines(task, splits["train"], splits["test"]).items()
        if task.metric in scores
    ]
    protocol = Protocol(
        name="quickstart",
        source="fixed hyperparameters, the last step, scores of the test split",
        recipe=Recipe(
            name=name,
            form=FormSettings(max_length=64),
            epochs=chosen.epochs,
            batch=8,
            optim=AdamW(lr=5e-4, eps=1e-6, weight_decay=0.01),
            select="last",
            log_every=5,
        ),
        seeds=chosen.seeds[name],
        report="mean",
    )
    fresh = Model(trained.config, trained.tokenizer).initialize(1)
    for system, start in (("without pretraining", fresh), ("pretrained", trained)):
        note(f"{name}, {system}")
        outcome = run(protocol, start, task, splits, out / "finetune" / name / system.split()[0])
        methods.append(Score(name=system, scores=[r.scores["test"][task.metric] for r in outcome.runs], ours=True))
    return TaskScores(
        name=ABOUT[name][0],
        about=f"{ABOUT[name][1]} {len(splits['train']):,} training and {len(splits['test']):,} test examples.",
        metric=task.metric,
        methods=methods,
        compare=("pretrained", "without pretraining"),
    )


def task_of(folder: Path, examples: tuple[int, int, int]) -> tuple[Task, dict[str, Split]]:
    """A derived task with all labels of its training split, and parts of the splits: fixed random choices."""
    from encoderlab.seeds import generator
    from encoderlab.tasks.finetune import completed
    from encoderlab.tasks.infer import Given
    from encoderlab.tasks.infer import task_of as infer

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


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the report tells of the road; ``examples`` counts those of each task by split, ``seconds`` is all of it."""

    plan: Plan
    recipe: Recipe
    outcome: Outcome
    corpus: Corpus
    tokenizer: Tokenizer
    examples: Mapping[str, Mapping[str, int]]
    seconds: float


def report(about: Facts, fills: Sequence[Fill], tasks: Sequence[TaskScores], out: Path, command: str) -> Report:
    """The page about all of it."""
    from encoderlab.measure import runs
    from encoderlab.measure.report import Report, Run
    from encoderlab.model import count_parameters

    record, corpus, outcome, tokenizer = runs.read_run(out / "pretrain"), about.corpus, about.outcome, about.tokenizer
    parameters = count_parameters(about.recipe.model)
    accuracy = outcome.metrics.get("accuracy", {}).get(record.term)
    model, data = str(out / "pretrain"), str(out / "tasks" / "area" / "train.jsonl")
    words, size = corpus.manifest["splits"]["train"]["words"], runs.quantity(parameters["total"])
    return Report(
        title=f"A BERT of {size} parameters, from raw text in {runs.duration(about.seconds)}",
        verdict=verdict(outcome, accuracy, tasks),
        tiles=runs.tiles(record),
        runs=[Run(name=about.recipe.name, train=record.train, valid=record.valid)],
        metrics=runs.metrics([record], runs.references([record], corpus.counts())),
        strips=runs.strips([record]),
        fills=fills,
        fills_note="Sentences of modules that the model never saw, picked by a hash. The marked word stood there; "
        "bars are probabilities.",
        tasks=tasks,
        tasks_note="Trained and tested on different modules. Dots are seeds, the line is their mean, the band its 95% "
        "interval; the difference is paired by seed.",
        pieces=[pieces(tokenizer, blank.text.replace(blank.mask, blank.answer or "")) for blank in fills[:4]],
        tokenizer={
            "Kind": f"{tokenizer.kind}, {tokenizer.vocab_size:,} pieces, trained on this corpus",
            "Fertility": f"{corpus.num_tokens / words:.2f} tokens per word, "
            f"{corpus.num_bytes / corpus.num_tokens:.2f} bytes per token",
        },
        costs=costs(about, parameters),
        costs_note="A multiply-add is 2 operations, the backward pass costs twice the forward pass.",
        provenance=runs.provenance(record)
        | {
            "Corpus": f"{corpus.num_documents:,} passages of modules for training: docstrings, comments and the "
            f"language reference of this Python and its packages (python:{about.plan.size})",
            "Tasks": ", ".join(
                f"{name}: {found['train']:,} examples to train" for name, found in about.examples.items()
            ),
        },
        commands=[
            command,
            f'encoderlab fill-mask {quote(model)} "The [MASK] of a list."',
            f"encoderlab finetune {quote(data)} --model {quote(model)} --out runs/area --seeds 3",
        ],
        limits=limits(outcome),
    )


def costs(about: Facts, parameters: Mapping[str, int]) -> dict[str, str]:
    """Time, operations and memory."""
    from encoderlab.measure.runs import duration, quantity
    from encoderlab.train.pretraining import operations

    outcome, encoder = about.outcome, about.recipe.model.encoder
    cost = operations(about.recipe, 128) * outcome.tokens
    passes = outcome.tokens / about.corpus.num_tokens
    return {
        "Everything, from corpus to report": duration(about.seconds),
        "Pretraining": f"{outcome.step:,} steps, {quantity(outcome.tokens)} tokens ({passes:.2f} passes over the "
        f"corpus), {duration(outcome.seconds)}",
        "Parameters": f"{parameters['total']:,} ({parameters['encoder.embeddings']:,} in embeddings), "
        f"{encoder.layers} layers of width {encoder.width}",
        "Operations of pretraining": f"{cost:.3g} FLOPs, {cost / max(outcome.seconds, 1e-9) / 1e9:.0f} GFLOP/s",
        "Largest memory of the process": _memory(),
        "Fine-tuning": f"{2 * sum(about.plan.seeds.values())} runs of {about.plan.examples[0]:,} examples, "
        f"{about.plan.epochs:g} passes each",
    }


def verdict(outcome: Outcome, accuracy: float | None, tasks: Sequence[TaskScores]) -> str:
    """What came out, in two or three sentences, with the uncertainty."""
    from encoderlab.measure.runs import duration, quantity

    words = f"It read {quantity(outcome.tokens)} tokens in {duration(outcome.seconds)}"
    words += f" and fills {accuracy:.0%} of the masked words of unseen modules." if accuracy is not None else "."
    gains, unclear, losses = [], [], []
    for task in tasks:
        found = _difference(task)
        if found is None:
            continue
        middle, half = 100 * found["mean"], 100 * found["half"]
        if middle - half > 0:
            gains.append(f"{task.name} by {middle:.1f} ± {half:.1f}")
        elif middle + half < 0:
            losses.append(f"{task.name} by {-middle:.1f} ± {half:.1f}")
        else:
            unclear.append(task.name)
    if gains:
        words += f" Pretraining improves {', '.join(gains)} points."
    if losses:
        words += f" It hurts {', '.join(losses)} points."
    if unclear:
        words += f" No clear difference on {', '.join(unclear)}."
    beaten = [task.name for task in tasks if _best_baseline(task) > _mean(task.methods[-1].scores)]
    if beaten:
        words += f" A simple baseline is still better on {', '.join(beaten)}."
    return words


def limits(outcome: Outcome) -> list[str]:
    from encoderlab.measure.runs import quantity

    share = outcome.tokens / (40 * 3.3e9)  # Devlin et al., 2019: 40 epochs over 3.3 billion words
    return [
        f"{quantity(outcome.tokens)} tokens are {share:.1g} of what BERT read (40 passes over 3.3 billion words). "
        "This model knows frequent words and the style of documentation, not the world.",
        "The tasks are made of the same kind of text as the corpus, and their labels come from markup and module "
        "names, not from annotators. They show that the machinery works, and are no benchmark.",
        "The interval says how much the score moves with the seed of fine-tuning; the pretraining was run once, and "
        "the test examples are a sample.",
        "The time budget decides how many steps fit, so another machine gets other numbers. Budgets in steps or tokens "
        "repeat exactly.",
    ]


def show(page: Report, tasks: Sequence[TaskScores], fills: Sequence[Fill], out: Path) -> None:
    """The summary on the terminal."""
    from encoderlab.measure.report import interval

    rows = []
    for task in tasks:
        for method in task.methods:
            middle, half = interval(method.scores)
            spread = f"± {100 * half:.1f}" if half else ""
            rows.append([task.name, task.metric, method.name, f"{100 * middle:.1f}", spread, len(method.scores)])
    table("test scores × 100, 95% interval over seeds", ["task", "metric", "system", "mean", "interval", "n"], rows)
    for blank in fills[:3]:
        before, after = (", ".join(word for word, _ in guesses[:3]) for guesses in (blank.before, blank.after))
        say(f"{blank.text}  ({blank.answer})")
        say(f"   before: {before}   after: {after}", style="dim")
    say()
    say(page.verdict)
    say()
    say(f"report  {out / 'report.html'}", style="bold")
    say(f'try     encoderlab fill-mask {quote(str(out / "pretrain"))} "The [MASK] of a list."')


def pieces(tokenizer: Tokenizer, text: str) -> Pieces:
    from encoderlab.measure.report import Pieces

    return Pieces(text=text, spans=[(int(a), int(b)) for a, b in tokenizer.encode(text).offsets])


def _difference(task: TaskScores) -> dict[str, float] | None:
    from encoderlab.measure.report import difference

    found = difference(task)
    return None if found is None else {"mean": found[0], "half": found[1]}


def _best_baseline(task: TaskScores) -> float:
    return max(method.scores[0] for method in task.methods if not method.ours)


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores)


def _memory() -> str:
    """The largest resident size so far (the system says kilobytes on Linux, bytes on macOS, nothing on Windows)."""
    try:
        import resource
    except ImportError:
        return "not known on this system"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f"{peak / 1e9:.2f} GB"
