"""How a published number is made: seeds, a grid, what is selected on validation data, what is reported; named, as data.

:func:`encoderlab.tasks.trials.run` carries a protocol out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from encoderlab.config import override, parse_value
from encoderlab.errors import ConfigError, nearest
from encoderlab.model import Model
from encoderlab.models import FAMILIES
from encoderlab.nn.encoder import EncoderConfig
from encoderlab.tasks.base import Task
from encoderlab.tasks.finetune import Recipe
from encoderlab.tasks.form import FormSettings
from encoderlab.train.optim import AdamW, BertAdam, LayerDecay
from encoderlab.train.schedule import Bert, Electra, Polynomial

Report = Literal["median", "mean", "best"]
SHORT = {"lr": "optim.lr", "weight_decay": "optim.weight_decay", "max_length": "form.max_length"}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A way of fine-tuning and reporting.

    Args:
        recipe: what holds for every task.
        tasks: fields of the recipe that differ by task name, or by ``"form:span"``.
        sizes: fields that differ by the published architecture that the model has, and by task name.
        elsewhere: tasks that the source treats in another way, with the name of the protocol that does.
        widths: fields that differ by the width of the model; the widest entry that is not wider than the model holds.
        grid: fields and the values to try for each, on the development set with the first ``search_seeds`` seeds.
        seeds: how many runs are made at the chosen point.
        report: which number of those runs is given first.
    """

    name: str
    source: str
    recipe: Recipe = Recipe()
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    widths: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    search_seeds: int = 1
    seeds: int = 1
    report: Report = "median"

    def recipe_for(self, task: Task, model: Model) -> Recipe:
        """The recipe of one task for a model of this size; sequences no longer than the model can read.

        Raises:
            ConfigError: another protocol has this task.
        """
        if task.name in self.elsewhere:
            raise ConfigError(
                f"protocol {self.name} does not cover {task.name}, for which its source does otherwise; "
                f"give --protocol {self.elsewhere[task.name]}"
            )
        narrower = [width for width in self.widths if width <= model.config.encoder.width]
        fields: dict[str, Any] = {
            **(self.widths[max(narrower)] if narrower else {}),
            **self.tasks.get(f"form:{task.form}", {}),
            **self.tasks.get(task.name, {}),
            **self.sizes.get(_size(model), {}).get(task.name, {}),
        }
        recipe = override(self.recipe, fields) if fields else self.recipe
        limit = model.config.encoder.max_length
        if limit is not None and recipe.form.max_length > limit:
            recipe = replace(recipe, form=replace(recipe.form, max_length=limit))
        return recipe


def _size(model: Model) -> str:
    """The published name of the model's architecture, "" if it has none."""
    sizes = FAMILIES[model.config.family].sizes.items()
    own = _shape(model.config.encoder)
    return next((name for name, config in sizes if _shape(config.encoder) == own), "")


def _shape(encoder: EncoderConfig) -> tuple[Any, ...]:
    """What tells the published sizes of a family apart; DeBERTa's versions differ in biases and convolution."""
    return encoder.layers, encoder.width, encoder.attention_biases, encoder.stem_conv is not None


_LONG = {"form.max_length": 384, "epochs": 2.0}
_ADAM = AdamW(lr=5e-5, eps=1e-6, weight_decay=0.01)
_BERT_ADAM = BertAdam(lr=5e-5, eps=1e-6, weight_decay=0.01)  # the release fine-tunes without bias correction too
_BERT = Protocol(
    name="bert",
    source="Devlin et al., 2019, appendix A.3 and section 4.1: best of four rates on the development set",
    recipe=Recipe(name="bert", optim=_BERT_ADAM, schedule=Bert(warmup=0.1), select="last"),
    tasks={"form:span": _LONG, "form:regression": {"form.targets": "raw"}},
    elsewhere={"squad1": "bert-answers", "squad2": "bert-answers", "swag": "bert-answers", "conll2003": "bert-conll"},
    grid={"optim.lr": (5e-5, 4e-5, 3e-5, 2e-5)},
    report="best",
)
_ELECTRA = Recipe(
    name="electra",
    epochs=3.0,
    optim=BertAdam(lr=1e-4, eps=1e-6, weight_decay=0.0, layer_decay=LayerDecay(decay=0.8, offset=2)),
    schedule=Electra(warmup=0.1),
    form=FormSettings(max_length=128, swap=True),
    select="last",
)
_CONVBERT = replace(_ELECTRA, name="convbert", optim=replace(_ELECTRA.optim, weight_decay=0.01))
_WIDTHS = {1: {"optim.lr": 3e-4}, 768: {"optim.lr": 1e-4}, 1024: {"optim.lr": 5e-5, "optim.layer_decay.decay": 0.9}}
_ELECTRA_TASKS: dict[str, Mapping[str, Any]] = {
    "rte": {"epochs": 10.0},
    "stsb": {"epochs": 10.0},
    "form:span": {"epochs": 2.0, "form.max_length": 512},
    "form:tagging": {"form.max_length": 256},
}


# What a protocol sets for one task, its values in the order of its source's tables.


def _albert(lr: float, batch: int, steps: int, warmup: int, length: int = 512, **more: Any) -> dict[str, Any]:
    fields = {"optim.lr": lr, "batch": batch, "steps": steps, "schedule.warmup": warmup, "form.max_length": length}
    return fields | more


def _deberta(length: int, lr: float, batch: int, epochs: float, warmup: float, dropout: float) -> dict[str, Any]:
    return {"form.max_length": length, "batch": batch, "optim.lr": lr, "epochs": epochs, "schedule.warmup": warmup,
            "head_dropout": dropout}  # fmt: skip


def _clue(lr: float, batch: int, epochs: float, length: int = 128, **more: Any) -> dict[str, Any]:
    """``more``: further fields, with ``__`` for the dot of a path."""
    fields = {"optim.lr": lr, "batch": batch, "epochs": epochs, "form.max_length": length}
    return fields | {key.replace("__", "."): value for key, value in more.items()}


_ALBERT = Protocol(
    name="albert",
    source="google-research/albert and Lan et al., 2020, appendix A.4: no dropout but in the classifier",
    recipe=Recipe(
        name="albert",
        optim=_BERT_ADAM,
        schedule=Bert(warmup=0.1),
        dropout=0.0,
        form=FormSettings(max_length=512, targets="raw"),
    ),
    tasks={
        "cola": _albert(1e-5, 16, 5336, 320),
        "stsb": _albert(2e-5, 16, 3598, 214),
        "sst2": _albert(1e-5, 32, 20935, 1256),
        "mnli": _albert(3e-5, 128, 10000, 1000),
        "qnli": _albert(1e-5, 32, 33112, 1986),
        "qqp": _albert(5e-5, 128, 14000, 1000, dropout=0.1),
        "rte": _albert(3e-5, 32, 800, 200, dropout=0.1),
        "mrpc": _albert(2e-5, 32, 800, 200),
        "wnli": _albert(2e-5, 16, 2000, 250, dropout=0.1),
        "squad1": _albert(5e-5, 48, 3649, 365, 384, head={"kind": "span", "form": "independent"}),
        "squad2": _albert(3e-5, 48, 8144, 814),
        "race": _albert(2e-5, 32, 12000, 1000, dropout=0.1),
    },
    seeds=5,
)
_XLNET_SQUAD = {
    "optim.lr": 3e-5,
    "batch": 48,
    "steps": 8000,
    "schedule.warmup": 1000,
    "optim.layer_decay": {"decay": 0.75, "offset": 0},
}
# DeBERTa's scripts (experiments/glue, superglue, ner, my_exp): tokens of a sequence by task; rate, batch, epochs,
# warm-up (steps, or a share) and dropout of the head by size and task. For the first two versions those of MRPC, RTE,
# STS-B, COPA and RACE begin with the model that was fine-tuned on MNLI.
_DEBERTA_LENGTHS = {
    "cola": 64, "mnli": 256, "mrpc": 128, "qnli": 512, "qqp": 320, "rte": 320, "sst2": 128, "stsb": 128,
    "copa": 136, "record": 512, "race": 320, "conll2003": 512,
}  # fmt: skip
_DEBERTA_SCRIPTS: dict[str, dict[str, tuple[float, int, float, float, float]]] = {
    "deberta-base": {
        "cola": (2e-5, 32, 6, 100, 0.15), "mnli": (3e-5, 64, 3, 1000, 0.1), "mrpc": (2e-5, 32, 6, 50, 0.15),
        "qnli": (2e-5, 32, 4, 500, 0.15), "qqp": (2e-5, 64, 8, 500, 0.15), "rte": (2e-5, 32, 6, 100, 0.2),
        "sst2": (2e-5, 32, 6, 500, 0.15), "stsb": (2e-5, 32, 6, 100, 0.15), "copa": (1e-5, 32, 3, 50, 0.1),
        "record": (2e-5, 64, 3, 1000, 0.3), "race": (2e-5, 32, 6, 100, 0.2), "conll2003": (2e-5, 16, 15, 0.1, 0.0),
    },
    "deberta-large": {
        "cola": (7e-6, 32, 6, 100, 0.15), "mnli": (1e-5, 64, 3, 1000, 0.2), "mrpc": (1e-5, 32, 6, 50, 0.15),
        "qnli": (1e-5, 32, 4, 500, 0.15), "qqp": (1e-5, 64, 8, 500, 0.15), "rte": (1e-5, 32, 6, 50, 0.2),
        "sst2": (1e-5, 32, 6, 500, 0.15), "stsb": (7e-6, 32, 4, 100, 0.15), "copa": (5e-6, 16, 4, 30, 0.1),
        "record": (1e-5, 64, 3, 1000, 0.3), "race": (8e-6, 32, 6, 100, 0.2), "conll2003": (1e-5, 16, 15, 0.1, 0.0),
    },
    "deberta-xlarge": {
        "cola": (5e-6, 32, 8, 100, 0.2), "mnli": (5e-6, 64, 3, 1000, 0.3), "mrpc": (7e-6, 32, 8, 50, 0.3),
        "qnli": (7e-6, 32, 4, 500, 0.2), "qqp": (7e-6, 64, 8, 500, 0.2), "rte": (5e-6, 48, 6, 50, 0.2),
        "sst2": (3e-6, 32, 6, 500, 0.2), "stsb": (7e-6, 32, 4, 100, 0.2), "copa": (3e-6, 24, 4, 30, 0.1),
        "record": (7e-6, 64, 3, 1000, 0.3), "race": (7e-6, 48, 6, 100, 0.2), "conll2003": (7e-6, 16, 15, 0.1, 0.0),
    },
    "deberta-v2-xlarge": {
        "cola": (3e-6, 32, 8, 100, 0.2), "mnli": (4e-6, 64, 3, 1000, 0.25), "mrpc": (3.5e-6, 32, 6, 50, 0.2),
        "qnli": (4e-6, 64, 4, 500, 0.2), "qqp": (4e-6, 64, 10, 1000, 0.2), "rte": (4e-6, 48, 6, 50, 0.2),
        "sst2": (4e-6, 32, 4, 500, 0.2), "stsb": (4e-6, 32, 4, 100, 0.2), "copa": (2e-6, 24, 4, 30, 0.1),
        "record": (5e-6, 64, 3, 1000, 0.15), "race": (4e-6, 48, 6, 100, 0.2), "conll2003": (4e-6, 16, 15, 0.1, 0.0),
    },
    "deberta-v2-xxlarge": {
        "cola": (2.5e-6, 32, 10, 100, 0.2), "mnli": (3e-6, 64, 3, 1000, 0.3), "mrpc": (2e-6, 32, 6, 50, 0.2),
        "qnli": (3e-6, 64, 4, 500, 0.2), "qqp": (3e-6, 64, 10, 1000, 0.2), "rte": (3e-6, 48, 6, 50, 0.2),
        "sst2": (3e-6, 32, 4, 500, 0.2), "stsb": (3e-6, 32, 4, 100, 0.2), "copa": (1e-6, 24, 8, 30, 0.1),
        "record": (3e-6, 64, 3, 1000, 0.15), "race": (3e-6, 48, 6, 100, 0.2), "conll2003": (2.5e-6, 16, 15, 0.1, 0.0),
    },
    "deberta-v3-xsmall": {"mnli": (4.5e-5, 64, 3, 1000, 0.1)},
    "deberta-v3-small": {"mnli": (4.5e-5, 64, 3, 1500, 0.2)},
    "deberta-v3-base": {"mnli": (1.5e-5, 64, 3, 1000, 0.1)},
    "deberta-v3-large": {
        "cola": (5.5e-6, 32, 10, 50, 0.1), "mnli": (7e-6, 64, 2, 500, 0.3), "mrpc": (6e-6, 32, 6, 50, 0.2),
        "qnli": (7e-6, 64, 6, 200, 0.2), "qqp": (1e-5, 64, 6, 1000, 0.2), "rte": (1e-5, 32, 6, 50, 0.3),
        "sst2": (6e-6, 32, 8, 500, 0.1), "stsb": (7e-6, 32, 4, 50, 0.1), "copa": (5e-6, 16, 4, 30, 0.1),  # of large
        "record": (7e-6, 64, 3, 500, 0.1), "race": (8e-6, 32, 6, 100, 0.2),  # of large
        "conll2003": (9e-6, 16, 10, 10, 0.0),
    },
}  # fmt: skip
_DEBERTA = {
    size: {task: _deberta(_DEBERTA_LENGTHS[task], *values) for task, values in scripts.items()}
    for size, scripts in _DEBERTA_SCRIPTS.items()
}

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="plain",
            source="this project: three epochs (spans two, numbers six), five seeds, the best epoch by dev score",
            recipe=Recipe(name="plain", optim=_ADAM),
            tasks={"form:span": _LONG, "form:choice": {"form.max_length": 256}, "form:regression": {"epochs": 6.0}},
            seeds=5,
        ),
        _BERT,
        replace(
            _BERT,
            name="bert-restarts",
            source="Devlin et al., 2019, section 4.1: several restarts (here 5) of large models on small sets, best on "
            "the development set",
            seeds=5,
        ),
        replace(
            _BERT,
            name="bert-compact",
            source="google-research/bert, README of the 24 smaller models: 4 epochs, best of batch size and rate",
            recipe=replace(_BERT.recipe, name="bert-compact", epochs=4.0),
            grid={"batch": (8, 16, 32, 64, 128), "optim.lr": (3e-4, 1e-4, 5e-5, 3e-5)},
        ),
        Protocol(
            name="bert-answers",
            source="Devlin et al., 2019, sections 4.2-4.4: SQuAD 1.1 and 2.0, SWAG, each with one setting",
            recipe=replace(_BERT.recipe, name="bert-answers"),
            tasks={
                "squad1": {"form.max_length": 384, "optim.lr": 5e-5, "batch": 32, "epochs": 3.0},
                "squad2": {"form.max_length": 384, "optim.lr": 5e-5, "batch": 48, "epochs": 2.0},
                "swag": {"optim.lr": 2e-5, "batch": 16, "epochs": 3.0},
                "form:span": _LONG,
            },
            report="best",
        ),
        Protocol(
            name="bert-conll",
            source="Devlin et al., 2019, section 5.3: the grid of appendix A.3, mean of five restarts",
            recipe=replace(_BERT.recipe, name="bert-conll"),
            tasks={"conll2003": {"form.context": "document", "form.max_length": 512}},
            grid={"batch": (16, 32), "optim.lr": (5e-5, 3e-5, 2e-5), "epochs": (2.0, 3.0, 4.0)},
            seeds=5,
            report="mean",
        ),
        Protocol(
            name="roberta",
            source="fairseq, examples/roberta/config/finetuning: weight decay 0.1 of everything, no clipping, absolute "
            "steps",
            recipe=Recipe(
                name="roberta",
                optim=AdamW(lr=1e-5, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1, no_decay=()),
                clip=None,
                epochs=10.0,
                form=FormSettings(max_length=512),
            ),
            tasks={
                "cola": {"batch": 16, "steps": 5336, "schedule.warmup": 320},
                "mnli": {"steps": 123873, "schedule.warmup": 7432},
                "mrpc": {"batch": 16, "steps": 2296, "schedule.warmup": 137},
                "qnli": {"steps": 33112, "schedule.warmup": 1986},
                "qqp": {"steps": 113272, "schedule.warmup": 28318},
                "rte": {"optim.lr": 2e-5, "batch": 16, "steps": 2036, "schedule.warmup": 122},
                "sst2": {"steps": 20935, "schedule.warmup": 1256},
                "stsb": {"optim.lr": 2e-5, "batch": 16, "steps": 3598, "schedule.warmup": 214},
                "race": {"batch": 16, "epochs": 5.0, "optim.weight_decay": 0.01, "schedule.kind": "constant"},
            },
            seeds=5,
        ),
        _ALBERT,
        replace(
            _ALBERT,
            name="albert-v2",
            source=f"{_ALBERT.source}; RACE as for version 2 of the models",
            tasks={**_ALBERT.tasks, "race": _albert(1e-5, 32, 12000, 1000)},
        ),
        Protocol(
            name="xlnet",
            source="Yang et al., 2019, table 8, and zihangdai/xlnet's scripts: warm-up of 1000 steps; tasks that they "
            "do not name have MNLI's rate; five seeds are this project's",
            recipe=Recipe(
                name="xlnet",
                optim=BertAdam(lr=2e-5, eps=1e-6, weight_decay=0.01),
                schedule=Polynomial(warmup=0.1),
                form=FormSettings(max_length=128, targets="raw"),
            ),
            tasks={
                "mnli": {"batch": 128, "steps": 10000, "schedule.warmup": 1000},
                "stsb": {"optim.lr": 5e-5, "batch": 32, "steps": 1200, "schedule.warmup": 120},
                "race": {"batch": 32, "steps": 12000, "schedule.warmup": 1000, "form.max_length": 512},
                "squad1": _XLNET_SQUAD,
                "squad2": _XLNET_SQUAD,
                "form:span": {"form.max_length": 512, "form.answer_length": 64},
                "form:choice": {"form.max_length": 512},
            },
            seeds=5,
        ),
        Protocol(
            name="electra",
            source="Clark et al., 2020, table 7: median of ten runs, last step, layer-wise rates, no weight decay",
            recipe=_ELECTRA,
            tasks=_ELECTRA_TASKS,
            widths=_WIDTHS,
            seeds=10,
        ),
        Protocol(
            name="convbert",
            source="Jiang et al., 2020, section 6.3: ELECTRA's, searched over rate, weight decay and epochs",
            recipe=_CONVBERT,
            tasks=_ELECTRA_TASKS,
            elsewhere={"squad1": "convbert-answers", "squad2": "convbert-answers"},
            widths=_WIDTHS,
            grid={"optim.lr": (5e-5, 1e-4, 2e-4, 3e-4), "optim.weight_decay": (0.01, 0.1), "epochs": (10.0, 3.0)},
            seeds=1,
            report="best",
        ),
        Protocol(
            name="convbert-answers",
            source="yitu-opensource/ConvBert, configure_finetuning: SQuAD with ELECTRA's settings, two epochs",
            recipe=replace(_CONVBERT, name="convbert-answers"),
            tasks=_ELECTRA_TASKS,
            widths=_WIDTHS,
            report="best",
        ),
        Protocol(
            name="distilbert",
            source="Sanh et al., 2019, section 4: median of five runs",
            recipe=Recipe(name="distilbert", optim=_ADAM),
            tasks={"form:span": _LONG},
            seeds=5,
        ),
        Protocol(
            name="deberta",
            source="microsoft/DeBERTa, experiments: the script of each size and task; where it has none that of base "
            "(v3-large: of large); answer spans are this project's; mean of five seeds",
            recipe=Recipe(
                name="deberta",
                optim=BertAdam(lr=2e-5, eps=1e-6, weight_decay=0.01),
                schedule=Bert(warmup=0.1),
                form=FormSettings(max_length=256, targets="raw"),
            ),
            tasks={**_DEBERTA["deberta-base"], "form:span": _LONG},
            sizes=_DEBERTA,
            seeds=5,
            report="mean",
        ),
        Protocol(
            name="clue",
            source="CLUEbenchmark/CLUE, baselines/models_pytorch",
            recipe=Recipe(name="clue", optim=AdamW(lr=2e-5, eps=1e-6, weight_decay=0.01), batch=16),
            tasks={
                "afqmc": _clue(2e-5, 16, 3),
                "tnews": _clue(2e-5, 16, 3),
                "iflytek": _clue(2e-5, 16, 3),
                "cmnli": _clue(3e-5, 16, 3),
                "ocnli": _clue(3e-5, 16, 2),
                "csl": _clue(1e-5, 8, 5, 256),
                "cluewsc": _clue(1e-5, 16, 50),
                "cmrc2018": _clue(3e-5, 32, 2, 512),
                "drcd": _clue(3e-5, 32, 2, 512),
                "c3": _clue(2e-5, 24, 8, 512, schedule__warmup=0.05, form__choice="clue"),
                "clue_chid": _clue(2e-5, 24, 3, 64, schedule__warmup=0.06, form__choice="clue"),
            },
            seeds=1,
        ),
    )
}


def protocol(name: str) -> Protocol:
    """The protocol of that name.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}{nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]


def at_point(recipe: Recipe, point: Mapping[str, Any], *, where: str) -> Recipe:
    """``recipe`` with the fields of ``point``. Epochs that are given count instead of the steps of a protocol.

    Raises:
        ConfigError: an unknown field, or a value that it cannot have.
    """
    return override(recipe, {"steps": None, **point} if "epochs" in point else point, where=where)


def spelled_out(assignment: str) -> str:
    """The path of a field, with or without ``=value``, where its short name may stand: ``lr`` is ``optim.lr``."""
    name, equals, value = assignment.partition("=")
    return SHORT.get(name, name) + equals + value


def parse_grid(words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """``["lr=5e-5,1e-4", "epochs=3,10"]`` as the grid of a protocol.

    Raises:
        ConfigError: a word without ``=`` or values.
    """
    grid = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not name or not values:
            raise ConfigError(f"--grid {word}: expected field=value,value, such as lr=5e-5,1e-4")
        grid[spelled_out(name)] = tuple(parse_value(value) for value in values.split(","))
    return grid
