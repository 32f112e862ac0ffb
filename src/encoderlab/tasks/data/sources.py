"""Labelled data by the name that a user gives: files of their own, a benchmark, or a suite of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from encoderlab.errors import ConfigError, DataError
from encoderlab.records.dataset import is_dataset, labelled_files
from encoderlab.storage.cache import local
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.infer import Given, task_of
from encoderlab.tasks.data.records import is_file_name
from encoderlab.tasks.data.splits import completed, hold_out, without_fillers
from encoderlab.tasks.data.task import Split, Task

DEVELOPMENT = ("validation", "valid", "dev")  # what ``datasets`` calls the split dev


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files of the user: ``splits`` of a folder that Hugging Face's ``datasets`` wrote, or one file as ``train``."""

    name: str
    path: Path
    splits: Mapping[str, Sequence[Path]]

    def find(self, split: str) -> Sequence[Path]:
        """The files of a split; empty without any."""
        names = DEVELOPMENT if split == "dev" else (split,)
        return next((self.splits[name] for name in names if name in self.splits), ())

    def of(self, split: str) -> Sequence[Path]:
        """The files to read as a split; those of a single one count as any.

        Raises:
            DataError: none of several splits has this name.
        """
        files = self.find(split) or (self.splits["train"] if list(self.splits) == ["train"] else ())
        if not files:
            wanted = DEVELOPMENT[0] if split == "dev" else split
            raise DataError(
                f"{self.name}: has the splits {', '.join(self.splits)} and no {wanted}; name one with --split"
            )
        return files

    def task(self, given: Given, split: str) -> tuple[Task, str]:
        """The task in the files of a split, and one line about what was inferred."""
        first = self.of(split)[0]
        task, said = task_of(first, given)
        if first == self.path:
            return task, said
        said = f"{self.path.name}{said.removeprefix(first.name)}; splits {', '.join(self.splits)}"
        return replace(task, name=self.path.resolve().name), said

    def read(self, task: Task, split: str) -> Split:
        """The examples of a split."""
        return task.read(self.of(split), split)

    def training(
        self, given: Given, say: Callable[[str], object], *, dev: Path | None = None, test: Path | None = None
    ) -> tuple[Task, dict[str, Split]]:
        """The task and its splits; ``say`` gets a line about what was inferred.

        ``dev`` and ``test`` replace the files of these splits. Without any for development, a part of training is held
        out.

        Raises:
            DataError: there are no files to train on.
        """
        train, skip = self.find("train"), given.skip_unlabelled
        if not train:
            names = ", ".join(self.splits)
            raise DataError(f"{self.name}: has the splits {names} and no train; give the folder of one of them")
        task, said = self.task(given, "train")
        say(said)
        splits = {"train": task.read(train, "train", skip_unlabelled=skip)}
        task = completed(task, splits["train"])  # other files have the labels of this one, or none
        if files := [dev] if dev else self.find("dev"):
            splits["dev"] = task.read(files, "dev", skip_unlabelled=skip)
        else:
            splits["train"], splits["dev"] = hold_out(splits["train"])
        if files := [test] if test else self.find("test"):
            splits["test"] = without_fillers(task.read(files, "test"), splits["train"])
        return task, splits


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark, or the several of a suite, whose files are in a folder."""

    name: str
    tasks: tuple[Task, ...]
    folder: Path

    @property
    def task(self) -> Task:
        """The one benchmark.

        Raises:
            ConfigError: it is a suite.
        """
        if len(self.tasks) > 1:
            raise ConfigError(f"{self.name} is a suite; give one of {', '.join(task.name for task in self.tasks)}")
        return self.tasks[0]

    def read(self, task: Task, split: str) -> Split:
        """The examples of a split of ``task``."""
        return task.load(self.folder, split)


def source_of(name: str, data: Path | None) -> Files | Benchmark:
    """The file, folder or URL ``name``, or the benchmark whose files are in the folder ``data``.

    Raises:
        ConfigError: no such file or benchmark, or a benchmark without ``data``.
    """
    path = local(name)
    if path.is_file():
        return Files(name=name, path=path, splits={"train": [path]})
    if is_dataset(path) or data is None and labelled_files(path):
        return Files(name=name, path=path, splits=labelled_files(path))
    names, is_path = suites.SUITES.get(name.lower(), (name,)), is_file_name(name) or "/" in name
    if path.is_dir() and (is_path or suites.find(names[0]) is None):
        raise ConfigError(f"{name}: is a folder; give a file in it, or the name of a benchmark with --data {name}")
    if is_path:
        raise ConfigError(f"{name}: no such file; give labelled data, or the name of a benchmark")
    tasks = tuple(map(suites.task, names))
    if data is None:
        raise ConfigError(f"{name} is a benchmark; give the folder of its files with --data")
    return Benchmark(name=name, tasks=tasks, folder=data)


def folder_of(name: str, data: Path | None) -> Path | None:
    """``data``, the folder of the benchmarks among several sources, if ``name`` is one of them; None for files."""
    return None if isinstance(source_of(name, data), Files) else data


def described_source(name: str, data: Path | None, given: Given) -> Files | Benchmark:
    """As :func:`source_of`; ``data`` is for benchmarks only, and what is ``given`` for files only.

    Raises:
        ConfigError: one of them is given for the other.
    """
    source = source_of(name, data)
    if isinstance(source, Files) and data is not None:
        raise ConfigError(f"{name} is a file, but --data {data} is for benchmarks; leave one of them out")
    if isinstance(source, Benchmark) and given != Given():
        raise ConfigError(f"{name} is a benchmark with known files and columns; leave out options for files")
    return source
