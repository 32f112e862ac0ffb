"""Tagging: a label for every word, read from its first sub-token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from encoderlab.batches.batch import IGNORE
from encoderlab.corpus.tokenizer import Encoding
from encoderlab.errors import ConfigError, DataError
from encoderlab.models.base import Family
from encoderlab.nn.encoder import States
from encoderlab.nn.heads import TaggingHead, TaskHead
from encoderlab.nn.noise import Noise
from encoderlab.objectives.base import Term
from encoderlab.tasks.data.examples import Example, GivenPrediction, Remarks, Split, TaggedWords, labels_of
from encoderlab.tasks.data.plain_words import words_of
from encoderlab.tasks.data.readers import Conll, Layout, WordLists
from encoderlab.tasks.forms.base import (
    Answers,
    Form,
    FormSettings,
    Network,
    Predictions,
    Scores,
    by_frequency,
    check_number_of_labels,
    known_label,
    softmax,
)
from encoderlab.tasks.forms.baselines import most_frequent_tag_of_all, tag_dictionary
from encoderlab.tasks.forms.batching import Encoded, Item, TaskBatch, to_numpy
from encoderlab.tasks.scoring import metrics
from encoderlab.tasks.scoring.analysis import Mistake, by_class
from encoderlab.tasks.scoring.entities import Scheme, detect_scheme, entities, score_entities, write_tags
from encoderlab.train.data import Chance

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Task


WORDS = 60  # words of a sentence with mistakes to store


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(FormSettings):
    """Settings of tagging.

    Args:
        context: ``document`` adds the neighbouring sentences of its document on both sides of a sentence, as many
            tokens as fit (BERT's CoNLL-2003).
    """

    kind: Literal["tagging"] = "tagging"
    context: Literal["sentence", "document"] = "sentence"


class TaggingForm(Form):
    """Cross-entropy over the tags of first sub-tokens, no CRF (Devlin et al., 2019, section 5.3).

    A sentence longer than a sequence is cut into several sequences, so every word has a prediction. The words are
    joined by spaces; a word is read at the first token that contains one of its characters, which works for every
    tokenizer. A word without such a token (for example a control character) gets the first label.
    """

    name = "tagging"
    description = "a tag for every word"
    settings_type = TaggingSettings
    columns = "words"
    layouts = (WordLists(), WordLists(words="words", tags="tags"), Conll())
    metrics = ("f1", "precision", "recall", "accuracy")
    baselines = {"majority": most_frequent_tag_of_all, "dictionary": tag_dictionary}
    labelled = True
    extras = frozenset({"distill", "sift", "frozen"})
    too_long = "read in parts"
    settings: TaggingSettings

    # Data

    @classmethod
    def inferred(cls, layout: Layout, examples: Sequence[Any]) -> tuple[Layout, tuple[str, ...], str]:
        """Tags are of entities if most have prefixes (B-, I-, ...); one without a prefix is then refused later."""
        tags = [tag for example in examples for tag in example.tags or () if tag != "O"]
        prefixed = sum(tag[:1] in "BIMELSWU" and tag[1:2] in ("-", "") for tag in tags)
        if not tags or 2 * prefixed > len(tags):
            return layout, cls.metrics, ""
        plain = replace(layout, scheme=None) if isinstance(layout, (Conll, WordLists)) else layout
        return plain, ("accuracy", "macro_f1"), "not all tags have prefixes (B-, I-, ...)"

    @classmethod
    def checked(cls, task: Task, example: Any, place: str, remarks: Remarks) -> Example:
        if example.tags is None or task.labels is None:
            return example
        path = place.rpartition(":")[0]
        rows = (example.row + i * example.by_line for i in range(len(example.tags)))
        tags = zip(example.tags, rows, strict=True)
        return replace(example, tags=tuple(known_label(task, tag, f"{path}:{row}", what="tag") for tag, row in tags))

    @classmethod
    def completed(cls, task: Task, train: Split) -> Task:
        if task.labels is not None:
            return task
        tags = labels_of(train.examples)
        check_number_of_labels(tags, train)
        if all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags):
            # Both B and I of every type, and O: a development file may have one that training lacks.
            kinds = sorted({tag[2:] for tag in tags if tag != "O"})
            tags = ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))
        return replace(task, labels=tags, indices=False)

    @classmethod
    def fits(cls, model: Network) -> bool:
        return isinstance(model.task, TaggingHead)

    @classmethod
    def of_line(cls, id: str, line: str) -> TaggedWords | None:
        words = tuple(word for word, _, _ in words_of(line))
        return TaggedWords(id=id, words=words) if words else None

    # Scores

    @classmethod
    def with_predictions(
        cls, task: Task, examples: Sequence[Any], guesses: Sequence[GivenPrediction]
    ) -> Sequence[TaggedWords]:
        """Predicted tags are written in the gold data's scheme (its layout's, or BIO for spans).

        Tags that fit no scheme stay unchanged, so that violations of the scheme are scored as they are.
        """
        sentences = [_tagged(example, guess) for example, guess in zip(examples, guesses, strict=True)]
        scheme: Scheme | None = getattr(task.layouts[0], "scheme", "BIO")
        tags = [sentence.tags or () for sentence in sentences]
        known = set(task.labels or ())
        if scheme is None or all(tag in known for one in tags for tag in one):
            return sentences
        try:
            detected, _ = detect_scheme(tags)
        except DataError as error:
            raise DataError(f"{guesses[0].path}: {error}") from None
        if detected == scheme:
            return sentences
        return [
            replace(sentence, tags=tuple(write_tags(entities(sentence.tags or ()), len(sentence.words), scheme)))
            for sentence in sentences
        ]

    @classmethod
    def agreement(cls, before: Sequence[Any], after: Sequence[Any]) -> float:
        """The mean share of equal tags."""
        return float(np.mean([super(TaggingForm, cls).agreement(*pair) for pair in zip(before, after, strict=True)]))

    @classmethod
    def measures(cls, task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        gold = [example.tags for example in examples if example.tags is not None]
        if len(gold) != len(examples):
            raise DataError(f"{len(examples) - len(gold)} sentences have no tags; score labelled data")
        flat, guess = (np.array([tag for tags in side for tag in tags]) for side in (gold, predictions))
        scores = {"accuracy": metrics.accuracy(flat, guess)}
        if "macro_f1" in task.metrics:
            return scores | {"macro_f1": metrics.f1(flat, guess, average="macro")}
        every, by_type = score_entities(gold, predictions)
        scores |= {"f1": every.f1, "precision": every.precision, "recall": every.recall}
        # A type that is only predicted has no score here, so that the seeds of one split all have the same scores.
        return scores | {f"f1_{kind}": counts.f1 for kind, counts in by_type.items() if counts.gold}

    @classmethod
    def off(cls, task: Task, example: Any, value: Any, detail: Mapping[str, Any]) -> float:
        """The sum of the probabilities of the wrong tags."""
        tags = zip(example.tags, value, detail["scores"], strict=True)
        return sum(share + 1e-9 for gold, guess, share in tags if gold != guess)

    @classmethod
    def mistake(cls, task: Task, place: int, example: Any, value: Any, detail: Mapping[str, Any]) -> Mistake:
        wrong = [i for i, (gold, guess) in enumerate(zip(example.tags, value, strict=True)) if gold != guess]
        start = max(0, wrong[0] - WORDS // 4)
        part = slice(start, start + WORDS)
        words = tuple(zip(example.words[part], example.tags[part], value[part], strict=True))
        gold, guess = (cls._in_words(task, example.words, tags) for tags in (example.tags, value))
        return Mistake(place=place, id=example.id, texts={}, gold=gold, predicted=guess, words=words)

    @staticmethod
    def _in_words(task: Task, words: Sequence[str], tags: Sequence[str]) -> str:
        """The entities; without schemes there are none, and each tag is shown with its word."""
        if "macro_f1" in task.metrics:
            return ""
        named = (f"{kind or 'entity'}: {' '.join(words[start:end])}" for kind, start, end in entities(tags))
        return "; ".join(named) or "none"

    @classmethod
    def details_of(cls, task: Task, examples: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
        """By type of entity; by tag, with a confusion matrix, if tags have no prefixes."""
        gold = [example.tags for example in examples]
        if "macro_f1" not in task.metrics:
            return {"kind": "entity type", "classes": score_entities(gold, values)[1]}
        right, guess = ([tag for tags in side for tag in tags] for side in (gold, values))
        return {"kind": "tag", "classes": by_class([[tag] for tag in right], [[tag] for tag in guess])}

    def chance(self, examples: Sequence[Any]) -> Chance | None:
        return by_frequency(tag for example in examples for tag in example.labels)

    # Encoding and losses

    def head(self, family: Family) -> TaskHead:
        return replace(family.tagging, labels=self.num_labels())

    @property
    def reads_documents(self) -> bool:
        return self.settings.context == "document"

    def items(self, examples: Sequence[Any], *, train: bool = False) -> list[Item]:
        # Within its document a sentence follows a space, which byte-level BPE makes part of its first word.
        goes_on = [self.reads_documents and a.document == b.document for a, b in pairwise(examples)]
        shown = [
            ("", *sentence.words) if after else sentence.words
            for sentence, after in zip(examples, (False, *goes_on), strict=False)
        ]
        encodings = self.tokenizer.encode_batch([" ".join(words) for words in shown])
        room = self.settings.max_length - 2
        if room < 1:
            raise ConfigError(f"max_length {self.settings.max_length} leaves no room for a word; choose at least 3")
        items = []
        for number, (sentence, encoding) in enumerate(zip(examples, encodings, strict=True)):
            if train and sentence.tags is None:
                continue
            words = first_tokens(shown[number], encoding)
            words = np.where(words < 0, -1, words - (len(shown[number]) - len(sentence.words)))
            tags = self._tags(sentence, words)
            left, right = self._context(examples, encodings, number, room - len(encoding))
            for start in range(0, max(len(encoding), 1), room):
                stop = min(start + room, len(encoding))
                pieces = [left, encoding.ids[start:stop], right]
                marks = [np.full(len(left), -1), words[start:stop], np.full(len(right), -1)]
                targets = [np.full(len(left), IGNORE), tags[start:stop], np.full(len(right), IGNORE)]
                items.append(self._item(number, *(np.concatenate(parts) for parts in (pieces, marks, targets))))
            self.cut += len(encoding) > room
        return items

    def _tags(self, sentence: TaggedWords, words: np.ndarray) -> np.ndarray:
        """The target of each token: the tag of the word that it begins, else IGNORE. ``words`` as in
        :func:`first_tokens`.
        """
        tags = np.full(len(words), IGNORE, np.int64)
        if sentence.tags is not None:
            places = np.flatnonzero(words >= 0)
            tags[places] = [self.index.get(sentence.tags[word], IGNORE) for word in words[places]]
        return tags

    def _context(
        self, sentences: Sequence[TaggedWords], encodings: Sequence[Encoding], number: int, room: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the same document before and after a sentence: ``room`` in total, half on each side if there are
        enough.
        """
        none = np.zeros(0, np.int64)
        if not self.reads_documents or room < 1:
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

    def terms(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> dict[str, Term]:
        rows, places = batch.find(lambda known: known.labels["target"] >= 0)
        logits = self._logits(model, states, rows, places, noise)
        target = batch.labels["target"][rows, places].long()
        loss = F.cross_entropy(logits.float(), target, reduction="sum")
        return {"tagging": Term(loss, len(target), hits=(logits.argmax(-1) == target).sum())}

    def logits(self, model: Network, states: States, batch: TaskBatch, noise: Noise | None) -> Tensor:
        rows, places = batch.find(lambda known: known.labels["target"] >= 0)
        return self._logits(model, states, rows, places, noise)

    @staticmethod
    def _logits(model: Network, states: States, rows: Tensor, places: Tensor, noise: Noise | None) -> Tensor:
        assert isinstance(model.task, TaggingHead)
        return model.task(states.last[rows, places], None if noise is None else noise.at(rows, places))

    # Predictions

    def outputs(self, model: Network, states: States, batch: TaskBatch) -> list[Any]:
        rows, places = batch.find(lambda known: known.labels["word"] >= 0)
        logits = to_numpy(self._logits(model, states, rows, places, None))
        # In prediction a row has one sequence, so its item is that of its only slot.
        items = batch.labels["item"][:, 0][rows].cpu().numpy()
        return [logits[items == i] for i in range(len(batch))]

    def decode(self, items: Sequence[Item], outputs: Sequence[Any], examples: Sequence[Any]) -> Predictions:
        names = tuple(self.index)
        values: list[list[str]] = [[names[0]] * len(e.words) for e in examples]
        details: list[dict[str, Any]] = [{"scores": [0.0] * len(value)} for value in values]
        for item, logits in zip(items, outputs, strict=True):
            words = item.sequences[0].marks["word"]
            for word, row in zip(words[words >= 0], softmax(logits), strict=True):
                best = int(row.argmax())
                values[item.example][word] = names[best]
                details[item.example]["scores"][word] = float(row[best])
        return Predictions(values=[tuple(value) for value in values], details=details)

    def together(self, members: Sequence[Answers], examples: Sequence[Example]) -> Predictions:
        if len({tuple(len(item.sequences[0].marks["word"]) for item in member.items) for member in members}) > 1:
            raise ConfigError(
                "the models of the ensemble cut sentences differently; give models with one tokenizer and max_length"
            )
        return super().together(members, examples)


def first_tokens(words: Sequence[str], encoding: Encoding) -> np.ndarray:
    """For each token of the words joined by spaces, the index of the word whose first token it is, else -1: (n,)
    int64.
    """
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    starts = np.cumsum(lengths + 1) - lengths - 1
    tokens = np.full(len(encoding), -1, np.int64)
    seen = -1
    for token, (begin, end) in enumerate(encoding.offsets):
        # A token may begin with the space before its word (byte-level BPE, Unigram): its last character decides. A
        # space alone is the first token of the next word, as in transformers.
        word = int(np.searchsorted(starts, end - 1, side="right")) - 1
        word += begin == starts[word] + lengths[word]
        if begin < end and seen < word < len(words) and end <= starts[word] + lengths[word]:
            tokens[token] = seen = word
    return tokens


def _tagged(example: TaggedWords, guess: GivenPrediction) -> TaggedWords:
    """The sentence with predicted tags: from columns, a list, a text with spaces, or CLUENER's spans.

    Raises:
        DataError: the number of tags is not the number of words, or the words differ.
    """
    value, count, words = guess.value, len(example.words), example.words
    by_line, place = isinstance(value, TaggedWords), f"{guess.path}:{guess.row}"
    if isinstance(value, TaggedWords):  # without tags, its words are tags
        words, tags = (words, value.words) if value.tags is None else (value.words, value.tags)
    elif isinstance(value, dict):
        try:
            spans = [
                (kind, first, last + 1)
                for kind, mentions in value.items()
                for places in mentions.values()
                for first, last in places
            ]
            if any(not 0 <= first < end <= count for _, first, end in spans):
                raise ValueError("a place outside the text")
        except (AttributeError, TypeError, ValueError) as error:
            raise DataError(f"{place}: not {{type: {{mention: [[first, last]]}}}} ({error}); correct it") from None
        tags = tuple(write_tags(sorted(spans, key=lambda span: span[1:]), count))
    elif isinstance(value, (str, list)):
        tags = tuple(value.split() if isinstance(value, str) else map(str, value))
    else:
        raise DataError(f"{place}: {str(value)[:40]!r} has no tags; give a list of tags")
    if len(tags) != count:
        raise DataError(f"{place}: {len(tags)} tags, the sentence has {count} words; give one for each")
    for i, (word, own, tag) in enumerate(zip(words, example.words, example.tags or (), strict=True)):
        if word not in (own, tag):  # conlleval also reads gold and predicted tags without words
            raise DataError(
                f"{guess.path}:{guess.row + i}: {word!r}, the gold data has {own!r} here; give the same sentences"
            )
    return replace(example, tags=tags, row=guess.row, by_line=by_line)
