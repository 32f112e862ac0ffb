"""Graphs in int8: what they lose is measured on the user's texts, and a graph that loses too much is not written."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

import onnx  # noqa: E402

from encoderlab.cli import main  # noqa: E402
from encoderlab.deploy.export import int8, trace  # noqa: E402
from encoderlab.deploy.export.fidelity import MaskCheck, TaskCheck, VectorCheck  # noqa: E402
from encoderlab.deploy.graph import Arrays, Graph, Run  # noqa: E402
from encoderlab.deploy.onnx import OnnxRun  # noqa: E402
from encoderlab.interchange import folder as folders  # noqa: E402
from encoderlab.models.base import resized  # noqa: E402
from encoderlab.nn.stem import StemConvolution  # noqa: E402
from encoderlab.tasks.data.examples import Text  # noqa: E402
from encoderlab.tasks.runs.predict import Predictor, task_of_model  # noqa: E402
from tests.deploy.test_export import LABELS, small  # noqa: E402
from tests.interchange.tiny_models import make  # noqa: E402
from tests.tasks.tiny import WORDS  # noqa: E402

WORDS_ALONE = [word for word in WORDS if word.isalpha()]


def texts(count: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS_ALONE, k=rng.randint(2, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Graph]:
    """A graph whose second layer has an outlier as trained models have, so that int8 loses there."""
    model = small("bert-tiny")
    with torch.no_grad():
        model.encoder.blocks[1].feed_forward.up.weight[0] *= 400
    graph, path = Graph(model, "states"), tmp_path_factory.mktemp("graph") / "model.onnx"
    trace.write_onnx(trace.trace(graph), graph, path)
    return path, graph


def judged(damaged: tuple[Path, Graph], out: Path, tolerance: float) -> tuple[dict[str, Any], list[str]]:
    path, graph = damaged
    said: list[str] = []
    check = VectorCheck(graph, texts(20), 32, "mean")
    return int8.quantize(path, out, check, tolerance, said.append), said


def test_the_ladder_stops_at_the_first_graph_that_is_good_enough(damaged: tuple[Path, Graph], tmp_path: Path) -> None:
    found, said = judged(damaged, tmp_path / "out.onnx", 0.99)
    assert found["kept"] == "all products and the word table" and len(found["tried"]) == len(said) == 1
    assert found["bytes"]["int8"] < found["bytes"]["fp32"] and found["milliseconds"]["int8"] > 0
    fall = found["tried"][0]["fall"]
    assert 0 < fall and found["tried"][0]["low"] <= fall <= found["tried"][0]["high"]


def test_parts_that_cost_most_stay_in_fp32(damaged: tuple[Path, Graph], tmp_path: Path) -> None:
    everything = judged(damaged, tmp_path / "every.onnx", 0.99)[0]["tried"][0]["fall"]
    found, _ = judged(damaged, tmp_path / "out.onnx", everything / 3)
    assert [one["rung"] for one in found["tried"]][:2] == ["all products and the word table", "all but layer 2"]
    assert found["kept"] == "all but layer 2" and found["tried"][1]["fall"] <= everything / 3


def test_nearest_texts_are_compared_without_all_products_at_a_time(damaged: tuple[Path, Graph]) -> None:
    check = VectorCheck(damaged[1], texts(3), 32, "mean")
    rng = np.random.default_rng(0)
    before = rng.normal(size=(3000, 8)).astype(np.float32)
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    after = before + rng.normal(0, 0.01, before.shape).astype(np.float32)
    tracemalloc.start()
    same = check.more(before, after)["same nearest text"]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8e6  # all products are 36 MB
    nearest = [(one @ one.T - 3 * np.eye(3000)).argmax(1) for one in (before, after)]
    assert same == np.mean(np.equal(*nearest)) and 0.5 < same < 1


@pytest.mark.parametrize(
    ("size", "changes"),
    [("deberta-v2-tiny", {"stem_conv": StemConvolution(kernel=3), "width": 32}), ("convbert-tiny", {"ff_groups": 2})],
)
def test_products_with_several_matrices_stay_in_fp32(size: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """DeBERTa's convolution and grouped feed-forward, of which ONNX Runtime has no products in 8 bits."""
    model = make(resized(small(size).config, **changes))
    model.tokenizer = small(size).tokenizer
    graph, path = Graph(model, "states"), tmp_path / "model.onnx"
    trace.write_onnx(trace.trace(graph), graph, path)
    weights = {tensor.name: len(tensor.dims) for tensor in onnx.load(path).graph.initializer}
    products = [node for node in onnx.load(path).graph.node if node.op_type == "MatMul"]
    assert any(weights.get(name) == 3 for node in products for name in node.input)
    found, _ = judged((path, graph), tmp_path / "out.onnx", 0.05)
    assert found["kept"] == "all products and the word table"
    left = [node for node in onnx.load(tmp_path / "out.onnx").graph.node if node.op_type == "MatMul"]
    assert {weights[name] for node in left for name in node.input if name in weights} == {3}


def test_nothing_is_written_where_too_much_is_lost(damaged: tuple[Path, Graph], tmp_path: Path) -> None:
    found, said = judged(damaged, tmp_path / "out.onnx", 0.0)
    assert found["kept"] is None and not (tmp_path / "out.onnx").exists()
    assert found["tried"][-1]["rung"] == "weights only" and len(said) == len(found["tried"])
    assert found["tried"][-1]["fall"] < found["tried"][0]["fall"]


def test_no_product_of_weights_can_overflow(damaged: tuple[Path, Graph], tmp_path: Path) -> None:
    """Without VNNI two products of 8 bits are added in 16; weights of 7 bits keep them below 2**15."""
    import onnx
    from onnx import numpy_helper

    judged(damaged, tmp_path / "out.onnx", 0.99)
    model = onnx.load(tmp_path / "out.onnx")
    weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    of_products = [weights[node.input[1]] for node in model.graph.node if node.op_type == "MatMulInteger"]
    assert len(of_products) >= 8
    assert max(int(np.abs(one.astype(int)).max()) for one in of_products) * 255 * 2 < 2**15


def other(run: Run, name: str, change: Any) -> Run:
    """A graph that answers otherwise."""

    def changed(inputs: Arrays) -> Arrays:
        outputs = run(inputs)
        return outputs | {name: change(outputs[name])}

    return changed


def test_what_a_verdict_says_of_labelled_texts(tmp_path: Path) -> None:
    from encoderlab.deploy.export import check

    model = small("bert-tiny", "classification")
    predictor = Predictor.of(model, task_of_model(model))
    run = check.own(Graph(model, "classification"))
    plain = [Text(id=str(i), text=text) for i, text in enumerate(texts(40))]
    answers = TaskCheck(predictor, predictor.form.task, plain).answers(run)
    gold = [Text(id=one.id, text=one.text, label=label) for one, label in zip(plain, answers, strict=True)]
    labelled = TaskCheck(predictor, predictor.form.task, gold)
    worse = other(run, "logits", lambda logits: np.where(np.arange(len(logits))[:, None] % 2, logits, -logits))
    verdict = labelled.verdict(answers, labelled.answers(worse))
    assert (verdict.metric, verdict.before) == ("accuracy", 1.0)
    assert verdict.after == verdict.agreement == pytest.approx(1 - verdict.fall) and 0.2 < verdict.fall < 0.8
    assert 0 < verdict.low < verdict.fall < verdict.high < 1
    alone = TaskCheck(predictor, predictor.form.task, plain)
    assert alone.metric is None and alone.verdict(answers, labelled.answers(worse)).fall == verdict.fall
    same = labelled.verdict(answers, answers)
    assert (same.fall, same.low, same.high, same.agreement) == (0, 0, 0, 1)


def test_masked_words_are_scored_by_the_text_itself() -> None:
    from encoderlab.deploy.export import check

    graph = Graph(small("bert-tiny", "fill-mask"), "fill-mask")
    masks = MaskCheck(graph, texts(30), 32)
    assert all(len(places) >= 1 for places in masks.places)
    run = check.own(graph)
    answers = masks.answers(run)
    told = [(answers[i] == masks.hidden[i]).tolist() for i in range(30)]
    assert masks.score(answers, np.arange(30)) == pytest.approx(np.mean(sum(told, [])))
    turned = masks.answers(other(run, "logits", np.negative))
    assert masks.verdict(answers, turned).agreement < 0.2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save(small("bert-tiny", "classification"), tmp_path / "model")
    rows = [f"{text}\t{LABELS[len(text) % 3]}" for text in texts(60)]
    (tmp_path / "dev.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    where = [str(tmp_path / "model"), str(tmp_path / "out"), "--length", "40"]
    wanted = ["--int8", "--check", str(tmp_path / "dev.tsv")]
    for flags, message in (
        (["--int8"], "give both --int8 and --check FILE"),
        (["--check", wanted[2]], "give both --int8 and --check FILE"),
        ([*wanted, "--to", "pt2"], "give --to onnx too"),
        ([*wanted, "--tolerance", "2"], "expected a share from 0 to 1"),
    ):
        assert main(["export", *where, *flags]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert main(["export", *where, "--int8", "--check", str(tmp_path / "none.tsv")]) == 3
    assert main(["export", *where, *wanted, "--tolerance", "0.9", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["int8"]
    assert told["kept"] and told["tried"][0]["metric"] == "accuracy" and told["tried"][0]["texts"] == 60
    assert told == json.loads((tmp_path / "out" / "export.json").read_text())["int8"]
    page = (tmp_path / "out" / "README.md").read_text()
    assert "## int8" in page and f"{100 * told['tried'][0]['after']:.2f}" in page and 'dtype: "q8"' in page
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["transformers.js_config"] == {"dtype": "q8"}
    ids = np.array([[2, 7, 8, 3]])
    given = {name: np.ones_like(ids) for name in ("attention_mask", "token_type_ids")} | {"input_ids": ids}
    names = ("model.onnx", "model_quantized.onnx")
    fp32, small_graph = (OnnxRun(tmp_path / "out" / "onnx" / name)(given)["logits"] for name in names)
    assert 0 < np.abs(fp32 - small_graph).max() < 0.2


def test_a_command_that_keeps_fp32_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save(small("bert-tiny"), tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(texts(10)) + "\n")
    (tmp_path / "one.txt").write_text("red cat\n")
    where = [str(tmp_path / "model"), str(tmp_path / "out"), "--length", "40", "--tolerance", "0", "--int8", "--check"]
    assert main(["export", *where, str(tmp_path / "one.txt")]) == 3
    assert "1 texts, expected at least 2" in " ".join(capsys.readouterr().err.split())
    assert main(["export", *where, str(tmp_path / "texts.txt")]) == 0
    assert "int8 is not written: every attempt loses more than 0 %" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "out" / "onnx" / "model_quantized.onnx").exists()
    assert "There is no `onnx/model_quantized.onnx`" in (tmp_path / "out" / "README.md").read_text()
