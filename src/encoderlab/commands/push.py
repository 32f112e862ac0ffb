"""``encoderlab push``: a model to the Hugging Face Hub."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from encoderlab.commands import terminal
from encoderlab.commands.convert import lost
from encoderlab.errors import ConfigError
from encoderlab.interchange.finetuned import best_seed
from encoderlab.interchange.hub import check_push
from encoderlab.interchange.hub import push as upload


def push(model: Path, name: str, /, *, private: bool = False) -> dict[str, Any]:
    """Upload a model to the Hugging Face Hub.

    Uploads what convert --to hf writes: configuration, weights as safetensors, tokenizer and
    model card. A README.md that you wrote into the model's folder becomes the card. Log in
    with `hf auth login`, or set HF_TOKEN.

    Example:
        encoderlab push runs/reviews my-name/reviews --private

    Parameters
    ----------
    model
        Model folder, run folder, or any other model that convert reads.
    name
        Name on the Hub, org/name. A new name creates a model; an existing model gets a new commit.
    private
        Create it as a private model. Default: the account's setting, usually public.
    """
    from encoderlab.interchange import huggingface
    from encoderlab.interchange.load import read
    from encoderlab.tasks.runs.folder import find_task

    if name.count("/") != 1 or "@" in name:
        raise ConfigError(f"{name}: expected the model's name on the Hub as org/name, such as my-name/reviews")
    check_push(name)
    place = best_seed(model, terminal.say)
    models = read(place)
    if len(models) > 1:
        raise ConfigError(
            f"{place}: has {len(models)} networks, and a name of the Hub is for one; run: encoderlab convert {place} "
            "OUT, and push OUT/discriminator or OUT/generator"
        )
    (network,) = models.values()
    with tempfile.TemporaryDirectory(prefix="encoderlab-push-") as made:
        folder = Path(made) / "model"
        also = partial(_copy, place, network.task is None)
        notes = huggingface.save(network, folder, also=also)
        if (task := find_task(place)) is not None:
            notes.append(lost(task))
        if network.tokenizer is None:
            notes.append("the model has no tokenizer, so its readers need one")
        address = upload(folder, name, private=private)
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    for text in notes:
        terminal.note(f"note: {text}")
    terminal.say(f"{network.config.family} uploaded: {address}")
    return {"model": model, "name": name, "commit": address, "files": files, "notes": notes}


def _copy(place: Path, vectors: bool, out: Path) -> None:
    """Copy into ``out`` the card that a user wrote, and of a model of ``vectors`` sentence-transformers' settings; of
    another one the longest text and how a number is scored.
    """
    from encoderlab.deploy.sentence_transformers import copy_scoring, copy_settings
    from encoderlab.interchange.folder import CARD, own_card
    from encoderlab.interchange.load import model_folder

    if (card := own_card(place)) is not None:
        (out / CARD).write_bytes(card)
    (copy_settings if vectors else copy_scoring)(model_folder(place), out)
