"""The C++ kernels of CPUs as torch operations: raw calls, their shapes for tracing, and their gradients."""

from encoderlab.nn.kernels.cpu import attention, convolution, mixed, products, rows, vocabulary

__all__ = ["attention", "convolution", "mixed", "products", "rows", "vocabulary"]
