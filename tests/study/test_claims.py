"""The ledger of claims is what the studies found, and every claim says what it tests and whose it is."""

from __future__ import annotations

import pytest

from benchmarks.studies.claims import HERE, PAGE, STUDIES, added, arms, judged, page
from encoderlab.study.file import read

FOUND = {"by": "loss", "amount": 1e13, "seeds": 3, "difference": 0.2, "low": 0.1, "high": 0.3, "needed": 4}


def test_the_page_is_what_was_found() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m benchmarks.studies.claims"
    assert set(STUDIES) == {path.stem for path in HERE.glob("*.yaml") if read(path)[0].claims}


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_names_its_source(name: str) -> None:
    study, _ = read(HERE / f"{name}.yaml")
    assert study.claims and all(claim.text and claim.source for claim in study.claims)


def test_what_is_judged() -> None:
    assert judged(FOUND | {"verdict": "holds"}) == "| 1e+13, 3 | loss +0.2 (+0.1 to +0.3) | **holds** |"
    told = judged(FOUND | {"by": "blimp", "verdict": "cannot be told at this budget"})
    assert told == "| 1e+13, 3 | blimp +20 (+10 to +30) | cannot be told; 4 seeds, 8.0e+13 |"


def test_every_arm_has_its_number_of_seeds() -> None:
    cells = [
        {"arm": arm, "amount": 1e13, "status": "done", "scores": {"loss": 5.0 + seed}, "numbers": {"tokens": 2e6}}
        for arm, seeds in (("one", 3), ("two", 2))
        for seed in range(seeds)
    ]
    *_, one, two = arms({"cells": cells, "tuning": []})
    assert one.startswith("| one | 3 | 2.00 M | 6 ± ") and two.startswith("| two | 2 | 2.00 M | 5.5 ± ")


def test_what_pretraining_adds() -> None:
    def cell(arm: str, amount: float, score: float) -> dict[str, object]:
        scores = {"loss": 5.0, "sst2": score, "cola": 0.1}
        return {"arm": arm, "amount": amount, "status": "done", "scores": scores, "details": {"sst2": {}, "cola": {}}}

    found = [cell("one", 1e13, 0.9), cell("one", 1e14, 0.6), cell("one", 1e14, 0.7), cell("two", 1e14, 0.5)]
    table = added({"cells": found}, {"cells": [cell("one", 1, 0.7), cell("two", 1, 0.3)]})
    assert table[-2:] == [
        "| arm | sst2 | cola | all 2 |\n|---|---:|---:|---:|",
        "| one | 65.0 (-5.0) | 10.0 (+0.0) | 37.5 (-2.5) |",  # of the other there is one seed
    ]
