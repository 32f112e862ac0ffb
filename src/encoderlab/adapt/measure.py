"""The measures of an adapted model: bits per byte of held-out text, minimal pairs, fine-tuning.

Bits per byte compare models with different vocabularies. Masked and permutation models have pseudo bits: each token is
predicted from all others except the later ones of its word (``pll_word`` of :mod:`encoderlab.measure.pairs.scorers`;
Kauf and Ivanova, 2023). Without that, words of many pieces would look easy. Pseudo bits can only be compared with
pseudo bits. The text is cut into the same pieces for every model.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from encoderlab.adapt.text import chance, remedies_of
from encoderlab.errors import DataError
from encoderlab.inference import tokenizer_of, usual_device
from encoderlab.measure.pairs.evaluate import evaluate_pairs, survey
from encoderlab.measure.pairs.reading import find, read_all, sample
from encoderlab.measure.pairs.scorers import Masked, Scorer, scorers_of
from encoderlab.model import Model
from encoderlab.tasks.data.examples import Split
from encoderlab.tasks.data.infer import Given, task_of
from encoderlab.tasks.data.splits import completed, hold_out
from encoderlab.tasks.data.task import Task
from encoderlab.tasks.runs import trials
from encoderlab.tasks.runs.published import protocol
from encoderlab.tasks.scoring.metrics import mean_interval

log = logging.getLogger(__name__)

PIECES = 40  # pieces of held-out text that are scored
BYTES = 256  # of a piece, at most
PAIRS = 2000  # minimal pairs that are scored
AT_ONCE = 8  # pieces


def pieces(texts: Sequence[str]) -> list[str]:
    """Up to :data:`PIECES` pieces of held-out text, the same for every model: whole words, at most :data:`BYTES` bytes.

    There is one piece per document if there are enough documents.
    """
    cut: list[list[str]] = []
    for text in sorted(texts, key=lambda text: chance("piece", text)):
        own: list[str] = []
        words = list(_words(text))
        start = int(chance("start", text) * max(0, len(words) - 40))
        taken: list[str] = []
        for word in words[start : start + 60 * PIECES]:
            if taken and len(" ".join([*taken, word]).encode()) > BYTES:
                own.append(" ".join(taken))
                taken = []
            taken.append(word)
        if taken:
            own.append(" ".join(taken))
        if own:
            cut.append(own)
        if len(cut) == PIECES:  # the first piece of each is enough
            break
    chosen = [own[depth] for depth in range(PIECES) for own in cut if depth < len(own)]
    return chosen[:PIECES]


def _words(text: str) -> Iterator[str]:
    """The words of a text, those of more than :data:`BYTES` bytes in parts."""
    for word in text.split():
        while word:
            part = word.encode()[:BYTES].decode(errors="ignore")
            yield part
            word = word[len(part) :]


def _scorers(model: Model, generator: Model | None) -> list[Scorer]:
    """The scorers of a model and its generator, on the GPU if there is one."""
    device = usual_device()
    return scorers_of(model.to(device), None if generator is None else generator.to(device))


def bits(model: Model, generator: Model | None, texts: Sequence[str]) -> dict[str, Any]:
    """Bits of each text by every measure that the model supports, and the share of unknown tokens."""
    tokenizer = tokenizer_of(model)
    scorers = [
        Masked(one.model, ("pll_word",)) if isinstance(one, Masked) else one for one in _scorers(model, generator)
    ]
    limits = [scorer.longest for scorer in scorers if scorer.longest is not None]
    encoded = tokenizer.encode_batch(texts)
    if limits and (longest := max(map(len, encoded))) > min(limits):
        raise DataError(
            f"{BYTES} bytes of held-out text have {longest} tokens, more than the {min(limits)} that the model reads; "
            "adapt a model with more positions"
        )
    by_text: dict[str, list[float]] = {}
    for scorer in scorers:
        parts = [scorer(encoded[start : start + AT_ONCE]) for start in range(0, len(encoded), AT_ONCE)]
        for name, column in zip(scorer.measures, np.concatenate(parts).T, strict=True):
            by_text[name] = [-value / math.log(2) for value in column.tolist()]
    ids = np.concatenate([encoding.ids for encoding in encoded])
    return {
        "bits": by_text,
        "bytes": [len(text.encode()) for text in texts],
        "tokens": int(len(ids)),
        "unknown": float((ids == tokenizer.special.unk).mean()),
    }


def gain(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Bits per byte before and after, by the first measure that both models support, and the 95% interval of the
    difference (Student's t), paired by piece.
    """
    name = next(name for name in before["bits"] if name in after["bits"])
    size = np.array(before["bytes"], float)
    one, two = (np.array(side["bits"][name]) for side in (before, after))
    change = (two - one) / size.mean()
    low, high = mean_interval(change.tolist())
    return {
        "measure": name,
        "before": float(one.sum() / size.sum()),
        "after": float(two.sum() / size.sum()),
        "half": (high - low) / 2,
        "pieces": len(size),
        "bytes": int(size.sum()),
        "tokens": [before["tokens"], after["tokens"]],
        "unknown": [before["unknown"], after["unknown"]],
    }


def check_pairs(model: Model, generator: Model | None, places: Sequence[Path]) -> None:
    """Refuse minimal pairs that the model cannot score.

    Raises:
        DataError: there is none, one has no tokens or more than the model reads, or a file is no file of pairs.
    """
    longest = (scorer.longest for scorer in scorers_of(model, generator))
    limits = [limit for limit in longest if limit is not None]
    survey(find(places), tokenizer_of(model), longest=min(limits, default=None))


def pairs(model: Model, generator: Model | None, places: Sequence[Path]) -> dict[str, Any]:
    """The accuracy on minimal pairs, of at most :data:`PAIRS`, equally many per paradigm."""
    chosen = [*read_all(find(places))]
    if len(chosen) > PAIRS:
        chosen = sample(chosen, PAIRS)
    tables = evaluate_pairs(_scorers(model, generator), tokenizer_of(model), chosen)
    return {
        "pairs": len(chosen),
        "measures": {
            name: {"accuracy": table.total.accuracy, "low": table.total.low, "high": table.total.high}
            for name, table in tables.items()
        },
    }


def labelled(path: Path) -> tuple[Task, Split, Split, str]:
    """The task of a labelled file, its examples to train on and to score on, and what was inferred about it.

    Raises:
        ConfigError, DataError: it is no labelled file, or has too few examples.
    """
    with remedies_of("options of finetune; give a file that needs none"):
        about, said = task_of(path, Given())
        examples = about.read([path], "train")
        about = completed(about, examples)
    try:
        return about, *hold_out(examples), said
    except DataError as error:
        raise DataError(f"{str(error).partition(';')[0]}; give more examples") from None


def task(model: Model, path: Path, out: Path, seeds: int) -> dict[str, Any]:
    """The scores of fine-tuning on a labelled file over seeds, on a held-out tenth."""
    about, train, dev, said = labelled(path)
    log.info(said)
    outcome = trials.run(
        replace(protocol("plain"), seeds=seeds),
        model,
        about,
        {"train": train, "dev": dev},
        out,
        say=log.info,
    )
    scores = [run.scores["dev"][about.metric] for run in outcome.runs]
    return {
        "metric": about.metric,
        "seeds": scores,
        "mean": statistics.fmean(scores),
        "interval": list(mean_interval(scores)) if len(scores) > 1 else None,
        "examples": [len(train), len(dev)],
    }
