"""``encoderlab push``: a model to the Hugging Face Hub."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from encoderlab.commands import terminal
from encoderlab.commands.convert import lost
from encoderlab.errors import ConfigError
from encoderlab.interchange import checksums
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
    from encoderlab.interchange.folder import CARD, own_card
    from encoderlab.interchange.load import kind_of, read
    from encoderlab.tasks.runs.folder import find_task

    if name.count("/") != 1 or "@" in name:
        raise ConfigError(f"{name}: expected the model's name on the Hub as org/name, such as my-name/reviews")
    check_push(name)
    place = best_seed(model, terminal.say)
    models = read(place)
    if len(models) > 1:
        raise ConfigError(
            f"{place}: has {len(models)} networks, and a name of the Hub is for one; push the folder of one of them, "
            f"such as {place / 'model' / 'discriminator'}"
        )
    (network,) = models.values()
    with tempfile.TemporaryDirectory(prefix="encoderlab-push-") as made:
        folder = Path(made) / "model"
        notes = huggingface.save(network, folder)
        if kind_of(place) == "encoderlab" and (task := find_task(place)) is not None:
            notes.append(lost(task))
        if network.tokenizer is None:
            notes.append("the model has no tokenizer, so its readers need one")
        if (card := own_card(place)) is not None:
            (folder / CARD).write_bytes(card)
            checksums.add(folder, CARD)
        address = upload(folder, name, private=private)
        files = sorted(path.name for path in folder.iterdir())
    for text in notes:
        terminal.note(f"note: {text}")
    terminal.say(f"{network.config.family} uploaded: {address}")
    return {"model": model, "name": name, "commit": address, "files": files, "notes": notes}
