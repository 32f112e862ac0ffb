"""Transformer-XL's PyTorch code: a state dictionary, and the arguments of its training script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from encoderlab.interchange import configs, name_tables
from encoderlab.interchange.assemble import Models, assemble
from encoderlab.interchange.configs.fields import Fields
from encoderlab.interchange.files import fields_beside, find_file, read_file
from encoderlab.model import Model
from encoderlab.models.base import ModelConfig

CONFIG = "transformer_xl_config.json"
# Options of the original scripts that concern training or running, not the model.
RUN_OPTIONS = frozenset(
    "data dataset optim lr mom scheduler warmup_step decay_rate lr_min clip clip_nonemb max_step batch_size "
    "batch_chunk eval_tgt_len seed cuda varlen multi_gpu gpu0_bsz log_interval eval_interval work_dir restart "
    "restart_dir debug eta_min max_eval_steps patience finetune_v2 finetune_v3 fp16 static_loss_scale "
    "dynamic_loss_scale emb_init emb_init_range n_all_param n_nonemb_param".split()
)
CUTOFFS = {"wt103": [20000, 40000, 200000], "lm1b": [60000, 100000, 640000]}  # of train.py, by data set


def read_config(fields: Fields, *, eps: float) -> ModelConfig:
    """The configuration from the arguments of the original training scripts, PyTorch's or TensorFlow's.

    Their defaults of ``eps`` differ. Arguments that the scripts derive from others may be missing.
    """
    theirs = fields.data
    fields.data = data = {name: value for name, value in theirs.items() if name not in RUN_OPTIONS}
    data.setdefault("vocab_size", fields.take("n_token", None))
    data.setdefault("untie_r", False)
    data.setdefault("clamp_len", -1)
    data.setdefault("layer_norm_epsilon", eps)
    untied, tied = fields.switch("not_tied", False), fields.take("tied", None)  # the script converts it to the latter
    if untied or tied is False:
        data["tie_weight"] = False
    if data.pop("adaptive", True) is False:
        data["cutoffs"] = []  # the original's plain softmax is an adaptive one with a single cluster
    elif "cutoffs" not in data:
        data["cutoffs"] = CUTOFFS.get(theirs.get("dataset", ""), [])
        data.setdefault("proj_share_all_but_first", theirs.get("dataset") != "lm1b")
    if data.get("d_embed") == -1:
        del data["d_embed"]
    fields.take("proj_same_dim", None)
    return configs.read_as("transfo-xl", fields)


def read(path: Path, *, allow_missing: bool = False) -> Models:
    """Read a state dictionary of Transformer-XL's PyTorch code (``model_state.pt``).

    The script's arguments must be next to it in ``transformer_xl_config.json``. The original saves whole pickled
    modules (``model.pt``), which are refused.
    """
    path = find_file(path)
    tensors = read_file(path)
    config = read_config(fields_beside(path.parent, CONFIG), eps=1e-5)
    return {"model": network(config, tensors, path, allow_missing=allow_missing)}


def network(config: ModelConfig, tensors: Mapping[str, Tensor], source: Path, *, allow_missing: bool = False) -> Model:
    """The model of ``config`` from the tensors of the PyTorch code."""
    assert config.encoder.adaptive is not None
    name_table = name_tables.transformer_xl(config.encoder.adaptive, config.encoder.vocab, original=True)
    return assemble(config, tensors, name_table, source, allow_missing=allow_missing)
