"""Distillation of a masked language model (Sanh et al., 2019, section 2).

Hidden states and attention are matched as in Jiao et al. (2020), attention also as in Sun et al. (2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderlab.batches.batch import Batch
from encoderlab.batches.corrupt import Masking, RareTokens
from encoderlab.batches.rows import Row
from encoderlab.config import NonNegative, Positive
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models import flops
from encoderlab.models.base import ModelConfig
from encoderlab.nn import kernels
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import LMHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Losses, Memory, Objective, Settings, Term
from encoderlab.objectives.mlm import Masker, asked, lm_term, predicted, require_weight, tokens
from encoderlab.objectives.vocabulary import Vocabulary
from encoderlab.seeds import derive


@dataclass(frozen=True, kw_only=True)
class DistillSettings(Settings):
    """Settings of :class:`Distill`; a weight of 0 removes its term. Defaults are DistilBERT's.

    Args:
        teacher: a model folder.
        masking: which tokens are hidden from student and teacher.
        temperature: divides the logits that are compared.
        at: where logits are compared: at all ``real`` tokens (DistilBERT), or at the ``masked`` tokens.
        logits_weight: of the divergence between the distributions over the vocabulary.
        mlm_weight: of the student's masked-LM loss.
        cosine_weight: of the angle between the last layers' states.
        hidden_weight: of the difference between the states of the layers in ``match``.
        attention_weight: of the difference between the attention of the layers in ``match``.
        attention: compared as ``scores`` before the softmax (TinyBERT), or as ``distributions`` (MobileBERT).
        student_from: teacher layers whose weights start the student's layers, in order; empty for fresh weights.
            Ignored if the student has trained weights (``init_from``).
        match: pairs (student layer, teacher layer); layer 0 is the embedding output, which has no attention.

    Raises:
        ConfigError: values that do not fit together.
    """

    kind: Literal["distill"] = "distill"
    teacher: str = ""
    masking: Masking = Masking(unit=RareTokens(), count="stochastic", random_from="all")
    temperature: Positive = 2.0
    at: Literal["real", "masked"] = "real"
    logits_weight: NonNegative = 5.0
    mlm_weight: NonNegative = 2.0
    cosine_weight: NonNegative = 1.0
    hidden_weight: NonNegative = 0.0
    attention_weight: NonNegative = 0.0
    attention: Literal["scores", "distributions"] = "scores"
    student_from: tuple[int, ...] = ()
    match: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        weights = [f"{name}_weight" for name in ("logits", "mlm", "cosine", "hidden", "attention")]
        super().__post_init__()
        require_weight(self, *weights)
        if (self.hidden_weight or self.attention_weight) and not self.match:
            raise ConfigError(
                "hidden_weight and attention_weight need pairs of layers in match, such as [[1, 2], [2, 4]]"
            )
        if self.attention_weight:
            for own, their in self.match:
                if own and not their:
                    raise ConfigError(
                        f"match pair {[own, their]} compares attention, but layer 0, the embedding output, has none; "
                        "name a teacher layer from 1 on, or set attention_weight to 0"
                    )
            if not any(own for own, _ in self.match):
                raise ConfigError(
                    "attention_weight needs a match pair of a student layer from 1 on, such as [1, 2]; "
                    "layer 0, the embedding output, has no attention"
                )

    def build(
        self, model: Model, second: Model | None, vocabulary: Vocabulary, *, seed: int = 0, continued: bool = False
    ) -> Distill:
        """As :meth:`Settings.build`; a ``continued`` student keeps its layers, ``seed`` fills maps between different
        widths.
        """
        assert second is not None
        settings = replace(self, student_from=()) if continued else self
        return Distill(model, second, settings, vocabulary, seed=seed)

    def compared(self, length: int) -> float:
        if not self.logits_weight:
            return 0.0
        return 1.0 if self.at == "real" else self.masking.mean_share(length)

    def operations(self, model: ModelConfig, second: ModelConfig | None, length: int) -> float:
        masked, compared = self.masking.mean_share(length) if self.mlm_weight else 0.0, self.compared(length)
        matched = sum(own > 0 for own, _ in self.match) if self.attention_weight else 0
        student = flops.whole_forward(model, length, predicted=compared + masked)  # each has a vocabulary head
        student += matched * flops.attention_scores(model.encoder, length)
        if second is None:
            return (1 + flops.BACKWARD) * student
        widths = model.encoder.width, second.encoder.width
        if self.hidden_weight and widths[0] != widths[1]:
            student += len(self.match) * 2.0 * widths[0] * widths[1]
        teacher = flops.whole_forward(second, length, predicted=compared)
        return (1 + flops.BACKWARD) * student + teacher + matched * flops.attention_scores(second.encoder, length)


class Distill(Objective):
    """Train a student to reproduce the teacher's distribution, with the masked-LM loss and matching of states.

    Terms, each a sum over tokens: ``logits`` ``T^2 KL(teacher / T || student / T)`` with temperature T; ``mlm``;
    ``cosine`` ``1 - cos`` of the last states of real tokens; ``hidden``, mean squared differences of the matched layers
    (a trained matrix, filled from ``seed``, maps the student's states where widths differ); ``attention``, mean squared
    differences of attention scores, or ``KL(teacher || student)`` of attention distributions. The teacher runs without
    gradient in evaluation mode; its LM head computes only the compared places. Costs one forward pass of the teacher
    per batch.
    """

    per_token = ("mlm",)

    def __init__(
        self, student: Model, teacher: Model, settings: DistillSettings, vocabulary: Vocabulary, *, seed: int = 0
    ) -> None:
        super().__init__()
        _check(student, teacher, settings)
        self.student, self.settings = student, settings
        self.masker = Masker(settings.masking, vocabulary)
        self._teacher = (teacher.eval().requires_grad_(False),)  # the tuple hides the teacher from training and saving
        widths = student.config.encoder.width, teacher.config.encoder.width
        self.maps = None
        if settings.hidden_weight and widths[0] != widths[1]:
            deviation = student.config.encoder.init_std
            self.maps = nn.ModuleList(
                _map(*widths, deviation, derive(seed, "map", i)) for i in range(len(settings.match))
            )
        if settings.student_from:
            copy_layers(student, teacher, settings.student_from)

    @property
    def teacher(self) -> Model:
        return self._teacher[0]

    def _apply(self, *args: Any, **kwargs: Any) -> Distill:
        self.teacher._apply(*args, **kwargs)  # follow .to(device)
        return super()._apply(*args, **kwargs)

    def make_batch(self, rows: list[Row], *, seed: int) -> Batch:
        return self.masker(rows, seed)

    def counts(self, batch: Batch) -> dict[str, int]:
        settings, masked = self.settings, int(asked(batch).sum())
        counts = {}
        if settings.logits_weight:
            counts["logits"] = batch.num_tokens if settings.at == "real" else masked
        if settings.mlm_weight:
            counts["mlm"] = masked
        for name in ("cosine", "hidden", "attention"):
            if getattr(settings, f"{name}_weight"):
                counts[name] = batch.num_tokens
        return counts

    def forward(self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None) -> Losses:
        settings, student, teacher = self.settings, self.student, self.teacher
        every = tokens(batch)
        real = every.rows, every.places
        chosen, targets = predicted(batch)
        states = student.encoder(batch.ids, doc=batch.documents, segments=batch.segments, noise=noise)
        with torch.no_grad():
            theirs = teacher.encoder(batch.ids, doc=batch.documents, segments=batch.segments)
        terms: dict[str, Term] = {}
        if settings.logits_weight:
            compared = every if settings.at == "real" else chosen
            with torch.no_grad():
                target = teacher.token_logits(theirs, compared)
            logits = student.token_logits(states, compared, noise)
            terms["logits"] = soft_term(logits, target, settings.temperature, settings.logits_weight)
        if settings.mlm_weight:
            term = lm_term(student, student.token_states(states, chosen, noise), targets)
            terms["mlm"] = replace(term, weight=settings.mlm_weight)
        if settings.cosine_weight:
            close = F.cosine_similarity(states.last[real].float(), theirs.last[real].float(), dim=-1)
            terms["cosine"] = Term((1 - close).sum(), len(close), settings.cosine_weight)
        if settings.hidden_weight:
            terms["hidden"] = Term(self._hidden(states, theirs, real), len(real[0]), settings.hidden_weight)
        if settings.attention_weight:
            terms["attention"] = Term(self._attention(states, theirs, batch), len(real[0]), settings.attention_weight)
        return terms, None

    def models(self) -> dict[str, Model]:
        return {"model": self.student}

    def _hidden(self, states: States, theirs: States, real: tuple[Tensor, ...]) -> Tensor:
        """Squared differences of the matched layers' states, averaged over the width, summed over tokens and pairs."""
        total = states.last.new_zeros(())
        for i, (own, their) in enumerate(self.settings.match):
            mine = states.layers[own][real]
            mine = mine if self.maps is None else self.maps[i](mine)
            total = total + (mine.float() - theirs.layers[their][real].float()).square().mean(-1).sum()
        return total

    def _attention(self, states: States, theirs: States, batch: Batch) -> Tensor:
        """Differences of attention, summed over queries.

        Squared differences of the scores before the softmax, averaged over heads and keys (Jiao et al., 2020, eq. 7),
        or ``KL(teacher || student)`` of the distributions, averaged over heads (Sun et al., 2020, section 3.2). Only
        keys that both layers see count.
        """
        total = states.last.new_zeros(())
        for own, their in self.settings.match:
            if own == 0:
                continue
            seen = self._seen_by_both(batch.doc, own - 1, their - 1)
            mine = self.student.encoder.attention_scores(states, own - 1)
            with torch.no_grad():
                target = self.teacher.encoder.attention_scores(theirs, their - 1)
            if self.settings.attention == "scores":
                gap = ((mine.float() - target.float()).square().mean(1) * seen).sum(-1) / seen.sum(-1).clamp(min=1)
            else:
                ours, targets = (_log_attention(scores.float(), seen) for scores in (mine, target))
                gap = F.kl_div(ours, targets, log_target=True, reduction="none").sum(-1).mean(1) * seen.any(-1)
            total = total + gap.sum()
        return total

    def _seen_by_both(self, doc: Tensor, own: int, their: int) -> Tensor:
        """Which keys layer ``own`` of the student and layer ``their`` of the teacher (from 0) see, (B, L, L): tokens of
        the same document, within the reach of local layers.
        """
        seen = (doc[:, :, None] == doc[:, None, :]) & (doc >= 0)[:, :, None]
        place = torch.arange(doc.shape[1], device=doc.device)
        for model, layer in ((self.student, own), (self.teacher, their)):
            local = model.config.encoder.local
            if local is not None and not local.sees_all(layer):
                seen = seen & ((place[:, None] - place).abs() <= local.reach)
        return seen


def _log_attention(scores: Tensor, seen: Tensor) -> Tensor:
    """Log-probabilities of attention (B, H, L, M) over the keys in ``seen`` (B, L, M)."""
    return scores.masked_fill(~seen[:, None], torch.finfo(scores.dtype).min).log_softmax(-1)


def _map(inputs: int, outputs: int, deviation: float, seed: int) -> nn.Linear:
    """A linear map without bias; its normal weights depend only on ``seed``."""
    made = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)
    drawn = torch.empty(outputs, inputs, device="cpu")
    with torch.no_grad():
        made.weight.copy_(drawn.normal_(std=deviation, generator=torch.Generator().manual_seed(seed >> 1)))
    return made


def soft_term(logits: Tensor, targets: Tensor, temperature: float, weight: float) -> Term:
    """``T^2 KL(softmax(targets / T) || softmax(logits / T))``, summed over (S, V) rows; hits count equal
    first choices.
    """
    loss, hits = kernels.divergence(logits, targets, temperature)
    return Term(loss * temperature**2, len(logits), weight, hits)


@torch.no_grad()
def copy_layers(student: Model, teacher: Model, layers: tuple[int, ...]) -> None:
    """Copy from the teacher into the student: embeddings, LM head, and teacher layer ``layers[i]`` into layer i.

    Tables and heads of another shape are not copied.

    Raises:
        ConfigError: a layer does not exist, the student's layers share weights, or shapes of layers differ.
    """
    if student.config.encoder.sharing is not None:
        raise ConfigError(
            "student_from names a teacher's layer for each layer, but the student's share weights; leave it empty"
        )
    depth, available = student.encoder.depth, teacher.encoder.depth
    if len(layers) != depth or not all(0 <= i < available for i in layers):
        raise ConfigError(f"student_from {list(layers)} must name {depth} teacher layers between 0 and {available - 1}")
    pairs = [(student.encoder.block(i), teacher.encoder.block(j)) for i, j in enumerate(layers)]
    for own, theirs in pairs:
        ours, weights = own.state_dict(), theirs.state_dict()
        if {k: v.shape for k, v in ours.items()} != {k: v.shape for k, v in weights.items()}:
            raise ConfigError(
                "student_from copies whole layers, but student and teacher layers differ in shape; leave it empty"
            )
        own.load_state_dict(weights)
    outside = {k: v for k, v in teacher.state_dict().items() if not k.startswith("encoder.blocks.")}
    target = student.state_dict()
    fitting = {k: v for k, v in outside.items() if k in target and target[k].shape == v.shape}
    student.load_state_dict(fitting, strict=False)


def _check(student: Model, teacher: Model, settings: DistillSettings) -> None:
    sizes = student.config.encoder.vocab, teacher.config.encoder.vocab
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"student and teacher have {sizes[0]} and {sizes[1]} ids; distillation needs one tokenizer for both"
        )
    for role, model in (("student", student), ("teacher", teacher)):
        if (settings.logits_weight or role == "student" and settings.mlm_weight) and not isinstance(model.lm, LMHead):
            raise ConfigError(f"the {role} has no LM head; give a masked language model, or set its weights to 0")
        if model.config.encoder.causal:
            raise ConfigError(
                f"the {role} attends to the left only, but masked tokens need both sides; "
                "set encoder.causal to false, or take another model"
            )
    mine, theirs = student.config.lm, teacher.config.lm
    alike = settings.student_from or settings.cosine_weight or settings.hidden_weight or settings.attention_weight
    if alike and mine is not None and theirs is not None and mine.next_token != theirs.next_token:
        before, at = ("teacher", "student") if theirs.next_token else ("student", "teacher")
        raise ConfigError(
            f"the {before} predicts a token from the state before it, the {at} from its own, so states are not "
            f"alike; set model.lm.next_token={str(theirs.next_token).lower()}, or leave student_from empty and all "
            "weights but logits_weight and mlm_weight 0"
        )
    widths = student.config.encoder.width, teacher.config.encoder.width
    if settings.cosine_weight and widths[0] != widths[1]:
        raise ConfigError(
            f"cosine needs states of equal width, not {widths[0]} and {widths[1]}; set cosine_weight to 0 or use match"
        )
    if (
        settings.attention_weight
        and student.encoder.block(0).attention.heads != teacher.encoder.block(0).attention.heads
    ):
        raise ConfigError(
            "attention matching needs equally many heads in student and teacher; set attention_weight to 0"
        )
    for own, their in settings.match:
        if not (0 <= own <= student.encoder.depth and 0 <= their <= teacher.encoder.depth):
            raise ConfigError(f"match pair {[own, their]} names a layer that does not exist; 0 is the embedding output")
