"""Questions without labels: sentences of plain text in which a name, a number or a few words are asked for.

    python -m benchmarks.cloze runs/text/en/wiki_en.txt runs/cloze.json

writes SQuAD's format, which ``encoderlab finetune`` reads. A sentence of a paragraph gives a question: its words
around the answer, some of them missing, in either order, after a question word that fits the answer (the noisy clozes
of Lewis et al., 2019, "Unsupervised Question Answering by Cloze Translation", section 2.2, with rules in the place of
a parser). So a model learns to find the words of a question in a passage, before it sees labelled questions. What is
drawn belongs to the passage.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encoderlab.files import write_text

PASSAGE, SENTENCE = (40, 120), (8, 40)  # words
AROUND = 10  # words of the sentence on each side of the answer
KEPT = 0.8  # share of the words of a question that are kept
PER_PASSAGE = 3

NAME = r"[A-Z](?:[\w'’-]*\w)?"
NAMES = rf"{NAME}(?: (?:of |the |de |and )?{NAME}){{0,4}}"
MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
DATE = rf"(?:\d{{1,2}} )?{MONTH}(?: \d{{1,2}}\b)?(?:,? \d{{4}}\b)?|\b(?:1\d|20)\d\d\b"
NUMBER = r"\$?\d(?:[\d,.]*\d)?(?: (?:million|billion|percent|%))?"
NOUN = r"(?:the|a|an|his|its|their|her) (?:[a-z]+ ){0,2}[a-z]{4,}(?=[,.;]| (?:of|in|and|was|is|to|for)\b)"
# Kinds of answers with their question words.
KINDS = (
    (DATE, ("when", "what year", "what date")),
    (NUMBER, ("how many", "how much", "what number")),
    (rf"(?<=[ (]){NAMES}", ("who", "what", "where", "which", "whom")),
    (rf"(?<= ){NOUN}", ("what", "which", "how", "why")),
)


def sentences(paragraph: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends."""
    ends = [match.end() for match in re.finditer(r"[.!?][\"”)]?(?= [A-Z\"“(]|$)", paragraph)] or [len(paragraph)]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return list(zip(starts, ends, strict=True))


def passage_of(paragraph: str) -> str | None:
    """The whole sentences that fit; None if they are too few words."""
    heads = (paragraph[:end] for _, end in sentences(paragraph))
    fitting = [head for head in heads if PASSAGE[0] <= len(head.split()) <= PASSAGE[1]]
    return fitting[-1] if fitting else None


def question_of(sentence: str, answer: re.Match[str], asked: str, rng: random.Random) -> str | None:
    """The question of an answer in a sentence; None if too few words are left."""
    sides = [sentence[: answer.start()].split()[-AROUND:], sentence[answer.end() :].split()[:AROUND]]
    sides = [[word.strip(',.;:()"“”?!') for word in side if rng.random() < KEPT] for side in sides]
    sides = [[word for word in side if word] for side in sides]
    if rng.random() < 0.5:
        sides.reverse()
    words = sides[0] + sides[1]
    return None if len(words) < 4 else f"{asked[0].upper()}{asked[1:]} {' '.join(words)}?"


def questions_of(passage: str, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Questions about different sentences of the passage, with their answers."""
    places = [span for span in sentences(passage) if SENTENCE[0] <= len(passage[slice(*span)].split()) <= SENTENCE[1]]
    for start, end in rng.sample(places, min(PER_PASSAGE, len(places))):
        sentence = passage[start:end]
        kinds = [(list(re.finditer(pattern, sentence)), words) for pattern, words in KINDS]
        kinds = [(found, words) for found, words in kinds if found]
        if not kinds:
            continue
        found, words = rng.choice(kinds)
        answer = rng.choice(found)
        question = question_of(sentence, answer, rng.choice(words), rng)
        if question:
            yield {"question": question, "answers": [{"text": answer[0], "answer_start": start + answer.start()}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a blank line between documents, a line per paragraph")
    parser.add_argument("out", type=Path)
    parser.add_argument("--questions", type=int, default=40_000)
    given = parser.parse_args()
    passages = (passage_of(line.strip()) for line in given.text.read_text(encoding="utf-8").splitlines())
    order = sorted({passage for passage in passages if passage}, key=lambda p: hashlib.sha256(p.encode()).digest())
    paragraphs, made = [], 0
    for passage in order:
        asked = list(questions_of(passage, random.Random(passage)))[: given.questions - made]
        if asked:
            numbered = [{**question, "id": str(made + i)} for i, question in enumerate(asked)]
            paragraphs.append({"context": passage, "qas": numbered})
            made += len(asked)
        if made == given.questions:
            break
    if not made:
        parser.error(
            f"{given.text}: no question could be made; give English text with lines of {PASSAGE[0]} words or more"
        )
    data = {"version": "cloze", "data": [{"title": "cloze", "paragraphs": paragraphs}]}
    write_text(given.out, json.dumps(data, ensure_ascii=False))
    print(f"{made:,} questions about {len(paragraphs):,} passages")


if __name__ == "__main__":
    main()
