"""A model to adapt."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.model import build
from tests.adapt.small import LAW, TINY, WORDS, prose
from tests.tasks.tiny import write_vector_settings


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of general words, general text, and the text of a domain with words of its own."""
    folder = tmp_path_factory.mktemp("adapt")
    general, law = prose(WORDS, 60, 1), prose([*WORDS[:4], *LAW], 90, 2)
    (folder / "general.txt").write_text("\n\n".join(general))
    (folder / "law.txt").write_text("\n\n".join(law))
    letters = [" ".join(sorted(set("".join(LAW)))), *LAW[:1]]
    tokenizer = Tokenizer.train("wordpiece", [*general, *letters * 3], 110)
    build("bert-tiny", tokenizer=tokenizer, **TINY).save(folder / "model")
    write_vector_settings(folder / "model")
    rows = "".join(f"the {LAW[i % 2]} of {WORDS[i % 7]} {i},{LAW[i % 2]}\n" for i in range(60))
    (folder / "task.csv").write_text("text,label\n" + rows)
    (folder / "pairs.txt").write_text("the court of the house\nthe of house court the\n")
    return folder
