"""Jobs as processes: side by side, stopped in time, and how each ended."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from encoderlab.execution.local import Job, local, start
from encoderlab.files import locked


def job(tmp_path: Path, name: str, module: str, *arguments: str) -> Job:
    return Job(name=name, module=module, arguments=arguments, log=tmp_path / f"{name}.log")


def test_every_job_is_run_and_says_how_it_ended(tmp_path: Path) -> None:
    jobs = [job(tmp_path, f"good{n}", "platform") for n in range(3)] + [job(tmp_path, "bad", "no_such_module")]
    begun: list[str] = []
    ended = {one.job.name: one for one in local(workers=2, begun=lambda one: begun.append(one.name))(jobs)}
    assert begun == [one.name for one in jobs] and ended.keys() == set(begun)
    assert [ended[name].code for name in ("good0", "good1", "good2", "bad")] == [0, 0, 0, 1]
    assert not ended["bad"].stopped and "no_such_module" in (tmp_path / "bad.log").read_text()
    assert (tmp_path / "good0.log").read_text().strip()


def test_at_the_deadline_what_runs_is_stopped_and_the_rest_not_begun(tmp_path: Path) -> None:
    jobs = [job(tmp_path, f"server{n}", "http.server", "0") for n in range(3)]
    start = time.monotonic()
    ended = list(local(workers=1, deadline=start + 1.0)(jobs))
    assert [one.job.name for one in ended] == ["server0"] and time.monotonic() - start < 30
    assert ended[0].stopped and ended[0].code == -signal.SIGTERM


def test_jobs_end_with_the_loop_that_reads_them(tmp_path: Path) -> None:
    running = local(workers=2)([job(tmp_path, "quick", "platform"), job(tmp_path, "server", "http.server", "0")])
    assert next(running).job.name == "quick"
    start = time.monotonic()
    running.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 30


def test_a_lock_is_held_until_the_jobs_have_ended(tmp_path: Path) -> None:
    with locked(tmp_path) as lock:
        process = start(job(tmp_path, "server", "http.server", "0"), lock)
    try:  # the process that started it is gone, as after a kill
        with pytest.raises(BlockingIOError), locked(tmp_path):
            pass
    finally:
        process.terminate()
        process.wait()
    with locked(tmp_path):
        pass
