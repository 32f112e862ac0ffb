"""Every table of names, both ways: bit by bit, nothing missing, nothing left over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from encoderlab.errors import DataError
from encoderlab.interchange import configs, folder, heads, huggingface, name_tables, names
from encoderlab.models.base import ModelConfig, resized
from encoderlab.nn.heads import LM, Classification, Pooler, Span, Tagging
from tests.interchange.tiny_models import CONFIGS, make


def layouts(case: str, config: ModelConfig) -> dict[str, names.NameTable]:
    """Every table that can hold the model."""
    form = configs.format_of(config).model_type
    found = {"hf": huggingface.name_table_of(config, form)}
    adaptive, generator = config.encoder.adaptive, config.rtd is None
    if adaptive is not None:
        found["pytorch"] = name_tables.transformer_xl(adaptive, config.encoder.vocab, original=True)
        found["tensorflow"] = name_tables.transformer_xl_tf(adaptive)
    elif config.family in ("electra", "convbert"):
        grouped = config.encoder.ff_groups > 1
        found["tensorflow"] = (name_tables.electra_tf_grouped if grouped else name_tables.electra_tf)(
            generator=generator
        )
    found |= {
        "bert": {"tensorflow": name_tables.BERT_TF},
        "albert": {"tensorflow": name_tables.ALBERT_TF},
        "xlnet": {"tensorflow": name_tables.XLNET_TF},
        "roberta": {"fairseq": name_tables.ROBERTA_FAIRSEQ},
    }.get(config.family, {})
    return found


CASES = [(case, kind) for case, config in CONFIGS.items() for kind in layouts(case, config)]


@pytest.mark.parametrize(("case", "kind"), CASES, ids=lambda value: value)
@pytest.mark.parametrize("everything", [False, True])
def test_round_trip(case: str, kind: str, everything: bool) -> None:
    config = CONFIGS[case]
    name_table, weights = layouts(case, config)[kind], folder.weights(make(config))
    tensors = names.write(name_table, weights, config.encoder, dialects=everything, ties=everything)
    expected = {name: tensor.shape for name, tensor in weights.items()}
    back = names.read(name_table, tensors, expected, config.encoder, source=case)
    assert not back.missing and not back.unexpected
    assert all(torch.equal(back.weights[name], tensor) for name, tensor in weights.items())
    again = names.write(name_table, back.weights, config.encoder, dialects=everything, ties=everything)
    assert again.keys() == tensors.keys() and all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_two_tensors_with_one_place_are_refused() -> None:
    """DeBERTa has one table of positions, at the input or in the mask decoder."""
    position = replace(CONFIGS["deberta-v2"].encoder.position, input_positions=16)
    config = resized(CONFIGS["deberta-v2"], position=position)
    with pytest.raises(DataError, match=r"one place, .*position_embeddings.*mask_positions and encoder\.embeddings"):
        names.write(name_tables.DEBERTA_V2, folder.weights(make(config)), config.encoder)


@pytest.mark.parametrize("head", [Classification(labels=3), Tagging(labels=3), Span()], ids=lambda h: type(h).__name__)
@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert", "electra", "convbert", "deberta", "xlnet"])
def test_round_trip_of_task_heads(case: str, head: Classification | Tagging | Span) -> None:
    config = CONFIGS[case]
    form = configs.format_of(config).model_type
    if isinstance(head, Classification):
        known = heads.SEQUENCE[form]
        head = replace(head, summary="pooler" if known.dense is None else "dense", activation=known.activation)
    if isinstance(head, Span) and form == "xlnet":
        head = Span(variant="beam")
    config = replace(config, task=head, lm=None, pair=False, rtd=None, mask_decoder=0, mask_vector=False)
    weights = folder.weights(make(config))
    name_table = huggingface.name_table_of(config, form)
    tensors = names.write(name_table, weights, config.encoder)
    expected = {name: tensor.shape for name, tensor in weights.items()}
    back = names.read(name_table, tensors, expected, config.encoder, source=case)
    assert not back.missing and not back.unexpected
    assert all(torch.equal(back.weights[name], tensor) for name, tensor in weights.items())


def test_what_has_no_place_is_refused() -> None:
    config = CONFIGS["distilbert"]
    with pytest.raises(DataError, match="no place for nonsense"):
        names.write(name_tables.DISTILBERT, {"nonsense": torch.zeros(1)}, config.encoder)


@pytest.mark.parametrize("case", CONFIGS)
def test_configurations_come_back(case: str) -> None:
    config = CONFIGS[case]
    _, back = configs.read(configs.write(config), case)
    for name in ("vocab", "layers", "width", "heads", "ff_width", "position", "conv", "activation", "eps", "dropout"):
        assert getattr(back.encoder, name) == getattr(config.encoder, name), name


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"norm": "pre"}, "norm"), ({"ff_groups": 2}, "ff_groups"), ({"attention_biases": "none"}, "attention_biases")],
)
def test_parts_that_transformers_lacks_are_refused_by_name(changes: dict, named: str) -> None:
    with pytest.raises(DataError, match=named):
        configs.write(resized(CONFIGS["bert"], **changes))


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("bert", {"lm": LM(transform=False)}),
        ("bert", {"lm": LM(activation="relu")}),
        ("roberta", {"lm": LM(activation="relu")}),
        ("bert", {"pooler": Pooler(activation="gelu")}),
    ],
)
def test_heads_that_transformers_computes_otherwise_are_refused(case: str, changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="LM head" if "lm" in changes else "pooler"):
        configs.write(replace(CONFIGS[case], **changes))
