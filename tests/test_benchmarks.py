"""The commands of ``make benchmarks`` are commands, and the corpus that they run on can be built."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import CORPUS, tables
from encoderlab.cli import main
from encoderlab.commands import bench

TABLES = tables("corpora/none")


@pytest.mark.parametrize("table", TABLES)
def test_the_commands_of_a_table_are_commands(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for verb in {words[0] for words in TABLES[table]}:

        @functools.wraps(getattr(bench, verb))
        def record(*_: Any, verb: str = verb, **given: Any) -> dict[str, Any]:
            called.append(verb)
            return {}

        monkeypatch.setattr(bench, verb, record)
    for words in TABLES[table]:
        assert main(["bench", *words, "--json"]) == 0
    assert called == [words[0] for words in TABLES[table]]


@pytest.mark.slow
def test_the_corpus_is_built(tmp_path: Path) -> None:
    assert main([*CORPUS, "--out", str(tmp_path / "corpus")]) == 0
