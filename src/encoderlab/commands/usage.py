"""One line for a wrong command line: the verb, the value, what was expected, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from cyclopts import CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    ConsumeMultipleError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

FIELD = re.compile(r"[a-z_]\w*(\.\w+)*=.*", re.DOTALL)  # what --set takes
TYPES = {int: "a whole number", float: "a number"}


def explained(error: CycloptsError, tokens: Sequence[str], program: str) -> str:
    """The message for an error of cyclopts, whose own names no remedy."""
    verb = " ".join(error.command_chain or ())
    before, remedy = f"{verb}: " if verb else "", f"see {' '.join((program, verb)).strip()} --help"
    match error:
        case UnusedCliTokensError(unused_tokens=[word, *_]) if FIELD.fullmatch(word) and "--set" in tokens:
            return f"{before}{word!r} follows no option; write --set before every field: --set {word}"
        case UnusedCliTokensError(unused_tokens=[word, *_]):
            return f"{before}{word!r} is one argument too many; {remedy}"
        case UnknownOptionError() if any(map(str.isspace, error.token.keyword or error.token.value)):
            return (
                f"{before}{error.token.keyword or error.token.value!r} begins with a hyphen; write -- before the texts"
            )
        case UnknownOptionError():
            return f"{before}unknown option {error.token.keyword or error.token.value}; {_near(error) or remedy}"
        case CoercionError(token=token, target_type=kind) if token is not None and kind in TYPES:
            return f"{before}{token.keyword or _name(error)} is {token.value!r}; give {TYPES[kind]}"
        case ValidationError(argument=argument, exception_message=why) if argument is not None:
            return f"{before}{argument.name} {why}"
        case RepeatArgumentError():
            return f"{before}{error.token.keyword} is given twice; give it once"
        case ConsumeMultipleError(argument=argument) if argument is not None:
            return f"{before}{_name(error)} has no value; give at least one, or leave it out"
        case MissingArgumentError(argument=argument) if argument is not None and verb:
            if error.keyword is not None or argument.tokens:
                return f"{before}{error.keyword or argument.name} has no value; {remedy}"
            return f"{before}{argument.name} is missing; see the example of {program} {verb} --help"
    return f"{before}{' '.join(str(error).split())}"


def _name(error: Any) -> str:
    return "the value" if error.argument is None else str(error.argument.name)


def _near(error: UnknownOptionError) -> str:
    """The option that was meant; otherwise how fields are set, if the verb can set any."""
    known = [name for argument in error.argument_collection for name in argument.names]
    near = difflib.get_close_matches(error.token.keyword or error.token.value, known, n=1, cutoff=0.8)
    if near:
        return f"did you mean {near[0]}?"
    return "a field of the recipe is set by --set PATH=VALUE" if "--set" in known else ""
