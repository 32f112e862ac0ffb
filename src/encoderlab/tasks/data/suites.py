"""The benchmarks as tables: their files and columns, their metrics, and their submissions.

A new benchmark of a known form is one row here. Labels have the order of the Hugging Face data sets, whose files give
them as numbers. The row counts of leaderboards do not count the header line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encoderlab.errors import ConfigError, nearest
from encoderlab.tasks.data.readers import (
    C3,
    CharacterSpans,
    Cloze,
    Columns,
    Conll,
    Copa,
    EntityCloze,
    IdiomGaps,
    Keywords,
    MarkedText,
    MultiRC,
    Options,
    Race,
    Squad,
    Stems,
    WordInContext,
    WordLists,
)
from encoderlab.tasks.data.task import Submission, Task

NLI = ("entailment", "neutral", "contradiction")
TWO_WAY = ("entailment", "not_entailment")
BINARY = ("0", "1")


# The published files of three splits, then those of Hugging Face in its formats. ``-part`` files are samples.
_FILES = {
    split: (
        f"{split}.tsv",
        *(f"{name}{tail}" for tail in ("-*.parquet", ".parquet", ".jsonl", ".csv")),
        f"{split}-part.tsv",
    )
    for split, name in (("train", "train"), ("dev", "validation"), ("test", "test"))
}


def _three(train: tuple[str, ...], dev: tuple[str, ...], test: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """File patterns of the three splits."""
    return {"train": train, "dev": dev, "test": test}


def _pair(a: str, b: str, label: str = "label", id: str | None = "index") -> Columns:
    return Columns(text=a, pair=b, label=label, id=id, quoted=False)


_SENTENCES = (_pair("sentence1", "sentence2"), _pair("sentence1", "sentence2", id="idx"))


def _glue(folder: str, rows: int, *layouts: Columns, **fields: Any) -> Task:
    """A task of GLUE with ``rows`` test examples; ``folder`` names its files, and in lower case the task."""
    name = folder.lower().replace("-", "")
    submission = Submission(format="glue", files={"test": f"{folder}.tsv"}, rows={"test": rows})
    usual: dict[str, Any] = {"form": "classification", "labels": BINARY, "metrics": ("accuracy",), "files": _FILES}
    usual |= {"folders": (folder, name), "submission": submission}
    return Task(name=name, layouts=layouts, **usual | fields)


GLUE = (
    _glue("CoLA", 1063,
          Columns(text="sentence", id="index", quoted=False),
          Columns(text="3", label="1", quoted=False),  # no header: source, label, the author's mark, sentence
          metrics=("matthews", "accuracy")),
    _glue("SST-2", 1821, Columns(text="sentence", id="index", quoted=False)),
    _glue("MRPC", 1725, _pair("#1 String", "#2 String", "Quality"), *_SENTENCES, metrics=("accuracy", "f1"), swap=True,
          files=_FILES | {"train": (*_FILES["train"], "msr_paraphrase_train.txt")}),
    _glue("STS-B", 1379,
          _pair("sentence1", "sentence2", "score"),
          *_SENTENCES,
          Columns(text="5", pair="6", label="4", quoted=False),  # no header: genre, file, year, id, score, sentences
          form="regression", labels=None, metrics=("spearman", "pearson"), range=(0.0, 5.0), swap=True,
          files={split: (*names, f"sts-{split}.csv") for split, names in _FILES.items()}),
    _glue("QQP", 390965, _pair("question1", "question2", "is_duplicate", "id"),
          _pair("question1", "question2", id="idx"), metrics=("accuracy", "f1")),
    _glue("MNLI", 9796, _pair("sentence1", "sentence2", "gold_label"), _pair("premise", "hypothesis", id="idx"),
          *_SENTENCES, labels=NLI, dropped=("-",),
          files={
              "train": _FILES["train"],
              **{
                  f"{split}{ours}": (f"{split}_{theirs}.tsv", f"{long}_{theirs}-*.parquet", f"{long}_{theirs}.parquet",
                                     f"{long}_{theirs}.jsonl", f"{long}_{theirs}.csv")
                  for split, long in (("dev", "validation"), ("test", "test"))
                  for ours, theirs in (("", "matched"), ("_mismatched", "mismatched"))
              },
          },
          submission=Submission(format="glue", files={"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
                                rows={"test": 9796, "test_mismatched": 9847})),
    _glue("QNLI", 5463, _pair("question", "sentence"), _pair("question", "sentence", id="idx"), labels=TWO_WAY),
    _glue("RTE", 3000, *_SENTENCES, labels=TWO_WAY),
    _glue("WNLI", 146, *_SENTENCES),
    _glue("AX", 1104, _pair("sentence1", "sentence2"), _pair("premise", "hypothesis", id="idx"),
          _pair("Premise", "Hypothesis", "Label"),
          labels=NLI, metrics=("matthews", "accuracy"), folders=("AX", "ax", "diagnostic"),
          files={"test": ("diagnostic.tsv", "AX.tsv", "test-*.parquet", "test.jsonl", "test.csv"),
                 "dev": ("diagnostic-full.tsv",)}),
)  # fmt: skip


_SUPERGLUE_FILES = _three(
    ("train.jsonl", "train-*.parquet", "train-part.jsonl"),
    ("val.jsonl", "validation-*.parquet", "validation.jsonl", "val-part.jsonl"),
    ("test.jsonl", "test-*.parquet"),
)


def _superglue(
    name: str, metrics: tuple[str, ...], rows: int, *, called: str = "", form: str = "classification", **fields: Any
) -> Task:
    """A task of SuperGLUE with ``rows`` test examples; here it is ``called`` ``name`` in lower case unless given."""
    return Task(
        name=called or name.lower(),
        form=form,
        metrics=metrics,
        folders=(name, name.lower()),
        files=_SUPERGLUE_FILES,
        submission=Submission(format="superglue", files={"test": f"{name}.jsonl"}, rows={"test": rows}),
        **fields,
    )


_BOOLEAN = ("false", "true")
SUPERGLUE = (
    _superglue("BoolQ", ("accuracy",), 3245, labels=_BOOLEAN, layouts=(_pair("question", "passage", id="idx"),)),
    _superglue("CB", ("accuracy", "macro_f1"), 250, labels=("entailment", "contradiction", "neutral"),
               layouts=(_pair("premise", "hypothesis", id="idx"),)),
    _superglue("COPA", ("accuracy",), 500, form="choice", layouts=(Copa(),)),
    _superglue("MultiRC", ("f1", "exact"), 9693, labels=BINARY, layouts=(MultiRC(),)),
    _superglue("ReCoRD", ("f1", "exact"), 10000, form="choice", answers="record", layouts=(EntityCloze(),)),
    _superglue("RTE", ("accuracy",), 3000, called="superglue_rte", labels=TWO_WAY,
               layouts=(_pair("premise", "hypothesis", id="idx"),)),
    _superglue("WiC", ("accuracy",), 1400, labels=_BOOLEAN, layouts=(WordInContext(),)),
    _superglue("WSC", ("accuracy",), 146, labels=_BOOLEAN, layouts=(MarkedText(words=True),)),
)  # fmt: skip

_SICK: dict[str, Any] = {
    "folders": ("SICK", "sick"),
    "files": {"train": ("SICK_train.txt", "SICK.txt", "train-*.parquet"),
              "dev": ("SICK_trial.txt", "SICK.txt", "validation-*.parquet"),
              "test": ("SICK_test_annotated.txt", "SICK_test.txt", "SICK.txt", "test-*.parquet")},
    "sets": {"train": ("SemEval_set", "TRAIN"), "dev": ("SemEval_set", "TRIAL"), "test": ("SemEval_set", "TEST")},
}  # fmt: skip
SICK = (
    Task(name="sick_entailment", form="classification", metrics=("accuracy",), **_SICK,
         labels=("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
         layouts=(_pair("sentence_A", "sentence_B", "entailment_judgment", "pair_ID"),
                  _pair("sentence_A", "sentence_B", "entailment_label", "pair_ID"),
                  _pair("sentence_A", "sentence_B", "label", "id"))),
    Task(name="sick_relatedness", form="regression", metrics=("pearson", "spearman"), **_SICK, range=(1.0, 5.0),
         swap=True, layouts=(_pair("sentence_A", "sentence_B", "relatedness_score", "pair_ID"),)),
)  # fmt: skip


def _squad_files(version: str) -> dict[str, tuple[str, ...]]:
    return _three(
        (f"train-v{version}.json", "train.json", "train-*.parquet", "train-part.json"),
        (f"dev-v{version}.json", "dev.json", "validation-*.parquet", "dev-part.json"),
        (f"test-v{version}.json", "test.json"),
    )


def _predictions(test: str = "predictions.json") -> Submission:
    return Submission(format="squad", files={"dev": "predictions.json", "test": test})


def _squad(name: str, folders: tuple[str, ...], files: Mapping[str, tuple[str, ...]], **fields: Any) -> Task:
    """A task in SQuAD's form, whose predictions are submitted as those of SQuAD unless ``fields`` say otherwise."""
    usual: dict[str, Any] = {"form": "span", "metrics": ("f1", "exact"), "layouts": (Squad(),)}
    usual["submission"] = _predictions()
    return Task(name=name, folders=folders, files=files, **usual | fields)


QA = (
    _squad("squad1", ("squad_v1.1", "squad1", "squad"), _squad_files("1.1")),
    _squad("squad2", ("squad_v2.0", "squad2", "squad_v2"), _squad_files("2.0")),
    _squad("triviaqa", ("triviaqa", "TriviaQA"),
           {split: (f"{split}-v1.2.json", f"squad-*-{split}-*.json", f"{split}.json")
            for split in ("train", "dev", "test")},
           answers="triviaqa"),
    _squad("cmrc2018", ("cmrc2018", "clue/cmrc2018"),
           _three(("cmrc2018_train.json", "train.json", "train-*.parquet", "train-part.json"),
                  ("cmrc2018_dev.json", "dev.json", "validation-*.parquet", "dev-part.json"),
                  ("cmrc2018_test*.json", "test.json")),
           answers="cmrc", submission=_predictions("cmrc2018_predict.json")),
    _squad("drcd", ("drcd", "DRCD"),
           _three(("DRCD_training.json", "train.json"), ("DRCD_dev.json", "dev.json"),
                  ("DRCD_test.json", "test.json")),
           answers="cmrc"),
)  # fmt: skip


def _choice(name: str, folders: tuple[str, ...], files: Mapping[str, tuple[str, ...]], *layouts, **fields: Any) -> Task:
    """A task of multiple choice."""
    metrics = ("accuracy",)
    return Task(name=name, form="choice", metrics=metrics, folders=folders, files=files, layouts=layouts, **fields)


CHOICE = (
    _choice("swag", ("SWAG", "swag"),
            _three(("train.csv", "train-*.parquet"), ("val.csv", "validation-*.parquet"),
                   ("test.csv", "test-*.parquet")),
            Options(context="sent1", question="sent2", options=tuple(f"ending{i}" for i in range(4)))),
    _choice("race", ("RACE", "race"),
            _three(("train/*/*.txt", "train.jsonl", "train-*.parquet"),
                   ("dev/*/*.txt", "dev.jsonl", "validation-*.parquet"),
                   ("test/*/*.txt", "test.jsonl", "test-*.parquet")),
            Race(), Options(context="article", question="question", answer="answer")),
    _choice("arc", ("ARC-Easy", "ARC-Challenge", "ARC-E", "ARC-C", "ARC", "arc"),
            _three(("arc_*_train.csv", "ARC-*-Train.jsonl", "train-*.parquet", "train.jsonl"),
                   ("arc_*_dev.csv", "ARC-*-Dev.jsonl", "validation-*.parquet", "dev.jsonl"),
                   ("arc_*_test.csv", "ARC-*-Test.jsonl", "test-*.parquet", "test.jsonl")),
            Options(context=None, question="question", options=("choices",), answer="answerKey", id="id",
                    first_number=1),
            Options(context=None, question="0", options=("1", "2", "3", "4"), answer="5", first_number=1),
            Stems()),
    _choice("c3", ("c3", "clue/c3"),
            {"train": ("c3-*-train.json", "[dm]-train.json", "train-*.parquet"),
             "dev": ("c3-*-dev.json", "[dm]-dev.json", "validation-*.parquet"),
             "test": ("test1.1.json", "c3-*-test.json", "[dm]-test.json", "test-*.parquet"),
             "test1.0": ("test1.0.json",)},
            C3(),
            Options(context="context", question="question", options=("choice",), answer="answer", id="id",
                    by_text=True),
            submission=Submission(format="clue", files={"test": "c311_predict.json", "test1.0": "c310_predict.json"})),
)  # fmt: skip


def _tagging(name: str, files: Mapping[str, tuple[str, ...]], *layouts, **fields: Any) -> Task:
    """A task of tagging, submitted as conlleval reads it unless ``fields`` say otherwise."""
    usual: dict[str, Any] = {"folders": (name, f"ner/{name}")}
    usual["submission"] = Submission(format="conll", files={"dev": "dev.txt", "test": "test.txt"})
    metrics = ("f1", "precision", "recall", "accuracy")
    return Task(name=name, form="tagging", metrics=metrics, files=files, layouts=layouts, **usual | fields)


CONLL_TAGS = ("O", *(f"{prefix}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"))
TAGGING = (
    _tagging("conll2003",
             _three(("train.txt", "eng.train", "train-*.parquet"),
                    ("valid.txt", "eng.testa", "validation-*.parquet", "valid-part.txt"),
                    ("test.txt", "eng.testb", "test-*.parquet")),
             WordLists(), Conll(),
             labels=CONLL_TAGS, folders=("conll2003", "CoNLL-2003", "ner/conll2003")),
    _tagging("msra", _three(("train.tsv", "msra_train_bio.txt"), ("dev.tsv",), ("test.tsv", "msra_test_bio.txt")),
             WordLists(words="text_a", tags="label"), Conll()),
    _tagging("peoples_daily",
             _three(("train.txt", "example.train"), ("dev.txt", "example.dev", "dev-part.txt"),
                    ("test.txt", "example.test")),
             Conll()),
    _tagging("resume", _three(("train.char.bmes",), ("dev.char.bmes",), ("test.char.bmes",)), Conll()),
    _tagging("cluener", _three(("train.json",), ("dev.json", "dev-part.json"), ("test.json",)), CharacterSpans(),
             submission=Submission(format="clue", files={"test": "cluener_predict.json"})),
)  # fmt: skip


def _clue(name: str, labels: tuple[str, ...] | None, *layouts, file: str | None = None, **fields) -> Task:
    """A task of CLUE. A task with test files of both 1.0 and 1.1 has two submissions.

    Their names begin with ``file`` (``tnews10_predict.json``).
    """
    files: dict[str, tuple[str, ...]] = {split: (f"{split}.json",) for split in ("train", "dev", "test")}
    predicted = {"test": f"{name}_predict.json"}
    if file is not None:
        files["test"], files["test1.0"] = ("test1.1.json", "test.json"), ("test1.0.json",)
        predicted = {"test": f"{file}11_predict.json", "test1.0": f"{file}10_predict.json"}
    usual: dict[str, Any] = {
        "form": "classification",
        "metrics": ("accuracy",),
        "files": files,
        "folders": (name, f"{name}_public", f"clue/{name}"),
        "submission": Submission(format="clue", files=predicted),
    } | fields
    return Task(name=name, labels=labels, layouts=layouts, **usual)


def _fewclue(name: str, labels: tuple[str, ...] | None, *layouts, file: str | None = None, **fields) -> Task:
    """A task of FewCLUE.

    The name of its submission begins with ``file``, which ends in f for tasks that CLUE has too. Its files may be in a
    folder of CLUE's task, whose larger ``train.json`` is not read.
    """
    folder = name.removesuffix("_few")
    files = {
        "train": ("train_few_all.json", "train_0.json"),
        "dev": ("dev_few_all.json", "dev_0.json"),
        "test": ("test.json",),
        "test_public": ("test_public.json", "test_public-part.json"),
    }
    return _clue(
        name,
        labels,
        *layouts,
        files=files,
        folders=(folder, f"clue/{folder}", f"fewclue/{folder}"),
        submission=Submission(format="clue", files={"test": f"{file or folder}_predict.json"}),
        **fields,
    )


_TNEWS = tuple(str(label) for label in range(100, 117) if label not in (105, 111))
_IFLYTEK = tuple(map(str, range(119)))
_ZH_PAIR = Columns(text="sentence1", pair="sentence2", id="id")
_ONE = Columns(text="sentence", id="id")
CLUE = (
    _clue("afqmc", BINARY, _ZH_PAIR),
    _clue("tnews", _TNEWS, _ONE, file="tnews"),
    _clue("iflytek", _IFLYTEK, _ONE),
    _clue("cmnli", NLI, _ZH_PAIR, dropped=("-",)),
    _clue("ocnli", NLI, _ZH_PAIR, dropped=("-",), files={
        "train": ("train.50k.json", "train.json", "train.10k.json"), "dev": ("dev.json", "dev-part.json"),
        "test": ("test.json",)}, submission=Submission(format="clue", files={"test": "ocnli_50k_predict.json"})),
    _clue("csl", BINARY, Keywords()),
    _clue("cluewsc", _BOOLEAN, MarkedText(words=False), file="cluewsc",
          folders=("cluewsc", "cluewsc2020", "cluewsc2020_public", "clue/cluewsc")),
    _clue("clue_chid", None, IdiomGaps(), form="choice", folders=("chid", "chid_public", "clue/chid"),
          files={"train": ("train.json",), "dev": ("dev.json",), "test": ("test1.1.json", "test.json"),
                 "test1.0": ("test1.0.json",)},
          submission=Submission(format="clue_json", files={"test": "chid11_predict.json",
                                                           "test1.0": "chid10_predict.json"})),
    _clue("chnsenticorp", BINARY, Columns(text="text_a", quoted=False), Columns(text="review", quoted=False),
          files={split: (f"{split}.tsv",) for split in ("train", "dev", "test")},
          folders=("chnsenticorp", "ChnSentiCorp", "clue/chnsenticorp"), submission=None),
)  # fmt: skip
FEWCLUE = (
    _fewclue("eprstmt", ("Negative", "Positive"), _ONE),
    _fewclue("csldcp", None, Columns(text="content", id="id")),
    _fewclue("tnews_few", _TNEWS, _ONE, file="tnewsf"),
    _fewclue("iflytek_few", _IFLYTEK, _ONE, file="iflytekf"),
    _fewclue("ocnli_few", NLI, _ZH_PAIR, file="ocnlif", dropped=("-",)),
    _fewclue("bustm", BINARY, _ZH_PAIR),
    _fewclue("csl_few", BINARY, Keywords(), file="cslf"),
    _fewclue("chid", None, Cloze(), file="chidf", form="choice"),
    _fewclue("cluewsc_few", _BOOLEAN, MarkedText(words=False), file="cluewscf"),
)

TASKS: Mapping[str, Task] = {
    task.name: task for suite in (GLUE, SUPERGLUE, SICK, QA, CHOICE, TAGGING, CLUE, FEWCLUE) for task in suite
}


SUITES: Mapping[str, tuple[str, ...]] = {
    "glue": tuple(task.name for task in GLUE if task.name != "ax"),
    "superglue": tuple(task.name for task in SUPERGLUE),
    "clue": (*(task.name for task in CLUE), "cmrc2018", "c3"),
    "fewclue": tuple(task.name for task in FEWCLUE),
}


def find(name: str) -> Task | None:
    """The task called ``name``, ignoring case, hyphens and underscores (``SST-2``, ``sst2``); None if it is unknown."""
    plain = name.lower().replace("-", "").replace("_", "")
    return next((task for key, task in TASKS.items() if key.replace("_", "") == plain), None)


def task(name: str) -> Task:
    """The task called ``name``, see :func:`find`.

    Raises:
        ConfigError: a suite, or an unknown name; the message gives the nearest one.
    """
    if (known := find(name)) is not None:
        return known
    if (several := SUITES.get(name.lower())) is not None:
        raise ConfigError(f"{name} is a suite; give one of {', '.join(several)}")
    raise ConfigError(f"unknown task {name!r}{nearest(name, [*TASKS, *SUITES])}")
