from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from encoderlab import __version__, cli, files
from encoderlab.commands import settings
from encoderlab.errors import ConfigError, DataError, Diverged, MissingDependency, OutOfMemory, Stopped
from encoderlab.files import VARIABLES
from encoderlab.recipes import recipe
from encoderlab.train.recipe import Budget


@pytest.fixture
def verb(monkeypatch):
    """Replaces the verb ``describe`` by a function: ``verb(f)``; returns the function that runs the command line."""

    def replace(function, name="describe"):
        module = sys.modules.setdefault("encoderlab.commands.stand_in", type(sys)("encoderlab.commands.stand_in"))
        monkeypatch.setattr(module, "run", function, raising=False)
        monkeypatch.setitem(cli.VERBS, name, (cli.STUDY, "stand_in:run", "Stand-in."))

    return replace


def raising(error):
    def run() -> None:
        raise error

    return run


def test_help_lists_every_verb_and_imports_neither_torch_nor_a_verb():
    code = (
        "import sys, encoderlab.cli as c; code = c.main(['--help']);"
        "loaded = [m for m in sys.modules if m.startswith('encoderlab.commands.')];"
        "loaded = [m for m in loaded if not m.endswith(('terminal', 'remote', 'outputs', 'usage'))];"
        "assert not loaded, loaded;"
        "assert not {'torch', 'numpy', 'tokenizers', 'pydantic'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in cli.VERBS:
        assert name.split()[0] in done.stdout


def test_importing_the_package_imports_no_heavy_module():
    code = "import sys, encoderlab; assert not {'torch', 'numpy', 'pydantic', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("program", "name"), [(p, name) for p, (verbs, _) in cli.PROGRAMS.items() for name in verbs])
def test_help_of_every_verb_has_an_example_and_needs_no_torch(program, name):
    code = (
        f"import sys, encoderlab.cli as c; code = c.main({[*name.split(), '--help']}, {program!r});"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    example = done.stdout.split("Example:")[1].split("\n\n")[0].strip().splitlines()
    assert example[0].strip().startswith(f"{program} {name}")
    for line, following in pairwise(example):
        whole = line.endswith("\\") or following.strip().startswith(program)
        assert whole, "a line that breaks at 80 columns cannot be copied"


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pretran"], "'pretran'; did you mean 'pretrain'?"),
        (["corpus", "biuld", "x"], "'corpus biuld'; did you mean 'build'?"),
        (["--json", "descrbe"], "did you mean 'describe'?"),
    ],
)
def test_an_unknown_verb_names_the_nearest(words, expected, capsys):
    assert cli.main(words) == 2
    assert expected in capsys.readouterr().err


def test_an_unknown_option_names_the_nearest(verb, capsys):
    def run(*, length: int = 1) -> None: ...

    verb(run)
    assert cli.main(["describe", "--lenght", "3"]) == 2
    assert "--length" in capsys.readouterr().err
    assert cli.main(["describe", "--length", "three"]) == 2
    assert "three" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["corpus", "build", "notes"], "corpus build: --out is missing; see the example of encoderlab corpus build"),
        (["corpus", "inspect"], "corpus inspect: CORPUS is missing"),
        (["finetune", "reviews.csv", "--model"], "--model has no value"),
    ],
)
def test_what_is_missing_is_named(words, expected, capsys):
    assert cli.main(words) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pretrain bert-tiny --corpus c --out r --set seed=1 optim.lr=1e-3",
         "pretrain: 'optim.lr=1e-3' follows no option; write --set before every field: --set optim.lr=1e-3"),
        ("pretrain bert-tiny roberta-base --corpus c --out r",
         "pretrain: 'roberta-base' is one argument too many; see encoderlab pretrain --help"),
        ("corpus inspect c d", "corpus inspect: 'd' is one argument too many; see encoderlab corpus inspect --help"),
        ("finetune x.csv --model m --out r --steps 9",
         "finetune: unknown option --steps; a field of the recipe is set by --set PATH=VALUE"),
        ("finetune x.csv --model m --out r --epoch 9", "finetune: unknown option --epoch; did you mean --epochs?"),
        ("describe bert-tiny --seeds 3", "describe: unknown option --seeds; see encoderlab describe --help"),
        ("describe bert-tiny --length long", "describe: --length is 'long'; give a whole number"),
        ("describe bert-tiny --length 0", "describe: --length is 0; give at least 1"),
        ("perplexity m --corpus c --memory -1", "perplexity: --memory is -1; give at least 0"),
        ("study s.yaml --hours -0.5", "study: --hours is -0.5; give a number above 0"),
        ("finetune x.csv --model m --out r --seeds 0", "finetune: --seeds is 0; give at least 1"),
        ("predict m x.csv --workers 0", "predict: --workers is 0; give at least 1"),
        ("pretrain bert-tiny --corpus c --out r --steps many", "pretrain: --steps is 'many'; give a number"),
        ("finetune x.csv --model m --model n --out r", "finetune: --model is given twice; give it once"),
        ("evaluate m x.csv --ensemble", "evaluate: --ensemble has no value; give at least one, or leave it out"),
        ("predict m x.csv --with", "predict: --with has no value; give at least one, or leave it out"),
        ("corpus build x.txt --out", "corpus build: --out has no value; see encoderlab corpus build --help"),
        ("finetune x.csv --model m --out r --epochs 0", "finetune: --epochs is 0; give a number above 0"),
        ("finetune x.csv --model m --out r --trials 0", "finetune: --trials is 0; give at least 1"),
        ("finetune x.csv --model m --out r --teacher-weight 2",
         "finetune: --teacher-weight is 2; give a share from 0 to 1"),
        ("adapt m x.txt --out r --passes nan", "adapt: --passes is nan; give a number above 0"),
        ("adapt m x.txt --out r --replay-share 2", "adapt: --replay-share is 2; give a share from 0 to 1"),
        ("corpus build x.txt --out r --vocab-size 0", "corpus build: --vocab-size is 0; give at least 1"),
        ("corpus build x.txt --out r --min-chars -4", "corpus build: --min-chars is -4; give at least 0"),
        ("pretrain bert-tiny --steps 1e300 --dry-run", "--steps is 1e+300; give a number above 0, and at most 1e+30"),
        ("pretrain bert-tiny --session-hours -1 --dry-run",
         "--session-hours is -1; give a number above 0, and at most 1e+30"),
        ("describe bert-tiny --length=~/x", f"describe: --length is '{Path.home()}/x'; give a whole number"),
        ("--jsno describe", "unknown option '--jsno' before the verb; did you mean '--json'?"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_answered_with_value_expectation_and_remedy(words, expected, capsys):
    assert cli.main(words.split()) == 2
    assert capsys.readouterr().err.splitlines() == [f"error: {expected}"]


def test_texts_that_begin_with_a_hyphen_are_written_after_two(capsys):
    assert cli.main(["predict", "m", "-5 degrees"]) == 2
    wanted = "error: predict: '-5 degrees' begins with a hyphen; write -- before the texts"
    assert capsys.readouterr().err.splitlines() == [wanted]
    assert cli.main(["predict", "nowhere/m", "--", "-5 degrees"]) == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("corpus build x.txt --out r --tokenizer t --vocab-size 9", "--vocab-size is for a tokenizer to train"),
        ("corpus build x.txt --out r --tokenizer t --tokenizer-sample 9", "--tokenizer-sample is for a tokenizer to"),
        ("bench corpus x.txt --tokenizer t --vocab-size 9", "--vocab-size is for a tokenizer to train"),
        ("bench train bert --corpus c --compile", "--compile is for the other contender; give --against too"),
        ("bench serve m --python p", "--python is for --against sentence-transformers or infinity"),
        ("bench serve m --python nowhere --against infinity", "--python nowhere: no such program; give a"),
        ("adapt m x.txt --out r --replay-share 0.2", "--replay-share is the share of the text of --replay; give"),
        ("adapt m x.txt --out r --seeds 5", "--seeds is the number of seeds for --task; give --task FILE too"),
        ("convert m r --both-heads", "--both-heads is for DeBERTa in Hugging Face's format; give --to hf"),
        ("evaluate m x.csv --ensemble a m", "m: is given twice; name each model of an ensemble once"),
        ("export m r --tolerance 0.1", "--tolerance is for --int8; give --int8 and --check FILE too"),
        ("perplexity m --corpus c --positions 9", "--positions is for the effective context; give --context too"),
        ("pretrain bert-tiny --dry-run --branch-from c", "--dry-run shows the cost of a run from its start; leave out"),
        ("serve m --key-file k --no-key", "--no-key leaves out the keys of --key-file; leave one of them out"),
        ("serve m --metrics key", "--metrics key asks for one of the keys of --key-file; give --key-file too"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(words, expected, capsys):
    assert cli.main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {expected}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("encode m --file x.txt --out v.txt", "--out v.txt: the output is an array of NumPy"),
        ("encode m --file x.txt --file y.txt", "x.txt: no such file; give files, or a folder"),
        ("predict m word --out p.csv", "--out p.csv: the output is JSON lines"),
        ("predict m word --with gold", "texts have no labels; leave gold out of --with"),
    ],
)
def test_int8_is_judged_after_the_options(words, expected, capsys):
    assert cli.main([*words.split(), "--precision", "int8", "--check", "nowhere"]) in (2, 3)
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("width 10 is odd"), 2),
        (DataError("no text in x"), 3),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), 3),
        (PermissionError(13, "Permission denied", "/out"), 3),
        (OSError(28, "No space left on device"), 3),
        (MissingDependency("pyarrow", "data", "reading Parquet"), 4),
        (OutOfMemory("batch 64 does not fit; 32 does"), 5),
        (MemoryError(), 5),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ..."), 5),
        (RuntimeError("can't start new thread"), 5),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 5),
        (RuntimeError("std::bad_alloc"), 5),
        (Diverged("loss nan at step 3"), 6),
        (Stopped("stopped at step 5; run again to resume"), 75),
        (KeyboardInterrupt(), 130),
        (ValueError("surprise"), 1),
    ],
)
def test_every_error_is_one_line_with_its_exit_code(error, code, verb, capsys):
    verb(raising(error))
    assert cli.main(["describe"]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert ("-v for the traceback" in err) == (code == 1)


@pytest.mark.parametrize(("limit", "code"), [(4e9, 5), (float("inf"), 1)])
def test_a_primitive_that_cannot_be_made_is_memory_under_a_limit(limit, code, verb, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_address_space", lambda: limit)
    verb(raising(RuntimeError("could not create a primitive")))
    assert cli.main(["describe"]) == code


def test_verbose_shows_the_traceback(verb, capsys):
    verb(raising(DataError("no text")))
    assert cli.main(["describe", "-v"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_json_puts_one_object_on_standard_output(verb, capsys):
    def run() -> dict:
        from encoderlab.commands.terminal import say, table

        say("a line for people")
        table("Sizes", ["name", "count"], [["a", 1]])
        return {"where": Path("x"), "score": 0.5, "sizes": (1, 2), "worst": float("inf")}

    verb(run)
    assert cli.main(["describe", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"where": "x", "score": 0.5, "sizes": [1, 2], "worst": None}
    assert "a line for people" in err and "Sizes" in err
    assert cli.main(["describe"]) == 0
    out, err = capsys.readouterr()
    assert "a line for people" in out and err == ""


def test_json_reports_errors_too(verb, capsys):
    verb(raising(DataError("no text")))
    assert cli.main(["describe", "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"error": "no text", "exit_code": 3}


def test_what_the_package_logs_is_shown_once(verb, capsys):
    def run() -> None:
        logging.getLogger("encoderlab.tasks").info("kept for later")
        logging.getLogger("encoderlab").warning("[MASK] was cut")

    verb(run)
    for _ in range(2):
        assert cli.main(["describe", "--json"]) == 0
        assert capsys.readouterr().err == "kept for later\nwarning: [MASK] was cut\n"


def test_square_brackets_are_printed_as_they_are(verb, capsys):
    def run() -> None:
        from encoderlab.commands.terminal import say

        say("the [MASK] of [/b] things")

    verb(run)
    assert cli.main(["describe"]) == 0
    assert "the [MASK] of [/b] things" in capsys.readouterr().out


def test_results_are_printed_to_the_letter(verb, capsys):
    def run() -> None:
        from encoderlab.commands.terminal import say, table

        say("label\tI :heart: it")
        table(":heart:", ["word"], [[":smile:"]])

    verb(run)
    assert cli.main(["describe"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("label\tI :heart: it\n") and ":smile:" in out and out.count(":heart:") == 2


def test_a_closed_pipe_ends_quietly():
    for words in ("--help", "pretrain --list"):
        command = f"{sys.executable} -m encoderlab {words} | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ)
        assert done.stderr == "" and done.returncode == 141


@pytest.mark.parametrize(
    ("streams", "code"),
    [(">/dev/full", 3), (">&-", 0), (">/dev/null 2>&-", 0), ("--json >/dev/full", 3), ("--json 2>/dev/full", 3)],
)
def test_output_that_is_full_or_closed_is_no_bug(streams, code):
    command = f"{sys.executable} -m encoderlab describe bert-tiny {streams}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr and "bug" not in done.stderr
    last = done.stderr.splitlines()[-1:]
    assert ("error: No space left on device" in "".join(last)) == (code == 3 and "2>" not in streams)


def test_a_shell_without_memory_is_one_line():
    command = f"ulimit -v 900000; {sys.executable} -m encoderlab describe bert-tiny"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 5 and done.stderr.startswith("error: out of memory: this shell allows 879 MB (ulimit -v)")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_that_the_output_cannot_hold_are_escaped(encoding):
    name = b"\xfc" + "ü😀".encode()
    command = [sys.executable, "-m", "encoderlab", "report", name]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([*command, "--json"], capture_output=True, env=environment)
    assert done.returncode == 3 and json.loads(done.stdout)["error"].startswith(os.fsdecode(name))
    assert rb"\udcfc" in done.stderr and done.stderr.startswith(b"error: ")


def test_completion_script_mentions_the_verbs():
    code = "from encoderlab.cli import make_app; print(make_app().generate_completion(shell='bash'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fill-mask" in done.stdout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optim:
    lr: float = 1.0
    warmup: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    seed: int = 0
    optim: Optim = Optim()


def test_precedence_is_defaults_recipe_file_environment_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCODERLAB_OPTIM__LR", "3.0")
    first, second = tmp_path / "a.yaml", tmp_path / "b.json"
    first.write_text("seed: 1\noptim: {lr: 2.0, warmup: 5}\n")
    second.write_text('{"optim": {"warmup": 6}}')
    assert settings.resolve(Example(), files=[first]) == Example(seed=1, optim=Optim(lr=3.0, warmup=5))
    got = settings.resolve(Example(), files=[first, second], assignments=["optim.lr=4e-4"])
    assert got == Example(seed=1, optim=Optim(lr=4e-4, warmup=6))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("optim.lrr=1", "'optim.lrr'; did you mean 'optim.lr'?"),
        ("sed=1", "did you mean 'seed'?"),
        ("seed", "expected path=value"),
    ],
)
def test_a_wrong_assignment_is_explained(assignment, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        settings.resolve(Example(), assignments=[assignment])


def test_a_unit_needs_its_amount(tmp_path):
    """Else a published number of steps would become hours."""
    hours, path = ["budget.unit=hours"], tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match="budget.unit is set without budget.amount"):
        settings.resolve(recipe("bert-mini"), assignments=hours)
    path.write_text("budget: {amount: 2}")
    found = settings.resolve(recipe("bert-mini"), files=[path], assignments=hours)
    assert found.budget == Budget(amount=2, unit="hours")


def test_a_wrong_key_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("optim: {wramup: 1}")
    with pytest.raises(ConfigError, match=r"mine.yaml: unknown key 'optim.wramup'; did you mean 'optim.warmup'\?"):
        settings.resolve(Example(), files=[path])


def test_variables_of_the_package_are_no_fields(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "off")
    assert settings.resolve(Example()) == Example()
    package = Path(files.__file__).parent
    read = {name for path in package.rglob("*.py") for name in re.findall(r"ENCODERLAB_[A-Z]\w+", path.read_text())}
    assert read <= {*VARIABLES, "ENCODERLAB_A__B", "ENCODERLAB_OPTIM__LR"}, "a variable that would be taken for a field"


def test_a_wrong_variable_of_the_package_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("ENCODERLAB_KERNELS", "banana")
    assert cli.main(["describe", "bert-tiny"]) == 2
    assert "ENCODERLAB_KERNELS is 'banana'; set it to off" in capsys.readouterr().err


def test_a_wrong_key_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("ENCODERLAB_OPTIM__RL", "1")
    with pytest.raises(ConfigError, match="environment: unknown key 'optim.rl'"):
        settings.resolve(Example())


def test_a_message_that_quotes_a_file_does_not_command_the_terminal(tmp_path, capsys) -> None:
    (tmp_path / "odd.csv").write_text("te\x1b[31mxt,la\x9bbel\nx,y\nz,w\n", encoding="utf-8")
    assert cli.main(["finetune", str(tmp_path / "odd.csv"), "--model", "small-en", "--out", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\x9b" not in said and "te\\x1b[31mxt" in said
