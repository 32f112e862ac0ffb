"""The compiled kernels as torch operations: raw calls, their shapes for tracing, and their gradients."""
