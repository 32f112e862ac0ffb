"""The pretraining loss of a model over rows of any text, by which heads are measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from encoderlab.batches.batch import Batch
from encoderlab.batches.permutation import Targets
from encoderlab.batches.rows import Row
from encoderlab.corpus.manifest import MANIFEST, verify
from encoderlab.corpus.shards import Corpus
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.inference import limit_of_masks, tokenizer_of
from encoderlab.inspection.texts import sentences
from encoderlab.model import Model
from encoderlab.nn.heads import LMHead
from encoderlab.objectives.base import Objective
from encoderlab.objectives.causal import CausalSettings
from encoderlab.objectives.hybrid import HybridSettings
from encoderlab.objectives.kinds import ObjectiveSettings
from encoderlab.objectives.mlm import MLMSettings
from encoderlab.objectives.permutation import PermutationSettings
from encoderlab.objectives.rtd import RTDSettings
from encoderlab.objectives.vocabulary import Vocabulary

LENGTH = 128  # tokens of a row
ROWS = 16  # of a batch


def objective_of(model: Model, generator: Model | None = None) -> Objective:
    """The objective of a model's pretraining heads, with its usual settings.

    Raises:
        ConfigError: the model has no such heads, or is a discriminator without its generator.
    """
    settings: ObjectiveSettings
    if model.rtd is not None and generator is not None:
        settings = RTDSettings(sharing="none")  # as they were loaded
    elif model.lm is None:
        raise ConfigError(
            f"a model of family {model.config.family} without an LM head, or without the generator that it was trained "
            "with, has no pretraining loss; give a run folder with both, or a fine-tuned model and labelled data"
        )
    elif model.config.encoder.causal:
        settings = CausalSettings()
    elif model.mask_vector is not None:
        settings = PermutationSettings(targets=Targets(count=_length(model) // 6), memory=0, reuse=0)
    elif model.config.reads_both_ways and model.pair is None:
        settings = HybridSettings(causal=0.5)  # both losses count equally
    elif isinstance(model.lm, LMHead):
        settings = MLMSettings()
    vocabulary = Vocabulary.of(tokenizer_of(model))
    return settings.build(model, generator, vocabulary, continued=True)


def batches_of(objective: Objective, model: Model, source: str, count: int) -> list[Batch]:
    """``count`` rows or fewer of ``source``, a corpus (its validation split) or a file with a text per line, as batches
    of the objective; whole rows of 128 tokens, or fewer if the model's limit is lower.

    Raises:
        DataError: there is no such file, or its text is too short for two rows.
    """
    tokenizer, device = tokenizer_of(model), next(model.parameters()).device
    rows_of = _windows if model.config.encoder.causal else _rows
    length = min(_length(network) for network in objective.models().values())
    rows = list(islice(rows_of(_texts(tokenizer, source), tokenizer, length), count))
    if len(rows) < 2:
        raise DataError(f"{source:.60}: has {len(rows)} rows of {length} tokens, expected 2; give more text")
    starts = range(0, len(rows), ROWS)
    return [objective.make_batch(rows[start : start + ROWS], seed=0).to(device) for start in starts]


def _length(model: Model) -> int:
    return min(LENGTH, limit_of_masks(model))


def _texts(tokenizer: Tokenizer, source: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and word starts of the texts of a corpus or a file."""
    if not os.path.exists(source):
        raise DataError(f"{source:.80}: no such file; give a corpus, or a file with one text per line")
    if (Path(source) / MANIFEST).is_file():
        corpus = Corpus(Path(source), split="validation")
        verify(source, "validation")
        if corpus.tokenizer().hash() != tokenizer.hash():
            raise ConfigError(
                f"{source}: was built with another tokenizer; give the corpus of the model, or a text file"
            )
        for number in range(corpus.num_documents):
            document = corpus.document(number)
            yield np.asarray(document.ids, np.int64), document.word_starts
        return
    for sentence in sentences(source, 1 << 30):
        encoding = tokenizer.encode(sentence.text)
        yield np.asarray(encoding.ids, np.int64), encoding.word_starts


def _rows(texts: Iterator[tuple[np.ndarray, np.ndarray]], tokenizer: Tokenizer, length: int) -> Iterator[Row]:
    """All texts one after the other, cut into framed rows of ``length`` tokens; the rest is dropped."""
    room = tokenizer.spans(length, max_length=length).a
    start = tokenizer.spans(room, max_length=length).a_start
    ids, opens = np.zeros(0, np.int64), np.zeros(0, bool)
    number = 0
    for more, starts in texts:
        ids, opens = np.concatenate([ids, more]), np.concatenate([opens, starts])
        while len(ids) >= room:
            framed, segments = tokenizer.frame(ids[:room], max_length=length)
            special, words = np.ones(len(framed), bool), np.ones(len(framed), bool)
            special[start : start + room], words[start : start + room] = False, opens[:room]
            yield Row(
                ids=np.asarray(framed, np.int64),
                doc=np.zeros(len(framed), np.int32),
                segments=np.asarray(segments, np.int8),
                word_starts=words,
                special=special,
                labels={},
                key=(0, 0, number),
                number=number,
            )
            ids, opens, number = ids[room:], opens[room:], number + 1


def _windows(texts: Iterator[tuple[np.ndarray, np.ndarray]], tokenizer: Tokenizer, length: int) -> Iterator[Row]:
    """All texts one after the other, each followed by the end-of-document token if there is one, cut as in the training
    of left-to-right models: into rows of ``length`` tokens and the next one, which is only a target.
    """
    eod = tokenizer.special.eod
    end = np.array([] if eod is None else [eod], np.int64)
    ids, opens = np.zeros(0, np.int64), np.zeros(0, bool)
    number = 0
    for more, starts in texts:
        ids, opens = np.concatenate([ids, more, end]), np.concatenate([opens, starts, end >= 0])
        while len(ids) > length:
            yield Row(
                ids=ids[: length + 1],
                doc=np.zeros(length + 1, np.int32),
                segments=np.zeros(length + 1, np.int8),
                word_starts=opens[: length + 1],
                special=np.zeros(length + 1, bool),
                labels={},
                key=(0, 0, number),
                number=number,
            )
            ids, opens, number = ids[length:], opens[length:], number + 1
