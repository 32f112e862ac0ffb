from __future__ import annotations

import json
import textwrap
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from encoderlab.corpus.documents import read_documents
from encoderlab.corpus.python import tasks as python_tasks
from encoderlab.corpus.python import text as python_text
from encoderlab.corpus.python.areas import area_of
from encoderlab.corpus.python.prose import prose
from encoderlab.corpus.python.tasks import plain, tagged, write_tasks
from encoderlab.corpus.python.text import PythonFile, cached, passages, python_source, read_file
from encoderlab.corpus.sources import Reading
from encoderlab.errors import ConfigError
from tests.corpus.corpora import digests

MODULES = (
    "asyncio",
    "json",
    "email",
    "concurrent",
    "threading",
    "queue",
    "shutil",
    "os",
    "difflib",
    "textwrap",
    "string",
)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A cache of its own, and a small standard library."""
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "home"))
    every = python_text.python_files("stdlib")
    few = [file for file in every if file.module.split(".")[0] in MODULES]
    monkeypatch.setattr(python_text, "python_files", lambda size: few)
    return tmp_path / "home"


def test_passages_of_a_file(tmp_path):
    (tmp_path / "module.py").write_text(
        textwrap.dedent(
            '''
            # Copyright (c) 2001 by somebody. This licence comment is long, but it must be left out of the corpus,
            # as it says nothing about the program, whatever the number of its lines and of its words may be.
            # All rights reserved.
            """What the module does, in a sentence that is long enough."""

            TEMPLATE = """
            # This looks like a comment, but it is the inside of a string and no comment at all, however long it is,
            # so that it is not read as text of the program, whatever it may say in its several lines of words.
            # Third line.
            """


            class Thing:
                """A thing of some kind, described at some length.

                Parameters
                ----------
                size : int
                    How large the thing is supposed to be.

                >>> Thing(3)
                """

                def method(self):
                    """Return the other thing that belongs to this one."""
                    # The comment explains why the other thing is not computed here but only looked up in a table:
                    # computing it takes a long time, and it does not change while the program runs, so that the
                    # table is right as long as nobody calls this method from another thread.
                    def inner():
                        """The inner function has a description too, which is long."""

                # x = compute(1)
                # y = compute(2)
                # return x + y
                def short(self):
                    """Short."""


            add_newdoc("numpy", "array", """
                Create an array from a sequence of numbers of any kind.
                """)
            '''
        )
    )
    found = [
        (item.kind, item.name, item.paragraphs) for item in read_file(PythonFile(tmp_path / "module.py", "module"))
    ]
    assert [(kind, name) for kind, name, _ in found] == [
        ("module", ""),
        ("class", "Thing"),
        ("function", "Thing.method"),
        ("comment", ""),
        ("function", "Thing.method.inner"),
        ("function", "array"),
    ]
    assert found[1][2] == (
        "A thing of some kind, described at some length.",
        "size : int How large the thing is supposed to be.",
    )
    assert found[3][2][0].startswith("The comment explains why the other thing is not")
    (tmp_path / "broken.py").write_text("def")
    assert read_file(PythonFile(tmp_path / "broken.py", "broken")) == []


def test_prose():
    text = """First line of
    a description.

    .. note:: This is a remark that stays.

    .. code-block:: python

        x = 1

    An example follows::

        y = 2

    * first item of the list of things
    * second item of the list of things

    Heading
    =======
    Text below the heading of the section.

    +---+---+
    | a | b |
    +---+---+

    a^2 + b^2 = c^2 / (d - e) is
    """
    assert prose(text) == [
        "First line of a description.",
        "This is a remark that stays.",
        "first item of the list of things",
        "second item of the list of things",
        "Text below the heading of the section.",
    ] or prose(text)[:3] == ["First line of a description.", "This is a remark that stays.", "An example follows::"]


def test_the_same_installation_gives_the_same_text(home, monkeypatch):
    source = python_source("python:stdlib")
    first = digests(source.path.parent)
    assert source.path.parent.parent == home and set(first) == {"passages.jsonl", "corpus.jsonl", "seal.json"}
    changed = source.path.stat().st_mtime_ns
    assert python_source("python:stdlib").path.stat().st_mtime_ns == changed  # from the cache
    monkeypatch.setenv("ENCODERLAB_HOME", str(home / "other"))
    monkeypatch.setattr(python_text.os, "cpu_count", lambda: 1)
    again = python_source("python:stdlib")
    assert again.path.parent != source.path.parent
    assert digests(again.path.parent) == first
    documents = list(read_documents(again, Reading()))
    assert len(documents) > 100
    assert sum(len(paragraph) for document in documents for paragraph in document) > 100_000


def test_splits_by_module_and_no_held_out_text_in_the_corpus(home):
    found = passages("stdlib")
    splits = defaultdict(set)
    for item in found:
        splits[item.module].add(item.split)
    assert all(len(names) == 1 for names in splits.values())
    sizes = Counter(item.split for item in found)
    assert 0.02 < sizes["test"] / len(found) < 0.25 and 0.02 < sizes["validation"] / len(found) < 0.25
    assert len({item.paragraphs for item in found}) == len(found)
    lines = (cached("stdlib") / "corpus.jsonl").read_text().splitlines()
    corpus = {paragraph for line in lines for paragraph in json.loads(line)["text"].split("\n")}
    held_out = {text for item in found if item.split != "train" for text in item.paragraphs if len(text) > 40}
    assert len(held_out) > 50 and not held_out & corpus


def test_every_module_of_the_library_has_an_area():
    modules = {file.module for file in python_text.python_files("stdlib")}
    unknown = {module for module in modules if not area_of(module)}
    assert len(unknown) < len(modules) / 20, sorted(unknown)
    assert area_of("torch.fx.graph") == "compilers" and area_of("torch.nn.modules") == "deep learning"
    assert area_of("networkx.algorithms.flow") == "graphs" and area_of("os.path") == "files"


def test_tasks(home, tmp_path):
    counts = write_tasks(tmp_path / "tasks", "stdlib")
    read = {
        (task, split): [json.loads(line) for line in open(tmp_path / "tasks" / task / f"{split}.jsonl")]
        for task in python_tasks.TASKS
        for split in python_tasks.SPLITS
    }
    assert {key: len(examples) for key, examples in read.items()} == {
        (task, split): counts[task][split] for task in counts for split in counts[task]
    }
    area = read["area", "train"]
    assert set(area[0]) == {"text", "label"} and len({example["label"] for example in area}) >= 4
    match = [example for split in python_tasks.SPLITS for example in read["match", split]]
    assert {example["label"] for example in match} == {"yes", "no"}
    own = {f"{item.module}.{item.name}": plain(item.paragraphs[0]) for item in reversed(passages("stdlib"))}
    for example in match:
        is_own = own[example["text"]].startswith(example["text_pair"])
        assert is_own == (example["label"] == "yes") or list(own.values()).count(example["text_pair"]) > 1
    names = {example["text"] for example in read["match", "train"]}
    assert not names & {example["text"] for example in read["match", "test"]}
    for example in read["roles", "train"]:
        assert len(example["tokens"]) == len(example["tags"]) and any(tag != "O" for tag in example["tags"])


@pytest.mark.parametrize(
    ("paragraph", "expected", "text"),
    [
        ("Call ``f(x)`` now.", "O B-LITERAL I-LITERAL I-LITERAL I-LITERAL O O", "Call f(x) now."),
        ("See :func:`~os.path.join`.", "O B-CALL O", "See join."),
        ("A :class:`text <target>` and :py:mod:`json`", "O B-CLASS O B-MODULE", "A text and json"),
        ("Use `x` or :unknown:`y z`.", "O B-NAME O O O O", "Use x or y z."),
        ("No markup, it's plain.", "O O O O O O O O", "No markup, it's plain."),
        (":math:`a + b` holds", "B-MATH I-MATH I-MATH O", "a + b holds"),
    ],
)
def test_markup_becomes_tags(paragraph, expected, text):
    tokens, tags = tagged(paragraph)
    assert tags == expected.split() and len(tokens) == len(tags)
    assert plain(paragraph) == text


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="unknown source 'python:al'; did you mean 'all'"):
        python_source("python:al")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(python_text, "python_files", lambda size: [])
    with pytest.raises(ConfigError, match="set ENCODERLAB_HOME"):
        python_source("python:stdlib")


def test_a_damaged_cache_is_named_and_made_again(home, caplog):
    made = digests(cached("stdlib"))
    path = cached("stdlib") / "passages.jsonl"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert digests(cached("stdlib")) == made
    assert f"{path}: " in caplog.text and "is read again" in caplog.text
