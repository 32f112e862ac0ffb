"""Which heads a foreign file has, and where the heads of fine-tuning lie in ``transformers``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from encoderlab.errors import DataError
from encoderlab.interchange.names import Rule
from encoderlab.interchange.tables import linear
from encoderlab.models.base import ModelConfig
from encoderlab.nn.feedforward import Activation
from encoderlab.nn.heads import Classification, Span, Tagging, TaskHead

NUMBER = ("number",)  # labels of a regression, whose one output is the answer itself

# Pretraining heads: the field of ModelConfig, where our tensors of it start, and the field's value without the head.
PRETRAINING: tuple[tuple[str, str, Any], ...] = (
    ("pooler", "pooler.", None),
    ("lm", "lm.", None),
    ("pair", "pair.", False),
    ("rtd", "rtd.", None),
    ("mask_decoder", "mask_positions", 0),
    ("mask_vector", "mask_vector", False),
)

# Classification by model_type: the names of the dense map (None: the pretrained pooler) and of the output map.
CLASSIFIERS: dict[str, tuple[str | None, str, Activation]] = {
    "bert": (None, "classifier", "tanh"),
    "albert": (None, "classifier", "tanh"),
    "roberta": ("classifier.dense", "classifier.out_proj", "tanh"),
    "distilbert": ("pre_classifier", "classifier", "relu"),
    "electra": ("classifier.dense", "classifier.out_proj", "gelu"),
    "convbert": ("classifier.dense", "classifier.out_proj", "gelu"),
    "deberta": ("pooler.dense", "classifier", "gelu"),
    "deberta-v2": ("pooler.dense", "classifier", "gelu"),
    "xlnet": ("sequence_summary.summary", "logits_proj", "tanh"),
}
# Dropout of the classifier: the field of config.json, and whether it also stands before the dense map.
DROPOUTS: dict[str, tuple[str, bool]] = {
    "bert": ("classifier_dropout", False),
    "albert": ("classifier_dropout_prob", False),
    "roberta": ("classifier_dropout", True),
    "distilbert": ("seq_classif_dropout", False),
    "electra": ("classifier_dropout", True),
    "convbert": ("classifier_dropout", True),
    "deberta": ("cls_dropout", False),
    "deberta-v2": ("cls_dropout", False),
    "xlnet": ("summary_last_dropout", False),
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
    """The configuration without the pretraining heads of which every tensor is ``missing``."""
    absent = {}
    for field, prefix, none in PRETRAINING:
        names = [name for name in expected if name.startswith(prefix)]
        if names and all(name in missing for name in names):
            absent[field] = none
    if "lm" in absent:
        absent["mask_decoder"] = 0
    if "pooler" in absent:
        absent["pair"] = False
    return replace(config, **absent)


def read_task(data: dict[str, Any], model_type: str, config: ModelConfig) -> ModelConfig:
    """The configuration with the fine-tuning head that ``architectures`` of ``config.json`` names, if it names one.

    Raises:
        DataError: a head that is not implemented.
    """
    architecture = (data.get("architectures") or [""])[0]
    _, _, kind = architecture.partition("For")
    labels = _labels(data)
    field, before = DROPOUTS.get(model_type, ("", False))
    dropout = next((data[key] for key in (field, "hidden_dropout_prob", "dropout") if data.get(key) is not None), 0.1)
    head: TaskHead
    if kind in ("SequenceClassification", "MultipleChoice"):
        dense, _, activation = CLASSIFIERS[model_type]
        if kind == "MultipleChoice":
            if model_type not in ("bert", "albert", "distilbert", "xlnet", "deberta-v2"):
                raise DataError(f"{architecture} is not implemented; load it as a bare encoder: remove 'architectures'")
            labels = ("choice",)
        else:
            labels = _answers(data, labels)
        if model_type in ("deberta", "deberta-v2"):
            activation = data.get("pooler_hidden_act", "gelu")
        head = Classification(
            labels=len(labels),
            summary="pooler" if dense is None else "dense",
            activation=activation,
            input_dropout=dropout if before else float(data.get("pooler_dropout", 0.0)),
            dropout=dropout,
        )
    elif kind == "TokenClassification":
        dropout = data["classifier_dropout"] if data.get("classifier_dropout") is not None else dropout
        head = Tagging(labels=len(labels), dropout=dropout)
    elif kind == "QuestionAnswering" and model_type == "xlnet":
        head, labels = Span(form="beam", dropout=data.get("dropout", 0.1)), ()
    elif kind.startswith("QuestionAnswering"):
        head, labels = Span(dropout=data.get("qa_dropout", 0.0)), ()
    elif kind in ("", "MaskedLM", "PreTraining", "CausalLM", "NextSentencePrediction"):
        return config
    else:
        raise DataError(f"{architecture} is not implemented; load it as a bare encoder: remove 'architectures'")
    return replace(config, task=head, labels=labels)


def write_task(config: ModelConfig, model_type: str) -> tuple[str, dict[str, Any]]:
    """The end of the class name and the fields of ``config.json`` for the fine-tuning head.

    Raises:
        DataError: ``transformers`` has no such head for the family.
    """
    head, labels = config.task, config.labels
    fields: dict[str, Any] = {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    if isinstance(head, Classification):
        dense, _, activation = CLASSIFIERS.get(model_type, ("", "", "tanh"))
        summary = "pooler" if dense is None else "dense"
        if head.summary != summary or (dense is not None and head.activation != activation):
            raise DataError(
                f"a classifier with summary {head.summary!r} and {head.activation!r} has no counterpart for "
                f"{model_type} in transformers; fine-tune with summary {summary!r} and activation {activation!r}"
            )
        fields[DROPOUTS[model_type][0]] = head.dropout
        if labels == NUMBER:
            fields["problem_type"] = "regression"
        return "ForMultipleChoice" if labels == ("choice",) else "ForSequenceClassification", fields
    if isinstance(head, Tagging):
        if head.dense:
            raise DataError(f"tagging with a dense map has no counterpart for {model_type} in transformers")
        fields["classifier_dropout"] = head.dropout
        return "ForTokenClassification", fields
    assert isinstance(head, Span)
    if head.form == "conditional" or (head.form == "beam" and model_type != "xlnet"):
        raise DataError(f"a {head.form} answer head has no counterpart for {model_type} in transformers")
    simple = model_type == "xlnet" and head.form == "independent"
    return "ForQuestionAnsweringSimple" if simple else "ForQuestionAnswering", {}


def task_rules(config: ModelConfig, model_type: str) -> tuple[Rule, ...]:
    """Where the tensors of the fine-tuning head lie."""
    head = config.task
    if isinstance(head, Classification):
        dense, out, _ = CLASSIFIERS[model_type]
        return (*(linear("task.dense", dense) if dense else ()), *linear("task.out", out))
    if isinstance(head, Tagging):
        return linear("task.out", "classifier")
    if isinstance(head, Span):
        return BEAM if head.form == "beam" else linear("task.out", "qa_outputs")
    return ()


def _answers(data: dict[str, Any], labels: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of a classifier: :data:`NUMBER` if its one output is a number as it stands. Any other single output
    is a probability before its sigmoid, as the pipeline of ``transformers`` has it.
    """
    problem = data.get("problem_type")
    if problem == "multi_label_classification":
        raise DataError(
            "problem_type 'multi_label_classification' (several labels per text) is not implemented; "
            "load it as a bare encoder: remove 'architectures'"
        )
    if problem == "regression" and len(labels) > 1:
        raise DataError(
            f"problem_type 'regression' with {len(labels)} outputs is not implemented, expected 1; "
            "load it as a bare encoder: remove 'architectures'"
        )
    return NUMBER if problem == "regression" else labels


def _labels(data: dict[str, Any]) -> tuple[str, ...]:
    names = data.get("id2label")
    if isinstance(names, dict) and names:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    return tuple(f"LABEL_{index}" for index in range(int(data.get("num_labels") or 2)))
