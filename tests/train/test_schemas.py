"""Files of a run that were changed to other types are named; nothing that reads them fails in another way."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderlab.errors import DataError, EncoderlabError
from encoderlab.measure import runs
from encoderlab.train import doctor, schemas
from tests.train.test_doctor import line

RECIPE = {
    "name": "bert-mini",
    "model": {"encoder": {"vocab": 8192, "layers": 4, "width": 256, "norm": "post"}},
    "objective": {"kind": "mlm", "masking": {"rate": 0.15, "most": None}},
    "optim": {"kind": "adamw", "lr": 1e-3},
    "schedule": {"kind": "bert", "warmup": 0.1},
    "budget": {"amount": 100.0, "unit": "steps"},
    "clip": 1.0,
    "seed": 1,
}
PROVENANCE = {
    "sessions": [
        {
            "started": "2026-11-28T13:10:56+0000",
            "command": ["encoderlab", "pretrain", "bert-mini"],
            "versions": {"torch": "2.13.0"},
            "commit": None,
            "data": {"corpus": "aba6"},
            "models": {},
            "hardware": {"cpu": "x", "cores": 2, "threads": 1, "accelerators": ["y"], "system": "z"},
        }
    ]
}
LINES = [
    *(line(10 * i, 9.0 - i / 10, waiting=0.1) for i in range(1, 16)),
    {"split": "valid", "step": 150, "losses": {"mlm": 7.6}, "bits_per_byte": {"mlm": 2.9}, "accuracy": {"mlm": 0.1}},
]
FILES: dict[str, Any] = {"recipe.json": RECIPE, "provenance.json": PROVENANCE, "metrics.jsonl": LINES}
OTHERS = st.sampled_from([None, "x", "", 5, -1.5, True, [], {}, [1], [None], {"a": 1}, math.inf, math.nan, 10**30])


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*at, key))


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, value in files.items():
        text = "".join(json.dumps(x) + "\n" for x in value) if name == "metrics.jsonl" else json.dumps(value)
        (folder / name).write_text(text)


PLACES = [(name, at) for name, value in FILES.items() for at in places(value) if at]


@settings(max_examples=150)
@given(place=st.sampled_from(PLACES), other=OTHERS, leave_out=st.booleans())
def test_values_of_other_types(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[str, tuple[Any, ...]], other: Any, leave_out: bool
) -> None:
    (name, at), files, folder = place, copy.deepcopy(FILES), tmp_path_factory.mktemp("run")
    inside = files[name]
    for key in at[:-1]:
        inside = inside[key]
    if leave_out:
        del inside[at[-1]]
    else:
        inside[at[-1]] = other
    write(folder, files)
    for call in (lambda: runs.report([folder]), lambda: doctor.examine(folder)):
        try:
            call()
        except EncoderlabError as error:
            assert str(folder / name) in str(error) and "\n" not in str(error)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    write(tmp_path, FILES | {"provenance.json": {"sessions": [{"hardware": {"cores": "two"}}]}})
    with pytest.raises(DataError, match=r"provenance.json: is damaged \(sessions.0.hardware.cores: input should be a"):
        runs.report([tmp_path])
    write(tmp_path, FILES | {"recipe.json": RECIPE | {"budget": {"amount": 0}}})
    with pytest.raises(DataError, match=r"recipe.json: is damaged \(budget.amount: .*\); restore it"):
        doctor.examine(tmp_path)


def test_lines_of_metrics() -> None:
    assert schemas.problem_of_line(line(1, 9.0)) is None
    assert schemas.problem_of_line(line(1, 9.0) | {"losses": {"mlm": None}, "grad_norm": None}) is None  # not finite
    assert schemas.problem_of_line(line(1, 9.0) | {"losses": {"other": 1.0}}) == "counts has no other"
    assert schemas.problem_of_line([]) is not None
