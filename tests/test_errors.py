"""Exit codes that differ, and the clause that names what was meant."""

from __future__ import annotations

import pickle

import pytest

from encoderlab import errors


def test_every_error_has_an_exit_code_of_its_own() -> None:
    kinds = errors.EncoderlabError.__subclasses__()
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes) and not {0, 1} & set(codes)


def test_a_stopped_run_names_its_signal() -> None:
    assert errors.Stopped("later").code == 75
    assert errors.Stopped("later", signal=15).code == 143
    assert errors.Stopped("later").code == 75, "one instance changes no other"


def test_a_missing_package_comes_with_its_install_line() -> None:
    message = str(errors.MissingDependency("rjieba", "zh", "segmenting Chinese"))
    assert message == "segmenting Chinese needs rjieba, which is not installed; run: pip install 'encoderlab[zh]'"
    with pytest.raises(errors.MissingDependency) as caught, errors.optional("rjieba", "zh", "segmenting Chinese"):
        raise ModuleNotFoundError("No module named 'rjieba'")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "error",
    [
        errors.DataError("no such file"),
        errors.MissingDependency("rjieba", "zh", "segmenting Chinese"),
        errors.Stopped("later", signal=15),
    ],
)
def test_an_error_survives_the_way_out_of_a_process(error: errors.EncoderlabError) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), arrived.code) == (type(error), str(error), error.code)


@pytest.mark.parametrize(
    ("name", "known", "clause"),
    [
        ("widht", ["width", "heads"], "; did you mean 'width'?"),
        ("colour", ["width", "heads"], "; choose from: heads, width"),
        ("x", [f"name{i:02}" for i in range(13)], "name11, ..."),
    ],
)
def test_the_nearest_name(name: str, known: list[str], clause: str) -> None:
    assert errors.nearest(name, known).endswith(clause)


def test_messages_are_one_line() -> None:
    assert str(errors.DataError("no column 'a' among x\ny; rename it")) == "no column 'a' among x y; rename it"
