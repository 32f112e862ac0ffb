"""Hugging Face folders, written and read back: what single families need, and what ``transformers`` lacks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from encoderlab import load
from encoderlab.corpus.tokenizer import Tokenizer
from encoderlab.errors import ConfigError, DataError
from encoderlab.interchange import huggingface
from encoderlab.model import Model
from encoderlab.models.base import resized
from encoderlab.nn.architecture import Sharing
from encoderlab.nn.heads import Classification, Pooler, Span, Tagging
from encoderlab.nn.positions import Absolute, Disentangled, RelativeShift, Rotary, Shaw
from encoderlab.nn.spanconv import SpanDynamic
from tests.interchange.changed import WEIGHTS, configure, rewrite
from tests.interchange.tiny_models import CONFIGS, make, same_weights

pytestmark = pytest.mark.usefixtures("unrecorded")


@pytest.mark.parametrize("case", CONFIGS)
def test_round_trip(case: str, tmp_path: Path) -> None:
    model = make(CONFIGS[case])
    huggingface.save(model, tmp_path / "out")
    back = load(tmp_path / "out")
    assert same_weights(model, back)
    assert replace(back.config, encoder=model.config.encoder) == model.config
    huggingface.save(back, tmp_path / "again")
    for file in ("config.json", WEIGHTS):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out"]


def test_both_dialects_are_refused_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a head of bert has one name .*; leave out --both-heads"):
        huggingface.save(make(CONFIGS["bert"]), tmp_path / "out", both_heads=True)


@pytest.mark.parametrize("both", [False, True])
def test_both_dialects_of_deberta(both: bool, tmp_path: Path) -> None:
    model = make(CONFIGS["deberta-v2"])
    notes = huggingface.save(model, tmp_path / "out", both_heads=both)
    assert any("mask decoder" in note for note in notes)
    assert "mask decoder" in (tmp_path / "out" / "README.md").read_text()
    names = set(safetensors.torch.load_file(tmp_path / "out" / WEIGHTS))
    assert "cls.predictions.transform.dense.weight" in names
    assert ("lm_predictions.lm_head.dense.weight" in names) == both
    if both:  # files of the original have its own names only
        rewrite(tmp_path / "out", lambda t: {n: v for n, v in t.items() if not n.startswith("cls.")})
        assert same_weights(model, load(tmp_path / "out"))


def test_a_segment_row_of_roberta_is_kept_unless_it_is_zero(tmp_path: Path) -> None:
    model = make(CONFIGS["roberta"])
    huggingface.save(model, tmp_path / "out")
    assert load(tmp_path / "out").config.encoder.types == 0
    name = "roberta.embeddings.token_type_embeddings.weight"
    rewrite(tmp_path / "out", lambda tensors: tensors | {name: torch.ones(1, 128)})
    back = load(tmp_path / "out")
    ids = torch.randint(5, 50, (2, 9))
    assert back.config.encoder.types == 1
    assert not torch.allclose(back.encoder(ids).last, model.encoder(ids).last)


def test_rows_before_the_positions_of_roberta_are_kept(tmp_path: Path) -> None:
    """Nothing reads them, but a folder that is written again has the bytes that it had."""
    model = make(resized(CONFIGS["roberta"], vocab=261))
    huggingface.save(model, tmp_path / "out")
    model.tokenizer = Tokenizer.train("bpe", ["the letters alone"], 261)
    huggingface.save(model, tmp_path / "again")
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (tmp_path / "out" / WEIGHTS).read_bytes()


@pytest.mark.parametrize(("family", "said"), [("roberta", False), ("bert", True)])
def test_a_padding_id_of_another_tokenizer_is_said(
    family: str, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``transformers`` counts no position at the unknown token of BERT's vocabulary, whose id is RoBERTa's padding."""
    model = make(resized(CONFIGS["roberta"], vocab=300))
    assert model.config.encoder.position.offset == 2
    huggingface.save(model, tmp_path / "out")
    kind = "bpe" if family == "roberta" else "wordpiece"
    Tokenizer.train(kind, ["the letters alone"] * 9, 261 if kind == "bpe" else 25, family=family).save(tmp_path / "out")
    with caplog.at_level("WARNING", "encoderlab"):
        load(tmp_path / "out")
    assert any(r"of texts with its token 1 ([UNK]) differ" in text for text in caplog.messages) == said


SEGMENTED = {"model_input_names": ["input_ids", "token_type_ids"]}


@pytest.mark.parametrize(
    ("case", "fields", "said"),
    [
        ("bert", {"model_input_names": ["input_ids"]}, "pairs of texts"),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}, "pairs of texts"),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast", **SEGMENTED}, None),
        ("bert", {"tokenizer_class": "BertTokenizerFast"}, None),
        ("bert", {}, None),
        ("albert", {}, "pairs of texts"),
        ("albert", SEGMENTED, None),
        ("xlnet", {"tokenizer_class": "XLNetTokenizer"}, "all texts"),
        ("xlnet", SEGMENTED, None),
        ("distilbert", {"model_input_names": ["input_ids"]}, None),
    ],
)
def test_a_tokenizer_without_the_segments_of_the_model_is_said(
    case: str, fields: dict[str, Any], said: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``transformers`` then gives the second text of a pair the segment of the first. Since release 5, only some
    classes give segments if the file does not ask for them."""
    model = make(resized(CONFIGS[case], vocab=25))
    kind, size, family = ("unigram", 20, "xlnet") if case == "xlnet" else ("wordpiece", 25, "bert")
    model.tokenizer = Tokenizer.train(kind, ["the letters alone"] * 9, size, family=family)
    huggingface.save(model, tmp_path / "out")
    path = tmp_path / "out" / "tokenizer_config.json"
    own = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: own[name] for name in own if name not in (*SEGMENTED, "tokenizer_class")} | fields)
    )
    with caplog.at_level("WARNING", "encoderlab"):
        load(tmp_path / "out")
    assert caplog.messages == [text for text in caplog.messages if said and f"results of {said} differ" in text]
    assert len(caplog.messages) == (said is not None)


def test_the_map_of_albert_at_equal_widths(tmp_path: Path) -> None:
    model = make(resized(CONFIGS["albert"], embed_width=128))
    huggingface.save(model, tmp_path / "out")
    name = "albert.encoder.embedding_hidden_mapping_in.weight"
    assert torch.equal(safetensors.torch.load_file(tmp_path / "out" / WEIGHTS)[name], torch.eye(128))
    assert same_weights(model, load(tmp_path / "out"))
    rewrite(tmp_path / "out", lambda tensors: tensors | {name: torch.eye(128) * 2})
    mapped = load(tmp_path / "out")
    assert mapped.config.encoder.embed_map and torch.equal(mapped.encoder.embeddings.map.weight, torch.eye(128) * 2)


@pytest.mark.parametrize("case", ["deberta", "deberta-v3", "electra", "bert"])
def test_a_map_at_equal_widths_is_of_albert_alone(case: str, tmp_path: Path) -> None:
    """Classes of other families have one only where the widths differ, and would leave its weights out."""
    width = CONFIGS[case].encoder.width
    with pytest.raises(DataError, match="has embed_map False and cannot have True"):
        huggingface.save(make(resized(CONFIGS[case], embed_width=width, embed_map=True)), tmp_path / "out")


def test_a_pooler_that_its_class_lacks_is_kept_and_said(tmp_path: Path) -> None:
    """BERT pretrained without pairs (``bert-base-no-nsp``)."""
    model = make(replace(CONFIGS["bert"], pair=False))
    (note,) = huggingface.save(model, tmp_path / "out")
    assert "no pooler" in note and same_weights(load(tmp_path / "out"), model)
    assert not huggingface.save(make(CONFIGS["bert"]), tmp_path / "with pairs")


@pytest.mark.parametrize(
    ("head", "lost"), [(Tagging(labels=2), "lm, pair, pooler"), (Classification(labels=2), "lm, pair")]
)
def test_heads_beside_a_task_head_are_left_out_and_said(head: Any, lost: str, tmp_path: Path) -> None:
    model = make(replace(CONFIGS["bert"], task=head, labels=("a", "b")))
    (note,) = huggingface.save(model, tmp_path / "out")
    assert note.endswith(f"have none: {lost}") and load(tmp_path / "out").lm is None


@pytest.mark.parametrize(("case", "lost"), [("modernbert", "dropout 0 "), ("xlnet", "attention_dropout 0.3 ")])
def test_dropout_that_a_class_cannot_have_is_said(case: str, lost: str, tmp_path: Path) -> None:
    """ModernBERT has one rate for weights and output of attention, XLNet one for all; no result depends on it."""
    model = make(resized(CONFIGS[case], dropout=0.3))
    (note,) = huggingface.save(model, tmp_path / "out")
    assert note.startswith(f"further training in transformers has other dropout ({lost}instead of ")
    assert same_weights(load(tmp_path / "out"), model)


KINDS_OF_POSITIONS = (Absolute(sinusoidal=True), RelativeShift(), Shaw(), Disentangled(), Rotary())


@pytest.mark.parametrize("case", CONFIGS)
def test_positions_that_a_family_lacks_are_refused(case: str, tmp_path: Path) -> None:
    config = CONFIGS[case]
    tokenizer = Tokenizer.train("wordpiece", ["a b c d"] * 9, 13)
    changes = {"causal": False, "stem_conv": None, "local": None}
    for position in KINDS_OF_POSITIONS:
        if position.kind != config.encoder.position.kind or position.sinusoidal:
            model = Model(resized(replace(config, mask_vector=False, mask_decoder=0), position=position, **changes))
            model.tokenizer = tokenizer
            with pytest.raises(DataError, match="transformers"):
                huggingface.save(model.initialize(0), tmp_path / position.kind)
    assert not list(tmp_path.iterdir())


def test_albert_without_sharing(tmp_path: Path) -> None:
    config = resized(CONFIGS["albert"], sharing=None)
    model = make(config)
    huggingface.save(model, tmp_path / "out")
    back = load(tmp_path / "out")
    assert same_weights(back, model) and back.config.encoder.sharing == Sharing(groups=2)
    with pytest.raises(DataError, match="has sharing .* cannot have"):
        shared = resized(config, sharing=Sharing(parts=("attention",)))
        huggingface.save(make(shared), tmp_path / "attention")


def test_groups_of_albert_that_transformers_rounds_are_refused(tmp_path: Path) -> None:
    """int(9 / (18 / 14)) is 6 there, and 9 * 14 // 18 is 7 here."""
    grouped = resized(CONFIGS["albert"], layers=18, sharing=Sharing(groups=14))
    with pytest.raises(DataError, match="layer 9 has the weights of group 6 there and of group 7 here"):
        huggingface.save(make(grouped), tmp_path / "out")
    huggingface.save(make(resized(grouped, sharing=Sharing(groups=9))), tmp_path / "out")


def test_convbert_in_transformers(tmp_path: Path) -> None:
    masked = resized(CONFIGS["convbert"], conv=SpanDynamic(mask_padding=True))
    notes = huggingface.save(make(masked), tmp_path / "masked")
    assert any("padding" in note for note in notes)
    for changes in ({"heads": 1}, {"conv": SpanDynamic(head_ratio=4)}, {"conv": SpanDynamic(share_value=True)}):
        with pytest.raises(DataError):
            huggingface.save(make(resized(CONFIGS["convbert"], **changes)), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("case", "head"),
    [
        ("electra", Classification(labels=2, summary="raw")),
        ("deberta-v2", Tagging(labels=2, dense=True)),
        ("electra", Span(variant="conditional")),
        ("albert", Span(variant="beam")),
        ("convbert", Classification(labels=2, summary="dense", activation="relu")),
    ],
)
def test_task_heads_that_transformers_lacks(case: str, head: Any, tmp_path: Path) -> None:
    config = replace(CONFIGS[case], task=head, labels=("a", "b"), lm=None, pair=False, rtd=None, mask_decoder=0)
    with pytest.raises(DataError, match="no counterpart"):
        huggingface.save(make(config), tmp_path / "out")


def test_a_label_called_choice_is_no_multiple_choice(tmp_path: Path) -> None:
    head = Classification(labels=1, dropout=0.1, several=True)
    model = make(replace(CONFIGS["bert"], task=head, labels=("choice",), lm=None, pair=False))
    huggingface.save(model, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"] and config["id2label"] == {"0": "choice"}
    again = load(tmp_path / "out")
    assert same_weights(again, model) and again.config.task == head and again.config.labels == ("choice",)


@pytest.mark.parametrize(
    ("case", "head", "message"),
    [
        ("roberta", Classification(labels=1, summary="dense"), "no counterpart"),  # its class reads the pooler
        ("deberta", Classification(labels=1, summary="dense", activation="gelu"), "no class ForMultipleChoice"),
    ],
)
def test_multiple_choice_that_transformers_lacks(case: str, head: Classification, message: str, tmp_path: Path) -> None:
    config = replace(CONFIGS[case], task=head, labels=("choice",), lm=None, mask_decoder=0)
    with pytest.raises(DataError, match=message):
        huggingface.save(make(config), tmp_path / "out")


@pytest.mark.parametrize(
    ("case", "family", "causal", "said"),
    [
        ("bert", "bert", True, "the first token of a text in transformers, and the last one here, because it is left"),
        ("bert", "xlnet", False, "the first token of a text in transformers, and the last .* puts <cls>"),
        ("xlnet", "bert", False, r"the last token of a text in transformers, and the first .* puts \[CLS\]"),
        ("bert", "bert", False, ""),
        ("xlnet", "xlnet", False, ""),
    ],
)
def test_a_classifier_of_another_token_than_in_transformers_is_refused(
    case: str, family: str, causal: bool, said: str, tmp_path: Path
) -> None:
    summary = "pooler" if case == "bert" else "dense"
    config = replace(CONFIGS[case], task=Classification(labels=2, summary=summary), labels=("a", "b"), lm=None)
    config = replace(config, pair=False, mask_vector=False)
    huggingface.save(make(config), tmp_path / "out")
    kind, size = ("wordpiece", 25) if family == "bert" else ("unigram", 20)
    tokenizer = Tokenizer.train(kind, ["the letters alone"] * 9, size, family=family)
    tokenizer.save(tmp_path / "out")
    if causal:
        configure(tmp_path / "out", is_decoder=True)
    model = make(resized(config, causal=causal))
    model.tokenizer = tokenizer
    if not said:
        huggingface.save(model, tmp_path / "again")
        assert load(tmp_path / "out").config.task == load(tmp_path / "again").config.task == config.task
        return
    with pytest.raises(DataError, match=f"{said}.*; fine-tune another model"):
        huggingface.save(model, tmp_path / "again")
    with pytest.raises(DataError, match=f"{said}.*; load it as a bare encoder: remove 'architectures'"):
        load(tmp_path / "out")
    configure(tmp_path / "out", architectures=None)
    assert load(tmp_path / "out").config.task is None


@pytest.mark.parametrize(
    ("case", "head"),
    [
        ("bert", Classification(labels=2, dropout=0.3)),
        ("roberta", Classification(labels=2, summary="dense", input_dropout=0.3, dropout=0.3)),
        ("distilbert", Classification(labels=2, summary="dense", activation="relu", dropout=0.3)),
        ("deberta-v2", Classification(labels=2, summary="dense", activation="gelu", input_dropout=0.3, dropout=0.4)),
        ("xlnet", Tagging(labels=2, dropout=0.3)),
        ("albert", Tagging(labels=2, dropout=0.3)),
        ("distilbert", Tagging(labels=2, dropout=0.3)),
        ("distilbert", Span(dropout=0.3)),
    ],
)
def test_the_dropout_of_a_head_comes_back(case: str, head: Any, tmp_path: Path) -> None:
    labels = () if isinstance(head, Span) else ("a", "b")
    config = replace(CONFIGS[case], task=head, labels=labels, lm=None, pair=False, mask_decoder=0, mask_vector=False)
    if not isinstance(head, Classification) or head.summary != "pooler":
        config = replace(config, pooler=None)
    huggingface.save(make(config), tmp_path / "out")
    assert load(tmp_path / "out").config.task == head


@pytest.mark.parametrize(
    ("case", "head", "field", "usual"),
    [
        ("albert", Classification(labels=2), "classifier_dropout_prob", 0.1),
        ("albert", Tagging(labels=2), "classifier_dropout_prob", 0.1),
        ("distilbert", Classification(labels=2, summary="dense", activation="relu"), "seq_classif_dropout", 0.2),
        ("distilbert", Tagging(labels=2), "classifier_dropout", 0.3),  # that of the layers
        ("distilbert", Span(), "qa_dropout", 0.1),
        ("bert", Classification(labels=2), "classifier_dropout", 0.3),
    ],
)
def test_a_dropout_that_is_missing_is_that_of_transformers(
    case: str, head: Any, field: str, usual: float, tmp_path: Path
) -> None:
    pooler = Pooler() if isinstance(head, Classification) and head.summary == "pooler" else None
    labels = () if isinstance(head, Span) else ("a", "b")
    config = replace(CONFIGS[case], task=head, labels=labels, lm=None, pair=False, pooler=pooler)
    huggingface.save(make(resized(config, dropout=0.3)), tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    del written[field]
    (tmp_path / "out/config.json").write_text(json.dumps(written))
    task = load(tmp_path / "out").config.task
    assert task is not None and task.dropout == usual


def test_the_second_dropout_of_deberta_is_no_field_of_others(tmp_path: Path) -> None:
    config = replace(CONFIGS["bert"], task=Classification(labels=2), labels=("a", "b"), lm=None, pair=False)
    huggingface.save(make(config), tmp_path / "out")
    configure(tmp_path / "out", pooler_dropout=0.3)
    assert load(tmp_path / "out").config.task == config.task
