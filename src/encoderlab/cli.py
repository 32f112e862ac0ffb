"""The command line: ``encoderlab VERB ...``.

A verb is a function in ``encoderlab.commands``, named here by an import string, so that ``--help`` imports none of them
and a verb imports only its own module. A verb prints for people through :mod:`encoderlab.commands.terminal` and returns
a plain dictionary, which ``--json`` prints as the only object on standard output.

Exit codes: 0 done; 1 bug; 2 usage or configuration; 3 data; 4 a missing optional dependency; 5 out of memory; 6
diverged; 75 stopped early, run again to resume; 130 and 143 signals.
"""

from __future__ import annotations

import contextlib
import json as jsonlib
import math
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter, UnknownCommandError
from cyclopts.help.formatters import DefaultFormatter

from encoderlab import __version__
from encoderlab.commands import remote, terminal
from encoderlab.commands.usage import explained
from encoderlab.errors import ConfigError, DataError, EncoderlabError, OutOfMemory, is_out_of_memory, nearest
from encoderlab.files import finite, kernels_wanted

LEAST_MEMORY = 5 << 28  # bytes of address space; with less, torch or Python ends the process without a message

DATA, TRAIN, USE, STUDY = "Data", "Train", "Use", "Study"
VERBS: dict[str, tuple[str, str, str]] = {  # verb: group, import string, one line
    "quickstart": (TRAIN, "quickstart:quickstart", "Try everything in minutes: corpus, pretraining, fine-tuning."),
    "corpus build": (DATA, "corpus:build", "Build a corpus from text: clean, tokenize, memory-map."),
    "corpus merge": (DATA, "corpus:merge", "Merge the parts of a corpus that several machines built."),
    "corpus inspect": (DATA, "corpus:inspect", "Show a corpus and verify its hashes."),
    "pretrain": (TRAIN, "pretrain:pretrain", "Pretrain an encoder from a published recipe."),
    "adapt": (TRAIN, "adapt:adapt", "Adapt a model to the text of a domain, and measure it before and after."),
    "finetune": (TRAIN, "finetune:finetune", "Fine-tune a model on a task, over seeds and grids."),
    "evaluate": (USE, "use:evaluate", "Score a fine-tuned model, or an ensemble, on labelled data."),
    "score": (USE, "score:score", "Score predictions of another program."),
    "predict": (USE, "use:predict", "Label texts with a fine-tuned model."),
    "fill-mask": (USE, "encode:fill_mask", "Predict the masked words of a text."),
    "encode": (USE, "encode:encode", "Turn texts into vectors."),
    "convert": (USE, "convert:convert", "Convert a model folder or checkpoint to or from another library's format."),
    "push": (USE, "push:push", "Upload a model to the Hugging Face Hub."),
    "export": (USE, "export:export", "Export a model to ONNX, for other libraries and servers."),
    "serve": (USE, "serve:serve", "Serve a model over HTTP."),
    "describe": (STUDY, "describe:describe", "Show an architecture: shapes, parameters, FLOPs, memory."),
    "doctor": (STUDY, "doctor:doctor", "Diagnose a run: what is wrong, and what to change."),
    "perplexity": (STUDY, "perplexity:perplexity", "Measure left-to-right language models on a corpus."),
    "study": (STUDY, "study:study", "Compare settings at equal cost over seeds, from a study file."),
    "minimal-pairs": (STUDY, "minimal_pairs:minimal_pairs", "Score a model on minimal pairs, such as BLiMP."),
    "inspect": (STUDY, "inspect:inspect", "Show on one page what every attention head reads."),
    "prune": (USE, "prune:prune", "Remove the attention heads that matter least."),
    "report": (STUDY, "report:report", "Write one self-contained HTML page about one or several runs."),
    "bench train": (STUDY, "bench:train", "Measure training speed, also against other libraries."),
    "bench predict": (STUDY, "bench:predict", "Measure prediction speed."),
    "bench corpus": (STUDY, "bench:corpus", "Measure the speed of corpus building."),
    "bench serve": (STUDY, "bench:serve", "Measure servers side by side under load."),
    "bench scaling": (STUDY, "bench:scaling", "Measure how training speed grows with processes."),
}
FENGSHEN: dict[str, tuple[str, str, str]] = {  # of the program fengshen-pipeline
    "text_classification": (USE, "compat:text_classification", "Train on, or predict, labels of texts."),
    "sequence_tagging": (USE, "compat:sequence_tagging", "Train on, or predict, labels of tokens."),
    "multiplechoice": (USE, "compat:multiplechoice", "Train on, or predict, the right one of several options."),
}
PROGRAMS = {  # first lines of the help of each program
    "encoderlab": (
        VERBS,
        "Raw text to a pretrained, fine-tuned and measured text encoder, for the whole BERT family.\n\n"
        "First run: `encoderlab quickstart`. Help with an example for each verb: `encoderlab VERB --help`.",
    ),
    "fengshen-pipeline": (FENGSHEN, "The tasks of Fengshenbang-LM's fengshen-pipeline, with its flags and folders."),
}
FAMILIES = {"corpus": (DATA, "Build, merge and inspect corpora."), "bench": (STUDY, "Measure speed and memory.")}
GROUPS = {name: Group(name, sort_key=place) for place, name in enumerate([DATA, TRAIN, USE, STUDY])}
EVERYWHERE = Group("Everywhere", sort_key=90)


def make_app(tokens: Sequence[str] = (), program: str = "encoderlab") -> App:
    """The cyclopts application. A verb named in ``tokens`` shows its whole docstring as help, the other
    verbs one line.
    """
    settings: dict[str, Any] = {
        "version": __version__,
        "help_format": "plaintext",
        "default_parameter": Parameter(negative=()),
        "help_formatter": _Help(),
        "suppress_keyboard_interrupt": False,
    }
    verbs, text = PROGRAMS[program]
    app = App(
        name=program,
        help=text,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        **settings,
    )
    families = {
        name: App(name=name, help=text, group=GROUPS[group], **settings) for name, (group, text) in FAMILIES.items()
    }
    for verb, (group, target, summary) in verbs.items():
        *family, name = verb.split()
        app_or_family = families[family[0]] if family else app
        help_text = None if name in tokens else summary
        where: dict[str, Any] = {} if family else {"group": GROUPS[group]}
        app_or_family.command(f"encoderlab.commands.{target}", name=name, help=help_text, **where)
    for name, member in families.items():
        if any(verb.startswith(f"{name} ") for verb in verbs):
            app.command(member)
    app.register_install_completion_command(add_to_startup=True, group=EVERYWHERE)
    for flag in ("--help", "--version"):
        app[flag].group = (EVERYWHERE,)

    @app.meta.default
    def launch(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        json: Annotated[bool, Parameter(group=EVERYWHERE, help="Print one JSON object on standard output.")] = False,
        json_schema: Annotated[
            bool, Parameter(group=EVERYWHERE, help="Print the JSON schema of what --json prints.")
        ] = False,
        verbose: Annotated[
            bool, Parameter(name=["--verbose", "-v"], group=EVERYWHERE, help="Show the traceback of an error.")
        ] = False,
    ) -> Any:
        terminal.configure(json=json, verbose=verbose)
        words = tuple(map(_at_home, words))
        if not any("://" in word for word in words):
            return app(words)
        verb, bound, _ = app.parse_args(words)
        return remote.call(verb, bound)

    app.meta.suppress_keyboard_interrupt = False
    return app.meta


def _at_home(word: str) -> str:
    """``--out=~/runs`` with the home folder, which shells put in place of ``~`` only where a word begins with it."""
    option, _, value = word.partition("=")
    here = option.startswith("--") and value.startswith("~/")
    return f"{option}={os.path.expanduser(value)}" if here else word


class _Help:
    """cyclopts' help with text that wraps at the window's width, and without defaults that tell nothing."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        for entry in panel.entries:
            if entry.default in ("False", "None"):
                entry.default = None
            _flow(entry.description)
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        _flow(description)
        console.print(description)


def _flow(description: Any) -> None:
    """Join the lines of each paragraph, keep examples and indented lines, and remove backticks."""
    text: Any = getattr(description, "primary_renderable", None)
    if not hasattr(text, "plain"):
        return
    paragraphs = []
    for paragraph in text.plain.split("\n\n"):
        lines = paragraph.split("\n")
        kept = lines[0].startswith("Example") or any(line.startswith(" ") for line in lines)
        paragraphs.append(paragraph if kept else " ".join(lines).rstrip())
    text.plain = "\n\n".join(paragraphs).replace("``", "").replace("`", "")


def fengshen_pipeline(tokens: Sequence[str] | None = None) -> int:
    """Run one command of ``fengshen-pipeline``."""
    return main(tokens, "fengshen-pipeline")


def main(tokens: Sequence[str] | None = None, program: str = "encoderlab") -> int:
    """Run one command and return its exit code."""
    _open_streams()
    if (limit := _address_space()) < LEAST_MEMORY:
        return _fail(
            f"out of memory: this shell allows {limit / 2**20:.0f} MB (ulimit -v); raise it to 1280 MB or more",
            OutOfMemory.code,
        )
    tokens = list(sys.argv[1:] if tokens is None else tokens)
    terminal.configure(json="--json" in tokens, verbose=not {"-v", "--verbose"}.isdisjoint(tokens))
    try:
        if program == "encoderlab" and "--json-schema" in tokens:
            _print_json(_schema(tokens))
            return 0
        kernels_wanted()  # refuse a wrong value before any work
        result = make_app(tokens, program)(tokens)
        if terminal.json_mode() and isinstance(result, dict):
            _print_json(finite(result))
        sys.stdout.flush()
        return 0
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich reports a broken pipe this way
            return 141
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader closed the pipe, as in ``encoderlab ... | head``
        _mute()
        return 141
    except UnknownCommandError as error:
        return _fail(_unknown_verb(tokens, (error.unused_tokens or [""])[0], program), ConfigError.code)
    except CycloptsError as error:
        return _fail(explained(error, tokens, program), ConfigError.code)
    except EncoderlabError as error:
        return _fail(str(error), error.code)
    except RecursionError as error:
        if "JSON" not in str(error):
            return _unexpected(error)
        return _fail("JSON of an argument or a file is nested too deeply; give a simpler one", ConfigError.code)
    except Exception as error:
        return _unexpected(error)


def _address_space() -> float:
    """Bytes of memory that this process may map; infinite without a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _open_streams() -> None:
    """Open the null device for a standard stream that is closed (``>&-``).

    Otherwise the next opened file would get the stream's number, and its output.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the process ends)


def _mute() -> None:
    """Discard buffered output, which would fail again when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unknown_verb(tokens: Sequence[str], word: str, program: str) -> str:
    """The message for an unknown verb, with the nearest one; cyclopts' own message would import every verb."""
    if word.startswith("-"):
        return f"unknown option {word!r} before the verb{nearest(word, ('--help', '--version', '--json'))}"
    family = next((f"{name} " for name in FAMILIES if name in tokens and word != name), "")
    known = {verb.removeprefix(family).split()[0] for verb in PROGRAMS[program][0] if verb.startswith(family)}
    return f"unknown verb {family + word!r}{nearest(word, known)}"


def _schema(tokens: Sequence[str]) -> dict[str, Any]:
    """The schema of what the verb among ``tokens`` prints."""
    words = [token for token in tokens if not token.startswith("-")]
    verb = next((" ".join(words[:size]) for size in (2, 1) if " ".join(words[:size]) in VERBS), None)
    if verb is None:
        raise ConfigError(f"--json-schema belongs to a verb: {', '.join(VERBS)}")
    from encoderlab.commands.answers import schema

    return schema(verb)


def _unexpected(error: Exception) -> int:
    """Report an unexpected error: errors of the machine get their exit code, anything else is a bug."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror and type(error).__module__ == "builtins":
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror}; check the path, its permissions and the free space", DataError.code)
    # oneDNN names no cause; with a memory limit it is the limit.
    if is_out_of_memory(error) or "could not create a primitive" in text and _address_space() < math.inf:
        return _fail(
            f"out of memory ({text[:200] or 'no detail'}); use a smaller batch, model or text", OutOfMemory.code
        )
    hint = "" if terminal.verbose() else "; run again with -v for the traceback"
    return _fail(f"this is a bug in encoderlab: {type(error).__name__}: {text}{hint}", 1)


def _fail(message: str, code: int) -> int:
    try:
        if terminal.verbose():
            traceback.print_exc()
        terminal.complain(message)
    except Exception:  # no memory for colours, or standard error is full
        with contextlib.suppress(OSError):
            os.write(2, f"error: {message}\n".encode(errors="backslashreplace"))
    try:
        if terminal.json_mode():
            _print_json({"error": message, "exit_code": code})
        sys.stdout.flush()
    except OSError:  # standard output is full too
        _mute()
    return code


def _print_json(value: Any) -> None:
    """Print one line of JSON, in ASCII if the output is not UTF-8."""
    plain = (sys.stdout.encoding or "").lower() != "utf-8"
    print(jsonlib.dumps(value, ensure_ascii=plain, allow_nan=False, default=_plain), flush=True)


def _plain(value: Any) -> Any:
    """Convert values that ``json`` cannot write: paths, and numbers of other libraries."""
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    return str(value)
