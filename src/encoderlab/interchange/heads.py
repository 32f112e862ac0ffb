"""Which heads a foreign file has, and where the heads of fine-tuning lie in ``transformers``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from encoderlab.errors import DataError
from encoderlab.interchange.configs.fields import THEIR_ACTIVATION, Fields
from encoderlab.interchange.configs.rotary import read_prediction
from encoderlab.interchange.names import Rule
from encoderlab.interchange.tables import linear
from encoderlab.models.base import ModelConfig
from encoderlab.nn.feedforward import Activation
from encoderlab.nn.heads import Classification, Prediction, Span, Tagging, TaskHead

NUMBER = ("number",)  # labels of a regression, whose one output is the answer itself
SEVERAL = "multi_label_classification"  # the problem_type of a classifier that gives any number of labels
CHOICES = ("choice",)  # of multiple choice: one score per choice

# Pretraining heads: the field of ModelConfig, where our tensors of it start, and the field's value without the head.
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
    """Where ``transformers`` keeps a classifier of one vector per text, and what its ``config.json`` says of it.

    Args:
        dense: the name of its dense map; None for the pretrained pooler.
        out: the name of its output map.
        activation: after the dense map, where ``field`` does not say otherwise.
        field: the field with the activation after the dense map, if there is such a field.
        dropout: the field with the dropout.
        before: whether there is dropout before the dense map too.
        usual: the dropout where the field is missing; None for that of the layers.
        summary: the ``summary_type`` that the file must have.
        prediction: whether a prediction head stands before the output map of this and all other tasks.
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
    """The configuration without the pretraining heads of which every tensor is ``missing``; a pooler that the head of
    fine-tuning reads stays.
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
    """The configuration with the fine-tuning head that ``architectures`` of ``config.json`` names, if it names one.

    Raises:
        DataError: a head that is not implemented, or a field of it that is wrong.
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
        form = (CHOICE if choice else SEQUENCE).get(model_type)
        if form is None:
            raise _unknown(architecture)
        labels = CHOICES if choice else _answers(fields, _labels(fields))
        several = not choice and fields.take("problem_type", None) == SEVERAL
        head = replace(_classification(fields, form, len(labels)), several=several)
    elif kind == "TokenClassification" and model_type in SEQUENCE:
        labels = _labels(fields)
        field, usual = _tagging_dropout(model_type)
        head = Tagging(
            labels=len(labels), dropout=_dropout(fields, field, usual), prediction=_prediction(fields, model_type)
        )
    elif kind == "QuestionAnswering" and model_type == "xlnet":
        head = Span(form="beam", dropout=fields.number("dropout", 0.1))
    elif kind in ("QuestionAnswering", "QuestionAnsweringSimple") and model_type in SEQUENCE:
        field, usual = _answer_dropout(model_type)
        head = Span(dropout=fields.number(field, usual), prediction=_prediction(fields, model_type))
    else:
        raise _unknown(architecture)
    if SEQUENCE[model_type].prediction:  # whose weights have the names of those in the LM head
        config = replace(config, lm=None)
    return replace(config, task=head, labels=labels)


def _architecture(fields: Fields) -> str:
    """The class that the weights were saved from; empty where the file names none."""
    names = fields.take("architectures", None) or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise DataError(f"{fields.source}: architectures is {names!r}, expected a list of names; restore the file")
    return names[0]


def _unknown(architecture: str) -> DataError:
    return DataError(f"{architecture} is not implemented; load it as a bare encoder: remove 'architectures'")


def _dropout(fields: Fields, name: str, usual: float | None) -> float:
    """The field if it has a value, else the usual one, else what the layers have."""
    if fields.data.get(name) is None and usual is not None:
        return usual
    given = (one for one in (name, "hidden_dropout_prob", "dropout") if fields.data.get(one) is not None)
    return fields.number(next(given, "dropout"), 0.1)


def _tagging_dropout(model_type: str) -> tuple[str, float | None]:
    """The field of the dropout of tags, and its usual value. DistilBERT, DeBERTa and XLNet have none: what is written
    for them is read by us alone.
    """
    form = SEQUENCE[model_type]
    return (form.dropout, form.usual) if form.dropout.startswith("classifier") else ("classifier_dropout", None)


def _answer_dropout(model_type: str) -> tuple[str, float]:
    """The field of the dropout before the scores of answers, and its usual value."""
    if SEQUENCE[model_type].prediction:
        return "classifier_dropout", 0.0
    return "qa_dropout", 0.1 if model_type == "distilbert" else 0.0


def _prediction(fields: Fields, model_type: str) -> Prediction | None:
    return read_prediction(fields) if SEQUENCE[model_type].prediction else None


def _classification(fields: Fields, form: Classifier, labels: int) -> Classification:
    if form.summary is not None:
        fields.only("summary_type", form.summary)
        fields.only("summary_use_proj", True)
    dropout = _dropout(fields, form.dropout, form.usual)
    if form.prediction:
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
        summary="pooler" if form.dense is None else "dense",
        activation=fields.activation(form.field, THEIR_ACTIVATION[form.activation]) if form.field else form.activation,
        input_dropout=dropout if form.before else fields.number("pooler_dropout", 0.0),
        dropout=dropout,
    )


def write_task(config: ModelConfig, model_type: str) -> tuple[str, dict[str, Any]]:
    """The end of the class name and the fields of ``config.json`` for the fine-tuning head.

    Raises:
        DataError: ``transformers`` has no such head for the family.
    """
    head, labels = config.task, config.labels
    if isinstance(head, Classification):
        return _write_classification(head, config, model_type)
    if isinstance(head, Tagging):
        if head.dense:
            raise DataError(f"tagging with a dense map has no counterpart for {model_type} in transformers")
        fields = _their_prediction(head, model_type) | {_tagging_dropout(model_type)[0]: head.dropout}
        return "ForTokenClassification", _their_labels(labels) | fields
    assert isinstance(head, Span)
    if head.form == "conditional" or (head.form == "beam" and model_type != "xlnet"):
        raise DataError(f"a {head.form} answer head has no counterpart for {model_type} in transformers")
    simple = model_type == "xlnet" and head.form == "independent"
    fields = _their_prediction(head, model_type)
    if fields or model_type == "distilbert":
        fields[_answer_dropout(model_type)[0]] = head.dropout
    return "ForQuestionAnsweringSimple" if simple else "ForQuestionAnswering", fields


def _write_classification(head: Classification, config: ModelConfig, model_type: str) -> tuple[str, dict[str, Any]]:
    choice = config.labels == CHOICES
    ending = "ForMultipleChoice" if choice else "ForSequenceClassification"
    form = (CHOICE if choice else SEQUENCE).get(model_type)
    if form is None:
        raise DataError(f"transformers has no class {ending} for {model_type}")
    summary = "pooler" if form.dense is None else "dense"
    fields = _their_labels(config.labels) | {form.dropout: head.dropout} | _their_prediction(head, model_type)
    activation = head.activation
    if form.field is None:
        activation = form.activation
    elif form.field == "hidden_act":
        activation = config.encoder.activation
    else:
        fields[form.field] = THEIR_ACTIVATION[activation]
    if form.prediction:
        summary = "raw"
        fields["classifier_pooling"] = "mean" if head.pooling == "mean" else "cls"
    elif head.pooling == "mean":
        raise DataError(f"a classifier of the mean over all tokens has no counterpart for {model_type} in transformers")
    if form is _POOLED:
        fields["pooler_dropout"] = head.input_dropout
    if head.summary != summary or (form.dense is not None and head.activation != activation):
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
    """The fields of the prediction head; only ModernBERT has one, and only with it has a task."""
    wanted = model_type in SEQUENCE and SEQUENCE[model_type].prediction
    if wanted != (head.prediction is not None):
        has = "needs" if wanted else "has no place for"
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
    """Where the tensors of the fine-tuning head lie."""
    head = config.task
    if head is not None and SEQUENCE.get(model_type, _OF_TOKEN).prediction:
        return (
            *linear("task.prediction.dense", "head.dense"),
            *linear("task.prediction.norm", "head.norm"),
            *linear("task.out", "classifier"),
        )
    if isinstance(head, Classification):
        form = (CHOICE if config.labels == CHOICES else SEQUENCE)[model_type]
        return (*(linear("task.dense", form.dense) if form.dense else ()), *linear("task.out", form.out))
    if isinstance(head, Tagging):
        return linear("task.out", "classifier")
    if isinstance(head, Span):
        return BEAM if head.form == "beam" else linear("task.out", "qa_outputs")
    return ()


def _answers(fields: Fields, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of a classifier: :data:`NUMBER` if its one output is a number as it stands. Any other single output
    is a probability before its sigmoid, as the pipeline of ``transformers`` has it.
    """
    problem = fields.take("problem_type", None)
    if problem == "regression" and len(labels) > 1:
        raise DataError(
            f"problem_type 'regression' with {len(labels)} outputs is not implemented, expected 1; "
            "load it as a bare encoder: remove 'architectures'"
        )
    return NUMBER if problem == "regression" else labels


def _labels(fields: Fields) -> tuple[str, ...]:
    """The names in the order of their numbers."""
    names = fields.take("id2label", None)
    if not names:
        return numbered(fields.count("num_labels", 2))
    numbers = [str(index) for index in range(len(names))] if isinstance(names, dict) else []
    if not numbers or set(names) != set(numbers):
        raise DataError(f"{fields.source}: id2label is {names!r}, expected names by number; number them from 0")
    return tuple(str(names[number]) for number in numbers)


def numbered(count: int) -> tuple[str, ...]:
    """The names that ``transformers`` gives to labels without any."""
    return tuple(f"LABEL_{index}" for index in range(count))


def unnamed(count: int) -> tuple[str, ...]:
    """The labels of a classifier of the original code, whose files name none: a single output is a number there."""
    return NUMBER if count == 1 else numbered(count)
