"""A served model whose answers, or those for short batches, are computed by an exported graph in ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from encoderlab import inference
from encoderlab.batches.batch import Batch
from encoderlab.deploy.onnx import OnnxRun
from encoderlab.deploy.reading import TaskReader
from encoderlab.deploy.serve.service import Service
from encoderlab.errors import ConfigError
from encoderlab.inference import usual_device
from encoderlab.model import Model
from encoderlab.tasks.forms.batching import Item

SHORT = 64  # padded tokens of a batch up to which ONNX Runtime is faster than our kernels (docs/performance.md)
ALIKE = 1e-5  # largest difference of numbers at which a graph may stand in for the model
GRAPHS = {"onnx": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx"}


class GraphService(Service):
    """As :class:`Service`, with the graph of an exported folder. Explanations are computed by the model itself.

    Raises:
        ConfigError, DataError: the folder was not exported, or has no such graph.
    """

    run: OnnxRun
    use: str

    @classmethod
    def open(cls, folder: Path, engine: Literal["onnx", "int8"], *, name: str | None = None) -> Self:
        """The service of an exported folder."""
        record, path = folder / "export.json", folder / GRAPHS[engine]
        if not record.is_file():
            raise ConfigError(
                f"--engine {engine} runs a graph, and {folder} has none; run: encoderlab export {folder} OUT"
            )
        if engine == "int8" and not path.is_file():
            raise ConfigError(
                f"{folder} has no graph in int8; export it with --int8 --check FILE, or use --engine onnx"
            )
        service = cls.of(folder, name=name)
        service.model.cpu()
        service.device = torch.device("cpu")
        service.run = OnnxRun(path)
        service.use = json.loads(record.read_text(encoding="utf-8"))["use"]
        return service

    @property
    def fills_masks(self) -> bool:
        return self.use == "fill-mask"

    @property
    def gives_vectors(self) -> bool:
        return self.use == "states"

    def _states(self, batch: Batch) -> Tensor:
        return self._graph_states(batch)

    def _graph_states(self, batch: Batch) -> Tensor:
        return torch.from_numpy(self.run(self._inputs(batch))["last_hidden_state"])

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        segments = torch.zeros_like(batch.ids) if batch.segments is None else batch.segments
        tensors = {"input_ids": batch.ids, "attention_mask": batch.doc >= 0, "token_type_ids": segments}
        return {name: tensor.long().numpy() for name, tensor in tensors.items()}

    def _filled(self, text: str, top: int, targets: Sequence[str] | None) -> Any:
        def probabilities(model: Model, batch: Batch, places: Tensor) -> Tensor:
            logits = torch.from_numpy(self.run(self._inputs(batch))["logits"])
            return logits[0, places].softmax(-1)

        return inference.fill_mask(self.model, text, top=top, targets=targets, probabilities_of=probabilities)

    def _scores(self, items: Sequence[Item]) -> list[Any]:
        return self._graph_scores(items)

    def _graph_scores(self, items: Sequence[Item]) -> list[Any]:
        assert self.predictor is not None
        tokens = sum(map(len, items)) * len(items)  # one batch, as the queue made it
        return TaskReader(self.run, self.model, self.predictor.form).outputs(items, tokens)


class MixedService(GraphService):
    """Our kernels, and ONNX Runtime for batches of at most :data:`SHORT` tokens, where Python for every operation would
    take longer than the numbers themselves.
    """

    @classmethod
    def of_folder(cls, folder: Path, *, name: str | None, say: Callable[[str], None]) -> Service:
        """The service of an exported folder on the CPU, else that of our kernels alone; ``say`` tells which it is."""
        exported = (folder / "export.json").is_file() and (folder / GRAPHS["onnx"]).is_file()
        if not exported or find_spec("onnxruntime") is None or usual_device().type != "cpu":
            return Service.of(folder, name=name)
        service = cls.open(folder, "onnx", name=name)
        if service.use in ("fill-mask", "span"):  # which compute more than is read, or seldom read few tokens
            return Service.of(folder, name=name)
        difference = service.difference()
        if difference > ALIKE:
            say(f"{folder}: the graph's numbers differ from the model's by {difference:.1e}, so it is left out")
            return Service.of(folder, name=name)
        say(f"batches of at most {SHORT} tokens by the graph in ONNX Runtime, others by our kernels")
        return service

    def difference(self) -> float:
        """How far the graph's numbers for a short text are from the model's, relative for numbers above 1."""
        if self.predictor is None:
            works = self.texts("vectors", ["a"], truncate=True, side="Right").works
            (batch,) = inference.batches(self.tokenizer, works)
            with torch.inference_mode():
                ours, theirs = Service._states(self, batch).numpy(), self._graph_states(batch).numpy()
        else:
            items = self.items(self._examples("a", 1))[0].works
            with torch.inference_mode():
                ours, theirs = np.hstack(Service._scores(self, items)), np.hstack(self._graph_scores(items))
        return float((np.abs(ours - theirs) / np.maximum(np.abs(ours), 1)).max())

    @property
    def fills_masks(self) -> bool:
        return super(GraphService, self).fills_masks

    @property
    def gives_vectors(self) -> bool:
        return super(GraphService, self).gives_vectors

    def _states(self, batch: Batch) -> Tensor:
        return self._graph_states(batch) if batch.ids.numel() <= SHORT else Service._states(self, batch)

    def _scores(self, items: Sequence[Item]) -> list[Any]:
        short = max(map(len, items)) * len(items) <= SHORT
        return self._graph_scores(items) if short else Service._scores(self, items)

    def _filled(self, text: str, top: int, targets: Sequence[str] | None) -> Any:
        return Service._filled(self, text, top, targets)
