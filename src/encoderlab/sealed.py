"""Records with a hash of themselves, which shows whether they have changed.

The hash is that of the record's JSON without white space and with sorted keys; :class:`Seal` describes other formats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from encoderlab.errors import DataError
from encoderlab.files import finite, write_json

CHECKSUM = "checksum"


class Damaged(DataError):
    """A file that has changed since it was written, or has another origin."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class Seal(NamedTuple):
    """How records are sealed: the key of the hash, and the separators of the JSON that is hashed."""

    key: str = CHECKSUM
    separators: tuple[str, str] = (",", ":")

    def digest(self, value: Any) -> str:
        """SHA-256 of plain data, independent of white space and of the order of keys."""
        text = json.dumps(finite(value), sort_keys=True, separators=self.separators)
        return hashlib.sha256(text.encode()).hexdigest()

    def sealed(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record with its hash."""
        return {**record, self.key: self.digest({key: value for key, value in record.items() if key != self.key})}

    def opened(self, record: Any) -> dict[str, Any]:
        """The record without its hash.

        Raises:
            ValueError: it has changed, or is no sealed record.
        """
        rest = dict(record) if isinstance(record, dict) else {}
        if rest.pop(self.key, None) != self.digest(rest):
            raise ValueError("damaged")
        return rest


RECORD = Seal()  # of corpora, studies and adaptations
digest = RECORD.digest


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write plain data as JSON, with its checksum."""
    write_json(path, RECORD.sealed(record))


def read_record(path: Path) -> dict[str, Any]:
    """The data that :func:`write_record` wrote, without the checksum.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: it has changed.
    """
    try:
        return RECORD.opened(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(path, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise Damaged(path, "damaged") from None
