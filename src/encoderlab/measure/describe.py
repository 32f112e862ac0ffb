"""An architecture as a tree: shapes, parameters by part, cost and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from encoderlab import models
from encoderlab.model import Model, count_parameters
from encoderlab.models import flops
from encoderlab.models.base import ModelConfig


@dataclass
class Node:
    """A part of the model.

    Its name, the shapes of its own tensors, its parameters with those of its parts, and how often it repeats.
    """

    name: str
    shapes: str
    parameters: int
    times: int = 1
    children: list[Node] = field(default_factory=list)


def tree(config: ModelConfig) -> Node:
    """The model's parts; equal neighbours are listed once, and shared weights count where they first occur."""
    with torch.device("meta"):
        model = Model(config)
    return _node("model", model, set())


def facts(name: str, config: ModelConfig, *, length: int, rows: int) -> dict[str, Any]:
    """The output of ``encoderlab describe NAME --json``.

    ``parameters``: of the encoder, of its embeddings, of each head, and of pretraining (all of it); ``flops``: per
    token at ``length``, by part, forward and training, in our convention and the ELECTRA paper's; ``memory``: of
    training ``rows`` x ``length`` tokens, in bytes.
    """
    predicted = flops.usual_share(config)
    counts = count_parameters(config)
    parts = flops.forward(config, length, predicted=predicted)
    memory = flops.training_memory(config, counts["total"], rows, length, predicted=predicted)
    heads = {part: count for part, count in counts.items() if "." not in part and part not in ("encoder", "total")}
    return {
        "name": name,
        "family": config.family,
        "about": models.FAMILIES[config.family].about.strip(),
        "parameters": {
            "encoder": counts["encoder"],
            "embeddings": counts["encoder.embeddings"],
            "layers": counts["encoder"] - counts["encoder.embeddings"],
            "heads": heads,
            "pretraining": counts["total"],
        },
        "flops": {
            "length": length,
            "predicted": predicted,
            "forward": parts,
            "forward_total": sum(parts.values()),
            "training_total": flops.training(config, length, predicted=predicted),
            "electra_convention": {
                "forward": flops.electra_forward(config, length),
                "training": flops.electra_training(config, length),
            },
        },
        "memory": {
            "rows": rows,
            "length": length,
            **vars(memory),
            "total": memory.total,
        },
    }


def _node(name: str, module: nn.Module, seen: set[int]) -> Node:
    own = [(n, p) for n, p in module.named_parameters(recurse=False) if id(p) not in seen]
    seen.update(id(p) for _, p in own)
    shapes = "  ".join(f"{n} {tuple(p.shape)}" for n, p in own)
    node = Node(name, shapes, sum(p.numel() for _, p in own))
    for child_name, child in module.named_children():
        below = _node(child_name, child, seen)
        node.parameters += below.parameters
        last = node.children[-1] if node.children else None
        if last is not None and last.name.isdigit() and below.name.isdigit() and _parts(last) == _parts(below):
            last.times += 1
        elif below.parameters or below.children:
            node.children.append(below)
    return node


def _parts(node: Node) -> tuple[Any, ...]:
    """What numbered neighbours have in common that are shown as one."""
    return node.shapes, node.parameters, [(child.name, child.shapes) for child in node.children]
