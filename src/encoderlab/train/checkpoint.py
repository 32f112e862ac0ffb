"""Write checkpoints whole or not at all (to a temporary folder, hashed, synced, renamed); verify them before reading.

    RUN/checkpoints/step-000500/   weights.safetensors  carried.safetensors  state.json  recipe.json  manifest.json
    RUN/checkpoints/latest         a link to the newest one

With FSDP every process writes its parts with :mod:`torch.distributed.checkpoint` into its own file
(``shard-00003-...safetensors``) instead of the first two; :class:`encoderlab.train.stored.StoredTensors` reads both.

``manifest.json`` has size and SHA-256 of every other file. If the process crashes or the disk is full while saving, a
``.partial-...`` folder remains, which the next session removes. A damaged checkpoint is reported, and the one before it
is used.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException

from encoderlab.errors import DataError
from encoderlab.files import sha256
from encoderlab.interchange.files import DTYPES
from encoderlab.interchange.places import PROVENANCE
from encoderlab.tensor_files import encode_header
from encoderlab.train.distributed import World, company, named_tensors
from encoderlab.train.stored import StoredTensors

WEIGHTS, CARRIED = "weights.safetensors", "carried.safetensors"
STATE, RECIPE, MANIFEST = "state.json", "recipe.json", "manifest.json"
AVERAGE = "average/"  # prefix for the moving average of a weight among the carried tensors
PARTIAL, OLD = ".partial-", "-old"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The content of a checkpoint: tensors in CPU memory (each process may have a part), and plain data.

    Args:
        weights: of the objective; tied tensors appear once.
        carried, state: everything else that is carried from step to step, as tensors and as plain data.
        recipe: of the run.
    """

    weights: dict[str, Tensor]
    carried: dict[str, Tensor]
    state: dict[str, Any]
    recipe: dict[str, Any]


log = logging.getLogger(__name__)


class Writer:
    """Writes snapshots into a folder, one at a time, in a thread while training continues.

    The next call of :meth:`save` or :meth:`wait` raises the thread's error. With ``world``, every process has a writer
    and saves its own parts at the same steps; the messages of these threads use a separate process group.
    """

    def __init__(self, folder: Path, *, keep: int, world: World | None = None) -> None:
        self.folder, self.keep = folder, keep
        self.world = None if world is None else world.apart()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        if self.world is None or self.world.main:
            self._tidy()

    def _tidy(self) -> None:
        """Remove the remains of a killed session."""
        self.folder.mkdir(exist_ok=True)
        for leftover in self.folder.glob(f"{PARTIAL}*"):
            whole = self.folder / leftover.name.removeprefix(PARTIAL).rsplit("-", 2)[0]
            if leftover.name.endswith(OLD) and not whole.exists():  # killed between the two renames of :func:`write`
                leftover.rename(whole)
            elif leftover.is_symlink():
                leftover.unlink()
            else:
                shutil.rmtree(leftover, ignore_errors=True)

    def save(self, into: str, snapshot: Snapshot) -> None:
        """Start to write ``snapshot`` into the folder ``into``; first wait for the previous one.

        ``snapshot`` must not change any more.
        """
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(into, snapshot), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last snapshot is on disk.

        Raises:
            DataError: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def join(self) -> None:
        """Wait as :meth:`wait`, at the end of a session that has another error: this one is logged."""
        try:
            self.wait()
        except DataError as error:
            log.warning("%s", error)

    def _write(self, into: str, snapshot: Snapshot) -> None:
        try:
            if self.world is None:
                write(self.folder / into, snapshot)
                self._retire(into)
            else:
                with company():
                    write_together(self.folder / into, snapshot, self.world)
                    self.world.agree(lambda: self._retire(into))
        except OSError as error:
            kept = by_age(self.folder)
            needed = sum(t.nbytes for part in (snapshot.weights, snapshot.carried) for t in part.values())
            self._error = DataError(
                f"{self.folder / into}: could not be written ({error.strerror or error}; "
                f"{needed / 1e6:,.1f} MB are needed, {shutil.disk_usage(self.folder).free / 1e6:,.1f} MB are free); "
                f"{f'{kept[0].name} is intact' if kept else 'no checkpoint exists yet'}: "
                "make room and run again to resume"
            )
        except Exception as error:
            self._error = error

    def _retire(self, into: str) -> None:
        """Point to the checkpoint ``into`` if it is the newest one, and delete old ones."""
        steps = by_age(self.folder)
        if steps and steps[0].name == into:
            point(self.folder / "latest", into)
        for old in steps[self.keep :]:
            doomed = self.folder / f"{PARTIAL}{old.name}"
            old.rename(doomed)  # first, so that no checkpoint is ever half deleted
            shutil.rmtree(doomed)


def write(folder: Path, snapshot: Snapshot) -> None:
    """Write the checkpoint ``folder``: write to a temporary folder, sync each file, then rename it; one of the same
    step is replaced.
    """
    partial = _aside(folder, os.getpid())
    try:
        files = {
            WEIGHTS: _write_tensors(partial / WEIGHTS, snapshot.weights),
            CARRIED: _write_tensors(partial / CARRIED, snapshot.carried),
        }
        _complete(folder, partial, files, snapshot)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_together(folder: Path, snapshot: Snapshot, world: World) -> None:
    """:func:`write` by all processes: each writes its parts and hashes its file, the first one completes the folder.

    Raises:
        DataError, OSError: on every process, if one could not write; the folder is then unchanged.
    """
    partial = folder.with_name(f"{PARTIAL}{folder.name}-{int(world.agree(lambda: _begin(folder)))}")
    try:
        try:
            writer = HuggingFaceStorageWriter(str(partial), save_distributed=True)
            # All in one file: the writer takes names and places of parts from the tensors themselves.
            dcp.save(snapshot.weights | snapshot.carried, storage_writer=writer, process_group=world.group)
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None
        own = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in partial.glob(f"shard-{world.rank + 1:05d}-*.safetensors")
        }
        files = {name: entry for part in world.gather(own) for name, entry in part.items()}
        world.agree(lambda: _complete(folder, partial, files, snapshot))
    except BaseException:
        if world.main:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _begin(folder: Path) -> int:
    """Make the temporary folder on the first process; returns its process id, which is in the name."""
    _aside(folder, os.getpid())
    return os.getpid()


def _aside(folder: Path, process: int) -> Path:
    partial = folder.with_name(f"{PARTIAL}{folder.name}-{process}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _complete(folder: Path, partial: Path, files: dict[str, Any], snapshot: Snapshot) -> None:
    """Write plain data and manifest next to the tensors' ``files``, and give the folder its name."""
    for name, entry in files.items():
        if not (partial / name).is_file() or (partial / name).stat().st_size != entry["bytes"]:
            raise DataError(
                f"{partial / name}: another node has written it, but it is not visible here; give an output folder on "
                "storage that all nodes share"
            )
    files |= {
        STATE: _write_json(partial / STATE, snapshot.state),
        RECIPE: _write_json(partial / RECIPE, snapshot.recipe),
    }
    _write_json(partial / MANIFEST, {"files": files})
    _sync(partial)
    old = partial.with_name(partial.name + OLD)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def point(link: Path, target: str) -> None:
    """Make the link ``link`` point to ``target``; readers see either the old or the new target.

    A folder in its place, from a copy that followed links, has the files of another checkpoint and is deleted.
    """
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    aside = link.with_name(f"{PARTIAL}{link.name}-{os.getpid()}")
    aside.unlink(missing_ok=True)
    try:
        aside.symlink_to(target)
    except OSError as error:
        error.filename = str(link)  # instead of the target's name
        raise
    os.replace(aside, link)


def newest(folder: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest whole checkpoint in ``folder``, or None; and the newer damaged ones, each with its error."""
    damaged = []
    for candidate in by_age(folder):
        try:
            verify(candidate)
        except DataError as error:
            damaged.append((candidate, str(error)))
        else:
            return candidate, damaged
    return None, damaged


def found_in(path: Path) -> Path | None:
    """The checkpoint at ``path``, or the newest whole one of a run folder without a model; None for other folders.
    Warnings name newer ones that are damaged.

    Raises:
        DataError: all checkpoints of the run are damaged.
    """
    if all((path / file).is_file() for file in (STATE, MANIFEST)):
        return path
    if (path / "model").exists() or not by_age(path / "checkpoints"):
        return None
    folder, damaged = newest(path / "checkpoints")
    if folder is None:
        raise DataError(f"{damaged[0][1]}; no older checkpoint is intact")
    for _, why in damaged:
        log.warning("%s; %s is used", why, folder.name)
    return folder


def run_of(folder: Path) -> Path:
    """The run folder of a checkpoint, whose ``checkpoints`` may be a link to another disk."""
    run = Path(os.path.abspath(folder)).parent.parent
    return run if (run / PROVENANCE).exists() else folder.resolve().parent.parent


def put_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint or model, so that it is neither used nor deleted; returns its new place."""
    names = (f"damaged-{folder.name}{f'-{number}' if number else ''}" for number in itertools.count())
    return folder.rename(next(aside for name in names if not (aside := folder.with_name(name)).exists()))


def verify(folder: Path, remedy: str = "") -> None:
    """Compare all files with the manifest; an error ends with ``remedy``.

    Raises:
        DataError: a file is missing, truncated or changed, or a file with tensors does not belong there.
        PermissionError: a file may not be read, so it may be whole.
    """
    if (problem := _problem(folder)) is not None:
        raise DataError(f"{problem}; {remedy}" if remedy else problem)


def _problem(folder: Path) -> str | None:
    """The first difference between the files of a checkpoint and its manifest; None if it is whole."""
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        expected = {file: (int(entry["bytes"]), str(entry["sha256"])) for file, entry in files.items()}
    except PermissionError:
        raise  # it may be whole
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{folder / MANIFEST}: missing or damaged, so the checkpoint cannot be trusted"
    if strangers := sorted(path for path in folder.glob("*.safetensors") if path.name not in expected):
        return f"{strangers[0]}: is not part of the checkpoint; move it elsewhere"
    for file, (size, digest) in expected.items():
        path = folder / file
        if not path.is_file():
            return f"{path}: missing from the checkpoint"
        if path.stat().st_size != size:
            return f"{path}: has {path.stat().st_size} bytes instead of {size} (truncated?)"
        if sha256(path) != digest:
            return f"{path}: its bytes have changed since it was written (SHA-256 differs)"
    return None


def load_weights(module: nn.Module, folder: Path) -> None:
    """Load the weights of the checkpoint ``folder``, written by any number of processes, into ``module``, sharded or
    not.

    Raises:
        DataError: the checkpoint belongs to another model.
    """
    stored, own = StoredTensors(folder), named_tensors(module)
    if strangers := sorted(own.keys() ^ stored.weights.keys()):
        raise DataError(
            f"{folder}: its tensors are not those of this model ({strangers[0]} is only in one of them); give "
            "one of this model"
        )
    stored.read_into(own)


def load_result(module: nn.Module, folder: Path) -> None:
    """Load the run's result at the checkpoint ``folder`` into ``module``: averaged weights if it has them, else
    weights.
    """
    load_weights(module, folder)
    own, stored = named_tensors(module), StoredTensors(folder)
    stored.read_into({name: own[name.removeprefix(AVERAGE)] for name in stored if name.startswith(AVERAGE)})


def name(step: int) -> str:
    """The folder name of a step; six digits keep ordinary runs in alphabetical order."""
    return f"step-{step:06d}"


def by_age(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, newest first; none if there is no such folder.

    Raises:
        PermissionError: the folder may not be read.
    """
    names = os.listdir(folder) if folder.is_dir() else []  # Path.glob finds nothing in a folder that may not be read
    steps = {int(name[5:]): folder / name for name in names if name.startswith("step-") and name[5:].isdigit()}
    return [steps[step] for step in sorted(steps, reverse=True)]


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file tensor by tensor; the library's own writer would first copy all of them."""
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))  # wide types first, so all are aligned
    header = encode_header({name: (DTYPES[one.dtype], one.shape, one.nbytes) for name, one in tensors.items()})
    chunks = (tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data for tensor in tensors.values())
    return _write_file(path, header, *chunks)


def _write_json(path: Path, data: Any) -> dict[str, Any]:
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    return _write_file(path, text.encode(errors="backslashreplace"))  # as files.write_text: names may not be UTF-8


def _write_file(path: Path, *chunks: bytes | memoryview) -> dict[str, Any]:
    """Write and sync ``path``; returns its manifest entry."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
