"""Exported folders: the numbers of every family and head, and the code in their README, which is run."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from encoderlab.cli import main
from encoderlab.deploy.export import check
from encoderlab.deploy.export import folder as exporting
from encoderlab.deploy.export.folder import ExportSettings, export
from encoderlab.deploy.export.trace import trace
from encoderlab.deploy.graph import Arrays, Graph, use_of
from encoderlab.deploy.onnx import OnnxRun
from encoderlab.deploy.reading import TaskReader
from encoderlab.deploy.serve.graphs import GraphService
from encoderlab.deploy.serve.service import Service
from encoderlab.errors import ConfigError, DataError, EncoderlabError
from encoderlab.inference import encode, fill_mask
from encoderlab.interchange import folder as folders
from encoderlab.interchange import huggingface
from encoderlab.interchange.heads import CHOICES, NUMBER
from encoderlab.interchange.load import load
from encoderlab.model import Model
from encoderlab.models import FAMILIES
from encoderlab.models.base import resized
from encoderlab.nn.heads import Classification, TaskHead
from encoderlab.nn.positions import Rotary, log_bucket
from encoderlab.tasks.data.examples import Choice, Question, TaggedWords, Text
from encoderlab.tasks.runs.predict import Predictor, task_of_model
from tests.interchange.tiny_models import CONFIGS
from tests.tasks.tiny import EVERY
from tests.tasks.tiny import model as tiny

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

logging.getLogger("torch.__trace").setLevel(logging.ERROR)  # pytest's handler would make torch write all it traces
LABELS = ("good", "bad", "so-so")
TEXTS = ["the red cat sat on the mat .", "who is it ?", "a", ""]


def small(size: str, use: str = "states", *, positions: int = 0) -> Model:
    """A tiny model with random biases, with the head that its family has for the use."""
    model = tiny(size, positions=positions).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    family = FAMILIES[model.config.family]
    heads: dict[str, TaskHead] = {
        "classification": replace(family.classification, labels=3),
        "tagging": replace(family.tagging, labels=3),
        "span": family.span,
    }
    if use not in heads:
        return model
    head = heads[use]
    if getattr(head, "summary", "") == "pooler" and model.pooler is None:
        head = replace(head, summary="dense")
    return model.with_task(head, LABELS if use != "span" else (), 0).eval()


@pytest.mark.parametrize("size", ["roberta-tiny", "modernbert-tiny"])
def test_a_head_that_reads_the_token_before_fills_masks_in_the_graph(size: str, tmp_path: Path) -> None:
    model = small(size)
    assert model.config.lm is not None and model.tokenizer is not None
    model = model.with_config(replace(model.config, lm=replace(model.config.lm, next_token=True))).eval()
    (guesses,) = fill_mask(model, "the red [MASK] sat on the mat .", top=3)
    ids, _ = model.tokenizer.frame(model.tokenizer.encode("the red [MASK] sat on the mat .").ids)
    given = torch.from_numpy(ids)[None].long()
    with torch.no_grad():
        (logits,) = Graph(model, "fill-mask")(given, torch.ones_like(given))
    scores = logits[0, ids.tolist().index(model.tokenizer.special.mask)].softmax(-1)
    assert [g.score for g in guesses] == pytest.approx([float(scores[g.token]) for g in guesses], rel=1e-4)
    record = export(model, "fill-mask", tmp_path / "out", ExportSettings(length=20), say=lambda _: None)
    assert record["format"] == "encoderlab" and "predicts the next token" in record["notes"][0]
    assert all(run_python(tmp_path / "out"))
    served_by_the_graph(tmp_path / "out", model, "fill-mask")


def test_padding_on_the_left_leaves_rotary_angles_alone() -> None:
    """Sharp attention, as trained models have it, shows how angles at other places are rounded."""
    model = small("modernbert-tiny")
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.attention.qkv.mul_(8)
    ids, padding = torch.randint(6, 30, (1, 300)), torch.zeros(1, 211, dtype=torch.long)
    graph, mask = Graph(model, "states"), torch.ones_like(ids)
    traced = trace(graph).module()
    with torch.no_grad():
        (wanted,) = traced(input_ids=ids, attention_mask=mask)
        (states,) = traced(input_ids=torch.cat([padding, ids], 1), attention_mask=torch.cat([padding, mask], 1))
    torch.testing.assert_close(states[:, 211:], wanted, atol=1e-4, rtol=0)  # 1e-3 with other angles


def test_borders_of_buckets_are_where_the_model_has_them(tmp_path: Path) -> None:
    """The exporter rounds factors to float32, and ONNX Runtime has a logarithm of its own."""

    class Buckets(torch.nn.Module):
        def forward(self, distance: torch.Tensor) -> torch.Tensor:
            return torch.cat([log_bucket(distance, *sizes) for sizes in ((8, 40), (32, 128), (48, 512), (20, 81))])

    distance = torch.arange(-600, 600)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Buckets(), (distance,), tmp_path / "graph.onnx", dynamo=True, verbose=False)
    run = OnnxRun(tmp_path / "graph.onnx")
    (found,) = run({run.inputs[0]: distance.numpy()}).values()
    assert np.array_equal(found, Buckets()(distance).numpy())


CASES = [  # family, use, the format of the weights
    ("bert-tiny", "span", "hf"),
    ("distilbert-tiny", "classification", "hf"),
    ("deberta-v3-tiny", "tagging", "encoderlab"),
    ("electra-tiny", "span", "encoderlab"),
    ("xlnet-tiny", "span", "hf"),
]
SLOW = [
    ("xlnet-tiny", "classification", "hf"),
    ("modernbert-tiny", "classification", "hf"),
    ("bert-tiny", "fill-mask", "hf"),
    ("bert-tiny", "tagging", "hf"),
    ("roberta-tiny", "span", "hf"),
    ("albert-tiny", "classification", "hf"),
    ("convbert-tiny", "states", "hf"),
    ("deberta-tiny", "fill-mask", "hf"),
    ("deberta-v2-tiny", "classification", "hf"),
    ("xlnet-tiny", "fill-mask", "hf"),
    ("transformer-xl-tiny", "classification", "encoderlab"),
]


def run_python(folder: Path) -> list[str]:
    """Run the Python code of a folder's README in it, each piece by itself in one process; what each prints."""
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    # sentence_transformers is in an environment of its own, see benchmarks/clients
    pieces = [piece for piece in code if "sentence_transformers" not in piece]
    each = "import json, sys\nfor piece in json.load(sys.stdin):\n    exec(piece, {})\n    print(chr(0))"
    told = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    run = [sys.executable, "-c", each]
    done = subprocess.run(run, cwd=folder, env=told, input=json.dumps(pieces), capture_output=True, text=True)
    assert done.returncode == 0, f"{pieces}\n{done.stderr}"
    return done.stdout.split("\0\n")[:-1]


@pytest.mark.parametrize(
    ("size", "use", "form"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_a_graph_has_the_numbers_of_the_model(size: str, use: Any, form: str, tmp_path: Path) -> None:
    model = small(size, use)
    record = export(model, use, tmp_path / "out", ExportSettings(length=140), say=lambda _: None)
    assert record["format"] == form
    assert {one["length"] for one in record["checked"]["onnx/model.onnx"]} == {1, 2, 3, 129, 130, 140}
    assert max(one["largest"] for one in record["checked"]["onnx/model.onnx"]) < 2e-5
    assert json.loads((tmp_path / "out" / "export.json").read_text()) == json.loads(json.dumps(record))
    if form == "hf" and not size.startswith("transformer-xl"):
        assert all(run_python(tmp_path / "out"))
    page = (tmp_path / "out" / "README.md").read_text()
    if "## transformers.js" in page:  # which sets the segments of two texts only if it is told to
        assert ("return_token_type_ids = true" in page) == ("token_type_ids" in record["inputs"])
    again = load(tmp_path / "out")  # the weights of the folder give the graph's numbers too
    if use != "fill-mask" or model.mask_positions is None:  # transformers has no place for the mask decoder
        check.compare(Graph(again, use), OnnxRun(tmp_path / "out" / "onnx" / "model.onnx"), 12)
    served_by_the_graph(tmp_path / "out", model, use)


def served_by_the_graph(folder: Path, model: Model, use: str) -> None:
    """``serve --engine onnx`` gives what the model in memory gives."""
    service = GraphService.open(folder, "onnx")
    if use == "fill-mask":
        assert model.tokenizer is not None
        masked = f"the {model.tokenizer.token(model.tokenizer.special.mask)} sat on the mat ."
        (found,), (wanted,) = service.compute("masks", [(masked, 3, None)])[0], fill_mask(model, masked, top=3)
        assert [one.token for one in found] == [one.token for one in wanted]
    elif use == "states":
        works = service.texts("vectors", TEXTS[:3], truncate=True, side="Right")
        assert np.abs(np.stack(service.compute("vectors", works.works)) - encode(model, TEXTS[:3])).max() < 1e-4
    else:
        examples = examples_of(use)
        works, items = service.items(examples)
        wanted = Predictor.of(model, task_of_model(model)).predict(examples)
        assert service.predictor is not None
        found = service.predictor.form.decode(items, service.compute("scores", works.works), examples)
        assert found.values == wanted.values


def examples_of(use: str) -> list[Any]:
    """Examples of a head, also of two texts and of nothing where the form takes them."""
    return {
        "classification": [Text(id="", text=text, pair=text[::-1]) for text in TEXTS],
        "tagging": [TaggedWords(id="", words=tuple(text.split())) for text in TEXTS if text],
        "span": [Question(id=text, question="who ?", passage=text) for text in TEXTS if text],
    }[use]


@settings(max_examples=20, deadline=None)
@given(st.data())
@pytest.mark.parametrize("family", EVERY)
def test_gaps_in_a_mask_count_as_for_the_model(family: str, data: st.DataObject) -> None:
    """``model(ids, attention_mask=...)`` is compared with ``transformers`` in tests/parity. Padding in front of a row
    moves its tokens in ``transformers`` but not in a graph."""
    graph = Graph(small(f"{family}-tiny", "states"), "states")
    rows = data.draw(st.lists(st.lists(st.integers(0, 1), min_size=8, max_size=8), min_size=1, max_size=3))
    mask = torch.tensor([[1, *row] for row in rows])
    ids = torch.randint(6, 30, mask.shape, generator=torch.Generator().manual_seed(0))
    padding = torch.zeros(len(ids), data.draw(st.integers(0, 3)), dtype=torch.long)
    segments = torch.cat([padding, torch.zeros_like(ids)], 1) if graph.reads_segments else None
    with torch.no_grad():
        wanted = graph.model(ids, attention_mask=mask).last
        (states,) = graph(torch.cat([padding, ids], 1), torch.cat([padding, mask], 1), segments)
    states = states[:, padding.shape[1] :]
    torch.testing.assert_close(states[mask > 0], wanted[mask > 0], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("use", ["classification", "tagging", "span"])
@pytest.mark.parametrize("family", EVERY)
def test_what_is_traced_answers_as_prediction_does(family: str, use: Any) -> None:
    """The other tests compare a graph with what was traced; this one, what is traced with fine-tuning's own code."""
    model = small(f"{family}-tiny", use)
    predictor, graph = Predictor.of(model, task_of_model(model)), Graph(model, use)
    examples = examples_of(use)
    items = predictor.form.items(examples)
    reader, wanted = TaskReader(check.own(graph), model, predictor.form), predictor.outputs(items)
    found = reader.outputs(items)
    for one, theirs in zip(found, wanted, strict=True):
        if use != "span":
            assert one == pytest.approx(theirs, abs=1e-5)
            continue
        count = min(graph.beam or 20, len(theirs.start_scores), len(one.start_scores))
        assert one.absolute == theirs.absolute and one.null == pytest.approx(theirs.null, abs=1e-5)
        assert one.start_scores[:count] == pytest.approx(theirs.start_scores[:count], abs=1e-5)
        same = np.isfinite(theirs.start_scores[:count]) & (one.starts[:count] == theirs.starts[:count])
        ends = one.end_scores[:count, :count][same]
        assert ends == pytest.approx(theirs.end_scores[:count, :count][same], abs=1e-5) and same[0]
    decoded = [predictor.form.decode(items, outputs, examples).values for outputs in (found, wanted)]
    assert decoded[0] == decoded[1] or isinstance(decoded[0][0], float)


@pytest.mark.parametrize("form", ["regression", "multilabel", "choice"])
def test_other_forms_read_a_graph_too(form: str) -> None:
    heads: dict[str, tuple[Classification, tuple[str, ...]]] = {
        "regression": (Classification(labels=1), NUMBER),
        "multilabel": (Classification(labels=3, several=True), LABELS),
        "choice": (Classification(labels=1), CHOICES),
    }
    model = tiny("bert-tiny").with_task(*heads[form], 0).eval()
    predictor = Predictor.of(model, task_of_model(model))
    assert predictor.form.name == form
    options = (
        Choice(id="", context="sue sat .", question="who ?", options=("sue", "bob runs")) if form == "choice" else None
    )
    items = predictor.form.items([options or Text(id="", text=text) for text in TEXTS])
    found = TaskReader(check.own(Graph(model, "classification")), model, predictor.form).outputs(items)
    for one, theirs in zip(found, predictor.outputs(items), strict=True):
        assert one == pytest.approx(theirs, abs=1e-5)


def test_a_server_gets_the_logit_from_the_graph_as_from_the_model() -> None:
    """Of a ranker whose one output has a name, which prediction gives as a probability."""
    model = tiny("bert-tiny").with_task(Classification(labels=1), ("LABEL_0",), 0).eval()
    predictor = Predictor.of(model, task_of_model(model))
    items = predictor.form.items([Text(id="", text=text) for text in TEXTS])
    found = np.stack(TaskReader(check.own(Graph(model, "classification")), model, predictor.form).scores(items))
    served = Service(model, predictor, name="tiny", pooling="mean", normalize=True).compute("scores", items)
    assert found == pytest.approx(np.stack(served), abs=1e-5)
    assert 1 / (1 + np.exp(-found)) == pytest.approx(np.stack(predictor.outputs(items)), abs=1e-5)


def test_a_pruned_model_has_one_number_of_heads(tmp_path: Path) -> None:
    """``transformers`` reads both names, and has no pruned heads."""
    tokenizer = tiny("bert-tiny").tokenizer
    assert tokenizer is not None
    config = resized(CONFIGS["distilbert"], vocab=tokenizer.vocab_size, heads=1, head_width=64)
    model = Model(config, tokenizer).initialize(0)
    huggingface.save(model, tmp_path / "out")
    exporting._complete_config(tmp_path / "out", Graph(model, "states"), 16, {})
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["n_heads"] == config["num_attention_heads"] == 2


def test_states_are_opened_by_the_code_in_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import transformers

    model, out = small("bert-tiny"), tmp_path / "out"
    record = export(model, "states", out, ExportSettings(to=("onnx", "pt2"), length=140), say=lambda _: None)
    assert set(record["checked"]) == {"onnx/model.onnx", "model.pt2"}
    shape, of_archive, states = run_python(out)
    assert re.fullmatch(r"\(2, \d+, 64\)\n", shape) and states.startswith("[[[")
    assert of_archive.replace("[", "").replace("]", "") == f"torch.Size{shape}"
    theirs = transformers.AutoModel.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    rows = tokenizer(TEXTS, padding=True, return_tensors="np")
    (ours,) = OnnxRun(out / "onnx" / "model.onnx")(dict(rows)).values()
    with torch.no_grad():
        states = theirs(**{name: torch.from_numpy(x) for name, x in rows.items()}).last_hidden_state.numpy()
    real = rows["attention_mask"] > 0
    assert np.abs(ours - states)[real].max() < 2e-5
    means = np.stack([ours[row, real[row]].mean(0) for row in range(len(TEXTS))])
    assert np.abs(means - encode(model, TEXTS)).max() < 2e-5
    graph = torch.export.load(out / "model.pt2").module()
    with torch.no_grad():
        (archived,) = graph(**{name: torch.from_numpy(x) for name, x in rows.items()})
    assert np.abs(archived.numpy() - states)[real].max() < 2e-5
    assert json.loads((out / "config.json").read_text())["architectures"] == ["BertModel"]  # as vLLM wants it
    with safe_open(out / "model.safetensors", "pt") as weights:
        assert {name.partition(".")[0] for name in weights.keys()} == {"embeddings", "encoder", "pooler"}  # noqa: SIM118
    pooling = json.loads((out / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] is True and pooling["pooling_mode_cls_token"] is False
    assert [module["type"].rpartition(".")[2] for module in json.loads((out / "modules.json").read_text())] == [
        "Transformer", "Pooling", "Normalize",
    ]  # fmt: skip


def test_masks_are_filled_by_the_graph_as_by_the_model(tmp_path: Path) -> None:
    """DeBERTa's guesses come from its mask decoder, which transformers lacks."""
    model, out = small("deberta-tiny", "fill-mask"), tmp_path / "out"
    export(model, "fill-mask", out, ExportSettings(length=20), say=lambda _: None)
    text = "the [MASK] sat on the [MASK] ."
    ids, _ = model.tokenizer.frame(model.tokenizer.encode(text).ids)
    run = OnnxRun(out / "onnx" / "model.onnx")
    (logits,) = run({"input_ids": ids[None], "attention_mask": np.ones_like(ids)[None]}).values()
    for place, guesses in zip(np.flatnonzero(ids == model.tokenizer.special.mask), fill_mask(model, text), strict=True):
        assert list(np.argsort(-logits[0, place])[:5]) == [guess.token for guess in guesses]
    assert "fill-mask gives wrong" in (out / "README.md").read_text()
    assert "from transformers import" not in (out / "README.md").read_text()


def test_a_graph_with_other_numbers_ends_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("bert-tiny")
    run = check.own(Graph(model, "states"))
    monkeypatch.setattr("encoderlab.deploy.export.trace.trace", lambda graph: None)
    monkeypatch.setattr("encoderlab.deploy.export.trace.write_onnx", lambda *_: None)
    off = lambda _: lambda given: {name: x + 2e-4 for name, x in run(given).items()}  # noqa: E731
    monkeypatch.setattr("encoderlab.deploy.export.folder.OnnxRun", off)
    with pytest.raises(EncoderlabError, match="differs from the model by 0.0002 at length 1,.*Nothing was written"):
        export(model, "states", tmp_path / "out", ExportSettings(length=20), say=lambda _: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("positions", [2, 3, 8])
def test_models_of_few_positions_are_exported(positions: int, tmp_path: Path) -> None:
    model = small("bert-tiny", positions=positions)
    assert export(model, "states", tmp_path / "out", ExportSettings(), say=lambda _: None)["longest"] == positions


def test_a_graph_that_fills_masks_reads_no_further_than_the_mask_decoder() -> None:
    network = small("deberta-tiny")
    model = Model(replace(network.config, mask_decoder=9), network.tokenizer).initialize(0)
    assert [Graph(model, use).longest for use in ("fill-mask", "states")] == [9, 512]


def test_what_cannot_be_written_ends_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no reason for another format, and of a process that was killed nothing stays."""
    model = small("bert-tiny")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface, "write_weights", lambda *_: os._exit(9))
    child = os.fork()
    if not child:
        export(model, "states", tmp_path / "out", ExportSettings(), say=lambda _: None)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9 and list(tmp_path.iterdir())
    monkeypatch.setattr(huggingface, "write_weights", full)
    with pytest.raises(DataError, match="out: could not be written .No space left on device"):
        export(model, "states", tmp_path / "out", ExportSettings(), say=lambda _: None)
    assert not list(tmp_path.iterdir())


def test_weights_that_no_graph_has_are_named(tmp_path: Path) -> None:
    model = small("bert-tiny")
    with torch.no_grad():
        model.pooler.dense.weight[3, 3] = float("nan")  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"^the weight pooler.dense.weight has values that are not finite; export an"):
        export(model, "states", tmp_path / "out", ExportSettings(), say=lambda _: None)
    half = small("bert-tiny").bfloat16()
    with pytest.raises(ConfigError, match=r"^the weight encoder.embeddings.words is bfloat16.*export model.float\(\)"):
        export(half, "states", tmp_path / "out", ExportSettings(), say=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_rounds_more_may_differ_more() -> None:
    """Sharp attention, as deep trained models may have it, multiplies the rounding of float32."""
    model = small("bert-tiny")
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.attention.qkv.mul_(10)
    graph = Graph(model, "states")
    run = check.own(graph)

    def off(difference: float) -> Any:
        return lambda given: {name: x + difference * np.maximum(1, np.abs(x)) for name, x in run(given).items()}

    allowed = check.tolerance(graph, 20)
    assert 2e-4 < allowed < 1e-2
    assert check.compare(graph, off(allowed / 2), 20)
    with pytest.raises(EncoderlabError, match=r"differs from the model by .*at most 0.00\d* is allowed"):
        check.compare(graph, off(1.2 * allowed), 20)
    with pytest.raises(EncoderlabError, match="at most 0.0001 is allowed"):
        check.compare(Graph(small("bert-tiny"), "states"), off(2e-4), 20)


@pytest.mark.parametrize("name", ["start_top_index", "end_top_log_probs", "cls_logits"])
def test_wrong_answers_are_seen(name: str) -> None:
    graph = Graph(small("electra-tiny", "span"), "span")
    run = check.own(graph)
    assert max(one.largest for one in check.compare(graph, run, 20)) < 2e-5

    def off(inputs: Arrays) -> check.Arrays:
        outputs = run(inputs)
        return outputs | {name: outputs[name] + 1}

    with pytest.raises(EncoderlabError, match="differs"):
        check.compare(graph, off, 20)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save(small("bert-tiny"), tmp_path / "model")
    where = [str(tmp_path / "model"), str(tmp_path / "out")]
    assert main(["export", *where, "--length", "12", "--no-normalize", "--pooling", "first", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["use"] == "states" and told["difference"]["onnx/model.onnx"] < 1e-5
    assert not (tmp_path / "out" / "2_Normalize").exists()
    pooling = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_cls_token"] is True
    assert main(["export", *where]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    other = [where[0], str(tmp_path / "other")]
    for flags, message in (
        (["--length", "9999"], "length 9999, expected 2 to 512 tokens"),
        (["--as", "task"], "no task head; fine-tune it first"),
        (["--as", "fill-mask", "--pooling", "first"], "--pooling is for vectors of texts, not for --as fill-mask"),
        (["--as", "fill-mask", "--no-normalize"], "--normalize is for vectors of texts, not for --as fill-mask"),
    ):
        assert main(["export", *other, *flags]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert main(["export", str(tmp_path / "none"), str(tmp_path / "other")]) == 3
    assert not (tmp_path / "other").exists()


def test_settings_of_sentence_transformers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A model of the first token must not become one of the mean."""
    monkeypatch.setattr(exporting, "_graph_files", lambda *_: {})
    folder, kind = tmp_path / "model", "sentence_transformers.models."
    folders.save(small("bert-tiny"), folder)
    (folder / "1_Pooling").mkdir()
    modules = [{"path": "", "type": kind + "Transformer"}, {"path": "1_Pooling", "type": kind + "Pooling"}]
    general = {"prompts": {"query": "the "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    for name, value in (
        ("modules.json", modules),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}),
        ("sentence_bert_config.json", {"max_seq_length": 12}),
        ("config_sentence_transformers.json", general),
    ):
        (folder / name).write_text(json.dumps(value))
    assert main(["export", str(folder), str(tmp_path / "kept")]) == 0
    assert main(["export", str(folder), str(tmp_path / "given"), "--pooling", "mean", "--normalize"]) == 0
    for out, pooling, normalize in (("kept", "first", False), ("given", "mean", True)):
        service = Service.of(tmp_path / out)
        assert (service.pooling, service.normalize, service.longest) == (pooling, normalize, 12)
        assert service.prompts.before(None) == "the "
        assert json.loads((tmp_path / out / "config_sentence_transformers.json").read_text()) == general
    (folder / "modules.json").write_text(json.dumps([*modules, {"path": "2_Dense", "type": kind + "Dense"}]))
    capsys.readouterr()
    assert main(["export", str(folder), str(tmp_path / "other")]) == 2
    assert "module Dense is not implemented" in capsys.readouterr().err
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(general | {"similarity_fn_name": "l2"}))
    assert main(["export", str(folder), str(tmp_path / "other")]) == 3
    assert "similarity_fn_name is 'l2', expected one of cosine, dot" in capsys.readouterr().err


def test_vectors_of_a_model_that_transformers_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is in our format, and is served as it was exported: without its head, pooled as asked for."""
    monkeypatch.setattr(exporting, "_graph_files", lambda *_: {})
    rotary = Model(resized(small("bert-tiny").config, position=Rotary()), tiny("bert-tiny").tokenizer).initialize(1)
    tuned = rotary.with_task(Classification(labels=3), LABELS, 0).eval()
    record = export(tuned, "states", tmp_path / "out", ExportSettings(pooling="last", normalize=False), say=print)
    service = Service.of(tmp_path / "out")
    assert record["format"] == "encoderlab" and service.gives_vectors
    assert (service.pooling, service.normalize, service.longest) == ("last", False, record["longest"])


def test_a_model_without_what_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="without LM head cannot fill masks"):
        use_of(replace_lm(small("bert-tiny")), "fill-mask")


def replace_lm(model: Model) -> Model:
    config = replace(model.config, lm=None, pair=False)
    return Model(replace(config, encoder=resized(config).encoder), model.tokenizer)


def test_damaged_graphs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(DataError, match="no such file; run: encoderlab export"):
        OnnxRun(path)
    path.write_bytes(b"no graph")
    with pytest.raises(DataError, match="ONNX Runtime cannot read it"):
        OnnxRun(path)
