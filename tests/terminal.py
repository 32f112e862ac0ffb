"""Commands as a user gives them, within this process."""

from __future__ import annotations

import json

import pytest

from encoderlab.cli import main
from encoderlab.commands.answers import ANSWERS, adapter


def messages(capsys: pytest.CaptureFixture[str], code: int, *words: object, program: str = "encoderlab") -> str:
    """What a command that ends with ``code`` says on standard error."""
    assert main(list(map(str, words)), program) == code
    return " ".join(capsys.readouterr().err.split())


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[dict, str]:
    """The result of a command, and what it said beside it."""
    code = main([*map(str, words), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found = json.loads(captured.out)
    verb = next((verb for size in (2, 1) if (verb := " ".join(map(str, words[:size]))) in ANSWERS), None)
    if verb is not None:
        adapter(verb).validate_python(found, strict=True)  # of every test that asks for JSON
    return found, " ".join(captured.err.split())
