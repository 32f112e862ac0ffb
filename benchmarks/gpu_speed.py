"""``encoderlab bench train`` and ``bench predict`` of many models on one GPU in little time.

    python -m benchmarks.gpu_speed bert electra-768 bert:512:64 --corpus CORPUS
    python -m benchmarks.gpu_speed bert-768 xlnet-768 --texts 2048 --corpus CORPUS

All contenders get ready first, those of training side by side on the processor's cores; then one comparison after the
other is measured, and nothing else runs. FAMILY[-WIDTH][:LENGTH[:ROWS]]; with --texts they predict. Prints one JSON
object per line.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from encoderlab.errors import EncoderlabError
from encoderlab.measure.bench.families import case
from encoderlab.measure.bench.predict import PredictContest, PredictSetting
from encoderlab.measure.bench.train import TrainContest, TrainSetting


class Shape(NamedTuple):
    """A model and its batches, written FAMILY[-WIDTH][:LENGTH[:ROWS]]."""

    family: str
    width: int
    length: int
    rows: int

    @classmethod
    def of(cls, name: str, rows: int) -> Shape:
        found = re.fullmatch(r"(.+?)(?:-(\d{2,}))?(?::(\d+))?(?::(\d+))?", name)
        assert found is not None
        family, width, length, own = found.groups()
        return cls(family, int(width or 256), int(length or 128), int(own or rows))


def contest(name: str, given: argparse.Namespace) -> TrainContest | PredictContest:
    shape = Shape.of(name, given.rows)
    model = case(shape.family, layers=given.layers, width=shape.width)
    if given.texts:
        against = () if given.against is None else (given.against,)
        how = PredictSetting(
            texts=given.texts,
            turns=given.turns,
            threads=torch.get_num_threads(),
            precision=given.precision,
            against=against,
        )
        return PredictContest(model, given.corpus, how)
    setting = TrainSetting(
        rows=shape.rows,
        length=shape.length,
        turns=given.turns,
        steps=given.steps,
        threads=1,
        precision=given.precision,
        compile=given.compile,
    )
    return TrainContest(model, given.corpus, setting, given.against)


def found(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The measurements, ``together`` comparisons held ready at a time."""
    for begin in range(0, len(given.names), given.together):
        names = given.names[begin : begin + given.together]
        # Contenders of training are processes; those of prediction import transformers here, so one after the other.
        with ThreadPoolExecutor(1 if given.texts else len(names)) as starting:
            made = {name: starting.submit(contest, name, given) for name in names}
        for name, future in made.items():
            try:
                with future.result() as ready:
                    yield {"name": name, **ready.measured()}
            except EncoderlabError as error:  # the others may still be measured
                yield {"name": name, "error": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--against", default=None)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--texts", type=int, default=0, help="predict so many texts; the other contenders 32 at a time")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--together", type=int, default=6, help="comparisons whose weights lie on the GPU at a time")
    given = parser.parse_args()
    for line in found(given):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
