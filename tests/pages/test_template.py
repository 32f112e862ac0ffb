"""Templates: every value is escaped, an unknown name is an error, sections list themselves."""

from __future__ import annotations

import itertools
import re

import pytest
from jinja2 import UndefinedError
from markupsafe import escape

from encoderlab.pages.charts import Point, Series, chart
from encoderlab.pages.template import render

HOSTILE = '"><img src=x onerror=alert(1)></script>'


def test_values_are_escaped_in_text_attributes_and_data() -> None:
    page = render("inspect.html", data={"text": HOSTILE}, title=HOSTILE, probes=())
    assert HOSTILE not in page and str(escape(HOSTILE)) in page
    assert page.count("</script>") == 3, "the data ends no script"


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="title"):
        render("inspect.html", data={}, probes=())


def test_the_navigation_names_every_section() -> None:
    page = render("inspect.html", data={}, title="one", probes=())
    anchors = re.findall(r'<section id="(\w+)">', page)
    assert anchors == re.findall(r'<a href="#(\w+)">', page)[1:] == ["reads", "all", "numbers", "near"]


def test_a_chart_without_points_is_none_and_one_of_equal_points_is_drawn() -> None:
    assert chart([Series(name="a", colour=0, points=[])], x="x", y="y") is None
    drawn = chart([Series(name="a", colour=0, points=[Point(1.0, 2.0, 2.0, 2.0)], line=True)], x="x", y="y")
    assert drawn is not None and [one["kind"] for one in drawn.drawings] == ["wide", "narrow"]
    assert all(0 < x < one["width"] for one in drawn.drawings for x, _, _ in one["shapes"][0]["marks"])


def test_twenty_series_have_colours_of_their_own() -> None:
    series = [Series(name=f"arm {n}", colour=n, points=[Point(1.0, n, n, n)], line=True) for n in range(20)]
    drawn = chart(series, x="x", y="y")
    style = render("inspect.html", data={}, title="one", probes=())
    assert drawn is not None and len({colour for _, colour in drawn.keys}) == 20
    assert all(f"{colour[4:-1]}: " in style for _, colour in drawn.keys)


def test_ticks_have_their_own_values_and_an_interval_may_reach_below_a_logarithm() -> None:
    points = [Point(0.0, 4.7, -6.8, 16.2), Point(1.6e13, 2.0, 1.9, 2.1)]
    drawn = chart([Series(name="a", colour=0, points=points)], x="FLOPs", y="loss", y_log=True)
    assert drawn is not None
    values = [float(label) for _, label in drawn.drawings[0]["x_ticks"]]
    steps = [b - a for a, b in itertools.pairwise(values)]
    assert len(steps) > 1 and steps == pytest.approx([steps[0]] * len(steps))
