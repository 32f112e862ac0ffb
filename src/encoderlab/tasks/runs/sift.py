"""Scale-invariant fine-tuning (He et al., 2021, section 5.1, as implemented in microsoft/DeBERTa).

The input x of the embeddings' LayerNorm is normalised to unit variance, so that norms of word vectors do not matter,
and perturbed by d: one step along the gradient of the divergence between perturbed and clean predictions. That
divergence at the resulting perturbation is a second loss. It costs about two more forward passes and one backward pass
per step.

    d ~ N(0, start^2), clipped at 2 start;  d += step g / max|g|,  g = gradient of D(f(x + d), f(x)) by d
    loss + weight D(f(x), f(x + d)),  D(p, q) = CE(p -> log q) + CE(q -> log p), both with the first side detached
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.batches.batch import Batch
from encoderlab.config import Bounded, NonNegative
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.nn.noise import SIFT_PASSES, SIFT_START, Noise, mix64, stream
from encoderlab.objectives.base import Memory, Term
from encoderlab.tasks.forms.base import Form
from encoderlab.tasks.forms.batching import TaskBatch
from encoderlab.tasks.forms.objective import TaskObjective

EPS = 1e-7  # of the LayerNorm without weights
WEYL = 0x9E3779B97F4A7C1  # odd, so that products with it are different words


@dataclass(frozen=True, kw_only=True)
class SiFT(Bounded):
    """The adversarial term.

    Args:
        weight: of the divergence in the loss.
        start: standard deviation of the first perturbation.
        step: length of the step along the gradient.
    """

    weight: NonNegative = 5.0
    start: NonNegative = 1e-2
    step: NonNegative = 1e-4


class SiFTObjective(TaskObjective):
    """A task with the adversarial term, which is left out in evaluation (without noise).

    Raises:
        ConfigError: the model has no LayerNorm on its embeddings, or the form has no logits to compare.
    """

    def __init__(self, model: Model, form: Form, settings: SiFT) -> None:
        super().__init__(model, form)
        self.settings = settings
        form.check_supports("sift")
        if model.encoder.embeddings.norm is None:
            raise ConfigError(f"SiFT perturbs the input of the embeddings' LayerNorm; {model.config.family} has none")
        self._clean: Tensor | None = None
        self._shift: Tensor | None = None
        self._on = False
        model.encoder.embeddings.norm.register_forward_pre_hook(lambda _, inputs: self._perturb(inputs[0]))

    def counts(self, batch: Batch) -> dict[str, int]:
        counts = super().counts(batch)
        return counts | {"sift": sum(counts.values())}

    def forward(
        self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None
    ) -> tuple[dict[str, Term], Memory]:
        if noise is None:
            return super().forward(batch, noise=None)
        assert isinstance(batch, TaskBatch)
        self._on = True
        try:
            states = self.states(batch, noise)
            assert self._clean is not None
            clean = self.form.logits(self.model, states, batch, noise).float()
            kept, count = self._clean.detach(), self.counts(batch.on_host)["sift"]
            terms = self.form.terms(self.model, states, batch, noise)
            self._shift = self._start(kept, noise)
            divergence = self.form.divergence(self._logits(kept, batch, noise.derived(SIFT_PASSES + 1)), clean.detach())
            (gradient,) = torch.autograd.grad(divergence, self._shift)
            self._shift = self._ascend(self._shift.detach(), gradient)
            distance = self.form.divergence(self._logits(kept, batch, noise.derived(SIFT_PASSES + 2)), clean)
        finally:
            self._on, self._clean, self._shift = False, None, None
        return terms | {"sift": Term(distance, count, self.settings.weight)}, None

    def _logits(self, kept: Tensor, batch: TaskBatch, noise: Noise) -> Tensor:
        """The logits (n, classes) for embeddings ``kept`` with the current shift."""
        self._clean = kept
        return self.form.logits(self.model, self.states(batch, noise), batch, noise).float()

    def _perturb(self, x: Tensor) -> tuple[Tensor] | None:
        """The input of the LayerNorm: in the first pass the normalised embeddings, which are kept; later these plus the
        shift.
        """
        if not self._on:
            return None
        if self._shift is None:
            self._clean = F.layer_norm(x.float(), x.shape[-1:], eps=EPS)
            return (self._clean.to(x.dtype),)
        assert self._clean is not None
        return ((self._clean + self._shift).to(x.dtype),)

    def _start(self, like: Tensor, noise: Noise) -> Tensor:
        """The first perturbation, shaped as ``like`` (B, L, E); its random numbers depend on step and row."""
        size = like[0].numel()
        places = torch.arange(size, device=like.device)
        bits = mix64(stream(noise.seeds, SIFT_START)[:, None] + (places + 1) * WEYL)
        uniform = ((bits >> 11) & ((1 << 52) - 1)).double() / (1 << 52) + 2.0**-53  # 52 bits, neither 0 nor 1
        normal = (torch.special.ndtri(uniform) * self.settings.start).float().view_as(like)
        return normal.clamp(-2 * self.settings.start, 2 * self.settings.start).requires_grad_()

    def _ascend(self, shift: Tensor, gradient: Tensor) -> Tensor:
        """One step along the gradient, or none if it is not finite."""
        ascended = shift + self.settings.step * gradient / (1e-6 + gradient.abs().amax(-1, keepdim=True))
        return torch.where(gradient.isfinite().all(), ascended, shift)
