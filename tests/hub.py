"""A stand-in of the Hugging Face Hub on this machine: the endpoints that ``huggingface_hub`` asks to read and to write
models, and to read data sets (``datasets/ORG/NAME``), over HTTP, with the faults that a test gives it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LARGE = (".safetensors", ".bin", ".parquet")
TOKEN = "hf_of_a_test"


@dataclass
class Repository:
    """Files by commit, commits by revision."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: dict[str, bytes], revision: str = "main") -> str:
        text = "".join(f"{name} {hashlib.sha256(data).hexdigest()}\n" for name, data in sorted(files.items()))
        sha = hashlib.sha1(f"{len(self.commits)}\n{text}".encode()).hexdigest()
        self.commits[sha] = files
        self.revisions[revision] = sha
        return sha


@dataclass
class Hub:
    """The state of the stand-in.

    Attributes:
        asked: every request, as ``"GET /path"``.
        damage: changes the bytes of a file on their way out.
        sent: bytes of files that were sent.
        cut: how often the connection breaks in the middle of a file of weights.
        status: answers everything with this error instead.
        refuses: uploads by this account, with 403.
    """

    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    damage: Callable[[str, bytes], bytes] = lambda name, data: data
    sent: int = 0
    cut: int = 0
    status: int | None = None
    refuses: str | None = None

    def add(self, name: str, folder: Path, **kind: bool) -> str:
        """Put the files of a folder into the main branch of a model or a data set; returns the commit."""
        repository = self.repositories.setdefault(name, Repository(**kind))
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return repository.commit(files)


def blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *words: Any) -> None:
        pass

    def answer(self, status: int, body: Any = b"", head: bool = False, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not head:
            self.wfile.write(data)

    def fail(self, status: int, code: str = "", message: str = "") -> None:
        self.answer(status, {"error": message}, head=self.command == "HEAD", X_Error_Code=code, X_Error_Message=message)

    def handle_request(self) -> None:
        hub, place = self.hub, urlsplit(self.path)
        path = unquote(place.path)
        hub.asked.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if hub.status is not None:
            return self.fail(hub.status, message="the stand-in is told to fail")
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.command in ("POST", "PUT"):
            return self.write(path, body) if known or path.startswith("/lfs/") else self.fail(401, message="no token")
        path = path.replace("/api/models/", "/api/", 1)
        match = re.fullmatch(r"/api/((?:datasets/)?[^/]+/[^/]+)(?:/revision/(.+))?", path)
        tree = re.fullmatch(r"/api/((?:datasets/)?[^/]+/[^/]+)/tree/([^/]+)(?:/(.+))?", path)
        file = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/(refs/pr/\d+|[^/]+)/(.+)", path)
        found = tree or match or file
        repository = hub.repositories.get(found[1]) if found else None
        if found is None or repository is None or repository.private and not known:
            return self.fail(401 if not known else 404, "RepoNotFound", "Repository not found")
        sha = repository.revisions.get(found[2] or "main", found[2])
        if sha not in repository.commits:
            return self.fail(404, "RevisionNotFound", "Invalid rev id")
        if repository.gated and not known and (file or not found[1].startswith("datasets/")):
            return self.fail(401, "GatedRepo", "Access to model is restricted")
        if tree:
            entries = self.listed(repository.commits[sha], tree[3], "recursive=true" in place.query.lower())
            return self.answer(200, entries) if entries else self.fail(404, "EntryNotFound", "Entry not found")
        if match:
            return self.answer(200, self.about(match[1], repository, sha))
        assert file is not None
        return self.send(file[3], repository.commits[sha], sha)

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def about(self, name: str, repository: Repository, sha: str) -> dict[str, Any]:
        files: list[dict[str, Any]] = []
        for path, data in repository.commits[sha].items():
            one: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": blob(data)}
            if path.endswith(LARGE):
                one["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            files.append(one)
        return {"id": name, "modelId": name, "sha": sha, "private": repository.private, "siblings": files}

    def listed(self, files: dict[str, bytes], folder: str | None, deep: bool) -> list[dict[str, Any]]:
        """The entries of a folder, or of all below it."""
        start = f"{folder}/" if folder else ""
        entries: dict[str, dict[str, Any]] = {}
        for path, data in files.items():
            parts = path.removeprefix(start).split("/")
            if not path.startswith(start):
                continue
            for depth in range(1, len(parts)):
                name = start + "/".join(parts[:depth])
                entries[name] = {"type": "directory", "path": name, "size": 0, "oid": blob(name.encode())}
            entries[path] = {"type": "file", "path": path, "size": len(data), "oid": blob(data)}
            if path.endswith(LARGE):
                hashed = hashlib.sha256(data).hexdigest()
                entries[path]["lfs"] = {"oid": hashed, "size": len(data), "pointerSize": 130}
        return [entry for name, entry in entries.items() if deep or "/" not in name.removeprefix(start)]

    def send(self, name: str, files: dict[str, bytes], sha: str) -> None:
        if name not in files:
            return self.fail(404, "EntryNotFound", "Entry not found")
        data = files[name]
        etag = hashlib.sha256(data).hexdigest() if name.endswith(LARGE) else blob(data)
        headers = {"ETag": f'"{etag}"', "X_Repo_Commit": sha, "Accept_Ranges": "bytes"}
        sent = self.hub.damage(name, data)
        if self.command == "HEAD":
            return self.answer(200, data, head=True, **headers)
        match = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        sent = sent[: int(match[2]) + 1] if match and match[2] else sent
        self.hub.sent += len(sent) - start
        if self.hub.cut and name.endswith(LARGE):
            self.hub.cut -= 1
            self.send_response(206 if start else 200)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(sent) - start))
            self.end_headers()
            self.wfile.write(sent[start : start + (len(sent) - start) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return None
        return self.answer(206 if match else 200, sent[start:], **headers)

    def write(self, path: str, body: bytes) -> None:
        hub = self.hub
        if path.startswith("/lfs/"):
            oid = path.removeprefix("/lfs/")
            if hashlib.sha256(body).hexdigest() != oid:
                return self.fail(422, message="wrong content")
            hub.stored[oid] = body
            return self.answer(200)
        data = json.loads(body) if not path.endswith(("/commit/main",)) else None
        if path == "/api/repos/create":
            assert data is not None
            name = f"{data['organization']}/{data['name']}" if data.get("organization") else f"me/{data['name']}"
            if hub.refuses == name.split("/")[0]:
                return self.fail(403, message="You don't have the rights to create a model under this namespace")
            if name in hub.repositories:
                return self.answer(409, {"error": "exists", "url": f"{hub.endpoint}/{name}"})
            private = bool(data.get("private") or data.get("visibility") == "private")
            hub.repositories[name] = Repository(private=private)
            hub.repositories[name].commit({".gitattributes": b""})
            return self.answer(200, {"url": f"{hub.endpoint}/{name}", "name": name, "id": name})
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            assert data is not None
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(LARGE) else "regular",
                    "shouldIgnore": False,
                }
                for one in data["files"]
            ]
            return self.answer(200, {"files": files})
        if path.endswith(".git/info/lfs/objects/batch"):
            assert data is not None
            objects = [
                {**one, "actions": {"upload": {"href": f"{hub.endpoint}/lfs/{one['oid']}"}}} for one in data["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            repository = hub.repositories[match[1]]
            whole = dict(repository.commits[repository.revisions["main"]])
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    whole[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    whole[value["path"]] = hub.stored[value["oid"]]
            sha = repository.commit(whole)
            return self.answer(
                200, {"success": True, "commitOid": sha, "commitUrl": f"{hub.endpoint}/{match[1]}/commit/{sha}"}
            )
        return self.fail(404, message=f"the stand-in does not know {path}")


@contextmanager
def standing_in() -> Iterator[Hub]:
    """The stand-in, at :attr:`Hub.endpoint` while the context lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def hub_of_this_process(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hub]:
    """The stand-in as this process's Hub, with an empty cache in ``folder`` and no token."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        patch.delenv(name, raising=False)
    with standing_in() as hub:
        files = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the store behind the Hub has a protocol of its own
        patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
        patch.setattr("time.sleep", lambda seconds: None)  # between trials
        yield hub
