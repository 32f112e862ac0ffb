"""The page of `encoderlab serve` against axe-core's rules (WCAG 2 A and AA, best practices), wide, narrow, light, dark.

    npm install axe-core
    python -m benchmarks.clients.accessibility --axe node_modules/axe-core/axe.min.js --out FILE [--reports PAGE ...]

One tiny model of each kind, with random weights; explanations are open. Reports are pages that other verbs wrote. The
file has the violations and the number of rules that passed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from encoderlab.interchange.heads import CHOICES
from encoderlab.nn.heads import Classification, Span, Tagging
from tests.deploy.chromium import Page, browser
from tests.deploy.served import serving, with_head
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
    parser.add_argument("--reports", type=Path, nargs="*", default=())
    given = parser.parse_args()
    heads: dict[str, Any] = {
        "labels": with_head(Classification(labels=3), ("good", "bad", "so-so")),
        "tags": with_head(Tagging(labels=3), ("O", "B-CITY", "I-CITY")),
        "answers": with_head(Span(), ()),
        "options": with_head(Classification(labels=1), CHOICES),
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
                    page.wait("document.querySelector('.why').hidden || document.querySelector('.note')?.textContent")
                    found[f"{name}, {width}, {'dark' if dark else 'light'}"] = told(page, given.axe)
        for report in given.reports:
            for width, dark in LOOKS:
                page.open(report.resolve().as_uri(), width=width, dark=dark, ready="document.readyState === 'complete'")
                found[f"{report}, {width}, {'dark' if dark else 'light'}"] = told(page, given.axe)
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def told(page: Page, axe: Path) -> dict[str, Any]:
    """What the rules say of an open page."""
    page.run(axe.read_text(encoding="utf-8") + "; 1")
    found: dict[str, Any] = page.run(RULES)
    print(page.run("document.title"), json.dumps(found["violations"])[:600], found["unsure"], flush=True)
    return found


if __name__ == "__main__":
    main()
