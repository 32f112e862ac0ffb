"""Where sentences start in a paragraph, English and Chinese: regular expressions and a list of abbreviations.

A sentence ends at ``.``, ``!`` or ``?`` (with closing quotes and brackets) before white space and something that can
begin a sentence, or at ``。！？`` anywhere. A full stop does not end one after an abbreviation, an initial or a list
number, inside a decimal, or before a lower-case letter. The boundaries are for next sentence and sentence order
prediction, for which a few wrong ones do no harm; no model is needed, and it reads about 40 MB a second.
"""

from __future__ import annotations

import re

# Abbreviations that a name or number follows, so that they practically never end a sentence.
TITLES = frozenset(
    "mr mrs ms mx dr prof rev fr hon st ste mt ft messrs mme mlle gen col maj capt cpt lt cmdr sgt cpl pvt adm brig "
    "gov sen rep pres supt dept univ vs viz cf ca al approx eg ie e.g i.e a.k.a".split()
)
# Abbreviations only before a number: "No. 5", "pp. 3-7", "Jan. 3".
COUNTERS = frozenset(
    "no nos nr fig figs vol vols p pp pg art arts sec sect ch chap op eq eqs pt para tab ed c b d r fl jan feb mar apr "
    "jun jul aug sep sept oct nov dec".split()
)
_CLOSING = "\"'”’»)\\]}〉》」』】）"
_OPENING = "\"'“‘«(\\[{〈《「『【（"
_CJK = "\u2e80-\u303f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60"
# The search is quick because the pattern begins with a plain set of characters, and linear (a line of a million dots)
# because a match begins only at the first stop of a run.
_END = re.compile(
    r"[.!?…。！？](?<![.!?…。！？][.!?…。！？])(?:"
    rf"(?P<stop>(?<=[.!?…])[.!?…]*+)(?P<close>[{_CLOSING}]*+) ++(?=[{_OPENING}¿¡*—–-]*(?P<next>.))"
    rf"|(?:(?<=[。！？])|(?<=…)…++|(?<=[!?])[!?]*+(?=[{_CLOSING}]*+[{_CJK}]))[{_CLOSING}。！？!?…]*+ *+)"
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_NUMBER = re.compile(r"(?:\d+|[ivxlIVXL]+|[a-zA-Z])(?:\.\d+)*")


def sentence_starts(text: str) -> list[int]:
    """Character offsets at which the sentences of a paragraph start; the first is 0. White space is single spaces."""
    starts = [0]
    for match in _END.finditer(text):
        if match.end() < len(text) and _ends_sentence(text, match, starts[-1]):
            starts.append(match.end())
    return starts


def _ends_sentence(text: str, match: re.Match[str], start: int) -> bool:
    stop = match["stop"]
    if stop is None:
        return True
    following = match["next"]
    if following.islower():
        return False
    if stop or match["close"] or text[match.start()] != ".":
        return True
    word = text[max(text.rfind(" ", start, match.start()) + 1, start) : match.start()].lstrip(_OPENING)
    if word.lower() in TITLES or (following.isdigit() and word.lower() in COUNTERS):
        return False
    if word != "I" and _INITIALS.fullmatch(word) and word[0].isupper():
        return False
    return not (match.start() - len(word) == start and _NUMBER.fullmatch(word))
