from __future__ import annotations

from pathlib import Path

import pytest

from encoderlab import cli


@pytest.mark.parametrize("verb", ["encode", "predict"])
def test_a_text_may_be_longer_than_a_file_name(verb: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main([verb, "nowhere", 400 * "a/b "]) == 3
    assert "nowhere: no such file or folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["predict", "run"], ["encode", "run", "--file"]])
@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_the_input_is_not_written_over(words, link, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = out = tmp_path / "a.txt"
    path.write_text("the cat")
    if link is not None:
        out = tmp_path / "b.txt"
        link(out, path)
    assert cli.main([*words, str(path), "--out", str(out)]) == 2
    assert f"{out.name}: is the input; give another --out" in capsys.readouterr().err
    assert path.read_text() == "the cat"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_replaced_by_a_file(there: bool, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "link.jsonl"
    out.symlink_to("file.jsonl")
    if there:
        (tmp_path / "file.jsonl").write_text("")
    assert cli.main(["predict", "run", "the cat", "--out", str(out)]) == 2
    assert "link.jsonl: is a link to file.jsonl; name the file itself" in capsys.readouterr().err
