"""Other vocabularies for a trained model: words of the domain added, or a new tokenizer with embeddings transplanted.

Every row of the new tables is a weighted sum of rows of the old ones (:class:`RowOrigins`):

- a token that both vocabularies have keeps its row;
- an added word starts as the mean of its former pieces;
- another token of a new tokenizer starts as the softmax-weighted mean (temperature 0.1) of its ten nearest neighbours
  among the shared tokens. This is the initialisation of FOCUS (Dobler and de Melo, 2023) with the weights of WECHSEL
  (Minixhofer et al., 2022). Similarity is the cosine between rows of positive pointwise mutual information with the
  most frequent shared tokens, counted in the domain's text with the new tokenizer (Levy, Goldberg and Dagan, 2015);
  FOCUS trains fastText instead. A token that occurs too rarely for that starts as the mean of its old pieces.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
import torch

from encoderlab.corpus.special_tokens import FAMILIES
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.corpus.tokenizer_training import TooLarge, TooSmall
from encoderlab.errors import ConfigError, DataError
from encoderlab.model import Model
from encoderlab.models.base import resized

NEIGHBOURS, TEMPERATURE = 10, 0.1
CONTEXTS, WINDOW, LEAST_COUNT = 1000, 4, 5
LEAST_FREQUENCY = 5  # of a word that is added
TABLES = ("encoder.embeddings.words", "lm.bias")  # parameters with a row per token


@dataclass(frozen=True)
class RowOrigins:
    """For each new row, the old rows and their weights; and the number of rows of each kind."""

    parts: list[tuple[np.ndarray, np.ndarray]]
    kept: int
    neighbours: int
    pieces: int


def extend(tokenizer: Tokenizer, texts: Iterable[str], count: int) -> Tokenizer:
    """The tokenizer with the ``count`` words of ``texts`` that save the most tokens: occurrences x (pieces - 1).

    Raises:
        ConfigError: not WordPiece.
        DataError: the text has no such word.
    """
    if tokenizer.kind != "wordpiece":
        raise ConfigError(
            f"--vocabulary extend adds words to WordPiece vocabularies, and this one is {tokenizer.kind}; give "
            "--vocabulary new, or keep the vocabulary"
        )
    backend = tokenizer.backend
    counts: Counter[str] = Counter()
    for text in texts:
        normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
        counts.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal) if _of_letters(word))
    words = [word for word, number in counts.items() if number >= LEAST_FREQUENCY]
    sizes = map(len, tokenizer.encode_batch(words))
    saved = {word: counts[word] * (size - 1) for word, size in zip(words, sizes, strict=True) if size > 1}
    chosen = sorted(saved, key=lambda word: (-saved[word], word))[:count]
    if not chosen:
        raise DataError("the text has no frequent word that the vocabulary lacks; leave out --vocabulary extend")
    parts = json.loads(backend.to_str())
    vocabulary = parts["model"]["vocab"]
    vocabulary |= {token["content"]: token["id"] for token in parts["added_tokens"]}  # else they get new ids
    vocabulary |= {word: tokenizer.vocab_size + number for number, word in enumerate(chosen)}
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(parts)), tokenizer.special_tokens, tokenizer.options)


def _of_letters(word: str) -> bool:
    """Whether a word has only letters and their marks, such as the vowel signs of Devanagari."""
    return all(char.isalpha() or unicodedata.category(char).startswith("M") for char in word)


def family_of(tokenizer: Tokenizer, model_family: str) -> str:
    """The family whose special tokens and framing a new tokenizer gets: those of ``tokenizer``; of several, that of the
    model.

    Raises:
        ConfigError: there is none.
    """
    special = tokenizer.special_tokens
    same = [
        name
        for name, one in FAMILIES.items()
        if one.special_tokens.framing == special.framing
        and special.roles().items() <= one.special_tokens.roles().items()  # some XLNet vocabularies lack <eod>
    ]
    if not same:
        raise ConfigError("no tokenizer can be trained with the model's special tokens; keep its vocabulary")
    own = "deberta-v2" if model_family == "deberta" and tokenizer.kind != "bpe" else model_family
    return own if own in same else same[0]


def retrain(tokenizer: Tokenizer, texts: Sequence[str], model_family: str) -> Tokenizer:
    """A tokenizer of the same kind, special tokens and letter case, trained on ``texts``: of the same size, or the
    largest that they support.

    Raises:
        ConfigError: see :func:`family_of`; or the letters of the text do not fit the size.
    """
    family = family_of(tokenizer, model_family)
    lowercase = tokenizer.kind != "bpe" and len(tokenizer.encode("A")) == len(tokenizer.encode("a")) == 1
    lowercase = lowercase and tokenizer.encode("A").ids[0] == tokenizer.encode("a").ids[0]
    size = tokenizer.vocab_size
    while True:
        try:
            return Tokenizer.train(tokenizer.kind, texts, size, family=family, lowercase=lowercase)
        except TooLarge as error:
            if error.supported >= size:
                raise
            size = error.supported
        except TooSmall:
            raise ConfigError(
                f"the letters of the text do not fit a vocabulary of {size} tokens, the size of the model's; "
                "give a model with a larger one"
            ) from None


def rows(old: Tokenizer, new: Tokenizer, texts: Sequence[str], *, neighbours: bool) -> RowOrigins:
    """The source of each row of the tables of ``new``; with ``neighbours``, from similar shared tokens."""
    one = np.ones(1)
    known = {token: index for index, token in enumerate(old.tokens) if token}
    for role in ("pad", "unk", "cls", "sep", "mask", "eod"):
        before, now = getattr(old.special, role), getattr(new.special, role)
        if before is not None and now is not None:
            known[new.token(now)] = before
    parts: list[tuple[np.ndarray, np.ndarray] | None] = [
        (np.array([known[token]]), one) if token in known else None for token in new.tokens
    ]
    kept = sum(part is not None for part in parts)
    near = 0
    if neighbours:
        for index, (like, weights) in _near(new, texts, np.array([part is not None for part in parts])):
            parts[index] = (np.array([known[new.token(at)] for at in like]), weights)
            near += 1
    pieces = 0
    middle = np.array([index for index, token in enumerate(old.tokens) if token])
    for index, part in enumerate(parts):
        if part is None:
            ids = old.encode(new.decode([index], skip_special=False).removeprefix("##").strip()).ids
            ids = ids[ids != old.special.unk]
            places = ids if len(ids) else middle
            parts[index] = (np.asarray(places), np.full(len(places), 1 / len(places)))
            pieces += 1
    return RowOrigins([part for part in parts if part is not None], kept, near, pieces)


def _near(new: Tokenizer, texts: Sequence[str], shared: np.ndarray) -> list[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """For each frequent token that is not ``shared`` (V,): similar shared tokens, and their weights."""
    size = new.vocab_size
    ids = new.encode_corpus(list(texts)).ids.astype(np.int64)
    counts = np.bincount(ids, minlength=size)
    often = counts >= LEAST_COUNT
    contexts = np.flatnonzero(shared & often)
    contexts = contexts[np.argsort(-counts[contexts], kind="stable")[:CONTEXTS]]
    if len(contexts) < NEIGHBOURS:
        return []
    column = np.full(size, -1)
    column[contexts] = np.arange(len(contexts))
    pairs = np.zeros(size * len(contexts), np.float32)
    for distance in range(1, WINDOW + 1):
        for word, context in ((ids[:-distance], ids[distance:]), (ids[distance:], ids[:-distance])):
            seen = column[context] >= 0
            places = word[seen] * len(contexts) + column[context[seen]]
            pairs += np.bincount(places, minlength=len(pairs)).astype(np.float32)
    matrix = pairs.reshape(size, -1)
    across, down, total = matrix.sum(1, keepdims=True), matrix.sum(0, keepdims=True), matrix.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ppmi = np.nan_to_num(np.log(matrix * total / (across * down)), nan=0.0, neginf=0.0, posinf=0.0).clip(0)
    ppmi /= np.linalg.norm(ppmi, axis=1, keepdims=True) + 1e-9
    sources = np.flatnonzero(shared & often & (ppmi.any(1)))
    targets = np.flatnonzero(~shared & often & (ppmi.any(1)))
    nearest = []
    for start in range(0, len(targets), 256):
        block = targets[start : start + 256]
        likeness = ppmi[block] @ ppmi[sources].T
        best = np.argsort(-likeness, axis=1, kind="stable")[:, :NEIGHBOURS]
        values = np.take_along_axis(likeness, best, 1) / TEMPERATURE
        weights = np.exp(values - values.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        nearest += [(int(at), (sources[b], w)) for at, b, w in zip(block, best, weights, strict=True)]
    return nearest


def transplant(model: Model, tokenizer: Tokenizer, made: RowOrigins) -> Model:
    """A model with ``tokenizer``, whose tables have the rows ``made`` from those of ``model``; the rest is the same."""
    result = Model(resized(model.config, vocab=tokenizer.vocab_size), tokenizer)
    state = model.state_dict()
    for name in TABLES:
        if name not in state:
            continue
        old = state[name].double()
        new = [
            torch.from_numpy(w).double() @ old[torch.from_numpy(i).long()].reshape(len(i), -1) for i, w in made.parts
        ]
        state[name] = torch.stack(new).reshape(-1, *old.shape[1:]).to(state[name].dtype)
    result.load_state_dict(state)
    return result.eval()
