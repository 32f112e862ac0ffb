"""Where a function sends its lines of progress and its remarks."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Show nothing."""
