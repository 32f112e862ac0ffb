"""Arguments of verbs that are URLs: inputs are fetched into the cache, outputs are written to a URL by a mirror."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from encoderlab.commands import terminal
from encoderlab.commands.outputs import FILES
from encoderlab.errors import ConfigError, EncoderlabError
from encoderlab.execution.workers import rank_and_size
from encoderlab.storage.cache import local
from encoderlab.storage.mirror import written_file, written_folder
from encoderlab.storage.places import url_of

OUTPUTS = ("out", "submission")  # the parameters that name outputs


def call(verb: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    """Run ``verb`` with the arguments ``bound``, of which each :class:`Path` that is a URL is replaced by a local path.

    In what the verb returns, prints or raises, paths in a local copy of an output are URLs again.

    Raises:
        ConfigError: an output at a URL under torchrun, whose processes would all mirror it; or a file that is an input.
        DataError: an input that cannot be fetched, or an output that cannot be written.
    """
    with contextlib.ExitStack() as stack:
        inputs, files = set[str](), dict[str, str]()

        def place(name: str, value: Any) -> Any:
            if isinstance(value, (list, tuple)):  # an option that is repeated, or arguments without a name
                return type(value)(place(name, item) for item in value)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
                changed = {key: place(key, item) for key, item in fields.items()}
                same = all(changed[key] is item for key, item in fields.items())
                return value if same else dataclasses.replace(value, **changed)
            if not isinstance(value, Path) or (url := url_of(value)) is None:
                return _on_disk(name, value) if isinstance(value, Path) else value
            if name not in OUTPUTS:
                inputs.add(url)
                return local(url)
            if rank_and_size()[1] > 1:
                raise ConfigError(f"--{name} {url}: several processes write to a folder on disk; give one")
            if Path(url).suffix.lower() in FILES:
                files[url] = name
                made = stack.enter_context(written_file(url))
            else:
                made = stack.enter_context(written_folder(url))
            stack.enter_context(terminal.naming(str(made), url))
            return made

        for name, value in bound.arguments.items():
            bound.arguments[name] = place(name, value)
        for url in inputs & files.keys():
            raise ConfigError(f"{url}: is the input; give another --{files[url]}")
        try:
            return _with_urls(verb(*bound.args, **bound.kwargs))
        except EncoderlabError as error:
            error.args = tuple(terminal.named(one) if isinstance(one, str) else one for one in error.args)
            raise


def _on_disk(name: str, path: Path) -> Path:
    """``path``, or the path of a URL ``file://...``.

    Raises:
        ConfigError: an output at a URL of another kind, which would become a local folder called ``kind:``.
    """
    kind = path.parts[0] if path.parts else ""
    if kind == "file:":
        return Path("/", *path.parts[1:])
    if name in OUTPUTS and kind.endswith(":") and len(kind) > 2 and not Path(kind).exists():
        raise ConfigError(
            f"--{name} {path}: {kind[:-1]} is not supported; give a folder, or a URL such as s3://bucket/a"
        )
    return path


def _with_urls(value: Any) -> Any:
    """``value`` with the URL for every path in a local copy (:func:`encoderlab.commands.terminal.named`)."""
    if isinstance(value, dict):
        return {key: _with_urls(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_urls(item) for item in value]
    if isinstance(value, (str, Path)) and (text := terminal.named(str(value))) != str(value):
        return text
    return value
