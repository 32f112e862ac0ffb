"""The run folder: one process at a time, one recipe, metrics up to the checkpoint, and the run's provenance."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from encoderlab.config import flatten, from_dict, to_dict
from encoderlab.corpus.manifest import TOKENIZER
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.execution.workers import cores, versions
from encoderlab.files import finite, locked, remove_leftovers, write_bytes, write_json
from encoderlab.interchange.places import PROVENANCE, commits
from encoderlab.processor import first_core
from encoderlab.train import schemas

T = TypeVar("T")
log = logging.getLogger(__name__)
_PACKAGE = logging.getLogger("encoderlab")  # all modules log below this logger, so run.log gets their lines

RECIPE, METRICS, LOG, LOCK = "recipe.json", "metrics.jsonl", "run.log", ".lock"
EXECUTION = ("execution.", "checkpoints.", "log_every")
"""Prefixes of recipe fields that may change between sessions of one run, because they change how a result is computed
and what is saved, not the result.
"""


class RunFolder:
    """An output folder, locked by this process from construction to :meth:`close`.

    Raises:
        ConfigError: the folder is in use, cannot be written, has other content, or a run of another recipe or other
            data.
        DataError: the disk is full.
    """

    def __init__(self, path: Path, recipe: Any, data: Mapping[str, str]) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path)
            try:
                self._claim(recipe, dict(data))
                self._handler = _Log(path / LOG, encoding="utf-8")
            except BaseException:
                self._lock.close()
                raise
        except OSError as error:
            raise _unwritable(path, error) from None
        self._metrics: IO[bytes] | None = None
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _PACKAGE.addHandler(self._handler)
        _PACKAGE.setLevel(min(_PACKAGE.level or logging.INFO, logging.INFO))

    def _claim(self, recipe: Any, data: dict[str, str]) -> None:
        """Claim the folder for this run, or check that it already belongs to it."""
        known, provenance = self.path / RECIPE, self.path / PROVENANCE
        remove_leftovers(self.path.rglob(".*.tmp"))
        sessions: list[dict[str, Any]] = []
        if known.exists():
            before = read(known)
            differences = compare(as_now(before, type(recipe)), to_dict(recipe))
            if provenance.exists() or (trained(self.path) and not differences):  # without it, no data can be compared
                try:
                    sessions = list(read(provenance)["sessions"])
                    # Older runs did not record the hash of pairs.
                    differences += compare({"pairs": data.get("pairs"), **sessions[0]["data"]}, data, "data ")
                except (LookupError, TypeError, AttributeError):
                    raise ConfigError(
                        f"{provenance}: names no data; restore the file, or choose another output folder"
                    ) from None
            if differences and not trained(self.path):  # an earlier start was refused; nothing would be lost
                sessions = []
            elif differences:
                more = f"; {len(differences) - 5} more" if len(differences) > 5 else ""
                remedy = "give the same settings to resume"
                if not _is_known(before, type(recipe)):
                    remedy = "resume with the command and the version of encoderlab that wrote it"
                raise ConfigError(
                    f"{self.path}: has a run of another recipe ({'; '.join(differences[:5])}{more}); "
                    f"choose another output folder, or {remedy}"
                )
        elif any((self.path / "checkpoints").glob(f"step-*/{RECIPE}")):
            raise ConfigError(
                f"{known}: is missing; every folder in {self.path / 'checkpoints'} has a copy: copy one there to "
                "resume, or choose another output folder"
            )
        elif strangers := sorted(entry.name for entry in self.path.iterdir() if entry.name != LOCK):
            raise ConfigError(
                f"{self.path}: is not empty and not a run folder (found {strangers[0]!r}); choose another output folder"
            )
        write_json(known, to_dict(recipe))  # first, because this file makes the folder a run
        write_json(provenance, {"sessions": [*sessions, describe_session(data)]})

    def keep(self, tokenizer: Tokenizer) -> None:
        """Write the tokenizer next to the checkpoints, so that they become models without the corpus.

        Raises:
            ConfigError: it cannot be written.
        """
        try:
            tokenizer.save(self.path / TOKENIZER)
        except OSError as error:
            raise _unwritable(self.path / TOKENIZER, error) from None

    def open_metrics(self, step: int, size: int, digest: str | None) -> None:
        """Continue ``metrics.jsonl`` after its first ``size`` bytes, which existed at the checkpoint of ``step``.

        Later lines of an interrupted session are deleted. If the SHA-256 of these bytes is not ``digest``, whole lines
        up to ``step`` stay, and a warning says so.

        Raises:
            ConfigError: the file cannot be written.
        """
        path = self.path / METRICS
        try:
            with path.open("a+b") as file:
                file.seek(0)
                kept = file.read(size)
            self._hash = hashlib.sha256(kept)
            if len(kept) < size or kept[-1:] not in (b"", b"\n") or digest not in (None, self._hash.hexdigest()):
                lines = path.read_bytes().splitlines(keepends=True)
                whole = [line for line in lines if _is_metrics(line, step)]
                log.warning(
                    "%s has changed since the checkpoint: kept %d whole lines, dropped %d truncated or broken lines",
                    path,
                    len(whole),
                    len(lines) - len(whole),
                )
                kept = b"".join(whole)
                write_bytes(path, kept)
                self._hash = hashlib.sha256(kept)
            self._metrics = path.open("ab")
            self._metrics.truncate(len(kept))
            self._metrics.seek(0, os.SEEK_END)
        except OSError as error:
            raise _unwritable(path, error) from None

    def write_metrics(self, line: Mapping[str, Any]) -> None:
        """Append one JSON object; numbers that are not finite are written as null.

        Raises:
            DataError: the disk is full.
        """
        assert self._metrics is not None
        text = json.dumps(finite(line), allow_nan=False).encode() + b"\n"
        try:
            self._metrics.write(text)
            self._metrics.flush()
        except OSError as error:
            raise DataError(
                f"{self.path / METRICS}: could not be written ({error.strerror}); make room and run again to resume"
            ) from None
        self._hash.update(text)

    def metrics_state(self) -> dict[str, Any]:
        """Size and SHA-256 of the metrics so far, synced to disk, as :meth:`open_metrics` takes them."""
        assert self._metrics is not None
        os.fsync(self._metrics.fileno())
        return {"metrics_bytes": self._metrics.tell(), "metrics_sha256": self._hash.hexdigest()}

    def close(self) -> None:
        if self._metrics is not None:
            with suppress(OSError):  # on a full disk, closing fails too
                self._metrics.close()
        _PACKAGE.removeHandler(self._handler)
        with suppress(OSError):
            self._handler.close()
        self._lock.close()


def _is_metrics(line: bytes, step: int) -> bool:
    """Whether ``line`` is a whole line of metrics for a step up to ``step``."""
    try:
        data = json.loads(line)
        return line.endswith(b"\n") and schemas.problem_of_line(data) is None and data["step"] <= step
    except (ValueError, RecursionError):
        return False


def _unwritable(path: Path, error: OSError) -> ConfigError | DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"{path}: cannot be written ({error.strerror}); make room and run again")
    remedy = "check its permissions, or choose another output folder"
    return ConfigError(f"{path}: cannot be written ({error.strerror}); {remedy}")


class _Log(logging.FileHandler):
    """A log file that drops lines on a full disk; the run continues."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def trained(folder: Path) -> bool:
    """Whether a run folder holds more than the start of a run: a step of training, a checkpoint, or a result."""
    if any((folder / "checkpoints").glob("*")) or (folder / "model").exists():
        return True
    metrics = folder / METRICS
    return metrics.exists() and not all(_is_metrics(line, 0) for line in metrics.read_bytes().splitlines(True))


def as_now(recipe: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """A recorded recipe with the defaults of fields that came later; that of another kind of run is left unchanged."""
    with suppress(ConfigError):
        return to_dict(from_dict(kind, recipe))
    return dict(recipe)


def _is_known(recipe: Mapping[str, Any], kind: type) -> bool:
    """Whether a recorded recipe is of this ``kind``, with fields and values that this version knows."""
    try:
        from_dict(kind, recipe)
    except ConfigError:
        return False
    return True


def compare(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """``"optim.lr was 0.001, now 0.0005"`` for each difference that matters, the name's first."""
    old, new = flatten(before, prefix), flatten(now, prefix)
    return [
        f"{key} was {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}"
        for key in sorted(old | new, key=lambda key: (key != "name", key))
        if old.get(key) != new.get(key) and not key.startswith(EXECUTION)
    ]


def read(path: Path) -> dict[str, Any]:
    """A JSON object of a run folder.

    Raises:
        ConfigError: the file is missing, or is not a JSON object.
    """
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise ConfigError(f"{path}: is missing; restore the file, or choose another output folder") from None
    except (ValueError, TypeError, RecursionError):
        raise ConfigError(f"{path}: not a JSON object; restore the file, or choose another output folder") from None


def recorded(kind: type[T], data: Any, path: Path) -> T:
    """``data`` of a run's file ``path``, as a configuration of type ``kind``.

    Raises:
        ConfigError: this version does not know one of its fields or values, so another version wrote it.
    """
    try:
        return from_dict(kind, data, where=str(path))
    except ConfigError as error:
        problem = str(error).partition(";")[0]  # what follows says what may be set, and nobody sets a record
        raise ConfigError(
            f"{problem}; continue with the version of encoderlab that wrote it, which {PROVENANCE} of the run names"
        ) from None


def describe_session(data: Mapping[str, str]) -> dict[str, Any]:
    """The session's versions, commit, command, hardware, hashes of the data and commits of models of the Hub."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": session_command(),
        "versions": versions() | {"pydantic": importlib.metadata.version("pydantic")},
        "commit": _commit(),
        "data": dict(data),
        "models": commits(),
        "hardware": hardware(),
    }


def session_command() -> list[str]:
    """The command line of this process."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def hardware() -> dict[str, Any]:
    """The machine: processor, threads, accelerators."""
    import torch  # here, so that reading folders does not import torch

    return {
        "cpu": first_core().get("model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "system": platform.platform(),
    }


def peak_memory(device: Any = None) -> int | None:
    """The peak memory of this process in bytes: of a GPU if ``device`` is one, else main memory; None if unknown."""
    if getattr(device, "type", "cpu") == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _commit() -> str | None:
    """The commit of a source checkout, with ``-dirty`` if files differ from it; None for an installed package."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _lock(path: Path) -> ExitStack:
    """Lock the folder until the result is closed or the process ends."""
    file, lock = path / LOCK, ExitStack()
    file.touch()
    try:
        lock.enter_context(locked(file))
    except BlockingIOError:
        holder = file.read_text().strip() or "another process"
        raise ConfigError(
            f"{path}: is in use by {holder}; wait until it ends or choose another output folder"
        ) from None
    file.write_text(f"process {os.getpid()} on {platform.node()}")
    return lock
