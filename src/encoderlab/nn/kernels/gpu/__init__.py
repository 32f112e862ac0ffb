"""The Triton kernels of GPUs: raw calls, their shapes for tracing, and their gradients, as in :mod:`..cpu`.

Imported only where tensors lie on a GPU: Triton comes with torch's CUDA builds, and is not asked for elsewhere. Without
a GPU ``TRITON_INTERPRET=1`` runs the same kernels on the CPU, slowly, which is how tests/nn/gpu holds them to their
plain twins; tests/nn/gpu/test_machine_code.py compiles them for a GPU that need not be there.
"""

from encoderlab.nn.kernels.gpu import attention, convolution, rows, vocabulary

__all__ = ["attention", "convolution", "rows", "vocabulary"]
