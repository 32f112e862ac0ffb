"""The C++ kernels for CPUs as torch operations: direct calls, shapes for tracing, and gradients."""

from encoderlab.nn.kernels.cpu import attention, convolution, int8, layer, mixed, packed, products, rows, vocabulary

__all__ = ["attention", "convolution", "int8", "layer", "mixed", "packed", "products", "rows", "vocabulary"]
