"""Equality with ``transformers`` 5: states, heads and gradients on tiny random weights, and folders both ways."""

from __future__ import annotations

import copy
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from encoderlab import load
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import DataError
from encoderlab.interchange import configs, huggingface, names
from encoderlab.model import Model
from encoderlab.models import FAMILIES
from encoderlab.models.base import resized
from encoderlab.nn.heads import Classification, Span, Tagging
from encoderlab.nn.positions import Absolute, Rotary
from encoderlab.tasks.forms.base import takes_means
from tests.interchange.tiny_models import CONFIGS, make, same_weights

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers", reason="parity needs the extra [hf]")

VOCAB, WIDTH, HEADS, POSITIONS = 61, 32, 4, 48
BERT = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": HEADS,
    "intermediate_size": 56, "max_position_embeddings": POSITIONS, "initializer_range": 0.3,
}  # fmt: skip
DEBERTA = BERT | {
    "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False, "type_vocab_size": 0,
}  # fmt: skip
V2 = DEBERTA | {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
XLNET = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layer": 3, "n_head": HEADS, "d_inner": 56, "initializer_range": 0.3}
DISTIL = {
    "vocab_size": VOCAB, "dim": WIDTH, "n_layers": 3, "n_heads": HEADS, "hidden_dim": 56,
    "max_position_embeddings": POSITIONS, "initializer_range": 0.3,
}  # fmt: skip

MODERN = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 5, "num_attention_heads": HEADS,
    "intermediate_size": 56, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
    "cls_token_id": None, "sep_token_id": None,
}  # fmt: skip
WITH_BIASES = {
    "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True, "decoder_bias": False,
    "classifier_activation": "silu", "hidden_activation": "gelu_new", "norm_eps": 1e-3,
}  # fmt: skip
ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 300.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
}
LAYER_TYPES = ["sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"]

# name: class of the model with its pretraining heads, class of the configuration, its fields, whether it has segments
CASES: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "bert": ("BertForPreTraining", "BertConfig", BERT, True),
    "bert-causal": ("BertLMHeadModel", "BertConfig", BERT | {"is_decoder": True}, True),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}, False),
    "roberta-relu": ("RobertaForMaskedLM", "RobertaConfig", BERT | {"type_vocab_size": 2, "hidden_act": "relu"}, True),
    "xlm-roberta": ("XLMRobertaForMaskedLM", "XLMRobertaConfig", BERT | {"type_vocab_size": 1}, False),
    "camembert": ("CamembertForMaskedLM", "CamembertConfig", BERT | {"type_vocab_size": 1}, False),
    "albert-square": ("AlbertForPreTraining", "AlbertConfig", BERT | {"embedding_size": WIDTH}, True),
    "albert": ("AlbertForPreTraining", "AlbertConfig", BERT | {"embedding_size": 24}, True),
    "albert-groups": (
        "AlbertForMaskedLM",
        "AlbertConfig",
        BERT | {"embedding_size": 24, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
        True,
    ),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", DISTIL, False),
    "electra": ("ElectraForPreTraining", "ElectraConfig", BERT | {"embedding_size": 24}, True),
    "electra-generator": (
        "ElectraForMaskedLM",
        "ElectraConfig",
        BERT | {"embedding_size": 24, "hidden_act": "silu"},
        True,
    ),
    "convbert": ("ConvBertForMaskedLM", "ConvBertConfig", BERT | {"embedding_size": 24, "pad_token_id": 0}, True),
    "convbert-groups": (
        "ConvBertForMaskedLM",
        "ConvBertConfig",
        BERT | {"embedding_size": 32, "num_groups": 2, "conv_kernel_size": 5, "pad_token_id": 0, "hidden_act": "relu"},
        True,
    ),
    "xlnet": ("XLNetLMHeadModel", "XLNetConfig", XLNET, True),
    "deberta": ("DebertaForMaskedLM", "DebertaConfig", DEBERTA, False),
    "deberta-biased": (
        "DebertaForMaskedLM",
        "DebertaConfig",
        DEBERTA | {"position_biased_input": True, "type_vocab_size": 2, "pos_att_type": ["c2p"]},
        True,
    ),
    "deberta-v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", V2, False),
    "deberta-v2-conv": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        V2 | {"conv_kernel_size": 3, "conv_act": "gelu"},
        False,
    ),
    "deberta-v2-unshared": ("DebertaV2ForMaskedLM", "DebertaV2Config", V2 | {"share_att_key": False}, False),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", MODERN, False),
    "modernbert-biases": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        MODERN | WITH_BIASES | {"local_attention": 6, "global_attn_every_n_layers": 2, "local_rope_theta": 90.0},
        False,
    ),
    "modernbert-listed": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        MODERN | {"layer_types": LAYER_TYPES, "rope_parameters": ROPE, "local_attention": 10},
        False,
    ),
    "modernbert-global": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        MODERN | {"global_attn_every_n_layers": 1, "global_rope_theta": 50.0, "hidden_activation": "silu"},
        False,
    ),
    "deberta-v2-linear": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        V2 | {"position_buckets": -1, "max_relative_positions": 6, "norm_rel_ebd": "none"},
        False,
    ),
}
LENGTHS = {"odd": [17, 9, 1], "even": [24, 24], "long": [43, 30], "one": [1, 1]}


def theirs_of(case: str, seed: int = 0) -> Any:
    name, config, fields, _ = CASES[case]
    torch.manual_seed(seed)
    model = getattr(transformers, name)(getattr(transformers, config)(**fields)).eval()
    with torch.no_grad():  # biases and gains are 0 and 1 at the start, which hides mistakes
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def batch_of(case: str, lengths: list[int], segments: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(lengths) + max(lengths))
    length = max(lengths)
    ids = torch.randint(6, VOCAB, (len(lengths), length), generator=generator)
    places = torch.arange(length)
    left = case == "xlnet"
    real = torch.stack([places >= length - n if left else places < n for n in lengths])
    pad = 5 if case == "xlnet" else 1 if "bert" in case and case.startswith(("rob", "xlm", "cam")) else 0
    batch = {"ids": torch.where(real, ids, pad), "real": real}
    if segments:
        batch["segments"] = ((places[None] + torch.tensor(lengths)[:, None]) // 7 % 2) * real
    return batch


def our_outputs(model: Model, batch: dict[str, Tensor], *, padded: bool) -> dict[str, Any]:
    doc = torch.where(batch["real"], 0, -1) if padded else None
    states = model.encoder(batch["ids"], doc=doc, segments=batch.get("segments"))
    rows, places = batch["real"].nonzero(as_tuple=True)
    out: dict[str, Any] = {"states": states.layers}
    if model.lm is not None:
        out["logits"] = model.lm(states.last[rows, places], model.words)
    if model.pooler is not None:
        out["pooled"] = model.pooler(states.last[:, 0])
        if model.pair is not None:
            out["pair"] = model.pair(out["pooled"])
    if model.rtd is not None:
        out["rtd"] = model.rtd(states.last[rows, places])
    return out


def their_outputs(model: Any, batch: dict[str, Tensor], *, padded: bool, attentions: bool = False) -> dict[str, Any]:
    given: dict[str, Any] = {"input_ids": batch["ids"]}
    if padded:
        given["attention_mask"] = batch["real"].long()
    if "segments" in batch:
        given["token_type_ids"] = batch["segments"]
    if model.config.model_type == "xlnet":
        given["use_mems"] = False
    result = model(**given, output_hidden_states=True, output_attentions=attentions)
    out: dict[str, Any] = {"states": result.hidden_states}
    if attentions:
        out["attentions"] = result.attentions
    logits = result.prediction_logits if "prediction_logits" in result else result.logits
    logits = logits[batch["real"]]
    out["rtd" if logits.ndim == 1 else "logits"] = logits
    for name in ("seq_relationship_logits", "sop_logits"):
        if name in result:
            out["pair"] = result[name]
            base = getattr(model, model.base_model_prefix)
            out["pooled"] = base(**given).pooler_output
    return out


def assert_equal(ours: dict[str, Any], theirs: dict[str, Any], real: Tensor) -> None:
    assert len(ours["states"]) == len(theirs["states"])
    for index, (mine, other) in enumerate(zip(ours["states"], theirs["states"], strict=True)):
        torch.testing.assert_close(mine[real], other[real], atol=1e-5, rtol=1e-5, msg=lambda m, i=index: f"{i}: {m}")
    assert set(theirs) <= set(ours)
    for name in set(theirs) - {"states"}:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Model]:
    theirs = theirs_of(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return request.param, theirs, load(folder)


@pytest.mark.parametrize("segments", [True, False], ids=["segments", "plain"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_states_and_heads(pair: tuple[str, Any, Model], lengths: list[int], segments: bool) -> None:
    case, theirs, ours = pair
    if segments and not CASES[case][3]:
        pytest.skip("the family has no segments")
    batch = batch_of(case, lengths, segments)
    padded = not bool(batch["real"].all())
    with torch.no_grad():
        mine, other = our_outputs(ours, batch, padded=padded), their_outputs(theirs, batch, padded=padded)
    assert_equal(mine, other, batch["real"])


@pytest.mark.parametrize("lengths", [LENGTHS["odd"], LENGTHS["long"]], ids=["odd", "long"])
def test_attention(pair: tuple[str, Any, Model], lengths: list[int]) -> None:
    """The weights of every head, and ConvBERT's kernels, which transformers gives before their softmax."""
    case, theirs, ours = pair[0], copy.deepcopy(pair[1]), pair[2]
    batch = batch_of(case, lengths, CASES[case][3])
    real, length = batch["real"], max(lengths)
    theirs.set_attn_implementation("eager")
    kernels: list[Tensor] = []
    for name, module in theirs.named_modules():
        if name.endswith("conv_kernel_layer"):
            module.register_forward_hook(lambda _, __, out: kernels.append(out))
    with torch.no_grad():
        found = their_outputs(theirs, batch, padded=True, attentions=True)["attentions"]
        states = ours.encoder(batch["ids"], doc=torch.where(real, 0, -1), segments=batch.get("segments"))
        mine = [ours.encoder.attention_weights(states, layer) for layer in range(ours.encoder.depth)]
    heads = found[0].shape[1]
    assert len(mine) == len(found) and {len(weights[0]) for weights in mine} == {2 * heads if kernels else heads}
    for weights, other in zip(mine, found, strict=True):
        torch.testing.assert_close(
            weights[:, :heads].transpose(1, 2)[real], other.transpose(1, 2)[real], atol=1e-5, rtol=0
        )
    for weights, kernel in zip(mine, kernels, strict=bool(kernels)):
        taps = kernel.reshape(len(lengths), length, heads, -1).softmax(-1)
        reach = taps.shape[-1] // 2
        for query, key in itertools.product(range(length), repeat=2):
            tap = key - query + reach
            wanted = taps[:, query, :, tap] if 0 <= tap < taps.shape[-1] else torch.zeros(len(lengths), heads)
            here = real[:, query] & real[:, key]
            torch.testing.assert_close(weights[here, heads:, query, key], wanted[here], atol=1e-5, rtol=0)


def test_gradients(pair: tuple[str, Any, Model]) -> None:
    """Of one loss over every output, for every parameter, within 1e-4 of its largest entry; in float64, because
    gradients that are zero in theory (key biases) are rounding noise in float32.
    """
    case = pair[0]
    theirs, ours = (copy.deepcopy(model).double() for model in pair[1:])
    batch = batch_of(case, LENGTHS["odd"], CASES[case][3])
    for outputs, model in ((our_outputs, ours), (their_outputs, theirs)):
        out = outputs(model, batch, padded=True)
        wanted = ["logits" if "logits" in out and "rtd" not in out else "rtd", *(["pair"] if "pair" in out else [])]
        generator = torch.Generator().manual_seed(5)
        loss = sum((out[name] * torch.randn(out[name].shape, generator=generator)).sum() for name in wanted)
        (loss + out["states"][1][batch["real"]].pow(2).sum()).backward()
    given = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in theirs.named_parameters()}
    expected = {name: parameter.shape for name, parameter in ours.named_parameters()}
    name_table = huggingface.name_table_of(ours.config, configs.format_of(ours.config).model_type)
    read = names.read(name_table, given, expected, ours.config.encoder, source=case)
    assert not read.missing and not read.unexpected
    largest = max(float(g.abs().max()) for g in read.weights.values())
    for name, parameter in ours.named_parameters():
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        wanted = read.weights[name].double()
        if name == "encoder.embeddings.words":  # transformers gives the padding row no gradient from the input
            got, wanted = got[1:], wanted[1:]
        allowed = 1e-4 * max(float(wanted.abs().max()), 1e-6 * largest)
        difference = float((got - wanted).abs().max())
        assert difference <= allowed, f"{name}: {difference:.2e}, allowed {allowed:.2e}"


def test_folders_come_back_unchanged(pair: tuple[str, Any, Model], tmp_path: Path) -> None:
    """Theirs, ours, theirs: the same tensors bit by bit, and a configuration that means the same."""
    case, theirs, ours = pair
    huggingface.save(ours, tmp_path / "out")
    back = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    tied = getattr(theirs, "_tied_weights_keys", None) or {}
    first = {name: tensor for name, tensor in theirs.state_dict().items() if name not in tied}
    assert set(back) == set(first)
    for name, tensor in first.items():
        assert torch.equal(back[name], tensor), name
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out").to_dict()
    fields = CASES[case][2]
    for name, value in theirs.config.to_dict().items():
        if name.startswith("max_") and not getattr(theirs.config, "position_biased_input", True):
            continue  # a table that this model does not have
        if name == "pad_token_id" and config["model_type"] not in ("roberta", "xlm-roberta", "camembert"):
            assert config[name] is None  # this model has no tokenizer to name it
            continue
        if name in fields or name in ("model_type", "pad_token_id", "type_vocab_size", "layer_norm_eps", "dropout"):
            assert config[name] == value or config[name] == pytest.approx(value) or str(config[name]) == str(value), (
                name
            )


@pytest.mark.parametrize("case", CONFIGS)
def test_without_a_tokenizer_every_token_is_trained(case: str, tmp_path: Path) -> None:
    """``transformers`` gives the vector of the padding id no gradient; without a tokenizer, token 0 may be a word."""
    ours = make(CONFIGS[case])
    huggingface.save(ours, tmp_path / "out")
    fields = json.loads((tmp_path / "out/config.json").read_text())
    position = ours.config.encoder.position
    pad = position.offset - 1 if case == "roberta" else None
    assert [fields[f"{role}_token_id"] for role in ("pad", "bos", "eos")] == [pad, None, None]
    if "transformer-xl" not in case:
        theirs = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
        theirs(torch.arange(3)[None]).last_hidden_state.square().sum().backward()
        table = theirs.get_input_embeddings().weight.grad
        assert [bool(table[row].any()) for row in range(3)] == [row != pad for row in range(3)]


def test_our_folders_load_in_transformers(pair: tuple[str, Any, Model], tmp_path: Path) -> None:
    case, theirs, ours = pair
    fresh = Model(ours.config).initialize(7).eval()
    huggingface.save(fresh, tmp_path / "out")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    kind = getattr(transformers, config.architectures[0])
    model, report = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"], report
    for tied, source in (getattr(model, "_tied_weights_keys", None) or {}).items():
        assert model.get_parameter(tied) is model.get_parameter(source)
    batch = batch_of(case, LENGTHS["odd"], CASES[case][3])
    with torch.no_grad():
        mine, other = (
            our_outputs(fresh, batch, padded=True),
            their_outputs(model.eval(), batch, padded=True),
        )
    assert_equal(mine, other, batch["real"])
    base, report = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert all("pooler" in name for name in report["missing_keys"]) and (
        fresh.pooler is None or not report["missing_keys"]
    )
    assert not [name for name in report["unexpected_keys"] if name.startswith(base.base_model_prefix + ".")]


TEXTS = [
    "the bread is in the oven",
    "a cold wind from the north \u2603 the sea is grey",
    "is it?",
    "the oven, the wind and the grey bread of the north",
]  # the snowman is unknown
KINDS = {"albert": "unigram", "xlnet": "unigram", "roberta-bpe": "bpe", "deberta": "bpe", "deberta-v3": "unigram"}
# Convolutions in transformers read padding.
OWN = sorted(CONFIGS.keys() - {name for name in CONFIGS if "transformer-xl" in name or "convbert" in name})


@pytest.mark.parametrize("case", [*OWN, "roberta-bpe"])
def test_a_model_and_its_tokenizer_read_text_alike(case: str, tmp_path: Path) -> None:
    """What a user of the folder sees: texts of mixed lengths, with an unknown character, through Auto classes."""
    name = case.removesuffix("-bpe")
    kind = KINDS.get(case, "wordpiece")
    if kind == "unigram":
        pytest.importorskip("sentencepiece", reason="Unigram needs the extra [spm]")
    sample = [text.replace("\u2603", "") for text in TEXTS] * 4
    size = {"wordpiece": 50, "bpe": 270, "unigram": 36}[kind]
    tokenizer = Tokenizer.train(kind, sample, size, family=name if name in ("albert", "xlnet") else None)
    position = CONFIGS[name].encoder.position
    room = (
        {"length": 64}
        if isinstance(position, (Absolute, Rotary))
        else {"span": 64}
        if position.span is not None
        else {}
    )
    ours = make(resized(CONFIGS[name], vocab=size, position=replace(position, **room)))
    ours.tokenizer = tokenizer
    huggingface.save(ours, tmp_path / "out")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.config.pad_token_id == words.pad_token_id
    if name in ("roberta", "xlnet"):
        assert theirs.config.bos_token_id == words.bos_token_id and theirs.config.eos_token_id == words.eos_token_id
    inputs = words(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**inputs).last_hidden_state
    real = inputs["attention_mask"].bool()
    means = torch.stack([rows[kept].mean(0) for rows, kept in zip(states, real, strict=True)])
    for model in (ours, load(tmp_path / "out")):
        torch.testing.assert_close(torch.from_numpy(model.encode(TEXTS)), means, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("types", [2, 0])
@pytest.mark.parametrize("case", ["bert", "roberta", "distilbert", "albert", "electra", "convbert", "deberta-v3"])
def test_the_tokenizer_gives_what_the_model_takes(case: str, types: int, tmp_path: Path) -> None:
    """Long texts are cut to the model's positions, and segments are given to models that have them."""
    types = 0 if case in ("distilbert", "deberta-v3") else types
    ours = make(resized(CONFIGS[case], types=types))
    ours.tokenizer = Tokenizer.train("wordpiece", TEXTS * 4, 50)
    huggingface.save(ours, tmp_path / "out")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = words(TEXTS[0] * 9, TEXTS[1], truncation=True, return_tensors="pt")
    assert ("token_type_ids" in inputs) == (types > 1)
    model = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
        doc, segments = torch.zeros_like(inputs["input_ids"]), inputs.get("token_type_ids")
        expected = ours.encoder(inputs["input_ids"], doc=doc, segments=segments).last
    torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-4)


def test_classes_of_tokenizers_that_give_segments() -> None:
    for stem in ("Bert", "Albert", "Electra", "ConvBert", "XLNet", "Deberta", "DebertaV2"):
        kind = f"{stem}Tokenizer"
        gives = "token_type_ids" in getattr(transformers, kind).model_input_names
        assert gives == (kind in huggingface.GIVING_SEGMENTS)
    assert "token_type_ids" not in transformers.PreTrainedTokenizerFast.model_input_names


# Heads of fine-tuning


TASKS: list[tuple[str, str, dict[str, Any]]] = [
    (case, kind, {})
    for case in (
        "bert", "roberta", "albert", "distilbert", "electra", "convbert", "xlnet", "deberta", "deberta-v2-conv",
        "modernbert", "modernbert-biases",
    )
    for kind in ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
    if kind != "MultipleChoice" or case not in ("convbert", "deberta")
] + [
    ("convbert-groups", "SequenceClassification", {}),  # the head's activation is that of the layers
    ("xlnet", "SequenceClassification", {"summary_activation": "relu"}),
    ("electra", "MultipleChoice", {"summary_activation": "tanh"}),
    ("deberta", "SequenceClassification", {"pooler_hidden_act": "gelu_new"}),
    ("modernbert", "SequenceClassification", {"classifier_pooling": "mean", "classifier_dropout": 0.2}),
    ("modernbert", "MultipleChoice", {"classifier_pooling": "mean"}),
]  # fmt: skip


@pytest.mark.parametrize(("case", "kind", "more"), TASKS)
def test_task_heads(case: str, kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    name, config, fields, segments = CASES[case]
    fields = fields | more
    if case == "xlnet" and kind == "QuestionAnswering":
        kind = "QuestionAnsweringSimple"
    torch.manual_seed(3)
    labels = ("LABEL_0", "LABEL_1") if "Question" in kind else ("no", "yes", "maybe")
    settings = getattr(transformers, config)(**fields, id2label=dict(enumerate(labels)))
    theirs = getattr(transformers, name.split("For")[0].removesuffix("LMHeadModel") + "For" + kind)(settings).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert ours.config.labels == {"MultipleChoice": ("choice",)}.get(kind, () if "Question" in kind else labels)
    batch = batch_of(case, LENGTHS["odd"], segments)
    given = {"input_ids": batch["ids"], "attention_mask": batch["real"].long()}
    if segments:
        given["token_type_ids"] = batch["segments"]
    if case == "xlnet":
        given["use_mems"] = False
    huggingface.save(ours, tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert json.loads((tmp_path / "ours/config.json").read_text())["architectures"] == [type(theirs).__name__]
    for model in (theirs, again.eval()):
        with torch.no_grad():
            shaped = {n: t if n == "use_mems" or kind != "MultipleChoice" else t[None] for n, t in given.items()}
            result = model(**shaped)
            states = ours.encoder(
                batch["ids"], doc=torch.where(batch["real"], 0, -1), segments=batch.get("segments")
            ).last
            if kind.startswith("Question"):
                mine = ours.task.out(ours.task.dropped(states, None))[batch["real"]]
                other = torch.stack([result.start_logits, result.end_logits], -1)[batch["real"]]
            elif kind == "TokenClassification":
                mine, other = ours.task(states)[batch["real"]], result.logits[batch["real"]]
            else:
                chosen = states[:, -1 if case == "xlnet" else 0]
                if takes_means(ours.config.task):
                    chosen = torch.stack([row[kept].mean(0) for row, kept in zip(states, batch["real"], strict=True)])
                mine = ours.task(chosen if ours.pooler is None else ours.pooler(chosen))
                other = result.logits.reshape(len(mine), -1)
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


def test_the_beam_head_of_xlnet(tmp_path: Path) -> None:
    """Its LayerNorm has the eps of the layers, which shows where what it normalises is small."""
    _, config, fields, _ = CASES["xlnet"]
    torch.manual_seed(3)
    theirs = transformers.XLNetForQuestionAnswering(getattr(transformers, config)(**fields)).eval()
    with torch.no_grad():
        theirs.end_logits.dense_0.weight *= 1e-3
        theirs.end_logits.dense_0.bias.normal_(std=1e-3)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    ids, starts = torch.randint(6, VOCAB, (2, 9)), torch.tensor([[2], [7]])
    with torch.no_grad():
        states = ours.encoder(ids).last
        allowed = torch.ones_like(ids, dtype=torch.bool)
        torch.testing.assert_close(ours.task.start_logits(states, allowed), theirs.start_logits(states))
        ends = theirs.end_logits(states, start_positions=starts[:, 0])
        torch.testing.assert_close(ours.task.end_logits(states, allowed, starts)[:, 0], ends, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "head", [Classification(labels=2, summary="dense"), Tagging(labels=2), Span(variant="beam", dropout=0.1)]
)
def test_a_fine_tuned_xlnet_lacks_nothing(head: Any, tmp_path: Path) -> None:
    """Classes of ``transformers`` have the start of the query stream, which nothing but pretraining reads, too."""
    model = make(CONFIGS["xlnet"]).with_task(head, () if isinstance(head, Span) else ("no", "yes"), 0)
    assert not model.config.mask_vector
    huggingface.save(model, tmp_path)
    kind = getattr(transformers, json.loads((tmp_path / "config.json").read_text())["architectures"][0])
    _, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert same_weights(load(tmp_path), model) and load(tmp_path).config == model.config


def test_convolutions_read_padding_on_the_left_too(tmp_path: Path) -> None:
    theirs = theirs_of("convbert")
    theirs.save_pretrained(tmp_path)
    batch = batch_of("convbert", LENGTHS["odd"], True)
    batch = {name: tensor.flip(1) for name, tensor in batch.items()}
    with torch.no_grad():
        mine = our_outputs(load(tmp_path), batch, padded=True)
        assert_equal(mine, their_outputs(theirs, batch, padded=True), batch["real"])


@pytest.mark.parametrize("case", ["bert", "electra", "convbert", "albert"])
def test_a_model_without_segments_gets_a_row_of_zeros(case: str, tmp_path: Path) -> None:
    ours = make(resized(CONFIGS[case], types=0))
    huggingface.save(ours, tmp_path)
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    ids = torch.randint(6, 50, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(ours.encoder(ids).last, theirs(ids).last_hidden_state, atol=1e-5, rtol=1e-5)
    assert load(tmp_path).config == ours.config


@pytest.mark.parametrize(("case", "lm", "name"), [
    ("bert", False, "BertForNextSentencePrediction"),
    ("bert-causal", True, "BertForPreTraining"),
])  # fmt: skip
def test_the_class_holds_every_head(case: str, lm: bool, name: str, tmp_path: Path) -> None:
    config = resized(CONFIGS["bert"], causal=case == "bert-causal")
    huggingface.save(make(config if lm else replace(config, lm=None)), tmp_path)
    found = json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    _, report = getattr(transformers, found).from_pretrained(tmp_path, output_loading_info=True)
    assert found == name and not report["missing_keys"] and not report["unexpected_keys"]


def test_modernbert_beyond_what_its_windows_see(tmp_path: Path) -> None:
    """Long rows, one of them padded: every state, and those of the texts packed in one row."""
    theirs = theirs_of("modernbert")
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    ids = torch.randint(6, VOCAB, (2, 1100))
    real = torch.ones(2, 1100, dtype=torch.bool)
    real[1, 700:] = False
    with torch.no_grad():
        other = theirs(ids, attention_mask=real.long(), output_hidden_states=True)
        states = ours.encoder(ids, attention_mask=real.long())
        for mine, expected in zip(states.layers, other.hidden_states, strict=True):
            torch.testing.assert_close(mine[real], expected[real], atol=3e-5, rtol=3e-5)
        packed = torch.cat([ids[0], ids[1, :700]])[None]
        doc = torch.tensor([0] * 1100 + [1] * 700)[None]
        both = ours.encoder(packed, doc=doc).last[0]
        torch.testing.assert_close(both, other.hidden_states[-1][real], atol=3e-5, rtol=3e-5)


def test_modernbert_at_its_full_length(tmp_path: Path) -> None:
    fields = CASES["modernbert"][2] | {"num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    theirs = transformers.ModernBertModel(transformers.ModernBertConfig(**fields)).eval()
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(6, VOCAB, (1, 8192))
    with torch.no_grad():
        torch.testing.assert_close(
            load(tmp_path).encoder(ids).last, theirs(ids).last_hidden_state, atol=3e-5, rtol=3e-5
        )


def test_modernbert_starts_as_in_transformers() -> None:
    """Standard deviations of new weights, by kind of map."""
    fields = CASES["modernbert"][2] | {"hidden_size": 256, "intermediate_size": 256, "initializer_range": 0.02}
    settings = transformers.ModernBertConfig(**fields | {"vocab_size": 512})
    torch.manual_seed(0)
    theirs = transformers.ModernBertForSequenceClassification(settings)
    _, config = configs.read(settings.to_dict(), "config.json")
    config = replace(config, lm=None, labels=("no", "yes"), task=FAMILIES["modernbert"].classification)
    ours = Model(config).initialize(0)
    name_table = huggingface.name_table_of(config, "modernbert")
    drawn = names.write(name_table, dict(ours.named_parameters()), config.encoder)
    for name, tensor in theirs.state_dict().items():
        mine = drawn[name].float().std().item()
        spread = 0.1 if tensor.numel() > 4000 else 0.2
        assert mine == pytest.approx(tensor.float().std().item(), rel=spread, abs=1e-6), name


def test_a_new_task_starts_from_the_pretrained_prediction_head(tmp_path: Path) -> None:
    theirs = theirs_of("modernbert")
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    tuned = ours.with_task(FAMILIES["modernbert"].tagging, ("O", "B"), 0)
    assert torch.equal(tuned.task.prediction.dense.weight, ours.lm.dense.weight)
    assert torch.equal(tuned.task.prediction.norm.weight, ours.lm.norm.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 4 + ["chunked_attention"]}, "layer_types"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}}, "rope_type 'yarn'"),
        ({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"head_dim": 16}, "head_dim"),
        ({"classifier_activation": "mish"}, "classifier_activation"),
        ({"num_experts": 4}, "num_experts"),
        ({"local_attention": -1}, "local_attention"),
        ({"global_rope_theta": 0}, "global_rope_theta"),
    ],
)
def test_what_modernbert_here_is_not_is_refused(changes: dict[str, Any], message: str) -> None:
    data = transformers.ModernBertConfig(**MODERN).to_dict()
    if "global_rope_theta" in changes:
        del data["rope_parameters"]
    with pytest.raises(DataError, match=message):
        configs.read(data | changes, "config.json")


@pytest.mark.parametrize("untied", [True, False])
def test_xlnet_with_heads_of_another_width(untied: bool, tmp_path: Path) -> None:
    """``transformers`` builds it, although its configuration says no; ``untie_r`` it does not read."""
    config = transformers.XLNetConfig(**XLNET, untie_r=untied)
    object.__setattr__(config, "d_head", 12)
    torch.manual_seed(3)
    theirs = transformers.XLNetLMHeadModel(config).eval()
    weights = {name: tensor.clone() for name, tensor in theirs.state_dict().items() if name != "lm_loss.weight"}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {"d_head": 12}, default=str))
    ours, batch = load(tmp_path), batch_of("xlnet", LENGTHS["odd"], True)
    assert ours.config.encoder.key_width == 12
    with torch.no_grad():
        mine, other = our_outputs(ours, batch, padded=True), their_outputs(theirs, batch, padded=True)
    assert_equal(mine, other, batch["real"])


def test_fields_that_transformers_does_not_read_change_nothing(tmp_path: Path) -> None:
    theirs = theirs_of("bert")
    theirs.save_pretrained(tmp_path)
    expected = load(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields |= {"xla_device": True, "_commit_hash": "0", "attn_implementation": "eager", "total_flos": 1e9}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert same_weights(load(tmp_path), expected)
