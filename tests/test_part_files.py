"""The output of a long job, part by part."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from encoderlab.part_files import PartFile


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "out.part")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as a full disk, the system refuses to write on
    try:
        part.add(b"a\n" * 400)
        with pytest.raises(OSError) as full:
            part.add(b"b\n" * 400)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.value.filename == str(tmp_path / "out.part")
    assert PartFile(tmp_path / "out.part").lines == 400


def test_a_finished_job_deletes_the_parts_of_the_same_output_that_it_did_not_use(tmp_path: Path) -> None:
    others = {"out.part-notes.txt", "out.part-", "two.part-00aa", "out2.part-00aa", "out.part-00aa.txt"}
    for name in (*others, "out.part-00aa", "out.part-00aa.sums"):
        (tmp_path / name).touch()
    part = PartFile(tmp_path / "out.part-00bb")
    part.add(b"a\n")
    part.finish(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", *others}
    PartFile(tmp_path / "cached").finish()
    assert {path.name for path in tmp_path.iterdir()} == {"out", *others}
