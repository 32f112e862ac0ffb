"""Name what is likely wrong with a run, one sentence per fault, with a remedy.

Each diagnosis is a function of the evidence (:mod:`encoderlab.train.evidence`). The loop asks while it trains
(:class:`Watch`, from metrics only), ``encoderlab doctor RUN`` afterwards (:func:`examine`, also from corpus and
checkpoint).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from encoderlab.errors import DataError
from encoderlab.train.evidence import Evidence, Line, is_number, read, reference

WATCHED = 1000  # newest lines of metrics that are read while training
BEGUN = 50  # updates of a fine-tuning before which a loss need not have fallen
SETTLED = 300  # steps after which an unchanged loss is a symptom
RISE = 0.3  # nats above the loss of guessing; runs that learn stay within 0.05 nats
USUAL_RATE = {"lamb": 3e-3}  # largest rate in the recipes, by optimiser; 1e-3 for variants of Adam
TOO_MUCH = 9  # times the usual rate; the logged losses may miss the peak itself
TASKS = ("classification", "multilabel", "regression", "tagging")  # the fine-tuning terms with one loss per label
LEARNED = 0.95  # of the loss of guessing: a loss below it has learned something
CHARACTERS = 1000  # a smaller vocabulary may be one of characters
Level = Literal["warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One diagnosis: its name, how serious it is, the symptom, and the remedy."""

    name: str
    level: Level
    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.seen}; {self.remedy}"


def not_finite(e: Evidence) -> Finding | None:
    """A loss or a gradient is not finite."""
    told = [line for line in e.train if line["losses"]]  # others had nothing to predict
    broken = [line for line in told if line.get("loss") is None or not math.isfinite(line["loss"])]
    if e.diverged is not None:
        broken.append(e.diverged)
    if not broken:
        return None
    seen = f"loss or gradient is not finite at step {broken[0]['step']}, learning rate {broken[0].get('lr') or 0:.2g}"
    return Finding("not finite", "error", seen, to_stay_finite(e.recipe.get("precision"), broken[0]["step"]))


def to_stay_finite(precision: str | None, step: int) -> str:
    """What to change where the gradient after ``step`` updates was not finite in this ``precision``."""
    precise = "" if precision == "fp32" else "set precision=fp32, "
    if step == 0:
        return (
            f"no weight has been updated yet, so the learning rate is not the cause: {precise}lower dropout, raise "
            "model.encoder.eps, or start from other weights"
        )
    return f"lower optim.lr, {precise}or lengthen schedule.warmup"


def rate_too_high(e: Evidence) -> Finding | None:
    """The learning rate is too high.

    The loss rose above the loss of guessing, ends well above its minimum, or stays at the loss without context at a
    learning rate far above all published ones.
    """
    losses = e.losses(e.term) if e.term else []
    values, rates = [loss for _, loss in losses], e.numbers("lr")
    if len(values) < 3 or not rates:
        return None
    rate, limit = max(rates), math.log(e.vocabulary) if e.vocabulary else values[0]
    fresh = "model" in e.recipe and not e.recipe.get("init_from")  # otherwise the first loss may have any value
    start = limit if fresh else max(values[0], limit)
    highest = max(min(pair) for pair in zip(values[:-1], values[1:], strict=True))  # two lines in a row
    end, lowest = float(np.mean(values[-3:])), min(values)
    usual = USUAL_RATE.get(e.recipe.get("optim", {}).get("kind"), 1e-3)
    far = rate >= TOO_MUCH * usual
    late = far and losses[-1][0] >= 2 * SETTLED
    if highest > start + RISE:
        seen = f"the loss rose to {highest:.2f}, above {start:.2f}, the loss of guessing"
    elif len(values) >= 6 and end > lowest * 1.15 + 0.2:
        seen = f"the loss rose to {end:.2f} from {lowest:.2f}"
    elif late and e.guessing is not None and np.mean(values[-5:]) > 0.97 * e.guessing:
        seen = f"the loss stays at {np.mean(values[-5:]):.2f}, the level without any context"
    else:
        return None
    remedy = f"set optim.lr to {usual if far else rate / 10:.2g} or lengthen schedule.warmup"
    return Finding("learning rate too high", "error", f"{seen}, with learning rates up to {rate:.2g}", remedy)


def spikes(e: Evidence) -> Finding | None:
    """The gradient norm jumps more than once, late in the run."""
    if e.term is None or len(e.train) < 10:
        return None
    norms = e.numbers("grad_norm")
    middle = float(np.median(norms)) if norms else 0.0
    high = [line for line in e.train if (line.get("grad_norm_max") or 0) > 20 * middle]
    if middle and len(high) >= 2 and high[-1]["step"] > SETTLED:
        return Finding(
            "spikes",
            "warning",
            f"the gradient norm jumps to {high[-1]['grad_norm_max']:.1f} at step {high[-1]['step']}, over 20 times its "
            f"median {middle:.2f}",
            "lower optim.lr or clip, or look at the batch of that step",
        )
    return None


def update_ratio(e: Evidence) -> Finding | None:
    """After warm-up, a step moves the weights too far or too little."""
    highest = max(e.numbers("lr"), default=0.0)
    ratios = [
        line["update_ratio"] for line in e.train if is_number(line.get("update_ratio")) and line["lr"] > highest / 2
    ]
    if len(ratios) < 3:
        return None
    middle = float(np.median(ratios))
    seen = f"a step changes the weights by {middle:.1g} of their norm; 1e-4 to 1e-2 is usual"
    if middle > 0.1:
        return Finding("large updates", "warning", seen, f"lower optim.lr, which reaches {highest:.2g}")
    if middle < 1e-6:
        return Finding("tiny updates", "warning", seen, f"raise optim.lr, which reaches {highest:.2g}")
    return None


def warmup(e: Evidence) -> Finding | None:
    """The schedule has no warm-up, or the warm-up takes most of the run."""
    schedule, encoder = e.recipe.get("schedule") or {}, (e.recipe.get("model") or {}).get("encoder") or {}
    length = schedule.get("warmup")
    if length is None:
        return None
    if not length and encoder.get("norm", "post") == "post" and (e.recipe.get("clip") or 1) >= 1:
        seen = "the learning rate starts at its peak; post-LayerNorm encoders then seldom train"
        return Finding("no warm-up", "warning", seen, "set schedule.warmup to 0.01 of the budget or more")
    share = length if length < 1 else length / (e.recipe.get("budget") or {}).get("amount", math.inf)
    if share > 0.5:
        seen = f"the learning rate rises during {share:.0%} of the run"
        return Finding(
            "long warm-up", "warning", seen, "set schedule.warmup to 0.1 of the budget or less, or train longer"
        )
    return None


def not_learning(e: Evidence) -> Finding | None:
    """The loss is still that of guessing uniformly among all tokens."""
    losses = e.losses(e.term) if e.term else []
    if not losses or e.vocabulary is None or e.train[-1]["step"] < SETTLED or rate_too_high(e):
        return None
    last = losses[-1][1]
    if last > 0.95 * math.log(e.vocabulary):
        return Finding(
            "not learning",
            "error",
            f"the {e.term} loss is {last:.2f} after {e.train[-1]['step']} steps, still near "
            f"ln V = {math.log(e.vocabulary):.2f}",
            "raise optim.lr, and check that labels match inputs",
        )
    return None


def nothing_learned(e: Evidence) -> Finding | None:
    """In fine-tuning, the loss never fell below that of guessing labels by how often they occur (two balanced classes:
    ln 2).
    """
    chances: Mapping[str, float] = next((line["chance"] for line in e.valid if line.get("chance")), {})
    budget = (e.recipe.get("budget") or {}).get("amount", math.inf)
    if not chances or not e.train or e.train[-1]["step"] < min(budget, max(budget / 2, BEGUN)):
        return None
    term, chance = next(iter(chances.items()))
    losses = [loss for lines in (e.train, e.valid) for _, loss in e.losses(term, lines)]
    if not chance or not losses or min(losses) < LEARNED * chance:  # 0: all development examples have one label
        return None
    named = " (ln 2)" if abs(chance - math.log(2)) < 0.005 else ""
    rate = e.recipe.get("optim", {}).get("lr", 0.0)
    return Finding(
        "nothing learned",
        "error",
        f"the loss never fell below {chance:.2f} nats{named}, that of guessing by how often labels occur, in "
        f"{e.train[-1]['step']:,} updates at rate {rate:g}",
        "raise optim.lr or train longer, and check that labels belong to their texts",
    )


def stuck_at_frequencies(e: Evidence) -> Finding | None:
    """The model has learned the frequencies of tokens, but no context."""
    recent = [loss for _, loss in e.losses(e.term)[-5:]] if e.term else []
    if not recent or e.corpus is None or e.train[-1]["step"] < 2 * SETTLED or rate_too_high(e):
        return None
    level = float(np.mean(recent))
    if abs(level - e.corpus.entropy) < 0.03 * e.corpus.entropy:
        return Finding(
            "stuck at frequencies",
            "warning",
            f"the {e.term} loss {level:.2f} is the entropy {e.corpus.entropy:.2f} of single tokens: the model predicts "
            "frequent tokens and does not use context yet",
            "train longer, or with smaller batches, which give more steps; every encoder passes this level, "
            "deep ones after thousands of steps; if the loss never falls, labels may not match inputs",
        )
    return None


def frozen(e: Evidence) -> Finding | None:
    """Some weights never had a gradient."""
    if not e.frozen:
        return None
    shown = ", ".join(e.frozen[:3]) + (f" and {len(e.frozen) - 3} more" if len(e.frozen) > 3 else "")
    seen = f"{shown} never had a gradient"
    return Finding("frozen weights", "error", seen, "set requires_grad on them, and pass them to the optimiser")


def masked_share(e: Evidence) -> Finding | None:
    """Too few tokens are predicted to learn from, or too many are hidden to predict them."""
    if e.term not in ("mlm", "plm"):
        return None
    lines = [line for line in e.train if e.term in line.get("counts", {})]
    if len(lines) < 2:
        return None
    share = sum(line["counts"][e.term] for line in lines[1:]) / max(lines[-1]["tokens"] - lines[0]["tokens"], 1)
    objective = e.recipe.get("objective") or {}
    share /= 1 - objective.get("causal", 0.0)  # of rows in which nothing is masked
    if share > 0.6:
        seen = f"{share:.0%} of the tokens are hidden"
        return Finding("little context", "warning", seen, "lower the masking rate; 0.15 to 0.4 is usual")
    if share >= 0.05:
        return None
    seen, remedy = f"only {share:.1%} of the tokens are predicted", "raise the masking rate; 0.15 to 0.4 is usual"
    masking = objective.get("masking") or {}
    if masking.get("most") is not None and masking["rate"] > 2 * share:
        remedy = f"raise objective.masking.most, which allows {masking['most']} in a row, or set it to null"
    return Finding("few targets", "warning", seen, remedy)


def duplicates(e: Evidence) -> Finding | None:
    """Many documents of the corpus are exact copies."""
    if e.corpus is not None and e.corpus.duplicate_share > 0.1:
        seen = f"{e.corpus.duplicate_share:.0%} of the corpus's documents are exact copies of others"
        return Finding("duplicates", "error", seen, "build the corpus again with duplicates removed")
    return None


def wrong_tokenizer(e: Evidence) -> Finding | None:
    """Many tokens are unknown, or words are split into single letters."""
    if e.corpus is None:
        return None
    size, least = e.corpus.bytes_per_token, 2.3 if e.corpus.vocab_size >= 8000 else 1.8
    level: Level = "error"
    if e.corpus.unknown_share > 0.05:  # Chinese articles on technology have 3% with Google's Chinese vocabulary
        seen = f"{e.corpus.unknown_share:.1%} of the tokens are unknown to the tokenizer"
    elif size < least and e.corpus.vocab_size > CHARACTERS:
        seen = f"a token has {size:.2f} bytes of text on average: words are split into single letters"
        level = "error" if size < 1.8 else "warning"
    else:
        return None
    return Finding("wrong tokenizer", level, seen, "train a tokenizer on this text, or use one for its language")


def leak(e: Evidence) -> Finding | None:
    """Nearly all tokens are predicted early; judged by the loss if accuracy is not counted (adaptive softmax)."""
    if e.term is None:
        return None
    early = [line for line in e.train if line["step"] <= 5 * SETTLED]
    for line in early:
        right, loss = (line.get("accuracy") or {}).get(e.term), line["losses"].get(e.term)
        if is_number(right) and right > 0.95:
            seen = f"{right:.0%} of the hidden tokens are predicted"
        elif right is None and e.vocabulary and is_number(loss) and loss < 0.1 * math.log(e.vocabulary):
            seen = f"the {e.term} loss is {loss:.2f}, a tenth of ln V"
        else:
            continue
        remedy = "check that inputs hide the targets, and that the text does not repeat a few documents"
        return Finding("targets leak", "error", f"{seen} at step {line['step']}, too good for any encoder", remedy)
    return None


def detector_below_majority(e: Evidence) -> Finding | None:
    """The discriminator always gives the more frequent answer: "original", or at masked places "replaced"."""
    lines = [
        line for line in e.train if all(is_number(line.get("accuracy", {}).get(name)) for name in ("rtd", "replaced"))
    ]
    predict = (e.recipe.get("objective") or {}).get("predict", "replaced")
    if not lines or lines[-1]["step"] < 2 * SETTLED or predict.startswith("original"):
        return None
    replaced, right = (
        float(np.mean([line["accuracy"][name] * line["counts"][name] / line["counts"]["rtd"] for line in lines[-5:]]))
        for name in ("replaced", "rtd")
    )
    answer, majority = ("original", 1 - replaced) if replaced <= 0.5 else ("replaced", replaced)
    if right <= majority + 1e-3:
        seen = f"it is right on {right:.1%} of tokens; calling all of them {answer} would be right on {majority:.1%}"
        remedy = "train longer, raise objective.discriminator_weight, or use a smaller generator"
        return Finding("discriminator at majority", "warning", seen, remedy)
    return None


def generator_too_good(e: Evidence) -> Finding | None:
    """The generator restores nearly all tokens, so the discriminator has little to find."""
    lines = [line for line in e.train if is_number(line.get("accuracy", {}).get("replaced"))]
    if lines and lines[-1]["step"] > SETTLED and lines[-1]["accuracy"]["replaced"] < 0.2:
        return Finding(
            "few replacements",
            "warning",
            f"the generator restores {1 - lines[-1]['accuracy']['replaced']:.0%} of the masked tokens, so there is "
            "little for the discriminator to find",
            "use a smaller generator or a higher objective.temperature",
        )
    return None


def pairs_unlearned(e: Evidence) -> Finding | None:
    """A sentence-pair loss stays at ln 2."""
    for name in ("next_sentence", "sentence_order"):
        values = e.losses(name) if e.train and name in e.train[-1]["losses"] else []
        late = len(values) > 10 and values[-1][0] > 10 * SETTLED
        if late and abs(np.mean([value for _, value in values[-5:]]) - math.log(2)) < 0.005:
            seen = f"the {name} loss stays at ln 2"
            return Finding("labels say nothing", "warning", seen, "check that labels match their pairs")
    return None


def learned_by_heart(e: Evidence) -> Finding | None:
    """The training loss falls while the validation loss rises.

    That is overfitting. Labels do not match their texts if validation is never better than guessing, neither by its
    loss nor by the share that is right (a confident model can be mostly right at a high loss), on enough examples.
    """
    names = e.train[-1]["losses"] if e.train else {}
    task = next((task for task in TASKS if task in names), None)
    if task is None or not e.valid or len(e.train) < 4:
        return None
    own, held_out = [loss for _, loss in e.losses(task)], e.losses(task, e.valid)
    if not own or not held_out or own[-1] >= 0.5 * own[0]:
        return None
    (step, least), end = min(held_out, key=lambda pair: pair[1]), held_out[-1][1]
    chance = e.valid[0].get("chance", {}).get(task)  # classes that are not equally frequent are easier to guess
    guessed = held_out[0][1] if chance is None else min(held_out[0][1], chance)
    if end <= 1.1 * least or end <= 2 * own[-1]:
        return None
    seen = f"the training loss fell from {own[0]:.2f} to {own[-1]:.2f}"
    if least <= 0.97 * guessed:
        return Finding(
            "overfitting",
            "warning",
            f"{seen}, but the validation loss rose to {end:.2f} from {least:.2f} at step {step}",
            "train for fewer epochs, lower the rate, or add examples; the score may still be the best of the run",
        )
    seen += f", but the validation loss rose to {end:.2f} and was never below that of guessing, {guessed:.2f}"
    majority = e.valid[0].get("majority", {}).get(task)
    right = [line["accuracy"][task] for line in e.valid if is_number(line.get("accuracy", {}).get(task))]
    if majority is not None and right:
        margin = 3 * math.sqrt(majority * (1 - majority) / e.valid[0]["counts"][task])
        if margin < 0.1 and max(right) < majority + margin:
            seen += f"; at best {max(right):.1%} was right, and the most frequent label is {majority:.1%}"
            return Finding("labels say nothing", "error", seen, "check that labels match their texts")
    return Finding(
        "overfitting",
        "warning",
        seen,
        "add examples, train for fewer epochs or lower the rate; if nothing helps, check that labels match their texts",
    )


def behind_reference(e: Evidence) -> Finding | None:
    """The held-out loss is far above that of the recorded run at the same step; past its end, above its last loss.

    Starting from the loss of token frequencies, a run of the same length should have made half the progress of the
    recorded run, and any run should be within 10%.
    """
    if e.reference is None or e.term is None or not e.valid:
        return None
    steps, _, losses = zip(*e.reference["valid"], strict=True)
    last = e.valid[-1]
    now = last["losses"].get(e.term)
    if last["step"] < steps[0] or not is_number(now):
        return None
    expected = float(np.interp(last["step"], steps, losses))
    covered = e.reference.get("entropy", expected) - expected
    scale = math.log(e.vocabulary) / math.log(e.reference["vocab"]) if e.vocabulary else 1.0
    expected *= scale  # guessing among more tokens gives a higher loss
    allowed = 0.1 * expected
    if covered > 0.1 and scale == 1.0 and comparable(e, last["step"], steps[-1]):
        allowed = min(allowed, covered / 2)
    if now > expected + allowed:
        when = f"at step {last['step']}" if last["step"] <= steps[-1] else f"at its last step {steps[-1]}"
        seen = f"validation loss {now:.2f} at step {last['step']}, the recorded run had {expected:.2f} {when}"
        remedy = "compare your settings with the recipe's; another text or vocabulary shifts the curve"
        return Finding("behind the reference curve", "warning", seen, remedy)
    return None


def comparable(e: Evidence, step: int, recorded: int) -> bool:
    """Whether the learning rate is near the recorded run's, or the run has had twice as many steps."""
    budget = e.recipe.get("budget") or {}
    same = budget.get("unit", "steps") == "steps" and budget.get("amount", 0) <= 1.5 * recorded
    return same or step >= 2 * recorded


def padding(e: Evidence) -> Finding | None:
    """A large share of the computation is padding."""
    shares = e.numbers("padding")
    share = float(np.mean(shares)) if shares else 0.0
    if share <= 0.4:
        return None
    packing = e.recipe.get("packing")  # only fine-tuning has this field
    if packing is None:
        remedy = (
            "pack documents (format.kind=packed_documents, which has no sentence pairs), or shorten the rows "
            "(phases.0.length)"
        )
    else:
        remedy = "raise row_length" if packing == "packed" else "set packing=packed"
    return Finding("padding", "warning", f"{share:.0%} of the computation is padding", remedy)


def starved(e: Evidence) -> Finding | None:
    """Training waits for its data."""
    waits = [line["waiting"] for line in e.train[1:] if is_number(line.get("waiting"))]
    if len(waits) >= 3 and (wait := float(np.median(waits))) > 0.25:
        seen = f"training waits for data {wait:.0%} of the time"
        remedy = "put the corpus on a faster disk, or leave a core free for the loader"
        return Finding("loader too slow", "warning", seen, remedy)
    return None


CHECKS: tuple[Callable[[Evidence], Finding | None], ...] = (
    not_finite,
    rate_too_high,
    not_learning,
    nothing_learned,
    frozen,
    leak,
    duplicates,
    wrong_tokenizer,
    pairs_unlearned,
    learned_by_heart,
    masked_share,
    stuck_at_frequencies,
    detector_below_majority,
    generator_too_good,
    warmup,
    spikes,
    update_ratio,
    behind_reference,
    padding,
    starved,
)


def diagnose(evidence: Evidence) -> list[Finding]:
    """All findings, errors first."""
    findings = [finding for check in CHECKS if (finding := check(evidence)) is not None]
    return sorted(findings, key=lambda finding: finding.level != "error")


class Watch:
    """Findings during a run, each diagnosis once; reads the newest 1,000 lines of metrics."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.recipe = recipe
        self.train: deque[Line] = deque(maxlen=WATCHED)
        self.valid: deque[Line] = deque(maxlen=WATCHED)
        self.reported: set[str] = set()
        self.reference = reference(recipe.get("name", ""))

    def see(self, line: Line) -> list[Finding]:
        """The new findings after a further line of metrics, of training or validation."""
        {"train": self.train, "valid": self.valid}.get(line["split"], deque[Line]()).append(line)
        if not self.train:
            return []
        evidence = Evidence(list(self.train), list(self.valid), self.recipe, reference=self.reference)
        findings = [finding for finding in diagnose(evidence) if finding.name not in self.reported]
        self.reported |= {finding.name for finding in findings}
        return findings


def examine(run: Path, corpus: Path | None = None) -> list[Finding]:
    """Findings about a run folder.

    Raises:
        DataError: the folder has no run, or no metrics yet.
    """
    evidence = read(run, corpus)
    if not evidence.train and evidence.diverged is None:
        raise DataError(f"{run}: metrics.jsonl has no training metrics yet; wait for the first log_every steps")
    return diagnose(evidence)
