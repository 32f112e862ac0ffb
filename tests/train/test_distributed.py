"""One batch of 32 rows, four micro-batches of 8 and two processes of 16 are the same run, whatever engine spreads the
model."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist

from encoderlab import config
from encoderlab.cli import main
from encoderlab.errors import ConfigError, DataError, EncoderlabError, Stopped
from encoderlab.train import loop
from encoderlab.train.distributed import PATIENCE, World, join, spread
from encoderlab.train.recipe import Budget, Execution, Phase
from encoderlab.train.tally import measure
from tests.train.toy import RECIPE, Toy, batch_of, metrics, run, start, tensors

PHASES = (Phase(length=8, rows=32, share=0.5), Phase(length=12, rows=32, share=0.5))
WIDE = replace(RECIPE, budget=Budget(amount=8), phases=PHASES, log_every=1)
CHANGES = {
    "budget.amount": 8,
    "phases": [{"length": 8, "rows": 32, "share": 0.5}, {"length": 12, "rows": 32, "share": 0.5}],
    "log_every": 1,
}
STEP = "step-000008"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    run(out, WIDE)
    return out


def test_a_process_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert join("cpu").device == torch.device("cpu") and not taken
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [join().device] == taken == [torch.device("cuda", 1)]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="process 2 of this machine has no GPU: the machine has 2; start as"):
        join()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device is available; set execution.device=cpu or auto"):
        join("cuda")


def assert_close(one: Path, other: Path) -> None:
    """Equal within float tolerance: weights, the optimiser's moments (sums of gradients), memory and every metric."""
    left, right = tensors(one / "checkpoints" / STEP), tensors(other / "checkpoints" / STEP)
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(
            left[name], right[name], rtol=2e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    for ours, theirs in zip(metrics(one), metrics(other), strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert theirs[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4)), key


def finish(out: Path, changes: dict[str, object], processes: int, *options: object) -> str:
    process = start(out, CHANGES | changes, *options, processes=processes)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return said


@pytest.mark.parametrize("micro_rows", [8, 5, 1])
def test_micro_batches(tmp_path: Path, alone: Path, micro_rows: int) -> None:
    run(tmp_path, replace(WIDE, execution=Execution(micro_rows=micro_rows)))
    assert_close(tmp_path, alone)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_in_micro_batches(tmp_path: Path, alone: Path, parallel: str) -> None:
    process = start(tmp_path, CHANGES | {"execution.parallel": parallel, "execution.micro_rows": 5}, processes=2)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(said)["step"] == 8
    assert_close(tmp_path, alone)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_gradients_exchanged_in_bf16(tmp_path: Path, alone: Path, parallel: str) -> None:
    """The run of before, but for gradients of 8 bits: near it, and not the same."""
    finish(tmp_path, {"execution.parallel": parallel, "exchange": "bf16"}, 2)
    ours, theirs = metrics(tmp_path), metrics(alone)
    first, last = ({line["step"]: line for line in lines if line["split"] == "train"} for lines in (ours, theirs))
    assert first[1]["loss"] == pytest.approx(last[1]["loss"], rel=1e-5), "before the first update"
    assert first[8]["loss"] != last[8]["loss"] and first[8]["loss"] == pytest.approx(last[8]["loss"], rel=5e-3)


def test_buckets_leave_while_the_backward_pass_computes(tmp_path: Path) -> None:
    """Gradients of the last layers are sent before those of the first are computed."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        layers = torch.nn.Sequential(*(torch.nn.Linear(700, 700) for _ in range(8)))
        spread_module = spread(layers, World(0, 2, torch.device("cpu")), "ddp")
        order: list[str] = []
        layers[0].register_full_backward_hook(lambda *_: order.append("first layer computed"))

        def send(_, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
            order.append("bucket sent")
            sent: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            sent.set_result(bucket.buffer())
            return sent

        spread_module.register_comm_hook(None, send)
        for _ in range(2):  # the first pass finds the order of the buckets
            order.clear()
            spread_module(torch.randn(2, 700, requires_grad=True)).sum().backward()
        assert order.count("bucket sent") > 1 and order[0] == "bucket sent" and "first layer computed" in order
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set, expected a whole number; start processes with torchrun, or unset"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', expected a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2 and WORLD_SIZE is 2; start processes with torchrun"),
        ({"RANK": "1"}, "RANK is 1 and WORLD_SIZE is 1"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1', expected a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_PORT is not set, expected a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "29500"}, "MASTER_ADDR is not set"),
    ],
)
def test_variables_of_torchrun_that_cannot_be_are_refused(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=re.escape(said)):
        join("cpu")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            RuntimeError("[enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth7"),
            ConfigError,
        ),
        (dist.DistNetworkError("The server socket has failed to listen: EADDRINUSE"), Stopped),
    ],
)
def test_processes_that_do_not_meet_say_where(
    error: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(backend: str) -> None:
        raise error

    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "init_process_group", refuse)
    with pytest.raises(kind, match=re.escape(f"process 1 did not meet the other 1 at node1:29500 ({error}); see")):
        join("cpu")


def test_nodes_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [["gpu1", {"torch": "2.13.0"}], ["gpu7", {"torch": "2.11.0"}]]
    monkeypatch.setattr(World, "gather", lambda self, own: told)
    with pytest.raises(ConfigError, match="process 1 on gpu7 has torch 2.11.0, and process 0 on gpu1 has 2.13.0; inst"):
        World(0, 2, torch.device("cpu")).same({"torch": "2.13.0"}, "install the same")


def test_a_node_that_lacks_something_is_named_on_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> None:
        raise DataError("corpora/wiki: does not exist")

    told = [None, [1, "gpu7", "corpora/wiki: does not exist", 3]]
    monkeypatch.setattr(World, "gather", lambda self, own: told)
    monkeypatch.setattr(World, "wait", lambda self: None)
    with pytest.raises(EncoderlabError, match="^process 1 on gpu7: corpora/wiki: does not exist$") as caught:
        World(0, 2, torch.device("cpu")).everywhere(lambda: None)
    assert caught.value.code == 3
    with pytest.raises(DataError, match="^corpora/wiki: does not exist$"):
        World(1, 2, torch.device("cpu")).everywhere(lacking)


def test_averaged_weights_of_a_validation_are_not_trained_on(tmp_path: Path) -> None:
    changes = {"evaluation.every": 2, "average": {"decay": 0.5}}
    run(tmp_path / "alone", config.override(WIDE, changes))
    finish(tmp_path / "fsdp", changes | {"execution.parallel": "fsdp"}, 2)
    for ours, theirs in zip(metrics(tmp_path / "fsdp"), metrics(tmp_path / "alone"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5), ours["step"]


def test_a_validation_with_fewer_rows_than_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes without a row send as many numbers as the first one."""
    sent: list[list[float]] = []
    monkeypatch.setattr(World, "sum", lambda self, values, **more: sent.append(list(values)) or list(values))
    for rank in range(2):
        measure(Toy(), [batch_of(0, 1, 8)], World(rank, 2, torch.device("cpu")), "fp32")
    assert len(sent[0]) == 6 and any(sent[0]) and sent[1] == [0.0] * 6


def two(out: Path, changes: dict[str, object], *options: object) -> list[tuple[int, str]]:
    """The exit codes of two processes that no launcher ends, and what they said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    both = []
    for rank in range(2):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        both.append(start(out, changes, *options, variables=own | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
    said = [one.communicate(timeout=300)[1] for one in both]
    return [(one.returncode, errors) for one, errors in zip(both, said, strict=True)]


def test_an_error_of_one_process_is_that_of_all(tmp_path: Path) -> None:
    """Not "run the same command again", which a job of Slurm would obey for ever."""
    (first, said), (second, own) = two(tmp_path, CHANGES, "--fail-at", 3)
    assert first == second == DataError.code
    assert f"error: process 1 on {platform.node()}: shard 7 is damaged" in said
    assert "error: shard 7 is damaged" in own


def test_the_first_process_decides_by_its_scores(tmp_path: Path) -> None:
    """A GPU of another kind may score the same weights otherwise; no process may then end alone."""
    changes = CHANGES | {"evaluation": {"every": 2, "best": "score", "patience": 1}}
    assert [code for code, _ in two(tmp_path, changes, "--scores", 1)] == [0, 0]
    lines = [line for line in metrics(tmp_path) if line["split"] == "valid"]
    assert [(line["step"], line["scores"]) for line in lines] == [(n, {"score": 0.0}) for n in (0, 2, 4)]


def test_resumed_on_another_number_of_processes(tmp_path: Path, alone: Path) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, WIDE, session=Budget(amount=3))
    changes = CHANGES | {"execution.parallel": "fsdp", "checkpoints.steps": 2}
    process = start(tmp_path, changes, "--die-at", 3, "--stored", 5, processes=2)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))[-1] == "step-000005"
    run(tmp_path, WIDE)
    assert_close(tmp_path, alone)


def test_more_processes_than_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "join", lambda device: World(0, 7, torch.device("cpu")))
    with pytest.raises(ConfigError, match="a batch of 6 rows is too small for 7 processes"):
        run(tmp_path)


def test_a_refusal_of_the_first_process_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise ConfigError("the folder is in use")

    first, second = World(0, 2, torch.device("cpu")), World(1, 2, torch.device("cpu"))
    sent: list[list[float]] = []
    monkeypatch.setattr(
        World,
        "sum",
        lambda self, values, **more: sent.append(list(values)) or [sum(v) for v in zip(*sent, strict=True)],
    )
    with pytest.raises(ConfigError, match="the folder is in use"):
        first.agree(refuse)
    with pytest.raises(EncoderlabError, match="process 0 failed") as error:
        second.agree(refuse)
    assert error.value.code == ConfigError.code


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [5, 6, 32])
def test_shares_are_contiguous_and_whole(size: int, rows: int) -> None:
    spans = [World(rank, size, torch.device("cpu")).share(rows) for rank in range(size)]
    assert [row for start, stop in spans for row in range(start, stop)] == list(range(rows))
    assert max(stop - start for start, stop in spans) - min(stop - start for start, stop in spans) <= 1


@pytest.mark.parametrize(
    "message",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]: Connection reset by peer.",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6048",
    ],
)
def test_a_process_that_is_lost_is_one_line(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        def allreduce(self, *args: object) -> None:
            raise RuntimeError(message)

    with pytest.raises(Stopped, match="another process of this run has ended.*run the same command again") as caught:
        World(0, 2, torch.device("cpu"), Group()).sum([1.0])  # type: ignore[arg-type]
    assert caught.value.code == 75
    monkeypatch.setattr(Group, "allreduce", lambda *args: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        World(0, 2, torch.device("cpu"), Group()).sum([1.0])  # type: ignore[arg-type]


def test_long_work_of_one_process_is_waited_for() -> None:
    """As reading all of a large corpus, for which the half hour of other messages is too short."""

    class Group:
        waits: ClassVar[list[timedelta]] = []

        def allreduce(self, message: list[torch.Tensor], options: dist.AllreduceOptions) -> Group:
            self.waits.append(options.timeout)
            return self

        def wait(self) -> None: ...

    world = World(0, 2, torch.device("cpu"), Group())  # type: ignore[arg-type]
    world.sum([1.0])
    world.agree(lambda: 1.0)
    world.wait()
    assert Group.waits == [dist.AllreduceOptions().timeout, PATIENCE, PATIENCE]


def small_corpus(place: Path) -> Path:
    """A corpus of two hundred documents, built in ``place``."""
    words = "the red cat sat on a mat under that tree and saw two dogs run".split()
    texts = [" ".join(words[(7 * n + n * k + 3 * k) % len(words)] for k in range(20)) for n in range(200)]
    (place / "text.txt").write_text("\n\n".join(f"{text} {n}" for n, text in enumerate(texts)))
    assert main(["corpus", "build", str(place / "text.txt"), "--out", str(place / "corpus"), "--vocab-size", "50"]) == 0
    return place / "corpus"


def test_a_worker_that_is_killed_is_one_line(tmp_path: Path) -> None:
    """Two processes of the command line, of which one is killed while they train: the other says so and ends."""
    corpus = small_corpus(tmp_path)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CI": "1"}
    command = [sys.executable, "-m", "encoderlab"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["pretrain", "bert-tiny", "--corpus", str(corpus), "--out", "run", "--steps", "100000", "--set"]
    words += ["phases=[{length: 16, rows: 4}]", "--set", "log_every=1", "--set", "execution.device=cpu"]
    both = []
    for rank in range(2):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        both.append(
            subprocess.Popen(
                [*command, *words],
                cwd=tmp_path,
                env=environment | own | {"MASTER_PORT": port},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        )
    log = tmp_path / "run/metrics.jsonl"
    end = time.monotonic() + 300
    while not (log.exists() and len(log.read_text().splitlines()) > 3) and time.monotonic() < end:
        assert all(one.poll() is None for one in both), [one.communicate()[1] for one in both]
        time.sleep(0.2)
    both[1].kill()
    said = both[0].communicate(timeout=300)[1]
    both[1].communicate()
    assert both[0].returncode == Stopped.code, said
    assert "another process of this run has ended" in said.splitlines()[-1] and "Traceback" not in said
