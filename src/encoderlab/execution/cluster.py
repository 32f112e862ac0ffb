"""Independent work on a Ray cluster: the same tasks as those of processes of this machine, with the same results.

A task that is lost with its worker or its node is run again, up to :data:`RETRIES` times; so it must continue or start
again when it finds files of an earlier try. Ray gives each task the cores, GPUs and memory
that it names, and as many threads as cores.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from encoderlab import __version__
from encoderlab.errors import ConfigError, DataError, EncoderlabError, OutOfMemory, Stopped, optional
from encoderlab.execution.local import POLL, Ended, Execute, Job, start
from encoderlab.execution.workers import Tasks, Workers, cores, versions

RETRIES = 5
AHEAD = 2  # tasks submitted beyond those that can run
REACH = 10.0  # seconds in which the address of a cluster must take a connection
ANSWER = 120.0  # seconds in which a node must answer
PATIENCE = 120.0  # seconds in which stopped tasks may write their checkpoints
LOOK = 2.0  # seconds between two looks for the head of the cluster
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # to which a head answers in kind
SETTINGS = 4  # the kind of frame with which a server of HTTP/2 begins
HEAD = 30.0  # seconds for which the head may be away; after 60, Ray ends this process


@dataclass(frozen=True, kw_only=True)
class Need:
    """The resources of a task: cores (None: all of a node, so of the largest nodes), GPUs (None: one if the cluster has
    any), and bytes of memory (0: not counted).
    """

    cores: int | None = 1
    gpus: float | None = 0
    memory: int = 0


def tasks_on(place: str | None, *, workers: int | None = None, need: Need = Need(), sees: Sequence[Path] = ()) -> Tasks:
    """The place that ``--on`` names for tasks: ``local``, ``ray`` (a running cluster, else this machine), or
    ``ray=ADDRESS``.

    Args:
        workers: processes of this machine; None for as many as its cores allow.
        need: of a task; a process of this machine gets its cores as threads.
        sees: folders that every node of the cluster must see.

    Raises:
        ConfigError: another value, or workers where Ray decides.
    """
    kind, equals, address = (place or "local").partition("=")
    if kind == "local" and not equals:
        number = workers if workers is not None else max(1, cores() // (need.cores or cores()))
        return Workers(number, always=True, threads=need.cores)
    if kind != "ray" or (equals and not address):
        raise ConfigError(f"--on {place}: expected local, ray or ray=ADDRESS, such as ray=10.0.0.1:6379")
    if workers is not None:
        raise ConfigError("--workers is for --on local; Ray runs as many tasks as its cores allow")
    return RayTasks(address or None, need=need, sees=sees)


class RayTasks(Tasks):
    """Runs functions as tasks of a Ray cluster; ``cores`` are those of the cluster, once it is entered.

    Raises:
        MissingDependency: Ray is not installed.
        ConfigError: no cluster at the address, versions that differ, or a node without the package or the folders.
        OutOfMemory, DataError: a task was lost more often than :data:`RETRIES`.
        DataError: the head of the cluster was lost.
    """

    def __init__(self, address: str | None = None, *, need: Need = Need(), sees: Sequence[Path] = ()) -> None:
        super().__init__(1)
        self._address, self._need, self._sees = address, need, [str(Path(path).resolve()) for path in sees]
        self._ours = False  # whether this object made the connection

    def __enter__(self) -> Self:
        with optional("ray", "scale", "--on ray"):
            import ray
        self._ray = ray
        if not ray.is_initialized():
            self._connect()
            self._ours = True
        try:
            self._head = ClusterHead(ray)
            nodes = [node for node in ray.nodes() if node["Alive"]]
            self._set_resources([node["Resources"] for node in nodes])
            self._check([node for node in nodes if node["Resources"].get("CPU", 0) > 0])
        except BaseException:
            self._close()
            raise
        super().__enter__()
        # Otherwise Ray prints a line for a lost node to standard output, where --json prints one object.
        printing = ray._private.worker
        self._entered.callback(setattr, printing, "_worker_logs_enabled", printing._worker_logs_enabled)
        printing._worker_logs_enabled = False
        return self

    def _connect(self) -> None:
        address = self._address or os.environ.get("RAY_ADDRESS") or ""
        if "//" in address:
            raise ConfigError(f"--on ray={address}: expected the head's HOST:PORT, such as 10.0.0.1:6379")
        host, colon, port = address.rpartition(":")
        try:
            if colon and port.isdigit():  # Ray itself would retry for minutes, or forever
                _meet((host.strip("[]"), int(port)))
        except OSError as error:
            raise _no_cluster(address, error) from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its future default, without its warning
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if self._address is not None:
                self._ray.init(**quiet, address=self._address)
                return
            try:
                self._ray.init(**quiet, include_dashboard=False)
            except ValueError:  # a cluster was found, which has its own dashboard
                self._ray.init(**quiet)
        except (ConnectionError, ValueError, TimeoutError, OSError) as error:
            raise _no_cluster(self._address or "this machine", error) from None
        except RuntimeError as error:
            raise ConfigError(
                f"--on ray: the cluster does not fit this process: {_line(error)[:200]}; install the same versions"
            ) from None

    def _set_resources(self, nodes: Sequence[Mapping[str, float]]) -> None:
        """Set the resources of a task; refuse those that none of ``nodes`` has, because tasks would wait forever."""
        need, able = self._need, [node for node in nodes if node.get("CPU", 0) > 0]
        gpus = need.gpus if need.gpus is not None else float(any(node.get("GPU", 0) >= 1 for node in nodes))
        self.threads = need.cores or max([1, *(int(node["CPU"]) for node in able if node.get("GPU", 0) >= gpus)])
        needs = {"CPU": self.threads, "GPU": gpus, "memory": need.memory}
        if able and not any(all(node.get(kind, 0) >= amount for kind, amount in needs.items()) for node in able):
            most = max(able, key=lambda node: (node.get("GPU", 0), node["CPU"]))
            raise ConfigError(
                f"a task needs {_amounts(needs)}, and no node has that (the largest: {_amounts(most)}); ask for less, "
                "or add a node"
            )
        options: dict[str, Any] = {"num_cpus": self.threads, "num_gpus": gpus, "max_retries": RETRIES}
        self._remote = self._ray.remote(**options | ({"memory": need.memory} if need.memory else {}))(_call)
        self.cores = max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _check(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a node without this package in this version, or that does not see the folders."""
        own = _probe(self._sees)
        for name, node_sees in self._probed(nodes):
            for package, version in own["versions"].items():
                if node_sees["versions"][package] != version:
                    raise ConfigError(
                        f"node {name} has {package} {node_sees['versions'][package]}, this process {version}; install "
                        "the same versions"
                    )
            for path, there in node_sees["sees"].items():
                if own["sees"][path] and not there:
                    raise ConfigError(f"node {name} does not see {path}; put it where all nodes see it")

    def _probed(self, nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The name of each node that is not lost meanwhile, and what :func:`_probe` returns there."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        probe = self._ray.remote(num_cpus=0, max_retries=2)(_probe)
        where = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        answers = [probe.options(scheduling_strategy=one).remote(self._sees) for one in where]
        for name, answer in zip((node["NodeManagerHostname"] for node in nodes), answers, strict=True):
            try:
                yield name, self._ray.get(answer, timeout=ANSWER)
            except self._ray.exceptions.RayTaskError as error:
                said = _line(error.cause)[-120:]
                raise ConfigError(
                    f"node {name} cannot run encoderlab ({said}); install encoderlab {__version__} there"
                ) from None
            except self._ray.exceptions.GetTimeoutError:
                raise ConfigError(
                    f"node {name} has not answered for {ANSWER:.0f} seconds; see `ray status`, or remove the node"
                ) from None
            except self._ray.exceptions.RayError:
                continue

    def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
        while len(self._pending) >= self.cores + AHEAD:
            self.wait()
        self._pending[self._send(function, *args)] = name

    def _send(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._remote.remote(sys.argv, os.getcwd(), platform.node(), function, *args)

    def share(self, value: Any) -> Any:
        return self._ray.put(value)  # every node fetches it once

    def wait(self) -> None:
        done: list[Any] = []
        while self._pending and not done:
            done = self._ended_of(list(self._pending))
        for reference in done:
            name = self._pending.pop(reference)
            self.ended(name, self._result(reference))

    def _ended_of(self, references: list[Any]) -> list[Any]:
        """Those of the tasks that end within :data:`LOOK` seconds.

        Raises:
            DataError: the head of the cluster is lost.
        """
        done, _ = self._ray.wait(references, num_returns=1, timeout=LOOK)
        if done:
            self._head.heard = time.monotonic()
            return list(done)
        try:
            self._head.check()
        except DataError:
            self._pending.clear()  # nothing can be asked to stop any more
            raise
        return []

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.OutOfMemoryError:
            raise OutOfMemory("a task needs more memory than its node has; give nodes with more") from None
        except errors.TaskCancelledError:
            raise Stopped("a task was cancelled; run the same command again to continue") from None
        except errors.RayError as error:
            said = _line(error)[:160]
            raise DataError(f"a task was lost {RETRIES + 1} times ({said}); run the same command again") from None

    def __exit__(self, *error: Any) -> None:
        """Ask what runs to stop, as Ctrl-C does, and wait for it."""
        with self._entered:
            try:
                for reference in self._pending:
                    self._ray.cancel(reference)
                if self._pending:
                    self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=PATIENCE)
                self._pending.clear()
            finally:
                self._close()

    def _close(self) -> None:
        if self._ours:
            self._ray.shutdown()
            self._ours = False

    def jobs(self, *, deadline: float | None = None, begun: Callable[[Job], None] = lambda job: None) -> Execute:
        """The jobs of :mod:`encoderlab.execution.local` as tasks; each node must see their files."""

        def execute(jobs: Sequence[Job]) -> Iterator[Ended]:
            waiting = list(jobs)
            running: dict[Any, Job] = {}
            stop_at = math.inf if deadline is None else deadline
            while waiting or running:
                if time.monotonic() >= stop_at:
                    stop_at = math.inf
                    waiting.clear()
                    for reference in running:
                        self._ray.cancel(reference)
                while waiting and len(running) < self.cores + AHEAD:
                    job = waiting.pop(0)
                    reference = self._send(_run_job, job)
                    running[reference], self._pending[reference] = job, job.name
                    begun(job)
                for reference in self._ended_of(list(running)):
                    del self._pending[reference]
                    yield self._ended_job(running.pop(reference), reference)

        return execute

    def _ended_job(self, job: Job, reference: Any) -> Ended:
        try:
            return Ended(job=job, code=int(self._result(reference)))
        except Stopped as error:
            return Ended(job=job, code=error.code)
        except EncoderlabError as error:  # lost too often; the other jobs continue
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with job.log.open("a", encoding="utf-8") as log:
                log.write(f"{error}\n")
            return Ended(job=job, code=error.code)


class ClusterHead:
    """The head of the cluster to which ``ray`` is connected, and when it was last heard of."""

    def __init__(self, ray: Any) -> None:
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._ray, self._place = ray, (host.strip("[]"), int(port))
        self.cluster = self._identity()
        self.is_away = False  # whether it did not answer the last time
        self.heard = time.monotonic()

    def _identity(self) -> Any:
        """The cluster at the address; one that was started again without its memory is another."""
        host, port = self._place
        return self._ray._raylet.GcsClient(address=f"{host}:{port}").cluster_id

    def check(self) -> None:
        """Connect to the head.

        Raises:
            DataError: it has not answered for :data:`HEAD` seconds.
        """
        try:
            socket.create_connection(self._place, timeout=LOOK).close()
            if self.is_away and self._identity() != self.cluster:
                raise ConnectionError("another one runs there")
            self.is_away, self.heard = False, time.monotonic()
        except (OSError, self._ray.exceptions.RayError) as error:
            self.is_away = True
            if time.monotonic() - self.heard > HEAD:
                host, port = self._place
                raise DataError(
                    f"the head of the cluster at {host}:{port} is lost ({_line(error)[:100]}); run the same command "
                    "again with a cluster to continue"
                ) from None


def _meet(place: tuple[str, int]) -> None:
    """Connect to a head, and see that it speaks gRPC as Ray does.

    Raises:
        OSError: nothing answers there, or something else.
    """
    with socket.create_connection(place, timeout=REACH) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        connection.sendall(PREFACE)
        frame = b""
        while len(frame) < 4 and (part := connection.recv(9)):
            frame += part
    if frame[3:4] != bytes([SETTINGS]):
        raise ConnectionError("what answers there is not Ray")


def _no_cluster(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"--on ray: no cluster at {address} ({_line(error)[:160]}); start one with: ray start --head, or set "
        "RAY_AUTH_MODE=token for one that asks for a token"
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _amounts(resources: Mapping[str, float]) -> str:
    """``4 cores, 1 GPUs, 8.6 GB``."""
    parts = [f"{resources.get('CPU', 0):g} cores", f"{resources.get('GPU', 0):g} GPUs"]
    return ", ".join([*parts, f"{resources.get('memory', 0) / 1e9:.3g} GB"])


def _call(command: Sequence[str], folder: str, driver: str, function: Callable[..., Any], *args: Any) -> Any:
    sys.argv = list(command)  # what run folders record
    with contextlib.suppress(OSError):  # a node without it has no relative paths either, and was refused for them
        os.chdir(folder)
    try:
        return function(*args)  # Ray itself takes no partial functions
    except (ConfigError, DataError) as error:
        if platform.node() != driver:  # which may have credentials, files and room that the node lacks
            error.args = (f"node {platform.node()}: {error}",)
        raise


def _probe(paths: Sequence[str]) -> dict[str, Any]:
    return {"versions": versions(), "sees": {path: os.path.exists(path) for path in paths}}


def _run_job(job: Job) -> int:
    """The exit code of a job; if this task is cancelled, the job is asked to stop."""
    process = start(job)
    try:
        while process.poll() is None:
            time.sleep(POLL)  # a cancelled task is interrupted between two instructions, not in a system call
        return process.returncode
    except BaseException:
        process.terminate()
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
