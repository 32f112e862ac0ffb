"""``--json`` of every verb is as its schema says; ``docs/json.md`` is written from the types.

``python -m tests.commands.test_answers`` writes the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from encoderlab import cli
from encoderlab.commands.answers import ANSWERS, FailureAnswer, adapter, schema
from tests.commands.test_outputs import place  # noqa: F401 (a fixture)
from tests.terminal import answer

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
HEAD = """# What `--json` prints

One object on one line of standard output; everything else goes to standard error. `encoderlab VERB --json-schema`
prints its JSON schema. Keys that are not listed are never printed; numbers that are not finite are `null`. Written from
`commands/answers.py` by `python -m tests.commands.test_answers`.
"""


def name_of(kind: dict[str, Any]) -> str:
    """A type in a word or two."""
    if "anyOf" in kind:
        return " or ".join(dict.fromkeys(name_of(one) for one in kind["anyOf"]))
    if "$ref" in kind:
        return f"`{kind['$ref'].rsplit('/', 1)[-1]}`"
    if kind.get("type") == "array":
        return f"list of {name_of(kind['items'])}"
    if kind.get("type") == "object":
        inner = kind.get("additionalProperties")
        return f"object by name of {name_of(inner)}" if isinstance(inner, dict) else "object"
    return {"integer": "whole number", "boolean": "true or false"}.get(kind.get("type", ""), kind.get("type", "any"))


def fields(title: str, part: dict[str, Any]) -> str:
    """A table of the keys of an object."""
    lines = [f"`{title}`" + (f": {part['description']}" if "description" in part else ""), ""]
    lines += ["| key | type | |", "|---|---|---|"]
    for name, kind in part["properties"].items():
        absent = "" if name in part.get("required", ()) else "may be absent; "
        lines.append(f"| `{name}` | {name_of(kind)} | {absent}{kind.get('description', '')} |".replace("; |", " |"))
    return "\n".join(lines) + "\n"


def page() -> str:
    parts = [HEAD, "## Any verb that fails\n", fields("FailureAnswer", schema("score")["$defs"]["FailureAnswer"])]
    for verb in ANSWERS:
        known = {name: part for name, part in schema(verb)["$defs"].items() if name != "FailureAnswer"}
        main = [kind.__name__ for kind in ANSWERS[verb]]
        parts.append(f"## {verb}\n")
        parts += [fields(name, known[name]) for name in dict.fromkeys([*main, *known])]
    return "\n".join(parts)


def test_the_page_is_written_from_the_types() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.commands.test_answers"


def test_every_verb_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(ANSWERS) == [verb for verb in cli.VERBS if verb in ANSWERS] and set(ANSWERS) == set(cli.VERBS)
    for verb in ANSWERS:
        assert cli.main([*verb.split(), "--json-schema"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["title"] == f"encoderlab {verb} --json"
        names = {one["$ref"].rsplit("/", 1)[-1] for one in found["anyOf"]}
        assert names == {FailureAnswer.__name__, *(kind.__name__ for kind in ANSWERS[verb])}
    assert cli.main(["--json-schema"]) == 2


CALLS = [
    ["corpus", "build", "text.txt", "--out", "OUT", "--vocab-size", "40"],
    ["corpus", "build", "text.txt", "--out", "OUT", "--tokenizer", "corpus/tokenizer", "--num-shards", "2",
     "--shard-index", "0"],
    ["corpus", "merge", "part-0", "part-1", "--out", "OUT"],
    ["corpus", "inspect", "corpus"],
    ["pretrain", "bert-tiny", "--dry-run"],
    ["pretrain", "--list"],
    ["finetune", "reviews.csv", "--model", "run", "--out", "OUT", "--dry-run"],
    ["evaluate", "tuned", "reviews.csv"],
    ["score", "predictions.txt", "reviews.csv"],
    ["predict", "tuned", "a red cat"],
    ["predict", "tuned", "reviews.csv", "--out", "OUT", "--with", "text", "gold"],
    ["fill-mask", "run", "the [MASK] ran"],
    ["encode", "run", "the cat"],
    ["encode", "run", "--file", "lines.txt", "--out", "OUT"],
    ["convert", "run", "OUT"],
    ["describe", "bert-tiny"],
    ["describe", "--list"],
    ["doctor", "run"],
    ["minimal-pairs", "run", "pairs.txt"],
    ["minimal-pairs", "run", "pairs.txt", "--out", "OUT"],
    ["inspect", "run", "the cat", "--out", "OUT"],
    ["report", "run", "--out", "OUT"],
]  # fmt: skip


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_what_is_printed_is_as_the_schema_says(words, place, tmp_path, monkeypatch, capsys) -> None:  # noqa: F811
    monkeypatch.chdir(place)
    (tmp_path / "predictions.txt").write_text("red\nblue\n" * 20)
    out, given = str(tmp_path / "out"), str(tmp_path / "predictions.txt")
    answer(capsys, *(word.replace("OUT", out).replace("predictions.txt", given) for word in words))


def test_keys_that_are_not_listed_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "nowhere", "a", "--json"]) == 3
    failure = json.loads(capsys.readouterr().out)
    adapter("predict").validate_python(failure, strict=True)
    for wrong in ({"error": "x"}, failure | {"more": 1}, {"model": "x", "predictions": 1}):
        with pytest.raises(ValidationError):
            adapter("predict").validate_python(wrong, strict=True)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
