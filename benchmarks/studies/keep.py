"""Keep what a study found in benchmarks/studies/found/NAME, without paths of this machine, so any checkout continues.

python -m benchmarks.studies.keep NAME
"""

from __future__ import annotations

import sys
from pathlib import Path

from encoderlab.sealed import read_record, write_record

HERE = Path(__file__).parent
RUNS = HERE.parents[1] / "runs" / "studies"


def keep(out: Path, found: Path) -> int:
    """Copy the results of the study in ``out`` and what identifies their cells; returns their number."""
    results = sorted((out / "results").rglob("*.json"))
    for path in results:
        cell = path.relative_to(out / "results")
        spec = read_record(out / "specs" / cell)
        kept = {name: spec[name] for name in ("recipe", "measures", "threads")}
        for place in (found / "specs" / cell, found / "results" / cell):
            place.parent.mkdir(parents=True, exist_ok=True)
        write_record(found / "specs" / cell, {**kept, "corpus": {"content": spec["corpus"]["content"]}})
        write_record(found / "results" / cell, read_record(path))
    summary = out / "results.json"
    if summary.is_file():
        (found / "results.json").write_bytes(summary.read_bytes())
    return len(results)


if __name__ == "__main__":
    (name,) = sys.argv[1:]
    print(f"{keep(RUNS / name, HERE / 'found' / name)} results kept in {HERE / 'found' / name}")
