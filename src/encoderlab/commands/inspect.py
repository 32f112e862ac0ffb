"""``encoderlab inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from encoderlab.commands.terminal import progress, say, table
from encoderlab.errors import ConfigError

if TYPE_CHECKING:
    from encoderlab.inspection.folder import Look
    from encoderlab.inspection.texts import Sentence


def inspect(
    model: Path, text: str, /, *, out: Path, against: Path | None = None, texts: int = 200, memory: int = 0
) -> dict[str, Any]:
    """Show on one page what every attention head reads, and write the numbers.

    Every family: attention with its positions and windows, and what convolution heads read. Of a file the first texts
    are shown, and all count for the averages: entropy, distance, diagonal concentration, and what each head attends to
    (neighbours, special tokens, the same word; of a .conllu treebank also the words of its trees).

    Example:
        encoderlab inspect runs/notes "The [MASK] of a list is a list." --out seen

    Parameters
    ----------
    model
        Model or run folder, also Hugging Face's.
    text
        A text, or a file with one text per line, or a .conllu file.
    out
        Folder to write: index.html, inspect.json, attention.npz.
    against
        Another model, shown beside the first.
    texts
        How many texts of a file are read.
    memory
        Read so many first tokens as memory (Transformer-XL).
    """
    from encoderlab.files import held_folder
    from encoderlab.inspection import folder
    from encoderlab.inspection.texts import sentences

    if texts < 1:
        raise ConfigError(f"--texts is {texts}; give at least 1")
    read = sentences(text, texts)
    with held_folder(out):
        looks = [_look(place, read, memory) for place in ([model] if against is None else [model, against])]
        folder.write(looks, out)
    for look in looks:
        rows = [
            [folder.RELATIONS[name], str(best["layer"]), str(best["head"]), f"{100 * best['weight']:.1f}%"]
            for name, best in folder.strongest(look).items()
        ]
        table(look.name, ["most weight on", "layer", "head", "weight"], rows)
    say(f"page written to {out / 'index.html'}")
    return {"out": out, "texts": len(read), "models": [folder.record(look) for look in looks]}


def _look(place: Path, read: list[Sentence], memory: int) -> Look:
    """One model and what its heads do with the texts."""
    from encoderlab.inspection.attention import attention
    from encoderlab.inspection.folder import SHOWN, Look
    from encoderlab.inspection.neighbours import nearest
    from encoderlab.inspection.patterns import Patterns
    from encoderlab.interchange.load import load

    network = load(place)
    config = network.config.encoder
    shown, counted = [], None
    with progress("inspect") as show:
        for number, sentence in enumerate(read):
            (one,) = attention(network, [sentence.text], memory=memory)
            if counted is None:
                counted = Patterns(len(one.layers), len(one.layers[0]), config.attention_heads)
            counted.add(one, sentence.heads)
            if number < SHOWN:
                shown.append(one)
            show("texts", number + 1, len(read))
    assert counted is not None
    words = [token for token, word in zip(shown[0].tokens, shown[0].words, strict=True) if word >= 0]
    near = {} if network.encoder.embeddings.words is None else nearest(network, words)
    return Look(
        name=place.name if place.name != "model" else place.resolve().parent.name,
        family=network.config.family,
        texts=shown,
        patterns=counted,
        neighbours=near,
        attending=config.attention_heads,
    )
