"""``encoderlab minimal-pairs``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from encoderlab.commands import terminal
from encoderlab.commands.outputs import output
from encoderlab.commands.precision import Precision
from encoderlab.errors import ConfigError

if TYPE_CHECKING:
    from encoderlab.measure.pairs.statistics import Accuracy, Table

ABOUT = {
    "pll": "each token masked by itself",
    "pll_word": "and the later tokens of its word masked too",
    "log_probability": "left to right",
    "fused": "pll and log_probability, added",
    "not_replaced": "detection of replaced tokens; comparable only with other detectors",
    "frequency": "word frequency in the corpus, no context",
    "trigram": "a trigram model of the corpus",
}


def minimal_pairs(
    model: Path,
    /,
    *data: Path,
    scoring: Literal["full", "babylm"] = "full",
    corpus: Path | None = None,
    length_power: float = 0.0,
    bad_first: bool = False,
    skip_long: bool = False,
    precision: Precision = "fp32",
    out: Path | None = None,
) -> dict[str, Any]:
    """Score a pretrained model on minimal pairs, without training (BLiMP, ZhoBLiMP).

    A pair is correct if the acceptable sentence has the higher score. Masked models are
    scored by pseudo-log-likelihood and by its word-wise variant, left-to-right ones by
    log probability. The accuracy is the mean over paradigms. Run the same command again
    to resume.

    Example: encoderlab minimal-pairs small-en data/blimp

    Parameters
    ----------
    model
        Folder of a model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
        For generator and discriminator, the generator is scored.
    data
        Files or folders of pairs: JSON lines or CSV with sentence_good and sentence_bad, or
        text with the two sentences of a pair on two lines.
    scoring
        full: all measures, ties count half. babylm: the official numbers of the BabyLM
        challenge (one measure, sums, ties count as right).
    corpus
        Also score with word frequencies and trigrams counted in this corpus.
    length_power
        Divide a score by (number of tokens) to this power (SLLN-LP of ZhoBLiMP); 0 leaves it unchanged.
    bad_first
        In text files, the first sentence of a pair is the unacceptable one.
    skip_long
        Leave out pairs that are too long for the model, instead of stopping.
    precision
        int8: about twice as fast on processors with VNNI, and scores differ a little.
    out
        Also write the scores of every pair to this file, as JSON lines.
    """
    from encoderlab.inference import placed, tokenizer_of
    from encoderlab.interchange.load import load_pair
    from encoderlab.measure.pairs.baselines import baselines_of
    from encoderlab.measure.pairs.evaluate import evaluate_files, survey
    from encoderlab.measure.pairs.reading import find
    from encoderlab.measure.pairs.scorers import scorers_of
    from encoderlab.measure.pairs.statistics import Ties
    from encoderlab.model import model_hash
    from encoderlab.nn import kernels

    if not data:
        raise ConfigError("no minimal pairs to score; give files or folders, such as data/blimp")
    official = scoring == "babylm"
    if official and (length_power or corpus is not None):
        raise ConfigError("--scoring babylm gives only the official numbers; leave out --length-power and --corpus")
    if official and precision != "fp32":
        raise ConfigError("--scoring babylm gives the official numbers, which are those of fp32; leave out --precision")
    if not 0 <= length_power <= 1:
        raise ConfigError(f"--length-power {length_power}, expected a number from 0 to 1")
    for place in data:  # the scores would be read as pairs next time
        if out is not None and place.is_dir() and out.resolve().is_relative_to(place.resolve()):
            raise ConfigError(f"--out {out}: is inside {place}, which is read; give another --out")
    files = find(data)
    loaded = load_pair(model)
    tokenizer = tokenizer_of(loaded[0])
    models = [model_hash(one, one.config, tokenizer) for one in loaded if one is not None]
    kernels.keep_memory()
    network, generator = placed(loaded[0], precision), loaded[1] and placed(loaded[1], precision)
    scorers = scorers_of(network, generator, official=official)
    limits = [scorer.longest for scorer in scorers if scorer.longest is not None]
    surveyed = survey(
        files,
        tokenizer,
        longest=min(limits, default=None),
        skip_long=skip_long,
        bad_first=bad_first,
        too_long="remove the pair, or leave such pairs out with --skip-long",
    )
    equal, long = "of two equal sentences, which tie", "longer than the model reads, left out"
    for places, what in ((surveyed.equal, equal), (surveyed.long, long)):
        if places:
            shown = ", ".join(places[:3]) + (" ..." if len(places) > 3 else "")
            terminal.note(f"{len(places):,} pair{'s' * (len(places) > 1)} {what}: {shown}")
    ties: Ties = "right" if official else "half"
    settings: dict[str, Any] = {"ties": ties, "length_power": length_power, "bad_first": bad_first}
    with output(out, "pairs", *data), terminal.progress("minimal pairs") as show:
        # First, because it is quick and may refuse the corpus.
        counted = {} if corpus is None else baselines_of(corpus, files, surveyed, progress=show, **settings)
        tables = evaluate_files(
            scorers,
            files,
            tokenizer,
            surveyed,
            key=" ".join([*models, precision]),
            out=out,
            progress=lambda done, total: show("scored", done, total),
            **settings,
        )
        tables |= counted
    _show(tables, surveyed.paradigms, str(model))
    return _record(tables, surveyed.paradigms, scoring, length_power, surveyed.equal, surveyed.long)


def _show(tables: dict[str, Table], phenomena: dict[str, str], title: str) -> None:
    """Print the tables: a row per paradigm, per phenomenon, and the mean."""
    first = next(iter(tables.values()))

    def row(name: str, kind: str, of: dict[str, Accuracy]) -> list[str]:
        cells = [f"{100 * one.accuracy:.1f} ({100 * one.low:.1f} to {100 * one.high:.1f})" for one in of.values()]
        return [name, kind, f"{next(iter(of.values())).pairs:,}", *cells]

    names = list(tables)
    rows = [
        row(name, phenomena[name], {measure: table.paradigms[name] for measure, table in tables.items()})
        for name in first.paradigms
    ]
    columns = ["paradigm", "phenomenon", "pairs", *names]
    terminal.table(f"{title}: correct pairs in %, with 95% intervals", columns, rows)
    rows = [
        row(name, "", {measure: table.phenomena[name] for measure, table in tables.items()}) for name in first.phenomena
    ]
    rows.append(row("mean over paradigms", "", {measure: table.total for measure, table in tables.items()}))
    terminal.table("", ["phenomenon", "", "pairs", *names], rows)
    for name, table in tables.items():
        terminal.say(f"{name}: {ABOUT[name]}; {table.total.ties:,} ties")


def _record(
    tables: dict[str, Table],
    phenomena: dict[str, str],
    scoring: str,
    length_power: float,
    equal: list[str],
    long: list[str],
) -> dict[str, Any]:
    """The result as plain data: the numbers of the first measure, then all by measure."""
    main, first = next(iter(tables.items()))
    return {
        "measure": main,
        "scoring": scoring,
        "ties_count": "right" if scoring == "babylm" else "half",
        "length_power": length_power,
        **vars(first.total),
        "paradigms": {
            name: {"phenomenon": phenomena[name], **vars(paradigm)} for name, paradigm in first.paradigms.items()
        },
        "phenomena": {name: vars(one) for name, one in first.phenomena.items()},
        "measures": {
            name: {
                **vars(table.total),
                "paradigms": {paradigm: vars(one) for paradigm, one in table.paradigms.items()},
                "phenomena": {phenomenon: vars(one) for phenomenon, one in table.phenomena.items()},
            }
            for name, table in tables.items()
        },
        "equal_sentences": equal,
        "left_out": long,
    }
