"""Requests that are refused."""

from __future__ import annotations


class Refused(Exception):
    """A request that cannot be answered; the message says what to change."""
