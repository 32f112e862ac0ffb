"""Nodes on one machine for ``bench scaling``: each with its own network, a slow link and a share of a core.

    python -m benchmarks.cluster.nodes CORPUS [--nodes 2 4 8] [--share 0.2] [--megabits 200] [OPTIONS OF bench scaling]

A node is a network namespace behind a bridge. Whatever it sends or receives passes a token bucket (``tc``) of that many
megabits per second, and its process may compute for that share of each 5 milliseconds (``cpu.cfs_quota_us``; short,
because averaging waits for the slowest). So eight nodes do not take time from each other on two cores, as they would as
mere processes. torchrun starts the benchmark on all of them. The table compares the measured time of a step with two
predictions of :mod:`encoderlab.measure.many_processes`: by the constants of these nodes, and by those of the first row.
Needs Linux with iproute2 and cgroups, and root.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BRIDGE, PORT = "encoderlab0", 29511
PERIOD = 5000  # microseconds, of which a node has its share
HOST = "10.77.0.254"  # this machine, as nodes see it
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def share_of_core(name: str, share: float, period: int) -> Path:
    """A new control group whose processes together may use this share of one core; returns its ``cgroup.procs``."""
    quota = round(share * period)
    group = (V1 if V1.is_dir() else V2) / name
    group.mkdir(exist_ok=True)
    if V1.is_dir():
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group / "cpu.max").write_text(f"{quota} {period}")
    return group / "cgroup.procs"


@contextmanager
def nodes(count: int, share: float, megabits: float, period: int = PERIOD) -> Iterator[list[tuple[str, Path]]]:
    """The names of the network namespaces and the files that take the processes of their control groups."""
    names = [f"encoderlab{i}" for i in range(1, count + 1)]
    groups: list[Path] = []
    try:
        call("ip", "link", "add", BRIDGE, "type", "bridge")
        call("ip", "address", "add", f"{HOST}/24", "dev", BRIDGE)
        call("ip", "link", "set", BRIDGE, "up")
        for i, name in enumerate(names, 1):
            groups.append(share_of_core(name, share, period))
            call("ip", "netns", "add", name)
            call("ip", "link", "add", f"{name}b", "type", "veth", "peer", "name", "eth0", "netns", name)
            call("ip", "link", "set", f"{name}b", "master", BRIDGE, "up")
            call("ip", "-n", name, "address", "add", f"10.77.0.{i}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                call("ip", "-n", name, "link", "set", device, "up")
            bucket = ("rate", f"{megabits}mbit", "burst", "64kb", "latency", "400ms")
            call("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *bucket)
            call("tc", "qdisc", "add", "dev", f"{name}b", "root", "tbf", *bucket)
        yield list(zip(names, groups, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "link", "del", f"{name}b"], stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", BRIDGE], stderr=subprocess.DEVNULL)
        for group in groups:
            group.parent.rmdir()


def on_node(name: str, group: Path, command: Iterable[str]) -> list[str]:
    """The command that runs ``command`` on a node."""
    return ["sh", "-c", f'echo $$ > {group} && exec ip netns exec {name} "$@"', "sh", *command]


def measure(count: int, given: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """What ``bench scaling`` printed on the first of ``count`` nodes."""
    where = ("--nnodes", str(count), "--master-addr", "10.77.0.1", "--master-port", str(PORT))
    bench = ("-m", "encoderlab", "bench", "scaling", given.name, "--corpus", str(given.corpus), "--json", *options)
    # Gloo announces the address that the host's name has, which is the same on all nodes here.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    with nodes(count, given.share, given.megabits) as all_nodes:
        started = []
        for rank, (name, group) in enumerate(all_nodes):
            run = (sys.executable, "-m", "torch.distributed.run", *where, "--node-rank", str(rank), *bench)
            output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            started.append(subprocess.Popen(on_node(name, group, run), stdout=output, env=environment, text=True))
        printed, _ = started[0].communicate()
        if codes := [process.wait() for process in started if process.wait()]:
            raise SystemExit(f"a node ended with exit code {codes[0]}; its message is above")
    found: dict[str, Any] = json.loads(printed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--name", default="bert")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--share", type=float, default=0.2, help="of a core, for each node")
    parser.add_argument("--megabits", type=float, default=200, help="a second, that each node may send")
    given, options = parser.parse_known_args()
    found = {count: measure(count, given, options) for count in given.nodes}
    first = found[given.nodes[0]]
    print("nodes  seconds of a step  predicted  by the constants of the first row  bytes/s of the link")
    for count, one in found.items():
        measured = one["step_seconds"]
        predictions = [source["model"][str(count)]["step_seconds"] for source in (one, first)]
        errors = [f"{seconds:.2f} ({seconds / measured - 1:+.0%})" for seconds in predictions]
        print(f"{count:5}  {measured:17.2f}  {errors[0]:>9}  {errors[1]:>34}  {one['link']['bytes_per_second']:19.3g}")


if __name__ == "__main__":
    main()
