"""The commands of ``make benchmarks`` are commands, and the corpus that they run on can be built."""

from __future__ import annotations

import functools
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import cloze, results
from benchmarks.__main__ import CORPUS, tables
from encoderlab.cli import main
from encoderlab.commands import bench
from encoderlab.tasks.data import suites
from encoderlab.tasks.data.infer import task_of
from encoderlab.tasks.runs.published import PLAIN
from encoderlab.tasks.runs.trials import ResultRow
from tests.tasks.tiny import model

TABLES = tables("corpora/none")
ROOT = Path(benchmarks.__file__).parent
MODULES = [
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in ROOT.rglob("*.py") if path.stem[0] != "_"
]


@pytest.mark.parametrize("name", [*MODULES, "benchmarks.clients.__main__"])
def test_every_module_can_be_imported(name: str) -> None:
    """What it imports from the package is there; another library may be missing."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith(("encoderlab", "benchmarks", "tests")):
            raise
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize("table", TABLES)
def test_the_commands_of_a_table_are_commands(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for verb in {words[0] for words in TABLES[table]}:

        @functools.wraps(getattr(bench, verb))
        def record(*_: Any, verb: str = verb, **given: Any) -> dict[str, Any]:
            called.append(verb)
            return {}

        monkeypatch.setattr(bench, verb, record)
    for words in TABLES[table]:
        assert main(["bench", *words, "--json"]) == 0
    assert called == [words[0] for words in TABLES[table]]


def test_the_corpus_is_built(tmp_path: Path) -> None:
    assert main([*CORPUS, "--out", str(tmp_path / "corpus")]) == 0


def test_clozes_are_questions_about_their_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "cloze.json"
    story = (
        "In the spring of 1871 the young engineer Maria Holt left Bergen for the mines of the north. She took 14 men "
        "and two boats, and the journey along the coast lasted until 3 June 1871. At the harbour of Hammer the mayor "
        "was waiting with a letter from the king, who wanted the work to begin before the winter."
    )
    text.write_text(f"A title\n{story}\n\nShort.\n{story.replace('1871', '1902')}\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["cloze", str(text), str(out), "--questions", "5"])
    cloze.main()
    first = out.read_bytes()
    cloze.main()
    assert out.read_bytes() == first
    task, _ = task_of(out)
    examples = task.read([out], "train").examples
    assert len(examples) == 5 and len({example.id for example in examples}) == 5
    for paragraph in json.loads(first)["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            (answer,) = question["answers"]
            assert paragraph["context"][answer["answer_start"] :].startswith(answer["text"])
            assert question["question"][0].isupper() and question["question"].endswith("?")
    text.write_text("Short.\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        cloze.main()


def test_the_results_of_every_set_are_measured_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One set of each language; a second call reads what the first one measured."""
    model().save(tmp_path / "tiny")
    for part, count in (("train", 40), ("valid", 12)):
        lines = [json.dumps({"text": f"the {('red', 'blue')[i % 2]} cat {i}", "label": i % 2}) for i in range(count)]
        (tmp_path / f"colours.{part}.jsonl").write_text("\n".join(lines))
    place = ("colours.train.jsonl", "colours.valid.jsonl")
    monkeypatch.setattr(results, "SETS", {"en": {"colours": place}, "zh": {"colours_zh": place}})
    monkeypatch.setattr(results, "PLAIN", replace(PLAIN, recipe=replace(PLAIN.recipe, least_updates=1)))
    out, tiny = tmp_path / "results.md", str(tmp_path / "tiny")
    words = ["--english", tiny, "--chinese", tiny, "--data", str(tmp_path), "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr("sys.argv", ["results", *words, "--out", str(out), "--seeds", "2"])
    results.main()
    assert "step 15" in capsys.readouterr().err
    first = out.read_text(encoding="utf-8")
    for name in ("colours", "colours_zh"):
        for system in ("majority", "pretrained", "without pretraining"):
            assert f"| {name} | accuracy | {system} |" in first
    results.main()
    assert "step 15" not in capsys.readouterr().err and out.read_text(encoding="utf-8") == first


def test_the_sets_of_results_are_benchmarks() -> None:
    for name, place in {**results.SETS["en"], **results.SETS["zh"]}.items():
        assert isinstance(place, tuple) or suites.task(name)


def test_the_table_of_results_marks_failed_seeds() -> None:
    baseline = ResultRow(task="sst2", split="dev", metric="accuracy", system="majority", median=0.5, mean=0.5, best=0.5)
    ours = ResultRow(
        task="sst2", split="dev", metric="accuracy", system="pretrained", median=0.81, mean=0.8, best=0.9, sd=0.02,
        interval=(0.75, 0.85), n=2, failed=1,
    )  # fmt: skip
    assert results.table([baseline, ours]).splitlines()[2:] == [
        "| sst2 | accuracy | majority | 50.0 | 50.0 |  |  |",
        "| sst2 | accuracy | pretrained | 81.0 | 80.0 ± 5.0 | 2.0 | 2 (1 failed) |",
    ]
