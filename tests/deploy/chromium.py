"""A headless Chromium, spoken to through a pair of pipes in the DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = """
    --headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --disable-dev-shm-usage
    --disable-background-networking --disable-component-update --remote-debugging-pipe
""".split()


class Page:
    """One page of a browser. ``events`` are all that the browser told about it."""

    session: str | None = None

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes, self._rest, self._count = reads, writes, b"", 0
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """The result of a command."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for found in self._messages(1.0):
                if found.get("id") != self._count:
                    self.events.append(found)
                    continue
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                return found["result"]
        raise TimeoutError(method)

    def _messages(self, wait: float) -> list[dict[str, Any]]:
        if select.select([self._reads], [], [], wait)[0]:
            self._rest += os.read(self._reads, 2**20)
        *whole, self._rest = self._rest.split(b"\0")
        return [json.loads(one) for one in whole]

    READY = "document.documentElement?.dataset.ready === 'yes'"

    def open(self, url: str, *, width: int = 1400, height: int = 1000, dark: bool = False, ready: str = READY) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Page.navigate", url=url)
        self.wait(ready)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", script))
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"!!({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition}; the page says: {self.run('document.body.innerText')[:1500]}")
            time.sleep(0.05)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field, as a reader does who types it."""
        self.run(f"(() => {{ const box = document.querySelector({selector!r}); box.focus(); box.select(); }})()")
        self.send("Input.insertText", text=text)

    def enter(self) -> None:
        """Press the enter key."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.send("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.send("Input.dispatchKeyEvent", type="keyUp", **key)

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({selector!r}).click()")

    def picture(self, path: Path) -> None:
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """What the console and the browser's log say against the page."""
        self.run("1")
        found = []
        for event in self.events:
            inside = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(inside["exceptionDetails"])[:300])
            elif event["method"] == "Log.entryAdded" and inside["entry"]["level"] == "error":
                found.append(inside["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and inside["type"] in ("error", "warning"):
                found.append(json.dumps(inside["args"])[:300])
        return found

    def requested(self) -> list[str]:
        """The addresses of all requests."""
        asked = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in asked]


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A page of a new browser; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium on this machine")
    to_browser, writes = os.pipe()
    reads, from_browser = os.pipe()

    def connect() -> None:  # the browser reads from 3 and writes to 4
        os.dup2(to_browser, 13)
        os.dup2(from_browser, 14)
        os.dup2(13, 3)
        os.dup2(14, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        running = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Page(reads, writes)
        finally:
            running.kill()
            running.wait()
            os.close(reads)
            os.close(writes)
