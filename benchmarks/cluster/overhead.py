"""What Ray costs on one machine: a command by processes and on a Ray cluster of as many cores, in turns.

    python -m benchmarks.cluster.overhead [--cores 2] [--turns 2] -- corpus build TEXT --tokenizer small-en
    python -m benchmarks.cluster.overhead -- finetune superglue --data DIR --model small-en --seeds 3

The command gets ``--out``, and ``--workers`` or ``--on``. The cluster runs before the first turn. Prints the seconds of
every turn, the ratio of the medians, and whether both wrote the same weights and shards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def tensors(folder: Path) -> dict[str, bytes]:
    """The shards and weights below a folder; checkpoints are left out."""
    paths = (path for path in sorted(folder.rglob("*.safetensors")) if "checkpoints" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def main() -> None:
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    head = {"num_cpus": given.cores, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ways = {"processes": ["--workers", str(given.cores)], "Ray": ["--on", f"ray={cluster.address}"]}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    made: dict[str, dict[str, bytes]] = {}
    with tempfile.TemporaryDirectory() as place:
        for _ in range(given.turns):
            for way, words in ways.items():
                out = Path(place, way)
                shutil.rmtree(out, ignore_errors=True)
                begin = time.monotonic()
                command = [sys.executable, "-m", "encoderlab", *given.command, "--out", str(out), *words]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                seconds[way].append(round(time.monotonic() - begin, 1))
                made[way] = tensors(out)
    cluster.shutdown()
    ratio = statistics.median(seconds["Ray"]) / statistics.median(seconds["processes"])
    print(json.dumps({"seconds": seconds, "ratio": round(ratio, 4), "same": made["Ray"] == made["processes"]}))


if __name__ == "__main__":
    main()
