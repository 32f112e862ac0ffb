"""A recipe for tiny models, and the objectives of tasks of every form."""

from __future__ import annotations

import torch

from encoderlab.nn.noise import Noise
from encoderlab.tasks.data.splits import completed
from encoderlab.tasks.forms.base import FormSettings
from encoderlab.tasks.forms.features import Frozen
from encoderlab.tasks.forms.objective import TaskObjective, form_of, with_head
from encoderlab.tasks.runs.finetune import FinetuneRecipe
from encoderlab.train.optim import AdamW
from encoderlab.train.schedule import Polynomial
from tests.tasks.synthetic import data
from tests.tasks.tiny import model

RECIPE = FinetuneRecipe(
    epochs=12,
    batch=16,
    optim=AdamW(lr=2e-3, weight_decay=0.0),
    schedule=Polynomial(warmup=0.1),
    form=FormSettings(max_length=48),
)
SMALL = Frozen(layers="last", lstm_layers=1, lstm_width=16)
# The form, its epochs, the score to reach on held-out data of the same rule.
FORMS = [
    ("single", 12, 1.0),
    ("pair", 25, 0.95),
    ("number", 30, 0.95),
    ("several", 25, 0.95),
    ("tagged", 12, 1.0),
    ("question", 15, 1.0),
    ("choice", 12, 1.0),
]


def objective_of(name, size="bert-tiny", dropout=0.0, **more):
    task, splits = data(name, **more)
    task = completed(task, splits["train"])
    start = model(size, dropout=dropout)
    form = form_of(task, start, FormSettings(max_length=48))
    start, _ = with_head(start, form, seed=1)
    return TaskObjective(start, form), form.items(splits["train"].examples, train=True), splits


def gradients(objective, batches, noise=True):
    """The gradient of the mean loss over batches that make up one, as the training loop adds it up."""
    objective.train()
    objective.zero_grad()
    counts: dict[str, int] = {}
    for batch in batches:
        for name, count in objective.counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    for batch in batches:
        terms, _ = objective(batch, noise=Noise(1, 2, batch.rows) if noise else None)
        sum(term.weight * term.sum / max(counts[name], 1) for name, term in terms.items()).backward()
    return torch.cat([p.grad.flatten() for p in objective.parameters() if p.grad is not None])


def task_of(name):
    task, splits = data(name)
    return task, splits["train"]
