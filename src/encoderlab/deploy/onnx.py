"""A graph in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from encoderlab.errors import DataError, optional

GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"  # in an exported folder


class OnnxRun:
    """The graph in a file as a runtime (:data:`encoderlab.deploy.graph.Run`), on the CPU, with as many threads as torch
    uses.

    Raises:
        MissingDependency: ONNX Runtime is not installed.
        DataError: there is no such file, it is damaged, or its weights are in other files.
    """

    def __init__(self, path: Path) -> None:
        with optional("onnxruntime", "export", "ONNX"):
            import onnxruntime
        import torch

        if not path.is_file():
            raise DataError(f"{path}: no such file; run: encoderlab export MODEL OUT")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # From memory, so that a graph can name no other files.
        try:
            self.session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of many kinds
            reason = str(error).splitlines()[0][:200]
            raise DataError(f"{path}: ONNX Runtime cannot read it ({reason}); export the model again") from None
        self.inputs = tuple(entry.name for entry in self.session.get_inputs())
        self.outputs = tuple(entry.name for entry in self.session.get_outputs())

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        known = {name: array for name, array in inputs.items() if name in self.inputs}
        return dict(zip(self.outputs, self.session.run(None, known), strict=True))
