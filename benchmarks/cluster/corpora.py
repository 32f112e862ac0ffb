"""Corpora by nodes on one machine, compared with the formula of docs/scaling.md.

    python -m benchmarks.cluster.corpora TEXT [--nodes 1 2 4 8] [--share 0.2] [--megabits 200] [--tokenizer small-en]

A node is that of :mod:`benchmarks.cluster.nodes`: a network namespace with a slow link and a share of a core. It reads
its part of the text from an S3 server (moto's) on this machine and builds it with ``--shard-index`` and
``--num-shards``; the first node merges the parts. The constants are those of two nodes: what a command takes in any
case, from a text of two words, and the times of bytes and of new words, from TEXT in halves and in eighths. TEXT is a
folder of files, equally hard everywhere: parts are taken for equal. Needs what ``nodes`` needs, and moto.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cluster.nodes import HOST, nodes, on_node
from encoderlab.corpus.build import resolve_sources
from encoderlab.corpus.sources import Reading
from encoderlab.corpus.stretches import divide

PORT = 29512
REMEMBERED = 120e6  # bytes of English after which a process forgets its words (corpus/chunks.py: MAX_CHUNKS)
PERIOD = 100_000  # microseconds; after each pause a process fills the caches again, which in 1 of 5 ms costs a quarter
SERVER = f"http://{{}}:{PORT}"


class Work:
    """The commands that build a corpus of ``text``, and how many bytes each part has; ``place`` may change."""

    def __init__(self, text: Path, tokenizer: str, place: Path) -> None:
        import s3fs

        self.tokenizer, self.place, self.sources = tokenizer, place, []
        store = s3fs.S3FileSystem(key="test", secret="test", endpoint_url=SERVER.format("127.0.0.1"))
        store.mkdir(place.name)
        for path in sorted(text.iterdir()):
            store.put_file(str(path), f"{place.name}/{path.name}")
            self.sources.append(f"s3://{place.name}/{path.name}")
        self.stretches = divide(resolve_sources([str(text)], Reading()))
        self.size = sum(one.size for one in self.stretches)

    def part(self, index: int, count: int) -> list[str]:
        """Builds a part; the only one of one is the corpus."""
        out = ("--out", str(self.place / f"{index}-of-{count}"), "--tokenizer", self.tokenizer, "--workers", "1")
        shards = ("--shard-index", str(index), "--num-shards", str(count), "--max-unknown", "1")
        return [sys.executable, "-m", "encoderlab", "corpus", "build", *self.sources, *out, *shards]

    def part_size(self, index: int, count: int) -> int:
        return sum(one.size for one in self.stretches[index::count])

    def merge(self, count: int) -> list[str]:
        parts = [str(self.place / f"{index}-of-{count}") for index in range(count)]
        out = ("--out", str(self.place / f"whole-{count}"), "--workers", "1", "--max-unknown", "1")
        return [sys.executable, "-m", "encoderlab", "corpus", "merge", *parts, *out]


def start(command: list[str], host: str) -> subprocess.Popen[bytes]:
    own = {"AWS_ENDPOINT_URL": SERVER.format(host), "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    return subprocess.Popen(command, env=os.environ | own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@dataclass(frozen=True)
class Nodes:
    """Nodes that may use ``share`` of a core each, and receive so many megabits a second."""

    share: float
    megabits: float

    def run(self, commands: Sequence[list[str]], then: list[str] | None = None) -> tuple[float, float]:
        """Seconds until as many nodes have done their commands, and of what the first one does then."""
        with nodes(len(commands), self.share, self.megabits, PERIOD) as all_nodes:
            begun = time.monotonic()
            started = [start(on_node(*node, one), HOST) for node, one in zip(all_nodes, commands, strict=True)]
            codes = [process.wait() for process in started]
            between = time.monotonic()
            if then:
                codes.append(start(on_node(*all_nodes[0], then), HOST).wait())
        if any(codes):
            raise SystemExit(f"exit codes {codes} of {commands}")
        return between - begun, time.monotonic() - between

    def build(self, work: Work, count: int) -> tuple[float, float]:
        """Seconds until ``count`` nodes have their parts, and of the merge by the first one; one makes the whole."""
        work.place = work.place / f"{count}"
        work.place.mkdir()
        return self.run([work.part(index, count) for index in range(count)], work.merge(count) if count > 1 else None)


class Formula:
    """``seconds = start + a x bytes + b x bytes^0.6`` for a part, whose new words (Heaps' law) take longest."""

    def __init__(self, begin: float, short: tuple[int, float], long: tuple[int, float]) -> None:
        self.begin = begin
        sizes = np.array([(size, size**0.6) for size, _ in (short, long)])
        self.factors = np.linalg.solve(sizes, [seconds - begin for _, seconds in (short, long)])

    def seconds(self, size: float) -> float:
        times, rest = divmod(size, REMEMBERED)
        whole = self.factors @ (REMEMBERED, REMEMBERED**0.6)
        return self.begin + times * whole + self.factors @ (rest, rest**0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--share", type=float, default=0.2, help="of a core, for each node")
    parser.add_argument("--megabits", type=float, default=200, help="a second, that each node may receive")
    parser.add_argument("--tokenizer", default="small-en")
    given = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(PORT)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(5)
        with tempfile.TemporaryDirectory() as folder:
            places = [Path(folder, name) for name in ("two-words", "words-0", "words-1")]
            for place in places:
                place.mkdir()
            for name in "ab":
                (places[0] / name).with_suffix(".txt").write_text(name)
            small, work = Work(places[0], given.tokenizer, places[1]), Work(given.text, given.tokenizer, places[2])
            compare(work, small, given)
    finally:
        server.terminate()
        server.wait()


def compare(work: Work, small: Work, given: argparse.Namespace) -> None:
    cluster = Nodes(given.share, given.megabits)
    begin, begin_merge = cluster.build(small, 2)
    short, _ = cluster.run([work.part(index, 8) for index in (0, 1)])
    long, merge = cluster.build(work, 2)
    parts = Formula(begin, (work.part_size(0, 8), short), (work.part_size(0, 2), long))
    per_byte = (merge - begin_merge) / work.size
    print(f"{work.size / 1e6:.0f} MB; parts {begin:.1f} s + {1e6 * parts.factors[0]:.3f} s x MB", end="")
    print(f" + {1e6**0.6 * parts.factors[1]:.3f} s x MB^0.6, merging {begin_merge:.1f} s + {1e6 * per_byte:.4f} s x MB")
    print("nodes  seconds  by the formula")
    for count in given.nodes:
        measured = sum(cluster.build(work, count))
        fullest = max(work.part_size(index, count) for index in range(count))
        predicted = parts.seconds(fullest) + begin_merge * (count > 1) + per_byte * work.size
        print(f"{count:5}  {measured:7.1f}  {predicted:7.1f} ({predicted / measured - 1:+.0%})", flush=True)


if __name__ == "__main__":
    main()
