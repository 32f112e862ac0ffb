"""The queue of a server, in tokens: the entry that is due first, with entries of similar length.

Plain Python without threads or clocks, so that its properties can be tested: no entry starves, and no batch exceeds
the budget.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

PADDING = 64  # tokens; a processor computes about as many in the fixed time of a batch


@dataclass(eq=False, kw_only=True)
class Entry:
    """One sequence in the queue.

    Args:
        kind: of the computation; a batch has one kind.
        tokens: its length, special tokens included.
        work: the input of the computation.
        due: when it arrived; in a request with many entries, when those before it could have been computed, so that
            shorter requests need not wait for all of them.
        deadline: the time after which nobody needs the result.
        dropped: nobody waits for it any more.
    """

    kind: str
    tokens: int
    work: Any
    due: float = 0.0
    deadline: float = float("inf")
    dropped: bool = False
    result: Any = field(default=None, repr=False)


class Queue:
    """Entries by due time, older ones first if equal.

    Args:
        budget: tokens of a batch, padding included. A longer entry makes a batch of its own.
    """

    def __init__(self, *, budget: int) -> None:
        self.budget = budget
        self.entries: list[Entry] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entries: list[Entry]) -> None:
        """Queue the entries of a request."""
        self.entries = sorted([*self.entries, *entries], key=lambda entry: entry.due)
        self.tokens += sum(entry.tokens for entry in entries)

    def before(self, now: float) -> int:
        """Tokens of the entries that are due by ``now`` and still wanted."""
        entries = self.entries  # another thread may replace the list
        due = entries[: bisect_right(entries, now, key=lambda entry: entry.due)]
        return sum(entry.tokens for entry in due if not entry.dropped)

    def take(self, now: float) -> tuple[list[Entry], list[Entry]]:
        """The next batch, and entries that are dropped because no client waits for them or their deadline has passed.

        The batch has the entry that is due first, then those of its kind that are nearest to it in length, while the
        longest length times their number is within the budget. An entry that would add more than :data:`PADDING` tokens
        of padding waits for another batch, because computing them costs more than another batch does.
        """
        late = [entry for entry in self.entries if entry.dropped or entry.deadline <= now]
        if late:
            gone = set(map(id, late))
            self._keep([entry for entry in self.entries if id(entry) not in gone])
        if not self.entries:
            return [], late
        first = self.entries[0]
        same = [entry for entry in self.entries[1:] if entry.kind == first.kind]
        same.sort(key=lambda entry: abs(entry.tokens - first.tokens))  # stable: older ones first if equal
        batch, longest = [first], first.tokens
        for entry in same:
            grown = max(longest, entry.tokens)
            if grown * (len(batch) + 1) > self.budget:
                break
            if grown * (len(batch) + 1) - longest * len(batch) - entry.tokens > PADDING:
                continue
            batch.append(entry)
            longest = grown
        taken = set(map(id, batch))
        self._keep([entry for entry in self.entries if id(entry) not in taken])
        return batch, late

    def _keep(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.tokens = sum(entry.tokens for entry in entries)
