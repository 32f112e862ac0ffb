"""What the benchmark trains for each family, by us and by ``transformers``.

Sizes, weights, batches, losses and dropout rates are the same for both. 12 layers of width 256 (or any other size),
each with its family's own vocabulary. Where ``transformers`` lacks a part of the original, ours runs without it: no
mask decoder for DeBERTa; for ConvBERT's generator two heads instead of the one that it cannot express. Its pretraining
of ELECTRA, ConvBERT and DeBERTa v3 is composed of its models as a user would: masked-LM generator, sampling at the
masked places, discriminator with a detection head, tied embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from encoderlab.models.roberta import roberta
from encoderlab.models.xlnet import xlnet
from encoderlab.objectives.distill import DistillSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.train.pretraining import ObjectiveSettings


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


def case(name: str, *, layers: int = 12, width: int = 256) -> Case:
    """The case of a family at a size, or of a published model by name.

    Raises:
        ConfigError: an unknown name, or a width that heads of 64 do not divide.
    """
    if width < 64 or width % 64:
        raise ConfigError(f"a width of {width} does not divide into heads of 64; give a multiple of 64")
    if name in FAMILIES:
        return FAMILIES[name](name, layers, width)
    family = next((f for f in sorted(FAMILIES, key=len, reverse=True) if name.startswith(f)), None)
    if name in models.SIZES and family is not None:
        encoder = models.config(name).encoder
        return FAMILIES[family](name, encoder.layers, encoder.width)
    raise ConfigError(f"no benchmark of {name!r}{nearest(name, [*FAMILIES, *models.SIZES])}")


def _bert(name: str, layers: int, width: int) -> Case:
    return Case(name=name, model=bert(layers=layers, width=width))


def _roberta(name: str, layers: int, width: int) -> Case:
    return Case(name=name, model=roberta(layers=layers, width=width))


def _albert(name: str, layers: int, width: int) -> Case:
    model = albert(layers=layers, width=width, heads=width // 64)
    return Case(name=name, model=replace(model, pooler=None, pair=False))


def _distilbert(name: str, layers: int, width: int) -> Case:
    """A student of half the teacher's layers; logits compared at the masked places."""
    teacher = replace(bert(layers=layers, width=width), pooler=None, pair=False)
    objective = DistillSettings(at="masked", masking=Masking())
    student = distilbert(layers=max(layers // 2, 1), width=width)
    return Case(name=name, model=student, second=teacher, objective=objective)


def _electra(name: str, layers: int, width: int) -> Case:
    return _detection(name, electra, layers, width, fewest_heads=1)


def _convbert(name: str, layers: int, width: int) -> Case:
    return _detection(name, convbert, layers, width, fewest_heads=2)


def _detection(name: str, family: Callable[..., ModelConfig], layers: int, width: int, *, fewest_heads: int) -> Case:
    """A discriminator and a generator of 1/4 (small) or 1/3 (base) of its width, with tables of one width."""
    small = width < 768
    embed_width = min(width, 128) if small else width
    narrow = width // 4 if small else max(64, width // 3 // 64 * 64)
    model, second = (
        family(layers=layers, width=w, heads=heads, ff_width=4 * w, embed_width=embed_width, generator=generator)
        for w, heads, generator in ((width, width // 64, False), (narrow, max(fewest_heads, narrow // 64), True))
    )
    return Case(name=name, model=model, second=second, objective=RTDSettings())


def _deberta_v1(name: str, layers: int, width: int) -> Case:
    return Case(name=name, model=deberta(layers=layers, width=width, vocab=50265, position=V1, mask_decoder=False))


def _deberta_v2(name: str, layers: int, width: int) -> Case:
    model = deberta(layers=layers, width=width, vocab=128100, position=V2, stem=True, mask_decoder=False)
    return Case(name=name, model=model)


def _deberta_v3(name: str, layers: int, width: int) -> Case:
    model = deberta(layers=layers, width=width, vocab=128100, position=V2, rtd=True)
    second = deberta(layers=max(layers // 2, 1), width=width, vocab=128100, position=V2, mask_decoder=False)
    return Case(name=name, model=model, second=second, objective=RTDSettings(sharing="tables"))


def _xlnet(name: str, layers: int, width: int) -> Case:
    objective = PermutationSettings(targets=Targets(count=21), memory=0, reuse=0)
    return Case(name=name, model=xlnet(layers=layers, width=width), objective=objective)


FAMILIES = {
    "bert": _bert,
    "roberta": _roberta,
    "albert": _albert,
    "distilbert": _distilbert,
    "electra": _electra,
    "convbert": _convbert,
    "deberta-v1": _deberta_v1,
    "deberta-v2": _deberta_v2,
    "deberta-v3": _deberta_v3,
    "xlnet": _xlnet,
}
