"""Trials of every kind for a time: ``python -m tests.fuzz --minutes 60``, or ``make fuzz``.

A finding is printed with its kind and number, which repeat it: ``python -m tests.fuzz --only runs --number 17``. At the
end stands what was tried: kinds, counts, findings. Exit code 1 where there is a finding.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.kinds import KINDS
from tests.fuzz.world import prepare


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", choices=KINDS, action="append", help="kinds to try; all by default")
    parser.add_argument("--number", type=int, help="try this number alone")
    parser.add_argument("--seed", type=int, default=1, help="of the trials")
    options = parser.parse_args()
    kinds = {name: KINDS[name] for name in options.only or KINDS}
    counts, spent, findings = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0.0), []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        place = prepare(Path(scratch) / "prepared")
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end and not (options.number is not None and all(counts.values())):
            name = min(kinds, key=lambda kind: spent[kind])  # kinds share the time
            number, begin = counts[name] if options.number is None else options.number, time.monotonic()
            try:
                kinds[name](random.Random(f"{options.seed} {name} {number}"), place, Path(scratch) / "aside")
            except Exception as error:
                findings.append(f"{name} {number}: {type(error).__name__}: {error}")
                print("FINDING", findings[-1][:1500], flush=True)
            counts[name] += 1
            spent[name] += time.monotonic() - begin
    for name in kinds:
        failed = sum(finding.startswith(f"{name} ") for finding in findings)
        print(f"{name:<14}{counts[name]:>7} trials {failed:>5} findings {spent[name]:>7.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
