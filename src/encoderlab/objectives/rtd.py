"""Replaced token detection (Clark et al., 2020).

A generator fills masked places with samples; a discriminator predicts which tokens are not the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderlab.batches.batch import Batch, stack
from encoderlab.batches.corrupt import Masking
from encoderlab.batches.rows import Row
from encoderlab.config import NonNegative, Positive
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models import flops
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import EncoderConfig
from encoderlab.nn.encoder import Chosen, States
from encoderlab.nn.heads import LMHead
from encoderlab.nn.kernels.plain import draw
from encoderlab.nn.noise import Noise, stream
from encoderlab.nn.positions import document_starts
from encoderlab.objectives.base import Losses, Memory, Objective, Settings, Term, masked_operations
from encoderlab.objectives.mlm import Masker, asked, check_stem, predicted, require_weight, token_term, tokens
from encoderlab.objectives.vocabulary import Vocabulary

Sharing = Literal["block", "tables", "none", "disentangled"]


@dataclass(frozen=True, kw_only=True)
class RTDSettings(Settings):
    """Settings of :class:`ReplacedTokenDetection`; the defaults are ELECTRA's.

    Args:
        masking: the tokens that the generator predicts.
        sharing: of the two networks' embeddings. ``block``: tables and LayerNorm (ELECTRA); ``tables``: tables only;
            ``none``; ``disentangled``: the discriminator's word and position tables are the generator's, without
            gradient, plus differences that only the discriminator trains (DeBERTa v3, section 3.3).
        updates: ``joint``, or ``alternating`` as in DeBERTa v3's code: the generator's step, then the discriminator's
            step on samples drawn before it; gradients of each are clipped separately.
        predict: ``replaced`` is the paper's objective. Its ablations (section 3.4): ``replaced_masked``, the loss on
            masked places only; ``original_masked``, replace-MLM; ``original_all``, all-tokens MLM with a copy gate.
        temperature: divides the generator's logits before tokens are sampled.
        generator_weight, discriminator_weight: of the two losses.
    """

    kind: Literal["rtd"] = "rtd"
    needs_generator: ClassVar[bool] = True
    masking: Masking = Masking(mask=0.85, random=0.0)
    sharing: Sharing = "block"
    updates: Literal["joint", "alternating"] = "joint"
    predict: Literal["replaced", "replaced_masked", "original_masked", "original_all"] = "replaced"
    temperature: Positive = 1.0
    generator_weight: NonNegative = 1.0
    discriminator_weight: NonNegative = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_weight(self, "generator_weight", "discriminator_weight")

    def build(
        self, model: Model, second: Model | None, vocabulary: Vocabulary, *, seed: int = 0, continued: bool = False
    ) -> ReplacedTokenDetection:
        assert second is not None
        return ReplacedTokenDetection(second, model, self, vocabulary, continued=continued)

    def operations(self, model: ModelConfig, second: ModelConfig | None, length: int) -> float:
        assert second is not None
        rate = self.masking.mean_share(length)
        shares = {"replaced": 0.0, "replaced_masked": 0.0, "original_masked": rate, "original_all": 1.0}
        discriminator = flops.whole_forward(model, length, predicted=shares[self.predict])
        return (1 + flops.BACKWARD) * discriminator + masked_operations(second, length, rate)


class ReplacedTokenDetection(Objective):
    """Train generator and discriminator jointly.

    Samples carry no gradient, so the discriminator trains the generator only through shared embeddings.

    Terms: ``mlm`` (generator), ``rtd`` (discriminator, over all real tokens), and ``replaced``, which has no loss; its
    hits count the masked places where the sample differs from the original.
    """

    per_token = ("mlm",)

    def __init__(
        self,
        generator: Model,
        discriminator: Model,
        settings: RTDSettings,
        vocabulary: Vocabulary,
        *,
        continued: bool = False,
    ) -> None:
        super().__init__()
        _check(generator, discriminator, settings)
        self.generator, self.discriminator, self.settings = generator, discriminator, settings
        self.masker = Masker(settings.masking, vocabulary)
        self.stages = 1 if settings.updates == "joint" else 2
        share_embeddings(generator, discriminator, settings.sharing, continued=continued)

    def make_batch(self, rows: list[Row], *, seed: int) -> Batch:
        batch = self.masker(rows, seed)
        batch.labels["original"] = stack([row.ids for row in rows], self.masker.pad, length=batch.ids.shape[1])
        return batch

    def counts(self, batch: Batch) -> dict[str, int]:
        masked = int(asked(batch).sum())
        everywhere = self.settings.predict in ("replaced", "original_all")
        return {"mlm": masked, "rtd": batch.num_tokens if everywhere else masked, "replaced": masked}

    def forward(self, batch: Batch, *, noise: Noise | None = None, memory: Memory = None) -> Losses:
        chosen, targets = predicted(batch)
        alternating = self.stages > 1 and self.training
        if alternating and memory is not None:
            return {"rtd": self._discriminate(batch, memory[0], chosen, noise)}, None
        generated, samples = self._generate(batch, chosen, targets, noise)
        corrupted = _corrupted(batch, chosen, samples)
        replaced = Term(torch.zeros((), device=samples.device), len(targets), 0.0, (samples != targets).sum())
        if alternating:
            return {"mlm": generated, "replaced": replaced}, (corrupted,)
        term = self._discriminate(batch, corrupted, chosen, noise)
        return {"mlm": generated, "rtd": term, "replaced": replaced}, None

    def models(self) -> dict[str, Model]:
        return {"generator": self.generator, "discriminator": self.discriminator}

    @torch.no_grad()
    def corrupt(self, batch: Batch) -> Tensor:
        """The ids (B, L) that the discriminator reads in a validation."""
        chosen, targets = predicted(batch)
        return _corrupted(batch, chosen, self._generate(batch, chosen, targets, None)[1])

    @torch.no_grad()
    def discriminate(self, batch: Batch, corrupted: Tensor) -> Term:
        """The discriminator's loss in a validation on the ids (B, L) that any generator made of the batch."""
        return self._discriminate(batch, corrupted, predicted(batch)[0], None)

    def _generate(self, batch: Batch, chosen: Chosen, targets: Tensor, noise: Noise | None) -> tuple[Term, Tensor]:
        """The generator's loss, and one sample (S,) per masked place from softmax(logits / temperature), without
        gradient.

        Each sample inverts the cumulative distribution at one uniform number, keyed by row and place. The distribution
        is that of the original's Gumbel argmax, with one random number instead of V.
        """
        model, settings = self.generator, self.settings
        assert isinstance(model.lm, LMHead) and batch.rows is not None
        states = model.encoder(
            batch.ids, doc=batch.documents, segments=batch.segments, noise=noise, depth=model.lm_depth
        )
        x = model.token_states(states, chosen, noise)
        seeds = (noise or Noise(0, 0, batch.rows)).layer(GENERATOR_SAMPLES)[chosen.rows]
        points = uniform(seeds, chosen.places)
        if settings.temperature == 1.0:
            loss, hits, samples = model.lm.losses(x, model.words, targets, uniforms=points)
            assert samples is not None
            return Term(loss, len(targets), settings.generator_weight, hits), samples
        logits = model.lm(x, model.words)
        samples = draw(logits.float() / settings.temperature, points)
        return token_term(logits, targets, weight=settings.generator_weight), samples

    def _discriminate(self, batch: Batch, corrupted: Tensor, chosen: Chosen, noise: Noise | None) -> Term:
        settings, model = self.settings, self.discriminator
        weight = settings.discriminator_weight
        noise = None if noise is None else noise.branch(1)
        if settings.predict in ("replaced", "original_all"):
            chosen = tokens(batch)
        rows, places = chosen.rows, chosen.places
        states = model.encoder(corrupted, doc=batch.documents, segments=batch.segments, noise=noise)
        original = batch.labels["original"][rows, places]
        shown = corrupted[rows, places]
        if settings.predict == "original_masked":
            return token_term(model.token_logits(states, chosen, noise), original, weight=weight)
        detect = self._detect(batch, states, rows, places)
        if settings.predict == "original_all":
            return _copy_term(model.token_logits(states, chosen, noise), detect, shown, original, weight)
        replaced = shown != original
        loss = F.binary_cross_entropy_with_logits(detect.float(), replaced.float(), reduction="sum")
        return Term(loss, len(rows), weight, ((detect > 0) == replaced).sum())

    def _detect(self, batch: Batch, states: States, rows: Tensor, places: Tensor) -> Tensor:
        """Logit (S,) that a token was replaced."""
        assert self.discriminator.rtd is not None
        first = None
        if self.discriminator.rtd.norm is not None:
            first = states.last[rows, document_starts(batch.doc)[rows, places]]
        return self.discriminator.rtd(states.last[rows, places], first)


GENERATOR_SAMPLES = 1 << 20  # larger than any layer number


def uniform(seeds: Tensor, places: Tensor) -> Tensor:
    """Numbers in [0, 1) with 53 random bits, one per (row seed, place): (S,), (S,) -> (S,) float64."""
    return ((stream(seeds, places) >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53


def share_embeddings(generator: Model, discriminator: Model, sharing: Sharing, *, continued: bool = False) -> None:
    """Share embeddings between the two networks in place; see :class:`RTDSettings`.

    Disentangled differences start at 0 or, if training is ``continued``, at the difference of the two tables.
    """
    if sharing == "none":
        return
    source, target = generator.encoder.embeddings, discriminator.encoder.embeddings
    if sharing == "disentangled":
        assert source.words is not None and target.words is not None
        target.base = (source,)
        with torch.no_grad():
            for base, own in ((source.words, target.words), (source.positions, target.positions)):
                if base is not None and own is not None:
                    own.copy_(own - base if continued else torch.zeros_like(own))
        return
    source.words, source.positions, source.types = target.words, target.positions, target.types
    if sharing == "block":
        source.norm = target.norm


def _corrupted(batch: Batch, chosen: Chosen, samples: Tensor) -> Tensor:
    ids = batch.labels["original"].clone()
    ids[chosen.rows, chosen.places] = samples
    return ids


def _copy_term(logits: Tensor, gate: Tensor, shown: Tensor, original: Tensor, weight: float) -> Term:
    """All-tokens MLM: ``p(x) = c [x is shown] + (1 - c) softmax(x)`` with a copy probability c per place."""
    gate = gate.float()
    token = logits.float().log_softmax(-1).gather(1, original[:, None]).squeeze(1) + F.logsigmoid(gate)
    copy = torch.where(shown == original, F.logsigmoid(-gate), torch.finfo(token.dtype).min)
    guess = torch.where(gate > 0, logits.argmax(-1), shown)
    return Term(-torch.logaddexp(token, copy).sum(), len(original), weight, (guess == original).sum())


def _check(generator: Model, discriminator: Model, settings: RTDSettings) -> None:
    one, two = generator.config.encoder, discriminator.config.encoder
    if one.vocab != two.vocab:
        raise ConfigError(
            f"generator and discriminator have {one.vocab} and {two.vocab} ids; "
            "replaced token detection needs one tokenizer for both"
        )
    if not isinstance(generator.lm, LMHead):
        raise ConfigError("the generator has no LM head; give a model with one, such as NAME-generator")
    check_stem(generator)
    if settings.predict != "original_masked" and discriminator.rtd is None:
        raise ConfigError(
            "the discriminator has no detection head; give a model of family electra, convbert or deberta v3"
        )
    if settings.predict.startswith("original") and not isinstance(discriminator.lm, LMHead):
        raise ConfigError(f"predict {settings.predict!r} needs an LM head on the discriminator; set model.lm={{}}")
    if one.causal or two.causal:
        raise ConfigError("replaced token detection needs attention to both sides; set causal to false")
    if settings.updates == "alternating" and settings.sharing in ("block", "tables"):
        raise ConfigError(
            f"alternating updates would update the embeddings that sharing {settings.sharing!r} ties twice; "
            "set sharing to disentangled or none, or updates to joint"
        )
    if settings.sharing == "none":
        return
    own, theirs = _shared_fields(one, settings.sharing), _shared_fields(two, settings.sharing)
    differ = [f"{name} ({own[name]} and {theirs[name]})" for name in own if own[name] != theirs[name]]
    if differ:
        raise ConfigError(
            f"embeddings of generator and discriminator differ in {', '.join(differ)} and cannot be shared; make them "
            "equal, or set sharing to none"
        )
    if settings.sharing == "block" and one.embed_norm == "width" and one.width != two.width:
        raise ConfigError(
            f"the norm after the embeddings has the layers' width, {one.width} and {two.width}, "
            "and cannot be shared; set sharing to tables, or give both networks one width"
        )


def _shared_fields(encoder: EncoderConfig, sharing: Sharing) -> dict[str, object]:
    """What determines the shared part of the embeddings."""
    tables: dict[str, object] = {
        "width": encoder.word_width,
        "adaptive": encoder.adaptive,
        "segments": encoder.types,
        "positions": encoder.position.input_rows,
        "offset": encoder.position.offset,
        "norm": encoder.embed_norm,
    }
    return tables if sharing != "block" else tables | {"normalization": encoder.normalization, "eps": encoder.eps}
