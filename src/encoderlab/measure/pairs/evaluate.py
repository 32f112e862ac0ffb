"""Score files of minimal pairs: checked before any work, scored in chunks, resumable, in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from encoderlab.corpus.tokenizer import Encoding, Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import json_line, locked, made_cache_folder, replace_file
from encoderlab.measure.pairs.reading import Pair, read_all
from encoderlab.measure.pairs.scorers import Scorer, scored
from encoderlab.measure.pairs.statistics import Table, Ties, tabulate
from encoderlab.part_files import PartFile

FUSED = ("pll", "log_probability")
CHUNK = 1000  # pairs that are scored together, which limits the memory and the loss at an interruption


@dataclass(kw_only=True)
class Survey:
    """The content of files of pairs, read before any work.

    Args:
        paradigms: name -> phenomenon, in the order of the files.
        pairs: number of pairs to score.
        equal: places of pairs with two equal sentences, which tie for every model (BLiMP has seven).
        long: places of pairs that are too long for the model and are left out.
        digest: of all sentences.
    """

    paradigms: dict[str, str] = field(default_factory=dict)
    pairs: int = 0
    equal: list[str] = field(default_factory=list)
    long: list[str] = field(default_factory=list)
    digest: str = ""


def survey(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    longest: int | None = None,
    skip_long: bool = False,
    bad_first: bool = False,
    too_long: str = "remove the pair",
) -> Survey:
    """Read all pairs once. ``too_long`` is the remedy in the message about a long sentence.

    Raises:
        DataError: with file and line: a damaged pair (see :func:`read_all`), a paradigm of two phenomena, a sentence
            without tokens, or one of more than ``longest`` tokens that must not be skipped.
    """
    result, digest = Survey(), hashlib.sha256()
    for pair, good, bad in encoded(files, tokenizer, bad_first=bad_first):
        digest.update(repr((pair.good, pair.bad, pair.paradigm)).encode("utf-8", "backslashreplace"))
        if not scored(good).any() or not scored(bad).any():
            raise DataError(f"{pair.place}: a sentence without tokens; complete or remove the pair")
        if longest is not None and max(len(good), len(bad)) > longest:
            if not skip_long:
                raise DataError(
                    f"{pair.place}: a sentence of {max(len(good), len(bad))} tokens, the model reads {longest}; "
                    f"{too_long}"
                )
            result.long.append(pair.place)
            continue
        if (known := result.paradigms.setdefault(pair.paradigm, pair.phenomenon)) != pair.phenomenon:
            raise DataError(
                f"{pair.place}: paradigm {pair.paradigm!r} has phenomenon {pair.phenomenon!r}, and {known!r} before; "
                "give the paradigms of each phenomenon names of their own"
            )
        result.pairs += 1
        if pair.good == pair.bad:
            result.equal.append(pair.place)
    if not result.pairs:
        left = f"{len(result.long)} too long for the model, and no other" if result.long else "none"
        raise DataError(f"{', '.join(map(str, files))[:200]}: pairs to score: {left}; give other data")
    result.digest = digest.hexdigest()
    return result


def encoded(
    files: Sequence[Path], tokenizer: Tokenizer, *, bad_first: bool
) -> Iterator[tuple[Pair, Encoding, Encoding]]:
    """The pairs of all files, in order, with the tokens of both sentences."""
    pairs = read_all(files, bad_first=bad_first)
    while chunk := list(islice(pairs, CHUNK)):
        for pair, (good, bad) in zip(chunk, _tokens(tokenizer, chunk), strict=True):
            yield pair, good, bad


def measures_of(scorers: Sequence[Scorer]) -> list[str]:
    """The measures of :func:`score_pairs`: those of the scorers, and ``fused`` of a model that is scored by masks and
    from left to right.
    """
    names = [name for scorer in scorers for name in scorer.measures]
    return [*names, "fused"] if {*FUSED} <= {*names} else names


def score_pairs(
    scorers: Sequence[Scorer], tokens: Sequence[tuple[Encoding, Encoding]], *, length_power: float = 0.0
) -> np.ndarray:
    """Scores of the acceptable and of the other sentence of each pair by every measure: (n, 2, measures) float64.

    ``fused`` is the sum of ``pll`` and ``log_probability`` (GPT-BERT; Charpentier and Samuel, 2024). With
    ``length_power`` a, each score is divided by (number of its tokens)^a, as ZhoBLiMP's SLLN-LP.
    """
    sentences = [sentence for pair in tokens for sentence in pair]
    scores = np.concatenate([scorer(sentences) for scorer in scorers], axis=1)
    names = measures_of(scorers)
    if "fused" in names:
        fused = scores[:, [names.index(name) for name in FUSED]].sum(1)
        scores = np.column_stack([scores, fused])
    if length_power:
        lengths = np.array([scored(sentence).sum() for sentence in sentences], np.float64)
        scores /= (lengths**length_power)[:, None]
    return scores.reshape(len(tokens), 2, -1)


def evaluate_files(
    scorers: Sequence[Scorer],
    files: Sequence[Path],
    tokenizer: Tokenizer,
    surveyed: Survey,
    *,
    key: str,
    ties: Ties = "half",
    length_power: float = 0.0,
    bad_first: bool = False,
    out: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Table]:
    """Score the pairs that a :func:`survey` ``surveyed``: accuracies by measure, the usual one first.

    Every finished chunk is stored in a :class:`PartFile`, next to ``out`` or in the cache folder; the same call
    continues after the last whole chunk and has the same result, to the last bit. At the end the part file is deleted,
    and ``out`` has one JSON object per pair, with its scores.

    Args:
        key: identifies the models, which determine the scores together with the pairs.
        progress: called with the number of finished pairs and of all pairs.

    Raises:
        ConfigError: another process is scoring the same, or the scores cannot be kept.
        DataError: the files have changed since the survey, or a score is not a finite number.
    """
    measures = measures_of(scorers)
    settings = repr((key, surveyed.digest, measures, length_power, bad_first, CHUNK, len(surveyed.long)))
    name = hashlib.sha256(settings.encode()).hexdigest()[:16]
    path = made_cache_folder("minimal-pairs") / name if out is None else out.with_name(f"{out.name}.part-{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    skipped = set(surveyed.long)
    number_of = {name: place for place, name in enumerate(surveyed.paradigms)}
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(path))
        except BlockingIOError:
            raise ConfigError(f"{path}: another process is scoring these pairs; wait for it to end") from None
        part = PartFile(path)  # a line is the scores of a chunk
        scored_before = iter(path.read_bytes().splitlines() if part.lines else [])
        margins = np.empty((surveyed.pairs, len(measures)))
        numbers = np.empty(surveyed.pairs, np.int64)
        writer = None if out is None else stack.enter_context(replace_file(out))
        pairs = (row for row in encoded(files, tokenizer, bad_first=bad_first) if row[0].place not in skipped)
        done = 0
        while chunk := list(islice(pairs, CHUNK)):
            if done + len(chunk) > surveyed.pairs:
                raise _changed(chunk[0][0])
            if line := next(scored_before, None):
                scores = np.array(json.loads(line))
            else:
                scores = score_pairs(scorers, [row[1:] for row in chunk], length_power=length_power)
                if (wrong := ~np.isfinite(scores).all((1, 2))).any():  # would count as mistakes
                    place = chunk[int(wrong.argmax())][0].place
                    raise DataError(f"{place}: a score is not a finite number; use another checkpoint of the model")
                part.add(json.dumps(scores.tolist()).encode() + b"\n")
            span = slice(done, done + len(chunk))
            margins[span] = scores[:, 0] - scores[:, 1]
            try:
                numbers[span] = [number_of[pair.paradigm] for pair, _, _ in chunk]
            except KeyError:
                raise _changed(chunk[0][0]) from None
            if writer is not None:
                for (pair, _, _), row in zip(chunk, scores.tolist(), strict=True):
                    writer.write(_line(pair, row, measures))
            done += len(chunk)
            if progress is not None:
                progress(done, surveyed.pairs)
        if done != surveyed.pairs:
            raise DataError(f"{files[-1]}: has changed while it was scored; run the same command again")
    part.finish()
    paradigms = list(surveyed.paradigms.items())
    return {name: tabulate(margins[:, i], numbers, paradigms, ties=ties) for i, name in enumerate(measures)}


def evaluate_pairs(scorers: Sequence[Scorer], tokenizer: Tokenizer, pairs: Sequence[Pair]) -> dict[str, Table]:
    """Accuracies by measure of pairs in memory, such as a :func:`sample`."""
    paradigms = {pair.paradigm: pair.phenomenon for pair in pairs}
    number_of = {name: place for place, name in enumerate(paradigms)}
    numbers = np.array([number_of[pair.paradigm] for pair in pairs], np.int64)
    scores = np.concatenate(
        [
            score_pairs(scorers, _tokens(tokenizer, pairs[start : start + CHUNK]))
            for start in range(0, len(pairs), CHUNK)
        ]
    )
    measures = measures_of(scorers)
    margins = scores[:, 0] - scores[:, 1]
    return {name: tabulate(margins[:, i], numbers, list(paradigms.items())) for i, name in enumerate(measures)}


def _tokens(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[tuple[Encoding, Encoding]]:
    encodings = tokenizer.encode_batch([text for pair in pairs for text in (pair.good, pair.bad)])
    return list(zip(encodings[::2], encodings[1::2], strict=True))


def _changed(pair: Pair) -> DataError:
    return DataError(f"{pair.place}: has changed while it was scored; run the same command again")


def _line(pair: Pair, row: list[list[float]], measures: Sequence[str]) -> bytes:
    good, bad = (dict(zip(measures, scores, strict=True)) for scores in row)
    fields = {"UID": pair.paradigm, "sentence_good": pair.good, "sentence_bad": pair.bad, "good": good, "bad": bad}
    return json_line(fields).encode("utf-8", "backslashreplace")
