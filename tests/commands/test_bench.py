"""``bench`` of several models: each comparison is one call, in one place, and says where."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoderlab.commands import bench
from encoderlab.commands.bench import Comparisons
from encoderlab.execution.cluster import Need, tasks_on
from encoderlab.execution.workers import Workers
from tests.commands.test_outputs import place  # noqa: F401 (a fixture)
from tests.terminal import answer, messages


class Nodes(Workers):
    """Every call in a place of its own, with four cores."""

    def __init__(self) -> None:
        super().__init__(1, threads=4)
        self.calls: list[str] = []

    def submit(self, function: Callable[..., Any], *args: Any, name: str = "") -> None:
        self.calls.append(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(platform, "node", lambda: f"node-{len(self.calls)}")
            super().submit(function, *args, name=name)


def compare(name: str, threads: int, say: Callable[[str], None]) -> dict[str, Any]:
    say(f"{threads} threads")
    return {"name": name, "threads": threads, "sides": {side: platform.node() for side in ("ours", "theirs")}}


def test_a_comparison_is_one_call_with_both_sides(monkeypatch, capsys) -> None:
    nodes, asked = Nodes(), []
    monkeypatch.setattr(bench, "tasks_on", lambda on, **more: asked.append((on, more)) or nodes)
    shown: list[str] = []
    found = Comparisons(on="ray").measure(
        compare, ["bert", "xlnet"], lambda result: shown.append(result["name"]), threads=None, reads=[Path("corpus")]
    )["measurements"]
    assert asked == [("ray", {"workers": None, "need": Need(cores=None, gpus=None), "sees": [Path("corpus")]})]
    assert nodes.calls == shown == list(found) == ["bert", "xlnet"]
    for number, name in enumerate(found, 1):
        assert found[name] == {
            "node": f"node-{number}", "processor": bench.processor.name(), "name": name, "threads": 4,
            "sides": dict.fromkeys(("ours", "theirs"), f"node-{number}"),
        }  # fmt: skip
    output = capsys.readouterr()
    assert "measured on node-2" in output.out and "xlnet: 4 threads" in output.err


def test_on_this_machine_they_share_the_cores(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(bench, "tasks_on", lambda on, **more: asked.append(more) or Nodes())
    monkeypatch.setattr(bench, "cores", lambda: 8)
    for where, threads, expected in (
        (Comparisons(workers=2), None, 4),  # those of the calls
        (Comparisons(workers=2), 3, 3),
        (Comparisons(), None, 8),
    ):
        found = where.measure(compare, ["bert"], lambda result: None, threads=threads, reads=[])
        assert found["name"] == "bert" and found["threads"] == expected
    assert [(more["workers"], more["need"].cores) for more in asked] == [(2, 4), (2, 4)]
    assert tasks_on("local", need=Need(cores=None)).cores == 1


def test_several_are_answered_by_their_names(place, monkeypatch, capsys) -> None:  # noqa: F811
    monkeypatch.chdir(place)
    small = ["--layers", 1, "--width", 64, "--turns", 1, "--threads", 1]
    train = ["bench", "train", "--corpus", "corpus", *small, "--rows", 2, "--length", 16, "--steps", 1]
    alone = answer(capsys, *train, "bert")[0]
    several = answer(capsys, *train, "bert", "electra", "--workers", 2)[0]["measurements"]
    assert list(several) == ["bert", "electra"] and several["bert"].keys() == alone.keys()
    assert several["electra"]["case"] == "electra" and several["electra"]["node"] == alone["node"] == platform.node()
    predict = ["bench", "predict", "--corpus", "corpus", *small, "--texts", 2]
    assert list(answer(capsys, *predict, "bert", "albert")[0]["measurements"]) == ["bert", "albert"]
    assert "bert: is given twice; name each once" in messages(capsys, 2, *predict, "bert", "bert")
    assert "no benchmark of 'brt'" in messages(capsys, 2, *predict, "bert", "brt", "--on", "ray=10.0.0.1:1")
    assert "--workers is for --on local" in messages(capsys, 2, *predict, "bert", "--on", "ray", "--workers", 2)
