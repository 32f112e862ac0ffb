"""Frozen dataclasses to and from plain dictionaries, JSON and YAML, checked by pydantic at the border.

A choice among options is a union of dataclasses, each with a literal field ``kind``; it is written as a dictionary with
that field. An unknown key is an error that names the nearest known key.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from encoderlab.errors import ConfigError, nearest

T = TypeVar("T")


def to_dict(value: Any) -> Any:
    """Plain data (dict, list, number, string, None) of a configuration."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return value


def from_dict(kind: type[T], data: Any, *, where: str = "configuration") -> T:
    """The configuration of type ``kind`` that ``data`` describes.

    Raises:
        ConfigError: an unknown key, a missing key, or a value of the wrong type; the message names the path.
    """
    _check_keys(kind, data, where)
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"] if not str(part)[:1].isupper())  # no names of classes
        message = first["msg"].removeprefix("Value error, ")
        place = f"{where}: {path}: " if path else f"{where}: "
        shown = "" if isinstance(first["input"], (dict, list)) else f" (got {first['input']!r})"
        raise ConfigError(f"{place}{message}{shown}") from None


def override(config: T, assignments: dict[str, Any], *, where: str = "--set") -> T:
    """A copy of ``config`` with the fields at dotted paths replaced: ``{"optim.lr": "3e-4"}``.

    A value that is a string is read as YAML, so ``"3e-4"``, ``"true"``, ``"[1, 2]"`` and ``"{kind: absolute}"`` mean
    what they say. An entry of a list is named by its number: ``{"phases.0.rows": 32}``.
    """
    data = to_dict(config)
    for path, value in assignments.items():
        node, parts = data, path.split(".")
        for depth, part in enumerate(parts[:-1]):
            place = _place(node, part, ".".join(parts[: depth + 1]), where)
            if node[place] is None:
                node[place] = {}
            node = node[place]
        node[_place(node, parts[-1], path, where)] = parse_value(value) if isinstance(value, str) else value
    return from_dict(type(config), data, where=where)


def parse_value(text: str) -> Any:
    """The YAML value of ``text``; exponents without a dot (``3e-4``) are numbers here, unlike in YAML 1.1."""
    try:
        return float(text) if "e" in text.lower() and not text.lower().startswith("0x") else yaml.safe_load(text)
    except ValueError:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def read_file(path: Path) -> dict[str, Any]:
    """The dictionary in a JSON or YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing .yaml or .json file") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not valid {path.suffix or 'YAML'}: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {type(data).__name__}, expected a mapping of keys to values")
    return data


@functools.cache
def _adapter(kind: type) -> TypeAdapter:
    return TypeAdapter(with_config(ConfigDict(extra="forbid"))(kind) if dataclasses.is_dataclass(kind) else kind)


def _place(node: Any, part: str, path: str, where: str) -> str | int:
    """The key of ``part`` in a mapping or its index in a list; a choice that is not made yet ({}) takes any key."""
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        return int(part)
    if not isinstance(node, dict) or (part not in node and node):
        _unknown(path, node, where)
    return part


def _unknown(path: str, node: Any, where: str) -> typing.NoReturn:
    known = (
        list(node) if isinstance(node, dict) else [str(i) for i in range(len(node))] if isinstance(node, list) else []
    )
    raise ConfigError(f"{where}: unknown key {path!r}{nearest(path.rsplit('.', 1)[-1], known) if known else ''}")


def _check_keys(kind: Any, data: Any, where: str, path: str = "") -> None:
    """Refuse unknown keys before pydantic sees them, so that the message can name the nearest key of the right option."""
    if not isinstance(data, dict):
        return
    option = _option(kind, data)
    if option is None:
        return
    hints = _hints(option)
    for key, value in data.items():
        if key not in hints:
            raise ConfigError(f"{where}: unknown key {path + key!r}{nearest(key, hints)}")
        _check_keys(hints[key], value, where, f"{path}{key}.")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _option(kind: Any, data: dict) -> type | None:
    """The dataclass that ``data`` is meant for: ``kind`` itself, or the member of a union with the same ``kind`` field."""
    if dataclasses.is_dataclass(kind):
        return typing.cast(type, kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType, typing.Annotated):
        options = [part for part in typing.get_args(kind) if dataclasses.is_dataclass(part)]
        named = [part for part in options if data.get("kind") == getattr(part, "kind", None)]
        if named or len(options) == 1:
            return typing.cast(type, (named or options)[0])
    return None
