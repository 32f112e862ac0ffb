"""The C++ kernels of CPUs as torch operations: raw calls, their shapes for tracing, and their gradients."""

from encoderlab.nn.kernels.cpu import attention, convolution, rows, vocabulary

__all__ = ["attention", "convolution", "rows", "vocabulary"]
