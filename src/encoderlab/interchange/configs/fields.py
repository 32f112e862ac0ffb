"""The fields of a ``config.json`` of ``transformers``: each is read, known to have no effect, or refused by name."""

from __future__ import annotations

import sys
from typing import Any

from encoderlab.errors import DataError
from encoderlab.nn.architecture import EncoderConfig

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
THEIR_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu", "tanh": "tanh"}

LARGEST = sys.float_info.max  # whole numbers in JSON have no limit

INERT = frozenset(
    # Names and origins of files.
    "architectures model_type transformers_version _name_or_path torch_dtype dtype id2label label2id num_labels "
    "_num_labels finetuning_task task_specific_params tokenizer_class language name _attn_implementation_autoset "
    # Format of results and memory use, which do not change the results.
    "output_attentions output_hidden_states return_dict use_cache output_past torchscript use_bfloat16 tf_legacy_loss "
    "gradient_checkpointing chunk_size_feed_forward tie_weights_ xla_device _commit_hash "
    "attn_implementation _attn_implementation _flash_attn_2_enabled "
    # Left over from training scripts.
    "model_max_length max_seq_length save_step total_flos train_batch_size do_lower_case vocab_file "
    # Ids of the tokenizer, which has its own files.
    "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id padding_idx "
    "decoder_start_token_id eos_token_ids "
    # Generation of text.
    "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
    "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
    "num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id prefix "
    "renormalize_logits remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens "
    # Heads of fine-tuning, which are read if the folder has one; fields that no released code reads.
    "problem_type classifier_dropout classifier_dropout_prob qa_dropout seq_classif_dropout cls_dropout summary_type "
    "summary_use_proj summary_activation summary_last_dropout pooler_dropout pooler_hidden_act pooler_hidden_size "
    "start_n_top end_n_top "
    "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type "
    "net_structure_type gap_size num_memory_blocks down_scale_factor sinusoidal_pos_embds legacy generator_size "
    # Written for servers: a browser's choice of files, and the longest row of families without one.
    "transformers.js_config max_position_embeddings "
    # How sentence-transformers uses the scores of a cross-encoder.
    "sentence_transformers sbert_ce_default_activation_function".split()
)
# Switches that must be off (or have the value that every encoder of the family has).
FIXED: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "position_embedding_type": ("absolute",),
    "tie_word_embeddings": (True,),
}


class Fields:
    """The fields of a ``config.json``, each taken once; :meth:`finish` refuses those that were not taken."""

    _REQUIRED = object()

    def __init__(self, data: dict[str, Any], source: str) -> None:
        self.data, self.source = data, source
        self.taken: set[str] = set()

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        self.taken.add(name)
        value = self.data.get(name, default)
        if value is self._REQUIRED:
            raise DataError(f"{self.source}: field {name!r} is missing; restore the file from its source")
        return value

    def count(self, name: str, default: Any = _REQUIRED, *, least: int = 1) -> int:
        """Take a whole number of at least ``least``; some files write it as ``2.0``."""
        value = self.number(name, default, least=least)
        if not value.is_integer() or value >= 2**31:
            raise DataError(f"{self.source}: {name} is {value:g}, expected a whole number; restore the file")
        return int(value)

    def renamed(self, name: str, generic: str, default: Any = _REQUIRED) -> int:
        """Take a whole number that ``transformers`` also reads under the name that other families have for it."""
        value = self.count(name, self.data.get(generic, default))
        if self.take(generic, value) != value:
            raise DataError(
                f"{self.source}: {generic} is {self.data[generic]!r} and {name} is {value}, expected equal values; "
                "restore the file"
            )
        return value

    def number(self, name: str, default: Any = _REQUIRED, *, least: float = 0) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= LARGEST:
            raise DataError(f"{self.source}: {name} is {value!r}, expected at least {least}; restore the file")
        return float(value)

    def switch(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise DataError(f"{self.source}: {name} is {value!r}, expected true or false; restore the file")
        return value

    def activation(self, name: str, default: str = "gelu") -> Any:
        value = self.take(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise DataError(f"{self.source}: {name} {value!r} is not implemented; known are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse every value except ``allowed``, whose first is the default."""
        value = self.take(name, allowed[0])
        if value not in allowed:
            choices = " or ".join(map(repr, allowed))
            raise DataError(f"{self.source}: {name} {value!r} is not implemented (expected {choices})")

    def finish(self) -> None:
        """Refuse fields that were not taken, unless they have no effect or switch something off."""
        for name, allowed in FIXED.items():
            if name not in self.taken:
                self.only(name, *allowed)
        for name, value in self.data.items():
            if name not in self.taken and name not in INERT and value:
                raise DataError(
                    f"{self.source}: field {name!r} ({value!r}) is not implemented; remove it only if the "
                    "model's own code does not read it"
                )


def common(f: Fields) -> dict[str, Any]:
    """The fields that most families name the same, as fields of :class:`EncoderConfig`."""
    return {
        "vocab": f.count("vocab_size"),
        "layers": f.count("num_hidden_layers", 12),
        "width": f.count("hidden_size"),
        "heads": f.count("num_attention_heads"),
        "ff_width": f.count("intermediate_size"),
        "activation": f.activation("hidden_act"),
        "dropout": f.number("hidden_dropout_prob", 0.1),
        "attention_dropout": f.number("attention_probs_dropout_prob", 0.1),
        "init_std": f.number("initializer_range", 0.02),
        "eps": f.number("layer_norm_eps", 1e-12),
    }


def their_common(encoder: EncoderConfig) -> dict[str, Any]:
    """The inverse of :func:`common`."""
    return {
        "vocab_size": encoder.vocab,
        "num_hidden_layers": encoder.layers,
        "hidden_size": encoder.width,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.ff_width,
        "hidden_act": THEIR_ACTIVATION[encoder.activation],
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "initializer_range": encoder.init_std,
        "layer_norm_eps": encoder.eps,
        "type_vocab_size": max(1, encoder.types),  # without a table, a row of zeros
    }
