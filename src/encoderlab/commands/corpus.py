"""``encoderlab corpus``: build, merge, inspect."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands import terminal
from encoderlab.errors import ConfigError

log = logging.getLogger(__name__)


def build(
    *sources: str,
    out: Path,
    tokenizer: Literal["wordpiece", "bpe", "unigram"] | str = "wordpiece",
    vocab_size: int = 16384,
    family: str | None = None,
    lowercase: Annotated[bool | None, Parameter(negative="--cased")] = None,
    tokenizer_sample: float = 32.0,
    format: Literal["text", "markdown", "jsonl", "csv", "tsv", "parquet"] | None = None,
    field: str | None = None,
    invalid_utf8: Literal["replace", "refuse"] = "replace",
    invalid_records: Literal["refuse", "skip"] = "refuse",
    min_line_chars: int = 1,
    min_chars: int = 1,
    max_chars: int | None = None,
    keep_duplicates: bool = False,
    drop_duplicate_lines: bool = False,
    validation: float = 0.01,
    segmenter: str | None = None,
    workers: int | None = None,
    shard_index: int = 0,
    num_shards: int = 1,
) -> dict[str, Any]:
    """Turn text into a corpus: cleaned, tokenized, memory-mapped.

    Run again after an interruption, the same command continues. `python:stdlib` and `python:all` name text that every
    Python installation carries.

    Example:
        encoderlab corpus build wiki.txt.gz books/ --out corpora/en \\
            --vocab-size 30522 --workers 4

    Parameters
    ----------
    sources
        Files, folders or globs: text (a paragraph per line, a blank line between documents), Markdown, JSONL, CSV, TSV,
        Parquet; `.gz .xz .bz2 .zst .zip`.
    out
        The folder of the corpus, new or empty.
    tokenizer
        What kind to train (`wordpiece`, `bpe`, `unigram`), or a given one: a folder, `vocab.txt`, `tokenizer.json`, ...
    vocab_size
        Tokens of a tokenizer to train.
    family
        Whose special tokens and framing: `bert`, `roberta`, `albert`, `xlnet`, ... By default the kind's usual one.
    lowercase
        Lower-case the text. By default as usual for the kind.
    tokenizer_sample
        Megabytes of text to train the tokenizer on.
    format
        The format of every source; by default each file's name tells.
    field
        The JSON field or the column with the text; a number is a column of a file without a header, from 0. By default
        it is inferred, and said.
    invalid_utf8
        Whether bytes that are no UTF-8 are replaced and counted, or refused.
    invalid_records
        Whether lines that are no valid record are refused, or skipped and counted.
    min_line_chars
        Leave out shorter lines.
    min_chars
        Leave out shorter documents.
    max_chars
        Leave out longer documents.
    keep_duplicates
        Keep documents that are equal to an earlier one.
    drop_duplicate_lines
        Leave out every line that occurred before, anywhere in the corpus.
    validation
        The fraction of documents that is held out.
    segmenter
        Marks words in Chinese text: `rjieba`, `characters`, or a function as `module:function`.
    workers
        Processes; by default one per core.
    shard_index
        Which part this machine builds, from 0, where several build one corpus.
    num_shards
        How many parts there are. Join them with `encoderlab corpus merge`.
    """
    from encoderlab.corpus.assemble import Selection
    from encoderlab.corpus.build import BuildSettings, GivenTokenizer, NewTokenizer, build_corpus
    from encoderlab.corpus.sources import Reading
    from encoderlab.corpus.workers import cores

    if not 0 < tokenizer_sample < math.inf:
        raise ConfigError(f"--tokenizer-sample {tokenizer_sample:g}, expected a number of megabytes, such as 32")
    chosen: NewTokenizer | GivenTokenizer
    if tokenizer in ("wordpiece", "bpe", "unigram"):
        chosen = NewTokenizer(
            kind=tokenizer,  # type: ignore[arg-type]
            vocab_size=vocab_size,
            family=family,
            lowercase=lowercase,
            sample_bytes=int(tokenizer_sample * 1e6),
        )
    else:
        chosen = GivenTokenizer(path=tokenizer, family=family, lowercase=lowercase)
    settings = BuildSettings(
        sources=sources,
        tokenizer=chosen,
        reading=Reading(
            format=format,
            field=field,
            invalid_utf8=invalid_utf8,
            invalid_records=invalid_records,
            min_line_chars=min_line_chars,
        ),
        selection=Selection(
            min_chars=min_chars,
            max_chars=max_chars,
            drop_documents=not keep_duplicates,
            drop_lines=drop_duplicate_lines,
            validation=validation,
        ),
        segmenter=segmenter,
    )
    with terminal.progress("corpus") as progress:
        record = build_corpus(
            settings,
            out,
            workers=cores() if workers is None else workers,
            shard_index=shard_index,
            num_shards=num_shards,
            progress=progress,
        )
    for source in record["sources"]:
        if source["field"] is not None and field is None and not source["name"].startswith("python:"):
            terminal.note(f"{source['name']}: text from {source['format']} field {source['field']!r} (inferred)")
    if num_shards > 1:
        terminal.say(f"{out}: part {shard_index} of {num_shards}; join them: encoderlab corpus merge PART... --out DIR")
        return {"out": str(out), **record}
    return _report(out, record)


def merge(*parts: Path, out: Path, workers: int | None = None) -> dict[str, Any]:
    """Join the parts of a corpus that several machines built; the same bytes as one machine would have written.

    Example: encoderlab corpus merge part0/ part1/ --out corpora/en

    Parameters
    ----------
    parts
        The output folders of `encoderlab corpus build --shard-index i --num-shards n`, all of them, in any order.
    out
        The folder of the corpus, new or empty.
    workers
        Processes; by default one per core.
    """
    from encoderlab.corpus.merge import merge_corpora
    from encoderlab.corpus.workers import cores

    with terminal.progress("corpus") as progress:
        record = merge_corpora(parts, out, workers=cores() if workers is None else workers, progress=progress)
    return _report(out, record)


def inspect(corpus: Path, /, *, rows: int = 3, no_verify: bool = False) -> dict[str, Any]:
    """Show what a corpus holds and verify its hashes.

    Example: encoderlab corpus inspect corpora/en

    Parameters
    ----------
    corpus
        The folder of a corpus.
    rows
        How many documents to show the beginning of.
    no_verify
        Do not read all shards to verify their hashes, which takes about a second per GB.
    """
    from encoderlab.corpus.inspection import inspect_corpus

    facts = inspect_corpus(corpus, rows=rows, check=not no_verify)
    names = list(facts["splits"])
    columns = list(next(iter(facts["splits"].values())))
    table = [[_words(name), *(_cell(facts["splits"][split][name]) for split in names)] for name in columns]
    terminal.table(f"{corpus}", ["", *names], table)
    tokenizer = facts["tokenizer"]
    terminal.say(
        f"tokenizer: {tokenizer.get('kind', 'none')}, {facts['vocab_size']:,} tokens, {facts['unused_ids']:,} of them "
        f"unused, {facts.get('unknown_share', 0):.3%} unknown; unigram entropy {facts['unigram_entropy_bits']} bits"
    )
    for row in facts.get("rows", []):
        terminal.say(f"  {row}")
    terminal.say("all hashes verified" if facts["verified"] else "hashes not verified")
    return facts


def _report(out: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    splits = manifest["splits"]
    rows = [[split, *(f"{splits[split][name]:,}" for name in ("documents", "tokens", "bytes"))] for split in splits]
    terminal.table(str(out), ["split", "documents", "tokens", "bytes"], rows)
    read, apart = manifest["read"], ("documents", "invalid_utf8")
    counted = [f"{count:,} {_words(name)}" for name, count in read.items() if count and name not in apart]
    if counted:
        terminal.note("on the way: " + ", ".join(counted))
    if read["invalid_utf8"]:
        log.warning(
            f"{read['invalid_utf8']:,} characters were no valid UTF-8 and became U+FFFD; --invalid-utf8 refuse names "
            "the first file and line, and iconv converts a file"
        )
    kinds = {split: {name: value for name, value in splits[split].items() if name != "shards"} for split in splits}
    return {"out": str(out), "vocab_size": manifest["vocab_size"], "splits": kinds, "read": read}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {number:,}" for name, number in value.items())
    return f"{value:,}"
