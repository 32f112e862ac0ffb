"""The Triton kernels for GPUs as torch operations: direct calls, shapes for tracing, and gradients, as in :mod:`..cpu`.

Imported only if tensors are on a GPU, because only torch's CUDA builds include Triton. Without a GPU,
``TRITON_INTERPRET=1`` runs the same kernels slowly on the CPU: tests/nn/gpu compares them with the plain versions this
way. tests/nn/gpu/test_machine_code.py compiles them for a GPU that need not be present.
"""

from encoderlab.nn.kernels.gpu import attention, convolution, rows, vocabulary

__all__ = ["attention", "convolution", "rows", "vocabulary"]
