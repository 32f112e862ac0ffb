"""Templates filled in: the page of a run, of fine-tuning, of a study, of an inspection.

A page is one file that loads nothing: its style, its script and its data (one JSON object, at ``#data``) are inside.
Text, tables and most plots are HTML made by the template, so they survive mail previews and printing; scripts draw what
depends on the width of the window. Every value is escaped where it is shown, and an unknown name is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = "pages/templates"


def render(template: str, *, data: Mapping[str, Any], **values: Any) -> str:
    """The page of a template in :data:`TEMPLATES`, filled with ``values``.

    Args:
        data: plain data without numbers that are not finite, for the scripts and for readers who save it.
    """
    return _environment().get_template(template).render(data=data, contents=[], **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("encoderlab", TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters["script"] = _script
    environment.globals["source"] = _source
    return environment


def _source(name: str) -> Markup:
    """A style or a script of the package, unchanged."""
    return Markup((files("encoderlab") / TEMPLATES / name).read_text(encoding="utf-8"))


def _script(data: Any) -> Markup:
    """``data`` as JSON within a script element, escaped so that no text can end the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
