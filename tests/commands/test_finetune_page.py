from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from encoderlab.commands.finetune_page import Finished


def outcome(seeds: dict[str, dict[str, Any]]) -> Any:
    runs = [SimpleNamespace(scores=entry["scores"]) for entry in seeds.values() if "scores" in entry]
    return SimpleNamespace(runs=runs, record={"seeds": seeds})


def test_the_page_names_seeds_that_failed_and_pairs_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Finished, "rows", lambda self: [])
    good = {"scores": {"dev": {"accuracy": 0.5}}}
    constant = good | {"failed": "predicts one label for every example"}
    diverged = {"failed": "step 2: the gradient is not finite"}
    task: Any = SimpleNamespace(name="reviews", metric="accuracy")

    def scores(scratch: dict[str, Any], pretrained: dict[str, Any]) -> Any:
        systems = {"without pretraining": outcome(scratch), "pretrained": outcome(pretrained)}
        return Finished(task=task, about="9 examples.", baselines={}, systems=systems).scores()

    found = scores({"1": diverged, "2": good}, {"1": good, "2": diverged})
    assert found.compare is None and "Failed: pretrained (step 2" in found.about
    found = scores({"1": constant, "2": constant}, {"1": good, "2": good})
    assert found.compare == ("pretrained", "without pretraining")
    assert found.about == (
        "9 examples. Failed: without pretraining (predicts one label for every example), seeds 1, 2."
    )
