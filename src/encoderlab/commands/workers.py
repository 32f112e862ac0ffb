"""Options of verbs whose work can run in several processes, or on a cluster, and their many input files."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from cyclopts import Parameter

from encoderlab.commands.settings import Count
from encoderlab.commands.terminal import note, progress, say
from encoderlab.errors import ConfigError, DataError
from encoderlab.execution.cluster import Need, tasks_on
from encoderlab.execution.outputs import make_outputs
from encoderlab.execution.workers import Tasks, Workers, cores, logged, rank_and_size
from encoderlab.files import held_folder
from encoderlab.messages import Say, silent

T = TypeVar("T")
NAMED = 3  # files that an error lists


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Processes:
    """Where independent work runs, in how many processes.

    Parameters
    ----------
    workers
        Number of processes. Default: as many as the cores allow.
    on
        Where the work is done: `local` (this machine), `ray` or `ray=ADDRESS` (a Ray cluster that sees the same files).
    """

    workers: Count | None = None
    on: str = "local"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Processes):
    """Where independent work runs, and the resources of each task.

    Parameters
    ----------
    workers
        Number of processes. Default: one, with all cores.
    threads
        Threads of each process, and cores of a task on Ray. Default: the cores divided by --workers; on Ray 1.
    gpus
        GPUs of a task on Ray. Default: 1 where the cluster has any.
    memory
        Gigabytes of memory of a task on Ray. Default: not counted.
    """

    threads: Count | None = None
    gpus: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        for name in ("gpus", "memory"):
            if (amount := getattr(self, name)) is None:
                continue
            if not 0 <= amount < float("inf"):
                raise ConfigError(f"--{name} {amount:g} is not a size; give a number such as 1")
            if self.on == "local":
                raise ConfigError(f"--{name} is for --on ray, which gives each task what it needs; leave it out")

    @property
    def several(self) -> bool:
        """Whether other processes than this one work."""
        return self != HERE

    def tasks(self, sees: Sequence[Path]) -> Tasks:
        """What runs the work; every node of a cluster must see the files and folders ``sees``."""
        if not self.several:
            return Workers(1)
        if rank_and_size()[1] > 1:
            raise ConfigError("--workers and --on are not for processes of torchrun; leave one of them out")
        workers = self.workers or (1 if self.on == "local" else None)
        threads = self.threads or (max(1, cores() // workers) if workers and self.on == "local" else 1)
        need = Need(cores=threads, gpus=self.gpus, memory=int((self.memory or 0) * 1e9))
        return tasks_on(self.on, workers=workers, need=need, sees=sees)


HERE = WorkerOptions()
ALL_CORES = Processes()


@contextlib.contextmanager
def elsewhere(where: WorkerOptions, out: Path, reads: Sequence[Path]) -> Iterator[Tasks | None]:
    """What runs work whose output folder is ``out``; None for this process.

    The folder is made first, to find nodes of a cluster that do not see it; it is removed if it stays empty.
    """
    if not where.several:
        yield None
        return
    there = out.is_dir()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with where.tasks([out, *reads]) as tasks:
            yield tasks
    finally:
        if not there:
            with contextlib.suppress(OSError):  # not empty
                out.rmdir()


def each(
    tasks: Tasks, function: Callable[..., T], calls: Mapping[str, Sequence[Any]], ended: Callable[[str, T], None]
) -> None:
    """``function(*arguments, say)`` for the arguments of every name; ``ended`` gets each name with its result.

    What ``function`` says, and what the package logs meanwhile, is printed with the name before it.
    """

    def noted(name: str, answer: tuple[T, list[str]]) -> None:
        result, remarks = answer
        for line in remarks:
            note(f"{name}: {line}")
        ended(name, result)

    tasks.ended = noted
    for name, arguments in calls.items():
        tasks.submit(_with_remarks, function, *arguments, name=name)
    tasks.finish()


def _with_remarks(function: Callable[..., T], *arguments: Any) -> tuple[T, list[str]]:
    remarks: list[str] = []
    with logged(remarks):
        return function(*arguments, remarks.append), remarks


_loaded: dict[ModelWork[Any], Any] = {}  # the model of this process, by the work that it is for; at most one


def keep_model(work: ModelWork[T], loaded: T) -> None:
    """Let :meth:`ModelWork.loaded` give ``loaded`` to the tasks of this process."""
    _loaded.clear()
    _loaded[work] = loaded


@dataclass(frozen=True, kw_only=True)
class ModelWork(Generic[T]):
    """Makes an output of one file after the other with a model that every process loads once.

    ``identity`` is the model's as the first process sees it. A call returns facts, with the number of what it made as
    ``unit``; ``product`` says what that is, with the words of :meth:`about`.
    """

    verb: ClassVar[str]
    suffix: ClassVar[str]
    unit: ClassVar[str]
    product: ClassVar[str]
    model: Path
    identity: str = ""

    def load(self, say: Say) -> tuple[T, str]:
        """The model and its identity."""
        raise NotImplementedError

    def asked(self) -> dict[str, Any]:
        """The settings on which outputs depend, besides the model."""
        raise NotImplementedError

    def about(self, loaded: T) -> dict[str, Any]:
        """What the answer says of the model."""
        return {}

    def loaded(self) -> T:
        """The model of this process, loaded once for all its tasks; it must equal that of the first process.

        Raises:
            ConfigError: this process sees another model.
        """
        if self not in _loaded:
            loaded, own = self.load(silent)
            if own != self.identity:
                raise ConfigError(
                    f"{self.model}: differs on {platform.node()} from the model here; put one where all nodes see it"
                )
            keep_model(self, loaded)
        return _loaded[self]  # type: ignore[no-any-return]

    def __call__(self, source: Path, out: Path, say: Say) -> dict[str, Any]:
        raise NotImplementedError


def listed(places: Sequence[Path], suffix: str) -> dict[str, Path]:
    """Every file among ``places``, and below the folders among them, by the name of its output: its path in its
    folder, or its name, with ``suffix`` added. Hidden files are left out.

    Raises:
        ConfigError: two files with the same name.
        DataError: no such file, or no files.
    """
    files: dict[str, Path] = {}
    for place in places:
        if not place.exists():
            raise DataError(f"{place}: no such file; give files, or a folder")
        if place.is_dir():
            inside = [path for path in place.rglob("*") if path.is_file()]
            names = {path.relative_to(place).as_posix(): path for path in sorted(inside)}
        else:
            names = {place.name: place}
        for name, path in names.items():
            if any(part.startswith(".") for part in Path(name).parts):
                continue
            if (other := files.setdefault(name + suffix, path)) != path:
                raise ConfigError(f"{other} and {path} have the same name; give a folder that has both")
    if not files:
        raise DataError(f"{places[0]}: has no files; give files, or a folder that has some")
    return files


def for_each_file(
    work: ModelWork[Any],
    places: Sequence[Path],
    out: Path | None,
    where: WorkerOptions,
    *,
    judge: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Make an output in the folder ``out`` of each file among ``places``, print what was noticed, and return the answer
    of the verb, with that of ``judge``, which may refuse the model first.

    Raises:
        ConfigError, DataError: wrong folders; or at the end, if some files failed.
    """
    inputs = listed(places, work.suffix)
    if out is None:
        raise ConfigError(f"{len(inputs)} files need a folder for their outputs; give --out FOLDER")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file; name a folder, for one output for each file")
    for place in places:  # outputs below it would be read next time
        if place.is_dir() and out.resolve().is_relative_to(place.resolve()):
            raise ConfigError(f"--out {out}: is inside {place}, which is read; give another --out")
    verdict = judge()
    loaded, identity = work.load(note)  # a wrong model is refused before any work
    about = work.about(loaded)
    work = replace(work, identity=identity)
    if not where.several:
        keep_model(work, loaded)
    del loaded
    asked = {"verb": work.verb, "model": identity, **work.asked()}
    sees = [out, *places, *([work.model] if work.model.exists() else [])]
    with held_folder(out), where.tasks(sees) as tasks, progress(work.verb) as show:
        done = make_outputs(work, inputs, out, tasks, asked=asked, progress=show)
    for remark, names in done.remarks.items():
        more = f" and {len(names) - 1:,} more files" if len(names) > 1 else ""
        note(f"{names[0].removesuffix(work.suffix)}{more}: {remark}")
    if done.kept:
        note(f"{done.kept:,} of {len(inputs):,} files were done before")
    if done.failed:
        reasons = list(done.failed.values())
        for why in reasons:
            note(f"failed: {why}")
        some = "; ".join(reasons[:NAMED]) + ("; ..." if len(reasons) > NAMED else "")
        raise DataError(
            f"{len(done.failed):,} of {len(inputs):,} files failed ({some}); the others are in {out}; fix these, and "
            "run the same command again"
        )
    count = sum(facts[work.unit] for facts in done.facts.values())
    say(f"{count:,} {work.product.format(**about)} for {len(done.facts):,} files written to {out}")
    counts = {"files": len(done.facts), "kept": done.kept, work.unit: count}
    return {"model": work.model, **counts, **about, "out": out, **verdict}
