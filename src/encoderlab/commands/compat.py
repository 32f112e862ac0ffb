"""The verbs of ``fengshen-pipeline`` (IDEA-CCNL/Fengshenbang-LM), with its flags, defaults and folders.

Where its documented behaviour is a mistake, the right thing is done and said once: ``--gpus=0`` means the first GPU
(its Lightning read it as no GPU); without ``--max_epochs`` training takes 3 epochs (not 1,000); training rows are
shuffled and one process is enough; the number of labels comes from the data; a pair of texts is encoded as a pair.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands.terminal import note, say
from encoderlab.errors import ConfigError, DataError

if TYPE_CHECKING:
    from encoderlab.tasks.base import Form, Split, Task

Action = Literal["train", "predict"]
EPOCHS = 3
SPLITS = {"train": ("train",), "dev": ("validation", "valid", "dev"), "test": ("test",)}
KINDS = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".txt")

Model = Annotated[Path, Parameter(name="--model")]
Datasets = Annotated[Path | None, Parameter(name="--datasets")]
Input = Annotated[str | None, Parameter(name="--text", help="What to predict; [SEP] between the texts of a pair.")]
LabelName = Annotated[str, Parameter(name="--label_name", help="Column of the label.")]
MaxLength = Annotated[int, Parameter(name="--max_length", help="Tokens of a text.")]
Batch = Annotated[int, Parameter(name="--train_batchsize", help="Examples per step.")]
Rate = Annotated[float, Parameter(name="--learning_rate", help="Highest learning rate.")]
Decay = Annotated[float, Parameter(name="--weight_decay", help="Weight decay.")]
Warmup = Annotated[float, Parameter(name="--warmup_ratio", help="Share of the steps for warm-up.")]
Epochs = Annotated[float | None, Parameter(name="--max_epochs", help="Passes over the training data.")]
Seed = Annotated[int, Parameter(name="--seed", help="Of head, order and dropout.")]
Folder = Annotated[Path, Parameter(name="--save_ckpt_path", help="Folder of the run.")]
Precision = Annotated[str, Parameter(name="--precision", help="32, 16 or bf16.")]
Gpus = Annotated[str | None, Parameter(name="--gpus", help="Which GPU; its use is automatic.")]
Others = Annotated[str, Parameter(show=False)]
Device = Annotated[int, Parameter(name="--device", help="GPU to predict on; -1 is the CPU.")]


def text_classification(
    action: Action,
    /,
    *,
    model: Model,
    datasets: Datasets = None,
    text: Input = None,
    texta_name: Annotated[str, Parameter(name="--texta_name", help="Column of the text.")] = "sentence",
    textb_name: Annotated[str, Parameter(name="--textb_name", help="Column of the second text.")] = "sentence2",
    label_name: LabelName = "label",
    max_length: MaxLength = 512,
    batch: Batch = 16,
    learning_rate: Rate = 5e-5,
    weight_decay: Decay = 0.1,
    warmup_ratio: Warmup = 0.1,
    max_epochs: Epochs = None,
    seed: Seed = 1,
    save_ckpt_path: Folder = Path("ckpt"),
    precision: Precision = "32",
    gpus: Gpus = None,
    device: Device = -1,
    **others: Others,
) -> dict[str, Any]:
    """fengshen-pipeline: train on, or predict, labels of texts.

    The model is written to --save_ckpt_path. Other flags of the original are named and ignored.

    Example:
        encoderlab text_classification train --model erlangshen-97m --datasets AFQMC \\
            --texta_name=sentence1 --gpus=0 --strategy=ddp

    Parameters
    ----------
    action
        Train on --datasets, or predict --text.
    model
        Model folder.
    datasets
        Folder with train, validation and test files.
    """
    if action == "predict":
        return _predict(model, text, device)
    _say_differences(gpus, max_epochs, others)
    recipe = _recipe(max_length, batch, learning_rate, weight_decay, warmup_ratio, max_epochs, seed, precision)
    task, splits = _splits(datasets, "classification", texta_name, textb_name, label_name)
    return _train(model, task, splits, recipe, save_ckpt_path)


def sequence_tagging(
    action: Action,
    /,
    *,
    model: Model,
    datasets: Datasets = None,
    text: Input = None,
    label_name: LabelName = "labels",
    max_length: MaxLength = 512,
    batch: Batch = 16,
    learning_rate: Rate = 5e-5,
    weight_decay: Decay = 0.1,
    warmup_ratio: Warmup = 0.1,
    max_epochs: Epochs = None,
    seed: Seed = 1,
    save_ckpt_path: Folder = Path("ckpt"),
    precision: Precision = "32",
    gpus: Gpus = None,
    device: Device = -1,
    **others: Others,
) -> dict[str, Any]:
    """fengshen-pipeline: train on, or predict, labels of words.

    Words of a text to predict are separated by spaces; without spaces every character is one.

    Example:
        encoderlab sequence_tagging train --model erlangshen-97m --datasets CLUENER

    Parameters
    ----------
    action
        Train on --datasets, or predict --text.
    model
        Model folder.
    datasets
        Folder with train, validation and test files.
    """
    if action == "predict":
        return _predict(model, text, device)
    _say_differences(gpus, max_epochs, others)
    recipe = _recipe(max_length, batch, learning_rate, weight_decay, warmup_ratio, max_epochs, seed, precision)
    task, splits = _splits(datasets, "tagging", None, None, label_name)
    return _train(model, task, splits, recipe, save_ckpt_path)


def multiplechoice(
    action: Action,
    /,
    *,
    model: Model,
    datasets: Datasets = None,
    text: Input = None,
    label_name: LabelName = "label",
    max_length: MaxLength = 512,
    batch: Batch = 16,
    learning_rate: Rate = 5e-5,
    weight_decay: Decay = 0.1,
    warmup_ratio: Warmup = 0.1,
    max_epochs: Epochs = None,
    seed: Seed = 1,
    save_ckpt_path: Folder = Path("ckpt"),
    precision: Precision = "32",
    gpus: Gpus = None,
    device: Device = -1,
    **others: Others,
) -> dict[str, Any]:
    """fengshen-pipeline: train on, or predict, the right one of several options.

    To predict, --text takes the context, the question and the options, each separated by [SEP].

    Example:
        encoderlab multiplechoice train --model erlangshen-97m --datasets C3

    Parameters
    ----------
    action
        Train on --datasets, or predict --text.
    model
        Model folder.
    datasets
        Folder with train, validation and test files.
    """
    if action == "predict":
        return _predict(model, text, device)
    _say_differences(gpus, max_epochs, others)
    recipe = _recipe(max_length, batch, learning_rate, weight_decay, warmup_ratio, max_epochs, seed, precision)
    task, splits = _splits(datasets, "choice", None, None, label_name)
    return _train(model, task, splits, recipe, save_ckpt_path)


def _say_differences(gpus: str | None, max_epochs: float | None, others: dict[str, str]) -> None:
    if gpus is not None:
        import torch

        where = "training on it" if torch.cuda.is_available() else "none is here, training on the CPU"
        note(f"--gpus={gpus}: taken as the number of a GPU; {where}")
    if max_epochs is None:
        note(f"--max_epochs is not given: {EPOCHS} epochs (the original would train for 1,000)")
    if others:
        names = ", ".join(f"--{name}" for name in others)
        note(f"ignored: {names} (for several processes: torchrun -m encoderlab ...)")


def _recipe(
    max_length: int,
    batch: int,
    rate: float,
    decay: float,
    warmup: float,
    epochs: float | None,
    seed: int,
    precision: str,
) -> Any:
    from encoderlab.tasks.finetune import Recipe
    from encoderlab.tasks.form import FormSettings
    from encoderlab.train.optim import AdamW
    from encoderlab.train.schedule import Polynomial

    names = {"32": "fp32", "16": "fp16", "bf16": "bf16"}
    if precision not in names:
        raise ConfigError(f"--precision {precision}; choose from {', '.join(names)}")
    return Recipe(
        name="fengshen",
        form=FormSettings(max_length=max_length),
        batch=batch,
        epochs=EPOCHS if epochs is None else epochs,
        seed=seed,
        precision=names[precision],  # type: ignore[arg-type]
        optim=AdamW(lr=rate, weight_decay=decay, eps=1e-8),
        schedule=Polynomial(warmup=warmup),
        clip=None,
    )


def _splits(
    datasets: Path | None, form: Form, text: str | None, pair: str | None, label: str
) -> tuple[Task, dict[str, Split]]:
    """The task and its splits in a folder of files named train, validation, test."""
    from encoderlab.tasks import tables
    from encoderlab.tasks.base import Remarks
    from encoderlab.tasks.infer import Given, hold_out, task_of

    if datasets is None or not datasets.is_dir():
        raise DataError(
            f"--datasets {datasets}: no such folder; give one with train, validation and test files "
            f"({', '.join(KINDS)}); data sets are not downloaded"
        )
    files = {split: _find(datasets, names) for split, names in SPLITS.items()}
    train = files["train"]
    if train is None:
        raise DataError(f"{datasets}: holds no train file ({', '.join(f'train{kind}' for kind in KINDS)})")
    columns = tables.columns(train, Remarks(train))
    given = Given(
        form=form,
        text=text if text in columns or form == "classification" else None,
        pair=pair if pair in columns else None,
        label=label if label in columns else None,
    )
    task, said = task_of(train, given)
    note(said)
    splits = {split: task.read([path], split) for split, path in files.items() if path is not None}
    if "dev" not in splits:
        splits["train"], splits["dev"] = hold_out(splits["train"])
    return task, splits


def _find(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next(
        (path for name in names for kind in KINDS for path in sorted(folder.glob(f"{name}*{kind}")) if path.is_file()),
        None,
    )


def _train(model: Path, task: Task, splits: dict[str, Split], recipe: Any, out: Path) -> dict[str, Any]:
    from encoderlab.interchange.load import load
    from encoderlab.tasks.finetune import finetune

    network = load(model)
    limit = network.config.encoder.max_length
    if limit is not None and recipe.form.max_length > limit:
        note(f"--max_length {recipe.form.max_length} exceeds the model's {limit} positions; {limit} it is")
        recipe = replace(recipe, form=replace(recipe.form, max_length=limit))
    result = finetune(network, task, splits, recipe, out)
    for split, scores in result.scores.items():
        say(f"{split}: " + ", ".join(f"{metric} {100 * value:.2f}" for metric, value in scores.items()))
    say(f"model in {result.model}")
    return {"model": result.model, "scores": result.scores}


def _predict(model: Path, text: str | None, device: int) -> dict[str, Any]:
    """Prints a list of answers, as the original does."""
    from encoderlab.commands.use import predictor_of
    from encoderlab.tasks.base import Choice, Example, Text, Words
    from encoderlab.tasks.predict import record

    if text is None:
        raise ConfigError("predict needs --text TEXT; for a file: encoderlab predict MODEL FILE")
    predictor = predictor_of(model)
    if device >= 0:
        predictor.objective.model.to(f"cuda:{device}")
    parts = [part.strip() for part in text.split("[SEP]")]
    form = predictor.form.task.form
    example: Example
    if form == "tagging":
        words = text.split() if " " in text.strip() else list(text.strip())
        example = Words(id="0", words=tuple(words))
    elif form == "choice":
        if len(parts) < 4:
            raise ConfigError("--text of a choice needs context[SEP]question[SEP]option[SEP]option...")
        example = Choice(id="0", context=parts[0], question=parts[1], options=tuple(parts[2:]))
    else:
        example = Text(id="0", text=parts[0], pair=parts[1] if len(parts) > 1 else None)
    found = predictor.predict([example])
    answers = [record(example, found.values[0], found.details[0])]
    say(
        json.dumps(
            [{key: value for key, value in answer.items() if key != "id"} for answer in answers], ensure_ascii=False
        )
    )
    return {"model": model, "predictions": answers}
