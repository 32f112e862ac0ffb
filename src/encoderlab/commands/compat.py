"""The verbs of ``fengshen-pipeline`` (IDEA-CCNL/Fengshenbang-LM), with its flags, defaults and folders.

Where the original's behaviour is a mistake, we correct it and print a note: ``--gpus=0`` means the first GPU
(Lightning reads it as no GPU); without ``--max_epochs`` training takes 3 epochs (not 1,000); training rows are
shuffled without ``--strategy=ddp`` too; the number of labels comes from the data; a pair of texts is encoded as a pair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from encoderlab.commands.terminal import note, say
from encoderlab.errors import ConfigError, DataError
from encoderlab.execution.workers import rank_and_size
from encoderlab.files import json_line
from encoderlab.tasks.data import records as tables
from encoderlab.tasks.data.records import suffix

if TYPE_CHECKING:
    from encoderlab.tasks.data.task import Example, Split, Task
    from encoderlab.tasks.runs.finetune import FinetuneRecipe

Action = Literal["train", "predict"]
EPOCHS = 3
SPLITS = {"train": ("train",), "dev": ("validation", "valid", "dev"), "test": ("test",)}
KINDS = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".txt")
LENGTH = 512
VERBS = {
    "classification": "text_classification",
    "regression": "text_classification",
    "tagging": "sequence_tagging",
    "choice": "multiplechoice",
}
SECOND, LABEL, TAGS = "sentence2", "label", "labels"  # columns unless others are named

Text = Annotated[str | None, Parameter(name="--text", help="Text to predict; [SEP] between the texts of a pair.")]
LabelName = Annotated[str | None, Parameter(name="--label_name")]
Others = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]  # Lightning's flags, with and without values


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags that the three verbs share, with the original's names and defaults."""

    model: Annotated[Path, Parameter(name="--model", help="Model folder.")]
    datasets: Annotated[
        Path | None, Parameter(name="--datasets", help="Folder with train, validation and test files.")
    ] = None
    text: Text = None
    max_length: Annotated[
        int | None, Parameter(name="--max_length", help=f"Largest length in tokens: {LENGTH}; to predict, training's.")
    ] = None
    batch: Annotated[int, Parameter(name="--train_batchsize", help="Examples per step.")] = 16
    rate: Annotated[float, Parameter(name="--learning_rate", help="Highest learning rate.")] = 5e-5
    decay: Annotated[float, Parameter(name="--weight_decay", help="Weight decay.")] = 0.1
    warmup: Annotated[float, Parameter(name="--warmup_ratio", help="Share of the steps for warm-up.")] = 0.1
    epochs: Annotated[float | None, Parameter(name="--max_epochs", help="Passes over the training data.")] = None
    seed: Annotated[int, Parameter(name="--seed", help="Seed of head, order and dropout.")] = 1
    out: Annotated[Path, Parameter(name="--save_ckpt_path", help="Folder of the run.")] = Path("ckpt")
    precision: Annotated[str, Parameter(name="--precision", help="32, 16 or bf16.")] = "32"
    gpus: Annotated[str | None, Parameter(name="--gpus", help="0: the first GPU; otherwise the number of GPUs.")] = None
    device: Annotated[int, Parameter(name="--device", help="GPU to predict on; -1 is the CPU.")] = -1


def text_classification(
    action: Action,
    /,
    *others: Others,
    flags: Flags,
    texta_name: Annotated[str, Parameter(name="--texta_name")] = "sentence",
    textb_name: Annotated[str | None, Parameter(name="--textb_name")] = None,
    label_name: LabelName = None,
) -> dict[str, Any]:
    """Train a classifier of texts, or predict with one.

    The model is written to --save_ckpt_path. Other flags of the original are listed and ignored.

    Example:
        fengshen-pipeline text_classification train --model erlangshen-97m \\
            --datasets AFQMC --texta_name=sentence1 --gpus=0 --strategy=ddp

    Parameters
    ----------
    action
        Train on --datasets, or predict --text.
    texta_name
        Column of the text.
    textb_name
        Column of the second text. Default: sentence2, if there is one.
    label_name
        Column of the label. Default: label, if there is one.
    """
    return _run(action, "classification", flags, others, (texta_name, textb_name, label_name))


def sequence_tagging(action: Action, /, *others: Others, flags: Flags, label_name: LabelName = None) -> dict[str, Any]:
    """Train a tagger of words, or predict with one.

    Words of a text to predict are separated by spaces; without spaces every character is one.

    Example:
        fengshen-pipeline sequence_tagging train --model erlangshen-97m \\
            --datasets CLUENER

    Parameters
    ----------
    action
        Train on --datasets, or predict --text.
    label_name
        Column of the tags. Default: labels, if there is one.
    """
    return _run(action, "tagging", flags, others, (None, None, label_name))


def multiplechoice(action: Action, /, *others: Others, flags: Flags, label_name: LabelName = None) -> dict[str, Any]:
    """Train a model that chooses one of several options, or predict with one.

    To predict, --text takes the context, the question and the options, each separated by [SEP].

    Example:
        fengshen-pipeline multiplechoice train --model erlangshen-97m --datasets C3

    Parameters
    ----------
    action
        Train on --datasets, or predict --text.
    label_name
        Column of the answer; label where there is one.
    """
    return _run(action, "choice", flags, others, (None, None, label_name))


def _run(
    action: Action,
    form: str,
    flags: Flags,
    others: tuple[str, ...],
    columns: tuple[str | None, str | None, str | None],
) -> dict[str, Any]:
    if others and not others[0].startswith("--"):
        raise ConfigError(f"{others[0]!r} does not belong to a flag; give flags as --name value or --name=value")
    if others:
        names = ", ".join(word.partition("=")[0] for word in others if word.startswith("--"))
        note(
            f"ignored: {names}"
            + (" (for several processes: torchrun --no-python fengshen-pipeline ...)" if action == "train" else "")
        )
    if action == "predict":
        return _predict(form, flags)
    if flags.gpus is not None:
        _say_gpus(flags.gpus)
    if flags.epochs is None:
        note(f"--max_epochs is not given: {EPOCHS} epochs (the original would train for 1,000)")
    if "ddp" not in " ".join(others):
        note("training rows are shuffled (the original shuffles only with --strategy=ddp)")
    task, splits = _splits(flags.datasets, form, *columns)
    return _train(flags, task, splits)


def _say_gpus(gpus: str) -> None:
    """Print how ``--gpus`` is read: as Lightning's number of GPUs, except that 0 means the first one.

    Raises:
        ConfigError: it names GPUs.
    """
    import torch

    if not gpus.removeprefix("-").isdigit():
        chosen = gpus.strip(",") or "0"
        raise ConfigError(f"--gpus={gpus} names GPUs; choose them with CUDA_VISIBLE_DEVICES={chosen} and leave it out")
    processes = rank_and_size()[1]
    where = (
        f"training on {processes} GPU{'s' * (processes > 1)}"
        if torch.cuda.is_available()
        else "none was found, training on the CPU"
    )
    if int(gpus) == 0:
        note(f"--gpus=0: taken as the number of a GPU (Lightning would use none); {where}")
    elif int(gpus) != processes or not torch.cuda.is_available():
        note(
            f"--gpus={gpus}: taken as how many; {where}; "
            "for several: torchrun --nproc-per-node=N --no-python fengshen-pipeline ..."
        )


def _recipe(flags: Flags, limit: int | None) -> FinetuneRecipe:
    """The recipe that the flags describe, for a model that reads at most ``limit`` tokens."""
    from encoderlab.tasks.forms.base import FormSettings
    from encoderlab.tasks.runs.finetune import FinetuneRecipe
    from encoderlab.train.optim import AdamW
    from encoderlab.train.schedule import Polynomial

    names = {"32": "fp32", "16": "fp16", "bf16": "bf16"}
    if flags.precision not in names:
        raise ConfigError(f"--precision {flags.precision}; choose from {', '.join(names)}")
    return FinetuneRecipe(
        name="fengshen",
        form=FormSettings(max_length=_length(LENGTH if flags.max_length is None else flags.max_length, limit)),
        batch=flags.batch,
        epochs=EPOCHS if flags.epochs is None else flags.epochs,
        seed=flags.seed,
        precision=names[flags.precision],  # type: ignore[arg-type]
        optim=AdamW(lr=flags.rate, weight_decay=flags.decay, eps=1e-8),
        schedule=Polynomial(warmup=flags.warmup, end=min(1.0, 1e-7 / flags.rate) if flags.rate > 0 else 0.0),
        clip=None,
        select="last",
    )


def _length(length: int, limit: int | None) -> int:
    if limit is None or length <= limit:
        return length
    note(f"--max_length {length} exceeds the model's {limit} positions; {limit} is used")
    return limit


def _splits(
    datasets: Path | None, form: str, text: str | None, pair: str | None, label: str | None
) -> tuple[Task, dict[str, Split]]:
    """The task and its splits in a folder of files named train, validation, test."""
    from encoderlab.tasks.data.infer import Given, task_of
    from encoderlab.tasks.data.splits import completed, hold_out, remarks_of
    from encoderlab.tasks.data.task import Remarks
    from encoderlab.tasks.forms.table import FORMS

    if datasets is None or not datasets.is_dir():
        raise DataError(
            f"--datasets {datasets}: no such folder; give one with train, validation and test files "
            f"({', '.join(KINDS)}); data sets are not downloaded"
        )
    files = {split: _find(datasets, names) for split, names in SPLITS.items()}
    if not files["train"]:
        raise DataError(f"{datasets}: has no train file ({', '.join(f'train{kind}' for kind in KINDS)}); add one")
    train = files["train"][0]
    columns = tables.columns(train, Remarks(train))
    holds = FORMS[form].columns
    usual = TAGS if holds == "words" else LABEL
    given = Given(
        form=form,
        text=text,
        pair=pair or (SECOND if holds == "texts" and SECOND in columns else None),
        label=label or (usual if usual in columns else None),
    )
    task, said = task_of(train, given)
    note(said)
    splits = {"train": task.read(files["train"], "train")}
    task = completed(task, splits["train"])  # other files have the labels of this one, or none
    splits |= {split: task.read(files[split], split) for split in ("dev", "test") if files[split]}
    for split, part in splits.items():
        note(f"{split}: {len(part):,} examples of {', '.join(Path(name).name for name in part.files)}")
    if "dev" not in splits:
        splits["train"], splits["dev"] = hold_out(splits["train"])
    for remark in remarks_of(splits):
        note(remark)
    return task, splits


def _find(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The files of a split, compressed or not: one file, or its shards (same name and kind) in order.

    Raises:
        DataError: there are two to choose from.
    """

    files: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        kind = suffix(path)
        if kind not in KINDS or not path.is_file():
            continue
        stem, _, compression = path.name.lower().rpartition(kind)
        name = re.match("[a-z]+", stem)
        if name is not None and name[0] in names:
            shard = re.fullmatch(r"([-_.]?\d.*)?", stem[name.end() :])  # train-00000-of-00003, train_1
            files.setdefault((name[0] if shard else stem, kind + compression), []).append(path)
    if len(files) > 1:
        some = ", ".join(paths[0].name for paths in files.values())
        raise DataError(f"{folder}: has several files for one split ({some}); keep those of one name and kind")
    return next(iter(files.values()), [])


def _train(flags: Flags, task: Task, splits: dict[str, Split]) -> dict[str, Any]:
    from encoderlab.interchange.load import load
    from encoderlab.tasks.forms.table import FORMS
    from encoderlab.tasks.runs.finetune import finetune

    network = load(flags.model)
    if FORMS[task.form].columns == "texts":
        note(f"{len(task.labels or ())} labels, counted in the data (the original always takes 2)")
        if splits["train"].examples[0].pair is not None:
            note("two texts are encoded as a pair (the original gives slow tokenizers a list of two tokens)")
    result = finetune(network, task, splits, _recipe(flags, network.config.encoder.max_length), flags.out)
    for split, scores in result.scores.items():
        say(f"{split}: " + ", ".join(f"{metric} {100 * value:.2f}" for metric, value in scores.items()))
    for remark in result.record["notes"]:
        note(remark)
    say(f"model in {result.model}")
    return {"model": result.model, "scores": result.scores}


def _predict(needed: str, flags: Flags) -> dict[str, Any]:
    """Prints a list of answers, as the original does: label and score of a text."""
    from encoderlab.tasks.runs.apply import predictor_of
    from encoderlab.tasks.runs.predict import record

    text = flags.text
    if text is None:
        raise ConfigError("predict needs --text TEXT; for a file: encoderlab predict MODEL FILE")
    predictor = predictor_of(flags.model, note)
    form = predictor.form.task.form
    if VERBS.get(form) != VERBS[needed]:
        usage = f"fengshen-pipeline {VERBS[form]} predict --model" if form in VERBS else "encoderlab predict"
        raise ConfigError(f"{flags.model}: has a head for {form}, expected {needed}; run: {usage} {flags.model} ...")
    if flags.max_length is not None:
        limit = predictor.objective.model.config.encoder.max_length
        predictor.form.settings = replace(predictor.form.settings, max_length=_length(flags.max_length, limit))
    predictor.objective.model.to(_place(flags.device))
    example = _example(form, text)
    predictions = predictor.predict([example])
    answer = record(example, predictions.values[0], predictions.details[0])
    answers = [{key: value for key, value in answer.items() if key not in ("id", "probabilities")}]
    say(json_line(answers).rstrip())
    return {"model": flags.model, "predictions": answers}


def _place(device: int) -> str:
    """torch's name for ``--device``."""
    if device < 0:
        return "cpu"
    import torch

    count = torch.cuda.device_count()
    if device >= count:
        raise ConfigError(f"--device {device}: there are {count} GPUs here, numbered from 0; -1 is the CPU")
    return f"cuda:{device}"


def _example(form: str, text: str) -> Example:
    """The content of ``--text`` for a task of that form."""
    from encoderlab.tasks.data.task import Choice, TaggedWords, Text
    from encoderlab.tasks.forms.table import FORMS

    holds = FORMS[form].columns
    if holds == "words":
        return TaggedWords(id="0", words=tuple(text.split() if " " in text.strip() else text.strip()))
    parts = [part.strip() for part in text.split("[SEP]")]
    if holds != "options":
        return Text(id="0", text=parts[0], pair=parts[1] if len(parts) > 1 else None)
    if len(parts) < 4:
        raise ConfigError("--text of a choice needs context[SEP]question[SEP]option[SEP]option...")
    return Choice(id="0", context=parts[0], question=parts[1], options=tuple(parts[2:]))
