"""``encoderlab corpus``: build, merge, inspect."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands import terminal
from encoderlab.commands.settings import Amount, Count, CountOrZero
from encoderlab.commands.workers import ALL_CORES, Processes
from encoderlab.corpus.sources import Reading
from encoderlab.errors import ConfigError
from encoderlab.execution.cluster import tasks_on
from encoderlab.execution.workers import cores
from encoderlab.interchange.finetuned import tokenizer_place

if TYPE_CHECKING:
    from encoderlab.corpus.assemble import Selection
    from encoderlab.corpus.build import GivenTokenizer, NewTokenizer
    from encoderlab.corpus.manifest import Manifest

log = logging.getLogger(__name__)
READING = Reading()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """The tokenizer, trained or given.

    Parameters
    ----------
    tokenizer
        Kind of tokenizer to train (`wordpiece`, `bpe`, `unigram`), or a given one: that of a model, a run or a corpus,
        a folder, `vocab.txt`, `tokenizer.json`, ...
    vocab_size
        Vocabulary size of a tokenizer to train. Default: 16384.
    family
        Family whose special tokens to use: `bert`, `roberta`, `albert`, `xlnet`, ... Default: the usual one for the
        kind of tokenizer.
    lowercase
        Lower-case the text. Default: as usual for the kind of tokenizer.
    tokenizer_sample
        Megabytes of text to train the tokenizer on. Default: 32.
    """

    tokenizer: Literal["wordpiece", "bpe", "unigram"] | str = "wordpiece"
    vocab_size: Count | None = None
    family: str | None = None
    lowercase: Annotated[bool | None, Parameter(negative="--cased")] = None
    tokenizer_sample: Amount | None = None

    def choice(self) -> NewTokenizer | GivenTokenizer:
        """The tokenizer of a build."""
        from encoderlab.corpus.build import GivenTokenizer, NewTokenizer

        if self.tokenizer not in ("wordpiece", "bpe", "unigram"):
            for option, value in (("--vocab-size", self.vocab_size), ("--tokenizer-sample", self.tokenizer_sample)):
                if value is not None:
                    raise ConfigError(
                        f"{option} is for a tokenizer to train; leave it out, or --tokenizer {self.tokenizer}"
                    )
            path = str(tokenizer_place(Path(self.tokenizer), terminal.note))
            return GivenTokenizer(path=path, family=self.family, lowercase=self.lowercase)
        return NewTokenizer(
            kind=self.tokenizer,  # type: ignore[arg-type]
            vocab_size=16384 if self.vocab_size is None else self.vocab_size,
            family=self.family,
            lowercase=self.lowercase,
            sample_bytes=int((32 if self.tokenizer_sample is None else self.tokenizer_sample) * 1e6),
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Kept:
    """The documents to keep, and the validation split.

    Parameters
    ----------
    min_chars
        Drop documents with fewer characters.
    max_chars
        Drop documents with more characters.
    keep_duplicates
        Keep documents that are equal to an earlier one.
    near_duplicates
        Drop documents that resemble an earlier one: the similarity, such as 0.8, of their runs of five words (MinHash).
    drop_duplicate_lines
        Drop every line that occurred before, anywhere in the corpus.
    validation
        Share of documents in the validation split.
    """

    min_chars: CountOrZero = 1
    max_chars: Count | None = None
    keep_duplicates: bool = False
    near_duplicates: float | None = None
    drop_duplicate_lines: bool = False
    validation: float = 0.01

    def selection(self) -> Selection:
        """The selection of a build."""
        from encoderlab.corpus.assemble import Selection

        return Selection(
            min_chars=self.min_chars,
            max_chars=self.max_chars,
            drop_documents=not self.keep_duplicates,
            near_duplicates=self.near_duplicates,
            drop_lines=self.drop_duplicate_lines,
            validation=self.validation,
        )


def build(
    *sources: str,
    out: Path,
    tokens: TokenizerOptions = TokenizerOptions(),
    reading: Annotated[Reading, Parameter(name="*")] = READING,
    kept: Kept = Kept(),
    segmenter: str | None = None,
    max_unknown: float | None = None,
    where: Processes = ALL_CORES,
    shard_index: int = 0,
    num_shards: int = 1,
) -> dict[str, Any]:
    """Build a corpus from text: clean, tokenize, memory-map.

    After an interruption, run the same command again to continue. `python:stdlib` and `python:all` name text that every
    Python installation contains.

    Example:
        encoderlab corpus build wiki.txt.gz books/ --out corpora/en \\
            --vocab-size 30522 --workers 4

    Parameters
    ----------
    sources
        Files, folders or globs: text (a paragraph per line, a blank line between documents), Markdown, JSONL, CSV, TSV,
        Parquet; `.gz .xz .bz2 .zst .zip`.
    out
        Folder of the corpus, new or empty.
    segmenter
        Marks words in Chinese text: `rjieba`, `characters`, or a function as `module:function`.
    max_unknown
        Refuse the tokenizer if more than this share of the tokens is unknown. Default: 0.2.
    shard_index
        If several machines build one corpus: number of this machine's part, from 0.
    num_shards
        Number of parts. Merge them with `encoderlab corpus merge`.
    """
    from encoderlab.corpus.build import BuildSettings, build_corpus
    from encoderlab.corpus.merge import MAX_UNKNOWN, PartRecord

    settings = BuildSettings(
        sources=sources,
        tokenizer=tokens.choice(),
        reading=reading,
        selection=kept.selection(),
        segmenter=segmenter,
    )
    with terminal.progress("corpus") as progress:
        record = build_corpus(
            settings,
            out,
            workers=where.workers or cores(),
            shard_index=shard_index,
            num_shards=num_shards,
            max_unknown=MAX_UNKNOWN if max_unknown is None else max_unknown,
            cluster=None if where.on == "local" else lambda sees: tasks_on(where.on, workers=where.workers, sees=sees),
            progress=progress,
        )
    for source in record.sources:
        if source.field is not None and reading.field is None and not source.name.startswith("python:"):
            terminal.note(f"{source.name}: text from {source.format} field {source.field!r} (inferred)")
    if isinstance(record, PartRecord):
        terminal.say(f"{out}: part {shard_index} of {num_shards}; to merge: encoderlab corpus merge PART... --out DIR")
        return {"out": str(out), **asdict(record)}
    return _report(out, record)


def merge(*parts: Path, out: Path, max_unknown: float | None = None, workers: Count | None = None) -> dict[str, Any]:
    """Merge the parts of a corpus that several machines built; the result is what one machine would have written.

    Example: encoderlab corpus merge part0/ part1/ --out corpora/en

    Parameters
    ----------
    parts
        All output folders of `encoderlab corpus build --shard-index i --num-shards n`, in any order.
    out
        Folder of the corpus, new or empty.
    max_unknown
        Refuse the tokenizer if more than this share of the tokens is unknown. Default: 0.2.
    workers
        Number of processes. Default: one per core.
    """
    from encoderlab.corpus.merge import MAX_UNKNOWN, merge_corpora

    with terminal.progress("corpus") as progress:
        manifest = merge_corpora(
            parts,
            out,
            workers=cores() if workers is None else workers,
            max_unknown=MAX_UNKNOWN if max_unknown is None else max_unknown,
            progress=progress,
        )
    return _report(out, manifest)


def inspect(corpus: Path, /, *, rows: CountOrZero = 3, no_verify: bool = False) -> dict[str, Any]:
    """Show a corpus and verify its hashes.

    Example: encoderlab corpus inspect corpora/en

    Parameters
    ----------
    corpus
        The folder of a corpus.
    rows
        Number of documents whose beginning is shown.
    no_verify
        Do not verify hashes. Verifying reads all shards, about a second per GB.
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


def _report(out: Path, manifest: Manifest) -> dict[str, Any]:
    from encoderlab.corpus.manifest import NUMBERS

    splits = {name: {number: getattr(split, number) for number in NUMBERS} for name, split in manifest.splits.items()}
    columns = ["documents", "tokens", "bytes"]
    rows = [[name, *(f"{split[column]:,}" for column in columns)] for name, split in splits.items()]
    terminal.table(str(out), ["split", *columns], rows)
    read, apart = manifest.read, ("documents", "invalid_utf8")
    counted = [f"{count:,} {_words(name)}" for name, count in read.items() if count and name not in apart]
    if counted:
        terminal.note("while reading: " + ", ".join(counted))
    if read["invalid_utf8"]:
        worst = sorted((source for source in manifest.sources if source.invalid_utf8), key=lambda s: -s.invalid_utf8)
        files = ", ".join(f"{source.name} ({source.invalid_utf8:,})" for source in worst[:5])
        more = f" and {len(worst) - 5:,} more files" if len(worst) > 5 else ""
        log.warning(
            f"{read['invalid_utf8']:,} characters were not valid UTF-8 and became U+FFFD, in {files}{more}; "
            "--invalid-utf8 refuse stops at the first such line; convert the file with iconv"
        )
    return {"out": str(out), "vocab_size": manifest.vocab_size, "splits": splits, "read": read}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {number:,}" for name, number in value.items())
    return f"{value:,}"
