"""The small study: its folder, and one that was run whole."""

from __future__ import annotations

from pathlib import Path
from pydoc_data import topics
from typing import Any

import pytest

from encoderlab.study.page import render
from encoderlab.study.plan import StudyPlan
from encoderlab.study.run import record, run
from tests.corpus.corpora import build_topics
from tests.study.small import InProcess, written


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    build_topics(folder, 30)
    words = topics.topics["assert"].split()
    lines = [" ".join(part) for n in range(9) for part in (words[n : n + 3], words[n : n + 3][::-1])]
    (folder / "pairs.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="package")
def whole(place: Path) -> tuple[dict[str, Any], str, list[str]]:
    """An uninterrupted study: its record, its page, and its jobs."""
    execute = InProcess()
    results = run(StudyPlan.read(written(place)), place / "whole", execute)
    return record(results), render(results), execute.done
