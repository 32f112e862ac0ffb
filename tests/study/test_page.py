"""The page of a study."""

from __future__ import annotations

from typing import Any


def test_the_page_is_whole(whole: tuple[dict[str, Any], str, list[str]]) -> None:
    _, page, _ = whole
    assert "Comparisons in which the claim holds: 0; does not hold: 0; cannot be told at this budget: 1." in page
    assert "bits per byte in bits" in page and "Seeds of every arm: 1, 2." in page
    for text in ("Quality against cost", "Learning curves", "What was tuned", "What is equal", "many better than few"):
        assert text in page
    assert "<svg" in page and "nan" not in page.lower().replace("nancy", "")
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
