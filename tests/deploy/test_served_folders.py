"""Every family with every head, from every kind of folder: a server's answers are those of the model in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from encoderlab.cli import main  # noqa: E402
from encoderlab.deploy.export import folder as exporting  # noqa: E402
from encoderlab.deploy.serve.service import Service  # noqa: E402
from encoderlab.errors import DataError  # noqa: E402
from encoderlab.inference import encode, fill_mask  # noqa: E402
from encoderlab.interchange import folder as folders  # noqa: E402
from encoderlab.interchange import huggingface  # noqa: E402
from encoderlab.interchange.finetuned import best_seed  # noqa: E402
from encoderlab.interchange.heads import CHOICES, NUMBER  # noqa: E402
from encoderlab.interchange.load import load  # noqa: E402
from encoderlab.messages import silent  # noqa: E402
from encoderlab.model import Model  # noqa: E402
from encoderlab.models import FAMILIES  # noqa: E402
from encoderlab.tasks.data.examples import Choice, Question, TaggedWords, Text  # noqa: E402
from encoderlab.tasks.runs.apply import predictor_of  # noqa: E402
from encoderlab.tasks.runs.predict import Predictor, task_of_model  # noqa: E402
from tests.deploy.served import Asked, serving, unit  # noqa: E402
from tests.tasks.runs.test_commands import reviews  # noqa: E402
from tests.tasks.tiny import EVERY  # noqa: E402
from tests.tasks.tiny import model as tiny  # noqa: E402
from tests.train.test_distributed import small_corpus  # noqa: E402

TEXT, PASSAGE, MASKED = "the red cat sat on the mat .", "sue runs in oslo . bob eats", "the [MASK] sat on the mat ."
LABELS, TAGS = ("good", "bad", "so-so"), ("O", "B-CITY", "I-CITY")


def headed(size: str, use: str) -> Model:
    """A tiny model of a family with the head of a use, and weights that are not those of a start."""
    model = tiny(size).eval()
    family = FAMILIES[model.config.family]
    heads: dict[str, Any] = {
        "classification": (replace(family.classification, labels=3), LABELS),
        "multilabel": (replace(family.classification, labels=3, several=True), LABELS),
        "regression": (replace(family.classification, labels=1), NUMBER),
        "choice": (replace(family.classification, labels=1), CHOICES),
        "tagging": (replace(family.tagging, labels=3), TAGS),
        "span": (family.span, ()),
    }
    if use in heads:
        head, labels = heads[use]
        if getattr(head, "summary", "") == "pooler" and model.pooler is None:
            head = replace(head, summary="dense")
        model = model.with_task(head, labels, 0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def answer(model: Model, example: Any) -> Any:
    """The prediction of the model in memory."""
    return Predictor.of(model, task_of_model(model)).predict([example])


def check_vectors(asked: Asked, model: Model) -> None:
    assert np.allclose(asked("/embed", {"inputs": [TEXT, "one"]})[1], unit(encode(model, [TEXT, "one"])), atol=1e-5)


def check_masks(asked: Asked, model: Model) -> None:
    masked = MASKED.replace("[MASK]", model.tokenizer.token(model.tokenizer.special.mask))  # type: ignore[union-attr]
    (wanted,) = fill_mask(model, masked, top=3)
    found = asked("/", {"inputs": masked, "parameters": {"top_k": 3}})[1]
    assert [one["token"] for one in found] == [one.token for one in wanted]
    assert [one["score"] for one in found] == pytest.approx([one.score for one in wanted], abs=1e-5)


def check_labels(asked: Asked, model: Model) -> None:
    (details,) = answer(model, Text(id="", text=TEXT)).details
    found = {one["label"]: one["score"] for one in asked("/predict", {"inputs": TEXT})[1]}
    wanted = details["probabilities"]  # of several labels: by name
    assert found == pytest.approx(
        wanted if isinstance(wanted, dict) else dict(zip(LABELS, wanted, strict=True)), abs=1e-5
    )


def check_number(asked: Asked, model: Model) -> None:
    (number,) = answer(model, Text(id="", text=TEXT, pair="one")).values
    found = asked("/rerank", {"query": TEXT, "texts": ["one"], "raw_scores": True})[1]
    assert found[0]["score"] == pytest.approx(number, abs=1e-5)


def check_choice(asked: Asked, model: Model) -> None:
    (details,) = answer(model, Choice(id="", question=TEXT, options=("red", "dog"))).details
    found = {one["index"]: one["score"] for one in asked("/rerank", {"query": TEXT, "texts": ["red", "dog"]})[1]}
    assert found == pytest.approx(dict(enumerate(details["probabilities"])), abs=1e-5)


def check_tags(asked: Asked, model: Model) -> None:
    words = tuple(PASSAGE.split())
    (tags,) = answer(model, TaggedWords(id="", words=words)).values
    found = asked("/", {"inputs": PASSAGE, "parameters": {"aggregation_strategy": "none"}})[1]
    assert [(one["word"], one["entity"]) for one in found] == [
        (word, tag) for word, tag in zip(words, tags, strict=True) if tag != "O"
    ]


def check_span(asked: Asked, model: Model) -> None:
    (text,) = answer(model, Question(id="", question="who ?", passage=PASSAGE)).values
    assert asked("/", {"inputs": {"question": "who ?", "context": PASSAGE}})[1]["answer"] == text


CHECKS: dict[str, Callable[[Asked, Model], None]] = {
    "vectors": check_vectors,
    "masks": check_masks,
    "classification": check_labels,
    "multilabel": check_labels,
    "regression": check_number,
    "choice": check_choice,
    "tagging": check_tags,
    "span": check_span,
}


@pytest.mark.parametrize("use", CHECKS)
@pytest.mark.parametrize("family", EVERY)
def test_a_folder_is_served_as_what_it_is(family: str, use: str, tmp_path: Path) -> None:
    model = headed(f"{family}-tiny", use)
    if use == "masks" and model.lm is None:
        pytest.skip("the family predicts no masks")
    folders.save(model, tmp_path / "ours")
    written = [tmp_path / "ours"]
    try:
        huggingface.save(model, tmp_path / "theirs")
        written.append(tmp_path / "theirs")
    except DataError as refusal:
        assert "no counterpart" in str(refusal) or "no class" in str(refusal)
    for folder in written:
        service = Service.of(folder)
        if use == "masks" and not service.fills_masks:
            continue
        service.normalize = True
        with serving(service) as asked:
            # transformers has no place for the mask decoder: then it is the folder that says what is right.
            CHECKS[use](asked, model if folder.name == "ours" else load(folder).eval())


def test_a_reranker_reads_as_much_as_its_files_say(tmp_path: Path) -> None:
    """Also after a conversion."""
    huggingface.save(headed("bert-tiny", "regression"), tmp_path / "theirs")
    (tmp_path / "theirs" / "SHA256SUMS").unlink()
    file = tmp_path / "theirs" / "tokenizer_config.json"
    for length, longest in ((16, 16), (10**30, 512), (9999, 512)):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": length}))
        assert Service.of(tmp_path / "theirs").longest == longest
        for to in ("encoderlab", "hf"):
            out = tmp_path / f"{to}-{longest}-{length}"
            assert main(["convert", str(tmp_path / "theirs"), str(out), "--to", to]) == 0
            assert Service.of(out).longest == longest
    (tmp_path / "theirs" / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert Service.of(tmp_path / "theirs").longest == 20
    assert predictor_of(tmp_path / "theirs").form.settings.max_length == 20


def test_what_is_made_of_the_number_of_a_reranker_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sentence-transformers and vLLM would take the sigmoid of a number that is to be given as it is."""
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(exporting, "_graph_files", lambda *_: {})
    huggingface.save(headed("bert-tiny", "regression"), tmp_path / "theirs")
    (tmp_path / "theirs" / "SHA256SUMS").unlink()
    config, identity = tmp_path / "theirs" / "config.json", "torch.nn.modules.linear.Identity"
    kept = {"sentence_transformers": {"activation_fn": identity}, "sbert_ce_default_activation_function": identity}
    config.write_text(json.dumps(json.loads(config.read_text()) | kept))
    for verb, *flags in (("export",), ("convert", "--to", "hf"), ("convert", "--to", "encoderlab")):
        out = tmp_path / "-".join([verb, *flags[1:]])
        assert main([verb, str(tmp_path / "theirs"), str(out), *flags]) == 0
        written = json.loads((out / "config.json").read_text())
        assert {name: written.get(name) for name in kept} == kept or "encoderlab" in flags
        assert Service.of(out).ranks


def test_runs_are_served(tmp_path: Path) -> None:
    """The run of a pretraining, and the best seed of a fine-tuning of it."""
    run = tmp_path / "run"
    words = ["--corpus", str(small_corpus(tmp_path)), "--out", str(run), "--steps", "4"]
    for setting in ("phases=[{length: 16, rows: 4}]", "evaluation.every=100"):
        words += ["--set", setting]
    assert main(["pretrain", "bert-tiny", *words]) == 0
    service = Service.of(run)
    service.normalize = True
    with serving(service) as asked:
        check_vectors(asked, load(run).eval())
        check_masks(asked, load(run).eval())
    data, tuned = reviews(tmp_path / "reviews.csv"), tmp_path / "tuned"
    assert main(["finetune", data, "--model", str(run), "--out", str(tuned), "--seeds", "2", "--set", "steps=4"]) == 0
    (details,) = predictor_of(best_seed(tuned, silent)).predict([Text(id="", text=TEXT)]).details
    with serving(Service.of(tuned)) as asked:
        found = [one["score"] for one in asked("/predict", {"inputs": TEXT})[1]]
        assert found == pytest.approx(sorted(details["probabilities"], reverse=True), abs=1e-5)
