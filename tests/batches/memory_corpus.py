"""A corpus in memory with the reading interface of ``encoderlab.corpus.shards.Corpus``, and the reference documents."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from encoderlab.batches.rows import Framing
from encoderlab.corpus.shards import Document

PAD, UNK, CLS, SEP, MASK, EOD = 0, 1, 2, 3, 4, 5
ORDINARY = 6  # the first id that is text
SPECIAL = (PAD, UNK, CLS, SEP, MASK, EOD)
BERT = Framing(kind="bert", cls=CLS, sep=SEP, eod=EOD)
ROBERTA = Framing(kind="roberta", cls=CLS, sep=SEP, eod=EOD)
XLNET = Framing(kind="xlnet", cls=CLS, sep=SEP, eod=EOD)


class MemoryCorpus:
    def __init__(self, documents: list[Document], vocab_size: int) -> None:
        self.documents, self.vocab_size = documents, vocab_size
        self.num_documents = len(documents)
        self._starts = np.cumsum([0] + [len(document) for document in documents])
        self.num_tokens = int(self._starts[-1])

    def document(self, i: int, start: int = 0, stop: int | None = None) -> Document:
        whole = self.documents[i]
        stop = len(whole) if stop is None else min(stop, len(whole))
        sentences = whole.sentences[(whole.sentences >= start) & (whole.sentences < stop)] - start
        return Document(whole.ids[start:stop], sentences, whole.word_starts[start:stop])

    def gather(self, documents: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pieces = [
            self.document(*piece) for piece in zip(documents.tolist(), starts.tolist(), stops.tolist(), strict=True)
        ]
        ids = np.concatenate([piece.ids for piece in pieces], dtype=np.int64)
        return ids, np.concatenate([piece.word_starts for piece in pieces])

    def document_length(self, i: int) -> int:
        return len(self.documents[i])

    def document_start(self, i: int) -> int:
        return int(self._starts[i])


def random_corpus(
    seed: int, documents: int, sentences: tuple[int, int] = (1, 12), words: tuple[int, int] = (1, 20), vocab: int = 1000
) -> MemoryCorpus:
    """Documents of random sentences; both ranges are inclusive."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(documents):
        sizes = rng.integers(words[0], words[1] + 1, rng.integers(sentences[0], sentences[1] + 1))
        starts = np.cumsum(sizes) - sizes
        word_starts = rng.random(sizes.sum()) < 0.7
        word_starts[starts] = True
        made.append(Document(rng.integers(ORDINARY, vocab, sizes.sum()).astype(np.uint16), starts, word_starts))
    return MemoryCorpus(made, vocab)


def numbered_corpus(lengths: list[list[int]]) -> MemoryCorpus:
    """Documents of sentences of these lengths; token t of the corpus has the id ORDINARY + t."""
    made, following = [], ORDINARY
    for sizes in lengths:
        total = sum(sizes)
        ids = np.arange(following, following + total, dtype=np.uint32)
        made.append(Document(ids, np.cumsum([0, *sizes[:-1]]), np.ones(total, bool)))
        following += total
    return MemoryCorpus(made, following)


def reference_corpus(shared: Path) -> tuple[MemoryCorpus, Framing, int]:
    """The documents of the golden statistics in the vocabulary of bert-base-uncased, the framing, and the id of
    [MASK]."""
    import tokenizers

    vocabulary = shared / "data" / "vocab" / "bert-base-uncased" / "vocab.txt"
    tokenizer = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    text = gzip.decompress((shared / "golden" / "data_builders" / "builder_documents.txt.gz").read_bytes()).decode()
    documents = []
    for block in text.split("\n\n"):
        ids, starts, words = [], [], []
        for sentence in filter(None, map(str.strip, block.split("\n"))):
            encoded = tokenizer.encode(sentence, add_special_tokens=False)
            starts.append(len(ids))
            ids += encoded.ids
            words += [not token.startswith("##") for token in encoded.tokens]
        if ids:
            documents.append(Document(np.array(ids, np.uint16), np.array(starts), np.array(words)))
    names = ("[CLS]", "[SEP]", "[MASK]")
    cls, sep, mask = (tokenizer.token_to_id(name) for name in names)
    return MemoryCorpus(documents, tokenizer.get_vocab_size()), Framing(cls=cls, sep=sep), mask


def golden_statistics(shared: Path, name: str) -> dict:
    return json.loads((shared / "golden" / "data_builders" / f"{name}.json").read_text())["statistics"]
