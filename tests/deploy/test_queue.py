"""The queue's promises, over any order of arrivals, batches and lost clients."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from encoderlab.deploy.serve.queue import Entry, Queue

BUDGET = 64

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(1, 90), min_size=1, max_size=6), st.sampled_from("ab")),
        st.tuples(st.just("take"), st.none(), st.none()),
        st.tuples(st.just("drop"), st.integers(0, 50), st.none()),
        st.tuples(st.just("late"), st.integers(0, 50), st.none()),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_batches_are_of_one_kind_within_the_budget_and_lose_nothing(actions: list) -> None:
    queue, waiting, done, now = Queue(budget=BUDGET), [], [], 0.0
    for what, value, kind in actions:
        if what == "add":
            entries = [Entry(kind=kind, tokens=tokens, work=None) for tokens in value]
            queue.add(entries)
            waiting += entries
        elif what == "take":
            now += 1.0
            batch, late = queue.take(now)
            assert all(entry.dropped or entry.deadline <= now for entry in late)
            assert not any(entry.dropped or entry.deadline <= now for entry in batch)
            alive = [entry for entry in waiting if entry not in late]
            assert bool(batch) == bool(alive)
            if batch:
                assert batch[0] is alive[0]  # the oldest is always in
                assert len({entry.kind for entry in batch}) == 1
                longest = max(entry.tokens for entry in batch)
                assert longest * len(batch) <= BUDGET or len(batch) == 1
            done += batch + late
            waiting = [entry for entry in waiting if entry not in batch and entry not in late]
        elif waiting and what == "drop":
            waiting[value % len(waiting)].dropped = True
        elif waiting:
            waiting[value % len(waiting)].deadline = now
        assert queue.entries == waiting
        assert queue.tokens == sum(entry.tokens for entry in waiting)
    assert len(done) == len({id(entry) for entry in done})


def test_neighbours_in_length_share_a_batch() -> None:
    queue = Queue(budget=64)
    lengths = [8, 60, 9, 7, 61, 8, 30]
    queue.add([Entry(kind="a", tokens=tokens, work=None) for tokens in lengths])
    assert [[entry.tokens for entry in queue.take(0.0)[0]] for _ in range(4)] == [[8, 8, 9, 7], [60], [61], [30]]
    assert queue.take(0.0) == ([], [])


def test_short_entries_are_not_padded_to_a_long_one() -> None:
    queue = Queue(budget=4096)
    lengths = [10, 400, 12, 380, 70, 11]
    queue.add([Entry(kind="a", tokens=tokens, work=None) for tokens in lengths])
    taken = [[entry.tokens for entry in queue.take(0.0)[0]] for _ in range(3)]
    assert taken == [[10, 11, 12], [400, 380], [70]] and len(queue) == 0


@given(st.lists(st.integers(1, 64), min_size=1, max_size=30))
def test_the_oldest_waits_for_no_more_batches_than_stand_before_it(lengths: list[int]) -> None:
    queue = Queue(budget=64)
    first = [Entry(kind="a", tokens=tokens, work=None) for tokens in lengths]
    queue.add(first)
    for _ in range(len(first)):
        batch, _ = queue.take(0.0)
        if first[-1] in batch:
            break
        queue.add([Entry(kind="a", tokens=8, work=None)])  # younger ones never push it back
    else:
        raise AssertionError("starved")


def test_a_short_request_need_not_wait_for_all_of_a_large_one() -> None:
    queue = Queue(budget=64)
    large = [Entry(kind="a", tokens=60, work=None, due=float(second)) for second in range(100)]
    queue.add(large)
    assert queue.take(0.0)[0] == large[:1] and queue.before(3.0) == 3 * 60 and queue.before(0.5) == 0
    short = Entry(kind="a", tokens=5, work=None, due=1.5)
    queue.add([short])
    assert [queue.take(0.0)[0] for _ in range(3)] == [large[1:2], [short], large[2:3]]
