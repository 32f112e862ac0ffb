"""The page of `encoderlab serve` against axe-core's rules (WCAG 2 A and AA, best practices), wide, narrow, light, dark.

    npm install axe-core
    python -m benchmarks.clients.accessibility --axe node_modules/axe-core/axe.min.js --out FILE

One tiny model of each kind, with random weights; explanations are open. The file has the violations and the number of
rules that passed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from encoderlab.nn.heads import Classification, Span, Tagging
from tests.deploy.chromium import browser
from tests.deploy.test_serve import serving, with_head
from tests.tasks.tiny import model as tiny

LOOKS = ((1400, False), (1400, True), (400, False), (400, True))
OPEN = "for (const why of document.querySelectorAll('.why')) why.open = true"
RULES = """axe.run(document).then((found) => ({
  version: found.testEngine.version,
  passed: found.passes.length,
  violations: found.violations.map((one) => ({
    rule: one.id, what: one.help, where: one.nodes.map((node) => node.html),
  })),
  unsure: found.incomplete.map((one) => one.id),
}))"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axe", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    heads: dict[str, Any] = {
        "labels": with_head(Classification(labels=3), ("good", "bad", "so-so")),
        "tags": with_head(Tagging(labels=3), ("O", "B-CITY", "I-CITY")),
        "answers": with_head(Span(), ()),
        "masks": None,
    }
    found: dict[str, Any] = {}
    with browser() as page:
        for name, predictor in heads.items():
            model = tiny("bert-tiny").eval() if predictor is None else predictor.model
            with serving(model, predictor) as asked:
                for width, dark in LOOKS:
                    page.open(f"http://127.0.0.1:{asked.port}/", width=width, dark=dark)
                    page.wait("document.querySelector('.result')?.children.length")
                    page.run(OPEN)
                    page.wait("document.querySelector('.note')?.textContent")
                    page.run(given.axe.read_text(encoding="utf-8") + "; 1")
                    told = page.run(RULES)
                    version = told.pop("version")
                    found[f"{name}, {width}, {'dark' if dark else 'light'}"] = told
                    print(name, width, dark, json.dumps(told["violations"])[:600], told["unsure"], flush=True)
    given.out.write_text(json.dumps({"axe-core": version, "pages": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
