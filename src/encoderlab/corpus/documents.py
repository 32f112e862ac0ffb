"""Files to documents: text, Markdown, JSON lines, CSV, TSV, Parquet, compressed or not, in bounded memory.

Reading has two halves, so that one process reads (and decompresses) while others parse. :func:`~.blocks.read_blocks`
cuts a source into blocks of about 4 MB that end where a document ends. :func:`parse_block` turns a block into
documents, each a list of cleaned paragraphs.

=========  ==========================================================================================================
text       a paragraph per line, a blank line between documents
markdown   a document per file; markup is removed, blank lines separate paragraphs
jsonl      a document per line: an object with a text field (a string or a list of strings), or a plain string
csv        a document per row, quoted as in RFC 4180; the separator is detected among ``, ; |`` and tab
tsv        a document per row; a quotation mark is an ordinary character (as in GLUE) unless the file uses quoting
parquet    a document per row
=========  ==========================================================================================================

Two limits keep memory bounded: a line of more than 100,000 characters is cut at white space into paragraphs, and a
document of more than 1,000,000 characters is cut between paragraphs. Both are counted; no text is lost.
"""

from __future__ import annotations

import codecs
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from encoderlab.corpus import blocks
from encoderlab.corpus.blocks import SourceBlock, range_start, read_blocks
from encoderlab.corpus.markdown import markdown_paragraphs
from encoderlab.corpus.sources import Reading, Source, listed, text_of
from encoderlab.corpus.stretches import is_divisible
from encoderlab.errors import DataError
from encoderlab.messages import Progress
from encoderlab.records.reading import json_value

MAX_LINE = 100_000  # characters
MAX_DOCUMENT = 1_000_000  # characters
LOOK = 128  # times the bytes of a sample: the most to read for it of files that must be read from the beginning
# Control characters, soft hyphens, zero-width spaces, byte order marks and halves of surrogate pairs.
_DROPPED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff\ufff9-\ufffb\ud800-\udfff]")
SURROGATE = re.compile("[\ud800-\udfff]")


def parse_block(block: SourceBlock, reading: Reading) -> tuple[list[list[str]], Counter[str]]:
    """The documents of a block, each a list of clean paragraphs, and counts.

    A paragraph has single spaces, no white space at its ends, no line end and no control character. The counts are
    ``invalid_utf8``, ``control_characters`` (removed), ``cut_lines``, ``cut_documents`` and ``skipped_records``.

    Raises:
        DataError: invalid UTF-8 or an invalid record, if these are refused; the message names the line.
    """
    counts: Counter[str] = Counter()
    text = _decode(block, reading, counts)
    source = block.source
    if source.format == "text":
        documents = _text_documents(_clean(text, block, reading, counts))
    elif source.format == "markdown":
        clean = _clean(text, block, reading, counts)
        documents = iter([markdown_paragraphs(clean, front_matter=block.start == 0)])
    else:
        records = _records(text, block, reading, counts)
        documents = (_clean(record, block, reading, counts, index).split("\n") for index, record in records)
    result = []
    for lines in documents:
        paragraphs = list(_paragraphs(lines, reading.min_line_chars, counts))
        result += _cut_document(paragraphs, counts) if paragraphs else []
    return result, counts


def read_documents(source: Source, reading: Reading) -> Iterator[list[str]]:
    """All documents of a source, one after the other."""
    for block in read_blocks(source):
        yield from parse_block(block, reading)[0]


def sample_texts(sources: Sequence[Source], reading: Reading, num_bytes: int, progress: Progress) -> Iterator[str]:
    """Documents of about ``num_bytes`` bytes of the input, taken evenly; all if there is less.

    Only these are read, but files that must be read from their beginning are read up to :data:`LOOK` times as far.
    """
    sizes = [max(source.expected_bytes(), 1) for source in sources]
    share = min(1.0, num_bytes / max(sum(sizes), 1))
    from_beginning = sum(size for source, size in zip(sources, sizes, strict=True) if not is_divisible(source))
    reachable = min(1.0, LOOK * num_bytes / max(from_beginning, 1))
    due = 0.0  # blocks that the sample should have by now: where it passes a whole number, a block is taken
    taken = 0
    for source, size in zip(sources, sizes, strict=True):
        part = 1.0 if is_divisible(source) else reachable
        number, rate = math.ceil(size * part / blocks.BLOCK), min(1.0, share / part)
        places = []
        for place in range(number):
            if due == 0 or int(due) != int(due + rate):
                places.append(place)
            due += rate
        for block in read_blocks(source) if share == 1.0 else _blocks_at(source, places, number):
            taken += len(block.data)
            progress("bytes for the tokenizer", taken, None)
            for document in parse_block(block, reading)[0]:
                yield "\n".join(document)
            if taken >= 2 * num_bytes:
                return


def _blocks_at(source: Source, places: Sequence[int], number: int) -> Iterator[SourceBlock]:
    """The blocks of a source that are cut in the chosen ones of the first ``number`` blocks of its bytes."""
    if is_divisible(source):
        for place in places:
            stop = (place + 1) * blocks.BLOCK if place < number - 1 else None
            yield from read_blocks(source, range_start(source, place * blocks.BLOCK), stop)
    elif places:
        wanted = set(places)
        for index, block in enumerate(read_blocks(source)):
            place = index if source.format in blocks.RECORDS else (block.end.read - 1) // blocks.BLOCK
            if place > places[-1]:
                return
            if place in wanted:
                yield block


def _decode(block: SourceBlock, reading: Reading, counts: Counter[str]) -> str:
    data = block.data.removeprefix(codecs.BOM_UTF8) if block.start == 0 else block.data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if reading.invalid_utf8 == "refuse":
            line = block.line(data.count(b"\n", 0, error.start))
            raise DataError(
                f"{block.source.name}: line {line}: invalid UTF-8 (byte 0x{data[error.start]:02x}); convert the file "
                "with iconv, or have such bytes replaced: --invalid-utf8 replace"
            ) from None
    text = data.decode(errors="replace")
    counts["invalid_utf8"] += text.count("\ufffd") - data.count(b"\xef\xbf\xbd")
    return text


def _clean(text: str, block: SourceBlock, reading: Reading, counts: Counter[str], index: int = 0) -> str:
    """Line ends become ``\\n``; control characters go. ``index`` is that of the record in the block."""
    text = text.replace("\r\n", "\n")
    for end in ("\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"):
        text = text.replace(end, "\n")
    if SURROGATE.search(text):  # from JSON escapes, and from bytes of a table that are not UTF-8
        if reading.invalid_utf8 == "refuse":
            raise DataError(
                f"{block.source.name}: {_place(block, index)}: invalid UTF-8, or half of a surrogate pair; "
                "convert the file with iconv, or have them replaced: --invalid-utf8 replace"
            )
        text, number = SURROGATE.subn("\ufffd", text)
        counts["invalid_utf8"] += number
    text, number = _DROPPED.subn("", text)
    counts["control_characters"] += number
    return text


def _text_documents(text: str) -> Iterator[list[str]]:
    lines: list[str] = []
    for line in text.split("\n"):
        if line and not line.isspace():
            lines.append(line)
        elif lines:
            yield lines
            lines = []
    yield lines


def _records(text: str, block: SourceBlock, reading: Reading, counts: Counter[str]) -> Iterator[tuple[int, str]]:
    """The index in the block and the text of each record; one without text is refused, or skipped and counted."""
    for index, line in enumerate(text.split("\n")):
        if not line or line.isspace():
            continue
        try:
            content = _record_text(line, block.source)
        except _NoText as problem:
            if reading.invalid_records == "refuse":
                said = f"{problem}" if problem.has_place else f"{_place(block, index)}: {problem}"
                raise DataError(f"{block.source.name}: {said}; correct it, or --invalid-records skip") from None
            counts["skipped_records"] += 1
        else:
            yield index, content


def _place(block: SourceBlock, index: int) -> str:
    return f"{'row' if block.source.format == 'parquet' else 'line'} {block.line(index)}"


class _NoText(Exception):
    """A record without text; the message says why, and with ``has_place`` also where."""

    def __init__(self, message: str, *, has_place: bool = False) -> None:
        super().__init__(message)
        self.has_place = has_place


def _record_text(line: str, source: Source) -> str:
    try:
        record = json_value(line)
    except ValueError:
        raise _NoText("not JSON") from None
    value = record
    if source.format != "jsonl":  # as blocks.py writes them: a row's text, or its problem
        if isinstance(record, dict):
            raise _NoText(record["problem"], has_place=True)
    elif not isinstance(record, str):
        if not isinstance(record, dict) or source.field not in record:
            has = f"it has {listed(record)}" if isinstance(record, dict) else f"it is a JSON {type(record).__name__}"
            missing = "no string as in the first line" if source.field is None else f"no field {source.field!r}"
            raise _NoText(f"{missing}; {has}")
        value = record[source.field]
    text = text_of("" if value is None else value)
    if text is None:
        raise _NoText(f"field {source.field!r} has no text (--field names another)")
    return text


def _paragraphs(lines: list[str], min_chars: int, counts: Counter[str]) -> Iterator[str]:
    for line in lines:
        line = " ".join(line.split())
        if len(line) < min_chars or not line:
            continue
        if len(line) <= MAX_LINE:
            yield line
            continue
        counts["cut_lines"] += 1
        start = 0
        while start < len(line):
            end = start + MAX_LINE
            if end < len(line):
                space = line.rfind(" ", start, end)
                end = space if space > start else end
            yield line[start:end]
            start = end + (line[end : end + 1] == " ")


def _cut_document(paragraphs: list[str], counts: Counter[str]) -> list[list[str]]:
    if sum(map(len, paragraphs)) <= MAX_DOCUMENT:
        return [paragraphs]
    counts["cut_documents"] += 1
    parts: list[list[str]] = [[]]
    size = 0
    for paragraph in paragraphs:
        if size + len(paragraph) > MAX_DOCUMENT:
            parts.append([])
            size = 0
        parts[-1].append(paragraph)
        size += len(paragraph)
    return parts
