"""Models of the Hugging Face Hub: fetched into its cache and checked, and uploaded.

Only data is fetched: configuration, tokenizer, card, and weights as safetensors; code and pickles never are. The
library ``huggingface_hub`` does the transfer, so cache, token (``hf auth login``, ``HF_TOKEN``), endpoint
(``HF_ENDPOINT``) and offline mode (``HF_HUB_OFFLINE``) are shared with other tools.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from encoderlab.errors import ConfigError, DataError, EncoderlabError
from encoderlab.files import read_json
from encoderlab.interchange.checksums import FREE

log = logging.getLogger(__name__)

CONFIG = "config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"[^/\\]+\.safetensors")  # any plain name; the index says which
TEXTS = (  # files that readers of models, tokenizers and tasks open, besides the weights
    CONFIG, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "spm.model", "sentencepiece.model", "sentencepiece.bpe.model",
    "tokenizer.model", "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "task.json",
    "README.md", "SHA256SUMS",
)  # fmt: skip
_LENGTH = re.compile(r"sentence_[a-z-]+_config\.json")  # of sentence-transformers; the name is a family's
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
LOG_IN = "log in with: hf auth login (or set HF_TOKEN)"
TIMEOUT = 20.0  # seconds to wait for an answer about a model


def fetch(repo: str, revision: str | None = None) -> Path:
    """The folder in the Hub's cache with the model ``repo`` at ``revision`` (a branch, a tag, a commit; main by
    default). The folder's name is the commit. If the Hub cannot be reached, a complete copy in the cache is used, with
    a warning.

    Every fetched file is compared with the Hub's checksum. Weights come last, so a folder with all weights is complete.
    Of weights in shards, the index comes before them, and those that it names are fetched.

    Raises:
        ConfigError: not a name of a model, or no right to read it.
        DataError: no such model or revision; the Hub cannot be reached and the cache has no copy; the model is of an
            unknown type, has no safetensors, or lacks some of them; or a file arrived damaged.
    """
    from huggingface_hub import HfApi, constants

    from encoderlab.interchange.configs import format_named

    name = repo if revision is None else f"{repo}@{revision}"
    if constants.HF_HUB_OFFLINE:
        if (folder := _cached(repo, revision)) is None:
            raise DataError(
                f"{name}: is not in the cache of models ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE forbids "
                "fetching it; unset that, or give a folder"
            )
        return folder
    try:
        about = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT)
    except Exception as error:  # a library of another library's errors: of transports, of names, of answers
        if _unreachable(error) and (folder := _cached(repo, revision)) is not None:
            reason = _reason(error)
            log.warning("the Hub cannot be reached (%s); the copy of %s at %s is read", reason, name, folder.name)
            return folder
        raise _explained(error, name, repo) from None
    files = {file.rfilename: file for file in about.siblings or ()}
    folder = Path()
    for file in _wanted(list(files), name):
        folder = _fetched(repo, file, revision, about.sha, files[file], name).parent
        if file == CONFIG and "model_type" in (config := read_json(folder / file)):
            format_named(config, name)  # refused before weights of gigabytes are fetched
    if WHOLE not in files:
        shards = _shards(folder / INDEX)
        if shards is None:
            raise DataError(
                f"{name}: its {INDEX} does not say which files have the weights; name another revision, or delete "
                f"{folder / INDEX} and run again"
            )
        if lost := [file for file in shards if file not in files]:
            raise DataError(
                f"{name}: lacks {lost[0]}, which its {INDEX} names; name another revision, or give a folder with all "
                "weights"
            )
        for file in shards:
            _fetched(repo, file, revision, about.sha, files[file], name)
    return folder


def _fetched(repo: str, file: str, revision: str | None, commit: str | None, about: Any, name: str) -> Path:
    """The path of a file of the model in the cache, fetched and checked if it is not there yet.

    Raises:
        ConfigError, DataError: it cannot be fetched, or arrived damaged.
    """
    from huggingface_hub import hf_hub_download

    known = _in_cache(repo, file, commit)
    try:
        # The configuration is requested by revision, so that the cache knows the revision.
        path = Path(hf_hub_download(repo, file, revision=revision if file == CONFIG else commit))
        if file == CONFIG and path.parent.name != commit:
            path = Path(hf_hub_download(repo, file, revision=commit))
    except Exception as error:
        raise _explained(error, name, repo, file) from None
    kind, expected = ("SHA-1", about.blob_id) if about.lfs is None else ("SHA-256", about.lfs["sha256"])
    if known is not None:
        _check(path, kind, expected)
    elif expected not in (None, _digest(path, kind)):
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise DataError(
            f"{name}: {file} arrived damaged (its {kind} is not the Hub's) and was deleted; run again to fetch it"
        )
    return path


def _wanted(files: Sequence[str], name: str) -> list[str]:
    """Which of a model's files are fetched: its configuration first, its weights, or their index, last.

    Raises:
        DataError: it has no configuration, or no safetensors.
    """
    if CONFIG not in files:
        raise DataError(f"{name}: has no {CONFIG}, so it cannot be read; give another model")
    weights = next((file for file in (WHOLE, INDEX) if file in files), None)
    if weights is None:
        others = [file for file in files if file.endswith(PICKLES)]
        has = f" and its {others[0]} is a pickle, which is never fetched" if others else ""
        raise DataError(
            f"{name}: has no {WHOLE}{has}; name a revision that has it ({name.partition('@')[0]}@refs/pr/1, say), "
            "or give a folder with weights that you trust"
        )
    return [*(file for file in TEXTS if file in files), *filter(_LENGTH.fullmatch, files), weights]


def _shards(index: Path) -> list[str] | None:
    """The files of weights that an index names; None if it is missing or damaged, or names other files."""
    try:
        named = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        return named if named and all(_SHARD.fullmatch(file) for file in named) else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def _in_cache(repo: str, file: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(repo, file, revision=revision)
    except ValueError:  # not a name; the Hub's own answer explains it better
        return None
    return Path(cached) if isinstance(cached, str) else None


def _cached(repo: str, revision: str | None) -> Path | None:
    """The cache's folder of a model, if all its weights are there.

    Raises:
        DataError: a file in it is damaged.
    """
    path = _in_cache(repo, CONFIG, revision)
    if path is None:
        return None
    folder = path.parent
    weights = [WHOLE] if (folder / WHOLE).exists() else _shards(folder / INDEX)
    if not weights or not all((folder / file).exists() for file in weights):
        return None
    for file in (*TEXTS, INDEX, *weights):
        blob = (folder / file).resolve()
        kind = {64: "SHA-256", 40: "SHA-1"}.get(len(blob.name))
        if blob.is_file() and blob.parent.name == "blobs" and kind:  # called by its checksum, where there are links
            _check(folder / file, kind, blob.name)
    return folder


def _check(path: Path, kind: str, expected: str | None) -> None:
    """Compare a file that was in the cache already with its checksum; somebody may have changed it on purpose,
    as cards are.

    Raises:
        DataError: it differs.
    """
    if path.name not in FREE and expected not in (None, _digest(path, kind)):
        raise DataError(
            f"{path}: has changed since it was fetched (its {kind} is not the Hub's); delete {path.resolve()} to fetch "
            "it again"
        )


def _digest(path: Path, kind: str) -> str:
    """The SHA-256 of a file, or the SHA-1 by which git names it."""
    with path.open("rb") as file:
        if kind == "SHA-256":
            return hashlib.file_digest(file, "sha256").hexdigest()
        content = file.read()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def push(folder: Path, repo: str, *, private: bool) -> str:
    """Upload the files of ``folder`` as one commit to the model ``repo``, which is made if it is not there yet;
    returns the commit's address.

    Args:
        private: make it private; else the account's setting decides, which is public by default.

    Raises:
        ConfigError: no token, no write access, or an existing public model that should be private; nothing is uploaded.
        DataError: the Hub cannot be reached, or the connection ends early.
    """
    from huggingface_hub import HfApi

    check_push(repo)
    api = HfApi()
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.model_info(repo, timeout=TIMEOUT).private:
            raise ConfigError(
                f"{repo}: exists on the Hub and is public, so nothing was uploaded; make it private in its settings, "
                "choose another name, or leave out --private"
            )
        done = api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message="Upload model with encoderlab", repo_type="model"
        )
        return str(done.commit_url)
    except EncoderlabError:
        raise
    except Exception as error:
        raise _explained(error, repo, repo, writing=True) from None


def check_push(repo: str) -> None:
    """Refuse an upload that cannot work, before the model is converted.

    Raises:
        ConfigError: offline mode, or no token.
    """
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"{repo}: HF_HUB_OFFLINE forbids uploading; unset it")
    if get_token() is None:
        raise ConfigError(f"{repo}: uploading needs a token with write access; {LOG_IN}")


# Errors ---------------------------------------------------------------------------------------------------------------


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _unreachable(error: Exception) -> bool:
    """Whether the Hub gave no answer, or one that says nothing about the model, such as the page of a network that asks
    for a login.
    """
    from huggingface_hub.errors import HFValidationError

    status = _status(error)
    return not isinstance(error, HFValidationError) and (status is None or status >= 500 or status == 429)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _explained(
    error: Exception, name: str, repo: str, file: str | None = None, *, writing: bool = False
) -> EncoderlabError:
    """The library's error as one line."""
    from huggingface_hub import constants, errors

    status = _status(error)
    if isinstance(error, errors.GatedRepoError):
        return ConfigError(f"{name}: is gated; accept its terms at {constants.ENDPOINT}/{repo}, then {LOG_IN}")
    if writing and status in (401, 403, 404):
        return ConfigError(
            f"{name}: the Hub refuses the upload ({_reason(error)}); check the name of the account, and "
            f"that the token may write there; {LOG_IN}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return DataError(f"{name}: the Hub has no such model, or it is private; check the name, or {LOG_IN}")
    if isinstance(error, errors.RevisionNotFoundError):
        return DataError(f"{name}: the Hub has no such revision of {repo}; give a branch, a tag or a commit")
    if isinstance(error, errors.HFValidationError):
        return ConfigError(f"{name}: is not a model name ({_reason(error)}); give org/name, or a folder")
    if status in (401, 403):
        return ConfigError(f"{name}: the Hub refuses access ({_reason(error)}); {LOG_IN}")
    if file and isinstance(error, OSError) and error.errno is not None:  # of this machine; the library's have no number
        return DataError(
            f"{name}: {file} could not be written to the cache of models ({error.strerror}: {constants.HF_HUB_CACHE}); "
            "make room there, or set HF_HOME to another folder"
        )
    what = "uploaded to" if writing else "fetched from"
    of = f"{file} " if file else ""
    again = "run again" if file is None else "run again to continue where it stopped"
    return DataError(
        f"{name}: {of}could not be {what} the Hub ({_reason(error)}); check the network and HF_ENDPOINT, and {again}"
    )
