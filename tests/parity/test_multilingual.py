"""XLM-R and CamemBERT: RoBERTa whose tokenizer is a SentencePiece model with the ids of fairseq."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from encoderlab import load
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.interchange import huggingface

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers", reason="parity needs the extra [hf]")
sentencepiece = pytest.importorskip("sentencepiece", reason="the test trains a model with the extra [spm]")

TEXTS = [
    "Le fleuve coule devant le vieux moulin et le pont.",
    "A child reads a long book about rivers, and ships.",
    "Die Schiffe tragen 3.500 Säcke Korn vom Hafen fort!",
    "L'été, « tout » est calme   ici.",
]
KINDS = {
    "xlm-roberta": ("XLMRobertaTokenizer", "XLMRobertaForMaskedLM", "XLMRobertaConfig"),
    "camembert": ("CamembertTokenizer", "CamembertForMaskedLM", "CamembertConfig"),
}


@pytest.fixture(scope="module", params=KINDS)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A folder with the SentencePiece model alone, one that ``transformers`` saved, and its tokenizer."""
    tokenizer_class, model_class, config_class = KINDS[request.param]
    place = tmp_path_factory.mktemp(request.param)
    (place / "released").mkdir()
    chance = random.Random(0)
    words = " ".join(TEXTS).split()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(chance.sample(words, 9)) for _ in range(400)]),
        model_prefix=str(place / "released/sentencepiece.bpe"), vocab_size=70, model_type="unigram",
        normalization_rule_name="nmt_nfkc", minloglevel=2,
    )  # fmt: skip
    theirs = getattr(transformers, tokenizer_class).from_pretrained(place / "released")
    config = getattr(transformers, config_class)(
        vocab_size=len(theirs), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=40, type_vocab_size=1,
    )  # fmt: skip
    network = getattr(transformers, model_class)(config).eval()
    theirs.save_pretrained(place / "saved")
    for name in ("released", "saved"):
        network.save_pretrained(place / name)
    return place / "released", place / "saved", theirs


@pytest.mark.parametrize("which", [0, 1], ids=["released", "saved"])
def test_ids_and_frames(folders: tuple[Path, Path, Any], which: int, tmp_path: Path) -> None:
    theirs = folders[2]
    model = load(folders[which])
    huggingface.save(model, tmp_path / "out")
    data, saved = (json.loads((place / "config.json").read_text()) for place in (tmp_path / "out", folders[1]))
    assert (data["model_type"], data["architectures"]) == (saved["model_type"], saved["architectures"])
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for ours in (model.tokenizer, load(tmp_path / "out").tokenizer):
        assert isinstance(ours, Tokenizer)
        assert ours.special.pad == theirs.pad_token_id and ours.special.mask == theirs.mask_token_id
        assert ours.special.cls == theirs.cls_token_id and ours.special.sep == theirs.sep_token_id
        for one, two in zip([*TEXTS, "été <mask> ?"], [*TEXTS[1:], "un", "mot"], strict=True):
            first, second = (ours.encode(text).ids for text in (one, two))
            assert first.tolist() == theirs(one, add_special_tokens=False)["input_ids"], one
            framed = ours.frame(first, second, max_length=500)[0].tolist()
            assert framed == theirs(one, two)["input_ids"] == again(one, two)["input_ids"]
