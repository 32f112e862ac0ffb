"""The commands of the README run, in order, on a small corpus and with few steps, and after them docs/python.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from encoderlab.cli import main

README = Path(__file__).parents[1] / "README.md"
PYTHON = README.parent / "docs" / "python.md"
# What is changed to save time.
SHORTER = {"8000": "2000", "--steps 2000": "--steps 12", "--seeds 3": "--seeds 2 --epochs 1"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the README assumes: notes, reviews, texts."""
    from pydoc_data import topics

    (tmp_path / "notes").mkdir()
    for name in sorted(topics.topics)[:40]:
        (tmp_path / "notes" / f"{name}.txt").write_text(topics.topics[name], encoding="utf-8")
    lines = [f"{'a fine' if n % 2 else 'a dull'} book about number {n},{'good' if n % 2 else 'bad'}" for n in range(80)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    (tmp_path / "texts.txt").write_text("a fine story\na dull one\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in {"PHASES__0__ROWS": "8", "PHASES__0__LENGTH": "48", "EVALUATION__ROWS": "16"}.items():
        monkeypatch.setenv(f"ENCODERLAB_{name}", value)
    return tmp_path


def blocks(language: str, page: Path = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def test_the_tour_of_the_readme_runs(place, capsys):
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) >= 10
    for command in commands:
        for long, short in SHORTER.items():
            command = command.replace(long, short)
        program, *words = shlex.split(command)
        assert program == "encoderlab"
        code = main(words)
        assert code == 0, f"{command}\n{capsys.readouterr().err}"
    for path in ("runs/notes/model/model.safetensors", "runs/notes/report.html", "runs/reviews/report.html"):
        assert (place / path).stat().st_size > 1000
    assert len((place / "labels.jsonl").read_text().splitlines()) == 2
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), {})
    names: dict[str, Any] = {}
    for block in blocks("python", PYTHON):
        exec(compile(block, str(PYTHON), "exec"), names)
    assert names["predictions"].values[0] in ("good", "bad") and "loss" in names["outcome"].metrics
    assert 0 <= names["result"].scores["dev"]["accuracy"] <= 1


def test_the_first_screen_names_the_two_commands():
    first = README.read_text(encoding="utf-8").split("## ")[0]
    assert "make quickstart" in first and "make test" in first
    targets = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert "\nquickstart:" in targets and "\ntest:" in targets
