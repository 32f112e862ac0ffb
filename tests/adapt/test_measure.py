"""What is measured before and after."""

from __future__ import annotations

import numpy as np

from encoderlab.adapt import measure


def test_held_out_text_without_spaces_is_cut_too() -> None:
    lines = ["\u6cd5\u9662" * 280, "the river " * 90 + "https://" + "a" * 900, "short"]
    found = measure.pieces(lines)
    assert found and max(len(piece.encode()) for piece in found) <= measure.BYTES
    assert any("\u6cd5" in piece for piece in found) and "short" in found


def test_the_interval_of_few_pieces_is_wide() -> None:
    """Two pieces tell little: Student's t is 12.7 there."""
    before, after = (
        {"bits": {"pll_word": bits}, "bytes": [10, 10], "tokens": 6, "unknown": 0.0} for bits in ([20, 30], [19, 27])
    )
    found = measure.gain(before, after)
    assert (found["before"], found["after"]) == (2.5, 2.3) and abs(found["half"] - 12.706 * 0.1) < 1e-3
    one = {name: value[:1] if name == "bytes" else value for name, value in before.items()} | {
        "bits": {"pll_word": [20]}
    }
    assert measure.gain(one, one)["half"] == np.inf
