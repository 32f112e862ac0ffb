"""Synthetic tasks with a known rule, one per form; the same seed gives the same data."""

from __future__ import annotations

import random

from encoderlab.tasks.data.readers import Columns, Conll, Options, Squad
from encoderlab.tasks.data.task import Answer, Choice, Question, Split, TaggedWords, Task, Text

COLOURS, NUMBERS, CITIES = ("red", "blue", "green"), ("one", "two", "three", "four"), ("oslo", "rome", "paris", "lima")
NAMES, FILLERS = ("sue", "ann", "bob"), ("the", "a", "is", "mat", "film", "very", "small", "eats")


def split(name: str, examples: list) -> Split:
    return Split(name=name, examples=tuple(examples), files=(name,), sha256=f"{name}-{len(examples)}")


def filler(rng: random.Random, least: int = 2, most: int = 8) -> list[str]:
    return [rng.choice(FILLERS) for _ in range(rng.randint(least, most))]


def sentence(rng: random.Random, *needed: str) -> str:
    words = [*filler(rng), *needed]
    rng.shuffle(words)
    return " ".join(words)


def single(rng: random.Random, i: int) -> Text:
    colour = rng.choice(COLOURS)
    return Text(id=str(i), text=sentence(rng, colour), label=colour)


def pair(rng: random.Random, i: int) -> Text:
    """How many of the two texts name a colour?"""
    first, second = ([rng.choice(COLOURS)] * rng.randrange(2) for _ in range(2))
    label = ("none", "one", "both")[len(first) + len(second)]
    return Text(id=str(i), text=sentence(rng, *first), pair=sentence(rng, *second), label=label)


def number(rng: random.Random, i: int) -> Text:
    value = rng.randrange(4)
    return Text(id=str(i), text=sentence(rng, NUMBERS[value]), label=float(10 * value))


def several(rng: random.Random, i: int) -> Text:
    """The colours that the text names."""
    colours = tuple(colour for colour in COLOURS if rng.random() < 0.4)
    return Text(id=str(i), text=sentence(rng, *colours), label=colours)


def tagged(rng: random.Random, i: int) -> TaggedWords:
    words, tags = [], []
    for _ in range(rng.randint(2, 5)):
        kind = rng.choice(("", "CITY", "PERSON"))
        if kind == "CITY":
            words += [rng.choice(CITIES)]
            tags += ["B-CITY"]
        elif kind == "PERSON":
            words += [rng.choice(NAMES), "runs"]
            tags += ["B-PERSON", "I-PERSON"]
        else:
            words += [rng.choice(FILLERS)]
            tags += ["O"]
    return TaggedWords(id=str(i), words=tuple(words), tags=tuple(tags), document=i // 4)


def question(rng: random.Random, i: int, *, impossible: bool = False) -> Question:
    city = rng.choice(CITIES)
    before = " ".join(filler(rng))
    known = not (impossible and i % 3 == 0)
    passage = f"{before} {city if known else 'mat'} {' '.join(filler(rng))} ."
    answers = (Answer(city, len(before) + 1),) if known else ()
    return Question(id=f"q{i}", question="where is it ?", passage=passage, answers=answers)


def choice(rng: random.Random, i: int) -> Choice:
    """The option that is a city is right."""
    options = [*rng.sample(FILLERS, 2), rng.choice(CITIES)]
    rng.shuffle(options)
    right = next(j for j, option in enumerate(options) if option in CITIES)
    return Choice(id=str(i), context=sentence(rng), question="where ?", options=tuple(options), answers=(right,))


TASKS = {
    "single": (
        Task(name="single", form="classification", metrics=("accuracy",), layouts=(Columns(text="text"),)),
        single,
    ),
    "pair": (Task(name="pair", form="classification", metrics=("accuracy",), layouts=(Columns(text="text"),)), pair),
    "number": (Task(name="number", form="regression", metrics=("pearson",), layouts=(Columns(text="text"),)), number),
    "several": (
        Task(name="several", form="multilabel", metrics=("micro_f1", "exact"), layouts=(Columns(text="text"),)),
        several,
    ),
    "tagged": (Task(name="tagged", form="tagging", metrics=("f1",), layouts=(Conll(),)), tagged),
    "question": (Task(name="question", form="span", metrics=("f1", "exact"), layouts=(Squad(),)), question),
    "choice": (
        Task(name="choice", form="choice", metrics=("accuracy",), layouts=(Options(context="context"),)),
        choice,
    ),
}


def data(name: str, train: int = 32, dev: int = 32, seed: int = 0, **more) -> tuple[Task, dict[str, Split]]:
    task, make = TASKS[name]
    rng = random.Random(seed)
    return task, {
        "train": split("train", [make(rng, i, **more) for i in range(train)]),
        "dev": split("dev", [make(rng, i, **more) for i in range(dev)]),
    }
