"""The folder of an exported model, which other libraries and servers open by their published rules."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from encoderlab import __version__
from encoderlab.deploy.export import check, readme, trace
from encoderlab.deploy.export.fidelity import Check
from encoderlab.deploy.export.int8 import quantize
from encoderlab.deploy.graph import Graph, Use
from encoderlab.deploy.onnx import GRAPH, QUANTIZED, OnnxRun
from encoderlab.deploy.sentence_transformers import Prompts
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import check_new, write_json
from encoderlab.inference import Pooling
from encoderlab.interchange import folder as folders
from encoderlab.interchange import huggingface
from encoderlab.interchange.files import read_json
from encoderlab.messages import Say
from encoderlab.model import Model, weights_hash
from encoderlab.tasks.runs.folder import TASK_FILE

GraphFormat = Literal["onnx", "pt2"]
ARCHIVE, RECORD = "model.pt2", "export.json"


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """The settings of an export.

    Args:
        to: formats of the graph: ``onnx``, and torch's archive ``pt2``.
        pooling: how states become the vector of a text; written for sentence-transformers and servers.
        normalize: scale the vectors of texts to length 1.
        length: the longest text that tools should read, in tokens; None for the model's limit, at most 512.
        tolerance: share of the score, or of the agreement, that a graph in int8 may lose.
        prompts: what is put before texts; written for sentence-transformers.
        comparison: the function by which sentence-transformers compares vectors.
        scoring: fields of ``config.json`` that say what is made of a cross-encoder's number.
    """

    to: tuple[GraphFormat, ...] = ("onnx",)
    pooling: Pooling = "mean"
    normalize: bool = True
    length: int | None = None
    tolerance: float = 0.005
    prompts: Prompts = Prompts()
    comparison: str = "cosine"
    scoring: Mapping[str, Any] = field(default_factory=dict)


def export(
    model: Model,
    use: Use,
    out: Path,
    settings: ExportSettings,
    *,
    task: Path | None = None,
    check_int8: Callable[[Graph, int], Check] | None = None,
    say: Say,
) -> dict[str, Any]:
    """Write the folder, whole or not at all; returns the content of ``export.json``.

    Args:
        task: the ``task.json`` of a fine-tuned model, which is kept.
        check_int8: the texts, for a graph and its longest row, on which a graph in int8 is judged; None for no such
            graph.

    Raises:
        ConfigError: ``out`` is not empty, the model has no such length or is not in fp32, or int8 without ONNX.
        DataError: a weight is not finite.
        EncoderlabError: the graph cannot be made, or its outputs differ from the model's.
    """
    check_new(out)
    _check_weights(model)
    if check_int8 is not None and "onnx" not in settings.to:
        raise ConfigError("--int8 makes a graph of ONNX out of another one; give --to onnx too")
    graph = Graph(model, use)
    longest = _longest(graph, settings.length)
    record: dict[str, Any] = {
        "encoderlab": __version__,
        "family": model.config.family,
        "use": use,
        "weights": weights_hash(model),
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "longest": longest,
        "made_with": {
            name: importlib.metadata.version(name) for name in ("torch", "onnx", "onnxscript", "onnxruntime")
        },
        "processor": platform.machine(),
    }
    if use == "states":
        record |= {"pooling": settings.pooling, "normalize": settings.normalize}

    def fill(aside: Path) -> None:
        record["format"], record["notes"] = _model_files(model, aside, use)
        if record["format"] == "hf":
            _complete_config(aside, graph, longest, settings.scoring)
        if use == "states":
            _sentence_files(aside, model, settings, longest)
        if task is not None:
            shutil.copyfile(task, aside / TASK_FILE)
        record["checked"] = _graph_files(graph, aside, settings.to, longest, say)
        if check_int8 is not None:
            say("int8: judging what it costs")
            quantized = quantize(aside / GRAPH, aside / QUANTIZED, check_int8(graph, longest), settings.tolerance, say)
            record["int8"] = quantized
            if quantized["kept"] and record["format"] == "hf":
                path = aside / "config.json"  # transformers.js takes the smaller graph
                folders.write_fields(path, read_json(path) | {"transformers.js_config": {"dtype": "q8"}})
        write_json(aside / RECORD, record)
        (aside / "README.md").write_text(readme.text(record, graph, model), encoding="utf-8")

    folders.write_whole(out, fill)
    return record


def _check_weights(model: Model) -> None:
    for name, weight in model.named_parameters():
        if weight.dtype != torch.float32:
            kind = str(weight.dtype).removeprefix("torch.")
            raise ConfigError(f"the weight {name} is {kind}, a graph is made of float32; export model.float()")
        if not bool(weight.isfinite().all()):
            raise DataError(f"the weight {name} has values that are not finite; export an earlier checkpoint")


def _longest(graph: Graph, length: int | None) -> int:
    if length is None:
        return graph.longest
    most = graph.model.config.encoder.max_length
    if length < 2 or (most is not None and length > most):
        raise ConfigError(f"length {length}, expected 2 to {most or 'any number of'} tokens, special ones included")
    return length


def _model_files(model: Model, aside: Path, use: Use) -> tuple[str, list[str]]:
    """Write weights, configuration and tokenizer; returns the format and notes for the user.

    The format is Hugging Face's if ``transformers`` has the architecture and its head, otherwise ours.
    """
    try:
        if use == "fill-mask" and model.config.lm is not None and model.config.lm.next_token:
            raise DataError("the LM head predicts the next token, and no class in transformers does that")
        fill, notes = huggingface.prepared(model, bare=use == "states")
    except DataError as error:
        folders.write_files(model, aside, bare=use == "states")
        return "encoderlab", [f"the weights are in the format of encoderlab, because {error}"]
    fill(aside)
    return "hf", notes


def _complete_config(aside: Path, graph: Graph, longest: int, scoring: Mapping[str, Any]) -> None:
    """Add fields that servers read under one name for all families and that ``transformers`` derives, and those of
    ``scoring``.
    """
    path, encoder = aside / "config.json", graph.model.config.encoder
    config = {**read_json(path), **scoring}
    if config["model_type"] not in ("xlnet", "transfo-xl"):  # transformers refuses a length of these
        usual = {
            "hidden_size": encoder.width,
            "num_hidden_layers": encoder.layers,
            "num_attention_heads": config.get("n_heads", encoder.heads),  # pruned ones are written as zeros
            "max_position_embeddings": longest,
        }
        config = {**usual, **config}
    if config["model_type"].startswith("deberta"):
        config.setdefault("pooler_hidden_size", encoder.width)
        config.setdefault("pooler_hidden_act", "gelu")
    config["transformers.js_config"] = {"dtype": "fp32"}  # a browser would request a quantized file
    folders.write_fields(path, config)
    tokenizer = aside / "tokenizer_config.json"
    if tokenizer.exists():
        folders.write_fields(tokenizer, read_json(tokenizer) | {"model_max_length": longest})


def _sentence_files(aside: Path, model: Model, settings: ExportSettings, longest: int) -> None:
    """Write the pooling files for sentence-transformers, text-embeddings-inference, vLLM and ``serve``.

    The keys of 1_Pooling are those before sentence-transformers 5.4, which all three read. With the newer key alone,
    vLLM silently takes the first token, and text-embeddings-inference 1.9 fails.
    """
    modules = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    folders.write_fields(
        aside / "modules.json",
        [  # type: ignore[arg-type]
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{name}" if number else "",
                "type": f"sentence_transformers.models.{name}",
            }
            for number, name in enumerate(modules)
        ],
    )
    for number, name in enumerate(modules[1:], 1):
        (aside / f"{number}_{name}").mkdir()
    chosen = {"mean": "mean_tokens", "first": "cls_token", "last": "lasttoken"}[settings.pooling]
    kinds = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": model.config.encoder.width}
    pooling |= {f"pooling_mode_{kind}": kind == chosen for kind in kinds}
    folders.write_fields(aside / "1_Pooling" / "config.json", pooling | {"include_prompt": True})
    if settings.normalize:  # the module needs no configuration, but uploads drop empty folders
        folders.write_fields(aside / "2_Normalize" / "config.json", {})
    folders.write_fields(aside / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    folders.write_fields(
        aside / "config_sentence_transformers.json",
        {
            "prompts": dict(settings.prompts.named),
            "default_prompt_name": settings.prompts.default,
            "similarity_fn_name": settings.comparison,
        },
    )


def _graph_files(
    graph: Graph, aside: Path, to: Sequence[GraphFormat], longest: int, say: Say
) -> dict[str, list[dict[str, Any]]]:
    """Write the graph's files and compare each with the model; the differences by file."""
    program = trace.trace(graph)
    checked = {}
    if "onnx" in to:
        path = aside / GRAPH
        path.parent.mkdir()
        trace.write_onnx(program, graph, path)
        checked[GRAPH] = check.compare(graph, OnnxRun(path), longest)
    if "pt2" in to:
        torch.export.save(program, aside / ARCHIVE)
        checked[ARCHIVE] = check.compare(graph, check.own(graph, program.module()), longest)
    for name, differences in checked.items():
        say(f"{name}: differs from the model by at most {max(one.largest for one in differences):.1e}")
    return {name: [asdict(difference) for difference in differences] for name, differences in checked.items()}
