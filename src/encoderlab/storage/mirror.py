"""Outputs at URLs: written to a local folder, which is mirrored to the URL while it grows and restored from there.

At every moment, the mirrored folder is as complete as a local run's after a crash, and every file in it is whole. This
follows from the order of an upload. The local files are listed first. Then logs are sent (``*.jsonl``, ``*.log``),
so that they are never behind a checkpoint; then other files by their age; then each ``manifest.json``, which completes
a checkpoint or a corpus; then links such as ``latest``; then ``mirror.json``, the list of all. Files that were deleted
here are deleted at the URL last. Hidden and temporary files are not sent. A checkpoint without its manifest is
not restored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encoderlab.errors import ConfigError, DataError, EncoderlabError
from encoderlab.files import cache_folder, held_file, is_running, read_json, write_json
from encoderlab.sealed import Seal
from encoderlab.storage import places
from encoderlab.storage.streams import open_file

log = logging.getLogger(__name__)

INDEX, WRITER = "mirror.json", "writer.json"
EVERY = 20.0  # seconds between two uploads
GONE = 600.0  # seconds after which a marker that is not renewed expires
LOGS = (".jsonl", ".log")
_SEAL = Seal("sha256", (", ", ": "))  # of the index
_KEPT = "%s; what was made is kept in %s, and sent with the next upload"


def working_place(url: str) -> Path:
    """The local path where the files for ``url`` are made."""
    name = url.rstrip("/").rpartition("/")[2] or "out"
    return cache_folder() / "storage" / "work" / hashlib.sha256(url.encode()).hexdigest()[:24] / name


@contextlib.contextmanager
def written_file(url: str) -> Iterator[Path]:
    """A local file that is uploaded at the end, if there was no error.

    Raises:
        ConfigError: nothing can be written there, or another process of this machine is writing it.
        DataError: the upload failed.
    """
    places.check_writable(url)
    path = working_place(url)
    with held_file(path.with_name(f"{path.name}.upload"), called=url):
        places.exists(url)  # no access, no bucket: an error before any work
        yield path
        if path.exists():
            places.upload(path, url)
            path.unlink()


@contextlib.contextmanager
def written_folder(url: str) -> Iterator[Path]:
    """A local folder that is restored from the URL first, then mirrored to it every 20 seconds and at the end, even
    after an error.

    Raises:
        ConfigError: nothing can be written there, or another process is writing it.
        DataError: it cannot be restored, or uploaded at the end.
    """
    places.check_writable(url)
    folder = working_place(url)
    with held_file(folder.with_name(f"{folder.name}.upload"), called=url):
        mirror = Mirror(folder, url)
        mirror.claim()
        try:
            mirror.restore()
            over = threading.Event()
            thread = threading.Thread(target=mirror.follow, args=(over, EVERY), name="mirror", daemon=True)
            thread.start()
            done = False
            try:
                yield folder
                done = True
            finally:
                over.set()
                thread.join()
                try:
                    mirror.push()
                except (EncoderlabError, OSError) as error:
                    if done:
                        raise
                    log.warning(_KEPT, error, folder)  # the error of the work itself matters more
        finally:
            mirror.release()


class Mirror:
    """A local folder and its copy at a URL."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._state_file = folder.with_name(f"{folder.name}.mirror.json")  # which upload the folder continues
        self._id = uuid.uuid4().hex
        self._pushed: dict[str, tuple[int, int]] = {}  # size and time of change of each file at the URL
        self._entries: dict[str, dict[str, Any]] = {}
        self._links: dict[str, str] = {}
        self._pushes: list[str | None] = []  # of which one is at the URL: the last whole upload, and later attempts
        self._doomed: set[str] = set()  # deleted here, and perhaps not yet at the URL
        self._signed = 0.0

    def claim(self) -> None:
        """Write a marker at the URL: this process writes there.

        Raises:
            ConfigError: another process does.
        """
        self._refuse_other()
        self._sign()
        self._refuse_other()  # two at the same moment: the later marker wins, the other process stops here

    def _found_sign(self) -> dict[str, Any] | None:
        try:
            sign = json.loads(places.read_bytes(places.join(self.url, WRITER)))
            return {"id": sign["id"], "host": sign["host"], "pid": int(sign["pid"]), "time": float(sign["time"])}
        except (places.Absent, ValueError, KeyError, TypeError):
            return None

    def _refuse_other(self) -> None:
        sign = self._found_sign()
        if sign is None or sign["id"] == self._id or time.time() - sign["time"] >= GONE:
            return
        if sign["host"] == socket.gethostname() and not is_running(sign["pid"]):
            return
        raise ConfigError(
            f"{self.url}: another process is writing it ({sign['host']}, process {sign['pid']}); wait for it, or "
            "choose another place"
        )

    def _stay(self) -> None:
        """Renew the marker before it expires."""
        if time.time() - self._signed > GONE / 4:
            self._refuse_other()
            self._sign()

    def _sign(self) -> None:
        self._signed = time.time()
        sign = {"id": self._id, "host": socket.gethostname(), "pid": os.getpid(), "time": self._signed}
        places.write_bytes(places.join(self.url, WRITER), json.dumps(sign).encode())

    def release(self) -> None:
        """Remove the marker of :meth:`claim`, if no other process has replaced it."""
        with contextlib.suppress(DataError):
            if (sign := self._found_sign()) is not None and sign["id"] == self._id:
                places.delete(places.join(self.url, WRITER))

    def restore(self) -> None:
        """Make the local folder equal to the remote one, unless it is already equal or newer.

        Raises:
            DataError: it cannot be read.
        """
        pushes = read_json(self._state_file).get("pushes", []) if self._state_file.exists() else []
        index = self._found_index()
        push = None if index is None else index["push"]
        self._pushes = [push]
        if push in pushes:  # with no upload complete on either side, too
            self._entries, self._links = ({}, {}) if index is None else (index["files"], index["links"])
            self._pushed = {
                name: (entry["size"], entry["time"])
                for name, entry in self._entries.items()
                if self._state(name) == (entry["size"], entry["time"])
            }
            return
        names: set[str] = set()
        with contextlib.suppress(places.Absent):
            names = {name.removeprefix(self.url.rstrip("/") + "/") for name in places.find(self.url)} - {INDEX, WRITER}
        shutil.rmtree(self.folder, ignore_errors=True)
        links = {} if index is None else index["links"]
        for name in sorted(names - links.keys()):
            parent = name.rpartition("/")[0]
            if Path(parent).parent.name == "checkpoints" and f"{parent}/manifest.json" not in names:
                continue  # its upload was interrupted
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_file(places.join(self.url, name)) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            self._stay()
        for name, target in links.items():
            if (self.folder / name).parent.joinpath(target).exists():
                (self.folder / name).symlink_to(target)
        self._entries, self._links = (index["files"], links) if index is not None else ({}, {})
        write_json(self._state_file, {"pushes": self._pushes})  # last: without it, local files are not trusted
        if names:
            log.info("%s: %d files restored", self.url, len(names))

    def _found_index(self) -> dict[str, Any] | None:
        """The list of all at the URL, if there is one."""
        place = places.join(self.url, INDEX)
        if not places.exists(place):
            return None
        try:
            return _SEAL.opened(json.loads(places.read_bytes(place)))
        except (ValueError, RecursionError):
            raise DataError(f"{place}: is damaged; delete it to continue from the other files there") from None

    def follow(self, over: threading.Event, every: float) -> None:
        """Upload new files every so many seconds, until ``over``."""
        while not over.wait(every):
            try:
                self.push()
            except (DataError, OSError) as error:
                log.warning(_KEPT, error, self.folder)
            except ConfigError as error:
                log.warning("%s; nothing more is uploaded", error)
                return

    def push(self) -> None:
        """Upload files that changed since the last time, in the order of the module's docstring.

        Raises:
            ConfigError: another process writes there.
            DataError: an upload failed; everything is in the local folder.
        """
        states, links = self._listing()
        changed = [name for name, state in states.items() if self._pushed.get(name) != state]
        gone = (self._entries.keys() | self._links.keys() | self._doomed) - states.keys() - links.keys()
        self._stay()
        if not (changed or gone or links != self._links):
            return
        self._refuse_other()
        for name in sorted(changed, key=lambda name: (_order(name), states[name][1], name)):
            self._stay()
            self._upload(name, states[name])
        for name, target in links.items():
            if self._links.get(name) != target:
                places.write_bytes(places.join(self.url, name), target.encode())
        self._entries = {name: entry for name, entry in self._entries.items() if name in states}
        self._links = links
        push = uuid.uuid4().hex
        index = {"push": push, "files": self._entries, "links": links}
        self._pushes.append(push)  # first: an error does not say whether the list has arrived
        write_json(self._state_file, {"pushes": self._pushes})
        places.write_bytes(places.join(self.url, INDEX), json.dumps(_SEAL.sealed(index), indent=1).encode())
        self._pushes = [push]
        self._doomed = gone
        for name in sorted(gone, key=_order, reverse=True):  # manifests first: without one a checkpoint is not restored
            places.delete(places.join(self.url, name))
            self._pushed.pop(name, None)
        self._doomed = set()

    def _upload(self, name: str, state: tuple[int, int]) -> None:
        path = self.folder / name
        try:
            places.upload(path, places.join(self.url, name))
            self._entries[name] = {"size": state[0], "time": state[1]}
        except FileNotFoundError:
            return  # deleted meanwhile, as old checkpoints are
        except DataError:
            if path.exists():
                raise
            return
        self._pushed[name] = state  # the time of the listing: later files are uploaded the next time

    def _listing(self) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        """The size and the time of change of every file, and the target of every link."""
        states: dict[str, tuple[int, int]] = {}
        links: dict[str, str] = {}
        for place, folders, names in os.walk(self.folder):
            for name in [*names, *folders]:
                path = Path(place, name)
                inside = path.relative_to(self.folder).as_posix()
                if name.startswith(".") or name.endswith(".tmp"):
                    continue
                if path.is_symlink():
                    links[inside] = os.readlink(path)
                elif name in names and (state := self._state(inside)):
                    states[inside] = state
            folders[:] = [name for name in folders if not name.startswith(".") and not name.endswith(".tmp")]
        return states, links

    def _state(self, name: str) -> tuple[int, int] | None:
        try:
            state = (self.folder / name).stat()
        except FileNotFoundError:
            return None
        return state.st_size, state.st_mtime_ns


def _order(name: str) -> int:
    if name.endswith(LOGS):
        return 0
    return 2 if name.rpartition("/")[2] == "manifest.json" else 1
