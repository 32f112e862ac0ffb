"""Folders that transformers saved after fine-tuning predict what it predicts from the same texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoderlab.errors import DataError
from encoderlab.interchange.huggingface import save
from encoderlab.interchange.load import load
from encoderlab.tasks.data.task import Question, TaggedWords, Text
from encoderlab.tasks.runs.apply import predictor_of
from tests.tasks.tiny import WORDS

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 70,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": SIZES | {"hidden_act": "relu", "layer_norm_eps": 1e-6},
    "roberta": SIZES | {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 40, "max_position_embeddings": 70},
    "electra": SIZES | {"embedding_size": 24},
    "albert": SIZES | {"embedding_size": 16, "hidden_act": "gelu_new"},
    "convbert": SIZES | {"embedding_size": 32, "conv_kernel_size": 5},
    "deberta-v2": SIZES | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
}
TEXTS = ["the red cat sat on the mat", "blue?", "one two three four and ann runs to oslo, not rome."]


def tokenizer(folder: Path, kind: str, head: str) -> Any:
    """A tokenizer of transformers' own, saved into the folder."""
    if kind == "roberta":
        from tokenizers.implementations import ByteLevelBPETokenizer

        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        bpe = ByteLevelBPETokenizer()
        bpe.train_from_iterator(TEXTS * 9, 320, special_tokens=special, show_progress=False)
        bpe.save_model(str(folder))
        mask = transformers.AddedToken("<mask>", lstrip=True, special=True)  # as in the published folders
        # Words that were split are tagged with the space before each, as the published taggers are.
        spaced = {"add_prefix_space": True} if head == "TokenClassification" else {}
        found = transformers.RobertaTokenizerFast.from_pretrained(str(folder), mask_token=mask, **spaced)
    else:
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
        tokens += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
        (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)) + "\n")
        found = transformers.BertTokenizerFast.from_pretrained(str(folder))
    found.save_pretrained(folder)
    return found


def fine_tuned(folder: Path, kind: str, head: str, **settings: Any) -> tuple[Any, Any]:
    """A model of transformers with random weights, biases too, in ``folder``, and its tokenizer."""
    words = tokenizer(folder, kind, head)
    config = transformers.AutoConfig.for_model(kind, **{**CONFIGS[kind], **settings, "vocab_size": len(words)})
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model, words


LABELS = {"id2label": {0: "bad", 1: "fine", 2: "good"}, "label2id": {"bad": 0, "fine": 1, "good": 2}}


@pytest.mark.parametrize("kind", CONFIGS)
def test_classification(kind: str, tmp_path: Path) -> None:
    model, words = fine_tuned(tmp_path, kind, "SequenceClassification", **LABELS)
    examples = [Text(id=str(i), text=text) for i, text in enumerate(TEXTS)]
    pairs = [Text(id=str(i), text=text, pair=TEXTS[-i]) for i, text in enumerate(TEXTS)]
    for some in (examples, pairs):
        found = predictor_of(tmp_path).predict(some)
        for example, value, detail in zip(some, found.values, found.details, strict=True):
            with torch.no_grad():
                logits = model(**words(example.text, example.pair, return_tensors="pt")).logits[0]
            np.testing.assert_allclose(detail["probabilities"], logits.softmax(-1), atol=1e-5)
            assert value == model.config.id2label[int(logits.argmax())]


@pytest.mark.parametrize("problem", [None, "regression"])
def test_one_output(problem: str | None, tmp_path: Path) -> None:
    model, words = fine_tuned(tmp_path, "bert", "SequenceClassification", num_labels=1, problem_type=problem)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=words)
    predictor = predictor_of(tmp_path)
    found = predictor.predict([Text(id=str(i), text=text) for i, text in enumerate(TEXTS)])
    expected = [answer["score"] for answer in pipeline(TEXTS)]
    np.testing.assert_allclose(found.values, expected, atol=1e-5)
    predictor.objective.model.save(tmp_path / "ours")
    save(predictor.objective.model, tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        again = predictor_of(tmp_path / folder).predict([Text(id="0", text=TEXTS[0])])
        np.testing.assert_allclose(again.values, expected[:1], atol=1e-5)
    assert json.loads((tmp_path / "theirs/config.json").read_text()).get("problem_type") in (None, problem)


def test_several_numbers_per_text_are_refused(tmp_path: Path) -> None:
    fine_tuned(tmp_path, "bert", "SequenceClassification", problem_type="regression", **LABELS)
    with pytest.raises(DataError, match="problem_type 'regression'.* not implemented.*remove 'architectures'"):
        load(tmp_path)


@pytest.mark.parametrize("kind", CONFIGS)
def test_several_labels_per_text(kind: str, tmp_path: Path) -> None:
    """``problem_type: multi_label_classification``, read and written."""
    problem = "multi_label_classification"
    model, words = fine_tuned(tmp_path, kind, "SequenceClassification", problem_type=problem, **LABELS)
    examples = [Text(id=str(i), text=text) for i, text in enumerate(TEXTS)]
    predictor = predictor_of(tmp_path)
    predictor.objective.model.save(tmp_path / "ours")
    save(predictor.objective.model, tmp_path / "theirs")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs")
    assert again.config.problem_type == problem and again.config.id2label == model.config.id2label
    for folder in (tmp_path, tmp_path / "ours", tmp_path / "theirs"):
        found = predictor_of(folder).predict(examples)
        for example, value, detail in zip(examples, found.values, found.details, strict=True):
            with torch.no_grad():
                expected = model(**words(example.text, return_tensors="pt")).logits[0].sigmoid()
                theirs = again.eval()(**words(example.text, return_tensors="pt")).logits[0].sigmoid()
            np.testing.assert_allclose(list(detail["probabilities"].values()), expected, atol=1e-5)
            np.testing.assert_allclose(theirs, expected, atol=1e-5)
            assert value == tuple(LABELS["id2label"][i] for i in range(3) if expected[i] > 0.5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_tagging(kind: str, tmp_path: Path) -> None:
    names = {0: "O", 1: "B-PER", 2: "I-PER"}
    model, words = fine_tuned(tmp_path, kind, "TokenClassification", id2label=names)
    sentence = ("ann", "runs", "quickly", "to", "oslo", ".")
    found = predictor_of(tmp_path).predict([TaggedWords(id="0", words=sentence)])
    batch = words(list(sentence), is_split_into_words=True, return_tensors="pt")
    first = [batch.word_ids().index(word) for word in range(len(sentence))]
    with torch.no_grad():
        chances = model(**batch).logits[0, first].softmax(-1)
    assert found.values[0] == tuple(names[int(best)] for best in chances.argmax(-1))
    np.testing.assert_allclose(found.details[0]["scores"], chances.amax(-1), atol=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_questions(kind: str, tmp_path: Path) -> None:
    model, words = fine_tuned(tmp_path, kind, "QuestionAnswering")
    question = Question(id="q", question="where runs ann?", passage=TEXTS[2])
    found = predictor_of(tmp_path).predict([question])
    batch = words(question.question, question.passage, return_tensors="pt", return_offsets_mapping=True)
    offsets = batch.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        out = model(**batch)
    passage = [i for i, part in enumerate(batch.sequence_ids()) if part == 1]
    spans = [
        (float(out.start_logits[0, i] + out.end_logits[0, j]), question.passage[offsets[i][0] : offsets[j][1]].strip())
        for i in passage
        for j in passage
        if i <= j < i + 30
    ]
    best = max(spans)
    assert found.values == [best[1]]
    assert found.nbest is not None and found.nbest["q"][0]["score"] == pytest.approx(best[0], abs=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "albert"])
def test_masks_are_filled_as_the_pipeline_fills_them(kind: str, tmp_path: Path) -> None:
    model, words = fine_tuned(tmp_path, kind, "MaskedLM")
    pipeline = transformers.pipeline("fill-mask", model=model, tokenizer=words, top_k=8)
    ours = load(tmp_path)
    for text in ("the red {} sat on the mat.", "{} runs to {}"):
        text = text.replace("{}", words.mask_token)
        answers = pipeline(text)
        for guesses, expected in zip(
            ours.fill_mask(text, top=8), answers if isinstance(answers[0], list) else [answers], strict=True
        ):
            assert [guess.token for guess in guesses] == [answer["token"] for answer in expected]
            np.testing.assert_allclose(
                [guess.score for guess in guesses], [answer["score"] for answer in expected], atol=1e-4
            )
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == kind
