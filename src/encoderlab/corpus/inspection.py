"""The content of a corpus: counts, tokens per word, and some of its text."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.config import to_dict
from encoderlab.corpus.manifest import NUMBERS, TOKENIZER, SplitRecord, read_manifest, verify
from encoderlab.corpus.shards import Corpus, unigram_entropy
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError
from encoderlab.seeds import generator

SAMPLE = 1000  # documents whose lengths are read


def inspect_corpus(folder: str | os.PathLike[str], *, rows: int = 3, check: bool = True) -> dict[str, Any]:
    """Facts about a corpus, and ``rows`` documents' beginnings as decoded text with ``|`` between sentences.

    Args:
        check: compare every file with its hash, about a second per GB.

    Raises:
        ConfigError: a negative number of rows.
        DataError: no corpus there, or a damaged file.
    """
    if rows < 0:
        raise ConfigError(f"rows {rows}, expected 0 or more")
    folder = Path(folder)
    manifest = read_manifest(folder)
    if check:
        verify(folder)
    facts: dict[str, Any] = {
        "path": str(folder),
        "vocab_size": manifest.vocab_size,
        "tokenizer": {name: value for name, value in (to_dict(manifest.tokenizer) or {}).items() if name != "files"},
        "sources": [source.name for source in manifest.sources],
        "read": manifest.read,
        "verified": check,
        "splits": {},
    }
    for split, record in manifest.splits.items():
        facts["splits"][split] = _facts(Corpus(folder, split), record)
    counts = Corpus(folder).counts()
    total = max(int(counts.sum()), 1)
    facts["unused_ids"] = int((counts == 0).sum())
    facts["unigram_entropy_bits"] = round(unigram_entropy(counts) / math.log(2), 3)
    if (folder / TOKENIZER).exists():
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        facts["unknown_share"] = round(int(counts[tokenizer.special.unk]) / total, 6)
        facts["rows"] = [_text(document, tokenizer) for document in _some(Corpus(folder), rows)]
    return facts


def _facts(corpus: Corpus, record: SplitRecord) -> dict[str, Any]:
    lengths = [len(document) for document in _some(corpus, SAMPLE)]
    low, middle, high = np.percentile(lengths, [10, 50, 90]).astype(int).tolist() if lengths else (0, 0, 0)
    return {
        **{name: getattr(record, name) for name in NUMBERS},
        "shards": len(record.shards),
        "tokens_per_word": round(record.tokens / max(record.words, 1), 4),
        "bytes_per_token": round(record.bytes / max(record.tokens, 1), 3),
        "document_tokens": {"p10": low, "p50": middle, "p90": high},
    }


def _some(corpus: Corpus, number: int) -> list[Any]:
    """Up to ``number`` documents, the same ones each time."""
    number = min(number, len(corpus))
    if not number:
        return []
    chosen = generator("inspect", len(corpus)).choice(len(corpus), number, replace=False)
    return [corpus.document(int(place)) for place in np.sort(chosen)]


def _text(document: Any, tokenizer: Tokenizer, limit: int = 64) -> str:
    ends = [*document.sentences[1:].tolist(), len(document.ids)]
    sentences = zip(document.sentences.tolist(), ends, strict=True)
    parts = [tokenizer.decode(document.ids[start : min(end, limit)]) for start, end in sentences if start < limit]
    return " | ".join(part.strip() for part in parts) + (" ..." if len(document) > limit else "")
