"""What a fine-tuning run keeps of its task."""

import json
from dataclasses import replace

from encoderlab.tasks.data import suites
from encoderlab.tasks.data.readers import Columns
from encoderlab.tasks.runs.folder import is_benchmark, layouts_of, plain_layouts


def test_layouts_come_back_from_plain_data():
    for task in suites.TASKS.values():
        plain = json.loads(json.dumps(plain_layouts(task)))
        assert layouts_of(plain) == task.layouts and is_benchmark(task)
    assert not is_benchmark(replace(suites.task("resume"), form="classification", layouts=(Columns(text="text"),)))
