"""A class name means one thing in the whole project."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import encoderlab

SOURCE = Path(encoderlab.__file__).parent
TWINS = SOURCE / "nn" / "kernels"  # a kernel has its name on every device


def test_no_two_classes_have_one_name():
    places: dict[str, set[Path]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        home = path.relative_to(SOURCE)
        if path.is_relative_to(TWINS) and path.parent != TWINS:
            home = TWINS.relative_to(SOURCE) / path.name  # cpu/attention.py and gpu/attention.py
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(home)
    twice = {name: sorted(map(str, homes)) for name, homes in places.items() if len(homes) > 1}
    assert not twice, f"{twice}: rename all but one"
