"""The README of an exported folder: its content, the checks, and the code that opens it with each tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from encoderlab.deploy.export import int8
from encoderlab.deploy.graph import Graph
from encoderlab.interchange import configs
from encoderlab.interchange.heads import chooses
from encoderlab.model import Model

PIPELINES = {
    "states": "feature-extraction",
    "fill-mask": "fill-mask",
    "classification": "text-classification",
    "tagging": "token-classification",
    "span": "question-answering",
}
SERVED = {  # by text-embeddings-inference 1.9: on any processor, or by its image for CPUs through ONNX Runtime
    "any": ("bert", "roberta", "distilbert", "deberta-v2", "modernbert"),
    "cpu": ("albert", "electra", "convbert", "deberta"),
}


@dataclass(frozen=True)
class Tool:
    """A tool that runs a graph: its file, and lines of Python that import the tool, open the file, make an input of
    rows of numbers and run the graph.
    """

    file: str
    imports: str
    opened: str
    array: str
    run: str


TOOLS = (
    Tool(
        "onnx/model.onnx",
        "import numpy as np\nimport onnxruntime",
        'session = onnxruntime.InferenceSession("onnx/model.onnx")',
        "np.array({}, np.int64)",
        "session.run(None, inputs)",
    ),
    Tool(
        "model.pt2",
        "import torch",
        'graph = torch.export.load("model.pt2").module()',
        "torch.tensor({})",
        "graph(**inputs)",
    ),
)
LACKING = (("albert", "tagging"), ("modernbert", "span"))  # what transformers.js 4.3 has no class for
SEGMENTS = "pipe.tokenizer.return_token_type_ids = true;  // or every token counts as one of the first text\n"

_CODE = """```python
{imports}
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")  # adds the special tokens
tokenizer.enable_truncation({longest})
tokenizer.enable_padding(pad_id={pad}, pad_token="{pad_token}", direction="{side}")
{opened}
rows = tokenizer.encode_batch(["one text", "another, which is longer"])
inputs = {{
{feeds}
}}
outputs = {run}
print({shown})
```"""
ANSWERS = """from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForQuestionAnswering.from_pretrained(".")
row = tokenizer("Who?", "It was Ann.", return_tensors="pt")
scores = model(**row)
print(tokenizer.decode(row["input_ids"][0, scores.start_logits.argmax() : scores.end_logits.argmax() + 1]))"""
_FEEDS = {
    "input_ids": "[row.ids for row in rows]",
    "attention_mask": "[row.attention_mask for row in rows]",
    "token_type_ids": "[row.type_ids for row in rows]",
    "p_mask": "[[mask == 0 for mask in row.attention_mask] for row in rows]",
}


def text(record: dict[str, Any], graph: Graph, model: Model) -> str:
    """The page in Markdown."""
    assert model.tokenizer is not None
    count = sum(parameter.numel() for parameter in {id(p): p for p in model.parameters()}.values())
    parts = [
        f"# {model.config.family}, {graph.use}",
        f"A text encoder of family {model.config.family}, {count:,} parameters, exported by encoderlab "
        f"{record['encoderlab']}. Texts have up to {record['longest']} tokens.",
        *(f"- {note}" for note in record["notes"]),
        "## What was checked",
        _checked(record),
        *(_int8(record["int8"]) if "int8" in record else ()),
        "## The graph",
        f"Inputs {', '.join(graph.inputs)}: int64, (rows, tokens), any number of rows, at least one token, padded on "
        f"either side. Outputs: {', '.join(graph.outputs)}.",
        *(_code(tool, record, graph, model) for tool in TOOLS if tool.file in record["checked"]),
        "## encoderlab",
        "`encoderlab serve .` answers by HTTP, in the protocols of text-embeddings-inference, OpenAI, Cohere and "
        "Hugging Face.",
    ]
    if record["format"] == "hf":
        parts += _others(record, graph, model)
    return "\n\n".join(parts) + "\n"


def _checked(record: dict[str, Any]) -> str:
    lines = ["| file | tokens | padded on the | largest difference |", "|---|---:|---|---:|"]
    for name, differences in record["checked"].items():
        largest: dict[tuple[int, str], float] = {}
        for one in differences:
            place = (one["length"], one["side"])
            largest[place] = max(one["largest"], largest.get(place, 0.0))
        lines += [f"| {name} | {length} | {side} | {value:.1e} |" for (length, side), value in largest.items()]
    made = ", ".join(f"{name} {version}" for name, version in record["made_with"].items())
    return (
        "Every output, at 1, 3 and 5 rows of different lengths, against the model itself, one row at a time and "
        f"without padding; made with {made}.\n\n" + "\n".join(lines)
    )


def _int8(verdict: dict[str, Any]) -> list[str]:
    """The section on the graph in int8."""
    most = f"{100 * verdict['tolerance']:g} %"
    if verdict["kept"] is None:
        what = f"There is no `onnx/model_quantized.onnx`: every attempt to quantize loses more than {most}."
    else:
        size, times = verdict["bytes"], verdict["milliseconds"]
        what = (
            f"`onnx/model_quantized.onnx` has {verdict['kept']} in 8 bits: {size['int8'] / 1e6:.1f} MB instead of "
            f"{size['fp32'] / 1e6:.1f}, {times['int8']:.2f} ms per text instead of {times['fp32']:.2f} "
            f"({times['threads']:g} threads). At most {most} might be lost."
        )
    return ["## int8", what, int8.table(verdict)]


def _code(tool: Tool, record: dict[str, Any], graph: Graph, model: Model) -> str:
    assert model.tokenizer is not None
    special = model.tokenizer.special
    feeds = [f'    "{name}": {tool.array.format(_FEEDS[name])},' for name in graph.inputs]
    return _CODE.format(
        imports=tool.imports,
        opened=tool.opened,
        run=tool.run,
        longest=record["longest"],
        pad=special.pad,
        pad_token=model.tokenizer.token(special.pad),
        side=model.tokenizer.padding_side,
        feeds="\n".join(feeds),
        shown=", ".join(f"outputs[{i}].shape" for i in range(len(graph.outputs))),
    )


def _others(record: dict[str, Any], graph: Graph, model: Model) -> list[str]:
    """Sections for tools that read a Hugging Face folder."""
    model_type = configs.format_of(model.config).model_type
    assert model.tokenizer is not None
    parts = []
    mask = model.tokenizer.token(model.tokenizer.special.mask)
    sentence = f"The {mask} of a list." if graph.use == "fill-mask" else "One text."
    asked = 'question="Who?", context="It was Ann."' if graph.use == "span" else f'"{sentence}"'
    choice = chooses(model.config)
    nonsense = graph.use == "fill-mask" and (model.mask_positions is not None or model.mask_vector is not None)
    if model_type != "transfo-xl" and not choice and not nonsense and not graph.beam:
        pipe = f'from transformers import pipeline\n\nprint(pipeline("{PIPELINES[graph.use]}", ".")({asked}))'
        code = ANSWERS if graph.use == "span" else pipe  # transformers 5 has no pipeline for answers
        parts += ["## transformers", f"```python\n{code}\n```"]
    if graph.use == "states" and model_type != "transfo-xl":
        code = (
            "from sentence_transformers import SentenceTransformer\n\n"
            'print(SentenceTransformer(".").encode(["one text", "another"]).shape)'
        )
        how = (
            f"The vector of a text is the {record['pooling']} of its tokens"
            if record["pooling"] == "mean"
            else (f"The vector of a text is that of its {record['pooling']} token")
        )
        parts += [
            "## sentence-transformers",
            how + (", at length 1." if record["normalize"] else "."),
            f"```python\n{code}\n```",
        ]
    known = model_type not in ("xlnet", "transfo-xl") and (model_type, graph.use) not in LACKING
    if not graph.beam and known and not choice:
        arguments = '"Who?", "It was Ann."' if graph.use == "span" else f'"{sentence}"'
        dtype = "q8" if record.get("int8", {}).get("kept") else "fp32"
        code = (
            'import { env, pipeline } from "@huggingface/transformers";\n\n'
            'env.allowRemoteModels = false;\nenv.localModelPath = "..";  // the folder that this folder lies in\n'
            f'const pipe = await pipeline("{PIPELINES[graph.use]}", "THIS_FOLDER", {{ dtype: "{dtype}" }});\n'
            + (SEGMENTS if "token_type_ids" in graph.inputs else "")
            + f"console.log(await pipe({arguments}));"
        )
        parts += ["## transformers.js", f"```js\n{code}\n```"]
    if graph.use in ("states", "classification") and not choice and model_type in sum(SERVED.values(), ()):
        image = "cpu-1.9" if model_type in SERVED["cpu"] else "cpu-1.9 (or an image for GPUs)"
        parts += [
            "## text-embeddings-inference",
            f"`docker run -p 8080:80 -v $PWD:/model ghcr.io/huggingface/text-embeddings-inference:{image} "
            "--model-id /model`, by its published rules.",
        ]
    if (model_type in ("bert", "roberta") and graph.use in ("states", "classification")) or (
        model_type == "modernbert" and graph.use == "states"
    ):
        parts += ["## vLLM", "`vllm serve . --runner pooling`, by its published rules."]
    return parts
