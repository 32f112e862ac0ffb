"""A training step reads no value of the accelerator: it runs on tensors that have none.

On the ``meta`` device every read (``item``, ``bool``, ``nonzero``, a boolean mask as an index) raises, and so does what
mixes in tensors of the host. Batches are made on the host and moved by the loop's own code. Steps are in single
precision: autocast knows no ``meta``. What only a GPU waits for is refused by :class:`NoCopies`. Where there is a GPU,
the steps run there too, and torch raises an error where one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from encoderlab import recipes
from encoderlab.batches.batch import Batch
from encoderlab.batches.loader import Loader
from encoderlab.batches.rows import Framing
from encoderlab.batches.streams import ContiguousStreams, XLNetStreams
from encoderlab.model import Model
from encoderlab.nn.embeddings import Adaptive
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import Causal, CausalSettings
from encoderlab.objectives.distill import Distill, DistillSettings
from encoderlab.objectives.mlm import MLM
from encoderlab.objectives.rtd import ReplacedTokenDetection
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.batching import ItemSource
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.runs.distill import TaughtObjective, Teaching
from encoderlab.tasks.runs.sift import SiFT, SiFTObjective
from encoderlab.train.distributed import World
from encoderlab.train.engine import Engine
from encoderlab.train.optim import AdamW, Lamb, Optim
from encoderlab.train.recipe import Execution, Recipe, Training
from tests.objectives.small import build, small
from tests.tasks.synthetic import data
from tests.tasks.tiny import model
from tests.train.real import CASES, VOCABULARY, corpus

WORLDS = {"meta": World(0, 1, torch.device("meta"))}
if torch.cuda.is_available():
    WORLDS["cuda"] = World(0, 1, torch.device("cuda", 0))


class NoCopies(TorchFunctionMode):
    """Refuses what ``meta`` bears and a GPU waits for: tensors made there of the host's numbers, copies that block, and
    indices from the host. It does not see into torch's own operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type != "cpu":
            raise RuntimeError(f"{func.__name__} copies to the accelerator and waits")
        if func in (Tensor.__getitem__, Tensor.__setitem__, Tensor.index_put, Tensor.index_put_) and args[0].is_meta:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, list) or isinstance(part, Tensor) and not part.is_meta for part in index):
                raise RuntimeError("an index of the host is copied to the accelerator, which waits")
        made = func(*args, **kwargs)
        on_host = any(isinstance(part, Tensor) and part.is_cpu for part in args)
        if on_host and isinstance(made, Tensor) and made.is_meta and not kwargs.get("non_blocking"):
            raise RuntimeError(f"{func.__name__} copies to the accelerator and waits")
        return made


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: int(x.max()),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.bincount(),
        lambda x: x.repeat_interleave(x),
        lambda x: x.cpu(),
        lambda x: x[torch.zeros(1, dtype=torch.long)],
        lambda x: x[[0, 1]],
        lambda x: x + torch.arange(3),
        lambda x: torch.tensor([1], device=x.device),
        lambda x: torch.arange(3).to(x.device),
        lambda x: x.copy_(torch.arange(3)),
    ],
)
def test_what_waits_is_refused(wait: Callable[[Tensor], object]) -> None:
    x = torch.empty(3, dtype=torch.long, device="meta")
    with pytest.raises((RuntimeError, NotImplementedError)), NoCopies():
        wait(x)


@contextmanager
def no_waiting(world: World) -> Iterator[None]:
    if world.device.type == "meta":
        with NoCopies():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def steps(objective: Objective, batches: Sequence[Batch], optim: Optim, world: World) -> Engine:
    """A step of every batch, as the loop makes it, in two micro-batches."""
    execution = Execution(micro_rows=-(-len(batches[0]) // 2))
    engine = Engine(objective, Training(optim=optim, execution=execution), world)
    for number, batch in enumerate(batches):
        counts = engine.objective.counts(batch)
        assert all(counts.values())
        with no_waiting(world):
            engine.step(batch, rows=len(batch), counts=counts, lr=1e-3, number=number)
    assert engine.norm.device.type == world.device.type
    assert engine.optimizer.steps == len(batches) * objective.stages
    return engine


def _mlm(name: str) -> Callable[[Recipe], Objective]:
    return lambda recipe: MLM(build(name), recipe.objective, VOCABULARY)  # type: ignore[arg-type]


def _rtd(name: str, **settings: Any) -> Callable[[Recipe], Objective]:
    def make(recipe: Recipe) -> Objective:
        discriminator = small(name)
        if settings.get("predict", "replaced").startswith("original"):
            discriminator = replace(discriminator, lm=small(f"{name}-generator").lm)
        networks = Model(small(f"{name}-generator")).initialize(0), Model(discriminator).initialize(1)
        return ReplacedTokenDetection(*networks, replace(recipe.objective, **settings), VOCABULARY)  # type: ignore[type-var,arg-type]

    return make


def _distill(**settings: Any) -> Callable[[Recipe], Objective]:
    def make(recipe: Recipe) -> Objective:
        return Distill(build("distilbert-tiny"), build("deberta-tiny", 1), DistillSettings(**settings), VOCABULARY)

    return make


def _causal(divisor: int) -> Callable[[Recipe], Objective]:
    def make(recipe: Recipe) -> Objective:
        config = small("transformer-xl-tiny")
        adaptive = Adaptive(cutoffs=(12, 30), divisor=divisor)
        config = replace(config, encoder=replace(config.encoder, adaptive=adaptive))
        return Causal(Model(config).initialize(0), CausalSettings(memory=12), VOCABULARY)

    return make


MATCHED: dict[str, Any] = {"match": ((0, 0), (1, 2)), "hidden_weight": 1.0, "attention_weight": 1.0}
STREAMS, XLNET = ContiguousStreams(separator=False), XLNetStreams(reuse=8, separator=False)
PRETRAINING: dict[str, tuple[str, Callable[[Recipe], Objective]]] = {
    **{case: (name, make) for case, (name, make, _) in CASES.items()},
    **{name: (f"{name}-tiny", _mlm(f"{name}-tiny")) for name in ("roberta", "albert", "deberta", "deberta-v2")},
    "convbert-mlm": ("bert-tiny", _mlm("convbert-tiny-generator")),
    "convbert": ("convbert-tiny", _rtd("convbert-tiny")),
    "original-masked": ("electra-tiny", _rtd("electra-tiny", predict="original_masked")),
    "original-all": ("electra-tiny", _rtd("electra-tiny", predict="original_all", temperature=0.5)),
    "distill-masked": ("distilbert-tiny", _distill(at="masked", **MATCHED)),
    "distill-attention": ("distilbert-tiny", _distill(attention="distributions", **MATCHED)),
    "adaptive": ("transformer-xl-tiny", _causal(divisor=1)),
    "adaptive-widths": ("transformer-xl-tiny", _causal(divisor=2)),
}


@pytest.mark.parametrize("device", WORLDS)
@pytest.mark.parametrize("case", PRETRAINING)
def test_pretraining(case: str, device: str) -> None:
    name, make = PRETRAINING[case]
    recipe = recipes.recipe(name)
    objective = make(recipe)
    rows = {"causal": STREAMS, "adaptive": STREAMS, "adaptive-widths": STREAMS, "permutation": XLNET}
    form = rows.get(case, recipe.format)
    framing = Framing(kind="xlnet" if case == "permutation" else "bert", cls=2, sep=3, eod=3)
    made = {"framing": framing, "seed": 3, "batch_rows": 8, "transform": lambda r: objective.make_batch(r, seed=3)}
    batches = list(islice(Loader(corpus(), form, 24, **made), 2 if case in rows else 1))
    engine = steps(objective, batches, recipe.optim, WORLDS[device])
    assert isinstance(engine.optimizer.optim, Lamb) == (case == "albert")
    assert (engine.memory is not None) == (case in rows)  # the second batch went on where the first ended


def _plain(objective: TaskObjective) -> TaskObjective:
    return objective


def _sift(objective: TaskObjective) -> TaskObjective:
    return SiFTObjective(objective.model, objective.form, SiFT())


def _taught(objective: TaskObjective) -> TaskObjective:
    return TaughtObjective(objective.model, objective.form, deepcopy(objective.model), Teaching())


@pytest.mark.parametrize(
    ("kind", "family", "change"),
    [
        *((kind, "bert", change) for kind in ("single", "number", "tagged", "choice") for change in (_plain, _taught)),
        *((kind, "deberta-v3", change) for kind in ("single", "number", "tagged", "choice") for change in (_sift,)),
        *(("question", family, _plain) for family in ("bert", "electra", "xlnet")),
        ("question", "bert", _taught),
        ("pair", "xlnet", _plain),
        ("pair", "convbert", _plain),
    ],
)
@pytest.mark.parametrize("device", WORLDS)
def test_finetuning(kind: str, family: str, change: Callable[[TaskObjective], TaskObjective], device: str) -> None:
    """Batches as fine-tuning's source gives them, several texts in a row."""
    task, splits = data(kind, train=24, **({"impossible": True} if kind == "question" else {}))
    start = model(f"{family}-tiny", dropout=0.1)
    form = form_of(completed(task, splits["train"]), start, FormSettings(max_length=48))
    objective = change(TaskObjective(with_head(start, form, seed=1)[0], form))
    items = form.items(splits["train"].examples, train=True)
    source = ItemSource(items, batch=12, room=64, pad=0, mode="packed", seed=1, world=WORLDS[device])
    steps(objective, [next(source)], AdamW(), WORLDS[device])
