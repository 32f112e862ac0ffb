"""The protocols of the papers, with their sources.

Fields of a recipe are given by path. If a function makes the fields of one task, its arguments are in the order of the
source's tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from encoderlab.errors import ConfigError, nearest
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.runs.finetune import FinetuneRecipe
from encoderlab.tasks.runs.protocol import Protocol
from encoderlab.train.optim import AdamW, BertAdam, LayerDecay
from encoderlab.train.schedule import Bert, Electra, Polynomial

_LONG = {"form.max_length": 384, "epochs": 2.0}
_RAW = {"form:regression": {"form.targets": "raw"}}
_ADAM = AdamW(lr=5e-5, eps=1e-6, weight_decay=0.01)

PLAIN = Protocol(
    name="plain",
    source="this project: rate by width, batches of 8 to 32 by number of examples, three epochs (spans two, numbers "
    "six), on small data up to 20 for 1,400 updates; the best epoch by dev score",
    recipe=FinetuneRecipe(name="plain", optim=_ADAM, least_updates=1400),
    widths={width: {"optim.lr": lr} for width, lr in {1: 5e-4, 256: 3e-4, 512: 1e-4, 768: 5e-5, 1024: 2e-5}.items()},
    batches={1: 8, 500: 16, 10_000: 32},
    tasks={"form:span": _LONG, "form:choice": {"form.max_length": 256}, "form:regression": {"epochs": 6.0}},
    seeds=5,
)

DISTILBERT = Protocol(
    name="distilbert",
    source="Sanh et al., 2019, section 4: median of five runs",
    recipe=FinetuneRecipe(name="distilbert", optim=_ADAM),
    tasks={"form:span": _LONG},
    seeds=5,
)

ROBERTA = Protocol(
    name="roberta",
    source="fairseq, examples/roberta/config/finetuning: weight decay 0.1 of everything, no clipping, absolute steps",
    recipe=FinetuneRecipe(
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
)

# BERT

_BERT_ADAM = BertAdam(lr=5e-5, eps=1e-6, weight_decay=0.01)  # the release also fine-tunes without bias correction
BERT = Protocol(
    name="bert",
    source="Devlin et al., 2019, appendix A.3 and section 4.1: best of four rates on the development set",
    recipe=FinetuneRecipe(name="bert", optim=_BERT_ADAM, schedule=Bert(warmup=0.1), select="last"),
    tasks={"form:span": _LONG, **_RAW},
    elsewhere={"squad1": "bert-answers", "squad2": "bert-answers", "swag": "bert-answers", "conll2003": "bert-conll"},
    grid={"optim.lr": (5e-5, 4e-5, 3e-5, 2e-5)},
    report="best",
)
BERT_RESTARTS = replace(
    BERT,
    name="bert-restarts",
    source="Devlin et al., 2019, section 4.1: several restarts (here 5) of large models on small sets, best on "
    "the development set",
    seeds=5,
)
BERT_COMPACT = replace(
    BERT,
    name="bert-compact",
    source="google-research/bert, README of the 24 smaller models: 4 epochs, best of batch size and rate",
    recipe=replace(BERT.recipe, name="bert-compact", epochs=4.0),
    grid={"batch": (8, 16, 32, 64, 128), "optim.lr": (3e-4, 1e-4, 5e-5, 3e-5)},
)
BERT_ANSWERS = Protocol(
    name="bert-answers",
    source="Devlin et al., 2019, sections 4.2-4.4: SQuAD 1.1 and 2.0, SWAG, each with one setting",
    recipe=replace(BERT.recipe, name="bert-answers"),
    tasks={
        "squad1": {"form.max_length": 384, "optim.lr": 5e-5, "batch": 32, "epochs": 3.0},
        "squad2": {"form.max_length": 384, "optim.lr": 5e-5, "batch": 48, "epochs": 2.0},
        "swag": {"optim.lr": 2e-5, "batch": 16, "epochs": 3.0},
        "form:span": _LONG,
    },
    report="best",
)
BERT_CONLL = Protocol(
    name="bert-conll",
    source="Devlin et al., 2019, section 5.3: the grid of appendix A.3, mean of five restarts",
    recipe=replace(BERT.recipe, name="bert-conll"),
    tasks={"conll2003": {"form.context": "document", "form.max_length": 512}},
    grid={"batch": (16, 32), "optim.lr": (5e-5, 3e-5, 2e-5), "epochs": (2.0, 3.0, 4.0)},
    seeds=5,
    report="mean",
)

# ALBERT


def _albert(lr: float, batch: int, steps: int, warmup: int, length: int = 512, **more: Any) -> dict[str, Any]:
    fields = {"optim.lr": lr, "batch": batch, "steps": steps, "schedule.warmup": warmup, "form.max_length": length}
    return fields | more


ALBERT = Protocol(
    name="albert",
    source="google-research/albert and Lan et al., 2020, appendix A.4: no dropout but in the classifier",
    recipe=FinetuneRecipe(
        name="albert",
        optim=_BERT_ADAM,
        schedule=Bert(warmup=0.1),
        dropout=0.0,
        form=FormSettings(max_length=512),
    ),
    tasks={
        **_RAW,
        "cola": _albert(1e-5, 16, 5336, 320),
        "stsb": _albert(2e-5, 16, 3598, 214),
        "sst2": _albert(1e-5, 32, 20935, 1256),
        "mnli": _albert(3e-5, 128, 10000, 1000),
        "qnli": _albert(1e-5, 32, 33112, 1986),
        "qqp": _albert(5e-5, 128, 14000, 1000, dropout=0.1),
        "rte": _albert(3e-5, 32, 800, 200, dropout=0.1),
        "mrpc": _albert(2e-5, 32, 800, 200),
        "wnli": _albert(2e-5, 16, 2000, 250, dropout=0.1),
        "squad1": _albert(5e-5, 48, 3649, 365, 384, head={"kind": "span", "variant": "independent"}),
        "squad2": _albert(3e-5, 48, 8144, 814),
        "race": _albert(2e-5, 32, 12000, 1000, dropout=0.1),
    },
    seeds=5,
)
ALBERT_V2 = replace(
    ALBERT,
    name="albert-v2",
    source=f"{ALBERT.source}; RACE as for version 2 of the models",
    tasks={**ALBERT.tasks, "race": _albert(1e-5, 32, 12000, 1000)},
)

# XLNet

_XLNET_SQUAD = {
    "optim.lr": 3e-5,
    "batch": 48,
    "steps": 8000,
    "schedule.warmup": 1000,
    "optim.layer_decay": {"decay": 0.75, "offset": 0},
}
XLNET = Protocol(
    name="xlnet",
    source="Yang et al., 2019, table 8, and zihangdai/xlnet's scripts: warm-up of 1000 steps; tasks that they "
    "do not name have MNLI's rate; five seeds are this project's",
    recipe=FinetuneRecipe(
        name="xlnet",
        optim=BertAdam(lr=2e-5, eps=1e-6, weight_decay=0.01),
        schedule=Polynomial(warmup=0.1),
        form=FormSettings(max_length=128),
    ),
    tasks={
        "mnli": {"batch": 128, "steps": 10000, "schedule.warmup": 1000},
        "stsb": {"optim.lr": 5e-5, "batch": 32, "steps": 1200, "schedule.warmup": 120},
        "race": {"batch": 32, "steps": 12000, "schedule.warmup": 1000, "form.max_length": 512},
        "squad1": _XLNET_SQUAD,
        "squad2": _XLNET_SQUAD,
        "form:span": {"form.max_length": 512, "form.answer_length": 64},
        "form:choice": {"form.max_length": 512},
        **_RAW,
    },
    seeds=5,
)

# ELECTRA and ConvBERT

ELECTRA = Protocol(
    name="electra",
    source="Clark et al., 2020, table 7: median of ten runs, last step, layer-wise rates, no weight decay",
    recipe=FinetuneRecipe(
        name="electra",
        epochs=3.0,
        optim=BertAdam(lr=1e-4, eps=1e-6, weight_decay=0.0, layer_decay=LayerDecay(decay=0.8, offset=2)),
        schedule=Electra(warmup=0.1),
        form=FormSettings(max_length=128),
        select="last",
    ),
    tasks={
        "rte": {"epochs": 10.0},
        "stsb": {"epochs": 10.0},
        "form:span": {"epochs": 2.0, "form.max_length": 512},
        "form:tagging": {"form.max_length": 256},
        "form:classification": {"form.swap": True},
        "form:regression": {"form.swap": True},
    },
    widths={1: {"optim.lr": 3e-4}, 768: {"optim.lr": 1e-4}, 1024: {"optim.lr": 5e-5, "optim.layer_decay.decay": 0.9}},
    seeds=10,
)
CONVBERT_ANSWERS = replace(
    ELECTRA,
    name="convbert-answers",
    source="yitu-opensource/ConvBert, configure_finetuning: SQuAD with ELECTRA's settings, two epochs",
    recipe=replace(ELECTRA.recipe, name="convbert-answers", optim=replace(ELECTRA.recipe.optim, weight_decay=0.01)),
    seeds=1,
    report="best",
)
CONVBERT = replace(
    CONVBERT_ANSWERS,
    name="convbert",
    source="Jiang et al., 2020, section 6.3: ELECTRA's, searched over rate, weight decay and epochs",
    recipe=replace(CONVBERT_ANSWERS.recipe, name="convbert"),
    elsewhere={"squad1": "convbert-answers", "squad2": "convbert-answers"},
    grid={"optim.lr": (5e-5, 1e-4, 2e-4, 3e-4), "optim.weight_decay": (0.01, 0.1), "epochs": (10.0, 3.0)},
)

# DeBERTa


def _deberta(length: int, lr: float, batch: int, epochs: float, warmup: float, dropout: float) -> dict[str, Any]:
    return {"form.max_length": length, "batch": batch, "optim.lr": lr, "epochs": epochs, "schedule.warmup": warmup,
            "head_dropout": dropout}  # fmt: skip


# DeBERTa's scripts (experiments/glue, superglue, ner, my_exp): tokens of a sequence by task; rate, batch, epochs,
# warm-up (steps, or a share) and dropout of the head by size and task. In the first two versions, MRPC, RTE, STS-B,
# COPA and RACE start from the model fine-tuned on MNLI.
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
DEBERTA = Protocol(
    name="deberta",
    source="microsoft/DeBERTa, experiments: the script of each size and task; where it has none that of base "
    "(v3-large: of large); answer spans are this project's; mean of five seeds",
    recipe=FinetuneRecipe(
        name="deberta",
        optim=BertAdam(lr=2e-5, eps=1e-6, weight_decay=0.01),
        schedule=Bert(warmup=0.1),
        form=FormSettings(max_length=256),
    ),
    tasks={**_DEBERTA["deberta-base"], "form:span": _LONG, **_RAW},
    sizes=_DEBERTA,
    seeds=5,
    report="mean",
)

# CLUE


def _clue(lr: float, batch: int, epochs: float, length: int = 128, **more: Any) -> dict[str, Any]:
    """The fields of a CLUE task. ``more``: further fields, with ``__`` for the dot of a path."""
    fields = {"optim.lr": lr, "batch": batch, "epochs": epochs, "form.max_length": length}
    return fields | {key.replace("__", "."): value for key, value in more.items()}


CLUE = Protocol(
    name="clue",
    source="CLUEbenchmark/CLUE, baselines/models_pytorch",
    recipe=FinetuneRecipe(name="clue", optim=AdamW(lr=2e-5, eps=1e-6, weight_decay=0.01), batch=16),
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
)

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        PLAIN,
        BERT,
        BERT_RESTARTS,
        BERT_COMPACT,
        BERT_ANSWERS,
        BERT_CONLL,
        ROBERTA,
        ALBERT,
        ALBERT_V2,
        XLNET,
        ELECTRA,
        CONVBERT,
        CONVBERT_ANSWERS,
        DISTILBERT,
        DEBERTA,
        CLUE,
    )
}


def protocol(name: str) -> Protocol:
    """The protocol called ``name``.

    Raises:
        ConfigError: unknown name; the message gives the nearest one.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}{nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
