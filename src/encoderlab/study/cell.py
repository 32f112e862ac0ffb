"""One cell of a study as a process: ``python -m encoderlab.study.cell SPEC RESULT``.

SPEC is a JSON file with the recipe, the corpus, the run folder and the measures, or with the trials whose detectors are
compared; RESULT is written at the end. An interrupted cell stops with a checkpoint and continues from it when it is run
again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoderlab.config import flatten, from_dict
from encoderlab.errors import DataError, EncoderlabError, Stopped
from encoderlab.execution.local import stop_with_parent
from encoderlab.files import finite, locked
from encoderlab.interchange.load import load, load_pair
from encoderlab.measure.pairs.evaluate import evaluate_pairs
from encoderlab.measure.pairs.reading import find, read_all, sample
from encoderlab.measure.pairs.scorers import scorers_of
from encoderlab.measure.runs import RunRecord, asked, read_run
from encoderlab.model import count_parameters
from encoderlab.sealed import Damaged, read_record, write_record
from encoderlab.study import detectors
from encoderlab.study.file import KINDS, Finetune, Pairs, folder_name
from encoderlab.study.plan import data_hash, labelled_data, task_fields
from encoderlab.tasks.runs import trials
from encoderlab.tasks.runs.protocol import at_point
from encoderlab.tasks.runs.published import protocol
from encoderlab.train.distributed import join
from encoderlab.train.evidence import is_number
from encoderlab.train.folder import peak_memory
from encoderlab.train.loop import Outcome
from encoderlab.train.pretraining import pretrain
from encoderlab.train.recipe import Recipe

log = logging.getLogger(__name__)

PATIENCE = 120.0  # seconds for an earlier process of the same cell to end, as a cluster gives tasks that it stops


def run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Do what a spec asks for; returns its result.

    Raises:
        EncoderlabError: what :func:`pretrain`, a measure or :func:`detectors.compare` raises.
    """
    torch.set_num_threads(spec["threads"])
    return _compared(spec) if "runs" in spec else _trained(spec)


def _compared(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The losses of the discriminators of several trials. Of those whose results alone were kept, the training is
    repeated, to the same bits.
    """
    corpus = Path(spec["corpus"]["path"])
    runs: dict[str, Path] = {}
    for value, trial in spec["runs"].items():
        runs[value] = Path(trial["run"])
        pretrain(from_dict(Recipe, trial["recipe"]), corpus, runs[value])
    return {"status": "done", "losses": detectors.compare(runs, corpus)}


def _trained(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Train and measure one run. The peak memory is None if the training was finished before."""
    recipe, folder, base = from_dict(Recipe, spec["recipe"]), Path(spec["run"]), Path(spec["base"])
    finished = (folder / "model").exists()  # by an earlier process
    outcome = pretrain(recipe, Path(spec["corpus"]["path"]), folder)
    memory = None if finished else peak_memory(join(recipe.execution.device).device)  # before that of the measures
    record = read_run(folder)
    # The last validation is the checkpoint's: metrics.jsonl may have lost lines, and only the curve needs the others.
    held = flatten(outcome.metrics)
    record = replace(record, valid=[*(line for line in record.valid if line["step"] < outcome.step), held])
    term = record.term
    model, _ = load_pair(folder)
    scores: dict[str, float | None] = {
        "loss": held.get(f"losses.{term}"),
        "bits per byte": held.get(f"bits_per_byte.{term}"),
    }
    details: dict[str, Any] = {}
    for data in spec["measures"]:
        measure = from_dict(KINDS[data["kind"]], data)
        log.info("measuring %s", measure.title)
        if (spec.get("data") or {}).get(measure.title, now := data_hash(measure, base)) != now:
            raise DataError(f"{measure.title}: its data has changed since the study began; restore it")
        scores[measure.title], details[measure.title] = (
            _pairs(measure, base, folder)
            if isinstance(measure, Pairs)
            else _finetuned(measure, base, folder, Path(spec["tasks"]))
        )
    return {
        "status": "done",
        "scores": scores,
        "total_loss": held.get("loss"),
        "asked": asked(record),
        "numbers": {
            "step": outcome.step,
            "tokens": outcome.tokens,
            "flops": outcome.flops,
            "seconds": outcome.seconds,
            "tokens_per_second": outcome.tokens / max(outcome.seconds, 1e-9),
            "memory": memory,
            "parameters": count_parameters(model.config)["total"],
        },
        "details": details,
        "measures": spec["measures"],
        "data": spec.get("data"),
        "curve": _curve(record, outcome),
    }


def _curve(record: RunRecord, outcome: Outcome) -> list[tuple[float, float]]:
    """FLOPs and held-out loss of the main term at every validation."""
    train = [(line["tokens"], line["flops"]) for line in record.train if is_number(line.get("flops"))]
    tokens, flops = np.array([(0, 0.0), *train, (outcome.tokens, outcome.flops)]).T
    key = f"losses.{record.term}"
    held = [(line["tokens"], line[key]) for line in record.valid if is_number(line.get(key))]
    return [(float(np.interp(at, tokens, flops)), loss) for at, loss in held]


def _pairs(measure: Pairs, base: Path, folder: Path) -> tuple[float, dict[str, Any]]:
    model, generator = load_pair(folder)
    assert model.tokenizer is not None
    pairs = [*read_all(find([base / place for place in measure.data]))]
    chosen = pairs if measure.size is None else sample(pairs, measure.size)
    tables = evaluate_pairs(scorers_of(model, generator, official=True), model.tokenizer, chosen)
    ((name, table),) = tables.items()
    phenomena = {phenomenon: one.accuracy for phenomenon, one in table.phenomena.items()}
    details = {"measure": name, "ties": table.total.ties, "pairs": len(chosen), "phenomena": phenomena}
    return table.total.accuracy, details


def _finetuned(measure: Finetune, base: Path, folder: Path, out: Path) -> tuple[float, dict[str, Any]]:
    task, splits = labelled_data(measure, base)
    fields = task_fields(measure)
    outcome = trials.run(
        replace(protocol(measure.protocol), seeds=measure.seeds),
        load(folder),
        task,
        splits,
        out / folder_name(measure.title),
        adjust=lambda recipe: at_point(recipe, fields, where=measure.title),
        say=log.info,
    )
    scores = [run.scores["dev"][task.metric] for run in outcome.runs]
    return sum(scores) / len(scores), {"metric": task.metric, "seeds": scores, "chosen": dict(outcome.record["chosen"])}


def main(spec: str, result: str) -> int:
    """Run the cell in the file ``spec``; returns the exit code."""
    stop_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    begin = time.perf_counter()
    try:
        with _held(Path(result)):
            try:
                outcome = run(json.loads(Path(spec).read_text(encoding="utf-8")))
                if "numbers" in outcome and outcome["numbers"]["memory"] is None:
                    outcome["numbers"]["memory"] = _memory_before(Path(result))
            except Stopped:
                raise
            except EncoderlabError as error:
                outcome = {"status": "failed", "error": str(error), "code": error.code}
            write_record(Path(result), json.loads(json.dumps(finite(outcome | {"wall": time.perf_counter() - begin}))))
    except Stopped as error:
        log.info("%s", error)
        return error.code
    return 0


def _memory_before(result: Path) -> float | None:
    """The peak memory of training in the result of a cell that is measured again; None if it is not known."""
    with contextlib.suppress(FileNotFoundError, Damaged):
        return read_record(result).get("numbers", {}).get("memory")
    return None


@contextlib.contextmanager
def _held(result: Path) -> Iterator[None]:
    """Lock the result while it is made. A cluster repeats a task whose worker is lost, whose process may still be
    writing a checkpoint.

    Raises:
        Stopped: an earlier process of this cell does not end.
    """
    lock = result.with_name(f".{result.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    end = time.monotonic() + PATIENCE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(lock))
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Stopped(f"{result}: another process is making it; run the same command again") from None
                time.sleep(0.5)
        yield


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
