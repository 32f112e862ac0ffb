"""Small files of examples, written by tests."""

from __future__ import annotations

import gzip
import json

from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.data.task import Task


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(encoding)) if path.suffix == ".gz" else text.encode(encoding))
    return path


def jsonl(path, *records):
    return write(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


SENTENCES = Task(
    name="sentences",
    form="classification",
    metrics=("accuracy",),
    layouts=(Columns(text="text"),),
    labels=("neg", "pos"),
)


def load(task, path, split="train"):
    return task.load(path, split)
