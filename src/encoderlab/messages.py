"""Where a function sends its lines of progress and its remarks."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
Progress = Callable[[str, int, int | None], None]  # the stage, the amount done, and the total if known


def silent(line: str) -> None:
    """Show nothing."""
