"""What the command makes of its options before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest

from encoderlab.commands.pretrain import pretrain
from encoderlab.errors import ConfigError


def resolved(*assignments: str, name: str = "bert-base", **options: Any) -> Any:
    return pretrain(name, set_=list(assignments), dry_run=True, **options)["recipe"]


def test_a_published_warm_up_keeps_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert resolved(steps=1000)["schedule"]["warmup"] == 0.01
    assert "warm-up over 0.01" in capsys.readouterr().err


def test_a_warm_up_that_is_set_stays(capsys: pytest.CaptureFixture[str]) -> None:
    made = resolved("schedule.warmup=100", steps=1000)
    assert made["schedule"]["warmup"] == 100 and made["budget"]["amount"] == 1000
    assert "warm-up over" not in capsys.readouterr().err


def test_the_option_wins_over_a_budget_that_is_set() -> None:
    assert resolved("budget.amount=500", steps=1000)["budget"]["amount"] == 1000
    with pytest.raises(ConfigError, match="give one budget"):
        resolved(steps=1000, hours=1)


def test_a_dry_run_refuses_what_a_run_refuses() -> None:
    with pytest.raises(ConfigError, match="mask_vector and an LM head"):
        resolved("model.lm=null", "model.mask_vector=false", name="xlnet-mini")
    with pytest.raises(ConfigError, match="execution.micro_rows is -1; give at least 1"):
        resolved("execution.micro_rows=-1", name="bert-mini")


def test_a_dry_run_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    resolved(name="distilbert-tiny")
    assert "FLOPs per token, without the teacher" in capsys.readouterr().out
    resolved(name="bert-tiny")
    assert "without the teacher" not in capsys.readouterr().out


def test_a_family_cannot_be_renamed() -> None:
    with pytest.raises(ConfigError, match="model.family 'xlnet' would rename the architecture of bert-base"):
        resolved("model.family=xlnet")
    with pytest.raises(ConfigError, match="generator.family 'bert' would rename"):
        resolved("generator.family=bert", name="electra-tiny")
    assert resolved("model.family=bert")["model"]["family"] == "bert"


@pytest.mark.parametrize(
    "assignment",
    [
        "model.encoder.layers=100000",
        "model.encoder.width=10000000000",
        "model.encoder.heads=10000000000",
        "model.encoder.ff_width=10000000000",
        "model.encoder.vocab=10000000000",
        "model.encoder.types=10000000000",
        "model.encoder.embed_width=10000000000",
        "model.encoder.position.length=10000000000",
        "model.mask_decoder=10000000000",
    ],
)
def test_impossible_sizes_are_refused_at_once(assignment: str) -> None:
    with pytest.raises(ConfigError, match="is [0-9]+; give at most"):
        resolved(assignment)


def test_names_of_recipes_are_whole_in_a_pipe(capsys) -> None:
    from encoderlab.cli import main
    from encoderlab.recipes import RECIPES

    assert main(["pretrain", "--list"]) == 0
    first = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.split()}
    assert set(RECIPES) <= first
