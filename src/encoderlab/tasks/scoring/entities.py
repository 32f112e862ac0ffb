"""Entities in tag sequences: the rules of conlleval, tag schemes and their conversion, entity F1.

An entity is (type, first word, one past the last word). One set of rules reads every scheme, so predictions need not be
well formed: a word starts an entity if its tag says so (B, S) or if no entity of its type is open. conlleval (Tjong Kim
Sang, CoNLL-2000) does the same for BIO and IOB1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from encoderlab.errors import DataError
from encoderlab.tasks.scoring.analysis import ClassScore, by_class

Scheme = Literal["BIO", "IOB1", "BIOES", "BMES"]
Entity = tuple[str, int, int]

# Prefixes of the schemes that differ only in their letters: BMES and BMESO, BIOES, BILOU, BIOEW.
_PREFIXES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "W": "S", "U": "S"}


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix (B, I, E, S or O) and type of a tag: ``"M-ORG"`` is ``("I", "ORG")``, and ``"B"`` has the type ``""``.

    Raises:
        DataError: another prefix.
    """
    if tag == "O":
        return "O", ""
    prefix, _, kind = tag.partition("-")
    if prefix in _PREFIXES:
        return _PREFIXES[prefix], kind
    raise DataError(f"tag {tag!r} has no prefix among B I M E L S W U O; write it as B-TYPE, I-TYPE or O")


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in order, by conlleval's rules."""
    spans: list[Entity] = []
    start = 0
    for i, ((before, kind_before), (prefix, kind)) in enumerate(pairwise(map(split_tag, ("O", *tags, "O")))):
        goes_on = before in "BI" and prefix in "IE" and kind == kind_before
        if not goes_on:
            if before != "O":
                spans.append((kind_before, start, i))
            start = i
    return spans


def write_tags(spans: Sequence[Entity], length: int, scheme: Scheme = "BIO") -> list[str]:
    """Tags of a sentence with ``length`` words and entities ``spans``; inverts :func:`entities` for every scheme."""
    tags = ["O"] * length
    inside, last = {"BIO": ("I", "I"), "IOB1": ("I", "I"), "BIOES": ("I", "E"), "BMES": ("M", "E")}[scheme]
    before: Entity | None = None
    for kind, start, end in sorted(spans, key=lambda span: span[1]):
        follows = before is not None and before[2] == start and before[0] == kind
        begin = "B" if scheme != "IOB1" or follows else "I"
        single = begin if scheme in ("BIO", "IOB1") else "S"
        prefixes = [begin, *inside * (end - start - 2), last] if end - start > 1 else [single]
        tags[start:end] = [f"{prefix}-{kind}" if kind else prefix for prefix in prefixes]
        before = (kind, start, end)
    return tags


def detect_scheme(sentences: Iterable[Sequence[str]]) -> tuple[Scheme, int]:
    """The tag scheme of a file and the number of tags that violate it; reads the sentences once.

    A prefix E, S, L, U, W or M means BIOES or BMES; tags that leave an entity unopened or unclosed violate these, as in
    a file that is partly BIO. If an I tag opens an entity, a file is IOB1 if every B tag follows an entity of its
    type directly; otherwise it is BIO with as many violations, which are read as conlleval does.

    Raises:
        DataError: prefixes of BIO and BMES are mixed.
    """
    prefixes: set[str] = set()
    opened_by_inside = needless_begin = broken = 0
    for tags in sentences:
        prefixes.update(tag.partition("-")[0] for tag in tags)
        for (before, kind_before), (prefix, kind) in pairwise(map(split_tag, ("O", *tags))):
            needless_begin += prefix == "B" and not (before != "O" and kind == kind_before)
        opened_by_inside += count_faults(tags, "BIO")
        broken += count_faults(tags, "BIOES")
        if {"M", "I"} <= prefixes:
            raise DataError("tags mix the prefixes I and M, that is BIO and BMES; convert the file to one scheme")
    if prefixes - {"B", "I", "O", ""}:
        return ("BMES" if "I" not in prefixes else "BIOES"), broken
    if opened_by_inside and not needless_begin:
        return "IOB1", 0
    return "BIO", opened_by_inside


def count_faults(tags: Sequence[str], scheme: Scheme) -> int:
    """The number of tags of a sentence that violate the scheme: in BIO an I that opens an entity, in BIOES and BMES
    also an entity that is not closed.
    """
    faults = 0
    for (before, kind_before), (prefix, kind) in pairwise(map(split_tag, ("O", *tags, "O"))):
        inside = prefix in ("I", "E")
        if scheme in ("BIO", "IOB1"):
            faults += inside and (before == "O" or kind != kind_before)
        else:
            is_open = before in ("B", "I")
            faults += inside != is_open or is_open and kind != kind_before
    return faults


def score_entities(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[ClassScore, dict[str, ClassScore]]:
    """Scores of all entities together and by entity type: an entity counts if type and both borders are equal."""
    for i, (right, guess) in enumerate(zip(gold, predicted, strict=True)):
        if len(right) != len(guess):
            raise DataError(f"sentence {i + 1}: {len(guess)} predicted tags for {len(right)} words; give one for each")
    by_type = by_class(map(entities, gold), map(entities, predicted), of=lambda entity: entity[0])
    total = {name: sum(getattr(score, name) for score in by_type.values()) for name in ("correct", "predicted", "gold")}
    return ClassScore(**total), by_type
