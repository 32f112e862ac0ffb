"""The networks that the benchmark trains for each family, ours and those of ``transformers``.

Sizes, weights, batches, losses and dropout rates are the same for both. 12 layers of width 256 (or any other size),
each with its family's own vocabulary, or a published model. If ``transformers`` lacks a part of the original, ours
runs without it: no mask decoder for DeBERTa, no pair head for ALBERT; for ConvBERT's generator two heads instead of the
one that it cannot express. Its pretraining of ELECTRA, ConvBERT and DeBERTa v3 is composed of its models as a user
would: masked-LM generator, sampling at the masked places, discriminator with a detection head, tied embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from encoderlab import models
from encoderlab.batches.corrupt import Masking
from encoderlab.batches.permutation import Targets
from encoderlab.errors import ConfigError, nearest
from encoderlab.models.albert import albert
from encoderlab.models.base import ModelConfig, resized
from encoderlab.models.bert import bert
from encoderlab.models.convbert import convbert
from encoderlab.models.deberta import V1, V2, deberta
from encoderlab.models.distilbert import distilbert
from encoderlab.models.electra import electra
from encoderlab.models.modernbert import modernbert
from encoderlab.models.roberta import roberta
from encoderlab.models.xlnet import xlnet
from encoderlab.nn.positions import Disentangled
from encoderlab.nn.spanconv import SpanDynamic
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.kinds import ObjectiveSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import RTDSettings


@dataclass(frozen=True, kw_only=True)
class Case:
    """One benchmark: the networks (``second`` is a generator or a teacher) and their objective."""

    name: str
    model: ModelConfig
    second: ModelConfig | None = None
    objective: ObjectiveSettings = MLMSettings()

    def with_dropout(self, rate: float) -> Case:
        """The case with every dropout at ``rate``."""

        def changed(config: ModelConfig) -> ModelConfig:
            encoder = config.encoder
            ff = rate if encoder.ff_dropout else 0.0
            output = rate if encoder.output_dropout else 0.0
            return resized(config, dropout=rate, attention_dropout=rate, ff_dropout=ff, output_dropout=output)

        second = None if self.second is None else changed(self.second)
        return replace(self, model=changed(self.model), second=second)

    def check_ids(self, count: int) -> None:
        """Refuse a corpus of ``count`` token ids.

        Raises:
            ConfigError: some are outside the model's vocabulary.
        """
        known = self.model.encoder.vocab
        if count > known:
            raise ConfigError(
                f"the corpus has {count:,} token ids, and {self.name} only {known:,}; give one with a smaller "
                "vocabulary"
            )


def case(name: str, *, layers: int = 12, width: int = 256) -> Case:
    """The case of a family at a size, or of a published model by name.

    Raises:
        ConfigError: an unknown name, a model that has no benchmark, or a width that heads of 64 do not divide.
    """
    if name in FAMILIES:
        if width < 64 or width % 64:
            raise ConfigError(f"a width of {width} does not divide into heads of 64; give a multiple of 64")
        return _case(name, *FAMILIES[name](layers, width))
    if name not in models.SIZES:
        raise ConfigError(f"no benchmark of {name!r}{nearest(name, [*FAMILIES, *models.SIZES])}")
    model = models.SIZES[name]
    if model.encoder.causal:
        raise ConfigError(f"{name} reads from left to right, which has no benchmark; choose from {', '.join(FAMILIES)}")
    return _case(name, model, models.GENERATORS.get(name) or _teacher(name, model))


def _case(name: str, model: ModelConfig, second: ModelConfig | None = None) -> Case:
    """Both networks without parts that ``transformers`` lacks, under their own objective."""
    objective: ObjectiveSettings = MLMSettings()
    if model.rtd is not None:
        tables = isinstance(model.encoder.position, Disentangled)
        objective = RTDSettings(sharing="tables") if tables else RTDSettings()
    elif second is not None:
        objective = DistillSettings(at="masked", masking=Masking())
    elif model.family == "modernbert":
        objective = MLMSettings(masking=Masking(rate=0.3))
    elif model.mask_vector:
        objective = PermutationSettings(targets=Targets(count=21), memory=0, reuse=0)
    return Case(
        name=name,
        model=_comparable(model),
        second=None if second is None else _comparable(second),
        objective=objective,
    )


def _comparable(config: ModelConfig) -> ModelConfig:
    encoder = config.encoder
    if isinstance(encoder.conv, SpanDynamic):
        conv = replace(encoder.conv, mask_padding=False)
        config = resized(config, conv=conv, heads=max(encoder.heads, 2))
    if config.family == "albert":
        config = replace(config, pooler=None, pair=False)
    return replace(config, mask_decoder=0)


def _teacher(name: str, student: ModelConfig) -> ModelConfig | None:
    """The teacher of DistilBERT or DistilRoBERTa, twice as deep as the student; None for other families."""
    if not name.startswith("distil"):
        return None
    teacher = roberta if student.family == "roberta" else bert
    encoder = student.encoder
    made = teacher(layers=2 * encoder.layers, width=encoder.width, vocab=encoder.vocab)
    return replace(made, pooler=None, pair=False)


Networks = tuple[ModelConfig, ModelConfig | None]


def _distilbert(layers: int, width: int) -> Networks:
    """A student of half the teacher's layers."""
    teacher = replace(bert(layers=layers, width=width), pooler=None, pair=False)
    return distilbert(layers=max(layers // 2, 1), width=width), teacher


def _detection(family: Callable[..., ModelConfig], layers: int, width: int) -> Networks:
    """A discriminator and a generator of 1/4 (small) or 1/3 (base) of its width, with tables of one width."""
    small = width < 768
    embed_width = min(width, 128) if small else width
    narrow = width // 4 if small else max(64, width // 3 // 64 * 64)
    model, second = (
        family(layers=layers, width=w, heads=heads, ff_width=4 * w, embed_width=embed_width, generator=generator)
        for w, heads, generator in ((width, width // 64, False), (narrow, max(1, narrow // 64), True))
    )
    return model, second


def _deberta_v3(layers: int, width: int) -> Networks:
    model = deberta(layers=layers, width=width, vocab=128100, position=V2, rtd=True)
    return model, deberta(layers=max(layers // 2, 1), width=width, vocab=128100, position=V2)


FAMILIES: dict[str, Callable[[int, int], Networks]] = {
    "bert": lambda layers, width: (bert(layers=layers, width=width), None),
    "roberta": lambda layers, width: (roberta(layers=layers, width=width), None),
    "albert": lambda layers, width: (albert(layers=layers, width=width, heads=width // 64), None),
    "distilbert": _distilbert,
    "electra": partial(_detection, electra),
    "convbert": partial(_detection, convbert),
    "deberta-v1": lambda layers, width: (deberta(layers=layers, width=width, vocab=50265, position=V1), None),
    "deberta-v2": lambda layers, width: (
        deberta(layers=layers, width=width, vocab=128100, position=V2, stem=True),
        None,
    ),
    "deberta-v3": _deberta_v3,
    "xlnet": lambda layers, width: (xlnet(layers=layers, width=width), None),
    "modernbert": lambda layers, width: (modernbert(layers=layers, width=width, ff_width=3 * width // 2), None),
}
