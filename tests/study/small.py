"""A small study, and an executor without processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from encoderlab.errors import Diverged
from encoderlab.execution.local import Ended, Job
from encoderlab.files import finite
from encoderlab.sealed import write_record
from encoderlab.study import cell

SMALL: dict[str, Any] = {
    "corpus": "corpus",
    "recipe": "roberta-tiny",
    "budget": {"steps": 4},
    "seeds": 2,
    "set": {"phases": [{"length": 32, "rows": 4}], "evaluation.rows": 8},
    "tune": {"factors": [1, 2], "share": 0.5},
    "measures": [{"kind": "pairs", "data": ["pairs.txt"], "size": 8}],
    "arms": {"few": None, "many": {"set": {"objective.masking.rate": 0.4}}},
}


def written(place: Path, **changes: Any) -> Path:
    """The small study with some keys changed; None removes one, but for ``tune``."""
    fields = {key: value for key, value in {**SMALL, **changes}.items() if value is not None or key == "tune"}
    path = place / "study.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


class InProcess:
    """An executor without processes: stops after ``most`` jobs; the ones in ``diverging`` fail; the ones called as in
    ``killed`` are killed as often as they are there.
    """

    def __init__(self, most: int = 10**6, diverging: str = "nothing", killed: Sequence[str] = ()) -> None:
        self.most, self.diverging, self.killed = most, diverging, list(killed)
        self.done: list[str] = []

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Ended]:
        for job in jobs:
            if len(self.done) == self.most:
                return
            self.done.append(job.name)
            if job.name in self.killed:
                self.killed.remove(job.name)
                yield Ended(job=job, code=-signal.SIGKILL)
                continue
            spec, result = map(Path, job.arguments)
            try:
                if self.diverging in job.name:
                    raise Diverged("the gradient is not finite")
                found = cell.run(json.loads(spec.read_text()))
            except Diverged as error:
                found = {"status": "failed", "error": str(error), "code": error.code}
            write_record(result, json.loads(json.dumps(finite(found))))
            yield Ended(job=job, code=0)


def without_clock(found: dict[str, Any]) -> dict[str, Any]:
    """The results that may not depend on when they were computed."""
    plain: dict[str, Any] = json.loads(json.dumps(finite(found)))
    for one in plain["cells"]:
        for name in ("seconds", "tokens_per_second", "memory"):
            one.get("numbers", {}).pop(name, None)
    return plain
