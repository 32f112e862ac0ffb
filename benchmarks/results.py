"""Fine-tune pretrained models, and the same architectures from fresh weights, on complete labelled sets.

    python -m benchmarks.results --english small-en --chinese small-zh --data DIR --runs DIR --out docs/results.md

``DIR`` is the folder with glue, superglue, nli, clue, ner, qa and multiple_choice. Every set has its baselines, and
both systems the default protocol with one change: the last weights are taken. So nothing is chosen on the development
set, and its score is that of unseen data. Finished runs are read from ``--runs``: the same command continues after an
interruption, and the table is written again after every set.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from encoderlab.files import write_text
from encoderlab.interchange.load import load
from encoderlab.model import Model, count_parameters
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.examples import Split
from encoderlab.tasks.data.infer import task_of
from encoderlab.tasks.data.splits import completed, usable_splits
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.forms.scores import baselines
from encoderlab.tasks.runs import trials
from encoderlab.tasks.runs.protocol import Protocol
from encoderlab.tasks.runs.published import PLAIN
from encoderlab.tasks.runs.trials import ProtocolResult, ResultRow


def nli(name: str) -> tuple[str, str]:
    return f"nli/{name}.train.jsonl.gz", f"nli/{name}.valid.jsonl.gz"


# Where the sets of each language lie below the data folder: a benchmark's folder, or the one file of a set without a
# training or development part; for a set that is no benchmark of the package, its training and its development file.
SETS: dict[str, dict[str, str | tuple[str, str]]] = {
    "en": {
        **dict.fromkeys(("cola", "sst2", "mrpc", "stsb", "wnli", "sick_entailment", "sick_relatedness"), "glue"),
        **dict.fromkeys(("cb", "copa", "multirc", "wic", "wsc"), "superglue"),
        "conll2003": ".",
        "squad1": "qa",
        "squad2": "qa",
        "arc": "multiple_choice/ARC-E/arc_easy_dev.csv.gz",
        "boolq": "superglue",
        "mnli_en": nli("mnli_en"),
        "xnli_en": nli("xnli_en"),
    },
    "zh": {
        **dict.fromkeys(("eprstmt", "bustm", "tnews_few", "csldcp", "cluewsc_few", "chid"), "."),
        **dict.fromkeys(("chnsenticorp", "ocnli", "c3", "cmrc2018", "cluener", "resume", "peoples_daily"), "."),
        "msra": "ner/msra/dev.tsv.gz",
        "mnli_zh": nli("mnli_zh"),
        "xnli_zh": nli("xnli_zh"),
    },
}
# The metric of the goals and of most papers, where it is not the one that selects models.
METRICS = {"mrpc": "f1", "stsb": "pearson"}
COMMENT = "## What this says"


def read(name: str, place: str | tuple[str, str], data: Path) -> tuple[Task, dict[str, Split]]:
    """A set, with its training and development part."""
    if isinstance(place, tuple):
        train, dev = (data / file for file in place)
        task = replace(task_of(train)[0], name=name)
        splits = {"train": task.read([train], "train"), "dev": task.read([dev], "dev")}
    else:
        task = suites.task(name)
        splits = usable_splits(task, data / place)
    splits = {part: splits[part] for part in ("train", "dev")}
    reported = METRICS.get(name, task.metric)
    task = replace(task, metrics=(reported, *(metric for metric in task.metrics if metric != reported)))
    return completed(task, splits["train"]), splits


def measure(
    task: Task, splits: dict[str, Split], model: Model, runs: Path, plan: Protocol
) -> tuple[list[ResultRow], list[ProtocolResult]]:
    """The lines of one set, and the results of both systems."""
    kept = runs / "baselines.json"
    if not kept.exists():
        write_text(kept, json.dumps(baselines(task, splits["train"], splits["dev"])))
    rows = trials.baseline_rows(task, json.loads(kept.read_text(encoding="utf-8")))
    outcomes = []
    fresh = Model(model.config, model.tokenizer).initialize(1)
    for system, start in (("without pretraining", fresh), ("pretrained", model)):
        outcomes.append(trials.run(plan, start, task, splits, runs / system.replace(" ", "-"), say=say))
        rows.append(trials.system_row(outcomes[-1], system))
    return rows, outcomes


@dataclass(frozen=True)
class Block:
    """The results of one model."""

    title: str
    about: str
    rows: list[ResultRow]
    outcomes: list[ProtocolResult]


def write(out: Path, blocks: Sequence[Block], plan: Protocol) -> None:
    """Write all tables so far, and how they were measured."""
    lines = ["# Results", ""]
    lines += wrapped(
        "Scores on the development sets of models that this project pretrained, times 100: median and mean over "
        f"{plan.seeds} seeds, with the 95% interval of the mean. Simple baselines and the same architecture with fresh "
        "weights are shown for comparison. Pretrained and fresh models are trained as `encoderlab finetune` does by "
        f"default, on the complete training sets, but keep the last weights ({plan.source}); nothing is chosen on the "
        "development set. A seed that predicts one label for every example is marked as failed, and counts. "
        "`python -m benchmarks.results` makes these tables."
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


def describe(model: Model) -> str:
    """The size of the model."""
    size = f"{model.config.encoder.layers} layers x {model.config.encoder.width}"
    parameters = count_parameters(model.config)["encoder"] / 1e6
    return f"{model.config.family}, {size}, {parameters:.1f} million parameters in the encoder."


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    names = [name for sets in SETS.values() for name in sets]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--english", nargs="+", default=[], help="models for the English sets: names or folders")
    parser.add_argument("--chinese", nargs="+", default=[], help="models for the Chinese sets")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs, to make or to continue")
    parser.add_argument("--out", type=Path, required=True, help="Markdown file to write")
    parser.add_argument("--sets", nargs="+", default=names, choices=names, metavar="SET")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = replace(PLAIN.recipe, select="last", precision=args.precision)
    source = PLAIN.source.replace("the best epoch by dev score", "the last weights")
    plan = replace(PLAIN, name="results", source=source, recipe=recipe, seeds=args.seeds, report="mean")
    blocks: list[Block] = []
    for folder, language in [*((f, "en") for f in args.english), *((f, "zh") for f in args.chinese)]:
        model = load(folder)
        block = Block(Path(folder).resolve().name, describe(model), [], [])
        blocks.append(block)
        for name in (name for name in args.sets if name in SETS[language]):
            task, splits = read(name, SETS[language][name], args.data)
            rows, outcomes = measure(task, splits, model, args.runs / block.title / name, plan)
            block.rows.extend(rows)
            block.outcomes.extend(outcomes)
            write(args.out, blocks, plan)
            say(f"{block.title}, {name}: written to {args.out}")


if __name__ == "__main__":
    main()
