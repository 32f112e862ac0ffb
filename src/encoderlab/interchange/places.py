"""The place of a model: a folder, a model that comes with the package, or one of the Hugging Face Hub.

Every verb and every reader of models uses :func:`resolve`.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from importlib import resources
from pathlib import Path

from encoderlab.errors import DataError
from encoderlab.interchange import hub
from encoderlab.storage.cache import local

log = logging.getLogger(__name__)

PRETRAINED = Path(str(resources.files("encoderlab"))) / "pretrained"
PROVENANCE = "provenance.json"
_HUB_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_COMMITS: dict[str, str] = {}


def resolve(place: str | os.PathLike[str], *, run: Path | None = None) -> Path:
    """The folder of the model ``place``, the first of these that exists:

    1. a file or folder, also at a URL, which is fetched; a folder with the name of a model elsewhere takes precedence,
       with a note;
    2. the name of a model that is installed with encoderlab (:func:`installed`);
    3. ``org/name`` or ``org/name@revision`` of the Hugging Face Hub, which is fetched
       (:func:`encoderlab.interchange.hub.fetch`). Without a revision, ``org/name`` counts as a missing folder if there
       is a folder ``org``.

    Args:
        run: the run folder to resume; a model of the Hub is then read at the commit that the run began with.

    Raises:
        DataError, ConfigError: there is none of them.
    """
    path = local(place)
    name = path.as_posix()
    if os.path.exists(path):
        if path.is_dir():
            _say_folder_wins(name)
        return path
    if path.with_name(path.name + ".index").exists():  # the prefix of a TensorFlow checkpoint
        return path
    if name in (models := installed()):
        return models[name]
    match = _HUB_NAME.fullmatch(name)
    if match is None and len(path.parts) == 1:
        known = f"those that come with encoderlab are {', '.join(models)}" if models else "none comes with encoderlab"
        raise DataError(
            f"{name}: no such file or folder, and no model of that name is installed ({known}); give a model folder, a "
            "run folder, or org/name of the Hugging Face Hub"
        )
    if match is None:
        raise DataError(f"{name}: no such file or folder; give a model folder, or a run folder with model/")
    if match["revision"] is None and Path(match["repo"]).parent.is_dir():
        raise DataError(
            f"{name}: no such file or folder; give a model folder, or a run folder with model/; for the model of that "
            f"name on the Hugging Face Hub write {name}@main"
        )
    revision = match["revision"]
    if run is not None and (commit := _first(run).get(name)) is not None:
        if revision != commit:
            log.info("%s is read at %s, the commit that %s began with", name, commit, run)
        revision = commit
    folder = hub.fetch(match["repo"], revision)
    _COMMITS[name] = folder.name
    return folder


def pin(place: str, run: Path) -> str:
    """``place`` with its commit, ``org/name@COMMIT``, if it is a name of the Hub: the commit that ``run`` began with,
    if that folder exists, else the current one. Other places are unchanged.
    """
    match = _HUB_NAME.fullmatch(Path(place).as_posix())
    if match is None or os.path.exists(place):
        return place
    name = match[0]
    commit = _first(run).get(name)
    if commit is None:
        resolve(place)
        if (commit := _COMMITS.get(name)) is None:
            return place
    _COMMITS[name] = commit
    return f"{match['repo']}@{commit}"


def commits() -> dict[str, str]:
    """The commit of every model that this process read from the Hub, by the name in the request."""
    return dict(_COMMITS)


def installed() -> dict[str, Path]:
    """The folders of the models that came with the package, by name."""
    if not PRETRAINED.is_dir():
        return {}
    return {folder.name: folder for folder in sorted(PRETRAINED.iterdir()) if (folder / hub.CONFIG).exists()}


def _first(run: Path) -> dict[str, str]:
    """The commits that the first sessions of a run folder, or of the runs within it, recorded."""
    pinned: dict[str, str] = {}
    for path in sorted(run.rglob(PROVENANCE)):
        try:
            pinned = json.loads(path.read_bytes())["sessions"][0].get("models", {}) | pinned
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # resuming the run reports the damage
    return pinned


@functools.cache
def _say_folder_wins(name: str) -> None:
    """Print a note if a folder may hide a model of the same name: an installed one, or one of the Hub if the folder
    looks like a download; folders of this project do not.
    """
    if name in installed():
        log.info("%s: the folder of that name is read, not the model that comes with encoderlab", name)
        return
    if _HUB_NAME.fullmatch(name) is None:
        return
    try:
        fields = json.loads((Path(name) / hub.CONFIG).read_bytes())
        transformers = bool(fields.get("model_type")) and "format" not in fields
    except (OSError, ValueError, AttributeError):
        return
    if transformers:
        log.info("%s: the folder of that name is read, not the model of the Hugging Face Hub", name)
