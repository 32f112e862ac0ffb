"""One output for each of many files, made by tasks; a finished output is verified by its hash and not made again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from encoderlab.errors import ConfigError, EncoderlabError, OutOfMemory, Stopped
from encoderlab.execution.workers import Tasks, logged
from encoderlab.files import check_own, sha256
from encoderlab.messages import Say
from encoderlab.sealed import Seal

log = logging.getLogger(__name__)

RECORD = "files.jsonl"  # in the output folder: the settings, then a line for every finished file, with checksums
_SEAL = Seal(separators=(", ", ": "))  # of a line


class Make(Protocol):
    """Makes the file ``out`` from the file ``source``, whole or not at all, and returns facts about it; ``say`` takes
    remarks. It is sent to other processes.
    """

    def __call__(self, source: Path, out: Path, say: Say) -> Mapping[str, Any]: ...


@dataclass(kw_only=True)
class Outputs:
    """The state of the files, by the names of their outputs.

    Attributes:
        facts: results of :class:`Make` for finished files, those of earlier sessions included.
        kept: number of outputs of earlier sessions.
        failed: why the others failed.
        remarks: remarks, each with the names of its files.
    """

    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)


def make_outputs(
    make: Make,
    inputs: Mapping[str, Path],
    out: Path,
    tasks: Tasks,
    *,
    asked: Mapping[str, Any],
    progress: Callable[[str, int, int | None], None],
) -> Outputs:
    """Make the missing outputs in ``out``, which its caller locks, the largest inputs first.

    A file that fails is in ``failed``, and the others are made. An output that has changed, or whose input has, is
    made again, with a warning.

    Args:
        inputs: the input of each output, by the output's path in ``out``.
        asked: the settings that all outputs depend on, as plain data.

    Raises:
        ConfigError: the folder has outputs of other settings, or other files.
        OutOfMemory, Stopped: the same call continues.
    """
    known = _claim(out, asked)
    done = Outputs()
    for name, source in inputs.items():
        if (entry := known.get(name)) is not None and _is_kept(out / name, source, entry):
            done.facts[name] = entry["facts"]
    done.kept = len(done.facts)
    todo = sorted((name for name in inputs if name not in done.facts), key=lambda name: -_size(inputs[name]))
    with (out / RECORD).open("ab") as record:
        if not record.tell():
            record.write(_line(asked))

        def ended(name: str, result: Mapping[str, Any]) -> None:
            for remark in result["remarks"]:
                done.remarks.setdefault(remark, []).append(name)
            if "failed" in result:
                done.failed[name] = result["failed"]
            else:
                done.facts[name] = result["facts"]
                record.write(_line({"output": name, **{key: result[key] for key in ("input", "sha256", "facts")}}))
                record.flush()
            progress("files", len(done.facts) + len(done.failed), len(inputs))

        progress("files", done.kept, len(inputs))
        tasks.ended = ended
        for name in todo:
            tasks.submit(_make, make, inputs[name], out / name, name=name)
        tasks.finish()
    return done


def _claim(out: Path, asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of the record for the outputs in ``out``, by name; refuses a folder with other content."""
    check_own(out, RECORD)
    begun, *entries = _read(out / RECORD) or [dict(asked)]
    if other := [key for key, value in asked.items() if begun.get(key) != value]:
        raise ConfigError(f"{out}: has files that were made with another {other[0]}; give another --out, or delete it")
    return {entry["output"]: entry for entry in entries}


def _make(make: Make, source: Path, out: Path) -> dict[str, Any]:
    """Make one output: its hash, that of its input, and facts; or why it failed."""
    remarks: list[str] = []
    with logged(remarks):
        try:
            digest = sha256(source)
            out.parent.mkdir(parents=True, exist_ok=True)
            facts = make(source, out, remarks.append)
            made = {"input": digest, "sha256": sha256(out), "facts": dict(facts)}
        except (OutOfMemory, Stopped):
            raise
        except EncoderlabError as error:
            made = {"failed": str(error)}
        except OSError as error:
            if error.filename != str(source):  # of the output: a full disk, perhaps
                raise
            made = {"failed": f"{source}: {error.strerror}"}
    return made | {"remarks": [r.removeprefix(f"{source}: ").removeprefix(f"{source.name}: ") for r in remarks]}


def _is_kept(out: Path, source: Path, entry: Mapping[str, Any]) -> bool:
    """Whether an output of an earlier session is intact, and its input unchanged."""
    if not out.exists():
        log.warning("%s: is missing; made again", out)
        return False
    if sha256(out) != entry["sha256"]:
        log.warning("%s: has changed since it was written; made again", out)
        return False
    if sha256(source) != entry["input"]:
        log.warning("%s: has changed since; %s is made again", source, out)
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # its task says so
        return 0


def _line(entry: Mapping[str, Any]) -> bytes:
    return (json.dumps(_SEAL.sealed(entry), ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines of the record; it is cut before a torn or damaged one."""
    entries: list[dict[str, Any]] = []
    size = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            entry = _SEAL.opened(json.loads(line if line.endswith(b"\n") else b""))
        except ValueError:
            log.warning("%s: is damaged after line %d; the rest is made again", path, len(entries))
            with path.open("r+b") as file:
                file.truncate(size)
            break
        entries.append(entry)
        size += len(line)
    return entries
