"""RoBERTa (Liu et al., 2019, section 4 and table 9; fairseq)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from encoderlab import models
from encoderlab.batches.corrupt import Masking
from encoderlab.batches.pack import FullSentences, SegmentPairs, SentencePairs
from encoderlab.nn.heads import Pooler
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import AdamW
from encoderlab.train.recipe import Budget, Phase, Recipe
from encoderlab.train.schedule import Polynomial


def recipe(name: str) -> Recipe:
    """500k steps of 8192 rows of 512 tokens, full sentences across documents, no sentence pairs, no clipping."""
    large = name == "roberta-large"
    published = Recipe(
        name=name,
        model=models.config(name),
        objective=MLMSettings(masking=Masking(count="stochastic")),
        format=FullSentences(),
        optim=AdamW(lr=4e-4 if large else 6e-4, betas=(0.9, 0.98), weight_decay=0.01, no_decay=()),
        schedule=Polynomial(warmup=30_000 if large else 24_000),
        budget=Budget(amount=500_000),
        phases=(Phase(length=512, rows=8192),),
        clip=None,
    )
    return small(published) if is_small(name) else published


def with_format(name: str, model: str, format: FullSentences | SegmentPairs | SentencePairs) -> Recipe:
    """One of the four input formats of table 2; formats with pairs add next sentence prediction."""
    base = recipe(model)
    if isinstance(format, FullSentences):
        return replace(base, name=name, format=format)
    return replace(base, name=name, format=format, model=replace(base.model, pooler=Pooler(), pair=True))


def _formats(model: str) -> dict[str, Callable[[str], Recipe]]:
    doc_sentences = FullSentences(cross_documents=False, batch="tokens")
    return {
        f"{model}-doc-sentences": partial(with_format, model=model, format=doc_sentences),
        f"{model}-segment-pairs": partial(with_format, model=model, format=SegmentPairs()),
        f"{model}-sentence-pairs": partial(with_format, model=model, format=SentencePairs()),
    }


VARIANTS = _formats("roberta-base") | _formats("roberta-mini")
