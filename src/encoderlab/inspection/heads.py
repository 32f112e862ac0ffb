"""The importance of heads to a loss, and models without some heads (Michel et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from encoderlab.batches.batch import Batch
from encoderlab.errors import ConfigError
from encoderlab.inference import evaluating
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig
from encoderlab.nn.attention import Attention
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.positions import RelativeShift
from encoderlab.nn.pruning import with_heads
from encoderlab.nn.scope import Scope
from encoderlab.objectives.base import Objective, Term


def attentions(encoder: Encoder) -> list[Attention]:
    """The attention module of every layer; layers that share their weights share one module."""
    return list(dict.fromkeys(encoder.block(layer).attention for layer in range(encoder.depth)))


def importance(objective: Objective, encoder: Encoder, batches: Sequence[Batch]) -> np.ndarray:
    """``E |dL / d xi_h|`` of every head, (layers, H) float64 (Michel et al., 2019, section 4.1, equation 2).

    For each text x, take the absolute gradient of its contribution to the objective's loss with respect to a factor
    ``xi_h`` (here 1) on the output of head h; the importance is the sum over texts. If every text is one prediction, it
    is the mean over texts.

    The output o_h of a head enters the loss as ``xi_h o_h``, so the gradient of the factor is <o_h, dL / d o_h>, summed
    over the tokens of the text: one forward and one backward pass give it for all heads, layers and texts, without
    dropout. A text is a document of a row. Attention heads come first, then the parts of a convolution, of the same
    width. Layers that share their weights are one layer here, because they lose heads together; a query stream
    counts with the content stream.

    Args:
        encoder: one of the objective's networks.
        batches: from :meth:`Objective.make_batch`, on the encoder's device.
    """
    counts = _counts(objective, batches)
    modules, totals, memory = attentions(encoder), [], None
    with evaluating(objective), torch.enable_grad():
        for batch in batches:
            with _watched(modules) as calls:
                terms, memory = objective(batch, memory=memory)
                loss = _loss(terms, counts)
                if loss.requires_grad:
                    loss.backward()
            totals.append([_of_texts(batch, calls.get(number, ())) for number in range(len(modules))])
    for parameter in objective.parameters():
        parameter.grad = None
    return np.stack([sum(part) for part in zip(*totals, strict=True)])


@torch.no_grad()
def losses(objective: Objective, batches: Sequence[Batch]) -> dict[str, float]:
    """The mean of every term that the batches have, and their weighted ``loss``, without dropout."""
    counts, memory = _counts(objective, batches), None
    sums = {"loss": 0.0} | {name: 0.0 for name, count in counts.items() if count}
    with evaluating(objective):
        for batch in batches:
            terms, memory = objective(batch, memory=memory)
            sums["loss"] += float(_loss(terms, counts))
            for name in sums.keys() & terms.keys():
                sums[name] += float(terms[name].sum) / counts[name]
    return sums


def _counts(objective: Objective, batches: Sequence[Batch]) -> dict[str, int]:
    every = [objective.counts(batch) for batch in batches]
    return {name: sum(one[name] for one in every) for name in every[0]}


def _loss(terms: dict[str, Term], counts: dict[str, int]) -> Tensor:
    return torch.stack([term.sum * (term.weight / max(counts[name], 1)) for name, term in terms.items()]).sum()


Call = tuple[Tensor, Scope, int]  # outputs of the heads, their scope, and their width


@contextmanager
def _watched(modules: Sequence[Attention]) -> Iterator[dict[int, list[Call]]]:
    """A context in which outputs of the modules' heads keep their gradient: every call of each module by its number."""
    calls: dict[int, list[Call]] = {}

    def keep(number: int) -> Any:
        def hook(module: Attention, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
            if output[0].requires_grad:
                output[0].retain_grad()
                calls.setdefault(number, []).append((output[0], inputs[2], module.head_width))

        return hook

    handles = [module.register_forward_hook(keep(number)) for number, module in enumerate(modules)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _of_texts(batch: Batch, calls: Sequence[Call]) -> np.ndarray | float:
    """Sizes of the gradients of one batch, added over its texts: (H,)."""
    texts = int(batch.on_host.doc.amax()) + 1
    total: Tensor | None = None
    for attended, scope, width in calls:
        if attended.grad is None:
            continue
        by_token = (attended.detach().double() * attended.grad.double()).unflatten(-1, (-1, width)).sum(-1)
        doc = batch.doc.clamp(min=0).long()  # padding has no gradient
        if scope.at is not None:
            doc = doc.gather(1, scope.at)
        of_texts = by_token.new_zeros(len(doc), texts, by_token.shape[-1])
        of_texts.scatter_add_(1, doc[..., None].expand_as(by_token), by_token)
        total = of_texts if total is None else total + of_texts
    return 0.0 if total is None else total.abs().sum((0, 1)).cpu().numpy()


def check_heads(config: ModelConfig, share: float) -> int:
    """The number of heads per layer that are removed for a ``share`` of them.

    Raises:
        ConfigError: the share removes no head, or all; or the model has convolution heads, whose
            kernels are computed from the queries of all attention heads.
    """
    encoder = config.encoder
    if encoder.conv is not None:
        raise ConfigError(
            f"heads of family {config.family} cannot be removed one by one: its convolution makes its kernels from the "
            "queries of all heads; give a model without encoder.conv"
        )
    heads = encoder.heads
    gone = round(heads * share) if 0 < share < 1 else 0
    if not 0 < gone < heads:
        choices = ", ".join(f"{count / heads:.3g}" for count in range(1, heads)) or "a model with more heads"
        raise ConfigError(f"a share {share:g} of {heads} heads per layer removes none or all; give {choices}")
    return gone


def least_important(scores: np.ndarray, gone: int) -> list[list[int]]:
    """The heads that every layer keeps without its ``gone`` least important ones; scores (layers, H).

    Every layer loses the same number, so all keep equal shapes: the encoder is an ordinary one with fewer heads.

    Raises:
        ConfigError: no head would be left.
    """
    if not 0 <= gone < scores.shape[1]:
        raise ConfigError(f"gone is {gone}, and a layer has {scores.shape[1]} heads; give 0 to {scores.shape[1] - 1}")
    order = np.argsort(scores, axis=1, kind="stable")
    return [sorted(row[gone:].tolist()) for row in order]


def without_heads(model: Model, kept: Sequence[Sequence[int]]) -> Model:
    """A copy of the model with only the ``kept`` heads, equally many in each of :func:`attentions`.

    ``encoder.heads`` is their number, ``encoder.head_width`` stays, and their outputs do not change. Not for heads with
    a convolution (:func:`check_heads`).
    """
    encoder, config = model.encoder, model.config.encoder
    modules = attentions(encoder)
    of_block = [kept[modules.index(block.attention)] for block in encoder.blocks]  # type: ignore[union-attr, arg-type]
    weights = with_heads(model.state_dict(), of_block, heads=config.heads, width=config.key_width)
    position = config.position
    if isinstance(position, RelativeShift) and position.shared_biases:  # every layer has its own kept heads
        position = replace(position, shared_biases=False)
        for name in ("u", "v"):
            shared = weights.pop(f"encoder.distances.{name}")
            for number, heads in enumerate(of_block):
                weights[f"encoder.blocks.{number}.attention.term.{name}"] = shared[list(heads)]
    smaller = replace(config, heads=len(of_block[0]), head_width=config.key_width, position=position)
    pruned = Model(replace(model.config, encoder=smaller), model.tokenizer)
    pruned.load_state_dict(weights)
    return pruned.train(model.training)
