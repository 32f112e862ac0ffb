"""An exported folder in transformers.js in a headless Chromium, its vectors against those of ``encode``.

npm install @huggingface/transformers
encoderlab export MODEL FOLDER
python -m benchmarks.clients.browser FOLDER --node-modules node_modules --out FILE
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from benchmarks.clients.__main__ import TEXTS
from encoderlab.inference import encode
from encoderlab.interchange.load import load
from tests.deploy.chromium import browser

PAGE = """<!doctype html><html data-ready="no"><script type="module">
import { env, pipeline } from "/modules/@huggingface/transformers/dist/transformers.min.js";
env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "/models/";
env.backends.onnx.wasm.wasmPaths = "/modules/onnxruntime-web/dist/";
window.version = env.version;
window.vectors = async (texts) => {
  const pipe = await pipeline("feature-extraction", "folder", { dtype: "fp32", device: "wasm" });
  const found = [];
  for (const text of texts) found.push((await pipe(text, { pooling: "mean", normalize: true })).tolist()[0]);
  return found;
};
document.documentElement.dataset.ready = "yes";
</script></html>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--node-modules", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, browser() as page:
        place = Path(name)
        (place / "page.html").write_text(PAGE, encoding="utf-8")
        (place / "models").mkdir()
        (place / "models/folder").symlink_to(given.folder.resolve())
        (place / "modules").symlink_to(given.node_modules.resolve())
        server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=name))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.open(f"http://127.0.0.1:{server.server_port}/page.html")
        page.run(f"(window.found = null, vectors({json.dumps(TEXTS)}).then(v => {{ window.found = v }}), 1)")
        page.wait("window.found", seconds=240)
        theirs, version, agent = page.run("window.found"), page.run("version"), page.run("navigator.userAgent")
        server.shutdown()
    model = load(given.folder)
    ours = encode(model, TEXTS)
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    record = {
        "transformers.js": version,
        "browser": agent.split("Chrome/")[-1].split()[0],
        "family": model.config.family,
        "texts": len(TEXTS),
        "difference": float(np.abs(np.array(theirs) - ours).max()),
    }
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
