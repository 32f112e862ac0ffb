"""Fine-tune pretrained models, and the same architectures from fresh weights, on every labelled set.

    python -m benchmarks.results --english RUN --chinese RUN --data DIR --runs DIR --out docs/results.md

``DIR`` is the folder with glue, clue, ner, qa and multiple_choice. Every set has its baselines, and both systems the
default protocol with one change: the last weights are taken. So nothing is chosen on the development set, and its score
is that of unseen data. A set is cut to ``--limit`` training examples, and to as many as ``--tokens`` allow for an
epoch. Finished runs are read from ``--runs``: the same command continues after an interruption, and the table is
written again after every set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from encoderlab.files import write_text
from encoderlab.interchange.load import load
from encoderlab.model import Model, count_parameters
from encoderlab.seeds import generator
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.splits import completed, usable_splits
from encoderlab.tasks.data.task import Split, Task
from encoderlab.tasks.forms.objective import form_of
from encoderlab.tasks.runs import trials
from encoderlab.tasks.runs.protocol import Protocol
from encoderlab.tasks.runs.published import PLAIN
from encoderlab.tasks.runs.trials import ProtocolResult, ResultRow
from encoderlab.tasks.scoring.scores import baselines

# Where a set lies below the data folder: a folder, or the one file of a set without a training or development part.
SETS = {
    **dict.fromkeys(("cola", "sst2", "mrpc", "stsb", "wnli", "sick_entailment", "sick_relatedness"), "glue"),
    "conll2003": ".",
    "squad1": "qa",
    "squad2": "qa",
    "arc": "multiple_choice/ARC-E/arc_easy_dev.csv.gz",
    **dict.fromkeys(("eprstmt", "bustm", "tnews_few", "csldcp", "cluewsc_few", "chid"), "."),
    **dict.fromkeys(("chnsenticorp", "ocnli", "c3", "cmrc2018", "cluener", "resume", "peoples_daily"), "."),
    "msra": "ner/msra/dev.tsv.gz",
}
COMMENT = "## What this says"
SAMPLE = 200  # examples that tell how many tokens a set has


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Training examples of a set, tokens of an epoch, development examples; 0 is no limit."""

    examples: int
    tokens: int
    dev: int


def parts(task: Task, model: Model, data: Path, plan: Protocol, limits: Limits) -> tuple[Task, dict[str, Split]]:
    """The task with its labels, training and development examples within the limits."""
    recipe = plan.recipe_for(task, model)
    splits = usable_splits(task, data)
    task = completed(task, splits["train"])
    train = splits["train"]
    sample = drawn(train, SAMPLE)
    tokens = sum(map(len, form_of(task, model, recipe.form).items(sample.examples))) / len(sample)
    most = [limits.examples, int(limits.tokens / tokens)]
    kept = min([len(train), *(limit for limit in most if limit)])
    return task, {"train": drawn(train, kept), "dev": drawn(splits["dev"], limits.dev or len(splits["dev"]))}


def drawn(split: Split, count: int) -> Split:
    """``count`` examples of a split, in its order, the same whatever else is asked for."""
    if count >= len(split):
        return split
    places = sorted(generator(1, "subset", split.name).permutation(len(split))[:count].tolist())
    sha256 = hashlib.sha256(f"{split.sha256} {count}".encode()).hexdigest()
    return replace(split, examples=tuple(split.examples[place] for place in places), sha256=sha256)


def measure(
    name: str, model: Model, data: Path, runs: Path, plan: Protocol, limits: Limits
) -> tuple[list[ResultRow], list[ProtocolResult]]:
    """The lines of one set, and what the two systems found."""
    task, splits = parts(suites.task(name), model, data / SETS[name], plan, limits)
    kept = runs / name / "baselines.json"
    if not kept.exists():
        write_text(kept, json.dumps(baselines(task, splits["train"], splits["dev"])))
    rows = trials.baseline_rows(task, json.loads(kept.read_text(encoding="utf-8")))
    outcomes = []
    fresh = Model(model.config, model.tokenizer).initialize(1)
    for system, start in (("without pretraining", fresh), ("pretrained", model)):
        outcomes.append(trials.run(plan, start, task, splits, runs / name / system.replace(" ", "-"), say=say))
        rows.append(trials.system_row(outcomes[-1], system))
    return rows, outcomes


@dataclass(frozen=True)
class Block:
    """The results of one model."""

    title: str
    about: str
    rows: list[ResultRow]
    outcomes: list[ProtocolResult]


def write(out: Path, blocks: Sequence[Block], plan: Protocol, limits: Limits) -> None:
    """Write all tables so far, and how they were measured."""
    most = f"{limits.examples:,} training examples, {limits.tokens:,} tokens an epoch and {limits.dev:,}"
    lines = ["# Results", ""]
    lines += wrapped(
        "Scores on the development sets of models that this project pretrained, times 100: median and mean over "
        f"{plan.seeds} seeds, with the 95% interval of the mean. Simple baselines and the same architecture with fresh "
        "weights are shown for comparison. Pretrained and fresh models are trained as `encoderlab finetune` does by "
        f"default, but keep the last weights ({plan.source}); nothing is chosen on the development set. Each set is "
        f"limited to {most} development examples (0: all), so the numbers cannot be compared with published ones. A "
        "seed that predicts one label for every example is marked as failed, and counts. Every run is stored with its "
        "protocol. `python -m benchmarks.results` makes this file."
    )
    for block in blocks:
        tasks = list(dict.fromkeys(row.task for row in block.rows))
        ahead = [task for task in tasks if above(block.rows, task, "pretrained", "without pretraining")]
        behind = [task for task in tasks if above(block.rows, task, "without pretraining", "pretrained")]
        lines += ["", f"## {block.title}", ""]
        lines += wrapped(
            f"{block.about} Judged by intervals that do not overlap, pretraining is ahead on {len(ahead)} of "
            f"{len(tasks)} sets ({', '.join(ahead) or 'none'}) and behind on {len(behind)} "
            f"({', '.join(behind) or 'none'})."
        )
        lines += ["", table(block.rows), ""]
        lines += ["| set | training examples | development examples | minutes of all runs |", "|---|---:|---:|---:|"]
        for task in dict.fromkeys(outcome.task.name for outcome in block.outcomes):
            records = [outcome.record for outcome in block.outcomes if outcome.task.name == task]
            minutes, sizes = sum(record["seconds"] for record in records) / 60, records[0]["examples"]
            lines.append(f"| {task} | {sizes['train']:,} | {sizes['dev']:,} | {minutes:.1f} |")
    write_text(out, "\n".join(lines) + "\n" + prose(out))


def table(rows: Sequence[ResultRow]) -> str:
    """A Markdown table, scores times 100: median, mean with the 95% interval, standard deviation, number of seeds."""
    lines = ["| task | metric | system | median | mean | sd | seeds |", "|---|---|---|---:|---:|---:|---:|"]
    for row in rows:
        half = "" if row.interval is None else f" ± {100 * (row.interval[1] - row.mean):.1f}"
        sd = "" if row.sd is None else f"{100 * row.sd:.1f}"
        seeds = f"{row.n or ''}" + (f" ({row.failed} failed)" if row.failed else "")
        lines.append(
            f"| {row.task} | {row.metric} | {row.system} | {100 * row.median:.1f} | {100 * row.mean:.1f}{half} | "
            f"{sd} | {seeds} |"
        )
    return "\n".join(lines)


def prose(out: Path) -> str:
    """The section ``COMMENT`` of a file, written by hand; it is kept."""
    text = out.read_text(encoding="utf-8") if out.exists() else ""
    return text[text.index(f"\n{COMMENT}\n") :] if f"\n{COMMENT}\n" in text else ""


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def above(rows: Sequence[ResultRow], task: str, one: str, other: str) -> bool:
    """Whether the 95% interval of system ``one`` lies above that of ``other``."""
    intervals = {row.system: row.interval for row in rows if row.task == task and row.interval is not None}
    return one in intervals and other in intervals and intervals[one][0] > intervals[other][1]


def describe(folder: Path, model: Model) -> str:
    """The size of the model, and how much text it was trained on."""
    size = f"{model.config.encoder.layers} layers x {model.config.encoder.width}"
    parameters = count_parameters(model.config)["encoder"] / 1e6
    read, metrics = "", folder / "metrics.jsonl"
    if metrics.exists():
        last = json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])
        read = f", pretrained on {last['tokens'] / 1e6:.1f} million tokens in {last['seconds'] / 3600:.1f} hours"
    return f"{model.config.family}, {size}, {parameters:.1f} million parameters in the encoder{read}."


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--english", type=Path, nargs="+", default=[], help="run or model folders for the English sets")
    parser.add_argument("--chinese", type=Path, nargs="+", default=[], help="run or model folders for the Chinese sets")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs, to make or to go on with")
    parser.add_argument("--out", type=Path, required=True, help="Markdown file to write")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS), metavar="SET")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=3000, help="training examples of a set; 0: all")
    parser.add_argument("--tokens", type=int, default=100_000, help="training tokens of an epoch; 0: any number")
    parser.add_argument("--dev-limit", type=int, default=500, help="development examples of a set; 0: all")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    limits = Limits(examples=args.limit, tokens=args.tokens, dev=args.dev_limit)
    recipe = replace(PLAIN.recipe, select="last")
    source = PLAIN.source.replace("the best epoch by dev score", "the last weights")
    plan = replace(PLAIN, name="results", source=source, recipe=recipe, seeds=args.seeds, report="mean")
    blocks: list[Block] = []
    for folder, language in [*((f, "en") for f in args.english), *((f, "zh") for f in args.chinese)]:
        model = load(folder)
        block = Block(folder.resolve().name, describe(folder, model), [], [])
        blocks.append(block)
        for name in args.sets:
            if suites.task(name).language != language:
                continue
            rows, outcomes = measure(name, model, args.data, args.runs / block.title, plan, limits)
            block.rows.extend(rows)
            block.outcomes.extend(outcomes)
            write(args.out, blocks, plan, limits)
            say(f"{block.title}, {name}: written to {args.out}")


if __name__ == "__main__":
    main()
