"""``encoderlab bench``: measure speed and memory."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab import processor
from encoderlab.commands import terminal
from encoderlab.commands.precision import Precision
from encoderlab.commands.settings import Amount, Count
from encoderlab.commands.workers import Processes, each
from encoderlab.errors import ConfigError
from encoderlab.execution.cluster import Need, tasks_on
from encoderlab.execution.workers import cores
from encoderlab.interchange.finetuned import tokenizer_place
from encoderlab.messages import Say


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Comparisons(Processes):
    """Where several comparisons run. The sides of one always take turns in one place.

    Parameters
    ----------
    workers
        Number of comparisons at once on this machine, each with its share of the cores; they disturb each other.
        Default: one after the other, with all cores.
    on
        Where they run: `local` (this machine), `ray` or `ray=ADDRESS` (a Ray cluster that sees the same files). There
        each is one task that asks for all cores of its node.
    """

    def measure(
        self,
        measure: Measure,
        names: Sequence[str],
        show: Callable[[dict[str, Any]], None],
        *,
        threads: int | None,
        reads: Sequence[Path],
    ) -> dict[str, Any]:
        """The measurement of every name, each printed by ``show`` as it ends.

        ``threads``: of each side; None for all cores of the place. ``reads``: what every node of a cluster must see.
        """
        if len({*names}) < len(names):
            raise ConfigError(f"{next(one for one in names if names.count(one) > 1)}: is given twice; name each once")
        done: dict[str, dict[str, Any]] = {}

        def ended(name: str, result: dict[str, Any]) -> None:
            done[name] = result
            show(result)
            terminal.say(f"measured on {result['node']}, {result['processor']}")

        if self == ONE_BY_ONE:
            for name in names:
                ended(name, _measured(measure, name, threads or cores(), terminal.note))
        else:
            need = Need(cores=None if self.on != "local" else max(1, cores() // (self.workers or 1)), gpus=None)
            workers = (self.workers or 1) if self.on == "local" else self.workers
            with tasks_on(self.on, workers=workers, need=need, sees=reads) as tasks:
                each(tasks, _measured, {name: (measure, name, threads or tasks.threads) for name in names}, ended)
        return done[names[0]] if len(names) == 1 else {"measurements": {name: done[name] for name in names}}


ONE_BY_ONE = Comparisons()
Measure = Callable[[str, int, Say], dict[str, Any]]
"""Measures all sides of one comparison in turns: its name, the number of threads, and what takes remarks."""


def _measured(measure: Measure, name: str, threads: int, say: Say) -> dict[str, Any]:
    return {"node": platform.node(), "processor": processor.name(), **measure(name, threads, say)}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainBench:
    """Measures training of one model.

    Parameters
    ----------
    corpus
        Corpus folder; batches are made from its text.
    against
        Library to compare with.
    layers
        Number of layers of families.
    width
        Width of the layers of families.
    rows
        Rows per batch.
    length
        Tokens per row.
    turns
        Turns of each contender.
    steps
        Steps per turn. Default: 2, on a GPU 20. A GPU is used if there is one.
    threads
        Threads of each contender; all cores by default.
    precision
        fp32, or bf16 under autocast.
    dropout
        Rate of all dropouts.
    documents
        Use whole documents of mixed lengths: encoderlab packs several into a row, the other contender pads each
        in its own row.
    compile
        Also measure the other contender with torch.compile.
    """

    corpus: Path
    against: Literal["transformers"] | None = None
    layers: int = 12
    width: int = 256
    rows: Count = 32
    length: int = 128
    turns: Count = 5
    steps: Count | None = None
    threads: Count | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    dropout: float = 0.1
    documents: bool = False
    compile: bool = False

    def __call__(self, name: str, threads: int, say: Say) -> dict[str, Any]:
        from encoderlab.inference import usual_device
        from encoderlab.measure.bench.families import case
        from encoderlab.measure.bench.train import TrainSetting, run
        from encoderlab.train.precision import instructions

        device = usual_device()
        if self.against and not instructions(self.precision, device):
            say(
                f"this processor has no {self.precision} instructions: steps of {self.against} take 10 to 40 times as "
                "long; --rows 4 --turns 1 --steps 1 shows enough"
            )
        setting = TrainSetting(
            rows=self.rows,
            length=self.length,
            turns=self.turns,
            steps=self.steps or (20 if device.type == "cuda" else 2),
            threads=threads,
            precision=self.precision,
            documents=self.documents,
            compile=self.compile,
        )
        known = case(name, layers=self.layers, width=self.width).with_dropout(self.dropout)
        return run(known, self.corpus, setting, self.against)


def train(names: list[str], /, *, options: TrainBench, where: Comparisons = ONE_BY_ONE) -> dict[str, Any]:
    """Measure training speed: tokens per second, share of the matrix-product peak, memory, time by part.

    Contenders take turns in one process tree on the same batches of a real corpus. Compare ratios, because absolute
    times drift on a shared machine. Of several models, each is compared by itself.

    Example: encoderlab bench train bert --corpus corpora/wiki \\
        --against transformers

    Parameters
    ----------
    names
        Families (bert, roberta, albert, distilbert, electra, convbert, deberta-v1, deberta-v2, deberta-v3, xlnet,
        modernbert) or published models.
    """
    from encoderlab.measure.bench import families

    if options.compile and options.against is None:
        raise ConfigError("--compile is for the other contender; give --against too")
    for name in names:
        families.case(name, layers=options.layers, width=options.width)
    return where.measure(options, names, _show_training, threads=options.threads, reads=[options.corpus])


def _show_training(result: dict[str, Any]) -> None:
    """Print the result of :class:`TrainBench`."""
    speeds = result["tokens_per_second"]
    lines = [(name, f"{speed:,.0f}", f"{result['memory'][name] / 2**20:,.0f}") for name, speed in speeds.items()]
    caption = (
        f"ours at {result['peak_share']:.0%} of the measured {result['peak'] / 1e9:,.0f} GFLOP/s, "
        f"{result['sustained_share']:.0%} of the {result['sustained'] / 1e9:,.0f} that products sustain meanwhile; "
        f"padding {result['padding']:.1%}"
    )
    terminal.table(
        f"{result['case']}, {result['rows']} x {result['length']}, {result['precision']}, {result['device']}",
        ["", "tokens/s", "MiB"],
        lines,
        caption=caption,
    )
    if "ratio" in result:
        ratio = result["ratio"]
        terminal.say(
            f"ratio {ratio[result['precision']]:.2f} (from {ratio['min']:.2f} to {ratio['max']:.2f} over turns), "
            f"memory {result['memory_ratio']:.2f}, losses after 20 steps differ by {result['loss_difference']:.1e}"
        )
    if "ratio_compiled" in result:
        ratio = result["ratio_compiled"]
        said = f"from {ratio['min']:.2f} to {ratio['max']:.2f}"
        terminal.say(f"under torch.compile: ratio {ratio[result['precision']]:.2f} ({said})")
    for name, reason in result.get("failed", {}).items():
        terminal.say(f"{name}: {reason}")
    names = list(result["parts"])
    parts = list(dict.fromkeys(part for name in names for part in result["parts"][name]))
    table = [(part, *(f"{result['parts'][name].get(part, 0):.1%}" for name in names)) for part in parts]
    busy = ", ".join(f"{name} {share:.0%}" for name, share in result.get("busy", {}).items())
    note = f"of the time of kernels; one runs during this share of a step: {busy}" if busy else None
    terminal.table("Share of a step's time", ["part", *names], table, caption=note)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PredictBench:
    """Measures prediction with one model.

    Parameters
    ----------
    corpus
        Corpus folder; texts are taken from it.
    against
        Library to compare with (repeatable).
    layers
        Number of layers of families.
    width
        Width of the layers of families.
    texts
        Number of texts, of one to a dozen sentences.
    rows
        Texts per batch of other contenders; encoderlab fills batches by tokens.
    turns
        Turns of each contender.
    threads
        Threads of each contender; all cores by default.
    precision
        fp32, or bf16 under autocast.
    """

    corpus: Path
    against: list[Literal["transformers", "onnxruntime"]] | None = None
    layers: int = 12
    width: int = 256
    texts: Count = 256
    rows: Count = 32
    turns: Count = 3
    threads: Count | None = None
    precision: Literal["fp32", "bf16"] = "fp32"

    def __call__(self, name: str, threads: int, say: Say) -> dict[str, Any]:
        from encoderlab.measure.bench.families import case
        from encoderlab.measure.bench.predict import PredictSetting, run

        setting = PredictSetting(
            texts=self.texts,
            rows=self.rows,
            turns=self.turns,
            threads=threads,
            precision=self.precision,
            against=tuple(self.against or ()),
        )
        return run(case(name, layers=self.layers, width=self.width), self.corpus, setting)


def predict(names: list[str], /, *, options: PredictBench, where: Comparisons = ONE_BY_ONE) -> dict[str, Any]:
    """Measure prediction speed on texts of mixed lengths. Of several models, each is compared by itself.

    Example: encoderlab bench predict bert --corpus corpora/wiki \\
        --against transformers

    Parameters
    ----------
    names
        Families or published models.
    """
    from encoderlab.measure.bench import families

    for name in names:
        families.case(name, layers=options.layers, width=options.width)
    return where.measure(options, names, _show_prediction, threads=options.threads, reads=[options.corpus])


def _show_prediction(result: dict[str, Any]) -> None:
    """Print the result of :class:`PredictBench`."""
    speeds = result["tokens_per_second"]
    lines = [
        (who, f"{speed:,.0f}", f"{result['ratio'].get(who, 1.0):.2f}", f"{result['difference'].get(who, 0.0):.0e}")
        for who, speed in speeds.items()
    ]
    texts = f"{result['texts']} texts, {result['tokens']:,} tokens"
    title = f"{result['case']}, {texts}, {result['precision']}, {result['device']}"
    terminal.table(title, ["", "tokens/s", "ours is faster by", "states differ by"], lines)
    for who, reason in result["failed"].items():
        terminal.say(f"{who}: {reason}")


def corpus(
    *sources: str,
    tokenizer: str | None = None,
    vocab_size: Count | None = None,
    megabytes: Amount = 100.0,
    workers: Count = 2,
    turns: Count = 3,
) -> dict[str, Any]:
    """Measure corpus building, compared with the tokenizer library alone on the same number of processes.

    Example: encoderlab bench corpus wiki.txt.gz

    Parameters
    ----------
    sources
        Text, as for corpus build. Default: python:all.
    tokenizer
        Tokenizer folder or file. Default: train a WordPiece tokenizer on the text.
    vocab_size
        Vocabulary size of the trained tokenizer. Default: 8192.
    megabytes
        Megabytes of text to use.
    workers
        Processes of each side.
    turns
        Turns of each side.
    """
    from encoderlab.measure.bench.corpus import run

    if tokenizer is not None and vocab_size is not None:
        raise ConfigError(f"--vocab-size is for a tokenizer to train; leave it out, or --tokenizer {tokenizer}")
    result = run(
        sources or ("python:all",),
        tokenizer=None if tokenizer is None else str(tokenizer_place(Path(tokenizer), terminal.note)),
        vocab_size=8192 if vocab_size is None else vocab_size,
        megabytes=megabytes,
        workers=workers,
        turns=turns,
    )
    speeds, ratio = result["megabytes_per_second"], result["ratio"]
    lines = [(who, f"{speed:.1f}") for who, speed in speeds.items()]
    caption = f"ratio {ratio['median']:.2f} (from {ratio['min']:.2f} to {ratio['max']:.2f})"
    terminal.table(f"{result['megabytes']:.0f} MB, {workers} processes", ["", "MB/s"], lines, caption=caption)
    return result


def scaling(
    name: str,
    /,
    *,
    corpus: Path,
    processes: int = 2,
    layers: int = 12,
    width: int = 256,
    rows: Count = 16,
    length: int = 128,
    steps: Count = 4,
) -> dict[str, Any]:
    """Measure how training speed grows with processes of one thread, and the time of communication.

    Over the nodes of a cluster, under torchrun: torchrun --nnodes 4 ... -m encoderlab bench scaling ...

    Example: encoderlab bench scaling bert --corpus corpora/wiki

    Parameters
    ----------
    name
        A family or a published model.
    corpus
        Corpus folder; batches are made from its text.
    processes
        Number of processes to compare with one; under torchrun, those that it started.
    layers
        Number of layers, if NAME is a family.
    width
        Width of the layers, if NAME is a family.
    rows
        Rows per process and batch.
    length
        Tokens per row.
    steps
        Number of steps with communication, and the same number without.
    """
    from encoderlab.measure.bench import families
    from encoderlab.measure.bench.scaling import run

    if processes < 2:
        raise ConfigError(f"--processes is {processes}, and scaling compares several with one; give at least 2")
    case = families.case(name, layers=layers, width=width)
    result = run(case, corpus, processes=processes, rows=rows, length=length, steps=steps)
    lines = [(count, f"{speed:,.0f}") for count, speed in result["tokens_per_second"].items()]
    caption = (
        f"efficiency {result['efficiency']:.0%}; a step takes {result['step_seconds']:.2f} s, "
        f"of which communication adds {result['exposed_communication_seconds']:.3f} s"
    )
    terminal.table(f"{name}, {rows} x {length} per process", ["processes", "tokens/s"], lines, caption=caption)
    model = [(n, f"{m['step_seconds']:.2f}", f"{m['efficiency']:.0%}") for n, m in result["model"].items()]
    slow = result["throttled"]
    caption = (
        f"checked with {slow['bytes_per_second'] / 1e6:,.0f} MB/s: {slow['predicted_seconds']:.2f} s predicted, "
        f"{slow['measured_seconds']:.2f} s measured ({slow['error']:+.1%})"
    )
    terminal.table("Predicted at this link", ["processes", "seconds per step", "efficiency"], model, caption=caption)
    return result


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeBench:
    """Measures servers of one model.

    Parameters
    ----------
    against
        Other servers (repeatable): our queue first in, first out (fifo), our server with the graph in ONNX Runtime
        (onnx, int8), sentence-transformers behind FastAPI, infinity.
    precision
        Precision of our server (int8: our own kernels).
    python
        Interpreter that has the other servers' packages: sentence-transformers, fastapi and uvicorn, or infinity-emb.
    clients
        Numbers of clients at once (repeatable); 1, 8 and 32 by default.
    requests
        Requests per turn.
    turns
        Turns of each server.
    threads
        Threads of each server; all cores by default.
    overload
        Also send three times as many requests as our server can answer.
    """

    against: Annotated[
        list[Literal["fifo", "onnx", "int8", "sentence-transformers", "infinity"]] | None, Parameter(negative=())
    ] = None
    precision: Precision = "fp32"
    python: Path | None = None
    clients: Annotated[list[Count] | None, Parameter(negative=())] = None
    requests: Count = 400
    turns: Count = 3
    threads: Count | None = None
    overload: Annotated[bool, Parameter(negative="--no-overload")] = True

    def __call__(self, model: str, threads: int, say: Say) -> dict[str, Any]:
        import torch

        from encoderlab.deploy.serve.bench import contenders, measure
        from encoderlab.inference import encode, placed, tokenizer_of
        from encoderlab.interchange.load import load

        whole = placed(load(Path(model)).eval(), self.precision)
        tokenizer = tokenizer_of(whole)
        tokens = map(tokenizer.token, range(tokenizer.vocab_size))
        words = [token for token in tokens if token.isascii() and token.isalpha()] or ["a"]
        servers = contenders(Path(model), tuple(self.against or ()), self.python, self.precision)
        own = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            measured = measure(
                servers,
                words,
                clients=tuple(self.clients or (1, 8, 32)),
                requests=self.requests,
                turns=self.turns,
                threads=threads,
                overload=self.overload,
                say=say,
                bare=lambda text: encode(whole, [text]),
            )
        finally:
            torch.set_num_threads(own)
        return {"model": model, **measured}


SERVING = ServeBench()


def serve(models: list[Path], /, *, options: ServeBench = SERVING, where: Comparisons = ONE_BY_ONE) -> dict[str, Any]:
    """Measure servers side by side: requests per second and latency under load. Of several models, each by itself.

    Every request is one text; lengths are mixed. All servers stay up and are asked in turns.
    With one client, calls of `encode` in one process take turns with them, too.
    Compare ratios within one run. At the end our server gets three times as many requests
    as it can answer, and refuses those that would wait longer than its slowest answers
    did (--max-wait).

    Example: encoderlab bench serve wiki-onnx --against fifo --against onnx

    Parameters
    ----------
    models
        Exported folders that make vectors of texts; without --against onnx or int8, any models.
    """
    if options.python is not None:
        if not {"sentence-transformers", "infinity"}.intersection(options.against or ()):
            raise ConfigError("--python is for --against sentence-transformers or infinity; give one of them too")
        if shutil.which(options.python) is None:
            raise ConfigError(f"--python {options.python}: no such program; give a Python interpreter")
    reads = [*models, *([options.python] if options.python else [])]
    return where.measure(options, list(map(str, models)), _show_serving, threads=options.threads, reads=reads)


def _show_serving(result: dict[str, Any]) -> None:
    """Print the result of :class:`ServeBench`."""
    for title, rows in {
        **{f"{n} clients": rows for n, rows in result["clients"].items()},
        "short": result["short"],
    }.items():
        terminal.table(
            f"{title}, {result['threads']} threads",
            [
                "",
                *("requests/s", "p50 ms", "p99 ms", "CPU ms each"),
                *("ours / its requests/s", "ours / its CPU", "ours / its p50"),
            ],
            [
                (
                    name,
                    f"{row['requests_per_second']:.1f}",
                    f"{row['p50']:.1f}",
                    f"{row['p99']:.1f}",
                    f"{row['cpu']:.1f}",
                    f"{median(row['rate_of_own']):.2f}",
                    f"{median(row['cpu_of_own']):.2f}",
                    f"{median(row['p50_of_own']):.2f}",
                )
                for name, row in rows.items()
            ],
        )
    if "overload" in result:
        over = result["overload"]
        terminal.say(
            f"three times the requests: {over['accepted']} accepted with p99 {over['p99']:.0f} ms "
            f"({over['usual_p99']:.0f} ms before), {over['refused']} refused (p99 {over['p99_of_refusals'] or 0:.0f} "
            f"ms), {over['failed']} failed"
        )
