from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from encoderlab import models
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.nn.heads import Span
from encoderlab.tasks.data.suites import TASKS, task
from encoderlab.tasks.runs.protocol import at_point, parse_grid
from encoderlab.tasks.runs.published import PROTOCOLS, protocol
from encoderlab.train.optim import BertAdam
from encoderlab.train.schedule import Bert, Constant
from tests.tasks.tiny import model


def test_plain_fits_the_model_and_the_data():
    plain, cola = PROTOCOLS["plain"], task("cola")
    small = plain.recipe_for(cola, model(), 300)
    assert (small.optim.lr, small.batch, small.updates(300)) == (5e-4, 8, 20 * 38)
    assert plain.recipe_for(cola, model(width=768), 8551).optim.lr == 5e-5
    assert plain.recipe_for(cola, model(), 8551).updates(8551) == 3 * 535
    assert plain.recipe_for(cola, model(), 4500).updates(4500) == 1400
    assert small.updates(8) == 20 and replace(small, steps=7).updates(300) == 7  # at most 20 epochs
    assert at_point(small, {"epochs": 2.0}, where="").updates(300) == 76  # what is asked for is not raised
    assert at_point(small, {"batch": 32}, where="").updates(300) == 200 == 20 * 10
    once = at_point(small, {"epochs": 1.0}, where="")
    assert "9 updates (about 1 epoch), rate 0.0005" in plain.says(once, model(), 72)


def test_an_option_of_another_form_is_refused():
    recipe = PROTOCOLS["plain"].recipe_for(task("cola"), model())
    with pytest.raises(ConfigError, match="--set: form.stride is for span, not for classification; leave it out"):
        at_point(recipe, {"form.stride": 3}, where="--set")
    with pytest.raises(ConfigError, match="'form.lenght'; did you mean 'form.max_length'"):
        at_point(recipe, {"form.lenght": 3}, where="--set")
    for computed in ("budget.amount", "phases", "evaluation.every"):
        with pytest.raises(ConfigError, match=f"--set: {computed} follows from epochs, steps, batch and the data"):
            at_point(recipe, {computed: 30}, where="--set")


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
    roberta = PROTOCOLS["roberta"].recipe_for(task("rte"), start)
    assert (roberta.steps, roberta.clip, roberta.optim.weight_decay, roberta.optim.no_decay) == (2036, None, 0.1, ())
    assert PROTOCOLS["albert"].recipe_for(task("cola"), start).dropout == 0.0
    electra = PROTOCOLS["electra"]
    small, large = electra.recipe_for(task("rte"), start), electra.recipe_for(task("rte"), model(width=1024))
    assert (small.optim.lr, small.epochs, small.optim.layer_decay.decay) == (3e-4, 10.0, 0.8)
    assert (large.optim.lr, large.optim.layer_decay.decay, large.form.swap) == (5e-5, 0.9, True)
    assert electra.recipe_for(task("conll2003"), start).form.max_length == 256
    clue = PROTOCOLS["clue"]
    assert clue.recipe_for(task("cluewsc"), start).optim.lr == 1e-5
    assert clue.recipe_for(task("cmrc2018"), start).form.max_length == 512
    forms = [clue.recipe_for(task(name), start).form for name in ("c3", "clue_chid")]
    assert [(form.choice, form.max_length) for form in forms] == [("clue", 512), ("clue", 64)]


def test_bert_searches_what_its_paper_searches():
    answers, conll = PROTOCOLS["bert-answers"], PROTOCOLS["bert-conll"]
    found = {name: answers.recipe_for(task(name), model()) for name in ("squad1", "squad2", "swag")}
    assert not answers.grid  # a grid over the rate would replace these
    assert [(r.optim.lr, r.batch, r.epochs) for r in found.values()] == [
        (5e-5, 32, 3.0), (5e-5, 48, 2.0), (2e-5, 16, 3.0)
    ]  # fmt: skip
    assert conll.recipe_for(task("conll2003"), model()).form.context == "document"
    assert (conll.seeds, conll.report, conll.grid["batch"]) == (5, "mean", (16, 32))
    assert PROTOCOLS["bert-restarts"].seeds > 1 and PROTOCOLS["bert-restarts"].report == "best"
    assert PROTOCOLS["bert-compact"].recipe_for(task("rte"), model()).epochs == 4.0
    for name in ("squad1", "squad2", "swag", "conll2003"):
        with pytest.raises(ConfigError, match=f"does not cover {name}.*give --protocol bert-"):
            PROTOCOLS["bert"].recipe_for(task(name), model())


def test_convbert_searches_no_epochs_for_answers():
    answers = PROTOCOLS["convbert-answers"]
    squad = answers.recipe_for(task("squad1"), model(width=768))
    assert (squad.epochs, squad.form.max_length, squad.optim.lr, squad.optim.weight_decay) == (2.0, 512, 1e-4, 0.01)
    assert not answers.grid and PROTOCOLS["convbert"].grid["epochs"] == (10.0, 3.0)
    with pytest.raises(ConfigError, match="does not cover squad1.*give --protocol convbert-answers"):
        PROTOCOLS["convbert"].recipe_for(task("squad1"), model())


def published(size: str) -> Model:
    with torch.device("meta"):
        return Model(models.config(size))


@pytest.mark.parametrize(
    ("size", "name", "expected"),
    [
        ("deberta-base", "mnli", (3e-5, 64, 3.0, 1000, 0.1)),
        ("deberta-v3-xsmall", "mnli", (4.5e-5, 64, 3.0, 1000, 0.1)),
        ("deberta-v3-small", "mnli", (4.5e-5, 64, 3.0, 1500, 0.2)),
        ("deberta-v3-base", "mnli", (1.5e-5, 64, 3.0, 1000, 0.1)),
        ("deberta-v3-large", "mnli", (7e-6, 64, 2.0, 500, 0.3)),
        ("deberta-v3-large", "conll2003", (9e-6, 16, 10.0, 10, 0.0)),
        ("deberta-base", "conll2003", (2e-5, 16, 15.0, 0.1, 0.0)),
        ("deberta-large", "conll2003", (1e-5, 16, 15.0, 0.1, 0.0)),
        ("deberta-base", "copa", (1e-5, 32, 3.0, 50, 0.1)),
        ("deberta-large", "copa", (5e-6, 16, 4.0, 30, 0.1)),
        ("deberta-large", "record", (1e-5, 64, 3.0, 1000, 0.3)),
        ("deberta-base", "cola", (2e-5, 32, 6.0, 100, 0.15)),
        ("deberta-large", "stsb", (7e-6, 32, 4.0, 100, 0.15)),
        ("deberta-xlarge", "rte", (5e-6, 48, 6.0, 50, 0.2)),
        ("deberta-v2-xlarge", "qqp", (4e-6, 64, 10.0, 1000, 0.2)),
        ("deberta-v2-xxlarge", "mrpc", (2e-6, 32, 6.0, 50, 0.2)),
        ("deberta-v3-large", "cola", (5.5e-6, 32, 10.0, 50, 0.1)),
        ("deberta-v3-large", "record", (7e-6, 64, 3.0, 500, 0.1)),
        ("deberta-large", "race", (8e-6, 32, 6.0, 100, 0.2)),
        ("deberta-v3-small", "sst2", (2e-5, 32, 6.0, 500, 0.15)),  # it has no script of its own
    ],
)
def test_deberta_has_a_script_for_each_size(size, name, expected):
    """Adam without bias correction, and a rate that drops where the warm-up ends, as in pretraining."""
    r = PROTOCOLS["deberta"].recipe_for(task(name), published(size))
    assert (r.optim.lr, r.batch, r.epochs, r.schedule.warmup, r.head_dropout) == expected
    assert isinstance(r.optim, BertAdam) and isinstance(r.schedule, Bert)


def test_answers_and_exams_of_the_other_families():
    start = model()
    race = PROTOCOLS["roberta"].recipe_for(task("race"), start)
    assert (race.schedule, race.optim.weight_decay, race.optim.lr) == (Constant(), 0.01, 1e-5)
    assert PROTOCOLS["albert"].recipe_for(task("squad1"), start).head == Span()
    assert PROTOCOLS["albert"].recipe_for(task("squad2"), start).head is None
    old, new = (PROTOCOLS[name].recipe_for(task("race"), start) for name in ("albert", "albert-v2"))
    assert ((old.optim.lr, old.dropout), (new.optim.lr, new.dropout)) == ((2e-5, 0.1), (1e-5, 0.0))
    squad = PROTOCOLS["xlnet"].recipe_for(task("squad2"), start)
    assert (squad.form.answer_length, squad.batch, squad.steps, squad.optim.layer_decay.decay) == (64, 48, 8000, 0.75)
    mnli = PROTOCOLS["xlnet"].recipe_for(task("mnli"), start)
    assert (mnli.optim.lr, mnli.batch, mnli.steps, mnli.schedule.warmup, mnli.form.max_length) == (
        2e-5, 128, 10000, 1000, 128
    )  # fmt: skip


def test_epochs_of_a_point_count_where_a_protocol_counts_steps():
    rte = PROTOCOLS["albert"].recipe_for(task("rte"), model())
    point = at_point(rte, {"epochs": 5}, where="--grid")
    assert rte.steps == 800 and (point.epochs, point.steps) == (5, None)
    assert at_point(rte, {"epochs": 5, "steps": 9}, where="--grid").steps == 9


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="unknown protocol 'elektra'; did you mean 'electra'"):
        protocol("elektra")
    with pytest.raises(ConfigError, match="expected field=value,value"):
        parse_grid(["lr"])
    with pytest.raises(ConfigError, match="--grid optim.lr=2: optim.lr is given twice; give all its values at once"):
        parse_grid(["lr=1", "optim.lr=2"])
    with pytest.raises(ConfigError, match="--grid seed=1,2: every point gets the seeds of --seeds and --set seed=N"):
        parse_grid(["lr=1", "seed=1,2"])
    assert parse_grid(["lr=5e-5,1e-4", "epochs=3,10"]) == {"optim.lr": (5e-5, 1e-4), "epochs": (3, 10)}
