"""Numbers and times in readable units."""

from __future__ import annotations


def quantity(number: float, space: str = " ") -> str:
    """Three digits and a unit: ``950``, ``20.4 k``, ``4.9 M``."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:  # numbers that three digits would round up to it
            return f"{number / size:.3g}{space}{unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """``45 s``, ``4 min 5 s``, ``2 h 10 min``, ``3.5 days``."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def clock(seconds: float) -> str:
    """Remaining time: ``02:03``, ``1:02:03`` or ``2d 3:15``; ``?`` if unknown."""
    if seconds != seconds or seconds > 1e9:
        return "?"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}:{minute:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"
