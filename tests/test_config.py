"""Configurations to plain data and back, overrides by path, and what is refused with which words."""

from __future__ import annotations

import json
import re
import typing
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from encoderlab.config import Bounded, Count, Rate, _has_bounds, from_dict, override, parse_value, read_file, to_dict
from encoderlab.errors import ConfigError
from encoderlab.study.file import Study
from encoderlab.tasks.runs.finetune import FinetuneRecipe
from encoderlab.train.recipe import Recipe, Training
from encoderlab.train.schedule import Polynomial


@dataclass(frozen=True, kw_only=True)
class Circle:
    kind: Literal["circle"] = "circle"
    radius: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Square:
    kind: Literal["square"] = "square"
    side: int = 1
    corners: tuple[int, ...] = ()


Shape = Circle | Square


@dataclass(frozen=True, kw_only=True)
class Pen:
    """Its ``kind`` is a field like any other: there is no choice of pens."""

    kind: Literal["ink", "lead"] = "ink"
    width: float | None = 0.5


@dataclass(frozen=True, kw_only=True)
class Drawing(Bounded):
    title: str
    note: str | None = None
    pages: Count = 1
    colour: Literal["black", "white"] = "black"
    shown: bool = True
    shape: Shape = Circle()
    hole: Shape | None = None
    pen: Pen | None = None
    layers: tuple[Shape, ...] = ()
    options: tuple[tuple[int, float], ...] = ()
    size: Annotated[float, Field(gt=0, le=99_999)] | None = 2.5
    margins: tuple[Rate, ...] = ()


numbers = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-(2**63) + 1, 2**63 - 1)
shapes = st.builds(Circle, radius=numbers) | st.builds(
    Square, side=st.integers(-9, 9), corners=st.lists(whole, max_size=3).map(tuple)
)
drawings = st.builds(
    Drawing,
    title=st.text(max_size=8),
    note=st.none() | st.just("2024"),
    pages=st.integers(1, 10**9),
    colour=st.sampled_from(["black", "white"]),
    shown=st.booleans(),
    shape=shapes,
    hole=st.none() | shapes,
    pen=st.none() | st.builds(Pen, kind=st.sampled_from(["ink", "lead"]), width=st.none() | numbers),
    layers=st.lists(shapes, max_size=3).map(tuple),
    options=st.lists(st.tuples(whole, numbers), max_size=2).map(tuple),
)


@given(drawings)
def test_round_trips(drawing: Drawing) -> None:
    data = to_dict(drawing)
    assert from_dict(Drawing, data) == drawing
    assert from_dict(Drawing, json.loads(json.dumps(data))) == drawing
    assert from_dict(Drawing, yaml.safe_load(yaml.safe_dump(data))) == drawing
    assert override(drawing, data) == drawing


@given(drawings, shapes)
def test_a_path_changes_one_field(drawing: Drawing, shape: Shape) -> None:
    changed = override(drawing, {"shape": to_dict(shape), "pages": "7"})
    assert changed.shape == shape and changed.pages == 7
    assert override(changed, {"shape": to_dict(drawing.shape), "pages": drawing.pages}) == drawing


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("010", "010"),  # eight in YAML 1.1; a field that is a number reads ten
        ("no", "no"),  # false in YAML 1.1
        ("2026-01-01", "2026-01-01"),
        ("1E6", 1e6),
        ("-2e3", -2000.0),
        ("0x1e", 30),
        ("12", 12),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("{kind: circle}", {"kind": "circle"}),
        ("eel", "eel"),
        ("wiki: a: b", "wiki: a: b"),
        ("", None),
    ],
)
def test_values_of_the_command_line(text: str, value: Any) -> None:
    assert parse_value(text) == value and type(parse_value(text)) is type(value)


def test_text_stays_text() -> None:
    drawing = override(Drawing(title="a"), {"title": "2024", "note": "1e3"})
    assert (drawing.title, drawing.note) == ("2024", "1e3")
    assert override(drawing, {"note": "null"}).note is None
    assert override(drawing, {"title": ""}).title == ""


@dataclass(frozen=True)
class Blob:
    """An option without a kind."""

    size: float


def test_one_option_may_have_no_kind() -> None:
    assert from_dict(Circle | Blob, {"size": 2.0}) == Blob(size=2.0)  # type: ignore[arg-type]
    assert from_dict(Circle | Blob, {"kind": "circle"}) == Circle()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown kind 'blob'"):
        from_dict(Circle | Blob, {"kind": "blob", "size": 2.0})  # type: ignore[arg-type]


def test_a_choice_is_made_by_its_kind() -> None:
    assert from_dict(Shape, {"kind": "square", "side": 3}) == Square(side=3)  # type: ignore[arg-type]
    drawing = Drawing(title="a", layers=(Circle(), Square()))
    assert override(drawing, {"shape.kind": "square"}).shape == Square()
    assert override(drawing, {"shape.side": "4", "shape.kind": "square"}).shape == Square(side=4), "whatever the order"
    assert override(drawing, {"hole.kind": "circle", "hole.radius": "2e-1"}).hole == Circle(radius=0.2)
    assert override(drawing, {"layers.1.side": 5}).layers == (Circle(), Square(side=5))
    assert override(drawing, {"pen.width": "1"}).pen == Pen(width=1.0), "one option needs no kind"
    thin = override(drawing, {"pen.width": 0.1})
    assert override(thin, {"pen.kind": "lead"}).pen == Pen(kind="lead", width=0.1), "no choice: the width stays"


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ({"titel": "x"}, "--set: unknown key 'titel'; did you mean 'title'?"),
        ({"shape.radios": 1}, "--set: unknown key 'shape.radios'; did you mean 'shape.radius'?"),
        ({"radius": 1}, "--set: unknown key 'radius'; did you mean 'shape.radius'?"),
        ({"shape.side": 1}, "--set: unknown key 'shape.side'; choose from: kind, radius"),
        ({"shape.kind": "cirle"}, "--set: shape has unknown kind 'cirle'; did you mean 'circle'?"),
        ({"shape.kind": "[circle]"}, "--set: shape has unknown kind ['circle']; did you mean 'circle'?"),
        ({"shape": {"kind": {"a": 1}}, "shape.radius": 1}, "--set: shape has unknown kind {'a': 1}; choose from: "),
        ({"hole.radius": 1}, "--set: hole names no kind; choose from: circle, square"),
        (
            {"layers": [{"kind": "circle", "radios": 1}]},
            "unknown key 'layers.0.radios'; did you mean 'layers.0.radius'?",
        ),
        ({"layers.0.radius": 1}, "--set: unknown key 'layers.0'; it has no fields"),
        ({"layers": [], "layers.²": 1}, "--set: unknown key 'layers.²'; it has no fields"),
        ({"pages.first": 1}, "--set: unknown key 'pages.first'; it has no fields"),
        ({"pages": "many"}, "--set: pages: expected a whole number"),
        ({"pages": "2.5"}, "(got 2.5)"),
        ({"pages": "0"}, "--set: pages is 0; give at least 1"),
        ({"size": "0"}, "--set: size is 0; give more than 0, such as 2.5, or null"),
        ({"size": ".inf"}, "--set: size is inf; give at most 99,999, such as 2.5, or null"),
        ({"margins": "[0, 1]"}, "--set: margins.1 is 1; give less than 1"),
        ({"pages": "true"}, "--set: pages: expected a number (got True)"),
        ({"size": "false"}, "--set: size: expected a number, or null (got False)"),
        ({"options": "[[1, false]]"}, "--set: options.0.1: expected a number (got False)"),
        ({"pages": "1:30"}, "--set: pages: expected a whole number (got '1:30')"),
        ({"options": "[[1, 2, 3]]"}, "--set: options.0 is [1, 2, 3]; give at most 2 entries"),
        ({"colour": "red"}, "--set: colour: expected 'black' or 'white' (got 'red')"),
        ({"shape.radius": "wide"}, "--set: shape.radius: expected a number"),
        ({"shape": "circle"}, "--set: shape: expected a mapping of fields to values (got 'circle')"),
        ({"shape": "{kind: square, corners: [1, x]}"}, "--set: shape.corners.1: expected a whole number"),
        ({"pen.width": "wide"}, "--set: pen.width: expected a number"),
        ({"options": "[[1, x]]"}, "--set: options.0.1: expected a number"),
        ({"shape.kind.deep": "x"}, "--set: unknown key 'shape.kind.deep'; it has no fields"),
    ],
)
def test_refused_in_one_line(assignments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(Drawing(title="a"), assignments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Circle" not in str(caught.value) and "Square" not in str(caught.value), "no names of classes"


def test_a_field_that_lies_deeper_is_named_by_its_paths() -> None:
    drawing = Drawing(title="a", pen=Pen(), layers=(Square(), Circle()))
    for key, paths in {"radius": "'shape.radius' or 'layers.1.radius'", "width": "'pen.width'"}.items():
        with pytest.raises(ConfigError, match=rf"^--set: unknown key '{key}'; did you mean {paths}\?$"):
            override(drawing, {key: "2"})


def test_the_place_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^a.json: key 'title' is missing$"):
        from_dict(Drawing, {"pages": 2}, where="a.json")
    with pytest.raises(ConfigError, match="^a.json: expected a mapping of fields to values"):
        from_dict(Drawing, 3, where="a.json")
    for wrong, remedy in ((3, "; put it in quotes"), (False, "; put it in quotes"), (None, ""), ([], "")):
        got = re.escape(f"(got {wrong!r})")
        with pytest.raises(ConfigError, match=rf"^a.json: title: expected text {got}{remedy}$"):
            from_dict(Drawing, {"title": wrong}, where="a.json")
    with pytest.raises(ConfigError, match="^environment: unknown key 'shape.radios'"):
        override(Drawing(title="a"), {"shape.radios": "1"}, where="environment")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "- 1", "contains a list, expected a mapping"),
        ("a.yaml", "a text", "contains text, expected a mapping"),
        ("a.yaml", "7", "contains a single value, expected a mapping"),
        ("a.yaml", "# seed: 2", "contains nothing, expected a mapping"),
        ("a.yaml", "a: [", "not valid YAML, line 1: expected the node content, but found '<stream end>'; correct it$"),
        ("a.yaml", "a: 1\nb: c: d", "not valid YAML, line 2: mapping values are not allowed here; correct it$"),
        ("a.json", '{"a": 1,\n"b" 2}', "not valid JSON, line 2: Expecting ':' delimiter; correct it$"),
        ("a.yaml", "a: 1\nb: 2\na: 3", "not valid YAML, line 1: key 'a' appears 2 times; correct it$"),
        ("a.yaml", "a: {b: 1, 'b': 2}", "key 'b' appears 2 times"),
        ("a.json", '{"a": {"b": 1, "b": 1}}', "not valid JSON: key 'b' appears 2 times; correct it$"),
        ("a.yaml", "a: &a [*a]", "not valid YAML: values are nested more than 100 deep, or inside themselves"),
        ("a.yaml", "a: " + "[" * 3000, "is nested too deeply"),
        ("a.json", '{"a": ' + "[" * 100_000, "is nested too deeply|not valid JSON"),
        ("a.json", '{"a": ' + "[" * 101 + "]" * 101 + "}", "values are nested more than 100 deep"),
        ("a.json", '{"a": "' + "x" * (1 << 20) + '"}', "is longer than 1 MB"),
        ("a.json", "\udcff", "byte 0 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    with pytest.raises(ConfigError, match="give an existing .yaml or .json file"):
        read_file(path)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        read_file(path)
    path.write_text("{}" if path.suffix == ".json" else "a: {b: 1.5}")
    assert read_file(path) in ({}, {"a": {"b": 1.5}})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_file(path) in ({}, {"a": {"b": 1.5}})


def _bomb(inner: str, outer: str) -> str:
    """Ten levels, each of which names the one before ten times: 10^10 parts."""
    levels = "".join(f"l{n}: &l{n} " + outer % ", ".join([f"*l{n - 1}"] * 10) + "\n" for n in range(1, 11))
    return f"l0: &l0 {inner}\n{levels}"


@pytest.mark.parametrize("text", [_bomb("x", "[%s]"), _bomb("[x]", "{a: [%s]}")])
def test_aliases_that_multiply_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="more than 100,000 values, repeated ones included"):
        read_file(path)


def test_merged_keys_give_way_and_do_not_multiply(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text("base: &base {lr: 1, steps: 2}\noptim: {<<: *base, lr: 3}\n")
    assert read_file(path)["optim"] == {"lr": 3, "steps": 2}
    path.write_text(_bomb("{x: 1}", "{<<: [%s]}"))
    assert read_file(path)["l10"] == {"x": 1}


def test_numbers_beyond_64_bits_are_refused() -> None:
    for text in (str(2**63), str(-(2**70)), "1" * 4000):
        with pytest.raises(ConfigError, match=r"--set: pages \d+.*does not fit 64 bits|pages -\d+ does not fit"):
            override(Drawing(title="a"), {"pages": text})


def test_another_kind_says_which_namesakes_it_resets(caplog: pytest.LogCaptureFixture) -> None:
    training = Training(schedule=Polynomial(warmup=0.2))
    override(training, {"schedule.kind": "cosine"})
    assert "--set: schedule.kind changes schedule.warmup from 0.2 to 0.0" in caplog.text
    caplog.clear()
    override(training, {"schedule.kind": "cosine", "schedule.warmup": 0.2})
    assert not caplog.text


@dataclass(frozen=True, kw_only=True)
class Sketch:
    kind: Literal["sketch"] = "sketch"
    pen: Pen = Pen(kind="lead", width=0.1)
    shape: Shape = Square()


@dataclass(frozen=True, kw_only=True)
class Plan:
    kind: Literal["plan"] = "plan"
    pen: Pen = Pen(width=0.3)
    shape: Shape = Circle()


@dataclass(frozen=True, kw_only=True)
class Sheet:
    content: Sketch | Plan = Plan()


def test_another_kind_has_its_own_defaults_also_deeper(caplog: pytest.LogCaptureFixture) -> None:
    changed = override(Sheet(), {"content.kind": "sketch", "content.pen.width": 0.2})
    assert changed.content == Sketch(pen=Pen(kind="lead", width=0.2))
    assert [record.getMessage() for record in caplog.records] == [
        "--set: content.kind changes content.pen.kind from ink to lead",
        "--set: content.kind changes content.shape.kind from circle to square",
    ]


def test_bounds_are_checked_in_python_too() -> None:
    for wrong in ({"pages": 0}, {"size": 0.0}, {"margins": (0.5, -1)}):
        with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}.* is .*; give "):
            Drawing(title="a", **wrong)
    assert Drawing(title="a", size=None, margins=(0, 0.9)).pages == 1


def reached(hint: Any, seen: set[type]) -> set[type]:
    """The dataclasses that a value of type ``hint`` may hold."""
    if is_dataclass(hint) and hint not in seen:
        seen.add(hint)
        for inner in typing.get_type_hints(hint).values():
            reached(inner, seen)
    for inner in typing.get_args(hint):
        reached(inner, seen)
    return seen


def test_every_dataclass_of_a_recipe_with_bounds_checks_them() -> None:
    for kind in (parts := reached(tuple[Recipe, FinetuneRecipe, Study], set())):
        bounds = any(map(_has_bounds, typing.get_type_hints(kind, include_extras=True).values()))
        assert issubclass(kind, Bounded) or not bounds, kind
    assert len(parts) > 50
