"""A cluster that loses nodes while it works: the same bytes in the end."""

from __future__ import annotations

import builtins
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from encoderlab.corpus import blocks, build
from encoderlab.corpus.build import BuildSettings, NewTokenizer, build_corpus
from encoderlab.execution.cluster import RayTasks
from encoderlab.tasks.runs.elsewhere import perform_all
from encoderlab.tasks.runs.trials import perform, program
from encoderlab.train.recipe import Checkpoints
from tests.tasks.runs.test_elsewhere import results
from tests.tasks.runs.test_trials import QUICK
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

pytest.importorskip("ray", reason="Ray is not installed (pip install 'encoderlab[scale]')")
pytestmark = pytest.mark.slow

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
FILES = 12
make_stretch = build._make_stretch  # the real one, also in a worker


def started() -> Any:
    """A head that runs nothing, and two nodes of one core each."""
    from ray.cluster_utils import Cluster

    one = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
    for _ in "ab":
        one.add_node(**NODE)
    return one


@pytest.fixture
def cluster() -> Iterator[Any]:
    one = started()
    yield one
    one.shutdown()


def in_time(stretch: Any, sources: Any, folder: Path, make_piece: Any) -> None:
    """The work of a task, slow enough to be interrupted."""
    time.sleep(0.5)
    make_stretch(stretch, sources, folder, make_piece)


def settings(folder: Path) -> BuildSettings:
    texts = folder / "texts"
    if not texts.exists():
        texts.mkdir()
        for number in range(FILES):
            lines = (f"A text about the number {n}, and about {n * n}." for n in range(number, 3000, FILES))
            (texts / f"{number:02}.txt").write_text("\n\n".join(lines))
    return BuildSettings(sources=(str(texts),), tokenizer=NewTokenizer(vocab_size=150))


def make(folder: Path, out: str, address: str | None = None) -> dict[str, bytes]:
    """The files of a corpus that the cluster at the address makes, or this process; each source is a task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "RANGE", 15_000)
        tasks = None
        if address is not None:
            patch.setattr(build, "_make_stretch", in_time)
            tasks = lambda: RayTasks(address, sees=[folder])  # noqa: E731
        build_corpus(settings(folder), folder / out, tasks=tasks)
    return files(folder / out)


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def drive(folder: Path, address: str) -> subprocess.Popen[str]:
    """:func:`make` in a process of its own, which says one line for an error of the user."""
    program = (
        "import sys; from pathlib import Path; from encoderlab.errors import EncoderlabError\n"
        "from tests.execution.test_lost_nodes import make\n"
        "try: make(Path(sys.argv[1]), 'together', sys.argv[2])\n"
        "except EncoderlabError as error: print(error, file=sys.stderr); sys.exit(error.code)\n"
    )
    words = [sys.executable, "-c", program, str(folder), address]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pieces(folder: Path, number: int) -> Callable[[], bool]:
    return lambda: len(list(folder.glob("together/.work/pieces/*.safetensors"))) >= number


def until(happened: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_nodes_that_die_at_random_change_no_byte(cluster: Any, tmp_path: Path) -> None:
    draw = random.Random(0)
    alone = make(tmp_path, "alone")
    driver = drive(tmp_path, cluster.address)
    for number in (1, draw.randrange(3, 7)):
        until(pieces(tmp_path, number))
        time.sleep(draw.random())
        cluster.remove_node(draw.choice(list(cluster.worker_nodes)), allow_graceful=False)
        cluster.add_node(**NODE)
    assert driver.poll() is None  # both died during the work
    said, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, said
    assert files(tmp_path / "together") == alone


def test_seeds_whose_node_is_lost_have_the_bits_of_one_process(cluster: Any, tmp_path: Path) -> None:
    task, splits = data("tagged", train=64, dev=16)
    recipe = replace(QUICK.recipe, epochs=60, checkpoints=Checkpoints(steps=20, keep=1))
    protocol = replace(QUICK, recipe=recipe, seeds=3)
    latest = [tmp_path / f"together/runs/seed-{seed}/checkpoints/latest" for seed in (1, 2)]
    lost: list[bool] = []

    def lose() -> None:
        until(lambda: all(path.exists() for path in latest))
        lost.append(not any((path.parents[1] / "score.json").exists() for path in latest))
        cluster.remove_node(list(cluster.worker_nodes)[0], allow_graceful=False)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    plain, threads = builtins.print, torch.get_num_threads()
    try:
        with RayTasks(cluster.address, sees=[tmp_path]) as tasks:
            perform_all({"": program(protocol, model(), task, splits, tmp_path / "together")}, tasks)
    finally:
        builtins.print = plain  # Ray replaces it
    thread.join()
    assert lost == [True]  # while both trained
    sessions = [json.loads((path.parents[1] / "provenance.json").read_text())["sessions"] for path in latest]
    assert sorted(map(len, sessions)) == [1, 2]
    torch.set_num_threads(1)
    try:
        perform(program(protocol, model(), task, splits, tmp_path / "alone"))
    finally:
        torch.set_num_threads(threads)
    assert results(tmp_path / "alone") == results(tmp_path / "together")
