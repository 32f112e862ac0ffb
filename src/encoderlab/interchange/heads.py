"""The heads in a foreign file, and the names of fine-tuning heads in ``transformers``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from encoderlab.errors import DataError
from encoderlab.interchange.configs.fields import THEIR_ACTIVATION, Fields
from encoderlab.interchange.configs.rotary import read_prediction
from encoderlab.interchange.name_tables import linear
from encoderlab.interchange.names import Rule
from encoderlab.models.base import ModelConfig
from encoderlab.nn.architecture import WIDEST
from encoderlab.nn.feedforward import Activation
from encoderlab.nn.heads import Classification, Prediction, Span, Tagging, TaskHead

NUMBER = ("number",)  # labels of a regression, whose only output is the answer
SEVERAL = "multi_label_classification"  # the problem_type of a classifier with any number of labels per text
CHOICES = ("choice",)  # labels of multiple choice, with one score per choice

# Pretraining heads: the field of ModelConfig, the prefix of our tensors, and the field's value without the head.
PRETRAINING: tuple[tuple[str, str, Any], ...] = (
    ("pooler", "pooler.", None),
    ("lm", "lm.", None),
    ("pair", "pair.", False),
    ("rtd", "rtd.", None),
    ("mask_decoder", "mask_positions", 0),
    ("mask_vector", "mask_vector", False),
)


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """The names of a text classifier in ``transformers``, and its fields in ``config.json``.

    Args:
        dense: the name of its dense map; None for the pretrained pooler.
        out: the name of its output map.
        activation: after the dense map, unless ``field`` has another.
        field: the field with the activation after the dense map, if there is one.
        dropout: the field with the dropout rate.
        before: whether dropout also precedes the dense map.
        usual: the rate if the field is missing; None for the rate of the layers.
        summary: the ``summary_type`` that the file must have.
        prediction: whether a prediction head precedes the output map of this and all other tasks.
    """

    dense: str | None = None
    out: str = "classifier"
    activation: Activation = "tanh"
    field: str | None = None
    dropout: str = "classifier_dropout"
    usual: float | None = None
    before: bool = False
    summary: str | None = None
    prediction: bool = False


_SUMMARY = Classifier(
    dense="sequence_summary.summary",
    field="summary_activation",
    dropout="summary_last_dropout",
    usual=0.1,
    summary="last",
)
_POOLED = Classifier(dense="pooler.dense", activation="gelu", field="pooler_hidden_act", dropout="cls_dropout")
_OF_TOKEN = Classifier(dense="classifier.dense", out="classifier.out_proj", before=True)
SEQUENCE: dict[str, Classifier] = {
    "bert": Classifier(),
    "albert": Classifier(dropout="classifier_dropout_prob", usual=0.1),
    "roberta": _OF_TOKEN,
    "distilbert": Classifier(dense="pre_classifier", activation="relu", dropout="seq_classif_dropout", usual=0.2),
    "electra": replace(_OF_TOKEN, activation="gelu"),
    "convbert": replace(_OF_TOKEN, activation="gelu", field="hidden_act"),
    "deberta": _POOLED,
    "deberta-v2": _POOLED,
    "xlnet": replace(_SUMMARY, out="logits_proj"),
    "modernbert": Classifier(prediction=True, usual=0.0),
}
CHOICE: dict[str, Classifier] = {
    **{name: SEQUENCE[name] for name in ("bert", "albert", "distilbert", "deberta-v2", "xlnet", "modernbert")},
    "roberta": Classifier(),
    "electra": replace(_SUMMARY, activation="gelu", summary="first"),
}
BEAM = (
    *linear("task.start", "start_logits.dense"),
    *linear("task.end_dense", "end_logits.dense_0"),
    *linear("task.end_norm", "end_logits.LayerNorm"),
    *linear("task.end_out", "end_logits.dense_1"),
    *linear("task.answer_dense", "answer_class.dense_0"),
    *linear("task.answer_out", "answer_class.dense_1"),
)


def without(config: ModelConfig, missing: Collection[str], expected: Collection[str]) -> ModelConfig:
    """The configuration without pretraining heads whose tensors are all ``missing``.

    A pooler that the fine-tuning head reads stays.
    """
    absent = {}
    for field, prefix, none in PRETRAINING:
        if field == "pooler" and isinstance(config.task, Classification) and config.task.summary == "pooler":
            continue
        names = [name for name in expected if name.startswith(prefix)]
        if names and all(name in missing for name in names):
            absent[field] = none
    if "lm" in absent:
        absent["mask_decoder"] = 0
    if "pooler" in absent:
        absent["pair"] = False
    return replace(config, **absent)


def read_task(data: dict[str, Any], source: str, model_type: str, config: ModelConfig) -> ModelConfig:
    """The configuration with the fine-tuning head that ``architectures`` of ``config.json`` names, if any.

    Raises:
        DataError: a head that is not implemented, or a wrong field of it.
    """
    fields = Fields(data, source)
    architecture = _architecture(fields)
    kind = architecture.partition("For")[2]
    head: TaskHead
    labels: tuple[str, ...] = ()
    if kind in ("", "MaskedLM", "PreTraining", "CausalLM", "NextSentencePrediction"):
        return config
    if kind in ("SequenceClassification", "MultipleChoice"):
        choice = kind == "MultipleChoice"
        theirs = (CHOICE if choice else SEQUENCE).get(model_type)
        if theirs is None:
            raise _unknown(fields, architecture)
        labels = CHOICES if choice else _answers(fields, _labels(fields))
        several = not choice and fields.take("problem_type", None) == SEVERAL
        head = replace(_classification(fields, theirs, len(labels)), several=several)
    elif kind == "TokenClassification" and model_type in SEQUENCE:
        labels = _labels(fields)
        field, usual = _tagging_dropout(model_type)
        head = Tagging(
            labels=len(labels), dropout=_dropout(fields, field, usual), prediction=_prediction(fields, model_type)
        )
    elif kind == "QuestionAnswering" and model_type == "xlnet":
        head = Span(variant="beam", dropout=fields.number("dropout", 0.1))
    elif kind in ("QuestionAnswering", "QuestionAnsweringSimple") and model_type in SEQUENCE:
        field, usual = _answer_dropout(model_type)
        head = Span(dropout=fields.number(field, usual), prediction=_prediction(fields, model_type))
    else:
        raise _unknown(fields, architecture)
    if SEQUENCE[model_type].prediction:  # its weights have the same names as in the LM head
        config = replace(config, lm=None)
    return replace(config, task=head, labels=labels)


def _architecture(fields: Fields) -> str:
    """The class that saved the weights; empty if the file names none."""
    names = fields.take("architectures", None) or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise DataError(f"{fields.source}: architectures is {names!r}, expected a list of names; restore the file")
    return names[0]


def _unknown(fields: Fields, architecture: str) -> DataError:
    return DataError(
        f"{fields.source}: {architecture} is not implemented; load it as a bare encoder: remove 'architectures'"
    )


def _dropout(fields: Fields, name: str, usual: float | None) -> float:
    """The field's value, else the usual value, else the layers' value."""
    if fields.data.get(name) is None and usual is not None:
        return usual
    names = (field for field in (name, "hidden_dropout_prob", "dropout") if fields.data.get(field) is not None)
    return fields.number(next(names, "dropout"), 0.1)


def _tagging_dropout(model_type: str) -> tuple[str, float | None]:
    """The field of the dropout rate of taggers, and its usual value.

    DistilBERT, DeBERTa and XLNet have no such field in ``transformers``; only we read the one written for them.
    """
    theirs = SEQUENCE[model_type]
    return (theirs.dropout, theirs.usual) if theirs.dropout.startswith("classifier") else ("classifier_dropout", None)


def _answer_dropout(model_type: str) -> tuple[str, float]:
    """The field of the dropout rate before answer scores, and its usual value."""
    if SEQUENCE[model_type].prediction:
        return "classifier_dropout", 0.0
    return "qa_dropout", 0.1 if model_type == "distilbert" else 0.0


def _prediction(fields: Fields, model_type: str) -> Prediction | None:
    return read_prediction(fields) if SEQUENCE[model_type].prediction else None


def _classification(fields: Fields, theirs: Classifier, labels: int) -> Classification:
    if theirs.summary is not None:
        fields.only("summary_type", theirs.summary)
        fields.only("summary_use_proj", True)
    dropout = _dropout(fields, theirs.dropout, theirs.usual)
    if theirs.before:
        input_dropout = dropout
    else:  # DeBERTa alone has a second rate
        input_dropout = fields.number("pooler_dropout", 0.0) if theirs is _POOLED else 0.0
    if theirs.prediction:
        pooling = fields.take("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise DataError(f"{fields.source}: classifier_pooling {pooling!r} is not implemented; expected cls or mean")
        return Classification(
            labels=labels,
            pooling="mean" if pooling == "mean" else "token",
            summary="raw",
            prediction=read_prediction(fields),
            dropout=dropout,
        )
    return Classification(
        labels=labels,
        summary="pooler" if theirs.dense is None else "dense",
        activation=fields.activation(theirs.field, THEIR_ACTIVATION[theirs.activation])
        if theirs.field
        else theirs.activation,
        input_dropout=input_dropout,
        dropout=dropout,
    )


def chooses(config: ModelConfig) -> bool:
    """Whether the head gives one score for each of several choices; a label of many may have the same name."""
    head = config.task
    return isinstance(head, Classification) and not head.several and config.labels == CHOICES


def write_task(config: ModelConfig, model_type: str) -> tuple[str, dict[str, Any]]:
    """The ending of the class name, and the fields of ``config.json`` for the fine-tuning head.

    Raises:
        DataError: ``transformers`` has no such head for the family.
    """
    head, labels = config.task, config.labels
    if isinstance(head, Classification):
        return _write_classification(head, config, model_type)
    assert head is not None
    if model_type not in SEQUENCE:
        raise DataError(f"transformers has no class for {head.kind} of {model_type}")
    if isinstance(head, Tagging):
        if head.dense:
            raise DataError(f"tagging with a dense map has no counterpart for {model_type} in transformers")
        fields = _their_prediction(head, model_type) | {_tagging_dropout(model_type)[0]: head.dropout}
        return "ForTokenClassification", _their_labels(labels) | fields
    assert isinstance(head, Span)
    if head.variant == "conditional" or (head.variant == "beam" and model_type != "xlnet"):
        raise DataError(f"a {head.variant} answer head has no counterpart for {model_type} in transformers")
    simple = model_type == "xlnet" and head.variant == "independent"
    fields = _their_prediction(head, model_type)
    if fields or model_type == "distilbert":
        fields[_answer_dropout(model_type)[0]] = head.dropout
    return "ForQuestionAnsweringSimple" if simple else "ForQuestionAnswering", fields


def _write_classification(head: Classification, config: ModelConfig, model_type: str) -> tuple[str, dict[str, Any]]:
    choice = chooses(config)
    ending = "ForMultipleChoice" if choice else "ForSequenceClassification"
    theirs = (CHOICE if choice else SEQUENCE).get(model_type)
    if theirs is None:
        raise DataError(f"transformers has no class {ending} for {model_type}")
    summary = "pooler" if theirs.dense is None else "dense"
    fields = _their_labels(config.labels) | {theirs.dropout: head.dropout} | _their_prediction(head, model_type)
    activation = head.activation
    if theirs.field is None:
        activation = theirs.activation
    elif theirs.field == "hidden_act":
        activation = config.encoder.activation
    else:
        fields[theirs.field] = THEIR_ACTIVATION[activation]
    if theirs.prediction:
        summary = "raw"
        fields["classifier_pooling"] = "mean" if head.pooling == "mean" else "cls"
    elif head.pooling == "mean":
        raise DataError(f"a classifier of the mean over all tokens has no counterpart for {model_type} in transformers")
    if theirs is _POOLED:
        fields["pooler_dropout"] = head.input_dropout
    if head.summary != summary or (theirs.dense is not None and head.activation != activation):
        raise DataError(
            f"a classifier with summary {head.summary!r} and {head.activation!r} has no counterpart for "
            f"{model_type} in transformers; fine-tune with summary {summary!r} and activation {activation!r}"
        )
    if head.several:
        fields["problem_type"] = SEVERAL
    elif config.labels == NUMBER:
        fields["problem_type"] = "regression"
    return ending, fields


def _their_prediction(head: TaskHead, model_type: str) -> dict[str, Any]:
    """The fields of the prediction head, which only ModernBERT's tasks have, and always have."""
    needed = model_type in SEQUENCE and SEQUENCE[model_type].prediction
    if needed != (head.prediction is not None):
        has = "needs" if needed else "has no place for"
        raise DataError(f"{model_type} in transformers {has} a prediction head before the last map of a task")
    if head.prediction is None:
        return {}
    activation = THEIR_ACTIVATION[head.prediction.activation]
    return {"classifier_activation": activation, "classifier_bias": head.prediction.bias}


def _their_labels(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def task_rules(config: ModelConfig, model_type: str) -> tuple[Rule, ...]:
    """The rules for the tensors of the fine-tuning head."""
    head = config.task
    if head is not None and SEQUENCE.get(model_type, _OF_TOKEN).prediction:
        return (
            *linear("task.prediction.dense", "head.dense"),
            *linear("task.prediction.norm", "head.norm"),
            *linear("task.out", "classifier"),
        )
    if isinstance(head, Classification):
        theirs = (CHOICE if chooses(config) else SEQUENCE)[model_type]
        return (*(linear("task.dense", theirs.dense) if theirs.dense else ()), *linear("task.out", theirs.out))
    if isinstance(head, Tagging):
        return linear("task.out", "classifier")
    if isinstance(head, Span):
        return BEAM if head.variant == "beam" else linear("task.out", "qa_outputs")
    return ()


def _answers(fields: Fields, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of a classifier: :data:`NUMBER` if its only output is a number.

    Any other single output is the logit of a probability, as in the pipeline of ``transformers``.
    """
    fields.only("problem_type", None, "regression", "single_label_classification", SEVERAL)
    problem = fields.take("problem_type", None)
    if problem == "regression" and len(labels) > 1:
        raise DataError(
            f"{fields.source}: problem_type 'regression' with {len(labels)} outputs is not implemented, expected 1; "
            "load it as a bare encoder: remove 'architectures'"
        )
    return NUMBER if problem == "regression" else labels


def _labels(fields: Fields) -> tuple[str, ...]:
    """The labels in the order of their numbers."""
    names = fields.take("id2label", None)
    if not names:
        count = fields.count("num_labels", 2)
        if count > WIDEST:
            raise DataError(f"{fields.source}: num_labels is {count}, expected at most {WIDEST}; restore the file")
        return numbered(count)
    numbers = [str(index) for index in range(len(names))] if isinstance(names, dict) else []
    named = bool(numbers) and all(isinstance(name, (str, int, float)) for name in names.values())
    if not named or set(names) != set(numbers):
        raise DataError(f"{fields.source}: id2label is {names!r}, expected names by number; number them from 0")
    labels = tuple(str(names[number]) for number in numbers)
    if len(set(labels)) < len(labels):
        raise DataError(f"{fields.source}: id2label is {names!r}, with one label twice; give each its own name")
    return labels


def numbered(count: int) -> tuple[str, ...]:
    """The names that ``transformers`` gives to unnamed labels."""
    return tuple(f"LABEL_{index}" for index in range(count))


def unnamed(count: int) -> tuple[str, ...]:
    """The labels of a classifier of original code, whose files have no names: a single output is a number."""
    return NUMBER if count == 1 else numbered(count)
