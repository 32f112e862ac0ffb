"""Scores of text answers by the rules of the official scripts: SQuAD 1.1 and 2.0, TriviaQA, ReCoRD, CMRC 2018, DRCD.

Scores are percentages and computed in the order and arithmetic of those scripts, so that they agree to the last digit.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = set(string.punctuation)
_HAN = re.compile("[\u4e00-\u9fa5]")

Normalizer = Callable[[str], str]
Scorer = Callable[[str, str], float]


def normalize(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces (Rajpurkar et al., 2016)."""
    text = "".join(char for char in text.lower() if char not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def normalize_chinese(text: str) -> str:
    """Lower case, no punctuation, every Han character a word: MLQA's rules for Chinese (Lewis et al., 2020)."""
    kept = (char for char in text.lower() if char not in _PUNCTUATION and unicodedata.category(char)[0] != "P")
    return " ".join(_HAN.sub(r" \g<0> ", "".join(kept)).split())


def are_chinese(answers: Iterable[str]) -> bool:
    """Whether more than half of the characters of the answers, spaces aside, are Han characters."""
    text = "".join("".join(answers).split())
    return 2 * len(_HAN.findall(text)) > len(text)


def normalize_trivia(text: str) -> str:
    """As :func:`normalize`, but punctuation, with the marks ``‘ ’ ´`` too, separates words (Joshi et al., 2017)."""
    text = "".join(" " if char in _PUNCTUATION or char in "‘’´" else char for char in text.lower())
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact(gold: str, predicted: str, normalize: Normalizer = normalize) -> int:
    """1 if the normalised texts are equal."""
    return int(normalize(gold) == normalize(predicted))


def token_f1(gold: str, predicted: str, normalize: Normalizer = normalize) -> float:
    """F1 of the bags of normalised words; two empty answers agree, an empty one and another do not."""
    right, guess = normalize(gold).split(), normalize(predicted).split()
    if not right or not guess:
        return int(right == guess)
    return _f1((Counter(right) & Counter(guess)).total(), len(guess), len(right))


def _f1(common: int, guessed: int, right: int) -> float:
    """F1 of ``common`` words, of so many that were guessed and so many that are right."""
    if common == 0:
        return 0
    precision, recall = 1.0 * common / guessed, 1.0 * common / right
    return 2 * precision * recall / (precision + recall)


def shared_f1(gold: str, predicted: str, normalize: Normalizer = normalize) -> float:
    """As :func:`token_f1`, but 0 wherever no word is shared, also for two answers without words: the rule of SQuAD 1.1,
    which ReCoRD and TriviaQA took over.
    """
    return token_f1(gold, predicted, normalize) if normalize(gold) else 0


def references(answers: Sequence[str], normalize: Normalizer = normalize) -> list[str]:
    """The answers that count: those that normalisation leaves non-empty, or the empty answer if there are none."""
    return [answer for answer in answers if normalize(answer)] or [""]


def squad(
    gold: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    *,
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Exact match and F1 of SQuAD 1.1 and 2.0 as the official 2.0 evaluation computes them; of Chinese answers
    (:func:`are_chinese`), which have no spaces between words, with :func:`normalize_chinese`.

    Args:
        gold: reference answers by question id; an empty list for a question without an answer.
        predicted: one answer by question id, ``""`` for "no answer". A question that is missing here scores 0.
        null_odds: score of "no answer" minus score of the answer, by question id. With them, the best thresholds for
            exact match and F1 are searched too (``best_exact``, ``best_exact_threshold``, ...).
        threshold: an answer counts as withdrawn if its null odds exceed this.

    Returns:
        ``exact``, ``f1``, ``total``; with questions of both kinds also ``has_answer_*`` and ``no_answer_*``.
    """
    has_answer = {key: bool(answers) for key, answers in gold.items()}
    chinese = are_chinese(answer for answers in gold.values() for answer in answers)
    normalizer = normalize_chinese if chinese else normalize
    counted = {key: references(answers, normalizer) for key, answers in gold.items()}
    scorers: dict[str, Callable[..., float]] = {"exact": exact, "f1": token_f1}
    raw = {name: _best(counted, predicted, partial(each, normalize=normalizer)) for name, each in scorers.items()}
    final = raw
    if null_odds is not None:
        final = {
            name: {
                key: float(not has_answer[key]) if null_odds[key] > threshold else score
                for key, score in scores.items()
            }
            for name, scores in raw.items()
        }
    result = {name: _percentage(scores, list(gold)) for name, scores in final.items()} | {"total": len(gold)}
    for prefix, answerable in (("has_answer", True), ("no_answer", False)):
        keys = [key for key in gold if has_answer[key] == answerable]
        if keys:
            result |= {f"{prefix}_{name}": _percentage(scores, keys) for name, scores in final.items()}
            result[f"{prefix}_total"] = len(keys)
    if null_odds is not None:
        for name, scores in raw.items():
            result[f"best_{name}"], result[f"best_{name}_threshold"] = best_threshold(
                scores, {key: predicted.get(key, "") for key in gold}, null_odds, has_answer
            )
    return result


def best_threshold(
    scores: Mapping[str, float],
    predicted: Mapping[str, str],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """The best score (a percentage) over thresholds on ``null_odds``, and that threshold: answers above it are
    withdrawn.

    Threshold 0 is kept if withdrawing every answer is best, as the official search does.
    """
    current = best = float(sum(not has_answer[key] for key in scores))
    threshold = 0.0
    for key in sorted(scores, key=lambda key: null_odds[key]):
        current += scores[key] if has_answer[key] else (-1 if predicted[key] else 0)
        if current > best:
            best, threshold = current, null_odds[key]
    return 100.0 * best / len(scores), threshold


def record(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str]) -> dict[str, float]:
    """ReCoRD (Zhang et al., 2018): exact match and F1 of SQuAD 1.1, the best over the gold entity mentions of each
    query, those that normalisation empties included.
    """
    return _over_all(gold, predicted, {"exact": exact, "f1": shared_f1})


def triviaqa(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str]) -> dict[str, float]:
    """TriviaQA (Joshi et al., 2017): SQuAD's exact match and F1 of texts normalised in its own way."""
    scorers: dict[str, Scorer] = {
        "exact": partial(exact, normalize=normalize_trivia),
        "f1": partial(shared_f1, normalize=normalize_trivia),
    }
    return _over_all(gold, predicted, scorers) | {"total": len(gold)}


def cmrc(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str]) -> dict[str, float]:
    """CMRC 2018 and DRCD: exact match without punctuation, F1 over the longest common run of characters and words,
    their mean.

    The official script splits Latin text with NLTK's Treebank tokenizer; :func:`treebank_words` follows its rules.
    """
    scores = _over_all(gold, predicted, {"exact": cmrc_exact, "f1": cmrc_f1})
    return scores | {"average": (scores["exact"] + scores["f1"]) * 0.5, "total": len(gold)}


# The symbols that the official script drops. Its list holds the two-character "……", which no single character equals:
# kept so.
_DROPPED = set("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# The rules of the Penn Treebank tokenizer as NLTK orders them, for text without the symbols above: quotation marks,
# punctuation, brackets, then clitics. Words are what spaces separate at the end.
_TREEBANK = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"([«‘„])", r" \1 "),
        (r'^"', " `` "),
        (r"""([ (\[{<])("|'')""", r"\1 `` "),
        (r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", "' "),
        (r"""([^.])(\.)([\])}>"'» ]*)\s*$""", r"\1 \2 \3 "),
        (r",(?=\D)|,$", " , "),
        (r"\.{2,}|[;@#$%&?!\u2012-\u2015]", r" \g<0> "),
        (r"(?<=[^'])' ", " ' "),
        (r"[\]\[(){}<>]", r" \g<0> "),
        (r"^|$", " "),
        (r"[»”]", r" \g<0> "),
        (r"""''|\"""", " '' "),
        (r"\s+", " "),
        (r"(?<=[^' ])('[smd]|'|'ll|'re|'ve|n't) ", r" \1 "),
        (
            r"\b(can(?=not\b)|gim(?=me\b)|gon(?=na\b)|got(?=ta\b)|lem(?=me\b)|wan(?=na\s)|d(?='ye\b)|more(?='n\b))",
            r" \1 ",
        ),
    )
]


def treebank_words(text: str) -> list[str]:
    """Words of lower-case Latin text: ``"don't stop"`` is ``do n't stop``, and ``3d`` and ``v2.0`` are one word each.

    Unlike NLTK, it does not search for ends of sentences within the text.
    """
    for pattern, replacement in _TREEBANK:
        text = pattern.sub(replacement, text)
    return text.split()


def cmrc_exact(gold: str, predicted: str) -> int:
    """1 if the texts are equal in lower case without punctuation."""
    a, b = ("".join(char for char in text.lower().strip() if char not in _DROPPED) for text in (gold, predicted))
    return int(a == b)


def cmrc_f1(gold: str, predicted: str) -> float:
    """F1 of the longest run of segments that both texts share."""
    right, guess = mixed_segments(gold), mixed_segments(predicted)
    return _f1(_longest_run(right, guess), len(guess), len(right))


def mixed_segments(text: str) -> list[str]:
    """Han characters one by one and Latin words, without punctuation."""
    segments: list[str] = []
    latin = ""
    for char in text.lower().strip():
        if char in _DROPPED:
            continue
        if _HAN.match(char):
            segments += [*treebank_words(latin), char]
            latin = ""
        else:
            latin += char
    return segments + treebank_words(latin)


def _longest_run(a: Sequence[str], b: Sequence[str]) -> int:
    longest, row = 0, [0] * (len(b) + 1)
    for item in a:
        row = [0] + [row[j] + 1 if item == other else 0 for j, other in enumerate(b)]
        longest = max(longest, max(row))
    return longest


def _best(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str], scorer: Scorer) -> dict[str, float]:
    """The best score over all references of each question; 0 without a prediction."""
    return {
        key: 0 if predicted.get(key) is None else max(scorer(answer, predicted[key]) for answer in answers or [""])
        for key, answers in gold.items()
    }


def _over_all(
    gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str], scorers: Mapping[str, Scorer]
) -> dict[str, float]:
    """The means of :func:`_best` over questions."""
    return {name: _percentage(_best(gold, predicted, scorer), list(gold)) for name, scorer in scorers.items()}


def _percentage(scores: Mapping[str, float], keys: Sequence[str]) -> float:
    return 100.0 * sum(scores[key] for key in keys) / len(keys)
