"""A cluster that loses nodes while it works: the same bytes in the end."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from encoderlab.corpus import blocks, build
from encoderlab.corpus.build import BuildSettings, NewTokenizer, build_corpus
from encoderlab.execution.cluster import RayTasks

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


def in_time(stretch: Any, sources: Any, folder: Path, make_piece: Any) -> dict[str, str]:
    """The work of a task, slow enough to be interrupted."""
    time.sleep(0.5)
    return make_stretch(stretch, sources, folder, make_piece)


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
        if address is None:
            build_corpus(settings(folder), folder / out)
        else:
            patch.setattr(build, "_make_stretch", in_time)
            build_corpus(settings(folder), folder / out, cluster=lambda sees: RayTasks(address, sees=sees))
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


def test_after_the_loss_of_a_whole_cluster_another_continues(tmp_path: Path) -> None:
    alone = make(tmp_path, "alone")
    first = started()
    driver = drive(tmp_path, first.address)
    until(pieces(tmp_path, 2))
    first.shutdown()
    said, _ = driver.communicate(timeout=300)
    # Ray ends a process whose own node is lost, often before that can say a line: then with 1 instead of 3.
    assert driver.returncode in (1, 3), said
    kept = {path.name for path in tmp_path.glob("together/.work/pieces/*.safetensors")}
    second = started()
    driver = drive(tmp_path, second.address)
    said, _ = driver.communicate(timeout=300)
    second.shutdown()
    assert driver.returncode == 0, said
    assert kept and files(tmp_path / "together") == alone


def test_a_full_disk_ends_the_command_and_it_continues_with_more_space(cluster: Any, tmp_path: Path) -> None:
    alone, out = make(tmp_path, "alone"), tmp_path / "together"
    out.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", out], capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        said, _ = (driver := drive(tmp_path, cluster.address)).communicate(timeout=300)
        assert driver.returncode == 3 and said.endswith("run again to continue\n") and "no space left" in said, said
        kept = {path.name for path in out.glob(".work/pieces/*.safetensors")}
        subprocess.run(["mount", "-o", "remount,size=100m", out], check=True)
        said, _ = (driver := drive(tmp_path, cluster.address)).communicate(timeout=300)
        assert driver.returncode == 0, said
        assert kept and files(out) == alone
    finally:
        subprocess.run(["umount", out], check=True)
