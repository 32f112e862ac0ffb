"""The numbers of a line of metrics."""

from __future__ import annotations

import math

from encoderlab.train.tally import summary


def test_where_nothing_was_predicted_there_is_no_loss() -> None:
    """It would look like a perfect one."""
    term = {"sum": 0.0, "count": 0.0, "weight": 1.0, "hits": 0.0}
    line = summary({"mlm": term}, {"mlm": 4.0})
    assert math.isnan(line["loss"]) and line["losses"] == {} and line["counts"] == {"mlm": 0}
    two = summary({"mlm": term | {"sum": 6.0, "count": 2.0}, "rtd": term | {"weight": 50.0}}, {"mlm": 4.0})
    assert two["loss"] == 3.0 and "bits_per_byte" in two
