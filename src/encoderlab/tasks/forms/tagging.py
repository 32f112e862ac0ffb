"""Tagging: a label for every word, read from its first sub-token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from encoderlab.batches.batch import IGNORE
from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.model import Model
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import TaggingHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.task import Example, Task, Words
from encoderlab.tasks.forms.base import Form, FormSettings, Predictions, log_softmax
from encoderlab.tasks.forms.batching import Encoded, Item, TaskBatch, to_numpy


class Tagging(Form):
    """Cross-entropy over the tags of first sub-tokens, no CRF (Devlin et al., 2019, section 5.3).

    A sentence longer than a sequence is cut into several, so every word has a prediction. The words are joined by
    spaces; each is read at the first token that holds a character of it, which suits every tokenizer. A word without
    such a token (a control character, say) gets the first label.
    """

    def __init__(self, task: Task, tokenizer: Tokenizer, settings: FormSettings) -> None:
        super().__init__(task, tokenizer, settings)
        self.index = {tag: i for i, tag in enumerate(task.labels or ())}

    def head(self, family: Family, model: Model) -> TaskHead:
        if not self.index:
            raise ConfigError(
                f"task {self.task.name!r} has no tags yet; take them from its training data (with_labels)"
            )
        return replace(family.tagging, labels=len(self.index))

    def items(self, examples: Sequence[Example], *, train: bool = False) -> list[Item]:
        sentences = [example for example in examples if isinstance(example, Words)]
        # Within its document a sentence follows a space, which byte-level BPE makes part of its first word.
        shown = [("", *one.words) if self._goes_on(sentences, n) else one.words for n, one in enumerate(sentences)]
        encodings = self.tokenizer.encode_batch([" ".join(words) for words in shown])
        room = self.settings.max_length - 2
        if room < 1:
            raise ConfigError(f"max_length {self.settings.max_length} leaves no place for a word; choose at least 3")
        items = []
        for number, (sentence, encoding) in enumerate(zip(sentences, encodings, strict=True)):
            if train and sentence.tags is None:
                continue
            words = first_tokens(shown[number], encoding)
            words = np.where(words < 0, -1, words - (len(shown[number]) - len(sentence.words)))
            tags = self._tags(sentence, words)
            left, right = self._context(sentences, encodings, number, room - len(encoding))
            for start in range(0, max(len(encoding), 1), room):
                stop = min(start + room, len(encoding))
                pieces = [left, encoding.ids[start:stop], right]
                marks = [np.full(len(left), -1), words[start:stop], np.full(len(right), -1)]
                targets = [np.full(len(left), IGNORE), tags[start:stop], np.full(len(right), IGNORE)]
                items.append(self._item(number, *(np.concatenate(parts) for parts in (pieces, marks, targets))))
            self.cut += len(encoding) > room
        return items

    def _tags(self, sentence: Words, words: np.ndarray) -> np.ndarray:
        """The target of each token: the tag of the word that it begins, else IGNORE. ``words`` as of
        :func:`first_tokens`.
        """
        tags = np.full(len(words), IGNORE, np.int64)
        if sentence.tags is not None:
            places = np.flatnonzero(words >= 0)
            tags[places] = [self.index.get(sentence.tags[word], IGNORE) for word in words[places]]
        return tags

    def _goes_on(self, sentences: Sequence[Words], number: int) -> bool:
        """Whether a sentence is shown behind another sentence of its document."""
        before = self.settings.context == "document" and number > 0
        return before and sentences[number - 1].document == sentences[number].document

    def _context(
        self, sentences: Sequence[Words], encodings: Sequence[Encoding], number: int, room: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the same document before and behind a sentence: ``room`` in all, half of them on either side if the
        document has as many.
        """
        none = np.zeros(0, np.int64)
        if self.settings.context == "sentence" or room < 1:
            return none, none

        def gather(step: int) -> np.ndarray:
            parts: list[np.ndarray] = []
            size, i = 0, number + step
            while 0 <= i < len(sentences) and sentences[i].document == sentences[number].document and size < room:
                parts.append(encodings[i].ids)
                size, i = size + len(encodings[i]), i + step
            return np.concatenate(parts[::step] or [none])

        before, behind = gather(-1), gather(1)
        half = room // 2
        share = min(len(before), max(half, room - len(behind)))
        return before[len(before) - share :], behind[: room - share]

    def _item(self, number: int, ids: np.ndarray, words: np.ndarray, tags: np.ndarray) -> Item:
        """One sequence of sentence ``number`` with special tokens; ``words`` and ``tags`` are those of each token."""
        framed, segments = self.tokenizer.frame(ids, max_length=self.settings.max_length)
        start = self.tokenizer.spans(len(ids), max_length=self.settings.max_length).a_start
        marks = {}
        for name, values, fill in (("word", words, -1), ("target", tags, IGNORE)):
            marks[name] = np.full(len(framed), fill, np.int32)
            marks[name][start : start + len(ids)] = values
        return Item(number, (Encoded(framed.astype(np.int32), segments, marks=marks),))

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        return {"tagging": int((batch.labels["target"] >= 0).sum())}

    def terms(self, model: Model, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        rows, places = batch.find(lambda known: known.labels["target"] >= 0)
        scores = self._scores(model, states, rows, places, noise)
        target = batch.labels["target"][rows, places].long()
        loss = F.cross_entropy(scores.float(), target, reduction="sum")
        return {"tagging": Term(loss, len(target), hits=(scores.argmax(-1) == target).sum())}

    def scores(self, model: Model, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        rows, places = batch.find(lambda known: known.labels["target"] >= 0)
        return self._scores(model, states, rows, places, noise)

    @staticmethod
    def _scores(model: Model, states: States, rows: Tensor, places: Tensor, noise: Noise | None) -> Tensor:
        assert isinstance(model.task, TaggingHead)
        return model.task(states.last[rows, places], None if noise is None else noise.at(rows, places))

    def outputs(self, model: Model, states: States, batch: TaskBatch) -> list[Any]:
        rows, places = batch.find(lambda known: known.labels["word"] >= 0)
        scores = to_numpy(self._scores(model, states, rows, places, None))
        # In prediction a row holds one sequence, so its item is that of its only slot.
        items = batch.labels["item"][:, 0][rows].cpu().numpy()
        return [scores[items == i] for i in range(len(batch))]

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Example]) -> Predictions:
        names = tuple(self.index)
        values: list[list[str]] = [[names[0]] * len(e.words) for e in examples if isinstance(e, Words)]
        details: list[dict[str, Any]] = [{"scores": [0.0] * len(value)} for value in values]
        for item, scores in zip(items, outputs, strict=True):
            words = item.sequences[0].marks["word"]
            for word, row in zip(words[words >= 0], np.exp(log_softmax(scores)), strict=True):
                best = int(row.argmax())
                values[item.example][word] = names[best]
                details[item.example]["scores"][word] = float(row[best])
        return Predictions(values=[tuple(value) for value in values], details=details)


def first_tokens(words: Sequence[str], encoding: Encoding) -> np.ndarray:
    """For each token of the words joined by spaces, the index of the word whose first token it is, else -1: (n,)
    int64.
    """
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    starts = np.cumsum(lengths + 1) - lengths - 1
    found = np.full(len(encoding), -1, np.int64)
    seen = -1
    for token, (begin, end) in enumerate(encoding.offsets):
        # A token may begin with the space before its word (byte-level BPE, Unigram): its last character decides. The
        # space by itself is the first token of the word behind it, as for transformers.
        word = int(np.searchsorted(starts, end - 1, side="right")) - 1
        word += begin == starts[word] + lengths[word]
        if begin < end and seen < word < len(words) and end <= starts[word] + lengths[word]:
            found[token] = seen = word
    return found
