"""Convert frozen dataclasses to and from plain dictionaries, JSON and YAML; pydantic checks the input.

A choice among options is a union of dataclasses, each with a literal field ``kind``; it is written as a dictionary with
that field. An unknown key or kind is an error that gives the nearest known one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import re
import reprlib
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from encoderlab.errors import ConfigError, nearest

T = TypeVar("T")

# Types of numbers in settings; pydantic refuses values out of bounds.
Count = Annotated[int, Field(ge=1)]
Short = Annotated[int, Field(ge=1, le=1024)]  # of a run of words, or of a window over tokens
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, lt=1)]  # of dropout, or of decay towards old values
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]
LIMITS = {  # pydantic's types of errors: what to give instead
    "greater_than": "more than {gt:,}",
    "greater_than_equal": "at least {ge:,}",
    "less_than": "less than {lt:,}",
    "less_than_equal": "at most {le:,}",
    "finite_number": "a finite number",
    "too_short": "at least {min_length} entry",
    "too_long": "at most {max_length} entries",
}
EXPECTED = {  # first word of pydantic's types of errors: what a value should be
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of names to values",
    "dataclass": "a mapping of fields to values",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "literal": "{expected}",
}

LARGEST_FILE = 1 << 20  # bytes in a file of settings
MOST_VALUES, DEEPEST = 100_000, 100  # in one file, with repeated parts counted each time
log = logging.getLogger(__name__)


class Bounded:
    """Base of dataclasses with fields of bounded types, such as :data:`Count`, which are always checked.

    Raises:
        ConfigError: a value is out of bounds; the message names the field and what to give.
    """

    def __post_init__(self) -> None:
        option: Any = type(self)
        for name, hint in _bounded_fields(option).items():
            _validated(hint, getattr(self, name), "", name, inside=option)


def to_dict(value: Any) -> Any:
    """A configuration as plain data (dict, list, number, string, None)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return value


def from_dict(kind: type[T], data: Any, *, where: str = "configuration") -> T:
    """Read plain data as a configuration of type ``kind``, a dataclass or a union of dataclasses.

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type; the message names the path.
    """
    return _validated(kind, _read(kind, data, where), where, "")


def _read(hint: Any, data: Any, where: str, path: str = "") -> Any:
    """``data`` with dictionaries converted to the dataclasses that ``hint`` names, innermost first.

    So pydantic sees one option of a union, and its message is about that option.
    """
    if isinstance(data, (list, tuple)):
        return [_read(_entry_hint(hint, i), item, where, f"{path}.{i}") for i, item in enumerate(data)]
    if isinstance(data, int) and data.bit_length() > 63:
        raise ConfigError(f"{where}: {path[1:]} {reprlib.repr(data)} does not fit 64 bits; give a smaller number")
    kinds = _alternatives(hint)
    if isinstance(data, bool) and bool not in kinds and not {int, float}.isdisjoint(kinds):  # pydantic takes 0 or 1
        null = ", or null" if types.NoneType in kinds else ""
        raise ConfigError(f"{where}: {path[1:]}: expected a number{null} (got {data})")
    options = _options(hint)
    if not isinstance(data, dict) or not options:
        return data
    option = _chosen(options, data, where, path)
    hints, values = _field_hints(option), {}
    for key, value in data.items():
        inside = f"{path}.{key}"
        if key not in hints:
            known = _elsewhere(str(key), data, path) or nearest(str(key), hints, inside=f"{path}."[1:])
            raise ConfigError(f"{where}: unknown key {inside[1:]!r}{known}")
        values[key] = _read(hints[key], value, where, inside)
    return _validated(option, values, where, path)


def _validated(hint: Any, value: Any, where: str, path: str, inside: Any = None) -> Any:
    """``value`` checked by pydantic; its first error becomes a ConfigError with the path of the field.

    ``inside``: the dataclass whose field is checked; None if ``value`` is a whole dataclass.
    """
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        # The path: field names and list indices, without the names of union members.
        place = [str(part) for i, part in enumerate(first["loc"]) if i == 0 or isinstance(part, int)]
        name = path if inside else "".join(place[:1])
        path = ".".join([path, *place]).strip(".")
        if first["type"] == "missing":
            raise ConfigError(f"{where}: key {path!r} is missing") from None
        prefix = ": ".join(part for part in (where, path) if part)
        if first["type"] in LIMITS:
            limit = LIMITS[first["type"]].format(**first.get("ctx", {})).removesuffix(".0")
            others = _other_values(inside or hint, name)
            raise ConfigError(f"{prefix} is {first['input']}; give {limit}{others}") from None
        message = first["msg"].removeprefix("Value error, ")
        if expected := EXPECTED.get(first["type"].partition("_")[0]):
            message = f"expected {expected}".format(**first.get("ctx", {}))
        unquoted = expected == "text" and not isinstance(first["input"], (list, tuple, dict, types.NoneType))
        remedy = "; put it in quotes" if unquoted else ""
        raise ConfigError(f"{prefix}: {message} (got {reprlib.repr(first['input'])}){remedy}") from None


def _other_values(option: Any, name: str) -> str:
    """A clause with values that a field of the dataclass ``option`` may have: ``, such as 0.1, or null``."""
    default = next((field.default for field in dataclasses.fields(option) if field.name == name), None)
    usual = f", such as {default:g}" if isinstance(default, float) and default else ""
    return usual + (", or null" if types.NoneType in _alternatives(_field_hints(option)[name]) else "")


def _chosen(options: dict[str | None, Any], data: dict, where: str, path: str) -> Any:
    """The option that ``data`` names by its ``kind``; a single option needs no ``kind``."""
    if len(options) == 1:
        return next(iter(options.values()))
    kind, known = data.get("kind"), [str(name) for name in options]
    if (option := _named(options, kind)) is not None:
        return option
    place = path.removeprefix(".") or "the configuration"
    if kind is None:
        raise ConfigError(f"{where}: {place} names no kind{nearest('', known)}")
    raise ConfigError(f"{where}: {place} has unknown kind {kind!r}{nearest(str(kind), known)}")


def _elsewhere(key: str, data: dict, path: str) -> str:
    """A clause that lists fields called ``key`` deeper in ``data``, the shallowest first; empty if there is none."""
    others = {name: value for name, value in data.items() if name != key}
    places = [place for place in _places(others, path) if place.endswith(f".{key}")]
    places.sort(key=lambda place: place.count("."))
    named = " or ".join(repr(place[1:]) for place in places[:3])
    return f"; did you mean {named}?" if places else ""


def _places(data: Any, path: str) -> Iterator[str]:
    """The paths of everything below ``path`` in plain data."""
    if isinstance(data, list):
        data = dict(enumerate(data))
    for name, value in data.items() if isinstance(data, dict) else ():
        yield f"{path}.{name}"
        yield from _places(value, f"{path}.{name}")


def override(config: T, assignments: Mapping[str, Any], *, where: str = "--set") -> T:
    """A copy of ``config`` with the fields at dotted paths replaced: ``{"optim.lr": "3e-4"}``.

    A string is read as YAML, so ``"3e-4"`` is a number, ``"true"`` a boolean, ``"[1, 2]"`` a list and ``"{kind:
    absolute}"`` a mapping; in a text field it stays text. A number names an entry of a list:
    ``{"phases.0.rows": 32}``. A new ``kind`` is set first, with the defaults of that option; fields of the old option
    are dropped. An empty mapping leaves an existing mapping unchanged.

    Raises:
        ConfigError: an unknown path, or an error of :func:`from_dict`.
    """
    data = to_dict(config)
    for path, value in sorted(assignments.items(), key=lambda item: _kinds_first(item[0])):
        *parents, last = path.split(".")
        node, hint = _walk(data, type(config), parents, where)
        place = _place(node, last, path, where)
        if isinstance(value, str):
            value = _meant(_hint_at(hint, node, place), value)
        if last == "kind" and len(_options(hint)) > 1 and node.get("kind") != value:
            defaults = _defaults(_named(_options(hint), value))
            for name, before, now in _changes(node, defaults, path.removesuffix("kind")):
                if not any(f"{other}.".startswith(f"{name}.") for other in assignments):
                    log.warning("%s: %s changes %s from %s to %s", where, path, name, before, now)
            node.clear()
            node.update(defaults)
        if value == {} and isinstance(node, dict) and isinstance(node.get(place), dict):
            continue
        node[place] = value
    return from_dict(type(config), data, where=where)


def value_at(config: Any, path: str, *, where: str) -> Any:
    """The value at a dotted path of ``config``, as :func:`override` reads paths; an empty mapping if there is none.

    Raises:
        ConfigError: the path leads into a value without fields.
    """
    return _walk(to_dict(config), type(config), path.split("."), where)[0]


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"optim": {"lr": 1}}`` as ``{"optim.lr": 1}``: a mapping sets only the fields that it names."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _kinds_first(path: str) -> tuple[bool, int]:
    """Sort key of assignments: kinds first, the outermost before others, then the rest in the given order."""
    is_kind = path == "kind" or path.endswith(".kind")
    return not is_kind, path.count(".") if is_kind else 0


def _walk(data: Any, hint: Any, parts: Sequence[str], where: str) -> tuple[Any, Any]:
    """The value at the path ``parts`` of ``data``, created if missing, and its type."""
    for depth, part in enumerate(parts, 1):
        place = _place(data, part, ".".join(parts[:depth]), where)
        if isinstance(data, dict) and data.get(place) is None:
            data[place] = {}
        data, hint = data[place], _hint_at(hint, data, place)
    return data, hint


def _place(node: Any, part: str, path: str, where: str) -> Any:
    """The key for ``part`` in a mapping, or its index in a list. Unknown keys of mappings are refused later."""
    if isinstance(node, dict):
        return part
    if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
        return int(part)
    known = [str(i) for i in range(len(node))] if isinstance(node, list) else []
    raise ConfigError(f"{where}: unknown key {path!r}{nearest(part, known) if known else '; it has no fields'}")


def _meant(hint: Any, text: str) -> Any:
    """The value of a command line's ``text`` in a field of type ``hint``; in a text field, 2024 stays text."""
    value, allowed = parse_value(text), set(_alternatives(hint))
    if allowed == {str} or (allowed == {str, types.NoneType} and value is not None):
        return text
    return value


def _defaults(option: Any) -> dict[str, Any]:
    """The defaults of an option's fields, as plain data; fields without default are left out."""
    fields = () if option is None else dataclasses.fields(option)
    return {field.name: to_dict(field.default) for field in fields if field.default is not dataclasses.MISSING}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], inside: str) -> Iterator[tuple[str, Any, Any]]:
    """Path, old and new value of each field that both have with different values; paths start with ``inside``."""
    for name, now in new.items():
        before = old.get(name, now)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _changes(before, now, f"{inside}{name}.")
        elif before != now:
            yield f"{inside}{name}", before, now


def parse_value(text: str) -> Any:
    """The YAML value of ``text``."""
    try:
        return _bounded(yaml.load(text, _Loader))
    except (yaml.YAMLError, ValueError, RecursionError):  # text that is not YAML stays text
        return text


def read_file(path: Path) -> dict[str, Any]:
    """The dictionary in a JSON or YAML file.

    Raises:
        ConfigError: the file cannot be read, has a key twice, is too large, or is not a mapping.
    """
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
        if len(raw) > LARGEST_FILE:
            raise ConfigError(f"{path}: is longer than {LARGEST_FILE >> 20} MB; give a file of settings")
        text = raw.decode("utf-8-sig")  # Windows editors write a byte order mark
        data = json.loads(text, object_pairs_hook=_unique) if kind == "JSON" else yaml.load(text, _Loader)
        data = _bounded(data)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing .yaml or .json file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply for a file of settings; correct it") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not valid {kind}{_problem(error)}; correct it") from None
    if not isinstance(data, dict):
        held = {type(None): "nothing", list: "a list", str: "text"}.get(type(data), "a single value")
        raise ConfigError(f"{path}: contains {held}, expected a mapping of keys to values")
    return data


class _Loader(yaml.SafeLoader):
    """YAML 1.2 whose keys are text, as those of JSON; a key that is repeated in a mapping is refused.

    The usual loader reads YAML 1.1, where ``3e-4`` is text, ``010`` eight, ``1:30`` ninety, ``no`` false and
    ``2026-01-01`` a date. It takes the last of repeated keys.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Insert the keys that ``<<`` refers to; the mapping's own keys take precedence."""
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag in _NOT_TEXT:
                key.tag = "tag:yaml.org,2002:str"
        named = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (times := named[key.tag, key.value]) > 1:
                problem = f"key {key.value!r} appears {times} times"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        super().flatten_mapping(node)
        last = {
            (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key): (key, v) for key, v in node.value
        }
        node.value = list(last.values())  # otherwise merges of merges would grow without bound


_Loader.yaml_implicit_resolvers = {}  # those below, in place of YAML 1.1's
_NOT_TEXT = {f"tag:yaml.org,2002:{tag}" for tag in ("null", "bool", "int", "float")}
for _tag, _pattern, _begin in (
    ("merge", "<<", "<"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_begin))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON mapping without repeated keys."""
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ValueError(f"key {key!r} appears {times} times")
    return dict(pairs)


def _bounded(data: Any) -> Any:
    """``data``, after a check of its size; YAML's aliases may repeat a part many times, or inside itself.

    Raises:
        ValueError: more than :data:`MOST_VALUES` values, or deeper than :data:`DEEPEST`.
    """
    waiting, count = [(data, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if depth > DEEPEST:
            raise ValueError(f"values are nested more than {DEEPEST} deep, or inside themselves")
        if count > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values, repeated ones included")
        if isinstance(value, (dict, list, tuple)):
            waiting += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]
    return data


def _problem(error: Exception) -> str:
    """Where and why JSON or YAML cannot be parsed: ``, line 3: mapping values are not allowed here``."""
    if isinstance(error, json.JSONDecodeError):
        return f", line {error.lineno}: {error.msg}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f", line {error.problem_mark.line + 1}: {error.problem}"
    return f": {' '.join(str(error).split())}"


# Type hints of a field, of an entry of a list, or of the whole configuration.


def _options(hint: Any) -> dict[str | None, Any]:
    """The dataclasses that ``hint`` allows, by their ``kind`` field."""
    return {getattr(part, "kind", None): part for part in _alternatives(hint) if dataclasses.is_dataclass(part)}


def _named(options: Mapping[str | None, Any], kind: Any) -> Any:
    """The option with that ``kind``, which may be any value; None if there is none. One option may have no kind."""
    return options.get(kind) if kind is None or isinstance(kind, str) else None


def _hint_at(hint: Any, data: Any, place: str | int) -> Any:
    """The type hint of the field or entry at ``place`` of ``data``, which has the hint ``hint``; Any if unknown."""
    if isinstance(place, int):
        return _entry_hint(hint, place)
    option = _option(hint, data)
    return Any if option is None else _field_hints(option).get(place, Any)


def _option(hint: Any, data: Any) -> Any:
    """The dataclass that ``data`` becomes; None if it is not known."""
    options = _options(hint)
    if len(options) == 1:
        return next(iter(options.values()))
    return _named(options, data.get("kind")) if isinstance(data, dict) else None


def _entry_hint(hint: Any, index: int) -> Any:
    """The hint of an entry of the list or tuple that ``hint`` allows; Any if it allows none."""
    for part in _alternatives(hint):
        if typing.get_origin(part) in (list, tuple):
            entries = typing.get_args(part)
            return entries[min(index, len(entries) - 1)] if entries[-1] is not ... else entries[0]
    return Any


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other hint is its own only member."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


@functools.cache
def _field_hints(option: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(option)
    return {field.name: hints[field.name] for field in dataclasses.fields(option)}


@functools.cache
def _bounded_fields(option: Any) -> dict[str, Any]:
    """The fields of a dataclass whose types have bounds, with these types."""
    hints = typing.get_type_hints(option, include_extras=True)
    names = (field.name for field in dataclasses.fields(option))
    return {name: hints[name] for name in names if _has_bounds(hints[name])}


def _has_bounds(hint: Any) -> bool:
    return typing.get_origin(hint) is Annotated or any(map(_has_bounds, typing.get_args(hint)))


@functools.cache
def _adapter(hint: Any) -> TypeAdapter:
    return TypeAdapter(hint)
