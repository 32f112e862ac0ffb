"""BERT (Devlin et al., 2019, appendix A.2; google-research/bert) and whole-word BERT (its release; Chinese: Cui et al.,
2021).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from encoderlab import models
from encoderlab.batches.corrupt import Masking, NGrams, Unit, Words
from encoderlab.batches.pack import FullSentences, SegmentPairs, SentencePairs
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.recipes.small import is_small, small
from encoderlab.train.optim import BertAdam, Lamb
from encoderlab.train.recipe import Budget, Phase, Recipe
from encoderlab.train.schedule import Bert

MASKING = Masking(random_from="all")


def recipe(name: str) -> Recipe:
    """1M steps of 256 rows, 90% of them at 128 tokens; next sentence prediction; 15% masked, 80/10/10."""
    published = Recipe(
        name=name,
        model=models.config(name),
        objective=MLMSettings(masking=MASKING),
        format=SegmentPairs(),
        optim=BertAdam(lr=1e-4),
        schedule=Bert(warmup=10_000),
        budget=Budget(amount=1_000_000),
        phases=(Phase(length=128, rows=256, share=0.9), Phase(length=512, rows=256, share=0.1)),
    )
    if name == "bert-base-ltr":
        return replace(published, objective=CausalSettings(), format=FullSentences())
    if not is_small(name):
        return published
    # At 1e-3 one run of bert-mini in five fell back to the loss of token frequencies and did not recover (docs/LOG.md).
    return small(published, lr=1e-3 if name == "bert-tiny" else 5e-4)


def masking(name: str, model: str, unit: Unit) -> Recipe:
    """BERT with another unit of masking: all pieces of a word together, or n-grams."""
    return replace(recipe(model), name=name, objective=MLMSettings(masking=replace(MASKING, unit=unit)))


def chinese_whole_words(name: str, model: str) -> Recipe:
    """Chinese BERT-wwm: words from a segmenter, chosen when the corpus is built; LAMB, 128 then 512 tokens.

    The original starts from Google's Chinese BERT: give ``--init-from``.
    """
    return replace(
        masking(name, model, Words()),
        optim=Lamb(lr=1e-4),
        schedule=Bert(warmup=0.1),
        budget=Budget(amount=200_000),
        phases=(
            Phase(length=128, rows=2560, share=0.5),
            Phase(length=512, rows=384, share=0.5),
        ),
    )


def no_pairs(name: str, model: str) -> Recipe:
    """BERT without next sentence prediction, on full sentences of one document (section 5.1)."""
    base = recipe(model)
    return replace(base, name=name, format=FullSentences(cross_documents=False), model=replace(base.model, pair=False))


VARIANTS: dict[str, Callable[[str], Recipe]] = {
    "bert-large-wwm": partial(masking, model="bert-large-wwm", unit=Words()),
    "bert-wwm-mini": partial(masking, model="bert-mini", unit=Words()),
    "bert-wwm-chinese": partial(chinese_whole_words, model="bert-base-chinese"),
    "bert-wwm-chinese-mini": lambda name: small(chinese_whole_words(name, "bert-mini"), lr=3e-3),
    "bert-base-no-nsp": partial(no_pairs, model="bert-base"),
    "bert-mini-no-nsp": partial(no_pairs, model="bert-mini"),
    "bert-mini-static": lambda name: replace(recipe("bert-mini"), name=name, duplicates=10),
    "bert-mini-ngrams": partial(masking, model="bert-mini", unit=NGrams()),
    "bert-mini-sentence-pairs": lambda name: replace(recipe("bert-mini"), name=name, format=SentencePairs()),
}
