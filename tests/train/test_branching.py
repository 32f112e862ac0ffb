"""A branch of a run ends with the bits of the run that had its budget from the start."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from encoderlab.batches.corrupt import Masking
from encoderlab.config import from_dict
from encoderlab.errors import ConfigError, DataError, Stopped
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.train import checkpoint
from encoderlab.train.branching import branch
from encoderlab.train.folder import read
from encoderlab.train.pretraining import pretrain
from encoderlab.train.recipe import Budget, Checkpoints, Phase, Ramp, Recipe, WeightAverage
from encoderlab.train.schedule import Cosine, WarmupStableDecay
from tests.train.test_doctor import build, language
from tests.train.test_pretraining import short
from tests.train.toy import assert_same_run

SCHEDULE = WarmupStableDecay(warmup=2, decay=0.25)


def of(budget: float, unit: Any = "steps", **changes: Any) -> Recipe:
    """RoBERTa with dropout and an average of the weights, a checkpoint every 2 steps."""
    made = short(
        "roberta-tiny",
        budget=Budget(amount=budget, unit=unit),
        schedule=changes.pop("schedule", SCHEDULE),
        checkpoints=Checkpoints(minutes=None, steps=2, keep=99),
        average=WeightAverage(decay=0.9),
        log_every=3,
    )
    return replace(made, evaluation=replace(made.evaluation, every=2, best="loss"), **changes)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("corpus"), language(200))


@pytest.fixture(scope="module")
def long(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 16 steps, which decays from step 12 on."""
    out = tmp_path_factory.mktemp("runs") / "long"
    pretrain(of(16), corpus, out)
    return out / "checkpoints"


def test_a_shorter_budget(corpus: Path, long: Path, tmp_path: Path) -> None:
    pretrain(of(8), corpus, tmp_path / "whole")
    pretrain(of(8), corpus, tmp_path / "branch", branch_from=long / "step-000006")
    assert_same_run(tmp_path / "branch", tmp_path / "whole", 8)
    best = [(tmp_path / name / "checkpoints/best/weights.safetensors").read_bytes() for name in ("branch", "whole")]
    assert best[0] == best[1]
    assert (tmp_path / "branch/model/model.safetensors").read_bytes() == (
        tmp_path / "whole/model/model.safetensors"
    ).read_bytes()


def test_without_the_model_that_the_run_continued(corpus: Path, tmp_path: Path) -> None:
    pretrain(short("roberta-tiny", budget=Budget(amount=1)), corpus, tmp_path / "first")
    changes = {"init_from": str(tmp_path / "first/model"), "schedule": replace(SCHEDULE, warmup=0)}
    pretrain(of(4, **changes), corpus, tmp_path / "long")
    shutil.rmtree(tmp_path / "first")
    source = tmp_path / "long/checkpoints/step-000002"
    assert pretrain(of(3, **changes), corpus, tmp_path / "branch", branch_from=source).step == 3


def test_a_longer_budget_in_two_sessions(corpus: Path, long: Path, tmp_path: Path) -> None:
    """Also from an early checkpoint, and resumed with or without the name of the checkpoint."""
    pretrain(of(20, schedule=replace(SCHEDULE, decay=0.5)), corpus, tmp_path / "whole")
    made, out = of(20, schedule=replace(SCHEDULE, decay=0.5)), tmp_path / "branch"
    with pytest.raises(Stopped):
        pretrain(made, corpus, out, branch_from=long / "step-000010", session=Budget(amount=3))
    with pytest.raises(Stopped):
        pretrain(made, corpus, out, branch_from=long / "step-000010", session=Budget(amount=3))
    pretrain(made, corpus, out)
    assert_same_run(out, tmp_path / "whole", 20)


@pytest.mark.parametrize("where", ["write", "point"])
def test_killed_while_branching(where: str, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command makes the branch again."""
    out, source = tmp_path / "branch", long / "step-000006"
    made = replace(from_dict(Recipe, read(source / "recipe.json")), budget=Budget(amount=8))
    child = os.fork()
    if not child:
        monkeypatch.setattr(checkpoint, where, lambda *args: os._exit(9))
        branch(source, out, made)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    branch(source, out, made)
    assert (out / "checkpoints" / "latest").resolve().name == "step-000006"
    assert [path.name for path in tmp_path.iterdir()] == ["branch"]


REFUSED: dict[str, tuple[Recipe, str, str]] = {
    "a checkpoint of the decay": (of(8), "step-000008", "a budget of 8 decays from 6 on"),
    "a checkpoint of the run's own decay": (of(40), "step-000014", "a budget of 16 decays from 12 on"),
    "another rate": (of(8, optim=replace(of(8).optim, lr=0.5)), "step-000006", "optim.lr was .* only budget and decay"),
    "another unit": (
        of(9000, "tokens", schedule=WarmupStableDecay(decay=0.25)),
        "step-000006",
        "only budget and decay",
    ),
    "another schedule": (of(8, schedule=Cosine()), "step-000006", "schedule.kind=wsd"),
    "two phases": (
        of(8, phases=(Phase(length=32, rows=8, share=0.5), Phase(length=48, rows=8, share=0.5))),
        "step-000006",
        "phases was|only budget and decay",
    ),
    "a ramp": (of(8, ramp=Ramp(rows=4)), "step-000006", "ramp"),
    "a rate of masking": (
        of(8, objective=MLMSettings(masking=Masking(final_rate=0.3))),
        "step-000006",
        "objective.masking",
    ),
    "only weights": (of(8), "best", "has weights only"),
    "no checkpoint": (of(8), "step-000007", "is not a checkpoint"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(case: str, corpus: Path, long: Path, tmp_path: Path) -> None:
    made, name, why = REFUSED[case]
    with pytest.raises(ConfigError, match=why):
        pretrain(made, corpus, tmp_path / "branch", branch_from=long / name)
    assert not (tmp_path / "branch").exists()


def test_a_warm_up_that_follows_the_budget_is_refused(corpus: Path, tmp_path: Path) -> None:
    made = of(8, schedule=replace(SCHEDULE, warmup=0.25))
    pretrain(made, corpus, tmp_path / "run")
    with pytest.raises(ConfigError, match="--set schedule.warmup=500"):
        pretrain(made, corpus, tmp_path / "branch", branch_from=tmp_path / "run/checkpoints/step-000004")
    weights = tmp_path / "run/checkpoints/step-000004/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(DataError, match="truncated"):
        pretrain(made, corpus, tmp_path / "branch", branch_from=tmp_path / "run/checkpoints/step-000004")
