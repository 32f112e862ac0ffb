"""Explanations: numbers that other code computes too, gradients that add up, words that are really left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

for package in ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client"):
    pytest.importorskip(package)

from encoderlab.deploy.sentence_transformers import Prompts  # noqa: E402
from encoderlab.deploy.serve import handlers  # noqa: E402
from encoderlab.deploy.serve.service import Service  # noqa: E402
from encoderlab.deploy.serve.texts import Refused  # noqa: E402
from encoderlab.deploy.serve.why import ExplanationRequest  # noqa: E402
from encoderlab.inference import encode, fill_mask  # noqa: E402
from encoderlab.model import Model  # noqa: E402
from encoderlab.nn.heads import Classification, Tagging  # noqa: E402
from encoderlab.tasks.data.examples import Question, TaggedWords, Text  # noqa: E402
from encoderlab.tasks.forms.base import softmax  # noqa: E402
from encoderlab.tasks.runs.predict import Predictor, task_of_model  # noqa: E402
from tests.deploy.served import serving, unit, with_head  # noqa: E402
from tests.deploy.test_export import small  # noqa: E402
from tests.tasks.tiny import tokenizer  # noqa: E402

TEXT = "the red cat sat on the mat ."


def served(model: Any, head: bool = True) -> Service:
    predictor = Predictor.of(model, task_of_model(model)) if head else None
    return Service(model if predictor is None else predictor.model, predictor, name="m", pooling="mean", normalize=True)


def explained(service: Service, *texts: str, **asked: Any) -> dict[str, Any]:
    """As a request is explained."""
    given = {"method": "gradients"} | asked
    with torch.inference_mode(False):
        return service.explanations(ExplanationRequest(texts=texts, **given))


def odds(scores: np.ndarray, index: int) -> float:
    """Log-odds of one class."""
    share = softmax(scores)[index]
    return float(np.log(share) - np.log1p(-share))


FAMILIES = ["bert", "albert", "convbert", "xlnet", "deberta-v3", "modernbert"]


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_add_up_to_the_difference_of_the_numbers(family: str) -> None:
    model = small(f"{family}-tiny", "classification")
    service = served(model)
    few, many = (explained(service, TEXT, "sue runs", target="bad", steps=steps) for steps in (4, 64))
    assert service.predictor is not None
    (scores,) = service.predictor.outputs(service.predictor.form.items([Text(id="", text=TEXT, pair="sue runs")]))
    assert many["number"] == pytest.approx(odds(scores, 1), abs=1e-4) and many["target"] == "bad"
    difference = many["number"] - many["baseline"]
    assert many["sum"] + many["gap"] == pytest.approx(difference, abs=1e-5)
    assert abs(many["gap"]) < 2e-3 + 0.02 * abs(difference) and abs(many["gap"]) <= abs(few["gap"]) + 1e-4
    special = [not (token["part"] is not None) for token in many["tokens"]]
    assert (many["attributions"][special] == 0).all() and (many["attributions"] != 0).sum() >= 8
    # The other end of the path is the row with masks, which the network itself reads here.
    explainer = service.explanations._explainers["classification"]
    row = service.explanations._row(ExplanationRequest(method="words", texts=(TEXT, "sue runs")), "classification")
    hidden = replace(row, ids=np.where(row.part >= 0, service.tokenizer.special.mask, row.ids))
    target = service.explanations._target(
        ExplanationRequest(method="words", texts=("",), target="bad"), "classification", explainer, row
    )
    with torch.no_grad():
        assert float(explainer.numbers([hidden], [target])[0]) == pytest.approx(many["baseline"], abs=1e-4)


def test_a_word_that_is_left_out_is_not_read() -> None:
    predictor = with_head(Classification(labels=3), ("good", "bad", "so-so"))
    service = served(predictor.model)
    found = explained(service, TEXT, method="words", target="good")
    assert [one["text"] for one in found["words"]] == TEXT.split()
    assert all(TEXT[one["start"] : one["end"]] == one["text"] for one in found["words"])
    for number, one in enumerate(found["words"]):
        rest = " ".join(word for i, word in enumerate(TEXT.split()) if i != number)
        (scores,) = predictor.outputs(predictor.form.items([Text(id="", text=rest)]))
        assert one["effect"] == pytest.approx(found["number"] - odds(scores, 0), abs=1e-4)


def test_tags_are_explained_word_by_word() -> None:
    predictor = with_head(Tagging(labels=3), ("O", "B-CITY", "I-CITY"))
    service, text = served(predictor.model), "sue  runs in oslo ."
    found = explained(service, text, method="words", at=text.index("oslo") + 1, target="B-CITY")
    items = predictor.form.items([TaggedWords(id="", words=tuple(text.split()))])
    assert found["number"] == pytest.approx(odds(predictor.outputs(items)[0][3], 1), abs=1e-4)
    assert found["target"] == "B-CITY of 'oslo'"
    effects = {one["text"]: one["effect"] for one in found["words"]}
    assert effects["oslo"] is None and effects["sue"] != 0
    tokens = explained(service, text, at=0)["tokens"]
    assert [text[one["start"] : one["end"]] for one in tokens if one["part"] == 0] == text.split()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_answers_are_explained_at_their_borders(family: str) -> None:
    model = small(f"{family}-tiny", "span")
    service = served(model)
    assert service.predictor is not None
    question = Question(id="q", question="who sat ?", passage=TEXT)
    items = service.predictor.form.items([question])
    best = service.predictor.form.decode(items, service.predictor.outputs(items), [question]).nbest["q"]
    answer = next(span for span in best if span["text"])
    found = explained(service, question.question, TEXT)
    assert found["target"] == answer["text"] and abs(found["sum"]) > 0
    parts = {token["part"] for token in found["tokens"]}
    assert parts == {None, 0, 1}
    texts = (question.question, TEXT)
    shown = [texts[one["part"]][one["start"] : one["end"]] for one in found["tokens"] if one["part"] is not None]
    assert shown == [*question.question.split(), *TEXT.split()]


def test_guesses_and_vectors() -> None:
    model = small("bert-tiny", "fill-mask")
    service, text = served(model, head=False), "the [MASK] sat on the mat ."
    found = explained(service, text, method="words")
    best = fill_mask(model, text, top=1)[0][0]
    assert found["target"] == best.token_str
    assert found["number"] == pytest.approx(np.log(best.score) - np.log1p(-best.score), abs=1e-3)
    assert {one["text"]: one["effect"] for one in found["words"]}["[MASK]"] is None
    slopes = explained(service, text, steps=64)
    assert slopes["number"] == pytest.approx(found["number"], abs=1e-3)
    assert abs(slopes["gap"]) < 2e-3 + 0.02 * abs(slopes["number"] - slopes["baseline"])
    near = explained(service, TEXT, "one dog sleeps", steps=32)
    a, b = encode(model, [TEXT, "one dog sleeps"])
    assert near["number"] == pytest.approx(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), abs=1e-4)
    assert abs(near["gap"]) < 1e-2


def test_the_usual_prompt_stands_before_explained_texts() -> None:
    model, prompt, texts = small("bert-tiny"), "the big ", ("red cat", "a dog")
    prompts = Prompts({"query": prompt}, "query")
    service = Service(model, None, name="m", pooling="mean", normalize=True, prompts=prompts)
    one, other = unit(encode(model, [prompt + text for text in texts]))
    for method in ("gradients", "words"):
        found = explained(service, *texts, method=method)
        assert found["number"] == pytest.approx(float(one @ other), abs=1e-5)
        places = [token["start"] for token in found["tokens"]]
        assert places == [None, None, None, 0, 4, None]
    assert [word["text"] for word in found["words"]] == ["red", "cat"]


def test_attention_is_shown_as_attention() -> None:
    service = served(small("deberta-v3-tiny"), head=False)
    found = explained(service, TEXT, method="attention", layer=1, head=1)
    size = len(found["tokens"])
    assert found["weights"].shape == (size, size) and (found["layers"], found["heads"]) == (2, 2)
    assert found["weights"].sum(1) == pytest.approx(np.ones(size), abs=1e-3)


@pytest.mark.parametrize(
    ("texts", "asked", "message"),
    [
        ((TEXT,), {"target": "fine"}, "target 'fine' is none of good, bad, so-so"),
        (("  ",), {}, "the text has no word"),
        ((TEXT,), {"method": "attention", "layer": 7}, "layer 8, expected 1 to 2"),
        ((TEXT,), {"method": "attention", "head": 7}, "head 8, expected 1 to 2"),
    ],
)
def test_what_cannot_be_explained(texts: tuple[str, ...], asked: dict[str, Any], message: str) -> None:
    service = served(small("bert-tiny", "classification"))
    (found,) = service.compute("explain", [ExplanationRequest(texts=texts, **({"method": "gradients"} | asked))])
    assert isinstance(found, Refused) and message in str(found)


@pytest.mark.parametrize("fields", [{"target": "the"}, {"at": 3}])
def test_fields_without_effect_are_refused(fields: dict[str, Any]) -> None:
    service = served(small("bert-tiny"), head=False)
    with pytest.raises(Refused, match="is.* here; leave it out"):
        explained(service, TEXT, TEXT, **fields)


def test_heads_whose_ends_depend_on_the_start_show_attention_alone() -> None:
    service = served(small("electra-tiny", "span"))
    with pytest.raises(Refused, match="only attention can be shown"):
        explained(service, "who ?", TEXT)
    assert explained(service, "who ?", TEXT, method="attention")["heads"] == 2


def test_the_usual_mask_stands_for_the_one_of_the_model() -> None:
    """As in the task of the model; the page explains what it sent there."""
    model = Model(small("roberta-tiny").config, tokenizer("roberta")).initialize(1).eval()
    with serving(model) as asked:
        own, usual = (asked("/explain", {"inputs": f"the {mask} cat", "steps": 1}) for mask in ("<mask>", "[MASK]"))
        assert own[0] == usual[0] == 200 and own[1]["target"] == usual[1]["target"]


def test_a_server_explains_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = with_head(Classification(labels=3), ("good", "bad", "so-so"))
    with serving(predictor.model, predictor) as asked:
        status, found, headers = asked("/explain", {"inputs": TEXT, "steps": 4})
        assert status == 200 and found["steps"] == 4 and len(found["tokens"]) == 10
        assert abs(sum(one["attribution"] for one in found["tokens"]) - found["sum"]) < 1e-5
        assert float(headers["x-inference-time"]) > 0
        status, found, _ = asked("/explain", {"inputs": TEXT, "target": "fine"})
        assert (status, found["error_type"]) == (422, "Validation") and "is none of" in found["error"]
        assert asked("/explain", {"inputs": TEXT, "steps": 0})[0] == 422
        for method, field in (("words", "steps"), ("gradients", "layer"), ("attention", "at")):
            status, found, _ = asked("/explain", {"inputs": TEXT, "method": method, field: 1})
            assert status == 422 and found["error"].startswith(f"`{field}` has no effect on the method {method}")
        assert asked("/explain", {"inputs": [TEXT, TEXT, TEXT]})[0] == 422
        long = {"inputs": "cat " * 400}
        assert asked("/explain", long | {"method": "gradients", "steps": 1})[0] == 200
        for method, steps, tokens in (("words", 1, "161,603"), ("gradients", 128, "52,390")):
            with monkeypatch.context() as patch:
                patch.setattr(handlers, "EXPLAINED", 50_000)
                more = {"steps": steps} if method == "gradients" else {}
                status, found, _ = asked("/explain", long | {"method": method} | more)
                assert status == 422 and f"would read {tokens} tokens, at most 50,000" in found["error"]
        monkeypatch.setattr(handlers, "ATTENDED", 402)
        status, found, _ = asked("/explain", long | {"method": "attention"})
        assert status == 422 and "403 tokens, attention is shown of at most 402" in found["error"]
        assert asked("/predict", {"inputs": TEXT})[0] == 200
