"""Times corpus building, against the tokenizer library alone with as many processes, and its stages on one core.

    python benchmarks/corpus.py wiki.txt.gz --tokenizer bert-base-uncased/vocab.txt [--megabytes 60] [--workers 2]

The contenders run in turns; it prints median megabytes of text per second and the ratio. The library reads and writes
nothing: its text is in memory. The stages are timed by processor time, which other processes disturb less; the last
line, multiplied by the number of cores, is the speed of an idle machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from encoderlab.corpus import pieces
from encoderlab.corpus.build import resolve_sources
from encoderlab.corpus.chunks import batched
from encoderlab.corpus.documents import parse_block
from encoderlab.corpus.sentences import sentence_starts
from encoderlab.corpus.sources import Reading
from encoderlab.corpus.stretches import divide
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.measure.bench import corpus as bench


def stages(source: str, tokenizer: Tokenizer, megabytes: float) -> None:
    """Prints megabytes per second of processor time, of each stage alone and of making whole pieces."""
    reading = Reading()
    seconds = dict.fromkeys(("read", "parse", "sentences", "tokens", "all, with marks and files"), 0.0)
    size = 0

    def timed(stage: str, function, *args):
        start = time.process_time()
        result = function(*args)
        seconds[stage] += time.process_time() - start
        return result

    with tempfile.TemporaryDirectory() as place:
        alone = Tokenizer.load(_saved(tokenizer, Path(place)))  # has a cache of words
        sources = resolve_sources([source], reading)
        work = pieces.read_work(sources, divide(sources))
        while size < megabytes * 1e6 and (piece := timed("read", next, work, None)):
            documents = [item for _, block in piece.blocks for item in timed("parse", parse_block, block, reading)[0]]
            lines = [line for document in documents for line in document]
            timed("sentences", lambda lines=lines: [sentence_starts(line) for line in lines])
            timed("tokens", lambda lines=lines: [alone.encode_corpus(batch) for batch in batched(lines, pieces.BATCH)])
            path = Path(place) / "piece.safetensors"
            timed("all, with marks and files", pieces.write_piece, path, piece, tokenizer, reading, None, "")
            size += sum(len(block.data) for _, block in piece.blocks)
    for stage, spent in seconds.items():
        print(f"{stage:28} {size / 1e6 / max(spent, 1e-9):8.1f} MB/s")


def _saved(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.save(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument(
        "--tokenizer", help="an existing tokenizer; by default one is trained (30,522), and no stages are timed"
    )
    parser.add_argument("--megabytes", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    size = asked.megabytes
    result = bench.run(
        [asked.source],
        tokenizer=asked.tokenizer,
        vocab_size=30522,
        megabytes=size,
        workers=asked.workers,
        turns=asked.turns,
    )
    for name, speed in result["megabytes_per_second"].items():
        print(f"{name:28} {speed:8.1f} MB/s, {asked.workers} processes")
    ratio = result["ratio"]
    print(f"{'ratio':28} {ratio['median']:8.2f} (from {ratio['min']:.2f} to {ratio['max']:.2f})")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if asked.tokenizer is not None:
        stages(asked.source, Tokenizer.load(asked.tokenizer), size)


if __name__ == "__main__":
    main()
