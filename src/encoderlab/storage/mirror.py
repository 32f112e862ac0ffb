"""Outputs at URLs: written to a local folder, which is mirrored to the URL while it grows and restored from there.

At every moment, the mirrored folder is as complete as a local run's after a crash, and every file in it is whole. This
follows from the order of an upload. The local files are listed first. Then logs are sent (``*.jsonl``, ``*.log``),
so that they are never behind a checkpoint; then other files by their age; then each ``manifest.json``, which completes
a checkpoint or a corpus; then links such as ``latest``, as files with their target; then ``mirror.json``, the list of
all. Files that were deleted here are deleted at the URL last. Hidden and temporary files are not sent. A checkpoint
without its manifest is not restored.

Only one process mirrors to a URL. Its marker there, ``writer.json``, is renewed while it works.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from encoderlab.errors import ConfigError, DataError, EncoderlabError
from encoderlab.files import held_file, is_running, made_cache_folder, read_json, replace_file, write_json
from encoderlab.sealed import Seal
from encoderlab.storage import places
from encoderlab.storage.streams import open_file

log = logging.getLogger(__name__)

INDEX, WRITER, MANIFEST = "mirror.json", "writer.json", "manifest.json"
EVERY = 20.0  # seconds between two uploads
GONE = 600.0  # seconds after which a marker that is not renewed expires
LOGS = (".jsonl", ".log")
_SEAL = Seal("sha256", (", ", ": "))  # of the index
_KEPT = "%s; what was made is kept in %s, and sent with the next upload"
Entry = tuple[int, int] | str  # of a file: its size and its time of change; of a link: its target


def working_place(url: str) -> Path:
    """The local path where the files for ``url`` are made."""
    name = url.rstrip("/").rpartition("/")[2] or "out"
    return made_cache_folder("storage", "work", hashlib.sha256(url.encode()).hexdigest()[:24]) / name


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
        if path.is_dir():
            raise ConfigError(
                f"{url}: its name is that of a file, and a folder was made, which is kept in {path}; give a name "
                f"without {path.suffix}"
            )
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
            with mirror.followed():
                yield folder
        finally:
            mirror.release()


class Mirror:
    """A local folder and its copy at a URL."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._state_file = folder.with_name(f"{folder.name}.mirror.json")  # which upload the folder continues
        self._id = uuid.uuid4().hex
        self._signed = 0.0  # when the marker was written
        self._sent: dict[str, Entry] = {}  # what is at the URL
        self._restored: dict[str, Entry] | None = None  # the local folder as it was fetched, until something changes
        self._indexed: dict[str, Entry] = {}  # what the list at the URL says
        self._pushes: list[str | None] = []  # of which one wrote that list: the last whole upload, and later attempts

    def claim(self) -> None:
        """Write a marker at the URL: this process writes there.

        Raises:
            ConfigError: another process does.
        """
        self._refuse_other()
        self._sign()
        self._refuse_other()  # two at the same moment: the later marker wins, the other process stops here

    def release(self) -> None:
        """Remove the marker of :meth:`claim`, if no other process has replaced it."""
        with contextlib.suppress(DataError):
            if (sign := self._read_sign()) is not None and sign["id"] == self._id:
                places.delete(places.join(self.url, WRITER))

    def _read_sign(self) -> dict[str, Any] | None:
        try:
            sign = json.loads(places.read_bytes(places.join(self.url, WRITER)))
            return {"id": sign["id"], "host": sign["host"], "pid": int(sign["pid"]), "time": float(sign["time"])}
        except (places.Absent, ValueError, KeyError, TypeError):
            return None

    def _refuse_other(self) -> None:
        sign = self._read_sign()
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

    def restore(self) -> None:
        """Make the local folder equal to the remote one, unless it is already equal or newer.

        Raises:
            DataError: it cannot be read.
        """
        state = read_json(self._state_file) if self._state_file.exists() else {}
        index = self._read_index()
        files = {name: (entry["size"], entry["time"]) for name, entry in index["files"].items()}
        self._indexed = files | index["links"]
        self._pushes = [index["push"]]
        emptied = bool(files) and not self._listing()  # somebody freed the space of the cache
        if index["push"] in state.get("pushes", []) and not emptied:  # both are None if no upload was ever complete
            restored = state.get("restored", {})
            self._restored = {name: tuple(one) if isinstance(one, list) else one for name, one in restored.items()}
        else:
            self._download(index["links"])
            self._restored = self._listing()
            # Last: without it, local files are not trusted.
            write_json(self._state_file, {"pushes": self._pushes, "restored": self._restored})
        self._sent = self._indexed | self._restored

    def _download(self, links: Mapping[str, str]) -> None:
        """Replace the local folder by the remote one."""
        names: set[str] = set()
        with contextlib.suppress(places.Absent):
            names = {name.removeprefix(self.url.rstrip("/") + "/") for name in places.find(self.url)} - {INDEX, WRITER}
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in sorted(names - links.keys()):
            parent = name.rpartition("/")[0]
            if Path(parent).parent.name == "checkpoints" and f"{parent}/{MANIFEST}" not in names:
                continue  # its upload was interrupted
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_file(places.join(self.url, name)) as source, replace_file(path) as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            self._stay()
        for name, target in links.items():
            if (self.folder / name).parent.joinpath(target).exists():
                (self.folder / name).symlink_to(target)
        if names:
            log.info("%s: %d files restored", self.url, len(names))

    def _read_index(self) -> dict[str, Any]:
        """The list of all at the URL, empty if there is none."""
        place = places.join(self.url, INDEX)
        if not places.exists(place):
            return {"push": None, "files": {}, "links": {}}
        try:
            return _SEAL.opened(json.loads(places.read_bytes(place)))
        except (ValueError, RecursionError):
            raise DataError(f"{place}: is damaged; delete it to continue from the other files there") from None

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """A context in which changes are uploaded every :data:`EVERY` seconds and at the end, even after an error."""
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(over,), name="mirror", daemon=True)
        thread.start()
        failed = True
        try:
            yield
            failed = False
        finally:
            over.set()
            thread.join()
            try:
                self.push()
            except (EncoderlabError, OSError) as error:
                if not failed:
                    raise
                log.warning(_KEPT, error, self.folder)  # the error of the work itself matters more

    def _follow(self, over: threading.Event) -> None:
        while not over.wait(EVERY):
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
        local = self._listing()
        gone = self._sent.keys() - local.keys()
        self._stay()
        if local == self._restored:
            return  # as after a command that was refused, perhaps because of files of something else
        self._restored = None
        if local == self._indexed and not gone:
            return
        self._refuse_other()
        changed = [name for name, entry in local.items() if self._sent.get(name) != entry]
        for name in sorted(changed, key=lambda name: _order(name, local[name])):
            self._stay()
            self._send(name, local[name])
        self._write_index({name: entry for name, entry in self._sent.items() if name in local})
        for name in sorted(gone, key=lambda name: Path(name).name != MANIFEST):  # first: it completes a checkpoint
            places.delete(places.join(self.url, name))
            del self._sent[name]

    def _send(self, name: str, entry: Entry) -> None:
        path, place = self.folder / name, places.join(self.url, name)
        if isinstance(entry, str):
            places.write_bytes(place, entry.encode())
        else:
            try:
                places.upload(path, place)
            except DataError:
                if path.exists():
                    raise
                return  # deleted meanwhile, as old checkpoints are
        self._sent[name] = entry  # as it was listed: later changes are uploaded the next time

    def _write_index(self, entries: Mapping[str, Entry]) -> None:
        push = uuid.uuid4().hex
        links = {name: entry for name, entry in entries.items() if isinstance(entry, str)}
        files = {name: {"size": entry[0], "time": entry[1]} for name, entry in entries.items() if name not in links}
        self._pushes.append(push)  # first: an error does not say whether the list has arrived
        write_json(self._state_file, {"pushes": self._pushes})
        index = _SEAL.sealed({"push": push, "files": files, "links": links})
        places.write_bytes(places.join(self.url, INDEX), json.dumps(index, indent=1).encode())
        self._pushes, self._indexed = [push], dict(entries)

    def _listing(self) -> dict[str, Entry]:
        """The local files and links that are sent."""
        entries: dict[str, Entry] = {}
        for place, folders, names in os.walk(self.folder):
            folders[:] = filter(_is_sent, folders)
            for name in filter(_is_sent, [*names, *folders]):
                path = Path(place, name)
                inside = path.relative_to(self.folder).as_posix()
                if path.is_symlink():
                    entries[inside] = os.readlink(path)
                elif name in names:
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        state = path.stat()
                        entries[inside] = state.st_size, state.st_mtime_ns
        return entries


def _is_sent(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(".tmp")


def _order(name: str, entry: Entry) -> tuple[int, int, str]:
    """The place of an entry in an upload."""
    if isinstance(entry, str):
        return 3, 0, name
    return 0 if name.endswith(LOGS) else 2 if Path(name).name == MANIFEST else 1, entry[1], name
