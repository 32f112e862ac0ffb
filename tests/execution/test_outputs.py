"""Outputs of many files: verified, continued, and one that fails keeps no other from being made."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoderlab.errors import ConfigError, DataError, OutOfMemory, Stopped
from encoderlab.execution.outputs import RECORD, Outputs, make_outputs
from encoderlab.execution.workers import Workers
from encoderlab.files import write_text


class Upper:
    """Writes a text in capitals, and counts how often it is asked."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, source: Path, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
        self.made.append(source.name)
        text = source.read_text()
        if "broken" in text:
            raise DataError(f"{source}: broken")
        if "memory" in text:
            raise OutOfMemory("too little")
        say(f"{source.name}: read as text")
        logging.getLogger("encoderlab.any").warning("%d characters", len(text))
        write_text(out, text.upper())
        return {"size": len(text)}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    folder, out = tmp_path / "in", tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    out.mkdir()
    texts = {"a": "aa", "b": "bbbb", "deep/c": "cccccc"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {f"{name}.up": folder / name for name in texts}


def make(files: dict[str, Path], out: Path, *, asked: str = "capitals") -> tuple[Outputs, list[str]]:
    upper = Upper()
    with Workers(1) as tasks:
        done = make_outputs(upper, files, out, tasks, asked={"what": asked}, progress=lambda *counts: None)
    return done, upper.made


def test_every_file_has_an_output_and_the_largest_is_first(files, tmp_path, capsys) -> None:
    done, made = make(files, tmp_path / "out")
    assert made == ["c", "b", "a"] and (tmp_path / "out/deep/c.up").read_text() == "CCCCCC"
    assert {name: facts["size"] for name, facts in done.facts.items()} == {"deep/c.up": 6, "b.up": 4, "a.up": 2}
    assert done.remarks["read as text"] == ["deep/c.up", "b.up", "a.up"] and done.remarks["2 characters"] == ["a.up"]
    assert capsys.readouterr().err == ""


def test_a_record_with_any_byte_changed_gives_the_same_facts_or_is_refused(files, tmp_path, caplog) -> None:
    out = tmp_path / "out"
    facts = make(files, out)[0].facts
    whole = (out / RECORD).read_bytes()
    for place in range(0, len(whole), 31):
        changed = bytearray(whole)
        changed[place] ^= 1
        (out / RECORD).write_bytes(changed)
        caplog.clear()
        done, made = make(files, out)
        assert done.facts == facts and (made or place > len(whole) - 2), place
        assert f"{RECORD}: is damaged after line" in caplog.text


def test_what_is_finished_is_not_made_again_and_what_changed_is_named(files, tmp_path, caplog) -> None:
    out = tmp_path / "out"
    make(files, out)
    done, made = make(files, out)
    assert made == [] and done.kept == 3 and done.facts["a.up"] == {"size": 2}
    (out / "a.up").write_text("damaged")
    (out / "b.up").unlink()
    files["deep/c.up"].write_text("other")
    done, made = make(files, out)
    assert made == ["c", "b", "a"] and done.kept == 0 and (out / "a.up").read_text() == "AA"
    for said in ("a.up: has changed since it was written", "b.up: is missing; made again", "c: has changed since; "):
        assert said in caplog.text
    assert make(files, out)[1] == []


def test_a_torn_or_damaged_record_costs_only_what_it_no_longer_says(files, tmp_path, caplog) -> None:
    out = tmp_path / "out"
    make(files, out)
    lines = (out / RECORD).read_bytes().splitlines(keepends=True)
    (out / RECORD).write_bytes(b"".join(lines[:2]) + lines[2][:20])
    assert make(files, out)[1] == ["b", "a"] and "damaged after line 2" in caplog.text
    assert make(files, out)[1] == []
    assert [json.loads(line).get("output") for line in (out / RECORD).open()] == [None, "deep/c.up", "b.up", "a.up"]


def test_one_file_that_fails_is_named_and_the_others_are_made(files, tmp_path) -> None:
    files["deep/c.up"].write_text("broken")
    files["gone.up"] = tmp_path / "gone"
    done, _ = make(files, tmp_path / "out")
    assert sorted(done.facts) == ["a.up", "b.up"]
    assert done.failed["deep/c.up"].endswith("deep/c: broken") and "gone: No such file" in done.failed["gone.up"]
    files.pop("gone.up").with_name("in")
    files["deep/c.up"].write_text("whole")
    assert make(files, tmp_path / "out")[1] == ["c"]


def test_too_little_memory_stops_all_of_it(files, tmp_path) -> None:
    files["a.up"].write_text("memory and more")
    files["b.up"].write_text("the longest of all")
    with pytest.raises(OutOfMemory):
        make(files, tmp_path / "out")
    files["a.up"].write_text("a")
    assert make(files, tmp_path / "out")[1] == ["c", "a"]


def test_a_folder_of_something_else_is_refused(files, tmp_path) -> None:
    out = tmp_path / "out"
    make(files, out)
    with pytest.raises(ConfigError, match="has files that were made with another what; give another --out"):
        make(files, out, asked="small letters")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes").touch()
    with pytest.raises(ConfigError, match="is not empty .it has 'notes'. and has no files.jsonl"):
        make(files, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes"]


def slow(source: Path, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    out.with_suffix(".begun").touch()
    time.sleep(30)
    return {}


def test_processes_stop_at_once_where_the_first_one_is_stopped(files, tmp_path) -> None:
    """Also with what waits in their pipes."""
    out = tmp_path / "out"

    def stop() -> None:
        while not list(out.rglob("*.begun")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    begin = time.monotonic()
    with pytest.raises(Stopped), Workers(1, always=True) as tasks:
        make_outputs(slow, files, out, tasks, asked={}, progress=lambda *counts: None)
    assert time.monotonic() - begin < 25 and len(list(out.rglob("*.begun"))) == 1
