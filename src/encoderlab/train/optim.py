"""AdamW, BERT's Adam without bias correction, LAMB and Muon; exemptions from weight decay, and learning rates by layer.

State is the running averages ``exp_avg`` and ``exp_avg_sq`` under the parameter's name (for Muon's matrices only the
first) and nothing else, so that checkpoints of all optimisers look alike. Under FSDP2 each process updates its own
shards.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from encoderlab.config import Bounded, NonNegative, Positive, PositiveShare, Rate
from encoderlab.errors import ConfigError
from encoderlab.nn.attention import Attention
from encoderlab.nn.encoder import Encoder
from encoderlab.nn.norms import HeadScale

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS = (3.4445, -4.7750, 2.0315), 5
MUON_RMS = 0.2  # RMS of an update at rate 1, about that of AdamW
UNCORRECTED = 2.0**24  # a step count at which Adam's bias corrections are exactly 1


@dataclass(frozen=True, kw_only=True)
class LayerDecay(Bounded):
    """Multiply the rate of a parameter by ``decay ** (L + offset - depth)`` (ELECTRA; XLNet).

    Depth is 0 for embeddings, i + 1 for layer i (from 0); heads have the full rate. Offset 2 is ELECTRA's and
    ConvBERT's code, which gives the top layer ``decay ** 2`` (google-research/electra#51); 1 was intended; 0 is
    XLNet's, whose top layer has the full rate.
    """

    decay: PositiveShare = 0.8
    offset: Literal[0, 1, 2] = 2


@dataclass(frozen=True, kw_only=True)
class _Adam(Bounded):
    """Fields common to all optimisers.

    ``no_decay`` names the parameters without weight decay, by kind: parameters of norms, and bias vectors of any
    module.
    """

    lr: Positive = 1e-4
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    eps: Positive = 1e-6
    weight_decay: NonNegative = 0.01
    corrected: ClassVar[bool] = True  # whether averages are corrected for their start at zero
    no_decay: tuple[Literal["norm", "bias"], ...] = ("norm", "bias")
    layer_decay: LayerDecay | None = None


@dataclass(frozen=True, kw_only=True)
class AdamW(_Adam):
    """Adam with bias correction and decoupled weight decay (Kingma and Ba, 2015; Loshchilov and Hutter, 2019).

    ``w -= lr (m^ / (sqrt(v^) + eps) + wd w)`` with bias-corrected averages m^, v^ of gradients and their squares.
    RoBERTa, DistilBERT, fine-tuning.
    """

    kind: Literal["adamw"] = "adamw"


@dataclass(frozen=True, kw_only=True)
class BertAdam(_Adam):
    """Adam without bias correction, ``w -= lr (m / (sqrt(v) + eps) + wd w)`` (Devlin et al., 2019, code).

    BERT, ELECTRA, ConvBERT, XLNet, DeBERTa pretraining.
    """

    kind: Literal["bert_adam"] = "bert_adam"
    corrected = False


@dataclass(frozen=True, kw_only=True)
class Lamb(_Adam):
    """BERT's update u, scaled per tensor by ||w|| / ||u|| (You et al., 2020; without bias correction, as in ALBERT's
    code).

    Norms and biases take the unscaled update, as does a tensor whose ||w|| or ||u|| is 0.
    """

    kind: Literal["lamb"] = "lamb"
    corrected = False


@dataclass(frozen=True, kw_only=True)
class Muon(_Adam):
    """Orthogonalised momentum for the matrices of the layers (Jordan et al., 2024), AdamW for everything else.

    With gradients G: ``M = momentum M + G``, ``w -= lr (0.2 sqrt(max(m, n)) O + wd w)``, where O (m, n) is ``G +
    momentum M`` with all singular values brought near 1 by five Newton-Schulz iterations (m <= n, or transposed): ``X =
    a X + (b X X' + c (X X')^2) X`` with a, b, c = 3.4445, -4.7750, 2.0315, from ``X = G / ||G||``. The factor 0.2 gives
    the update the root mean square of AdamW's updates, so that one rate serves both (Liu et al., 2025, section 2.2).
    Queries, keys and values are three matrices.

    Cost: 5 (4 m^2 n + 2 m^3) operations per matrix and step, which budgets in FLOPs count; one moment instead of two.
    """

    kind: Literal["muon"] = "muon"
    momentum: Rate = 0.95


@dataclass(frozen=True, kw_only=True)
class StableAdamW(_Adam):
    """AdamW with update clipping: each tensor's rate is divided by ``max(1, RMS(g / sqrt(v)))``.

    So a gradient much larger than the average of earlier gradients does not move the weights far (Wortsman et al.,
    2023, section 3.5; AdaFactor's update clipping). ModernBERT; replaces clipping of the gradient's norm.

    Cost: AdamW's, and one more pass over gradients and squares.
    """

    kind: Literal["stable_adamw"] = "stable_adamw"


Optim = AdamW | BertAdam | Lamb | Muon | StableAdamW


@dataclass(frozen=True)
class Group:
    """Parameters with the same decay and the same multiple of the rate."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    weight_decay: float
    rate: float
    matrices: bool  # False for norms and biases, which LAMB does not scale
    orthogonal: bool = False  # whether Muon orthogonalises its updates


def group_parameters(module: nn.Module, optim: Optim) -> list[Group]:
    """The trainable parameters of ``module``, each exactly once (tied ones under their first name).

    Raises:
        ConfigError: rates by layer, but an encoder's parameter belongs to no layer or layers share weights.
    """
    rates = _layer_rates(module, optim.layer_decay) if optim.layer_decay else {}
    hidden = _layer_matrices(module) if isinstance(optim, Muon) else set()
    groups: dict[tuple[bool, bool, bool, float], list[tuple[str, nn.Parameter]]] = {}
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for leaf, parameter in owner.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{prefix}.{leaf}" if prefix else leaf
            small = "norm" if isinstance(owner, (*NORMS, HeadScale)) else "bias" if parameter.ndim == 1 else None
            key = (small is None, name in hidden, small not in optim.no_decay, rates.get(name, 1.0))
            groups.setdefault(key, []).append((name, parameter))
    return [
        Group(
            names=tuple(name for name, _ in members),
            parameters=tuple(parameter for _, parameter in members),
            weight_decay=optim.weight_decay if decayed else 0.0,
            rate=rate,
            matrices=matrices,
            orthogonal=orthogonal,
        )
        for (matrices, orthogonal, decayed, rate), members in groups.items()
    ]


def update_operations(groups: list[Group]) -> float:
    """FLOPs of one update's matrix products: Muon's iterations."""
    sizes = [
        (min(part.shape), max(part.shape))
        for group in groups
        if group.orthogonal
        for name, weight in zip(group.names, group.parameters, strict=True)
        for part in _published_tensors(name, weight.detach())
    ]
    return float(sum(NEWTON_SCHULZ_STEPS * (4 * m * m * n + 2 * m**3) for m, n in sizes))


def _layer_matrices(module: nn.Module) -> set[str]:
    """The names of the linear maps inside the layers of all encoders, without tables, heads and convolutions."""
    return {
        f"{prefix}.{leaf}"
        for prefix, owner in module.named_modules()
        for leaf, parameter in owner.named_parameters(recurse=False)
        if "blocks." in prefix and parameter.ndim == 2 and isinstance(owner, (nn.Linear, Attention))
    }


def _layer_rates(module: nn.Module, settings: LayerDecay) -> dict[str, float]:
    """The multiple of the rate for every parameter inside an encoder; parameters outside are heads and have 1."""
    encoders = {prefix: part for prefix, part in module.named_modules() if isinstance(part, Encoder)}
    if not encoders:
        raise ConfigError(
            "layer-wise rates need an encoder with layers; this model has none: set optim.layer_decay to null"
        )
    rates = {}
    for prefix, encoder in encoders.items():
        layers = encoder.config.layers
        if encoder.config.sharing is not None:
            raise ConfigError(
                "layer-wise rates do not work for layers that share weights; set optim.layer_decay to null"
            )
        for name, _ in encoder.named_parameters():
            depth = _depth(name, layers)
            rates[f"{prefix}.{name}" if prefix else name] = settings.decay ** (layers + settings.offset - depth)
    return rates


def _depth(name: str, layers: int) -> int:
    """The depth of a parameter, see :class:`LayerDecay`.

    0 for the embeddings and for tables that all layers share, i + 1 for layer i (from 0) and for parts whose output is
    added to its output, L for the last norm.
    """
    if match := re.match(r"blocks\.(\d+)\.", name):
        return int(match[1]) + 1
    known = {"embeddings": 0, "distances": 0, "stem": 1, "norm": layers}
    part = name.split(".")[0]
    if part not in known:
        raise ConfigError(
            f"layer-wise rates: parameter {name!r} of the encoder belongs to no layer; "
            "give its part a depth in train/optim.py"
        )
    return known[part]


class Shards(NamedTuple):
    """The parameters of a group that have gradients, as this process's tensors; all lists have the same order.

    ``means`` and ``squares`` are the running averages of the gradients and of their squares.
    """

    names: list[str]
    weights: list[Tensor]
    grads: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]


class Optimizer:
    """An optimiser of :data:`Optim` over groups of parameters; each step gets its rate."""

    def __init__(self, groups: list[Group], optim: Optim) -> None:
        sharded = any(isinstance(p, DTensor) for group in groups for p in group.parameters)
        if sharded and isinstance(optim, Muon):
            raise ConfigError(f"{optim.kind} needs whole matrices, and fsdp shards them; set execution.parallel=ddp")
        self.groups, self.optim, self.sharded = groups, optim, sharded
        self.state: dict[str, dict[str, Tensor]] = {
            name: {
                kind: torch.zeros_like(parameter)
                for kind in (["exp_avg"] if group.orthogonal else ["exp_avg", "exp_avg_sq"])
            }
            for group in groups
            for name, parameter in zip(group.names, group.parameters, strict=True)
        }
        self.steps = 0
        """Number of updates so far, for AdamW's bias correction."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.groups for parameter in group.parameters]

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in the order of :attr:`parameters`."""
        names = [name for group in self.groups for name in group.names]
        return dict(zip(names, self.parameters, strict=True))

    @torch.no_grad()
    def step(
        self, lr: float, *, grad_scale: Tensor | None = None, skip: Tensor | None = None, counted: bool = False
    ) -> None:
        """Update the parameters that have gradients, with rate ``lr``; overwrites the gradients.

        Args:
            lr: learning rate.
            grad_scale: divides the gradients first.
            skip: 1 leaves all parameters unchanged. Both are float scalars on the parameters' device, so that neither
                clipping nor a gradient that is not finite makes the host wait.
            counted: an earlier call, for other parameters, has counted this step.
        """
        self.steps += not counted
        adam, lamb, stable = self._adam, self._lamb, self._stable
        own = {AdamW: adam, BertAdam: adam, Muon: adam, Lamb: lamb, StableAdamW: stable}[type(self.optim)]
        for group in self.groups:
            kept = [(n, p) for n, p in zip(group.names, group.parameters, strict=True) if p.grad is not None]
            if not kept:
                continue
            shards = Shards(
                names=[n for n, _ in kept],
                weights=[local(p) for _, p in kept],
                grads=[local(p.grad) for _, p in kept if p.grad is not None],
                means=[local(self.state[n]["exp_avg"]) for n, _ in kept],
                squares=[] if group.orthogonal else [local(self.state[n]["exp_avg_sq"]) for n, _ in kept],
            )
            update = self._muon if group.orthogonal else own
            update(group, shards, lr, grad_scale, skip)

    def _adam(self, group: Group, shards: Shards, lr: float, grad_scale: Tensor | None, skip: Tensor | None) -> None:
        """One fused pass over memory; BERT's Adam is AdamW at a step count at which both corrections are 1."""
        count = float(self.steps) if self.optim.corrected else UNCORRECTED
        step = torch.full((), count, device=shards.weights[0].device)
        torch._fused_adamw_(
            shards.weights,
            shards.grads,
            shards.means,
            shards.squares,
            [],
            [step] * len(shards.weights),
            lr=lr * group.rate,
            beta1=self.optim.betas[0],
            beta2=self.optim.betas[1],
            weight_decay=group.weight_decay,
            eps=self.optim.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=grad_scale,
            found_inf=skip,
        )

    def _stable(self, group: Group, shards: Shards, lr: float, grad_scale: Tensor | None, skip: Tensor | None) -> None:
        """The formula of :class:`StableAdamW`; under FSDP the mean of a tensor is one over its shards."""
        _, weights, grads, means, squares = shards
        (beta1, beta2), eps = self.optim.betas, self.optim.eps
        left_out = self._averaged(shards, grad_scale, skip)
        second = torch._foreach_div(squares, 1 - beta2**self.steps)
        for grad, variance in zip(grads, second, strict=True):
            grad.square_().div_(variance.clamp(min=max(eps**2, torch.finfo(torch.float32).tiny)))
        sizes = dict(zip(group.names, (parameter.numel() for parameter in group.parameters), strict=True))
        totals = self._over_shards(torch.stack([grad.sum() for grad in grads]))
        means_of_squares = totals / totals.new_tensor([sizes[name] for name in shards.names])
        surprise = means_of_squares.sqrt().clamp(min=1.0)
        rates = list(torch.where(left_out, 0.0, lr * group.rate / surprise).unbind())
        torch._foreach_mul_(weights, [1 - rate * group.weight_decay for rate in rates])
        torch._foreach_sqrt_(second)
        torch._foreach_add_(second, eps)
        update = torch._foreach_div(means, second)
        torch._foreach_mul_(update, [-rate / (1 - beta1**self.steps) for rate in rates])
        torch._foreach_add_(weights, update)

    def _lamb(self, group: Group, shards: Shards, lr: float, grad_scale: Tensor | None, skip: Tensor | None) -> None:
        """The formula of :class:`Lamb`; under FSDP the norm of a tensor is one over its shards."""
        names, weights, _, means, squares = shards
        left_out = self._averaged(shards, grad_scale, skip)
        update = torch._foreach_sqrt(squares)
        torch._foreach_add_(update, self.optim.eps)
        torch._foreach_reciprocal_(update)
        torch._foreach_mul_(update, means)
        torch._foreach_add_(update, weights, alpha=group.weight_decay)
        if group.matrices:
            # The original scales queries, keys and values each by their own ratio; here they are thirds of one tensor.
            whole = dict(zip(group.names, group.parameters, strict=True))
            update_parts = [part for n, u in zip(names, update, strict=True) for part in _parts(n, u, whole[n])]
            weight_parts = [part for n, w in zip(names, weights, strict=True) for part in _parts(n, w, whole[n])]
            of_weights, of_update = self._norms(weight_parts), self._norms(update_parts)
            ratios = torch.where((of_weights > 0) & (of_update > 0), of_weights / of_update, 1.0)
            torch._foreach_mul_(update_parts, list(ratios.unbind()))
        torch._foreach_mul_(update, torch.where(left_out, 0.0, 1.0))
        torch._foreach_add_(weights, update, alpha=-lr * group.rate)

    def _averaged(self, shards: Shards, grad_scale: Tensor | None, skip: Tensor | None) -> Tensor:
        """Update both running averages; returns whether the step is skipped, as :func:`_prepare`."""
        _, _, grads, means, squares = shards
        beta1, beta2 = self.optim.betas
        left_out = _prepare(grads, grad_scale, skip)
        torch._foreach_lerp_(means, grads, [torch.where(left_out, 0.0, 1 - beta1)] * len(grads))
        torch._foreach_mul_(squares, torch.where(left_out, 1.0, beta2))
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        return left_out

    def _norms(self, parts: list[Tensor]) -> Tensor:
        """The L2 norms of the tensors that ``parts`` are shards of."""
        norms = torch.stack(torch._foreach_norm(parts))
        return self._over_shards(norms.square()).sqrt() if self.sharded else norms

    def _over_shards(self, sums: Tensor) -> Tensor:
        """``sums`` of shards, added up over the processes that have the other shards."""
        if self.sharded:
            dist.all_reduce(sums)
        return sums

    def _muon(self, group: Group, shards: Shards, lr: float, grad_scale: Tensor | None, skip: Tensor | None) -> None:
        """The formula of :class:`Muon`; matrices of equal shape are iterated together."""
        assert isinstance(self.optim, Muon)
        names, weights, grads, means, _ = shards
        left_out = _prepare(grads, grad_scale, skip)
        torch._foreach_mul_(means, torch.where(left_out, 1.0, self.optim.momentum))
        torch._foreach_add_(means, grads)
        torch._foreach_add_(grads, means, alpha=self.optim.momentum)  # Nesterov momentum
        rate = torch.where(left_out, 0.0, lr * group.rate)
        shapes: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for name, weight, grad in zip(names, weights, grads, strict=True):
            for parts in zip(_published_tensors(name, weight), _published_tensors(name, grad), strict=True):
                shapes.setdefault(parts[0].shape, []).append(parts)
        torch._foreach_mul_(weights, 1 - rate * group.weight_decay)
        for shape, pairs in shapes.items():
            updates = orthogonalised(torch.stack([grad for _, grad in pairs]))
            factor = -rate * (MUON_RMS * max(shape) ** 0.5)
            for (weight, _), update in zip(pairs, updates.unbind(), strict=True):
                weight.add_(update * factor)

    @cached_property  # because the loop asks at every step
    def operations(self) -> float:
        """:func:`update_operations` of its groups."""
        return update_operations(self.groups)

    @torch.no_grad()
    def update_ratio(self, lr: float) -> Tensor:
        """||last update|| / ||weights|| over all matrices, without weight decay, float32 scalar.

        Healthy encoders have 1e-4 to 1e-2. Reads moments and weights once. For LAMB it equals the rate; for Muon's
        matrices the nominal root mean square of the update is used; for StableAdamW the update at the full rate.
        """
        if isinstance(self.optim, Lamb):
            return torch.tensor(lr)
        count = max(self.steps, 1) if self.optim.corrected else UNCORRECTED  # 0: every step was skipped
        (beta1, beta2), eps = self.optim.betas, self.optim.eps
        first, second = 1 - beta1**count, math.sqrt(1 - beta2**count)
        moved, length = [], []
        for group in (group for group in self.groups if group.matrices):
            for name, weight in zip(group.names, group.parameters, strict=True):
                length.append(torch.linalg.vector_norm(local(weight)).float())
                if group.orthogonal:
                    size = lr * group.rate * MUON_RMS * weight.numel() ** 0.5 if self.steps else 0.0
                    moved.append(length[-1].new_tensor(size))
                    continue
                root = local(self.state[name]["exp_avg_sq"]).sqrt().div_(second).add_(eps)
                update = torch.div(local(self.state[name]["exp_avg"]), root, out=root)
                moved.append(torch.linalg.vector_norm(update).float() * (lr * group.rate / first))
        sums = self._over_shards(torch.stack([torch.stack(norms).square().sum() for norms in (moved, length)]))
        return (sums[0] / sums[1]).sqrt()


def _prepare(grads: list[Tensor], grad_scale: Tensor | None, skip: Tensor | None) -> Tensor:
    """Divide the gradients by ``grad_scale``, and set them to 0 if the step is skipped.

    Returns whether it is skipped as a tensor on the device, because the host does not know; a skipped step then uses
    factors that change nothing.
    """
    left_out = torch.zeros((), dtype=torch.bool, device=grads[0].device) if skip is None else skip.bool()
    if grad_scale is not None:
        torch._foreach_div_(grads, grad_scale)
    for grad in grads:
        grad.masked_fill_(left_out, 0.0)
    return left_out


def orthogonalised(matrices: Tensor) -> Tensor:
    """``matrices`` (N, m, n) with the same singular vectors and singular values of about 0.7 to 1.2 (:class:`Muon`).

    Matrices of zeros stay zero. On a GPU it computes in bfloat16, without loss of quality (Jordan et al., 2024).
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(gram, gram, gram, beta=NEWTON_SCHULZ[1], alpha=NEWTON_SCHULZ[2]), x, beta=NEWTON_SCHULZ[0]
        )
    return (x.mT if tall else x).to(matrices.dtype)


def _published_tensors(name: str, tensor: Tensor) -> tuple[Tensor, ...]:
    """The original implementation's tensors inside ``tensor``, as views."""
    return tensor.chunk(3) if name.rsplit(".", 1)[-1] == "qkv" else (tensor,)


def _parts(name: str, shard: Tensor, whole: Tensor) -> tuple[Tensor, ...]:
    """:func:`_published_tensors` of ``whole``, as far as they lie in this process's ``shard`` of it (rows in a row)."""
    if not isinstance(whole, DTensor):
        return _published_tensors(name, shard)
    first = compute_local_shape_and_global_offset(whole.shape, whole.device_mesh, whole.placements)[1][0]
    rows = [len(part) for part in _published_tensors(name, torch.empty(whole.shape, device="meta"))]
    ends = [min(max(end - first, 0), len(shard)) for end in itertools.accumulate(rows)]
    return tuple(shard[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True))


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a sharded tensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def global_norm(parameters: list[nn.Parameter]) -> Tensor:
    """The L2 norm of all gradients together over all shards, float32 scalar."""
    grads = [local(p.grad) for p in parameters if p.grad is not None]
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(grads)])
    if not any(isinstance(p, DTensor) for p in parameters):
        return torch.linalg.vector_norm(norms)
    squared = norms.square().sum()
    dist.all_reduce(squared)
    return squared.sqrt()
