"""The models that come with the package: whole, small, and able to do what their cards say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import encoderlab
from encoderlab.interchange.places import installed

LARGEST = 24e6


def test_there_are_two() -> None:
    assert set(installed()) == {"small-en", "small-zh"}


@pytest.mark.parametrize("name", installed())
def test_it_is_small_stored_in_half_precision_and_says_what_it_is(name: str) -> None:
    place = installed()[name]
    assert sum(path.stat().st_size for path in place.iterdir()) < LARGEST
    card = (place / "README.md").read_text(encoding="utf-8")
    assert "license:" in card and "**Measured**" in card and re.search(r"BLiMP \d\d\.\d", card)
    model = encoderlab.load(name)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "text", "right", "wrong"),
    [
        ("small-en", "The cats [MASK] sleeping on the sofa.", "are", "is"),
        ("small-en", "He [MASK] born in London.", "was", "were"),
        ("small-en", "He has [MASK] a letter to his mother.", "written", "write"),
        ("small-en", "He did not [MASK] the letter.", "write", "wrote"),
        ("small-en", "Those [MASK] were written in Rome.", "books", "book"),
        ("small-en", "She gave [MASK] the book.", "him", "he"),
        ("small-zh", "他在北京工[MASK]。", "作", "人"),
        ("small-zh", "这本书我已[MASK]看完了。", "经", "却"),
        ("small-zh", "他们[MASK]是学生。", "都", "把"),
        ("small-zh", "我不知[MASK]他在哪里。", "道", "识"),
        ("small-zh", "他把书放[MASK]桌子上。", "在", "被"),
        ("small-zh", "这件事情非[MASK]重要。", "常", "是"),
    ],
)
def test_they_know_some_grammar(name: str, text: str, right: str, wrong: str) -> None:
    (guesses,) = encoderlab.load(name).fill_mask(text, top=8192)
    scores = {guess.token_str: guess.score for guess in guesses}
    assert scores[right] > 2 * scores[wrong]


@pytest.mark.parametrize(
    ("name", "text"), [("small-en", "A river runs through the town."), ("small-zh", "一条河流经这座城市。")]
)
def test_they_are_the_same_in_transformers(name: str, text: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from encoderlab.cli import main

    assert main(["convert", name, str(tmp_path / "hf"), "--to", "hf"]) == 0
    ours = encoderlab.load(name).eval()
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf", attn_implementation="eager").eval()
    assert ours.tokenizer is not None
    ids = torch.tensor(ours.tokenizer.frame(ours.tokenizer.encode(text).ids)[0])[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).last, theirs(ids).last_hidden_state, rtol=1e-4, atol=1e-4)
