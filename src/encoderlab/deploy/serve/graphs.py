"""A served model whose answers are computed by an exported graph in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from encoderlab import inference
from encoderlab.batches.batch import Batch
from encoderlab.deploy.graph import OUTPUTS
from encoderlab.deploy.onnx import GRAPH, QUANTIZED, OnnxRun
from encoderlab.deploy.reading import TaskReader
from encoderlab.deploy.serve.service import Service
from encoderlab.errors import ConfigError, DataError
from encoderlab.files import read_json
from encoderlab.interchange import checksums
from encoderlab.model import Model
from encoderlab.tasks.forms.batching import Item

GRAPHS = {"onnx": GRAPH, "int8": QUANTIZED}


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
        checksums.verify_file(folder, GRAPHS[engine])
        service = cls.of(folder, name=name)
        service.model.cpu()
        service.device = torch.device("cpu")
        service.run = OnnxRun(path)
        service.use = str(read_json(record, "export the model again").get("use"))
        if service.use not in OUTPUTS:
            raise DataError(f"{record}: use is {service.use!r}, expected one of {', '.join(OUTPUTS)}; export again")
        if service.run.outputs not in (OUTPUTS[service.use], OUTPUTS["span of places"]):
            raise DataError(
                f"{path}: gives {', '.join(service.run.outputs)}, expected {', '.join(OUTPUTS[service.use])} by "
                f"{record}; export the model again"
            )
        return service

    @property
    def fills_masks(self) -> bool:
        return self.use == "fill-mask"

    @property
    def gives_vectors(self) -> bool:
        return self.use == "states"

    def _states(self, batch: Batch) -> Tensor:
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
        assert self.predictor is not None
        tokens = sum(map(len, items)) * len(items)  # one batch, as the queue made it
        return TaskReader(self.run, self.model, self.predictor.form).scores(items, tokens)
