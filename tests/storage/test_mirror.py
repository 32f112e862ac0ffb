"""Folders at URLs: continued on another machine, and whole at every moment of an upload."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encoderlab.corpus.find import find_sources
from encoderlab.corpus.sources import Reading
from encoderlab.errors import ConfigError, DataError
from encoderlab.storage import cache, mirror, places
from encoderlab.storage.mirror import Mirror, written_folder
from tests.storage.filled import tree_of


def test_a_damaged_list_of_an_upload_is_named(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/runs/two"
    with written_folder(url) as folder:
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("1\n")
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
    whole = places.read_bytes(f"{url}/mirror.json")
    for place in range(0, len(whole), 90):
        changed = bytearray(whole)
        changed[place] ^= 2
        if bytes(changed).split() == whole.split():
            continue
        places.write_bytes(f"{url}/mirror.json", bytes(changed))
        with pytest.raises(DataError, match="mirror.json: is damaged; delete it"), written_folder(url):
            pass


def write_checkpoint(folder: Path, step: int) -> None:
    place = folder / "checkpoints" / f"step-{step}"
    place.mkdir(parents=True)
    (place / "weights").write_bytes(bytes([step]) * 1000)
    (place / "manifest.json").write_text(str(step))
    link = folder / "checkpoints" / "latest"
    link.unlink(missing_ok=True)
    link.symlink_to(place.name)


def test_a_run_at_a_url_continues_on_another_machine(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/runs/one"
    s3.failing = 0.1
    with written_folder(url) as folder:
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("1\n")
        (folder / ".partial").write_text("half")
        write_checkpoint(folder, 1)
        write_checkpoint(folder, 2)
        made = tree_of(folder)
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
    with pytest.raises(RuntimeError), written_folder(url) as folder:
        assert tree_of(folder) == made and (folder / "checkpoints" / "latest").readlink().name == "step-2"
        (folder / "checkpoints" / "latest").unlink()
        write_checkpoint(folder, 3)
        made = tree_of(folder)
        for name in ("weights", "manifest.json"):
            (folder / "checkpoints" / "step-1" / name).unlink()
        (folder / "checkpoints" / "step-1").rmdir()
        raise RuntimeError("killed")
    s3.failing = 0.0
    names = {name.removeprefix(f"{url}/") for name in places.find(url)}
    assert "checkpoints/step-3/manifest.json" in names and not any("step-1/" in name for name in names)
    assert places.read_bytes(f"{url}/checkpoints/latest") == b"step-3"
    assert "writer.json" not in names


@pytest.mark.parametrize("folder_stays", [True, False])
def test_a_working_folder_that_was_emptied_is_restored(s3, folder_stays):
    url = f"{s3.bucket}/runs/emptied"
    with written_folder(url) as folder:
        write_checkpoint(folder, 1)
        made = tree_of(folder)
    shutil.rmtree(folder)
    if folder_stays:
        folder.mkdir()
    with written_folder(url) as folder:
        assert tree_of(folder) == made
        (folder / "metrics.jsonl").write_text("1\n")
    assert f"{url}/checkpoints/step-1/weights" in places.find(url)


def test_every_moment_of_an_upload_is_a_folder_that_can_be_continued(s3, tmp_path, monkeypatch):
    """The upload is cut off after each of its writes in turn; what another machine restores is whole."""
    for cut in range(12):
        url = f"{s3.bucket}/runs/{cut}"
        monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / f"home-{cut}"))
        folder = mirror.working_place(url)
        first = Mirror(folder, url)
        first.restore()
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("1\n")
        write_checkpoint(folder, 1)
        first.push()
        (folder / "metrics.jsonl").write_text("1\n2\n")
        write_checkpoint(folder, 2)
        left = [cut]

        def stops(name, left=left):
            real = getattr(places, name)

            def write(*args):
                left[0] -= 1
                if left[0] < 0:
                    raise DataError("cut off")
                real(*args)

            return write

        with monkeypatch.context() as patch:
            for name in ("upload", "write_bytes", "delete"):
                patch.setattr(places, name, stops(name))
            whole = True
            try:
                first.push()
            except DataError:
                whole = False
        first.release()
        monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / f"away-{cut}"))
        places._KNOWN.clear()
        again = Mirror(mirror.working_place(url), url)
        again.restore()
        steps = sorted(path.name for path in (again.folder / "checkpoints").glob("step-*"))
        assert steps in (["step-1"], ["step-1", "step-2"]) and (steps[-1] == "step-2" or not whole)
        for step in steps:
            number = int(step[-1])
            assert (again.folder / "checkpoints" / step / "weights").read_bytes() == bytes([number]) * 1000
            assert (again.folder / "checkpoints" / step / "manifest.json").read_text() == str(number)
            assert f"{number}\n" in (again.folder / "metrics.jsonl").read_text()  # never behind a checkpoint
        assert (again.folder / "checkpoints" / "latest").readlink().name in steps


def test_two_writers_of_one_place_are_refused(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/runs/two"
    with written_folder(url):
        monkeypatch.setattr(mirror.socket, "gethostname", lambda: "elsewhere")
        monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
        with pytest.raises(ConfigError, match="another process is writing it"), written_folder(url):
            pass
        monkeypatch.undo()
        with pytest.raises(ConfigError, match=f"^{url}: another process is writing it"), written_folder(url):
            pass  # of this machine
    assert not places.exists(f"{s3.bucket}/runs/two/writer.json")


def test_the_sign_of_another_writer_stays(s3):
    url = f"{s3.bucket}/runs/three"
    first, second = Mirror(mirror.working_place(url), url), Mirror(mirror.working_place(url), url)
    first.claim()
    second._sign()  # as after ten minutes
    first.release()
    assert places.exists(f"{url}/writer.json")
    second.release()
    assert not places.exists(f"{url}/writer.json")


def test_what_is_only_here_stays_if_the_answer_to_an_upload_is_lost(s3, monkeypatch):
    url = f"{s3.bucket}/runs/lost"
    folder = mirror.working_place(url)
    first = Mirror(folder, url)
    first.restore()
    folder.mkdir(parents=True)
    (folder / "a").write_text("a")
    first.push()
    real = places.write_bytes

    def arrives_without_an_answer(place: str, data: bytes) -> None:
        real(place, data)
        raise DataError("no answer")

    (folder / "b").write_text("b")
    with monkeypatch.context() as patch:
        patch.setattr(places, "write_bytes", arrives_without_an_answer)
        with pytest.raises(DataError, match="no answer"):
            first.push()
    (folder / "c").write_text("only here")
    first.release()
    again = Mirror(folder, url)
    again.restore()
    assert (folder / "c").read_text() == "only here"
    again.push()
    assert places.read_bytes(f"{url}/c") == b"only here"


def test_a_list_that_could_not_be_written_is_written_by_the_next_upload(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/runs/unlisted"
    folder = mirror.working_place(url)
    first = Mirror(folder, url)
    first.restore()
    write_checkpoint(folder, 1)
    real = places.write_bytes

    def fails_for_the_list(place: str, data: bytes) -> None:
        if place.endswith("mirror.json"):
            raise DataError("no connection")
        real(place, data)

    with monkeypatch.context() as patch:
        patch.setattr(places, "write_bytes", fails_for_the_list)
        with pytest.raises(DataError, match="no connection"):
            first.push()
    before = s3.asked.total()
    first.push()  # nothing has changed since, and all files are there
    assert s3.asked.total() - before < 8
    first.release()
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
    again = Mirror(mirror.working_place(url), url)
    again.restore()
    assert (again.folder / "checkpoints" / "latest").readlink().name == "step-1"


def test_an_upload_that_fails_does_not_hide_why_the_work_ended(s3, monkeypatch, caplog):
    url = f"{s3.bucket}/runs/failed"

    def fails(path: Path, place: str) -> None:
        raise DataError("no connection")

    monkeypatch.setattr(places, "upload", fails)
    for work, expected in ((RuntimeError("broken"), RuntimeError), (None, DataError)):
        with pytest.raises(expected), written_folder(url) as folder:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "a").write_text("a")
            if work is not None:
                raise work
    assert "no connection; what was made is kept in" in caplog.text and (folder / "a").exists()


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "a b", "ä#1", "x%20y", "-run"])
def test_a_folder_of_any_name_is_restored_and_read(s3, tmp_path, monkeypatch, name):
    url = f"{s3.bucket}/{name}"
    places.write_bytes(f"{s3.bucket}/run1/other.txt", b"matches, if the name were a pattern")
    with written_folder(url) as folder:
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "a.txt").write_text("made")
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "other"))
    with written_folder(url) as folder:
        assert tree_of(folder) == {"sub/a.txt": b"made"}
    assert (cache.local(url) / "sub" / "a.txt").read_text() == "made"
    assert find_sources([f"{s3.bucket}/run[1]/*.txt"], Reading())[0].path.name == "other.txt"  # still a pattern


def test_what_was_restored_is_not_sent_again_and_a_refused_command_sends_nothing(s3, tmp_path, monkeypatch):
    url = f"{s3.bucket}/mine"
    places.write_bytes(f"{url}/precious.txt", b"of somebody else")
    for _ in range(2):  # the second time, nothing is fetched
        with pytest.raises(ConfigError), written_folder(url) as folder:
            assert tree_of(folder) == {"precious.txt": b"of somebody else"}
            raise ConfigError("is not empty")
    assert places.find(url) == [f"{url}/precious.txt"]
    for home in ("one", "two"):
        monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / home))
        with written_folder(url) as folder:
            (folder / f"{home}.txt").write_text(home)
    names = {name.removeprefix(f"{url}/") for name in places.find(url)}
    assert names == {"precious.txt", "one.txt", "two.txt", "mirror.json"}
    monkeypatch.setenv("ENCODERLAB_HOME", str(tmp_path / "three"))
    with written_folder(url) as folder:
        assert len(tree_of(folder)) == 3
    sent = [request for request in s3.asked.elements() if request.startswith("PUT") and request.endswith(".txt")]
    assert len(sent) == 3
