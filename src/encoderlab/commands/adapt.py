"""``encoderlab adapt``: adapt a model to a domain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from encoderlab.commands import settings, terminal
from encoderlab.errors import ConfigError
from encoderlab.files import held_folder, write_text


def adapt(
    model: str,
    text: list[str],
    /,
    *,
    out: Path,
    replay: Annotated[list[str] | None, Parameter(consume_multiple=1)] = None,
    replay_share: settings.Share | None = None,
    vocabulary: str = "keep",
    passes: settings.Amount = 3.0,
    pairs: Annotated[list[str] | None, Parameter(consume_multiple=1)] = None,
    task: str | None = None,
    seeds: settings.Count | None = None,
    seed: int = 1,
    set_: settings.Set = None,
    config: settings.Config = None,
) -> dict[str, Any]:
    """Adapt a model to the text of a domain, and measure what was gained and forgotten.

    Training continues with the objective of the model's own family, at a low rate that is
    warmed up again, until the loss on held-out text stops falling. Run the same command
    again to resume.

    Example:
        encoderlab adapt small-en contracts/ --replay wiki.txt.gz \\
            --out runs/contracts

    Parameters
    ----------
    model
        Folder of a pretrained model or run, small-en (comes with encoderlab), or org/name of the Hugging Face Hub.
    text
        Text of the domain: files, folders, `python:all`, or a built corpus.
    out
        Folder to make, or to resume; its model/ is the result.
    replay
        General text: some is mixed into the training, some measures what is forgotten.
    replay_share
        Share of the training text, in characters, that is --replay. Default: 0.1.
    vocabulary
        `keep` the model's; `extend:2000` adds 2,000 words of the domain; `new` trains one on its text.
    passes
        Largest number of passes over the text.
    pairs
        Minimal pairs to score before and after: files or folders.
    task
        Labelled file to fine-tune on before and after.
    seeds
        Number of random seeds for --task. Default: 3.
    seed
        Seed of order, masks and dropout.
    """
    from encoderlab.adapt.page import MEASURES, page, verdict
    from encoderlab.adapt.run import Adaptation, AdaptationPlan
    from encoderlab.config import flatten
    from encoderlab.deploy.sentence_transformers import copy_settings

    if not text:
        raise ConfigError("no text to adapt to; give files or folders")
    if replay_share is not None and not replay:
        raise ConfigError("--replay-share is the share of the text of --replay; give --replay too")
    if seeds is not None and task is None:
        raise ConfigError("--seeds is the number of seeds for --task; give --task FILE too")
    fields: dict[str, Any] = {}
    for _, values in settings.sources(config or (), set_ or ()):
        fields |= flatten(values)
    plan = AdaptationPlan(
        model=model,
        text=tuple(text),
        replay=tuple(replay or ()),
        replay_share=0.1 if replay_share is None else replay_share,
        vocabulary=vocabulary,
        passes=passes,
        pairs=tuple(pairs or ()),
        task=task,
        seeds=3 if seeds is None else seeds,
        seed=seed,
        fields=fields,
    )
    with held_folder(out), terminal.progress("adapt") as progress:
        result = Adaptation(plan, out, terminal.note, progress, copy_settings).run()
        write_text(out / "report.html", page(result))
    rows = [
        [
            kind,
            f"{one['before']:.3f}",
            f"{one['after']:.3f}",
            f"{one['after'] - one['before']:+.3f} ± {one['half']:.3f}",
        ]
        for kind, one in result["gains"].items()
    ]
    terminal.table(MEASURES[result["gains"]["domain"]["measure"]], ["held-out text", "before", "after", "change"], rows)
    terminal.say(verdict(result))
    terminal.say(f"model in {out / 'model'}, page in {out / 'report.html'}")
    return {"out": out, **result}
