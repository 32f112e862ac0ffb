"""The page that ``encoderlab quickstart`` writes, and its summary on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any

from encoderlab.commands.terminal import say, table
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.measure import runs
from encoderlab.measure.report import Fill, Pieces, Report, Run, TaskScores, difference, interval
from encoderlab.model import count_parameters
from encoderlab.train.folder import peak_memory
from encoderlab.train.loop import Outcome
from encoderlab.train.recipe import Recipe
from encoderlab.train.units import duration, quantity


@dataclass(frozen=True, kw_only=True)
class Road:
    """The results.

    ``size`` names the text (stdlib or all); ``examples`` counts the examples of each task by split. There were
    ``trainings`` fine-tunings on ``trained_on`` examples each; ``seconds`` is the total time.
    """

    size: str
    recipe: Recipe
    outcome: Outcome
    corpus: Corpus
    tokenizer: Tokenizer
    examples: Mapping[str, Mapping[str, int]]
    fills: Sequence[Fill]
    tasks: Sequence[TaskScores]
    trained_on: int
    trainings: int
    out: Path
    command: str
    seconds: float


def report(road: Road) -> Report:
    """The page with all results."""
    record = runs.read_run(road.out / "pretrain")
    parameters = count_parameters(road.recipe.model)
    accuracy = road.outcome.metrics.get("accuracy", {}).get(record.term)
    return Report(
        title=f"A BERT of {quantity(parameters['total'])} parameters, from raw text in {duration(road.seconds)}",
        verdict=verdict(road.outcome, accuracy, road.tasks),
        findings=runs.findings(record),
        tiles=runs.tiles(record),
        runs=[Run(name=road.recipe.name, train=record.train, valid=record.valid)],
        metrics=runs.metrics([record], runs.references([record], road.corpus.counts())),
        strips=runs.strips([record]),
        fills=road.fills,
        fills_note="Sentences of modules that the model never saw, chosen by a hash. The marked word is the original; "
        "bars are probabilities.",
        tasks=road.tasks,
        tasks_note="Trained and tested on different modules. Dots are seeds, the line is their mean, the band its 95% "
        "interval; the difference is paired by seed. small-en, which comes with the package, has read more text of "
        "another kind; it was fine-tuned once, on one task.",
        pieces=[pieces(road.tokenizer, fill) for fill in road.fills[:4]],
        tokenizer=tokenizer_facts(road),
        costs=costs(road, parameters),
        costs_note="A multiply-add is 2 operations, the backward pass costs twice the forward pass.",
        provenance=runs.provenance(record) | data_facts(road),
        commands=commands(road),
        limits=limits(road.outcome),
    )


def tokenizer_facts(road: Road) -> dict[str, str]:
    corpus, words = road.corpus, road.corpus.manifest.splits["train"].words
    return {
        "Kind": f"{road.tokenizer.kind}, {road.tokenizer.vocab_size:,} pieces, trained on this corpus",
        "Fertility": f"{corpus.num_tokens / words:.2f} tokens per word, "
        f"{corpus.num_bytes / corpus.num_tokens:.2f} bytes per token",
    }


def data_facts(road: Road) -> dict[str, str]:
    tasks = (f"{name}: {counts['train']:,} examples to train" for name, counts in road.examples.items())
    return {
        "Corpus": f"{road.corpus.num_documents:,} passages of modules for training: docstrings, comments and the "
        f"language reference of this Python and its packages (python:{road.size})",
        "Tasks": ", ".join(tasks),
    }


def commands(road: Road) -> list[str]:
    """The command that repeats everything, and two to continue with."""
    model, data = (quote(str(road.out / place)) for place in ("pretrain", "tasks/area/train.jsonl"))
    return [
        road.command,
        f'encoderlab fill-mask {model} "The [MASK] of a list."',
        f"encoderlab finetune {data} --model {model} --out runs/area --seeds 3",
    ]


def costs(road: Road, parameters: Mapping[str, int]) -> dict[str, str]:
    """Time, operations and memory."""
    outcome, encoder = road.outcome, road.recipe.model.encoder
    cost = road.recipe.operations(128) * outcome.tokens
    passes = outcome.tokens / road.corpus.num_tokens
    peak = peak_memory()
    return {
        "Everything, from corpus to report": duration(road.seconds),
        "Pretraining": f"{outcome.step:,} steps, {quantity(outcome.tokens)} tokens ({passes:.2f} passes over the "
        f"corpus), {duration(outcome.seconds)}",
        "Parameters": f"{parameters['total']:,} ({parameters['encoder.embeddings']:,} in embeddings), "
        f"{encoder.layers} layers of width {encoder.width}",
        "Operations of pretraining": f"{cost:.3g} FLOPs, {cost / max(outcome.seconds, 1e-9) / 1e9:.0f} GFLOP/s",
        "Largest memory of the process": "not known on this system" if peak is None else f"{peak / 1e9:.2f} GB",
        "Fine-tuning": f"{road.trainings} runs of {road.trained_on:,} examples; default protocol, fewer updates",
    }


def verdict(outcome: Outcome, accuracy: float | None, tasks: Sequence[TaskScores]) -> str:
    """Two or three sentences about the result, with its uncertainty."""
    words = f"It read {quantity(outcome.tokens)} tokens in {duration(outcome.seconds)}"
    words += f" and fills {accuracy:.0%} of the masked words of unseen modules." if accuracy is not None else "."
    gains, unclear, losses = [], [], []
    for task in tasks:
        if (gain := difference(task)) is None:
            continue
        middle, half = (100 * number for number in gain)
        if middle - half > 0:
            gains.append(f"{task.name} by {middle:.1f} ± {half:.1f}")
        elif middle + half < 0:
            losses.append(f"{task.name} by {-middle:.1f} ± {half:.1f}")
        else:
            unclear.append(task.name)
    best = {task.name: max(method.scores[0] for method in task.methods if not method.ours) for task in tasks}
    beaten = [task.name for task in tasks if best[task.name] > fmean(task.methods[-1].scores)]
    for names, sentence in (
        (gains, "Pretraining improves {} points."),
        (losses, "It hurts {} points."),
        (unclear, "No clear difference on {}."),
        (beaten, "A simple baseline is still better on {}."),
    ):
        words += " " + sentence.format(", ".join(names)) if names else ""
    return words


def limits(outcome: Outcome) -> list[str]:
    """Sentences about the limits of these results."""
    share = outcome.tokens / (40 * 3.3e9)  # Devlin et al., 2019: 40 epochs over 3.3 billion words
    return [
        f"{quantity(outcome.tokens)} tokens are {share:.1g} of what BERT read (40 passes over 3.3 billion words). "
        "This model knows frequent words and the style of documentation, not the world.",
        "The tasks are made of the same kind of text as the corpus, and their labels come from markup and module "
        "names, not from annotators. They show that everything works; they are not a benchmark.",
        "The interval shows how much the score varies with the seed of fine-tuning; pretraining was run once, and "
        "the test examples are a sample.",
        "The time budget decides how many steps fit, so another machine gets other numbers. Budgets in steps or tokens "
        "repeat exactly.",
    ]


def summary_of(road: Road) -> dict[str, Any]:
    """The content of ``summary.json``."""
    gains = {task.name: difference(task) for task in road.tasks}
    outcome = road.outcome
    return {
        "out": road.out,
        "report": road.out / "report.html",
        "model": road.out / "pretrain" / "model",
        "seconds": road.seconds,
        "pretraining": {"steps": outcome.step, "tokens": outcome.tokens, "validation": dict(outcome.metrics)},
        "tasks": {task.name: {m.name: list(m.scores) for m in task.methods} for task in road.tasks},
        "differences": {name: gain and {"mean": gain[0], "half": gain[1]} for name, gain in gains.items()},
    }


def show(road: Road, verdict: str) -> None:
    """Print the summary."""
    rows = []
    for task in road.tasks:
        for method in task.methods:
            middle, half = interval(method.scores)
            spread = f"± {100 * half:.1f}" if half else ""
            rows.append([task.name, task.metric, method.name, f"{100 * middle:.1f}", spread, len(method.scores)])
    table("test scores × 100, 95% interval over seeds", ["task", "metric", "system", "mean", "interval", "n"], rows)
    for blank in road.fills[:3]:
        before, after = (", ".join(word for word, _ in guesses[:3]) for guesses in (blank.before, blank.after))
        say(f"{blank.text}  ({blank.answer})")
        say(f"   before: {before}   after: {after}", style="dim")
    say()
    say(verdict)
    say()
    say(f"report  {road.out / 'report.html'}", style="bold")
    say(f"try     {commands(road)[1]}")


def pieces(tokenizer: Tokenizer, fill: Fill) -> Pieces:
    """The text of ``fill`` with its answer, as the tokenizer splits it."""
    text = fill.text.replace(fill.mask, fill.answer or "")
    return Pieces(text=text, spans=[(int(a), int(b)) for a, b in tokenizer.encode(text).offsets])
