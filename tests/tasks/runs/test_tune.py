from __future__ import annotations

import json
from dataclasses import replace

import pytest

from encoderlab.errors import ConfigError
from encoderlab.tasks.runs.trials import perform
from encoderlab.tasks.runs.tune import Range, Search, parse_space, tune
from tests.tasks.runs.test_trials import QUICK
from tests.tasks.synthetic import data
from tests.tasks.tiny import model


def test_spaces_are_ranges_or_lists():
    space = parse_space(["lr=1e-5:1e-3", "epochs=2:10", "batch=16,32"])
    assert space == {"optim.lr": Range(low=1e-5, high=1e-3), "epochs": Range(low=2, high=10), "batch": (16, 32)}
    assert space["optim.lr"].logarithmic and not space["epochs"].logarithmic
    with pytest.raises(ConfigError, match="expected field=low:high"):
        parse_space(["lr"])
    for word in ("lr=1e-5:x", "lr=:1e-3", "lr=1e-5:1e-4:1e-3", "lr=a:b"):
        with pytest.raises(ConfigError, match=f"^--tune {word}: a range has two numbers; expected field=low:high"):
            parse_space([word])
    with pytest.raises(ConfigError, match="--tune lr=2: lr is given twice"):
        parse_space(["lr=1", "lr=2"])
    with pytest.raises(ConfigError, match="range 3:2 is empty"):
        parse_space(["epochs=3:2"])
    with pytest.raises(ConfigError, match="^trials is 0; give at least 1"):
        Search(space=space, trials=0)


def test_a_search_finds_the_better_point_and_repeats_itself(tmp_path):
    pytest.importorskip("optuna")
    task, splits = data("tagged", train=48, dev=24)
    quick = replace(QUICK, recipe=replace(QUICK.recipe, epochs=4.0))
    search = Search(space=parse_space(["lr=1e-7,2e-3", "batch=8:12"]), trials=4)
    said = []
    best = perform(tune(quick, model(), task, splits, tmp_path / "a", search, say=said.append), said.append)
    tried = json.loads((tmp_path / "a/tune.json").read_text())["trials"]
    assert best == max(tried, key=lambda entry: entry["dev"])["point"] and len(tried) == 4
    assert best["optim.lr"] == 2e-3 and 8 <= best["batch"] <= 12 and said[1].startswith("tagged: lr=")
    assert perform(tune(quick, model(), task, splits, tmp_path / "a", search)) == best
