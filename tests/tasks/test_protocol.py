from __future__ import annotations

import pytest

from encoderlab.errors import ConfigError
from encoderlab.tasks import protocol as protocols
from encoderlab.tasks.protocol import PROTOCOLS, parse_grid
from encoderlab.tasks.suites import TASKS, task
from tests.tasks.tiny import model


def test_every_protocol_gives_a_recipe_for_every_task_it_names():
    start = model()
    for found in PROTOCOLS.values():
        for name in found.tasks:
            if not name.startswith("form:"):
                recipe = found.recipe_for(task(name), start)
                assert recipe.form.max_length <= 512 and recipe.batch >= 8, (found.name, name)
        assert all(key.startswith("form:") or key in TASKS for key in found.tasks)


def test_recipes_are_those_of_the_papers():
    start = model()
    bert = PROTOCOLS["bert"]
    assert bert.grid == {"optim.lr": (5e-5, 4e-5, 3e-5, 2e-5)} and bert.recipe_for(task("mrpc"), start).batch == 32
    assert PROTOCOLS["roberta"].recipe_for(task("rte"), start).steps == 2036
    assert PROTOCOLS["albert"].recipe_for(task("cola"), start).dropout == 0.0
    electra = PROTOCOLS["electra"]
    small, large = electra.recipe_for(task("rte"), start), electra.recipe_for(task("rte"), model(width=1024))
    assert (small.optim.lr, small.epochs, small.optim.layer_decay.decay) == (3e-4, 10.0, 0.8)
    assert (large.optim.lr, large.optim.layer_decay.decay, large.form.swap) == (5e-5, 0.9, True)
    assert PROTOCOLS["deberta"].recipe_for(task("cola"), start).head_dropout == 0.1
    assert PROTOCOLS["clue"].recipe_for(task("cmrc2018"), start).form.max_length == 512
    assert PROTOCOLS["bert"].recipe_for(task("conll2003"), start).form.context == "document"


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown protocol 'elektra'; did you mean 'electra'"):
        protocols.protocol("elektra")
    with pytest.raises(ConfigError, match="expected field=value,value"):
        parse_grid(["lr"])
    assert parse_grid(["lr=5e-5,1e-4", "epochs=3,10"]) == {"optim.lr": (5e-5, 1e-4), "epochs": (3, 10)}
