"""The model's work between matrix products, one function each; fast versions stand behind the same names."""

from __future__ import annotations

from encoderlab.nn.kernels.plain import attend, bias_gelu, dropout, dropout_add_norm, softmax_dropout

__all__ = ["attend", "bias_gelu", "dropout", "dropout_add_norm", "softmax_dropout"]
