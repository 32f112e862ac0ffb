"""What `describe` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoderlab import cli, models
from encoderlab.model import build
from encoderlab.nn.heads import Classification


@pytest.mark.parametrize("family", models.FAMILIES.values(), ids=lambda family: family.name)
def test_words_about_a_family_have_no_marks_of_docstrings(family, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["describe", next(iter(family.sizes))]) == 0
    shown = capsys.readouterr().out
    assert "`" not in shown and "class:" not in shown and family.about.splitlines()[0][:40] in shown


def test_a_model_of_a_task_has_no_lm_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = build("bert-tiny")
    plain.save(tmp_path / "plain")
    plain.with_task(Classification(labels=2), ["a", "b"], seed=1).save(tmp_path / "tuned")
    for name, has in (("plain", True), ("tuned", False)):
        assert cli.main(["describe", str(tmp_path / name)]) == 0
        shown = capsys.readouterr().out
        assert ("LM head on 15% of tokens" in shown) == has and "with its heads" in shown and "pretraining" not in shown


@pytest.mark.parametrize("verb", ["describe", "pretrain"])
def test_a_name_next_to_the_list_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "bert-tiny", "--list"]) == 2
    assert "not 'bert-tiny' alone; leave one of them out" in " ".join(capsys.readouterr().err.split())
