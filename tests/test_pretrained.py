"""The models that come with the package: whole, small, and able to do what their cards say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import encoderlab
from encoderlab.interchange.places import installed

LARGEST = 24e6


def test_there_is_one() -> None:
    assert "small-en" in installed()


@pytest.mark.parametrize("name", installed())
def test_it_is_small_stored_in_half_precision_and_says_what_it_is(name: str) -> None:
    place = installed()[name]
    assert sum(path.stat().st_size for path in place.iterdir()) < LARGEST
    card = (place / "README.md").read_text(encoding="utf-8")
    assert "license:" in card and "**Measured**" in card and re.search(r"BLiMP \d\d\.\d", card)
    model = encoderlab.load(name)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("The cats [MASK] sleeping on the sofa.", "are", "is"),
        ("He [MASK] born in London.", "was", "were"),
        ("He has [MASK] a letter to his mother.", "written", "write"),
        ("He did not [MASK] the letter.", "write", "wrote"),
        ("Those [MASK] were written in Rome.", "books", "book"),
        ("She gave [MASK] the book.", "him", "he"),
    ],
)
def test_small_en_knows_some_grammar(text: str, right: str, wrong: str) -> None:
    (guesses,) = encoderlab.load("small-en").fill_mask(text, top=8192)
    scores = {guess.token_str: guess.score for guess in guesses}
    assert scores[right] > 2 * scores[wrong]


def test_small_en_is_the_same_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from encoderlab.cli import main

    assert main(["convert", "small-en", str(tmp_path / "hf"), "--to", "hf"]) == 0
    ours = encoderlab.load("small-en").eval()
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf", attn_implementation="eager").eval()
    assert ours.tokenizer is not None
    ids = torch.tensor(ours.tokenizer.frame(ours.tokenizer.encode("A river runs through the town.").ids)[0])[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).last, theirs(ids).last_hidden_state, rtol=1e-4, atol=1e-4)
